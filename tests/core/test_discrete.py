from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.core import random
from labeldp.core.random import (
    SecureRandom,
    WordSource,
    coins,
    exp_coins,
    exp_digits,
    logistic_digits,
    settle,
)
from tests.mechanisms.frequencies import follows

mpmath.mp.dps = 60


class Script(WordSource):
    """Words from a list of `bits`-bit words, as the leading bits of 64."""

    def __init__(self, words, bits):
        self.queue = [word << (64 - bits) for word in words]

    def words(self, size):
        return np.array([self.queue.pop(0) for _ in range(size)], dtype=np.uint64)


GAMMAS = [Fraction(1, 7), Fraction(3), Fraction(1, 2**30), Fraction(700), Fraction(0.3)]


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("bits", [4, 32, 64, 256])
def test_digits_enclose_the_probability(gamma, bits):
    with mpmath.workdps(120):
        real = mpmath.mpf(gamma.numerator) / gamma.denominator
        for digits, truth in [(exp_digits, mpmath.exp(-real)), (logistic_digits, 1 / (1 + mpmath.exp(real)))]:
            low, high = digits(gamma)(bits)
            assert low <= truth * 2**bits <= high
            assert high - low <= 1


@pytest.mark.parametrize(
    "digits", [exp_digits(Fraction(1, 7)), logistic_digits(Fraction(1, 3)), exp_digits(Fraction(9))]
)
def test_settle_is_exact_by_enumeration_of_short_words(digits):
    """With 4-bit words one first word in sixteen is open: every path of three words is walked."""
    bits, depth = 4, 3
    yes = undecided = 0
    for path in itertools.product(range(2**bits), repeat=depth):
        try:
            yes += settle(Script(path[1:], bits), path[0], digits, bits)
        except IndexError:
            undecided += 1
    low, high = digits(64)
    assert undecided <= 2
    assert Fraction(yes, 2 ** (bits * depth)) <= Fraction(high, 2**64)
    assert Fraction(yes + undecided, 2 ** (bits * depth)) >= Fraction(low, 2**64)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_coins_of_every_word_size_have_the_same_law(bits):
    digits = logistic_digits(Fraction(1, 2))
    heads = np.count_nonzero(coins(SecureRandom(bits), digits, 200_000, bits))
    chance = 1 / (1 + math.exp(0.5))
    assert follows(np.array([heads, 200_000 - heads]), np.array([chance, 1 - chance]))


def test_coins_send_exactly_the_open_words_to_settle(monkeypatch):
    digits, asked = exp_digits(Fraction(1, 7)), []
    monkeypatch.setattr(random, "settle", lambda source, word, *_: asked.append(word) or True)

    class Every(WordSource):
        def words(self, size):
            return np.arange(256, dtype=np.uint8).view(np.uint64)

    heads = coins(Every(), digits, 256, bits=8)
    low, high = digits(8)
    assert asked == list(range(low, high))
    assert heads.sum() == high


def test_exp_coins_decide_alike_however_many_go_to_exact_digits():
    gamma = [Fraction(i, 37) for i in range(600)]
    floats = np.array([float(g) for g in gamma])
    quick = exp_coins(SecureRandom(3), floats, gamma.__getitem__)
    slow = exp_coins(SecureRandom(3), floats, gamma.__getitem__, guard=1e9)
    assert (quick == slow).all()
    assert 0 < quick.sum() < 600


def laplace_law(rate, reach):
    k = np.arange(-reach, reach + 1)
    return np.tanh(rate / 2) * np.exp(-rate * np.abs(k))


def gaussian_law(std, reach):
    weights = np.exp(-0.5 * (np.arange(-2000, 2001) / std) ** 2)
    return (weights / weights.sum())[2000 - reach : 2001 + reach]


def with_ends(draws, channel, reach):
    """Counts of −reach … reach and the rest, with the chances of both."""
    inside = draws[np.abs(draws) <= reach] + reach
    counts = np.bincount(inside, minlength=2 * reach + 1)
    return np.append(counts, draws.size - inside.size), np.append(channel, max(0.0, 1 - channel.sum()))


class PlaceByPlace(SecureRandom):
    """Draws few coins as many are drawn."""

    few = 0


@pytest.mark.parametrize("rate", [Fraction(1, 1000), 0.5, 3.0])
@pytest.mark.parametrize("size", [1, 7, 300, 512])
def test_few_coins_are_drawn_as_many_are(rate, size):
    """Of the same bits the same numbers, up to the one word in 2^32 that needs more."""
    for seed in range(20):
        few, many = (source(seed).discrete_laplace(rate, size) for source in (SecureRandom, PlaceByPlace))
        assert (few == many).all()


