import math

import numpy as np
import pytest
import torch
from torch import nn

from labeldp.features.augment import random_resized_crop
from labeldp.features.clusters import (
    cluster_by_neighbours,
    kmeans,
    nearest_neighbours,
    scan,
    scan_loss,
)
from labeldp.learning.optimisers import adam


def two_traits(n=600, seed=0):
    """Two independent traits: one moves rows far apart, the other, of which neighbours tell, a little."""
    generator = torch.Generator().manual_seed(seed)
    loud, quiet = torch.arange(n) % 2, torch.arange(n) // 2 % 2
    points = torch.stack((8.0 * loud - 4, 3.0 * quiet - 1.5), dim=1) + 0.3 * torch.randn(n, 2, generator=generator)
    return points, quiet


def blobs(n=400, k=4, dim=6, apart=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    truth = torch.arange(n) % k
    return apart * torch.randn(k, dim, generator=generator)[truth] + torch.randn(n, dim, generator=generator), truth


def agreement(members, truth):
    """Share of rows in the majority class of their cluster."""
    counts = torch.zeros(int(members.max()) + 1, int(truth.max()) + 1)
    counts.index_put_((members, truth), torch.ones(len(truth)), accumulate=True)
    return counts.max(dim=1).values.sum().item() / len(truth)


def head(k, dim=2, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, k))


def test_scan_loss_by_the_definition():
    a, b = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(0)).double()
    p, q = (np.exp(x.numpy()) / np.exp(x.numpy()).sum(axis=1, keepdims=True) for x in (a, b))
    together = -np.mean([math.log(p[i] @ q[i]) for i in range(7)])
    used = sum(m * math.log(m) for m in p.mean(axis=0))
    assert scan_loss(a, b, 5.0).item() == pytest.approx(together + 5 * used)


def test_scan_loss_is_least_for_sure_equal_clusters():
    sure = 50 * torch.eye(4)
    assert scan_loss(sure, sure, 5.0).item() == pytest.approx(-5 * math.log(4), abs=1e-4)
    assert scan_loss(sure, sure.roll(1, 0), 5.0) > scan_loss(sure, sure, 5.0) + 10
    one = torch.tensor([[50.0, 0, 0, 0]]).repeat(4, 1).requires_grad_()
    scan_loss(one, one, 5.0).backward()
    assert torch.isfinite(one.grad).all()


def test_clusters_follow_neighbours_and_not_distances():
    points, quiet = two_traits()
    near = nearest_neighbours(points[:, 1:], 10)
    settings = {"epochs": 20, "batch_size": 200, "optimizer": adam(1e-2)}
    found = cluster_by_neighbours(head(2), points, near, **settings)
    assert agreement(kmeans(points, 2, restarts=5).members, quiet) < 0.6
    assert agreement(found.members, quiet) > 0.98


def test_scan_of_features():
    points, truth = blobs()
    found = scan(points, 4, epochs=15, batch_size=100)
    assert agreement(found.members, truth) > 0.95
    assert torch.bincount(found.members, minlength=4).min() > 50
    probabilities = found.model(points).softmax(dim=1)
    assert torch.equal(found.members, probabilities.argmax(dim=1))
    assert torch.allclose(found.confidence, probabilities.max(dim=1).values, atol=1e-5)
    assert not found.model.training
    assert agreement(scan(points.numpy(), 4, epochs=60, batch_size=100, hidden=0).members, truth) > 0.9


def test_the_head_of_the_least_loss_is_kept_and_a_seed_decides():
    points, _ = blobs(apart=1.0)
    settings = {"epochs": 3, "batch_size": 100}
    torch.manual_seed(4)
    state = torch.random.get_rng_state()
    one = [scan(points, 4, restarts=1, seed=s, **settings).loss for s in range(3)]
    found = scan(points, 4, restarts=3, seed=0, **settings)
    assert found.loss == min(one)
    assert torch.equal(found.members, scan(points, 4, restarts=3, seed=0, **settings).members)
    torch.manual_seed(4)
    assert torch.equal(state, torch.random.get_rng_state())


def test_views_of_images_and_progress():
    images, seen = (255 * torch.rand(40, 1, 8, 8)).to(torch.uint8), []
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    near = nearest_neighbours(images.flatten(1), 5)
    views = []

    def view(pictures, generator):
        views.append(pictures)
        return random_resized_crop()(pictures, generator)

    cluster_by_neighbours(model, images, near, epochs=2, batch_size=10, view=view, report=seen.append)
    assert [progress.epoch for progress in seen] == [1, 2]
    assert views[0].shape == (20, 1, 8, 8)
    assert views[0].max() <= 1
    rows = {tuple(row) for row in images.flatten(1).tolist()}
    assert {tuple(row) for row in (views[0] * 255).round().int().flatten(1).tolist()} <= rows


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scan(torch.randn(50, 3), 1, neighbours=5), "k is 1"),
        (lambda: scan(torch.randn(10, 3), 2, neighbours=20), "k=20"),
        (
            lambda: cluster_by_neighbours(head(2), torch.randn(9, 2), torch.zeros(5, 2, dtype=torch.long), epochs=1),
            "neighbours has shape",
        ),
    ],
)
def test_refusals_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_new_rows_are_assigned_as_old_ones():
    points, _ = blobs()
    found = scan(points, 4, epochs=3, restarts=1)
    assert torch.equal(found.assign(points), found.members)
    assert torch.equal(found.assign(points[:5].numpy()), found.members[:5])
