"""Measure predictions on rows that were set aside: counts of their labels, or of their errors, by public group.

The predictions, and so the groups, must not depend on the labels that are counted: the model has learnt from other
rows. Its own queries and this one then meet no row twice, and a row pays for one of the two (parallel composition).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.core.events import Event, PureDP
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelArray
from labeldp.mechanisms.common import checked_epsilon, checked_integer, same_classes
from labeldp.mechanisms.counts import GroupCounts, LaplaceNoise
from labeldp.releases import NoisyErrors, NoisyScores

_MOST_LEVELS = 1 << 16


def right_epsilon(epsilon: float, num_rows: int) -> float:
    """Return the part of ε for the number of right predictions: min(ε/2, 6√2/√m) for m rows.

    Drawn by chance, m rows have a number of right ones with deviation √m/2 at most. Noise of rate 6√2/√m has a third
    of that, which widens an error bar by a twentieth; more ε would be wasted on it. Summed from the cells instead, the
    number would carry the noise of all of them.

    >>> right_epsilon(1.0, 5000), right_epsilon(0.1, 100)
    (0.12, 0.05)
    """
    return epsilon if epsilon == math.inf else min(epsilon / 2, 6 * math.sqrt(2 / max(num_rows, 1)))


@dataclass(frozen=True, eq=False, init=False)
class ScoreCounts:
    """Count the classes of each public group of predictions, and the right predictions apart from them: one query.

    `predicted` is the class predicted for each row and `groups` its group, 0 to num_groups − 1. Of ε, `right_epsilon`
    is for the number of right predictions and the rest for the cells.

    Proof of ε-privacy. The cells are `GroupCounts`, ε₁-private. A replaced label moves the number of right predictions
    by at most 1, and noise with P(x) ∝ e^{-ε₂|x|} makes it ε₂-private. Both have noise of their own and are fixed
    before either is drawn, so that their ratios multiply: e^{ε₁ + ε₂}, and ε₁ + ε₂ ≤ ε as rational numbers.

    >>> ask = ScoreCounts([0, 1, 1], groups=[0, 1, 1], num_groups=2, num_classes=2, epsilon=math.inf)
    >>> release = ask.sample(np.array([0, 1, 0], dtype=np.uint8), SecureRandom())
    >>> release.cells.counts.tolist(), release.right
    ([[1, 0], [1, 1]], 2)
    """

    epsilon: float
    right_epsilon: float
    predicted: npt.NDArray[np.int64] = field(repr=False)
    cells: GroupCounts

    def __init__(
        self, predicted: npt.ArrayLike, groups: npt.ArrayLike, num_groups: int, num_classes: int, epsilon: float
    ) -> None:
        given = _whole("predicted", predicted, num_classes)
        object.__setattr__(self, "epsilon", checked_epsilon(epsilon))
        object.__setattr__(self, "right_epsilon", right_epsilon(self.epsilon, len(given)))
        object.__setattr__(self, "predicted", given)
        noise = LaplaceNoise(_rest(self.epsilon, self.right_epsilon))
        object.__setattr__(self, "cells", GroupCounts(groups, num_groups, num_classes, noise))
        self.cells.fits(len(given), num_classes)

    @property
    def num_classes(self) -> int:
        """Return the number of classes K."""
        return self.cells.num_classes

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless there is a prediction for every row, in the classes of the data."""
        self.cells.fits(num_rows, num_classes)

    def event(self) -> Event:
        """Return ε-privacy with δ = 0."""
        return PureDP(self.epsilon)

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> NoisyScores:
        """Draw noisy counts, (groups, classes), and the noisy number of right predictions."""
        right = int(np.count_nonzero(self.predicted == labels))
        return NoisyScores(self.cells.sample(labels, rng), *_noisy(right, self.right_epsilon, rng))

    def noised(self, right: int, counts: npt.NDArray[np.int64], rng: SecureRandom) -> NoisyScores:
        """Release exact numbers of all rows, however they were added up: right predictions, and (groups · classes,)."""
        return NoisyScores(self.cells.noised(counts, rng), *_noisy(right, self.right_epsilon, rng))


