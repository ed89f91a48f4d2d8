"""Find the columns behind rows of features and cut each into bins: the public cells of which histograms are made.

A table's features say many things twice. A number stands there as it is, as bins and as steps; a category is a feature
for each of its values. A histogram costs by columns, not by features: a row is in one bin of every column. So features
are read back as columns, from public rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


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
    """Return the features of each column: categories as one, and nothing that a number says already.

    Neighbouring features that are 0 or 1 are one category as long as no row has two of them. A category is left out
    where its values follow each other along a number, as bins and steps of the number do.

    >>> columns(np.array([[0.1, 0, 1, 1], [0.7, 1, 0, 1], [0.9, 1, 0, 0], [0.2, 1, 0, 1]]))
    ((0,), (1, 2), (3,))
    """
    plain = np.asarray(rows)
    is_flag = ((plain == 0) | (plain == 1)).all(axis=0)
    varies = (plain != plain[:1]).any(axis=0)
    numbers = np.flatnonzero(~is_flag & varies)
    orders = [np.argsort(plain[:, number], kind="stable") for number in numbers]
    found: list[tuple[int, ...]] = [(int(number),) for number in numbers]
    for features in _bundles(plain, np.flatnonzero(is_flag & varies)):
        category = Column(features, None)
        bins = category.bins(plain)
        if not any(np.count_nonzero(np.diff(bins[order])) < len(np.unique(bins)) for order in orders):
            found.append(features)
    return tuple(found)


def _bundles(rows: npt.NDArray[np.floating], flags: Sequence[int] | IntArray) -> Iterator[tuple[int, ...]]:
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
    edges = np.unique(np.quantile(values, np.arange(1, bins) / bins, method="inverted_cdf"))
    # Beyond the last edge there must be a row.
    return Column(features, edges[edges < values.max()])
