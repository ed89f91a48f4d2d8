"""Boost trees on noisy histograms: their splits are public, and all that is known of labels is noisy sums per leaf.

A tree is given by the leaf of every row and, for every leaf and class, the noisy number of rows. The gradient of the
log-likelihood in a leaf's value is Σ_{rows in the leaf} (onehot(y) − p): its first half was released, its second half
is made of public predictions p, and so is the curvature. So a histogram that was released once serves every later
round: what changes from round to round is public.

    z = gradient + h·value,   z ~ N(h·v, noise + Σ p(1 − p))   given the leaf's true v;   h the curvature
    v ~ N(0, τ²)   ⇒   E[v | z] = z·h·τ²/(h²τ² + noise + Σ p(1 − p))

The noise is known, so that the release itself says how likely each τ² is, 0 among them, and values are averaged over
them: what noise alone would give is taken for noise. A leaf's value is a sum over scales, each with a τ² of its own:
the leaf itself, stretches of neighbouring bins, the same over all nodes. Where noise is large, a few coarse values are
learnt; where it is small, fine ones.

The bins are those of columns, read back from public features. A table's features say many things twice: a number stands
there as it is, as bins and as steps; a category is a feature for each of its values. A histogram costs by columns, not
by features: a row is in one bin of every column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from labeldp.learning.trees import Forest
from labeldp.releases import FloatArray

IntArray = npt.NDArray[np.int64]
# Variances that values may have, in squared logits, and how likely each is before anything is known: in half of the
# cases there is none; else it is small or large, beyond a tenth the larger the rarer.
_VARIANCES = np.concatenate([[0.0], np.geomspace(1e-3, 10.0, 13)])
_RARITY = 1 / (1 + 10 * _VARIANCES[1:])
_PRIOR = np.concatenate([[0.5], 0.5 * _RARITY / _RARITY.sum()])
# Bins that share a value on coarser scales, and passes over the scales in an update.
_STRETCHES, _PASSES = (4, 16), 2
# A leaf without rows has no curvature.
_LEAST_CURVATURE = 1e-3
# Rows that are looked at to see what a number says already.
_ENOUGH = 20_000


# -- columns and their bins -------------------------------------------------------------------------------------------


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


# -- histograms that grow into trees ----------------------------------------------------------------------------------


@dataclass(eq=False)
class Histogram:
    """A tree whose leaves are the bins of a column in each node above, and what was released about them.

    Args:
        splits: (feature, threshold) of each level above, the same for all nodes of a level; larger goes right.
        column: its bins are the last level.
        leaf: of every row, (n,): the node's number times the number of bins, plus the bin.
        sums: noisy numbers of rows, (K, leaves); over classes they add up to the leaf's rows.
        variance: of the noise on each.
        gain: by how much the release is likelier, in logarithms, with values than without.
        values: what a leaf adds to each class's score, (K, leaves).
    """

    splits: Sequence[tuple[int, float]]
    column: Column
    leaf: IntArray
    sums: FloatArray
    variance: float
    gain: float = field(default=0.0, init=False)
    values: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        size, ordered = self.column.size, self.column.edges is not None
        node, place = np.divmod(np.arange(self.sums.shape[1]), size)
        stretches = [place // one for one in (1, *_STRETCHES) if one == 1 or (ordered and 2 * one <= size)]
        groups = [node * size + stretch for stretch in stretches] + (stretches if self.splits else [])
        # Of every scale the group of each leaf, and the values of the groups, (K, groups).
        scales = [np.unique(group, return_inverse=True)[1] for group in groups]
        self._scales = [(scale, np.zeros((len(self.sums), int(scale.max()) + 1))) for scale in scales]
        self.values = np.zeros_like(self.sums)

    def update(self, scores: FloatArray, rate: float) -> None:
        """Move the values towards what is expected of them given all other trees, and the rows' scores with them."""
        likely = np.exp(scores - scores.max(axis=1, keepdims=True))
        likely /= likely.sum(axis=1, keepdims=True)
        slope = self.sums - _added(self.leaf, likely.T, self.sums.shape[1])
        spread = _added(self.leaf, (likely * (1 - likely)).T, self.sums.shape[1])
        # Values of K classes have mean 0, which leaves K − 1 free; along those the softmax is bent more than on axes.
        free = 1 - 1 / len(self.sums)
        curvature, before, self.gain = spread / free + _LEAST_CURVATURE, self.values, 0.0
        for scale, part in self._scales * _PASSES:
            h, noise = _added(scale, curvature), np.bincount(scale) * self.variance
            found, gain = _expected(_added(scale, slope) + h * part, h, noise + free * h, free)
            self.gain += gain / _PASSES
            moved = rate * (found - found.mean(axis=0) - part)
            np.add(part, moved, out=part)
            slope -= curvature * moved[:, scale]
        self.values = np.sum([part[:, scale] for scale, part in self._scales], axis=0)
        scores += (self.values - before).T[self.leaf]


