"""The rounded Gaussian: its float64 error, doubt settled exactly, and its law, in 10^6 draws (false alarm 1e-9)."""

import mpmath
import numpy as np
import pytest
from scipy.stats import norm

from labeldp.core import random
from labeldp.core.random import DOUBT, EXTREME, SecureRandom, WordSource, settle_pair
from tests.mechanisms.frequencies import follows


def exactly(first, second, std, bits=64):
    """The pair of the reals in the middle of what two words leave open."""
    with mpmath.workprec(200):
        chance = (mpmath.mpf(first % (1 << bits)) + 0.5) / (1 << bits)
        angle = 2 * mpmath.pi * (mpmath.mpf(second) + 0.5) / (1 << bits)
        radius = mpmath.sqrt(-2 * mpmath.log(chance)) * std
        return radius * mpmath.cos(angle), radius * mpmath.sin(angle)


def words():
    """Random pairs, and pairs near the ends that are still computed in float64."""
    drawn = SecureRandom(seed=1).words(4000).view(np.int64).reshape(2, -1)
    low = int(EXTREME * 2**64) + 1
    drawn[0, :50], drawn[0, 50:100] = np.arange(low, low + 50), -np.arange(low, low + 50)
    drawn[1, 25:75] = np.arange(-25, 25)
    return drawn


def test_float64_is_far_closer_than_what_is_taken_for_doubt(monkeypatch):
    pairs, seen = words(), []
    monkeypatch.setattr(np, "rint", lambda values: seen.append(values.copy()) or np.round(values))
    random._box_muller(pairs, 1.0)
    truth = np.array([[float(v) for v in exactly(int(a), int(b), 1.0)] for a, b in pairs.T]).T
    # Half of it is for bits that are not seen; what is left bears errors of the functions a hundred times as large.
    assert np.abs(seen[0] - truth).max() < DOUBT / 4


@pytest.mark.parametrize("std", [0.3, 1000.0, 2.0**20, 2.0**27])
def test_settled_pairs_are_the_rounded_ones(std):
    for first, second in words()[:, ::20].T.tolist():
        pair = settle_pair(SecureRandom(seed=2), first, second, std)
        assert pair == tuple(int(mpmath.nint(value)) for value in exactly(first, second, std))


class Words(WordSource):
    """Words from a list, then from a generator."""

    def __init__(self, *first):
        self.first, self.rest = list(first), SecureRandom(seed=3)

    def words(self, size):
        found = [self.first.pop(0) if self.first else int(self.rest.words(1)[0]) for _ in range(size)]
        return np.array(found, dtype=np.uint64)


@pytest.mark.parametrize("first", [0, 1, (1 << 64) - 1])
@pytest.mark.parametrize("second", [0, 1 << 62, 1 << 63, (1 << 64) - 1])
def test_the_ends_are_settled(first, second):
    found = Words(first, second).rounded_gaussian(2.0**20, 2)
    assert np.abs(found).max() < 20 * 2**20


def test_a_float_on_the_wrong_side_of_a_half_is_no_trap():
    """Scaled so that a number is just below 3.5, where float64 says 3.5 and rounds it up."""
    first, second = 1 << 62, 1 << 60
    with mpmath.workprec(200):
        std = float(mpmath.mpf(3.5) / exactly(first, second, 1)[0])
        value = exactly(first, second, std)[0]
    assert settle_pair(SecureRandom(seed=4), first, second, std)[0] == int(mpmath.nint(value))


def law(std, cells):
    """P(k) of −cells … cells, and of what lies beyond."""
    edges = np.arange(-cells, cells + 2) - 0.5
    inside = np.diff(norm.cdf(edges / std))
    return np.append(inside, 1 - inside.sum())


@pytest.mark.parametrize(("std", "cells"), [(0.4, 1), (3.0, 9)])
def test_the_law_and_two_percent_less_is_found(std, cells):
    for share, expected in ((1.0, True), (0.98, False)):
        drawn = SecureRandom(seed=5).rounded_gaussian(std * share, 10**6)
        counts = np.bincount(np.where(np.abs(drawn) <= cells, drawn + cells, 2 * cells + 1), minlength=2 * cells + 2)
        assert follows(counts, law(std, cells)) == expected


def test_low_digits_are_uniform():
    digits = SecureRandom(seed=6).rounded_gaussian(2.0**20, 10**6) & 15
    assert follows(np.bincount(digits, minlength=16), np.full(16, 1 / 16))


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan"), 2.0**41])
def test_bad_deviations(std):
    with pytest.raises(ValueError, match="std is"):
        SecureRandom(seed=1).rounded_gaussian(std, 1)
