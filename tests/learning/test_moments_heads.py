"""Softmax regression on the noisy moment, and the hull of what labels could give."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from labeldp.learning import heads
from labeldp.learning.heads import eigenbasis, hull, hull_head, ridge, ridge_head, shrinkage, softmax_head
from tests.learning.test_moments import accuracy, blobs, moment_of

# -- softmax ------------------------------------------------------------------------------------------------------


def penalised(weight, features, moment, penalty, vectors):
    """The stated objective, by autograd and without a trick."""
    turned = weight @ vectors
    logits = features @ weight.T
    return torch.logsumexp(logits, dim=1).sum() - (weight * moment).sum() + 0.5 * (penalty * turned**2).sum()


@pytest.mark.parametrize("noise_std", [0.0, 10.0])
@pytest.mark.parametrize("strength", [1.0, 3.0])
def test_softmax_minimises_the_stated_objective(noise_std, strength):
    features, labels = blobs(rows=500, apart=1.0)
    features = features.double()
    noisy = moment_of(features, labels, 4, noise_std)
    gram = features.T @ features
    found = shrinkage(noisy, gram, constant=6)
    curvature = found.axes.values / 4
    penalty = strength * (found.noise * curvature / found.signal)
    weight = softmax_head(noisy, features, gram, constant=6, strength=strength, steps=500)
    moving = weight.clone().requires_grad_(True)
    value = penalised(moving, features, torch.tensor(noisy.value), penalty, found.axes.vectors)
    (slope,) = torch.autograd.grad(value, moving)
    # In units of the curvature: how far from the minimum.
    left = (slope @ found.axes.vectors) / (curvature + penalty).sqrt()
    assert float(left.norm()) < 1e-3 * math.sqrt(float(value.detach().abs()))


def test_softmax_with_the_true_moment_is_logistic_regression():
    """Maximum likelihood from the labels themselves, which the moment replaces."""
    features, labels = blobs(rows=3000, classes=3, apart=0.7)
    noisy = moment_of(features, labels, 3)
    weight = softmax_head(noisy, features, features.T @ features, strength=1e-6, steps=300)
    loss = torch.nn.functional.cross_entropy(features @ weight.T, labels)
    moving = torch.zeros(3, 7, requires_grad=True)
    optimiser = torch.optim.LBFGS([moving], max_iter=300, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(features @ moving.T, labels)
        value.backward()
        return value

    optimiser.step(closure)
    assert float(loss) == pytest.approx(float(closure().detach()), abs=2e-4)


def test_softmax_sees_all_rows_whatever_the_chunks(monkeypatch):
    features, labels = blobs(rows=700, apart=1.0)
    noisy = moment_of(features, labels, 4, noise_std=2.0)
    whole = softmax_head(noisy, features, features.T @ features)
    monkeypatch.setattr(heads, "_CPU_CELLS", 4 * 33)
    torch.testing.assert_close(softmax_head(noisy, features, features.T @ features), whole, atol=2e-3, rtol=1e-2)


def test_softmax_beats_ridge_where_noise_is_small_and_loses_where_it_is_large():
    features, labels = blobs(rows=6000, classes=12, width=3, apart=2.0)
    gram = features.T @ features
    scores = {}
    for noise_std in (0.0, 600.0):
        noisy = moment_of(features, labels, 12, noise_std)
        for head in (ridge_head, softmax_head):
            weight = head(noisy, features, gram, constant=3)
            scores[noise_std, head.__name__] = accuracy(features, labels, weight)
    # Classes in a row hide each other from least squares.
    assert scores[0.0, "softmax_head"] > scores[0.0, "ridge_head"] + 0.05
    assert torch.isfinite(weight).all()


def test_pure_noise_gives_small_finite_weights():
    features, labels = blobs(rows=500)
    noisy = moment_of(features, labels, 4, noise_std=1e7)
    for head in (ridge_head, softmax_head, hull_head):
        assert torch.isfinite(head(noisy, features, features.T @ features, constant=6)).all()


# -- hull -----------------------------------------------------------------------------------------------------------


def nearest_by_a_general_solver(target, features, classes):
    """The hull projection of a tiny problem, as a constrained minimisation over all α."""
    rows = len(features)

    def value(flat):
        alpha = flat.reshape(rows, classes)
        return 0.5 * ((alpha.T @ features - target) ** 2).sum()

    def slope(flat):
        alpha = flat.reshape(rows, classes)
        return (features @ (alpha.T @ features - target).T).ravel()

    sums = {"type": "eq", "fun": lambda flat: flat.reshape(rows, classes).sum(axis=1) - 1}
    start = np.full(rows * classes, 1 / classes)
    found = minimize(value, start, jac=slope, bounds=[(0, 1)] * (rows * classes), constraints=[sums], method="SLSQP",
                     options={"maxiter": 500, "ftol": 1e-12})  # fmt: skip
    return found.x.reshape(rows, classes).T @ features


@pytest.mark.parametrize("seed", range(5))
def test_the_hull_against_a_general_solver(seed):
    features, labels = blobs(rows=6, classes=3, width=2, seed=seed)
    features = features.double()
    noisy = moment_of(features, labels, 3, noise_std=4.0, seed=seed)
    found = hull(noisy, features, features.T @ features, tolerance=1e-6, most=20_000)
    expected = nearest_by_a_general_solver(noisy.value, features.numpy(), 3)
    np.testing.assert_allclose(found.value, expected, atol=2e-3)
    assert found.gap <= 1e-6


@given(seed=st.integers(0, 10_000), noise_std=st.floats(0.1, 300))
@settings(max_examples=25)
def test_projecting_never_takes_it_further_from_the_truth(seed, noise_std):
    features, labels = blobs(rows=60, classes=3, width=5, seed=seed)
    noisy = moment_of(features, labels, 3, noise_std, seed=seed)
    truth = torch.tensor(moment_of(features, labels, 3).value)
    found = hull(noisy, features, features.T @ features, tolerance=0.001, most=3000)
    before, after = (torch.tensor(noisy.value) - truth).norm(), (found.value - truth).norm()
    assert after <= before * 1.01 + 1e-3
    torch.testing.assert_close(found.labels.sum(dim=1), torch.ones(60), atol=1e-5, rtol=0)
    assert found.labels.min() >= 0
    assert found.noise_std <= noisy.noise_std


def test_the_gap_bounds_the_distance_to_the_optimum():
    features, labels = blobs(rows=200)
    noisy = moment_of(features, labels, 4, noise_std=60.0)
    gram = eigenbasis(features.T @ features)
    rough, fine = (hull(noisy, features, gram, tolerance=t, most=5000) for t in (0.3, 1e-4))
    objectives = [0.5 * float((torch.tensor(noisy.value) - found.value).square().sum()) for found in (rough, fine)]
    assert rough.steps < fine.steps
    assert 0 <= objectives[0] - objectives[1] <= rough.gap * objectives[0] + 1e-3


def test_possible_moments_stay_where_they_are():
    features, labels = blobs(rows=300)
    noisy = moment_of(features, labels, 4)
    found = hull(noisy, features, features.T @ features, tolerance=1e-5, most=20_000)
    np.testing.assert_allclose(found.value, noisy.value, atol=0.02 * np.abs(noisy.value).max())
    assert found.noise_std == 0.0


def test_the_hull_takes_noise_off_and_the_head_gains():
    """Many features, little signal in most: the truth is a corner of a small set."""
    features, labels = blobs(rows=1500, classes=4, width=60, apart=0.4)
    gram = features.T @ features
    truth = torch.tensor(moment_of(features, labels, 4).value)
    noisy = moment_of(features, labels, 4, noise_std=150.0)
    nearest = hull(noisy, features, gram)
    assert (nearest.value - truth).norm() < 0.6 * (torch.tensor(noisy.value) - truth).norm()
    weight = hull_head(noisy, features, gram)
    assert accuracy(features, labels, weight) > accuracy(features, labels, ridge(noisy, gram)) - 0.02


def test_other_rows_are_refused():
    features, labels = blobs(rows=100)
    noisy = moment_of(features, labels, 4)
    for head in (ridge_head, softmax_head, hull_head):
        with pytest.raises(ValueError, match=r"features has shape \(99, 7\); the moment is of \(100, 7\)"):
            head(noisy, features[:99], features.T @ features)
