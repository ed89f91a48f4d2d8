"""Hold tables whose features would not fit in memory as a few numbers and cells per row; make features as needed."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from labeldp.features.extract import one_thread
from labeldp.features.tables import TableMap, check_alike, checked_table, hashed_places

# Numbers that a chunk of rows is mapped to at once: they stay in a processor's cache. A GPU wants more.
_AT_ONCE, _AT_ONCE_ON_A_GPU = 1 << 19, 1 << 24
# Bytes of numbers and cells that are kept in memory; more of them go to a file.
_IN_MEMORY = 1 << 29
# One array of categories for all columns, (n, b); or of each column its values and, per row, which it is.
Categories = np.ndarray | Sequence[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Coded:
    """A table's features as a few numbers and cells per row, for tables whose features would not fit in memory.

    A number of `Table` becomes itself, one of its bins and some of its steps; a category one place. But all that its
    bins and steps show is between which of their edges it lies: one cell. So a row of a columns of numbers and b of
    categories is a numbers and a + b cells, however many features it has, and a linear map of its features is

        x M = u M_u + Σ_j (E M)[first_j + cell_j],    E (cells, p) the features of each cell, u (a,) the numbers.

    Ten million rows of 20 numbers and 3 categories take 1.2 GiB so, in a file that is read as it is needed, and 40 as
    features; a map to r directions takes 2 r (2a + b) operations per row instead of 2 r p.

    Args:
        numbers: standardised, clipped and scaled, (n, a), float32.
        cells: per column, (n, a + b), in the least type that holds them.
        first: of each column's cells the first row of E, (a + b,).
        features_of_cells: E, (cells, p).
        rows: which of the rows these are, in their order; None for all.
    """

    numbers: Tensor
    cells: Tensor
    first: Tensor
    features_of_cells: Tensor
    rows: Tensor | None = None

    def __len__(self) -> int:
        return len(self.numbers) if self.rows is None else len(self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features, as if they were spelt out."""
        return len(self), self.features_of_cells.shape[1]

    @property
    def device(self) -> torch.device:
        """Where features are made."""
        return self.features_of_cells.device

    def take(self, rows: Tensor) -> Coded:
        """Return some rows; nothing is copied but their numbers."""
        chosen = rows.cpu()
        return replace(self, rows=chosen if self.rows is None else self.rows[chosen])

    def features(self) -> Tensor:
        """Return all features, (n, p): what `TableMap.features` gives."""
        found = torch.empty(self.shape, device=self.device)
        for span, part in self.mapped(torch.eye(self.shape[1], device=self.device)):
            found[span] = part
        return found

    def mapped(self, matrix: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield chunks of rows' features times a matrix (p, r): which rows, and (m, r)."""
        direct, table = matrix[: self.numbers.shape[1]], self.features_of_cells @ matrix
        cells_at_once = _AT_ONCE if self.device.type == "cpu" else _AT_ONCE_ON_A_GPU
        at_once = max(64, min(1 << 14, cells_at_once // matrix.shape[1]))
        # Operations on so few rows take longer to be shared between threads than to be done.
        with one_thread():
            for start in range(0, len(self), at_once):
                span = slice(start, start + at_once)
                chosen = span if self.rows is None else self.rows[span]
                cells = self.cells[chosen].to(self.device, torch.int32) + self.first
                numbers = self.numbers[chosen].to(self.device)
                part = torch.addmm(embedding_bag(cells, table, mode="sum"), numbers, direct)
                yield slice(start, start + len(part)), part


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
        # Cell 0 of a column is for what was not seen before. One for each stretch between cuts, and one for missing.
        sizes = [len(cuts) + 3 for cuts in self._cuts]
        sizes += [1 + (2 * found.buckets if kept is None else len(kept)) for kept in found.values]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._kind: Any = next(
            kind for kind in (np.uint8, np.int16, np.int32) if max(sizes, default=1) - 1 <= np.iinfo(kind).max
        )

    def coded(self, parts: Iterable[tuple[np.ndarray, Categories]], rows: int | None = None) -> Coded:
        """Encode rows that come in parts, in order; how many there are in all decides where they are kept."""
        columns = len(self._starts) - 1
        width = 4 * len(self._cuts) + np.dtype(self._kind).itemsize * columns
        if rows is not None and rows * width > _IN_MEMORY:
            numbers, cells = self._in_files(parts, rows)
        else:
            pairs = [self._coded(*part) for part in parts]
            numbers, cells = (np.concatenate(part) for part in zip(*pairs, strict=True))
        device = self._map.device
        first, table = torch.from_numpy(self._starts[:-1].astype(np.int32)), torch.from_numpy(self.features_of_cells())
        return Coded(torch.from_numpy(numbers), torch.from_numpy(cells), first.to(device), table.to(device))

    def cells(self, numeric: np.ndarray, categorical: Categories) -> tuple[np.ndarray, np.ndarray]:
        """Return rows' numbers, (n, a), and which rows of `features_of_cells` they add up, (n, a + b)."""
        numbers, cells = self._coded(numeric, categorical)
        return numbers, cells + self._starts[:-1].astype(np.int32)

    def _in_files(self, parts: Iterable[tuple[np.ndarray, Categories]], rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Write numbers and cells to two files without a name, which are gone when nobody reads them any more."""
        try:
            with tempfile.TemporaryFile() as numbers, tempfile.TemporaryFile() as cells:
                for part in parts:
                    for file, array in zip((numbers, cells), self._coded(*part), strict=True):
                        file.write(np.ascontiguousarray(array).data)
                return (
                    _mapped_file(numbers, np.float32, (rows, len(self._cuts))),
                    _mapped_file(cells, self._kind, (rows, len(self._starts) - 1)),
                )
        except OSError as error:
            raise ValueError(
                f"X has {rows} rows, for which {tempfile.gettempdir()!r} has no room ({error.strerror}); free some, or "
                "set TMPDIR to a folder that has it"
            ) from None

    def _coded(self, numeric: np.ndarray, categorical: Categories) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(categorical, np.ndarray):
            numeric, together = checked_table((numeric, categorical))
            categorical = [np.unique(column, return_inverse=True) for column in together.T]
        cells = np.empty((len(numeric), len(self._starts) - 1), dtype=self._kind)
        for number, cuts in enumerate(self._cuts):
            column = np.ascontiguousarray(numeric[:, number])
            # Sorted last: what is missing comes after all cuts, and then one further.
            cells[:, number] = 1 + np.searchsorted(cuts, column, side="right") + np.isnan(column)
        for number, (values, which) in enumerate(categorical):
            cells[:, len(self._cuts) + number] = self._places(values, number).astype(self._kind)[which]
        return self._map.standardised(numeric).astype(np.float32), cells

    def _places(self, values: np.ndarray, number: int) -> np.ndarray:
        """Return the cells of a category's values."""
        kept = self._map.values[number]
        if kept is None:
            place, positive = hashed_places(values, number, self._map.seed, self._map.buckets)
            return 1 + 2 * place + positive
        check_alike(values, kept, number)
        place = np.minimum(np.searchsorted(kept, values), len(kept) - 1)
        return np.where(kept[place] == values, 1 + place, 0)

    def features_of_cells(self) -> np.ndarray:
        """Return E, (cells, p), its columns in the order of `TableMap.features`."""
        found, table = self._map, np.zeros((self._starts[-1], self._map.dim), dtype=np.float32)
        at = len(found.mean)
        for number in np.flatnonzero(found.missing):
            table[self._starts[number + 1] - 1, at] = 1.0
            at += 1
        for number, edges in enumerate(found.edges):
            rows, least = self._stretches(number)
            table[rows, at + np.searchsorted(edges, least, side="right")] = 1.0
            at += len(edges) + 1
        for number, steps in enumerate(found.steps):
            rows, least = self._stretches(number)
            table[rows, at : at + len(steps)] = least[:, None] >= steps
            at += len(steps)
        for start, kept in zip(self._starts[len(self._cuts) : -1] + 1, found.values, strict=True):
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
        return self._starts[number] + 1 + np.arange(len(cuts) + 1), np.concatenate([[-np.inf], cuts])


def _mapped_file(file: IO[bytes], kind: Any, shape: tuple[int, int]) -> np.ndarray:
    """Return the array that was written to a file, read from it as it is needed."""
    file.flush()
    if not math.prod(shape):
        return np.empty(shape, kind)
    # Copy on write, for torch takes no array that cannot be written to.
    return np.memmap(file, kind, "c", shape=shape)
