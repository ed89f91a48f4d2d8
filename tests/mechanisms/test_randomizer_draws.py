"""Does every per-row sampler follow its law, and would the tests notice if it did not?"""

from __future__ import annotations

import math

import numpy as np
import pytest

from labeldp.core.random import SecureRandom
from labeldp.mechanisms.common import exp_rounded_down
from labeldp.mechanisms.responses import PriorResponse, RandomizedResponse, TopKResponse
from labeldp.mechanisms.vectors import BitFlip, LaplaceOneHot
from tests.mechanisms.frequencies import follows

SETS = np.array([True, True, False, True, False])


def response_counts(channel, label, n, seed):
    """Counts of every coordinate's values, (coordinates, values), over n draws for one label."""
    responses = channel.sample(np.full(n, label, dtype=np.uint8), SecureRandom(seed)).responses
    values = channel.probabilities(0).shape[1]
    return np.stack([np.bincount(column, minlength=values) for column in responses.reshape(n, -1).T])


SAMPLED = {
    "rr": lambda epsilon: RandomizedResponse(epsilon, 10),
    "top-k": lambda epsilon: TopKResponse(epsilon, SETS),
    "prior": lambda epsilon: PriorResponse(epsilon, np.tile([0.3, 0.25, 0.25, 0.1, 0.1], (2 * 10**6, 1))),
    "laplace": lambda epsilon: LaplaceOneHot(epsilon, 3, levels=16),
    "bit-flip": lambda epsilon: BitFlip(epsilon, 3),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_draws_follow_the_law_and_the_test_can_tell(name):
    n, channel, planted = 2 * 10**6, SAMPLED[name](1.0), SAMPLED[name](1.02)
    assert channel.describe().get("members") == planted.describe().get("members")
    for counts, chances in zip(response_counts(channel, 1, n, 5), channel.probabilities(1), strict=True):
        assert follows(counts, chances)
    wrong = response_counts(planted, 1, n, 5)
    assert not all(follows(c, p) for c, p in zip(wrong, channel.probabilities(1), strict=True))


def test_laplace_draws_on_the_fine_grid():
    channel = LaplaceOneHot(1.0, 2)
    for counts, chances in zip(response_counts(channel, 1, 10**6, 6), channel.probabilities(1), strict=True):
        assert follows(counts, chances)


def test_label_outside_its_set_is_answered_uniformly():
    counts = response_counts(TopKResponse(1.0, SETS), 2, 10**6, 6)[0]
    assert follows(counts, SETS / 3)


class EvenWords(SecureRandom):
    """Words spread evenly over all 2^64: a sampler then shows its law without any chance."""

    def words(self, size):
        return np.arange(size, dtype=np.uint64) * np.uint64(2**64 // size)


EVEN = {
    "rr": lambda epsilon: RandomizedResponse(epsilon, 5),
    "top-k": lambda epsilon: TopKResponse(epsilon, SETS),
    "prior": lambda epsilon: PriorResponse(epsilon, [0.4, 0.3, 0.15, 0.1, 0.05]),
}


@pytest.mark.parametrize("label", range(5))
@pytest.mark.parametrize("name", EVEN)
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 6.0])
def test_every_word_belongs_to_the_stated_answer(name, label, epsilon):
    channel, n = EVEN[name](epsilon), 1 << 14
    responses = channel.sample(np.full(n, label, dtype=np.uint8), EvenWords(0)).responses
    counts = np.bincount(responses, minlength=5)
    assert np.abs(counts - n * channel.probabilities(label)[0]).max() <= 2


def test_per_row_sets_answer_as_the_shared_set_does():
    n = 1 << 14
    labels = np.arange(n).astype(np.uint8) % 5
    shared = TopKResponse(1.0, SETS).sample(labels, SecureRandom(4)).responses
    rows = TopKResponse(1.0, np.tile(SETS, (n, 1))).sample(labels, SecureRandom(4)).responses
    assert (shared == rows).all()


def test_bit_flips_never_exceed_the_odds():
    for epsilon in [0.0, 1e-9, 0.3, 1.0, 7.0, 60.0]:
        flips = int(BitFlip(epsilon, 3)._flips())
        assert (2**64 - flips) <= flips * exp_rounded_down(epsilon / 2)
    assert BitFlip(math.inf, 3)._flips() == 0


def test_a_word_reused_for_all_rows_is_caught():
    class Stuck(SecureRandom):
        def words(self, size):
            return np.repeat(super().words(1), size)

    channel = RandomizedResponse(1.0, 10)
    responses = channel.sample(np.zeros(10**5, dtype=np.uint8), Stuck(3)).responses
    assert not follows(np.bincount(responses, minlength=10), channel.probabilities(0)[0])


def test_answers_of_neighbouring_rows_are_independent():
    responses = RandomizedResponse(1.0, 4).sample(np.zeros(10**6, np.uint8), SecureRandom(8)).responses.astype(int)
    channel = RandomizedResponse(1.0, 4).probabilities(0)[0]
    for lag in (1, 2, 8192, 16384, 65536):
        pairs = np.bincount(4 * responses[lag:] + responses[:-lag], minlength=16)
        assert follows(pairs, np.outer(channel, channel).ravel())