class LessNoise(SecureRandom):
    """Planted: in draws of a few, every binary place is 0 a little too often."""

    def narrow_each(self, times, size, bits):
        words = super().narrow_each(times, size, bits).astype(np.int64)
        return np.minimum(words * 20 // 19, 2**bits - 1)


@pytest.mark.parametrize(("source", "lawful"), [(SecureRandom, True), (LessNoise, False)])
def test_few_coins_follow_the_law_of_many_and_the_test_can_tell(source, lawful):
    rate, reach, rng = 0.2, 40, source(1)
    draws = np.concatenate([rng.discrete_laplace(rate, 500) for _ in range(1000)])
    assert follows(*with_ends(draws, laplace_law(rate, reach), reach)) == lawful


@pytest.mark.parametrize(("rate", "reach"), [(0.5, 40), (0.025, 300), (3.0, 5)])
def test_discrete_laplace_follows_its_law_and_the_test_can_tell(rate, reach):
    channel = laplace_law(rate, reach)
    assert follows(*with_ends(SecureRandom(1).discrete_laplace(rate, 2 * 10**6), channel, reach))
    assert not follows(*with_ends(SecureRandom(1).discrete_laplace(1.02 * rate, 2 * 10**6), channel, reach))


@pytest.mark.parametrize(("std", "reach"), [(0.4, 3), (1.0, 6), (5.2759, 30), (43.5, 200)])
def test_discrete_gaussian_follows_its_law_and_the_test_can_tell(std, reach):
    channel = gaussian_law(std, reach)
    assert follows(*with_ends(SecureRandom(2).discrete_gaussian(std, 2 * 10**6), channel, reach))
    assert not follows(*with_ends(SecureRandom(2).discrete_gaussian(1.02 * std, 2 * 10**6), channel, reach))


@pytest.mark.parametrize(
    ("rate", "p0", "p5", "tail10", "variance"),
    [
        (0.025, 0.012499348999020865, 0.011030636775959776, 0.7885352858597251, 3199.8333385415376),
        (0.0125, 0.006249918621063212, 0.005871255194147967, 0.8880124364090894, 12799.833334635408),
    ],
)
def test_discrete_laplace_reference_values(rate, p0, p5, tail10, variance):
    n = 10**6
    draws = SecureRandom(7).discrete_laplace(rate, n)
    for event, chance in [(draws == 0, p0), (draws == 5, p5), (np.abs(draws) >= 10, tail10)]:
        assert abs(event.mean() - chance) < 6 * math.sqrt(chance * (1 - chance) / n)
    # The kurtosis of a Laplace law is 6: the variance of x² is 5 times its squared mean.
    assert abs(np.mean(draws.astype(float) ** 2) / variance - 1) < 6 * math.sqrt(5 / n)


def test_discrete_laplace_tail_beyond_the_restart(monkeypatch):
    """Runs of the coin above the last digit: at rate 40 it is all there is; here it comes up more often."""
    places, tail = random._binary_places(Fraction(1, 3))
    assert 2 ** len(places) / 3 >= 32 > 2 ** (len(places) - 1) / 3
    low, high = tail(100)
    assert low <= mpmath.exp(-mpmath.mpf(2 ** len(places)) / 3) * mpmath.mpf(2) ** 100 <= high
    assert random._binary_places(Fraction(40))[0] == ()
    never, often = exp_digits(Fraction(700)), exp_digits(Fraction(1, 2))
    monkeypatch.setattr(random, "_binary_places", lambda _: ((never, never), often))
    drawn = random.geometric(SecureRandom(5), Fraction(1), 10**6)
    runs = drawn // 4
    assert (drawn == 4 * runs).all()
    assert follows(np.bincount(runs), -np.expm1(-0.5) * np.exp(-0.5 * np.arange(runs.max() + 1)))


@pytest.mark.parametrize("rate", [1e-9, 2.0**-45])
def test_discrete_laplace_of_tiny_rate(rate):
    draws = np.abs(SecureRandom(7).discrete_laplace(rate, 200_000).astype(float)) * rate
    assert abs(draws.mean() - 1) < 0.015
    assert abs((draws > 3).mean() - math.exp(-3)) < 0.003


@pytest.mark.parametrize("rate", [701.0, 1e9, 1e300, math.inf])
def test_discrete_laplace_of_huge_rate_is_no_noise(rate):
    assert not SecureRandom(7).discrete_laplace(rate, 1000).any()


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e-15, math.nan])
def test_rates_refused(rate):
    with pytest.raises(ValueError, match="rate is"):
        SecureRandom(7).discrete_laplace(rate, 3)


@pytest.mark.parametrize("std", [0.0, -1.0, math.inf, math.nan, 1e13])
def test_stds_refused(std):
    with pytest.raises(ValueError, match="std is"):
        SecureRandom(7).discrete_gaussian(std, 3)


@pytest.mark.parametrize("std", [1e-300, 1e-3, 0.1])
def test_discrete_gaussian_of_tiny_std_is_zero(std):
    assert not SecureRandom(7).discrete_gaussian(std, 1000).any()


@pytest.mark.parametrize("std", [1e3, 1e10])
def test_discrete_gaussian_of_large_std_has_its_moments(std):
    scaled = SecureRandom(7).discrete_gaussian(std, 300_000) / std
    assert abs(scaled.mean()) < 6 / math.sqrt(300_000)
    assert abs(np.mean(scaled**2) - 1) < 6 * math.sqrt(2 / 300_000)


@given(size=st.integers(0, 3), rate=st.floats(1e-9, 1e3), std=st.floats(1e-3, 1e9))
@settings(max_examples=50, deadline=None)
def test_any_size_and_parameter(size, rate, std):
    for draws in (SecureRandom(1).discrete_laplace(rate, size), SecureRandom(1).discrete_gaussian(std, size)):
        assert draws.shape == (size,)
        assert draws.dtype == np.int64
