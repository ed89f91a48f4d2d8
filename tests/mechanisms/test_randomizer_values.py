"""Reference values of the per-row laws, computed elsewhere with high precision."""

from __future__ import annotations

import math

import numpy as np
import pytest

from labeldp.core.random import SecureRandom
from labeldp.mechanisms.responses import RandomizedResponse, TopKResponse
from labeldp.mechanisms.vectors import BitFlip, LaplaceOneHot


@pytest.mark.parametrize(
    ("epsilon", "classes", "keep", "other"),
    [
        (0.5, 10, 0.15482809896025465, 0.09390798900441615),
        (2.0, 10, 0.4508530603792838, 0.06101632662452402),
        (4.0, 100, 0.35546098713664687, 0.00651049507942781),
        (8.0, 10, 0.9969899242601383, 0.00033445285998463223),
    ],
)
def test_randomized_response_reference(epsilon, classes, keep, other):
    chances = RandomizedResponse(epsilon, classes).probabilities(3)[0]
    assert chances[3] == pytest.approx(keep, rel=1e-12)
    assert np.delete(chances, 3) == pytest.approx(np.full(classes - 1, other), rel=1e-12)


def test_top_k_reference():
    channel = TopKResponse.of_prior(1.0, np.arange(10)[::-1], 3)
    assert channel.probabilities(0)[0, :4] == pytest.approx(
        [0.5761168847658291, 0.21194155761708544, 0.21194155761708544, 0.0], rel=1e-12
    )
    assert channel.probabilities(7)[0, :4] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0], rel=1e-12)


def test_debiasing_reference():
    estimate = RandomizedResponse(1.0, 10).unbiased(np.array([4]))[0]
    scale, each = 6.819767068693264, 0.08533674259065845
    assert estimate[4] == pytest.approx(scale * (1 - each), rel=1e-12)
    assert estimate[0] == pytest.approx(-scale * each, rel=1e-12)
    errors = RandomizedResponse(1.0, 10).unbiased(np.arange(10)) - np.eye(10)[0]
    chances = RandomizedResponse(1.0, 10).probabilities(0)[0]
    assert chances @ np.square(errors).sum(axis=1) == pytest.approx(40.95830058410981, rel=1e-12)


def test_forward_likelihood_reference():
    log = RandomizedResponse(1.0, 4).log_likelihood(np.array([2]))[0]
    assert -math.log(np.exp(log) @ [0.1, 0.2, 0.3, 0.4]) == pytest.approx(1.3279331587850505, rel=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "classes", "truth"),
    [(1.0, 10, 0.1636662606172795), (4.0, 10, 0.4989072010746827), (2.0, 100, 0.027182818281437204)],
)
def test_laplace_argmax_reference(epsilon, classes, truth):
    """Of the unclipped noise on a fine grid; the reference is the continuous law."""
    n, levels = 100_000, 1 << 14
    noise = SecureRandom(1).discrete_laplace(epsilon / (2 * levels), n * classes).reshape(n, classes)
    noise[:, 0] += levels
    hits = (noise.argmax(axis=1) == 0).mean()
    assert abs(hits - truth) < 6 * math.sqrt(truth / n)


def test_vector_laws_closed_forms():
    low, high = BitFlip(1.0, 3).unbiased(np.array([[0, 0, 0], [1, 1, 1]]))[:, 0]
    assert 1 / (high - low) == pytest.approx(math.tanh(0.25), rel=1e-14)
    fine = LaplaceOneHot(1.0, 2, levels=4096)
    log = fine.log_likelihood(np.array([[4096, 0]]))
    assert log[0, 0] - log[0, 1] == pytest.approx(1.0, rel=1e-12)
