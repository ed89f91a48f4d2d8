"""Teachers trained together: the same as one by one, apart from each other, and as good as they should be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from labeldp.features.augment import random_crop
from labeldp.learning.teachers import Consistency, network_teachers, one_shot_teachers, ridge_teachers
from labeldp.mechanisms.teachers import TeacherVotes, check_separate, one_by_one
from labeldp.models.zoo import group_norm

K = 4


def clouds(n, d=12, spread=0.5, seed=0):
    """K classes around random centres."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, size=n)
    points = rng.normal(size=(K, d))[labels] + spread * rng.normal(size=(n, d))
    return torch.from_numpy(points).float(), labels


def voting(teach, teachers, queries):
    noises = {"noise_std": 50.0, "threshold": 1, "threshold_std": 50.0}
    return TeacherVotes(teach, K, teachers, queries, queries, **noises, at_once=teachers)


def small_net():
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, K))


def networks(points, asked, **settings):
    return network_teachers(
        small_net, points, asked, **{"steps": 60, "batch_size": 16, "learning_rate": 0.1, **settings}
    )


def shifted(points, generator):
    return points + 0.05 * torch.randn(points.shape, generator=generator)


MAKERS = {
    "ridge": lambda x, asked: ridge_teachers(x, asked, K),
    "one look": lambda x, asked: one_shot_teachers(x, asked, K),
    "networks": networks,
    "consistent networks": lambda x, asked: networks(x, asked, consistency=Consistency(shifted, shifted, rows=20)),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("size", [6, 40])
def test_teachers_learn(name, size):
    """Four far classes: each teacher of 40 labels is nearly always right, of 6 labels better than chance."""
    points, labels = clouds(40 * 25)
    teach = MAKERS[name](points, points[:100])
    rows = np.arange(40 * 25).reshape(25, 40)[:, :size]
    votes = teach(np.arange(25), rows, labels[rows].astype(np.uint8))
    assert votes.shape == (25, 100)
    assert np.mean(votes == labels[:100]) > (0.95 if size == 40 else 0.55)


@pytest.mark.parametrize("name", MAKERS)
def test_no_teacher_hears_of_another_shard(name):
    points, _ = clouds(120)
    check_separate(voting(MAKERS[name](points, points[:30]), 6, 30), 120, teachers=4)


def test_planted_a_common_mean_is_found():
    """Ridge whose targets are centred on the labels of all teachers of the call, instead of 1/K."""
    points, _ = clouds(120)

    def leaky(numbers, rows, labels):
        onehot = np.eye(K)[labels]
        scores = np.einsum("qd,tmd,tmk->tqk", points[:30], points.numpy()[rows], onehot - 4 * onehot.mean(axis=(0, 1)))
        return scores.argmax(axis=2)

    with pytest.raises(ValueError, match="changed the votes of teachers"):
        check_separate(voting(leaky, 6, 30), 120, teachers=4)


@pytest.mark.parametrize("name", ["ridge", "one look"])
@pytest.mark.parametrize("size", [5, 30])
def test_the_batched_solve_is_the_textbook_one(name, size):
    """One teacher at a time in float64, in the primal, from the formula in the docstring; both sides of m = d."""
    points, labels = clouds(300, d=12, spread=1.5)
    points = points.double()
    asked, ridge = points[:80], 1e-2
    phi = points - points.mean(dim=0)
    phi = phi / phi.square().sum(dim=1).mean().sqrt()
    queries = phi[:80]

    def textbook(number, rows, own):
        targets = torch.eye(K, dtype=torch.float64)[own.astype(np.int64)] - 1 / K
        gram = phi[rows].T @ phi[rows] / len(rows) if name == "ridge" else phi.T @ phi / len(phi)
        weights = torch.linalg.solve(
            gram + ridge * torch.eye(12, dtype=torch.float64), phi[rows].T @ targets / len(rows)
        )
        return (queries @ weights).argmax(dim=1).numpy()

    maker = ridge_teachers if name == "ridge" else one_shot_teachers
    rows = np.arange(10 * size).reshape(10, size)
    batched = maker(points, asked, K, ridge=ridge)(np.arange(10), rows, labels[rows])
    assert np.array_equal(batched, one_by_one(textbook)(np.arange(10), rows, labels[rows]))


def test_networks_together_are_networks_alone():
    """A teacher's first weights are its own; with whole-shard batches of one row each, so is all of its training."""
    points, labels = clouds(5)
    rows = np.arange(5)[:, None]
    teach = networks(points, points, batch_size=3, steps=8)
    together = teach(np.arange(5), rows, labels[rows])
    alone = [teach(np.array([i]), rows[i : i + 1], labels[rows[i : i + 1]])[0] for i in range(5)]
    assert np.array_equal(together, np.stack(alone))


def test_votes_do_not_depend_on_pieces(monkeypatch):
    points, labels = clouds(200)
    rows = np.arange(200).reshape(10, 20)
    whole = [make(points, points)(np.arange(10), rows, labels[rows]) for make in MAKERS.values()]
    monkeypatch.setattr("labeldp.learning.teachers._CPU_CELLS", 100)
    monkeypatch.setattr("labeldp.learning.teachers._ROWS_AT_ONCE", 30)
    parts = [make(points, points)(np.arange(10), rows, labels[rows]) for make in MAKERS.values()]
    assert all(np.mean(a != b) < 0.002 for a, b in zip(whole, parts, strict=True))


def test_the_same_seed_gives_the_same_votes_and_leaves_the_global_generator_alone():
    points, labels = clouds(60, spread=2.0)
    rows = np.arange(60).reshape(6, 10)
    before = torch.random.get_rng_state()
    votes = [networks(points, points, seed=seed)(np.arange(6), rows, labels[rows]) for seed in (1, 1, 2)]
    assert torch.equal(before, torch.random.get_rng_state())
    assert np.array_equal(votes[0], votes[1])
    assert not np.array_equal(votes[0], votes[2])


def test_networks_on_images_with_dropout_and_crops():
    """Convolutions, group norm, dropout and changes of images pass through the stack; batch norm is refused."""

    def build(norm=True):
        layers = [nn.Conv2d(1, 4, 3, padding=1), *([nn.BatchNorm2d(4)] if norm else []), nn.ReLU(), nn.Dropout(0.1)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 2))

    images = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 0.2
    labels = np.arange(40) % 2
    images[labels == 1, :, :4] += 0.8
    rows = np.arange(40).reshape(4, 10)
    settings = {"steps": 40, "batch_size": 10, "learning_rate": 0.1, "augment": random_crop(1)}
    teach = network_teachers(lambda: group_norm(build(), groups=2), images, images, **settings)
    assert np.mean(teach(np.arange(4), rows, labels[rows]) == labels) > 0.9
    with pytest.raises(ValueError, match="batch norm"):
        network_teachers(build, images, images, **settings)(np.arange(4), rows, labels[rows])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", ["ridge", "one look", "networks"])
def test_on_a_gpu(name):
    points, labels = clouds(1000)
    rows = np.arange(1000).reshape(25, 40)
    device = points.cuda()
    votes = MAKERS[name](device, device[:100])(np.arange(25), rows, labels[rows])
    assert np.mean(votes == labels[:100]) > 0.9


def test_bad_settings():
    points, _ = clouds(10)
    with pytest.raises(ValueError, match="must be"):
        ridge_teachers(points, points[:, :3], K)
    with pytest.raises(ValueError, match="ridge=0"):
        one_shot_teachers(points, points, K, ridge=0)
    with pytest.raises(ValueError, match="num_classes"):
        ridge_teachers(points, points, 0)
    with pytest.raises(ValueError, match="steps"):
        networks(points, points, steps=0)
