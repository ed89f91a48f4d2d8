"""Permute-and-flip: the exact law from its definition, its exact ε over all counts, a million draws, planted bugs."""

from __future__ import annotations

import itertools
import math
from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.core.events import PureDP
from labeldp.core.random import SecureRandom, exp_coins
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.selection import GroupVotes
from labeldp.testing import ContractError, check_mechanism
from tests.mechanisms.frequencies import follows

# -- the law, from the definition and in rational arithmetic: e^{-ε/2} is taken to be the fraction x ---------


def published(counts, x):
    """Flip the classes in random order, heads with chance x^(distance to the largest); the first heads wins."""
    heads = [x ** (max(counts) - n) for n in counts]
    channel = [Fraction(0)] * len(counts)
    orders = list(itertools.permutations(range(len(counts))))
    for order in orders:
        still = Fraction(1, len(orders))
        for c in order:
            channel[c] += still * heads[c]
            still *= 1 - heads[c]
        assert still == 0
    return channel


def sensitivity_one(counts, x):
    """Planted: the rate ε instead of ε/2, as if all counts moved the same way."""
    return published(counts, x**2)


def lowest_of_the_heads(counts, x):
    """Planted: ties go to the lower class, as argmax does."""
    channel, still = [], Fraction(1)
    for n in counts:
        channel.append(still * x ** (max(counts) - n))
        still *= 1 - channel[-1] / still if still else 0
    return channel


def noise_on_the_largest_only(counts, x):
    """Planted: discrete Laplace noise on the top count; the runner-up wins when that falls below it."""
    first = counts.index(max(counts))
    rest = [n if c != first else -1 for c, n in enumerate(counts)]
    second = rest.index(max(rest))
    falls = x ** (counts[first] - counts[second] + 1) / (1 + x)
    return [1 - falls if c == first else falls if c == second else Fraction(0) for c in range(len(counts))]


def coins_of_short_floats(counts, x, bits=4):
    """Planted: coins that compare a uniform number of few bits with a rounded chance. (float32 has 24.)"""
    heads = [Fraction(math.ceil(x ** (max(counts) - n) * 2**bits), 2**bits) for n in counts]
    channel = [Fraction(0)] * len(counts)
    for toss in itertools.product([True, False], repeat=len(counts)):
        if any(toss):
            chance = math.prod(p if up else 1 - p for p, up in zip(heads, toss, strict=True))
            for c, up in enumerate(toss):
                channel[c] += chance / sum(toss) if up else 0
    return channel


def count_vectors(rows, num_classes):
    return [c for c in itertools.product(range(rows + 1), repeat=num_classes) if sum(c) == rows]


def replacements(counts):
    for a, b in itertools.permutations(range(len(counts)), 2):
        if counts[a]:
            moved = list(counts)
            moved[a], moved[b] = moved[a] - 1, moved[b] + 1
            yield tuple(moved)


def worst_ratio(channel, rows, num_classes, x):
    """The largest P(winner)/P'(winner) over all counts of this many rows and all replacements of one label."""
    channels = {counts: channel(counts, x) for counts in count_vectors(rows, num_classes)}
    pairs = [(channels[a], channels[b]) for a in channels for b in replacements(a)]
    return max((p / q if q else math.inf) for here, there in pairs for p, q in zip(here, there, strict=True) if p)


X = Fraction(7, 10)


@pytest.mark.parametrize(("num_classes", "most"), [(2, 9), (3, 7), (4, 5)])
def test_no_ratio_exceeds_epsilon(num_classes, most):
    """Exact: fractions over all count vectors and replacements, against e^ε = x^-2."""
    assert all(worst_ratio(published, rows, num_classes, X) <= X**-2 for rows in range(1, most + 1))


def test_epsilon_is_attained():
    """Two classes: exactly, from two rows on. More classes: approached as the group grows."""
    assert all(worst_ratio(published, rows, 2, X) == X**-2 for rows in range(2, 9))
    gaps = [1 - published((rows - 1, 1, 0), X)[1] / published((rows, 0, 0), X)[1] * X**2 for rows in (4, 8, 16, 32)]
    assert gaps == sorted(gaps, reverse=True)
    assert 0 < gaps[-1] < 1e-4


@pytest.mark.parametrize(
    "bug", [sensitivity_one, lowest_of_the_heads, noise_on_the_largest_only, coins_of_short_floats]
)
def test_the_exact_check_finds_planted_bugs(bug):
    x = Fraction(4, 5)
    assert sum(bug((3, 1, 0), x)) == 1
    sizes = [(rows, 2) for rows in range(1, 15)] + [(rows, 3) for rows in range(1, 6)]
    assert all(worst_ratio(published, *size, x) <= x**-2 for size in sizes)
    assert max(worst_ratio(bug, *size, x) for size in sizes) > x**-2 * Fraction(5, 4)


