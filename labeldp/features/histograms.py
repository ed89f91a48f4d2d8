"""Find the columns behind rows of features and cut each into bins: the public cells of which histograms are made.

A table's features say many things twice. A number stands there as it is, as bins and as steps; a category is a feature
for each of its values. A histogram costs by columns, not by features: a row is in one bin of every column. So features
are read back as columns, from public rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
# Rows that are looked at to see what a number says already.
_ENOUGH = 20_000


@dataclass(frozen=True, eq=False)
class Column:
    """A number with the edges of its bins, or a category: features that are 0 or 1, of which a row has at most one.

    Args:
        features: where it stands in a row: one place for a number, one for each value of a category.
        edges: of a number's bins, rising, the upper edge belonging to the bin; None for a category, whose first bin is
            that of no value.

    >>> Column((1,), np.array([0.0, 2.0])).bins(np.array([[9.0, 0.0], [9.0, 1.0], [9.0, 3.0]]))
    array([0, 1, 2])
    """

    features: tuple[int, ...]
    edges: FloatArray | None

    @property
    def size(self) -> int:
        """Return the number of bins."""
        return 1 + (len(self.features) if self.edges is None else len(self.edges))

    @property
    def cuts(self) -> tuple[tuple[int, float], ...]:
        """Return what a tree may ask of it, (feature, threshold): is the feature larger?"""
        if self.edges is None:
            return tuple((feature, 0.5) for feature in self.features)
        return tuple((self.features[0], float(edge)) for edge in self.edges)

    def bins(self, rows: npt.NDArray[np.floating]) -> IntArray:
        """Return the bin of every row, (n,)."""
        own = rows[:, self.features]
        if self.edges is None:
            return (own > 0.5) @ np.arange(1, self.size)
        return np.searchsorted(self.edges, own[:, 0], side="left").astype(np.int64)


def columns(rows: npt.NDArray[np.floating]) -> tuple[tuple[int, ...], ...]:
    """Return the features of each column: numbers, then categories, without what a number says already.

    A feature of 0 and 1 that is constant but for one stretch of a number, as its bins and steps are, is left out; some
    rows are enough to see it. Of the others, neighbours are one category as long as no row has two of them.

    >>> columns(np.array([[0.1, 0, 1, 0], [0.2, 1, 0, 0], [0.7, 0, 1, 0], [0.8, 1, 0, 1], [0.9, 0, 1, 1]]))
    ((0,), (1, 2))
    """
    is_flag, varies = ((rows == 0) | (rows == 1)).all(axis=0), (rows != rows[:1]).any(axis=0)
    numbers, flags = np.flatnonzero(~is_flag & varies), np.flatnonzero(is_flag & varies)
    some = rows[:: max(1, len(rows) // _ENOUGH)]
    for number in numbers:
        order = np.argsort(some[:, number])
        # 0 may stand for a missing number, which is in none of its bins and has a feature of its own.
        order = order[some[order, number] != 0]
        changes = np.count_nonzero(np.diff(some[order][:, flags], axis=0), axis=0)
        flags = flags[(changes == 0) | (changes > 2)]
    return (*((int(number),) for number in numbers), *_bundles(rows, flags))


def _bundles(rows: npt.NDArray[np.floating], flags: npt.NDArray[np.intp]) -> Iterator[tuple[int, ...]]:
    """Yield neighbouring flags of which no row has two."""
    bundle: list[int] = []
    taken = np.zeros(len(rows), dtype=bool)
    for flag in map(int, flags):
        own = rows[:, flag] > 0.5
        if bundle and (flag != bundle[-1] + 1 or (taken & own).any()):
            yield tuple(bundle)
            bundle, taken = [], np.zeros(len(rows), dtype=bool)
        bundle.append(flag)
        taken |= own
    if bundle:
        yield tuple(bundle)


def cut(rows: npt.NDArray[np.floating], features: tuple[int, ...], bins: int) -> Column:
    """Return a column with numbers cut into at most so many bins of about as many rows each.

    >>> cut(np.arange(8.0)[:, None], (0,), 4).edges
    array([1., 3., 5.])
    """
    values = rows[:, features[0]].astype(np.float64)
    if len(features) > 1 or np.isin(values, (0.0, 1.0)).all():
        return Column(features, None)
    edges = np.quantile(values, np.arange(1, bins) / bins, method="inverted_cdf")
    # Beyond the last edge there must be a row, however frequent the largest value is.
    largest = values.max()
    return Column(features, np.unique(np.minimum(edges, values[values < largest].max(initial=-np.inf))))
