"""Exact sums of public features by secret class, one block of rows at a time.

A feature is rounded to a multiple of a public power of two, the grid's step, before it is added: sums of such numbers
are sums of integers, so they are exact and do not depend on the order or on the size of the chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array  # pyright: ignore[reportMissingTypeStubs]

from labeldp.private.mechanism import LabelArray
from labeldp.private.shared import checked_integer, pieces

Block = npt.NDArray[Any]
IntMatrix = npt.NDArray[np.int64]

# Half a megabyte of rows: they stay in the cache while they are measured, rounded and added.
_CELLS_AT_ONCE = 1 << 17
_ROWS_AT_ONCE = 1 << 9
# A float next to 1.5·2^p·step, p its mantissa bits, is a multiple of step, and its bits count the steps.
_MANTISSA = {"float32": (23, np.uint32, np.int32), "float64": (52, np.uint64, np.int64)}


@dataclass(frozen=True, eq=False)
class RowChunks:
    """Public features that come in chunks of rows, in the order of the labels: 10⁹ rows in the memory of one chunk.

    Args:
        num_rows: how many rows there are in all.
        width: how many features a row has.
        read: starts from the first row and yields arrays (m, width), any m. Must not know a label.

    >>> parts = RowChunks(5, 2, lambda: (np.full((m, 2), m, dtype=np.float32) for m in (3, 2)))
    >>> [len(chunk) for chunk in parts.read()]
    [3, 2]
    """

    num_rows: int
    width: int
    read: Callable[[], Iterable[Block]] = field(repr=False)

    def __post_init__(self) -> None:
        checked_integer("num_rows", self.num_rows, 0, 1 << 62)
        checked_integer("width", self.width, 1, 1 << 31)


def as_chunks(features: npt.ArrayLike | RowChunks) -> RowChunks:
    """The features as chunks; an array (a memory map, too) is read where it lies, block by block."""
    if isinstance(features, RowChunks):
        return features
    table: Block = np.asanyarray(features)
    if table.ndim != 2 or table.shape[1] == 0 or table.dtype.kind not in "fiub":
        raise ValueError(
            f"features has shape {table.shape} and type {table.dtype}; give numbers of shape (n, d), d ≥ 1"
        )
    return RowChunks(len(table), table.shape[1], lambda: [table])


def blocks(chunks: RowChunks, at_once: int) -> Iterator[tuple[slice, Block]]:
    """Row numbers and features, float32 or float64, C-contiguous, at most `at_once` rows at a time."""
    done = 0
    for chunk in chunks.read():
        given: Block = np.asanyarray(chunk)
        if given.ndim != 2 or given.shape[1] != chunks.width or done + len(given) > chunks.num_rows:
            raise ValueError(f"a chunk has shape {given.shape} after {done} rows; features must be {_shape(chunks)}")
        kind = np.float32 if given.dtype == np.float32 else np.float64
        for rows in pieces(len(given), at_once):
            yield slice(done + rows.start, done + rows.stop), np.ascontiguousarray(given[rows], dtype=kind)
        done += len(given)
    if done != chunks.num_rows:
        raise ValueError(f"features ended after {done} rows; they must be {_shape(chunks)}")


def _shape(chunks: RowChunks) -> str:
    return f"({chunks.num_rows}, {chunks.width}) in all"


class GridSum:
    """Σ_i onehot(y_i) ⊗ round(φ_i/step) in int64, (K, d), block by block.

    Args:
        num_classes, width: K and d.
        exponent: step = 2^exponent.
        reach: no |φ_ij|/step is larger, nor is 0.5 more; at most 2^50.

    With p mantissa bits, φ + 1.5·2^p·step is rounded by the processor to a multiple of step, ties to even, and its bits
    are those of 1.5·2^p·step plus the number of steps. So one addition rounds, and the bits can be summed as integers
    modulo 2^32 (2^64); what the constant added is then taken off again. True sums of a block stay below 2^31 (2^63).

    >>> sums = GridSum(num_classes=2, width=1, exponent=-3, reach=64)
    >>> sums.add(np.array([0, 1, 0], dtype=np.uint8), np.array([[0.25], [-1.0], [0.30]], dtype=np.float32))
    >>> sums.total.ravel().tolist()
    [4, -8]
    """

    def __init__(self, num_classes: int, width: int, exponent: int, reach: int) -> None:
        self.total: IntMatrix = np.zeros((num_classes, width), dtype=np.int64)
        self._exponent = exponent
        self._reach = reach
        self._selector: Any = None

    @property
    def rows_at_once(self) -> int:
        """A good number of rows to give at a time."""
        # Many classes: more rows, or clearing and adding up the table of sums would take most of the time.
        return max(_ROWS_AT_ONCE, 4 * len(self.total))

    def add(self, labels: LabelArray, block: Block) -> None:
        """Add these rows; float32 or float64."""
        kind = "float32" if block.dtype == np.float32 and self._reach < 1 << 21 else "float64"
        most = (1 << (31 if kind == "float32" else 62)) // self._reach
        for rows in pieces(len(block), min(self.rows_at_once, most)):
            self._add_rows(labels[rows], block[rows], kind)

    def _add_rows(self, labels: LabelArray, block: Block, kind: str) -> None:
        mantissa, unsigned, signed = _MANTISSA[kind]
        shift = np.dtype(kind).type(1.5 * 2.0 ** (mantissa + self._exponent))
        select = self._select(labels, unsigned)
        counts = np.bincount(labels, minlength=len(self.total)).astype(unsigned)
        offset = counts[:, None] * shift.view(unsigned)
        for columns in pieces(block.shape[1], max(64, _CELLS_AT_ONCE // len(labels))):
            rounded = np.add(block[:, columns], shift, dtype=kind)
            sums: Block = select @ rounded.view(unsigned)
            sums -= offset
            self.total[:, columns] += sums.view(signed)

    def _select(self, labels: LabelArray, kind: type[np.unsignedinteger[Any]]) -> Any:
        """onehotᵀ, (K, rows); written into the last one where it fits: making one takes longer than using it."""
        rows = len(labels)
        if self._selector is None or self._selector.shape[1] != rows or self._selector.dtype != kind:
            parts = (np.ones(rows, kind), np.zeros(rows, np.int32), np.arange(rows + 1, dtype=np.int32))
            self._selector = csc_array(parts, shape=(len(self.total), rows))
        self._selector.indices[:] = labels
        return self._selector