def _added(group: IntArray, table: FloatArray, groups: int = 0) -> FloatArray:
    """Return sums over the columns of a group, (K, groups)."""
    return np.array([np.bincount(group, row, groups) for row in table], dtype=np.float64)


def _expected(z: FloatArray, h: FloatArray, error: FloatArray, free: float) -> tuple[FloatArray, float]:
    """Return E[v | z], averaged over variances, and by how much z is likelier, in logarithms, than without values."""
    spread = h * h * _VARIANCES[:, None, None] + error
    fits = -0.5 * free * (np.log(spread) + z * z / spread).sum(axis=(1, 2))
    weights = _PRIOR * np.exp(fits - fits.max())
    gain = np.log(weights.sum()) + fits.max() - fits[0]
    return z * h * np.tensordot(weights / weights.sum() * _VARIANCES, 1 / spread, axes=1), max(float(gain), 0.0)


def boost(trees: Sequence[Histogram], scores: FloatArray, passes: int, learning_rate: float) -> None:
    """Update every tree in turn, so many times; `scores`, (n, K), holds baseline plus trees and is kept so."""
    for _ in range(passes):
        for tree in trees:
            tree.update(scores, learning_rate)


# -- trees as plain arrays -------------------------------------------------------------------------------------------

# Feature, threshold, left, right, value; a leaf has no children.
_Node = tuple[int, float, int, int, float]
_EMPTY: _Node = (0, 0.0, -1, -1, 0.0)


def forest_of(trees: Sequence[Histogram], baseline: FloatArray) -> Forest:
    """Return baseline and trees as plain arrays. Class 0 scores 0: of softmax only differences matter."""
    nodes: list[_Node] = []
    planted = [(tree, output) for tree in trees for output in range(1, len(baseline))]
    roots = [_grow(nodes, tree.splits, tree.column, tree.values[output] - tree.values[0]) for tree, output in planted]
    feature, threshold, left, right, value = map(np.array, zip(*nodes, strict=True))
    missing, outputs = np.zeros(len(nodes), dtype=bool), np.array([output for _, output in planted])
    return Forest(feature, threshold, missing, left, right, value, np.array(roots), outputs, baseline - baseline[0])


def _grow(nodes: list[_Node], splits: Sequence[tuple[int, float]], column: Column, values: FloatArray) -> int:
    """Append a tree with these values of its leaves; return its root."""
    here = len(nodes)
    nodes.append(_EMPTY)
    if splits:
        left, right = (_grow(nodes, splits[1:], column, half) for half in np.split(values, 2))
        nodes[here] = (*splits[0], left, right, 0.0)
        return here
    open_nodes = [(here, 0, column.size - 1)]
    while open_nodes:
        place, first, last = open_nodes.pop()
        if first == last:
            nodes[place] = (0, 0.0, -1, -1, float(values[first]))
            continue
        # Numbers are halved; values of a category are asked for one by one, the last first.
        middle = (first + last) // 2 if column.edges is not None else last - 1
        left, right = len(nodes), len(nodes) + 1
        nodes += [_EMPTY, _EMPTY]
        nodes[place] = (*column.cuts[middle], left, right, 0.0)
        open_nodes += [(left, first, middle), (right, middle + 1, last)]
    return here
