"""Turn tables into features: numbers standardised and binned, categories one-hot or hashed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from labeldp.features.extract import Scaling, principal_components, sample_rows
from labeldp.models.zoo import checked_count

Array = Tensor | np.ndarray
# Numeric columns (n, a) and categorical ones (n, b); either may have no columns.
Tables = tuple[Array, Array]

_CHUNK = 16_384


@dataclass(frozen=True)
class Table:
    """How to encode a table (numeric (n, a), categorical (n, b)).

    A number becomes (x − mean) / spread; a missing one (NaN) becomes 0, and a column with missing numbers gets a second
    one that marks it. With `bins` it becomes one-hot as well, so that a linear head can learn any curve: a value more
    frequent than one in `bins` has a bin to itself, the others share bins of about as many rows each. With `steps` it
    also becomes 0 or 1 for each of a few thresholds, x ≥ t: coarse, they are what can be learnt where noise is large.

    A category becomes one-hot, in a column of few values, all zero for a value not seen before; else ±1 at one of
    `buckets` places, place and sign from a hash of the column's number and the value (Weinberger et al. 2009), so that
    products of rows are unbiased and new values need no care.

    Args:
        one_hot: columns with at most this many values are one-hot, others hashed.
        buckets: places shared by all hashed columns.
        bins: of a numeric column; 0 for none.
        steps: thresholds of a numeric column, about one less than this; 0 for none.
        scale: factor on standardised numbers; below 1 where bins and steps hold the same.
        clip: standardised numbers beyond this are cut down to it; None for no limit.
        dims: principal components kept; None keeps all coordinates.
        seed: of the hash, and of the components.

    >>> table = (np.array([[1.0], [3.0]]), np.array([["red"], ["blue"]]))
    >>> Table().fit(table).features(table).tolist()
    [[-1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    """

    one_hot: int = 64
    buckets: int = 256
    bins: int = 0
    steps: int = 0
    scale: float = 1.0
    clip: float | None = None
    dims: int | None = None
    seed: int = 0

    def fit(self, inputs: Tables, device: torch.device | str | None = None) -> TableMap:
        """Find means, spreads and values of public rows."""
        numeric, categorical = checked_table(inputs)
        place = torch.device(device or "cpu")
        buckets, most = checked_count("buckets", self.buckets), checked_count("one_hot", self.one_hot, low=0)
        present = ~np.isnan(numeric)
        counts = np.maximum(present.sum(axis=0), 1)
        mean = np.where(present, numeric, 0).sum(axis=0) / counts
        spread = np.sqrt(np.where(present, (numeric - mean) ** 2, 0).sum(axis=0) / counts)
        found = (np.unique(column) for column in categorical.T)
        values = tuple(unique if len(unique) <= most else None for unique in found)
        hashed = buckets if any(kept is None for kept in values) else 0
        edges, steps = (_all_edges(numeric, name, getattr(self, name)) for name in ("bins", "steps"))
        missing, limits = np.asarray(~present.all(axis=0)), _checked_limits(self.clip, self.scale)
        plain = TableMap(mean, spread, missing, values, hashed, self.seed, place, edges, steps, *limits)
        if self.dims is None:
            return plain
        rows = sample_rows(len(numeric), 50_000, self.seed).numpy()
        sample = plain.features((numeric[rows], categorical[rows]))
        return replace(plain, scaling=_rotation(sample, self.dims, self.seed))


@dataclass(frozen=True, eq=False)
class TableMap:
    """An encoding ready for use.

    Args:
        mean, spread: of the numeric columns, missing numbers left out.
        missing: which numeric columns had missing numbers.
        values: per categorical column its values in order, or None when it is hashed.
        buckets: places for hashed columns, 0 when there are none.
        edges: per numeric column the first value of every bin but the lowest; none without bins.
        steps: per numeric column its thresholds.
        clip, scale: limit of standardised numbers, and the factor on them.
    """

    mean: np.ndarray
    spread: np.ndarray
    missing: np.ndarray
    values: tuple[np.ndarray | None, ...]
    buckets: int
    seed: int
    device: torch.device
    edges: tuple[np.ndarray, ...] = ()
    steps: tuple[np.ndarray, ...] = ()
    clip: float = math.inf
    scale: float = 1.0
    scaling: Scaling | None = None

    @property
    def dim(self) -> int:
        """Number of features."""
        if self.scaling is not None:
            return self.scaling.dim
        one_hot = sum(len(kept) for kept in self.values if kept is not None)
        one_hot += sum(len(edges) + 1 for edges in self.edges) + sum(map(len, self.steps))
        return len(self.mean) + int(self.missing.sum()) + one_hot + self.buckets

    @property
    def plain(self) -> np.ndarray:
        """Numbers of the features that say everything once: numbers as they are, and categories, no bins or steps."""
        if self.scaling is not None:
            return np.arange(self.dim)
        begin = len(self.mean) + int(self.missing.sum())
        again = sum(len(edges) + 1 for edges in self.edges) + sum(map(len, self.steps))
        return np.r_[:begin, begin + again : self.dim]

    def features(self, inputs: Tables) -> Tensor:
        """Return (n, dim)."""
        numeric, categorical = checked_table(inputs)
        if numeric.shape[1] != len(self.mean) or categorical.shape[1] != len(self.values):
            raise ValueError(
                f"inputs have {numeric.shape[1]} numeric and {categorical.shape[1]} categorical columns; "
                f"the table fitted had {len(self.mean)} and {len(self.values)}"
            )
        result = torch.empty(len(numeric), self.dim, device=self.device)
        for start in range(0, len(numeric), _CHUNK):
            span = slice(start, start + _CHUNK)
            rows = torch.from_numpy(self._encoded(numeric[span], categorical[span])).to(self.device)
            result[span] = rows if self.scaling is None else self.scaling(rows)
        return result

    def standardised(self, numeric: np.ndarray) -> np.ndarray:
        """Return (x − mean) / spread, 0 where missing, clipped and scaled, (n, a)."""
        inverse = np.divide(1.0, self.spread, out=np.zeros_like(self.spread), where=self.spread > 0)
        return np.clip(np.nan_to_num((numeric - self.mean) * inverse), -self.clip, self.clip) * self.scale

    def _encoded(self, numeric: np.ndarray, categorical: np.ndarray) -> np.ndarray:
        parts = [self.standardised(numeric), np.isnan(numeric)[:, self.missing]]
        parts += [_binned(column, edges) for column, edges in zip(numeric.T, self.edges, strict=False)]
        parts += [column[:, None] >= steps for column, steps in zip(numeric.T, self.steps, strict=False)]
        hashed = np.zeros((len(numeric), self.buckets))
        for number, (column, kept) in enumerate(zip(categorical.T, self.values, strict=True)):
            if kept is not None:
                check_alike(column, kept, number)
                parts.append(column[:, None] == kept)
            else:
                _add_hashed(hashed, column, number, self.seed)
        return np.concatenate([*parts, hashed], axis=1, dtype=np.float32)


def bin_edges(values: np.ndarray, bins: int) -> np.ndarray:
    """Return the first value of every bin but the lowest: about `bins` at most, none for a column without values.

    >>> bin_edges(np.array([0.0] * 6 + [1.0, 2.0, 3.0, 4.0]), 3)
    array([1., 3.])
    """
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= bins:
        return distinct[1:]
    heavy = counts > len(values) / bins
    light, free = np.where(heavy, 0, counts), max(1, bins - int(heavy.sum()))
    # The middle of a value's rows among those of light values, in [0, 1), decides which bin it falls into.
    middle = (np.cumsum(light) - light / 2) / max(int(light.sum()), 1)
    group = np.where(heavy, -1 - np.arange(len(distinct)), np.minimum(middle * free, free - 1).astype(np.int64))
    return distinct[1:][group[1:] != group[:-1]]


def _binned(column: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return one-hot (n, len(edges) + 1); all zero for a missing number."""
    place = np.searchsorted(edges, column, side="right")
    return (place[:, None] == np.arange(len(edges) + 1)) & ~np.isnan(column)[:, None]


def _all_edges(numeric: np.ndarray, name: str, bins: int) -> tuple[np.ndarray, ...]:
    if not checked_count(name, bins, low=0):
        return ()
    return tuple(bin_edges(column[~np.isnan(column)], bins) for column in numeric.T)


def _checked_limits(clip: float | None, scale: float) -> tuple[float, float]:
    if clip is not None and not clip > 0:
        raise ValueError(f"clip={clip} is not a limit of standardised numbers; give a number above 0, say 4, or None")
    if not 0 <= scale < math.inf:
        raise ValueError(f"scale={scale} is not a factor on standardised numbers; give a number of at least 0")
    return math.inf if clip is None else float(clip), float(scale)


def checked_table(inputs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return float64 numbers and an array of categories with as many rows, or raise ValueError."""
    if not isinstance(inputs, tuple | list) or len(inputs) != 2:
        raise ValueError("inputs is not a pair; give (numeric columns, categorical columns), either with no columns")
    numeric, categorical = (part.cpu().numpy() if isinstance(part, Tensor) else np.asarray(part) for part in inputs)
    if numeric.ndim != 2 or categorical.ndim != 2 or len(numeric) != len(categorical):
        raise ValueError(
            f"numeric has shape {numeric.shape}, categorical {categorical.shape}; give (n, a) and (n, b) of the same n"
        )
    numeric = numeric.astype(np.float64, copy=False)
    if np.isinf(numeric).any():
        raise ValueError("numeric has infinite values; leave missing numbers as NaN and cap the rest")
    if categorical.dtype.kind == "f":
        raise ValueError("categorical holds floats; give whole numbers or strings, and floats as numeric columns")
    return numeric, categorical.astype(str) if categorical.dtype == object else categorical


def check_alike(column: np.ndarray, values: np.ndarray, number: int) -> None:
    """Raise ValueError where text stands in place of whole numbers, or the other way round."""
    if (column.dtype.kind in "US") != (values.dtype.kind in "US"):
        raise ValueError(f"categorical column {number} is {column.dtype}, but the one fitted was {values.dtype}")


def _add_hashed(rows: np.ndarray, column: np.ndarray, number: int, seed: int) -> None:
    """Add ±1 to each row at the place of its value."""
    values, which = np.unique(column, return_inverse=True)
    places, positive = hashed_places(values, number, seed, rows.shape[1])
    rows[np.arange(len(rows)), places[which]] += np.where(positive[which], 1.0, -1.0)


def hashed_places(values: np.ndarray, number: int, seed: int, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the place of each value of a column, and whether its sign is positive."""
    # Python's own hash differs between processes.
    digests = [hashlib.blake2b(f"{seed} {number} {value}".encode(), digest_size=8).digest() for value in values]
    codes = np.array([int.from_bytes(digest, "little") for digest in digests], dtype=np.uint64)
    return ((codes >> np.uint64(1)) % np.uint64(buckets)).astype(np.int64), (codes & np.uint64(1)).astype(bool)


def _rotation(sample: Tensor, dims: int, seed: int) -> Scaling:
    """Find principal components of the columns as they are: zeros and ones are not scaled to like variance."""
    centred = Scaling(sample.mean(dim=0), torch.ones(sample.shape[1], device=sample.device))
    return Scaling(centred.mean, centred.inverse, principal_components(centred(sample), dims, seed=seed))


# -- tables whose features would not fit in memory ---------------------------------------------------------------------

_ROWS_AT_ONCE = 16_384


@dataclass(frozen=True, eq=False)
class Coded:
    """A table's features as a few numbers and cells per row, for tables whose features would not fit in memory.

    A number of `Table` becomes itself, one of its bins and some of its steps; a category one place. But all that its
    bins and steps show is between which of their edges it lies: one cell. So a row of a columns of numbers and b of
    categories is a numbers and a + b cells, however many features it has, and a linear map of its features is

        x M = u M_u + Σ_j (E M)[cell_j],    E (cells, p) the features of each cell, u (a,) the standardised numbers.

    Ten million rows of 20 numbers and 3 categories take 1.6 GiB so, and 40 as features; a map to r directions takes
    2 r (2a + b) operations per row instead of 2 r p.

    Args:
        numbers: standardised, clipped and scaled, (n, a), float32.
        cells: rows of `features_of_cells`, (n, a + b), int32.
        features_of_cells: E, (cells, p).
    """

    numbers: Tensor
    cells: Tensor
    features_of_cells: Tensor

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features, as if they were spelt out."""
        return len(self.numbers), self.features_of_cells.shape[1]

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.numbers.device

    def take(self, rows: Tensor) -> Coded:
        """Return some rows."""
        return Coded(self.numbers[rows], self.cells[rows], self.features_of_cells)

    def features(self) -> Tensor:
        """Return all features, (n, p): what `TableMap.features` gives."""
        found = torch.empty(self.shape, device=self.numbers.device)
        for span, part in self.mapped(torch.eye(self.shape[1], device=self.numbers.device)):
            found[span] = part
        return found

    def mapped(self, matrix: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield chunks of rows' features times a matrix (p, r): which rows, and (m, r)."""
        direct = matrix[: self.numbers.shape[1]]
        table = self.features_of_cells @ matrix
        for start in range(0, len(self), _ROWS_AT_ONCE):
            span = slice(start, start + _ROWS_AT_ONCE)
            yield span, embedding_bag(self.cells[span], table, mode="sum") + self.numbers[span] @ direct


class Coder:
    """From rows of a table to numbers and cells, by a map whose features are not rotated.

    >>> from labeldp.features.tables import Table
    >>> table = (np.array([[1.0], [3.0], [np.nan]]), np.array([["red"], ["blue"], ["red"]]))
    >>> found = Table(bins=2, steps=2).fit(table)
    >>> torch.equal(Coder(found).coded([table]).features(), found.features(table))
    True
    """

    def __init__(self, found: TableMap) -> None:
        if found.scaling is not None:
            raise ValueError("the features are rotated (dims is set), so that cells have none of their own")
        none = (np.empty(0),) * len(found.mean)
        self._map = found
        self._cuts = [np.union1d(*pair) for pair in zip(found.edges or none, found.steps or none, strict=True)]
        # One for each stretch between cuts and one for missing; cell 0 is for what was not seen before.
        sizes = [len(cuts) + 2 for cuts in self._cuts]
        sizes += [2 * found.buckets if kept is None else len(kept) for kept in found.values]
        self._starts = 1 + np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def coded(self, parts: Iterable[Tables]) -> Coded:
        """Encode rows that come in parts, in order."""
        pairs = [self._coded(*checked_table(part)) for part in parts]
        numbers, cells = (torch.from_numpy(np.concatenate(part)) for part in zip(*pairs, strict=True))
        device = self._map.device
        return Coded(numbers.to(device), cells.to(device), torch.from_numpy(self._features()).to(device))

    def _coded(self, numeric: np.ndarray, categorical: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cells = np.empty((len(numeric), len(self._starts) - 1), dtype=np.int32)
        for number, cuts in enumerate(self._cuts):
            column = np.ascontiguousarray(numeric[:, number])
            place = np.where(np.isnan(column), len(cuts) + 1, np.searchsorted(cuts, column, side="right"))
            cells[:, number] = self._starts[number] + place
        for number, column in enumerate(categorical.T):
            cells[:, len(self._cuts) + number] = self._places(column, number)
        return self._map.standardised(numeric).astype(np.float32), cells

    def _places(self, column: np.ndarray, number: int) -> np.ndarray:
        """Return a category's cells, found once for each of its values."""
        values, which = np.unique(column, return_inverse=True)
        kept, start = self._map.values[number], self._starts[len(self._cuts) + number]
        if kept is None:
            place, positive = hashed_places(values, number, self._map.seed, self._map.buckets)
            return (start + 2 * place + positive)[which]
        check_alike(values, kept, number)
        place = np.minimum(np.searchsorted(kept, values), len(kept) - 1)
        return np.where(kept[place] == values, start + place, 0)[which]

    def _features(self) -> np.ndarray:
        """Return E, (cells, p), its columns in the order of `TableMap.features`."""
        found, table = self._map, np.zeros((self._starts[-1], self._map.dim), dtype=np.float32)
        at = len(found.mean)
        for number in np.flatnonzero(found.missing):
            table[self._starts[number + 1] - 1, at] = 1.0
            at += 1
        for number, edges in enumerate(found.edges):
            rows, first = self._stretches(number)
            table[rows, at + np.searchsorted(edges, first, side="right")] = 1.0
            at += len(edges) + 1
        for number, steps in enumerate(found.steps):
            rows, first = self._stretches(number)
            table[rows, at : at + len(steps)] = first[:, None] >= steps
            at += len(steps)
        for start, kept in zip(self._starts[len(self._cuts) :], found.values, strict=False):
            if kept is not None:
                table[start + np.arange(len(kept)), at + np.arange(len(kept))] = 1.0
                at += len(kept)
            else:
                places = np.arange(found.buckets)
                table[start + 2 * places, found.dim - found.buckets + places] = -1.0
                table[start + 2 * places + 1, found.dim - found.buckets + places] = 1.0
        return table

    def _stretches(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the cells of a number that is there, and the least value in each."""
        cuts = self._cuts[number]
        return self._starts[number] + np.arange(len(cuts) + 1), np.concatenate([[-np.inf], cuts])
