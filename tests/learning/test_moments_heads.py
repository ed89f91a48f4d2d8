"""Softmax regression on the noisy moment."""

from __future__ import annotations

import math

import pytest
import torch

from labeldp.learning import heads
from labeldp.learning.heads import ridge_head, shrinkage, softmax_head
from tests.learning.test_moments import accuracy, blobs, moment_of


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
    for head in (ridge_head, softmax_head):
        assert torch.isfinite(head(noisy, features, features.T @ features, constant=6)).all()


def test_other_rows_are_refused():
    features, labels = blobs(rows=100)
    noisy = moment_of(features, labels, 4)
    for head in (ridge_head, softmax_head):
        with pytest.raises(ValueError, match=r"features has shape \(99, 7\); the moment is of \(100, 7\)"):
            head(noisy, features[:99], features.T @ features)
