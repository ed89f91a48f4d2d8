"""A table's features as a few numbers and cells per row, for tables whose features would not fit in memory.

A number of `Table` becomes itself, one of its bins and some of its steps; a category one place. But all that its bins
and steps say is between which of their edges it lies: one cell. So a row of a columns of numbers and b of categories is
a numbers and a + b cells, however many features it has, and a linear map of its features is

    x M = u M_u + Σ_j (E M)[cell_j],    E (cells, p) the features of each cell, u (a,) the standardised numbers.

Ten million rows of 20 numbers and 3 categories take 1.6 GiB so, and 40 as features; a map to r directions takes
2 r (2a + b) operations per row instead of 2 r p.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from labeldp.learning.tabular import TableMap, Tables, check_alike, checked_table, hashed_places

_ROWS_AT_ONCE = 16_384


@dataclass(frozen=True, eq=False)
class Coded:
    """Rows of a table as numbers and cells.

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
        """Some rows."""
        return Coded(self.numbers[rows], self.cells[rows], self.features_of_cells)

    def features(self) -> Tensor:
        """All features, (n, p): what `TableMap.features` gives."""
        found = torch.empty(self.shape, device=self.numbers.device)
        for span, part in self.mapped(torch.eye(self.shape[1], device=self.numbers.device)):
            found[span] = part
        return found

    def mapped(self, matrix: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Chunks of rows' features times a matrix (p, r): which rows, and (m, r)."""
        direct = matrix[: self.numbers.shape[1]]
        table = self.features_of_cells @ matrix
        for start in range(0, len(self), _ROWS_AT_ONCE):
            span = slice(start, start + _ROWS_AT_ONCE)
            yield span, embedding_bag(self.cells[span], table, mode="sum") + self.numbers[span] @ direct


class Coder:
    """From rows of a table to numbers and cells, by a map whose features are not rotated.

    >>> from labeldp.learning.tabular import Table
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
        """Rows that come in parts, in order."""
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
        """A category's cells, looked up once for each of its values."""
        values, which = np.unique(column, return_inverse=True)
        kept, start = self._map.values[number], self._starts[len(self._cuts) + number]
        if kept is None:
            place, positive = hashed_places(values, number, self._map.seed, self._map.buckets)
            return (start + 2 * place + positive)[which]
        check_alike(values, kept, number)
        place = np.minimum(np.searchsorted(kept, values), len(kept) - 1)
        return np.where(kept[place] == values, start + place, 0)[which]

    def _features(self) -> np.ndarray:
        """E, (cells, p), its columns in the order of `TableMap.features`."""
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
        """The cells of a number that is there, and the least value in each."""
        cuts = self._cuts[number]
        return self._starts[number] + np.arange(len(cuts) + 1), np.concatenate([[-np.inf], cuts])
