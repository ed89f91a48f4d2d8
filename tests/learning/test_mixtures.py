"""Two Gaussians: against plain expectation and maximisation, and against scikit-learn where both converge."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labeldp.learning.dividemix import best_split, two_gaussians


def losses(n=3000, share=0.4, seed=0, apart=1.5):
    generator = np.random.default_rng(seed)
    low = generator.random(n) < share
    return np.where(low, generator.normal(0.3, 0.2, n), generator.normal(0.3 + apart, 0.5, n)), low


def plain_em(values, rounds, floor, low):
    """One number after another, from the same split."""
    shares = np.stack([low, ~low], axis=1).astype(float)
    for _ in range(rounds + 1):
        size = shares.sum(axis=0)
        mean = np.array([sum(s * x for s, x in zip(shares[:, c], values, strict=True)) / size[c] for c in (0, 1)])
        variance = np.array([sum(shares[:, c] * (values - mean[c]) ** 2) / size[c] + floor for c in (0, 1)])
        weight = size / len(values)
        density = weight * np.exp(-((values[:, None] - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
        shares = density / density.sum(axis=1, keepdims=True)
    return weight, mean, variance, shares[:, 0]


@pytest.mark.parametrize("rounds", [1, 7])
def test_the_same_as_plain_em(rounds):
    values, _ = losses(400)
    start = best_split(torch.from_numpy(values))[:, 0].bool().numpy()
    weight, mean, variance, lower = plain_em(values, rounds, 5e-4, start)
    found = two_gaussians(torch.from_numpy(values), rounds)
    assert np.allclose(found.weights, weight, atol=1e-10)
    assert np.allclose(found.means, mean, atol=1e-10)
    assert np.allclose(found.variances, variance, atol=1e-10)
    assert np.allclose(found.lower(torch.from_numpy(values)), lower, atol=1e-8)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_converges_to_scikit_learns(share):
    mixture = pytest.importorskip("sklearn.mixture")
    values, low = losses(share=share)
    peer = mixture.GaussianMixture(2, reg_covar=5e-4, tol=1e-10, max_iter=2000, random_state=0).fit(values[:, None])
    found = two_gaussians(torch.from_numpy(values), iterations=2000)
    order = peer.means_[:, 0].argsort()
    assert np.allclose(found.means, peer.means_[order, 0], atol=1e-4)
    assert np.allclose(found.variances, peer.covariances_[order, 0, 0], atol=1e-4)
    assert np.allclose(found.weights, peer.weights_[order], atol=1e-4)
    assert ((found.lower(torch.from_numpy(values)).numpy() > 0.5) == low).mean() > 0.93


@given(st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=12))
def test_the_best_split_is_the_best_of_all(numbers):
    values = np.array(numbers)
    low = best_split(torch.from_numpy(values))[:, 0].bool().numpy()

    def within(part):
        return sum(((x - x.mean()) ** 2).sum() for x in (values[part], values[~part]) if len(x))

    ordered = np.sort(values)
    everything = [within(values <= border) for border in ordered]
    assert within(low) <= min(everything) + 1e-6


@given(st.integers(0, 1000), st.floats(0.1, 5), st.floats(-2, 2))
def test_moved_and_stretched_values_have_the_same_shares(seed, scale, shift):
    values = torch.from_numpy(losses(200, seed=seed)[0])
    plain = two_gaussians(values, floor=1e-3).lower(values)
    moved = two_gaussians(values * scale + shift, floor=1e-3 * scale**2).lower(values * scale + shift)
    assert torch.allclose(plain, moved, atol=1e-5)


def test_equal_values_say_nothing_and_break_nothing():
    lower = two_gaussians(torch.full((50,), 0.7)).lower(torch.full((50,), 0.7))
    assert torch.isfinite(lower).all()


def test_types_and_order():
    values = torch.tensor([3.0, 3.1, 0.1, 0.0, 2.9])
    found = two_gaussians(values)
    assert found.means[0] < found.means[1]
    assert found.lower(values).dtype == torch.float32
    assert found.lower(values).round().tolist() == [0, 0, 1, 1, 0]


@pytest.mark.parametrize("values", [torch.zeros(1), torch.zeros(3, 2)])
def test_refuses_what_is_no_list_of_numbers(values):
    with pytest.raises(ValueError, match="values"):
        two_gaussians(values)