@dataclass(frozen=True, eq=False, init=False)
class ErrorCounts:
    """Count the errors of predicted levels in each public group, rounded at random to a grid: one query.

    Apart from them it counts the labels at the lowest or the highest level, where those beyond the bounds are cut off.
    Of ε, min(ε/10, `right_epsilon`) is for that number and the rest for the cells.

        e = level − predicted = a + r,   0 ≤ r < b − a,   a and b neighbours in the grid:   b with chance r/(b − a)

    so that a rounded error has the error as its mean, and, because 0 is in the grid, its size the size. `predicted` is
    a level 0 … m − 1 for each row, `grid` holds all errors that there can be, `groups` are as in `GroupCounts`.

    Proof of ε-privacy. Fix all coins, which do not depend on the labels. A rounded error is then a function of its own
    row's label, so replacing one label replaces one of them, or none, and `GroupCounts` is ε₁-private about that. A
    mixture of such pairs, with the same weights, is ε₁-private too. A replaced label moves the number at the bounds by
    at most 1, and noise with P(x) ∝ e^{-ε₂|x|} makes it ε₂-private. Both have noise of their own and are fixed before
    either is drawn, so that their ratios multiply: e^{ε₁ + ε₂}, and ε₁ + ε₂ ≤ ε as rational numbers.

    >>> ask = ErrorCounts([3, 3], groups=[0, 0], num_groups=1, num_levels=5, grid=[-4, 0, 4], epsilon=math.inf)
    >>> release = ask.sample(np.array([3, 4], dtype=np.uint8), SecureRandom())
    >>> int(release.counts.sum()), release.at_bounds
    (2, 1)
    """

    epsilon: float
    bounds_epsilon: float
    num_levels: int
    predicted: npt.NDArray[np.int64] = field(repr=False)
    grid: npt.NDArray[np.int64]
    cells: GroupCounts

    def __init__(
        self,
        predicted: npt.ArrayLike,
        groups: npt.ArrayLike,
        num_groups: int,
        num_levels: int,
        grid: npt.ArrayLike,
        epsilon: float,
    ) -> None:
        levels = checked_integer("num_levels", num_levels, 2, _MOST_LEVELS)
        points = np.array(grid)
        if points.dtype.kind not in "iu" or points.ndim != 1 or not points.size or (np.diff(points) < 1).any():
            raise ValueError(f"grid={grid!r} is not a list of rising whole numbers; give some")
        guesses, points = _whole("predicted", predicted, levels), points.astype(np.int64)
        low, high = -int(guesses.max(initial=0)), levels - 1 - int(guesses.min(initial=levels - 1))
        if points[0] > low or points[-1] < high or 0 not in points:
            raise ValueError(f"grid={points.tolist()} must reach from {low} to {high} and have a 0")
        points.setflags(write=False)
        object.__setattr__(self, "epsilon", checked_epsilon(epsilon))
        part = self.epsilon if self.epsilon == math.inf else self.epsilon / 10
        object.__setattr__(self, "bounds_epsilon", min(part, right_epsilon(self.epsilon, len(guesses))))
        object.__setattr__(self, "num_levels", levels)
        object.__setattr__(self, "predicted", guesses)
        object.__setattr__(self, "grid", points)
        noise = LaplaceNoise(_rest(self.epsilon, self.bounds_epsilon))
        object.__setattr__(self, "cells", GroupCounts(groups, num_groups, len(points), noise))
        self.cells.fits(len(self.predicted), len(points))

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless there is a prediction for every row, in the levels of the data."""
        same_classes(self.num_levels, num_classes)
        self.cells.fits(num_rows, len(self.grid))

    def event(self) -> Event:
        """Return ε-privacy with δ = 0."""
        return PureDP(self.epsilon)

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> NoisyErrors:
        """Draw noisy counts, (groups, points of the grid), and the noisy number of labels at the bounds."""
        error = labels.astype(np.int64) - self.predicted
        below = np.searchsorted(self.grid, error, side="right") - 1
        width = np.append(np.diff(self.grid), 1)[below]
        coin = rng.below(width, len(error)).astype(np.int64)
        rounded = (below + (coin < error - self.grid[below])).astype(np.min_scalar_type(len(self.grid)))
        rounded.setflags(write=False)
        cells, at_bounds = self.cells.sample(rounded, rng), np.isin(labels, (0, self.num_levels - 1)).sum()
        apart = _noisy(int(at_bounds), self.bounds_epsilon, rng)
        return NoisyErrors(cells.counts, cells.group_sizes, cells.noise, cells.noise_std, *apart)


def _rest(epsilon: float, part: float) -> float:
    """Return what is left of ε: as rational numbers, both parts together are at most ε."""
    rest = epsilon if epsilon == math.inf else epsilon - part
    while rest < math.inf and Fraction(rest) + Fraction(part) > Fraction(epsilon):
        rest = math.nextafter(rest, 0.0)
    return rest


def _noisy(number: int, epsilon: float, rng: SecureRandom) -> tuple[int, float]:
    """Return a number that a replaced label moves by at most 1 with noise, P(x) ∝ e^{-ε|x|}, and its deviation."""
    # Twice the ε of counts whose replaced label moves two cells: the same noise.
    noise = LaplaceNoise(2 * epsilon)
    return number + int(noise.draw(rng, 1)[0]), noise.exact_std


def _whole(name: str, values: npt.ArrayLike, bound: int) -> npt.NDArray[np.int64]:
    """Return public whole numbers from 0 to below the bound, one per row, read-only; or raise ValueError."""
    given: npt.NDArray[Any] = np.array(values)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(f"{name} has type {given.dtype} and shape {given.shape}; give a whole number per row")
    wrong = int(np.count_nonzero((given < 0) | (given >= bound)))
    if wrong:
        raise ValueError(f"{name} has {wrong} entries outside 0 to {bound - 1}")
    checked = given.astype(np.int64)
    checked.setflags(write=False)
    return checked
