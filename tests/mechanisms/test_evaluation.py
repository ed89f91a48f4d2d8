"""Counts of predictions on rows set aside: exact shares of ε, exact noise, errors rounded without bias."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.core.events import PureDP
from labeldp.core.random import SecureRandom
from labeldp.mechanisms.evaluation import ErrorCounts, ScoreCounts, right_epsilon
from tests.mechanisms.frequencies import follows

LABELS = np.array([1, 0, 1, 1], dtype=np.uint8)
GRID = [-9, -4, 0, 4, 9]


def scores(epsilon, predicted=(1, 0, 0, 1), groups=(0, 2, 0, 2)):
    return ScoreCounts(predicted, groups, 3, 2, epsilon)


def errors(epsilon, predicted, grid=GRID, levels=10):
    return ErrorCounts(predicted, np.zeros(len(predicted), dtype=int), 1, levels, grid, epsilon)


def test_without_noise_they_are_the_counts():
    release = scores(math.inf).sample(LABELS, SecureRandom(1))
    assert release.cells.counts.tolist() == [[0, 2], [0, 0], [1, 1]]
    assert (release.right, release.right_std) == (3, 0.0)
    told = errors(math.inf, [5, 5, 0, 9]).sample(np.array([5, 9, 9, 0], dtype=np.uint8), SecureRandom(1))
    assert told.counts.tolist() == [[1, 0, 1, 1, 1]]
    assert (told.at_bounds, told.at_bounds_std) == (3, 0.0)


@given(epsilon=st.floats(1e-6, 50), rows=st.integers(1, 10**7))
@settings(max_examples=200, deadline=None)
def test_both_parts_together_cost_epsilon_exactly(epsilon, rows):
    """As rational numbers: a rounded sum could be a little more."""
    ask = ScoreCounts(np.zeros(5, dtype=int), np.zeros(5, dtype=int), 1, 2, epsilon)
    assert Fraction(ask.right_epsilon) + Fraction(ask.cells.noise.epsilon) <= Fraction(ask.event().epsilon)
    assert ask.cells.noise.epsilon + ask.right_epsilon == pytest.approx(epsilon, rel=1e-12)
    assert 0 < right_epsilon(epsilon, rows) <= epsilon / 2
    assert ask.event() == PureDP(epsilon)
    numbers = errors(epsilon, [3] * min(rows, 50))
    assert Fraction(numbers.bounds_epsilon) + Fraction(numbers.cells.noise.epsilon) <= Fraction(epsilon)
    assert numbers.cells.noise.epsilon >= 0.9 * epsilon * (1 - 1e-12)
    assert numbers.event() == PureDP(epsilon)


def test_the_share_is_a_third_of_the_sampling_error():
    for rows in (500, 5_000, 20_000):
        noise = math.sqrt(2) / right_epsilon(5.0, rows)
        assert noise == pytest.approx(math.sqrt(rows) / 2 / 3, rel=1e-12)


def test_exact_privacy_of_one_replaced_label():
    """Log-ratio of the joint law of two cells and the right ones, over a window: at most ε, and attained."""
    ask = scores(0.8)
    cells = -ask.cells.noise.epsilon / 2 * np.abs(np.arange(-25, 26))
    right = -ask.right_epsilon * np.abs(np.arange(-25, 26))
    worst = 2 * np.abs(np.diff(cells)).max() + np.abs(np.diff(right)).max()
    assert worst == pytest.approx(0.8, rel=1e-12)


def test_one_label_moves_two_cells_and_the_right_ones_by_one():
    other = LABELS.copy()
    other[0] = 0
    before, after = (scores(0.5).sample(labels, SecureRandom(9)) for labels in (LABELS, other))
    assert np.abs(before.cells.counts - after.cells.counts).sum() == 2
    assert abs(before.right - after.right) == 1


@given(seed=st.integers(0, 10**6), row=st.integers(0, 3), level=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_one_number_moves_one_error(seed, row, level):
    given = np.array([1, 5, 9, 3], dtype=np.uint8)
    other = given.copy()
    other[row] = level
    ask = errors(0.5, [5, 5, 0, 9])
    before, after = (ask.sample(labels, SecureRandom(seed)) for labels in (given, other))
    assert np.abs(before.counts - after.counts).sum() in (0, 2)
    # Of 1, 5, 9 and 3 one is at a bound, and replacing one changes that by one at most.
    assert abs(before.at_bounds - after.at_bounds) == abs(int(level in (0, 9)) - int(given[row] == 9))


class Batch(SecureRandom):
    """Noise drawn ahead, rate by rate: a call for every draw would take minutes."""

    def discrete_laplace(self, rate, size):
        kept = vars(self).setdefault("_ahead", {})
        if len(kept.get(rate, ())) < size:
            kept[rate] = super().discrete_laplace(rate, 1 << 16)
        kept[rate], drawn = kept[rate][size:], kept[rate][:size]
        return drawn


def right_counts(draws, epsilon, stated):
    """Return how often the noise on right predictions had each value, and the stated law of it."""
    ask, rng, reach = scores(epsilon), Batch(3), 14
    drawn = np.array([ask.sample(LABELS, rng).right - 3 for _ in range(draws)])
    rate, k = right_epsilon(stated, 4), np.arange(-reach, reach + 1)
    law = math.tanh(rate / 2) * np.exp(-rate * np.abs(k))
    inside = drawn[np.abs(drawn) <= reach]
    counts = np.append(np.bincount(inside + reach, minlength=len(k)), draws - inside.size)
    return counts, np.append(law, 1 - law.sum())


def test_right_predictions_have_noise_of_the_stated_law():
    """2·10⁴ draws, false alarm 1e-9; the planted bug is the noise of a third more ε, which the same test rejects."""
    assert follows(*right_counts(20_000, 1.0, 1.0))
    assert not follows(*right_counts(20_000, 1.35, 1.0))


@pytest.mark.slow
def test_right_predictions_have_noise_of_the_stated_law_long():
    """10⁶ draws, false alarm 1e-9; the planted bug is noise 2% too small."""
    assert follows(*right_counts(10**6, 1.0, 1.0))
    assert not follows(*right_counts(10**6, 1.02, 1.0))


def bound_counts(draws, epsilon, stated, ask=None):
    """Return how often the noise on labels at the bounds had each value, and the stated law of it."""
    ask, rng, reach = ask or errors(epsilon, [5, 5, 0, 9]), Batch(7), 60
    labels = np.array([1, 5, 9, 0], dtype=np.uint8)
    drawn = np.array([ask.sample(labels, rng).at_bounds - 2 for _ in range(draws)])
    rate, k = stated / 10, np.arange(-reach, reach + 1)
    law = math.tanh(rate / 2) * np.exp(-rate * np.abs(k))
    inside = drawn[np.abs(drawn) <= reach]
    counts = np.append(np.bincount(inside + reach, minlength=len(k)), draws - inside.size)
    return counts, np.append(law, 1 - law.sum())


class Twice(ErrorCounts):
    """The planted bug: the number at the bounds gets the noise of counts that move by a half."""

    def sample(self, labels, rng):
        found = super().sample(labels, rng)
        noise = rng.discrete_laplace(Fraction(2 * self.bounds_epsilon), 1)
        true = int(np.isin(labels, (0, self.num_levels - 1)).sum())
        return replace(found, at_bounds=true + int(noise[0]))


def test_labels_at_the_bounds_have_noise_of_the_stated_law():
    """2·10⁴ draws, false alarm 1e-9; planted are noise of half the size, and of 15% more ε than stated."""
    assert follows(*bound_counts(20_000, 1.0, 1.0))
    assert not follows(*bound_counts(20_000, 1.15, 1.0))
    planted = Twice([5, 5, 0, 9], np.zeros(4, dtype=int), 1, 10, GRID, 1.0)
    assert not follows(*bound_counts(20_000, 1.0, 1.0, planted))


@pytest.mark.slow
def test_labels_at_the_bounds_have_noise_of_the_stated_law_long():
    """10⁶ draws, false alarm 1e-9; the planted bug is noise 2% too small."""
    assert follows(*bound_counts(10**6, 1.0, 1.0))
    assert not follows(*bound_counts(10**6, 1.02, 1.0))


def test_exact_privacy_of_errors_and_bounds():
    """Log-ratio of the joint law of two cells and the number at the bounds: at most ε, and attained."""
    ask = errors(0.8, [5, 5, 0, 9])
    cells = -ask.cells.noise.epsilon / 2 * np.abs(np.arange(-25, 26))
    bounds = -ask.bounds_epsilon * np.abs(np.arange(-25, 26))
    worst = 2 * np.abs(np.diff(cells)).max() + np.abs(np.diff(bounds)).max()
    assert worst == pytest.approx(0.8, rel=1e-12)


def cell_counts(ask, rate, reach=12):
    """Return how often the noise of empty cells had each value, and its law."""
    drawn = ask.sample(LABELS[:0], SecureRandom(5))
    drawn = (drawn.cells if isinstance(ask, ScoreCounts) else drawn).counts.ravel()
    k = np.arange(-reach, reach + 1)
    law = math.tanh(rate / 2) * np.exp(-rate * np.abs(k))
    inside = drawn[np.abs(drawn) <= reach]
    counts = np.append(np.bincount(inside + reach, minlength=len(k)), drawn.size - inside.size)
    return counts, np.append(law, 1 - law.sum())


@pytest.mark.parametrize("spent", [1.0, 1.02])
def test_every_cell_has_noise_of_the_stated_law(spent):
    """10⁶ cells, false alarm 1e-9; ε 2% larger than stated is the planted bug."""
    # Half of ε is for the right predictions, a tenth for the labels at the bounds.
    asked = ScoreCounts([], [], 500_000, 2, 2 * spent), ErrorCounts([], [], 200_000, 10, GRID, spent / 0.9)
    for ask, stated in zip(asked, (0.5, 0.5), strict=True):
        assert follows(*cell_counts(ask, stated)) == (spent == 1.0)


class Nearest(ErrorCounts):
    """The planted bug: errors are rounded to the nearest point."""

    def sample(self, labels, rng):
        error = labels.astype(int) - self.predicted
        return self.cells.sample(np.abs(error[:, None] - self.grid).argmin(axis=1).astype(np.uint8), rng)


def test_errors_are_rounded_without_bias():
    """10⁶ rows, false alarm 1e-9: an error of 6 becomes 4 in three of five cases, and 9 in two."""
    labels, predicted = np.full(10**6, 8, dtype=np.uint8), np.full(10**6, 2)
    law = np.array([0, 0, 0, 0.6, 0.4])
    assert follows(errors(math.inf, predicted).sample(labels, SecureRandom(2)).counts[0], law)
    planted = Nearest(predicted, np.zeros(10**6, dtype=int), 1, 10, GRID, math.inf)
    assert not follows(planted.sample(labels, SecureRandom(2)).counts[0], law)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: scores(-1.0), "epsilon is -1.0"),
        (lambda: scores(1.0, predicted=(0, 1, 2, 5)), "predicted has 2 entries outside 0 to 1"),
        (lambda: scores(1.0, predicted=(0, 1)), "groups has 4 rows, the data 2"),
        (lambda: scores(1.0).fits(5, 2), "groups has 4 rows, the data 5"),
        (lambda: scores(1.0).fits(4, 3), "num_classes is 2"),
        (lambda: errors(1.0, [1, 2], grid=[-9, 9]), "have a 0"),
        (lambda: errors(1.0, [1, 9], grid=[-8, 0, 9]), "must reach from -9 to 8"),
        (lambda: errors(1.0, [1, 2], grid=[-9, 0, 0, 9]), "rising whole numbers"),
        (lambda: errors(1.0, [1.5, 2]), "predicted has type float64"),
        (lambda: errors(1.0, [1, 2]).fits(2, 11), "num_classes is 10"),
    ],
)
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
