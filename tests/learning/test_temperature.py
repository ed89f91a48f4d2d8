"""Honest probabilities without labels: scales from likelihoods, noise split in two, heads compared on drawn labels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.features.extract import gram_of
from labeldp.learning.evidence import evidence
from labeldp.learning.heads import (
    Scale,
    eigenbasis,
    honest_scale,
    likeliest_scale,
    pooled_scale,
    ridge_head,
    scale_by_responses,
    softened,
    split_noise,
)
from labeldp.learning.tuning import class_sums, compare_heads, mock_release
from labeldp.mechanisms.responses import RandomizedResponse


def drawn_labels(scores, seed=0):
    return torch.multinomial(torch.softmax(scores, dim=1), 1, generator=Generator().manual_seed(seed))[:, 0]


def linear_problem(rows=20_000, width=8, classes=4, size=6.0, seed=0):
    """Unit rows, and labels drawn from softmax of a linear map of them."""
    generator = Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator)
    x = x / x.norm(dim=1, keepdim=True)
    weight = size * torch.randn(classes, width, generator=generator) / math.sqrt(width)
    return x, drawn_labels(x @ weight.T, seed), weight


@pytest.mark.slow
@given(st.floats(0.05, 50.0))
def test_the_likeliest_scale_is_the_one_that_made_the_labels(true):
    """20,000 labels drawn from softmax(t·s), s of size 1/t: t within a tenth."""
    scores = 3 * torch.randn(20_000, 5, generator=Generator().manual_seed(1)) / true
    labels = drawn_labels(true * scores)
    found = likeliest_scale(scores, scores.gather(1, labels[:, None]).sum(dtype=torch.float64))
    assert found == pytest.approx(true, rel=0.1)


def test_scores_that_say_nothing_have_the_smallest_scale():
    scores = torch.randn(5000, 3, generator=Generator().manual_seed(2))
    assert likeliest_scale(scores, scores.mean(dim=1).sum()) == pytest.approx(1e-3, rel=1e-2)
    assert likeliest_scale(scores, scores.amax(dim=1).sum()) > 1000


@pytest.mark.parametrize("confidence", [0.4, 0.6, 0.9])
def test_softened_scores_are_as_sure_as_told(confidence):
    scores = 9 * torch.randn(3000, 4, generator=Generator().manual_seed(3))
    found = softened(scores, confidence)
    assert found.softmax(dim=1).amax(dim=1).mean().item() == pytest.approx(confidence, abs=1e-4)
    assert torch.equal(found.argmax(dim=1), scores.argmax(dim=1))
    assert softened(found, 0.95) is found


def test_softened_to_no_share_is_refused():
    with pytest.raises(ValueError, match=r"confidence=0\.0"):
        softened(torch.zeros(2, 2), 0.0)


@pytest.mark.parametrize(("true", "epsilon"), [(0.3, 1.0), (1.0, 1.0), (3.0, 2.0)])
def test_answers_say_how_sure_scores_may_be(true, epsilon):
    """20,000 labels drawn from softmax(t·s): their private answers find t to within a seventh."""
    scores = 2 * torch.randn(20_000, 5, generator=Generator().manual_seed(1)) / true
    vault = LabelVault(drawn_labels(true * scores).numpy(), 5, rng=SecureRandom(seed=4))
    responses = vault.release(RandomizedResponse(epsilon, 5))
    assert scale_by_responses(scores, evidence(responses)) == pytest.approx(true, rel=1 / 7)


def test_scores_that_have_seen_the_answers_are_called_too_sure():
    """What `scale_by_responses` must not be given: the answers themselves, as scores, would be believed entirely."""
    vault = LabelVault(torch.arange(3000).numpy() % 3, 3, rng=SecureRandom(seed=4))
    told = evidence(vault.release(RandomizedResponse(0.5, 3)))
    assert scale_by_responses(told, told) > 5


def test_pooled_scales():
    assert pooled_scale([2.0, 8.0]).value == pytest.approx(4.0)
    assert pooled_scale([2.0, 8.0]).spread == pytest.approx(math.log(4) / math.sqrt(2))
    assert pooled_scale([3.0]) == Scale(pytest.approx(3.0), 0.5)


@pytest.mark.parametrize("part", [0.5, 1.0])
def test_both_halves_of_the_noise_are_uncorrelated_and_as_large_as_stated(part):
    """40,000 noises: correlation below 0.03 is six deviations."""
    exact = torch.zeros(4, 10_000, dtype=torch.float64)
    noisy = mock_release(exact, 2.0, 10, seed=5)
    first, second = split_noise(noisy, part, seed=9)
    assert abs(np.corrcoef(first.value.ravel(), second.value.ravel())[0, 1]) < 0.03
    for half in (first, second):
        assert half.value.std() == pytest.approx(half.noise_std * math.sqrt(3 / 4), rel=0.02)
        np.testing.assert_allclose(half.value.sum(axis=0), 0, atol=1e-9)


def test_the_same_noise_twice_would_not_do():
    """Planted: judged by the moment it was fitted to, a head of pure noise looks informed; split, it does not."""
    x, _, _ = linear_problem()
    nothing = class_sums(x, torch.arange(len(x)) % 4, 4)
    noisy = mock_release(nothing, 60.0, len(x), seed=3)
    gram = gram_of(x)

    def least_squares(moments, rows, axes, *, constant=None):
        return torch.linalg.solve(gram, torch.tensor(moments.value - moments.total / 4).T).T

    weight = least_squares(noisy, x, gram)
    assert float((weight * torch.tensor(noisy.value)).sum()) > 0
    gains = []
    for seed in range(200):
        fitted, judge = split_noise(noisy, 0.5, seed)
        gains.append(float((least_squares(fitted, x, gram) * torch.tensor(judge.value)).sum()))
    alone = float((weight * torch.tensor(noisy.value)).sum())
    assert abs(np.mean(gains)) < 0.5 * alone


@pytest.mark.parametrize("noise", [0.0, 5.0, 20.0])
def test_the_honest_scale_is_near_that_of_the_labels(noise):
    """A prior that is off by half is put right by the moment; the more, the less noise."""
    x, labels, _ = linear_problem()
    axes, noisy = eigenbasis(gram_of(x)), mock_release(class_sums(x, labels, 4), noise, len(x), seed=3)
    weight = ridge_head(noisy, x, axes).to(x)
    scores = x @ weight.T
    best = likeliest_scale(scores, scores.gather(1, labels[:, None]).sum(dtype=torch.float64))
    for wrong in (0.67, 1.5):
        found = honest_scale(ridge_head, noisy, x, axes, Scale(wrong * best, 0.3))
        assert found == pytest.approx(best, rel=0.1 + 0.01 * noise)


def test_where_noise_is_all_there_is_the_prior_stays():
    x, labels, _ = linear_problem(rows=2000)
    axes, noisy = eigenbasis(gram_of(x)), mock_release(class_sums(x, labels, 4), 1e5, len(x), seed=3)
    assert honest_scale(ridge_head, noisy, x, axes, Scale(7.0, 0.2)) == pytest.approx(7.0, rel=0.5)


def test_drawn_labels_tell_a_good_head_from_a_bad_one():
    x, _, weight = linear_problem()

    def careless(noisy, rows, gram, *, constant=None):
        """Fits the noise, and no direction less than another."""
        return torch.randn(4, 8, generator=Generator().manual_seed(1))

    shares = compare_heads([ridge_head, careless], 5.0, x, x @ weight.T)
    assert shares[0] > shares[1] + 0.1
    assert compare_heads([ridge_head], 5.0, x, x @ weight.T)[0] == shares[0]


def test_drawn_labels_foretell_the_accuracy():
    """From the true logits: the share recovered is that of real labels, at the real noise, within two points."""
    x, labels, weight = linear_problem()
    (expected,) = compare_heads([ridge_head], 40.0, x, x @ weight.T)
    noisy = mock_release(class_sums(x, labels, 4), 40.0, len(x), seed=8)
    head = ridge_head(noisy, x, gram_of(x)).to(x)
    fresh = drawn_labels(x @ weight.T, seed=77)
    assert expected == pytest.approx(float(((x @ head.T).argmax(dim=1) == fresh).double().mean()), abs=0.02)