def of(epsilon, num_classes, rows=0, num_groups=1):
    return GroupVotes(np.zeros(rows, dtype=np.int64), num_groups, num_classes, epsilon)


@pytest.mark.parametrize("num_classes", [1, 2, 3, 5])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
def test_stated_chances_are_the_published_law(num_classes, epsilon):
    x = Fraction(math.exp(-epsilon / 2))
    for counts in count_vectors(4, num_classes):
        expected = [float(p) for p in published(counts, x)]
        assert of(epsilon, num_classes).chances([counts])[0] == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=40), st.floats(0, 20))
@settings(max_examples=100)
def test_chances_are_a_law_that_follows_the_order_of_the_counts(counts, epsilon):
    channel = of(epsilon, len(counts)).chances([counts])[0]
    assert channel.sum() == pytest.approx(1.0, rel=1e-9)
    assert (np.diff(channel[np.argsort(counts, kind="stable")]) >= -1e-12).all()


def test_no_noise_is_the_majority_and_ties_are_fair():
    ask = GroupVotes([0, 0, 0, 1, 1] * 1, 2, 3, math.inf)
    labels = np.array([2, 1, 2, 0, 1], dtype=np.uint8)
    rng = SecureRandom(1)
    winners = np.stack([ask.sample(labels, rng) for _ in range(400)])
    assert (winners[:, 0] == 2).all()
    assert set(winners[:, 1]) == {0, 1}
    assert 140 < np.count_nonzero(winners[:, 1]) < 260  # six deviations of a fair coin
    assert ask.chances([[0, 1, 2], [1, 1, 0]]).tolist() == [[0, 0, 1], [0.5, 0.5, 0]]


# -- the sampler ---------------------------------------------------------------------------------------------

ROWS = np.array([0, 0, 0, 1, 1, 2], dtype=np.uint8)


def wins(mechanism, draws):
    """How often each of four classes wins in `draws` groups with counts 3, 2, 1, 0."""
    groups = np.repeat(np.arange(draws), len(ROWS))
    winners = mechanism(groups, draws, 4).sample(np.tile(ROWS, draws), SecureRandom(8))
    return np.bincount(winners, minlength=4)


@pytest.mark.parametrize("epsilon", [0.7, 2.0])
def test_a_million_draws_follow_the_law(epsilon):
    """10⁶ groups, false alarm 1e-9; the same test rejects a rate 2% too large, and twice the rate."""
    counts = wins(lambda *groups: GroupVotes(*groups, epsilon), 10**6)
    assert follows(counts, of(epsilon, 4).chances([[3, 2, 1, 0]])[0])
    for planted in (1.02, 2.0):
        assert not follows(counts, of(epsilon * planted, 4).chances([[3, 2, 1, 0]])[0])


class LowestOfTheHeads(GroupVotes):
    """The right coins, but ties go to the lower class."""

    def sample(self, labels, rng):
        counts = self.votes.sample(labels, rng).counts
        behind = (counts.max(axis=1, keepdims=True) - counts).ravel()
        heads = exp_coins(rng, behind * (self.epsilon / 2), lambda i: Fraction(self.epsilon) / 2 * int(behind[i]))
        return heads.reshape(counts.shape).argmax(axis=1)


class NoisyMaximum(GroupVotes):
    """Discrete Laplace noise on the largest count only, then argmax."""

    def sample(self, labels, rng):
        counts = self.votes.sample(labels, rng).counts.copy()
        largest = counts.argmax(axis=1)
        counts[np.arange(len(counts)), largest] += rng.discrete_laplace(Fraction(self.epsilon) / 2, len(counts))
        return counts.argmax(axis=1)


class FloatNoise(GroupVotes):
    """Exponential noise from 16-bit uniform numbers: ties, and a tail that ends."""

    def sample(self, labels, rng):
        counts = self.votes.sample(labels, rng).counts
        uniform = (rng.words(counts.size).reshape(counts.shape) % 2**16 + 1) * 2.0**-16
        return (counts - 2 / self.epsilon * np.log(uniform)).argmax(axis=1)


@pytest.mark.parametrize("bug", [LowestOfTheHeads, NoisyMaximum])
def test_a_million_draws_of_a_planted_bug_do_not(bug):
    counts = wins(lambda *groups: bug(*groups, 2.0), 10**6)
    assert not follows(counts, of(2.0, 4).chances([[3, 2, 1, 0]])[0])


def test_float_noise_never_names_a_class_that_exact_noise_names():
    """Counts 1 and 0 at ε = 24: the second wins with chance e^-12/2, 3 times in 10⁶; 16 bits end at e^-11.1."""
    draws = 2 * 10**6
    groups, labels = np.arange(draws), np.zeros(draws, dtype=np.uint8)
    exact = np.count_nonzero(GroupVotes(groups, draws, 2, 24.0).sample(labels, SecureRandom(8)))
    short = np.count_nonzero(FloatNoise(groups, draws, 2, 24.0).sample(labels, SecureRandom(8)))
    assert exact > 0
    assert short == 0


