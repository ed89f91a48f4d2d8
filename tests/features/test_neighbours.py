"""Spectral features: true eigenvectors, the same for old and new rows, better than components at small ε."""

import numpy as np
import pytest
import torch

from labeldp.core.vault import LabelVault
from labeldp.features.extract import Raw, extract
from labeldp.features.graph import Neighbours, graph_of, leading
from labeldp.recipes import one_shot


def rings(rows, seed=0):
    """Four interlocked circles in 6 dimensions, each a class: near rows agree, and no plane parts them."""
    generator = torch.Generator().manual_seed(seed)
    which = torch.arange(rows) % 4
    angle = 2 * torch.pi * torch.rand(rows, generator=generator)
    centers = torch.tensor([[0.0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 1], [0, 1, 0, 1, 0, 0]])
    planes = torch.tensor([[0, 1], [0, 2], [3, 4], [4, 5]])
    x = centers[which] + 0.05 * torch.randn(rows, 6, generator=generator)
    x[torch.arange(rows), planes[which, 0]] += angle.cos()
    x[torch.arange(rows), planes[which, 1]] += angle.sin()
    return x, which


def test_eigenvalues_and_vectors_are_those_of_the_graph():
    x, _ = rings(300)
    graph = graph_of(torch.nn.functional.normalize(x, dim=1), 8)
    dense = graph.matrix.to_dense()
    torch.testing.assert_close(dense, dense.T)
    values, vectors = leading(graph, 10, seed=0)
    exact = torch.linalg.eigvalsh(dense.double()).flip(0)[:10].float()
    torch.testing.assert_close(values, exact, atol=2e-3, rtol=0)
    # D⁻¹A f = λ f, for the leading ones closely.
    walk = dense * graph.degrees.rsqrt()[:, None] * graph.degrees.sqrt()
    left = (walk @ vectors - values * vectors)[:, :6].square().mean(0).sqrt()
    assert left.max() < 0.02
    assert (vectors[:, 0] - vectors[0, 0]).abs().max() < 1e-3


def test_old_and_new_rows_have_the_same_features():
    x, which = rings(1200)
    found = Neighbours(Raw(), dims=6, near=10).fit(x)
    old, new = found.features(x), found.features(x + 1e-4)
    assert old.shape == (1200, 6)
    assert found.dim == 6
    torch.testing.assert_close(old, new, atol=0.25, rtol=0)
    assert (old - new).abs().mean() < 0.01
    # Neighbours have one class: means of classes differ by more than rows of a class do.
    means = torch.stack([old[which == k].mean(0) for k in range(4)])
    within = (old - means[which]).square().mean()
    assert means.var(0).mean() > within


def test_the_last_eigenvector_counts_as_much_as_asked():
    x, _ = rings(600)
    plain = Neighbours(Raw(), dims=8, near=10, fade=1.0).fit(x).weighed
    faded = Neighbours(Raw(), dims=8, near=10, fade=0.1).fit(x).weighed
    ratio = faded.square().mean(0).sqrt() / plain.square().mean(0).sqrt()
    torch.testing.assert_close(ratio[[0, -1]], torch.tensor([1.0, 0.1]), atol=1e-3, rtol=0)
    assert (ratio.diff() <= 1e-6).all()


@pytest.mark.slow
def test_one_look_at_a_small_epsilon_sees_more():
    x, which = rings(6000)
    accuracies = {}
    for name, extractor in {"plain": Raw(), "graph": Neighbours(Raw(), dims=16)}.items():
        vault = LabelVault(which.numpy().astype(np.uint8), 4)
        found = one_shot.train_on_inputs(extractor, x, vault, epsilon=0.1, delta=1e-5)
        accuracies[name] = (found.probabilities(x).argmax(1) == which).double().mean().item()
    assert accuracies["graph"] > accuracies["plain"] + 0.1


def test_kept_on_disk_by_its_settings(tmp_path):
    x, _ = rings(300)
    first = extract(Neighbours(Raw(), dims=4, near=5), x, cache=tmp_path)[0]
    again = extract(Neighbours(Raw(), dims=4, near=5), x, cache=tmp_path)[0]
    other = extract(Neighbours(Raw(), dims=4, near=6), x, cache=tmp_path)[0]
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


@pytest.mark.parametrize(("settings", "named"), [({"dims": 0}, "dims"), ({"near": 0}, "near"), ({"fade": 0.0}, "fade")])
def test_settings_that_make_no_sense(settings, named):
    with pytest.raises(ValueError, match=named):
        Neighbours(Raw(), **settings)


def test_too_few_rows():
    with pytest.raises(ValueError, match="10 rows"):
        Neighbours(Raw()).fit(torch.randn(10, 2))


def test_equal_rows_and_islands_are_no_trouble():
    islands = torch.cat(
        (torch.zeros(40, 3) + torch.tensor([1.0, 0, 0]), torch.zeros(40, 3) + torch.tensor([0, 1.0, 0]))
    )
    features = Neighbours(Raw(), dims=3, near=5).fit(islands).features(islands)
    assert features.isfinite().all()
