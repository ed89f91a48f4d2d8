"""Random rounding in front of a mechanism: unbiased, exact, as private as what it stands in front of; planted bugs."""

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeldp.core.events import PureDP
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.counts import GroupCounts, LaplaceNoise
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.values import Rounded
from labeldp.testing import ContractError, check_mechanism
from tests.mechanisms.frequencies import follows


class Echo:
    """Tells the classes it is given: what rounding made of the levels."""

    def fits(self, num_rows, num_classes):
        pass

    def event(self):
        return PureDP(float("inf"))

    def sample(self, labels, rng):
        return np.array(labels)


def chances(level, levels, classes):
    """From the definition, in fractions: the two classes about the level's place."""
    place = Fraction(level * (classes - 1), levels - 1)
    below = int(place)
    return {below: 1 - (place - below), below + 1: place - below}


@given(st.integers(2, 40), st.integers(2, 6), st.data())
def test_the_law_is_unbiased_and_between_neighbours(levels, classes, data):
    level = data.draw(st.integers(0, levels - 1))
    channel = chances(level, levels, classes)
    assert sum(c * p for c, p in channel.items()) == Fraction(level * (classes - 1), levels - 1)
    drawn = Rounded(Echo(), levels, classes).sample(np.full(50, level, dtype=np.uint8), SecureRandom(seed=level))
    assert set(drawn.tolist()) <= {c for c, p in channel.items() if p > 0}


def rounded_many(levels, classes, level, draws=1_000_000, kind=Rounded):
    drawn = kind(Echo(), levels, classes).sample(np.full(draws, level, dtype=np.uint8), SecureRandom(seed=5))
    return np.bincount(drawn, minlength=classes)


class TwoPercent(Rounded):
    """Planted: a fiftieth too seldom up."""

    def sample(self, labels, rng):
        up = rng.below(1_000_000, len(labels)).astype(float) < 0.98e6 * (labels % 4) / 4
        return self.inner.sample((labels // 4 + up).astype(np.uint8), rng)


@pytest.mark.parametrize("level", [0, 1, 3, 6])
def test_a_million_draws_follow_the_law(level):
    """9 levels to 3 classes; false alarm 1e-9 each."""
    channel = np.zeros(4)
    for c, p in chances(level, 9, 3).items():
        channel[c] = float(p)
    assert follows(rounded_many(9, 3, level), channel[:3])
    if level % 4:
        assert not follows(rounded_many(9, 3, level, kind=TwoPercent), channel[:3])


# -- privacy, exactly: rounding, then randomized response, over all levels -------------------------------------------


def response_channel(level, levels, classes, odds):
    """P(answer) of randomized response with e^ε = odds on the rounded level."""
    keep, other = Fraction(odds, odds + classes - 1), Fraction(1, odds + classes - 1)
    channel = Counter()
    for c, p in chances(level, levels, classes).items():
        for response in range(classes):
            channel[response] += p * (keep if response == c else other)
    return channel


@pytest.mark.parametrize(("levels", "classes"), [(5, 2), (9, 3), (7, 4)])
def test_no_ratio_exceeds_epsilon(levels, classes):
    odds = 3
    channels = [response_channel(level, levels, classes, odds) for level in range(levels)]
    ratios = [a[k] / b[k] for a, b in itertools.permutations(channels, 2) for k in range(classes)]
    # Met by the two ends, which are not rounded at all.
    assert max(ratios) == odds


class Rereads(Rounded):
    """Planted: the inner mechanism sees the levels, not the classes."""

    def sample(self, labels, rng):
        counts = super().sample(labels, rng)
        return counts.counts + np.bincount(labels, minlength=self.num_classes)[: self.classes] * 5


@pytest.mark.slow
def test_the_public_check_accepts_it_and_catches_a_leak():
    ours, theirs = [0, 0, 3], [0, 0, 0]
    ask = GroupCounts([0, 0, 0], 1, 2, LaplaceNoise(1.0))
    check_mechanism(Rounded(ask, 4, 2), ours, theirs, 4, draws=4000)
    with pytest.raises(ContractError):
        check_mechanism(Rereads(ask, 4, 2), ours, theirs, 4, draws=4000)


def test_a_vault_charges_the_inner_price():
    vault = LabelVault(np.arange(10) % 5, 5)
    assert vault.release(Rounded(RandomizedResponse(0.5, 3), 5, 3)).responses.shape == (10,)
    assert vault.certificate().epsilon == 0.5


def test_other_data_and_bad_settings_are_refused():
    ask = Rounded(RandomizedResponse(0.5, 3), 5, 3)
    with pytest.raises(ValueError, match="num_classes"):
        ask.fits(4, 6)
    with pytest.raises(ValueError, match="num_classes"):
        Rounded(RandomizedResponse(0.5, 2), 5, 3).fits(4, 5)
    for levels, classes in ((1, 2), (2, 1), (True, 2)):
        with pytest.raises(ValueError, match="whole number"):
            Rounded(ask, levels, classes)


def test_pieces_do_not_matter(monkeypatch):
    monkeypatch.setattr("labeldp.mechanisms.responses._ROWS_AT_ONCE", 3)
    assert Rounded(Echo(), 3, 3).sample(np.array([0, 1, 2, 2, 1], dtype=np.uint8), SecureRandom()).tolist() == [
        0,
        1,
        2,
        2,
        1,
    ]