def test_rare_winners_are_as_rare_as_they_should_be():
    """Two classes one row apart at ε = 16: e^-8/2, some 168 of 10⁶."""
    groups, labels = np.arange(10**6), np.zeros(10**6, dtype=np.uint8)
    second = np.count_nonzero(GroupVotes(groups, 10**6, 2, 16.0).sample(labels, SecureRandom(5)))
    assert abs(second - 5e5 * math.exp(-8)) < 6 * math.sqrt(5e5 * math.exp(-8))


def test_groups_have_their_own_coins():
    """10⁶ groups, next to each other: the table of (winner, next winner) is the product of the laws."""
    ask = GroupVotes(np.repeat(np.arange(10**6), 3), 10**6, 3, 1.0)
    winners = ask.sample(np.tile(np.array([0, 0, 1], dtype=np.uint8), 10**6), SecureRandom(4))
    channel = of(1.0, 3).chances([[2, 1, 0]])[0]
    pairs = np.bincount(winners[::2] * 3 + winners[1::2], minlength=9)
    assert follows(pairs, np.outer(channel, channel).ravel())


def test_one_row_moves_one_group():
    groups = np.repeat(np.arange(200), 5)
    ours = np.random.default_rng(0).integers(0, 4, size=1000).astype(np.uint8)
    theirs = ours.copy()
    theirs[7] = (theirs[7] + 1) % 4
    ask = GroupVotes(groups, 200, 4, 0.5)
    moved = ask.sample(ours, SecureRandom(3)) != ask.sample(theirs, SecureRandom(3))
    assert set(np.flatnonzero(moved)) <= {1}


def test_pieces_do_not_matter(monkeypatch):
    groups, labels = np.repeat(np.arange(50), 4), np.tile(np.array([0, 0, 0, 1], dtype=np.uint8), 50)
    ask = GroupVotes(groups, 50, 2, 40.0)
    monkeypatch.setattr("labeldp.mechanisms.selection._CELLS_AT_ONCE", 6)
    assert ask.sample(labels, SecureRandom(2)).tolist() == [0] * 50


# -- as a mechanism ------------------------------------------------------------------------------------------


def test_all_groups_together_cost_epsilon():
    ask = GroupVotes(np.arange(100) % 7, 7, 3, 0.4)
    assert ask.event() == PureDP(0.4)
    vault = LabelVault(np.arange(100) % 3, 3)
    winners = vault.release(ask)
    assert winners.shape == (7,)
    assert not winners.flags.writeable
    assert vault.certificate().epsilon == 0.4


class SensitivityOne(GroupVotes):
    """Declares half of what it costs."""

    def event(self):
        return PureDP(self.epsilon / 2)


@pytest.mark.parametrize(("kind", "honest"), [(GroupVotes, True), (SensitivityOne, False)])
def test_the_public_check_tells_sensitivity_one_from_two(kind, honest):
    ask = kind([0, 0], 1, 2, 3.0)
    with nullcontext() if honest else pytest.raises(ContractError, match="neighbour"):
        check_mechanism(ask, [0, 0], [0, 1], 2, draws=4000)


@pytest.mark.parametrize("epsilon", [-1.0, math.nan, True, "1"])
def test_bad_epsilon(epsilon):
    with pytest.raises(ValueError, match="epsilon is"):
        of(epsilon, 3)


def test_other_data_is_refused():
    ask = of(1.0, 3, rows=4)
    ask.fits(4, 3)
    with pytest.raises(ValueError, match="groups has 4 rows, the data 5"):
        ask.fits(5, 3)
    with pytest.raises(ValueError, match="num_classes"):
        ask.fits(4, 2)
    with pytest.raises(ValueError, match="outside 0 to 1"):
        GroupVotes([0, 2], 2, 3, 1.0)


def test_extremes():
    labels = np.array([1, 1, 0], dtype=np.uint8)
    rng = SecureRandom(1)
    assert GroupVotes([0] * 3, 1, 2, 1e308).sample(labels, rng).tolist() == [1]
    assert GroupVotes([0] * 3, 1, 1, 1.0).sample(labels * 0, rng).tolist() == [0]
    assert GroupVotes([], 3, 2, 1.0).sample(labels[:0], rng).shape == (3,)
    assert of(5e-324, 2, rows=3).sample(labels, rng).shape == (1,)
    fair = GroupVotes(np.repeat(np.arange(20_000), 3), 20_000, 2, 0.0).sample(np.tile(labels, 20_000), rng)
    assert follows(np.bincount(fair, minlength=2), np.array([0.5, 0.5]))
