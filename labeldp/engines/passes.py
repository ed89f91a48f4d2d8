"""Fit a table's features by a pass over all rows of a frame, without their labels.

Some rows decide how columns are read, and where bins begin. What some rows cannot show comes from all of them: values
of a category that are rare, cells that are seldom missing, means and spreads under long tails. Partitions add up whole
numbers and unite sets, so that the features do not depend on their order or number, nor on tasks that are repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from labeldp.data.columns import Layout, conformed, read_frame
from labeldp.data.kinds import Column
from labeldp.features.tables import Table, TableMap

# A number counts in steps of 1/1,024 of the spread that some rows have, and as 1,024 spreads where it is further from
# their mean: squares of eight million rows fit in 64 bits.
_STEPS, _MOST = 1 << 10, 1 << 20
# Of a column of numbers; of a category its values, None where they are too many.
Sums = dict[str, list[Any]]


@dataclass(frozen=True, eq=False)
class Look:
    """What a task must know to look at all rows: how they are read, where numbers lie, and how many values are many."""

    columns: tuple[Column, ...]
    layout: Layout
    mean: npt.NDArray[np.float64]
    spread: npt.NDArray[np.float64]
    most: int

    @classmethod
    def like(cls, columns: tuple[Column, ...], layout: Layout, table: Table, found: TableMap) -> Look:
        """Return the look that completes what was found in some rows."""
        return cls(columns, layout, found.mean, np.where(found.spread > 0, found.spread, 1.0), table.one_hot)

    def empty(self) -> Sums:
        """Return what there is in no rows."""
        words = len(self.layout.numeric) - len(self.mean)
        return {"numbers": [[0, 0, 0, 0] for _ in self.mean], "values": [[] for _ in range(words)]}

    def joined(self, one: Sums, other: Sums) -> Sums:
        """Return what there is in both."""
        numbers = [
            [a + b for a, b in zip(*pair, strict=True)] for pair in zip(one["numbers"], other["numbers"], strict=True)
        ]
        values = [
            None if a is None or b is None else sorted({*a, *b})
            for a, b in zip(one["values"], other["values"], strict=True)
        ]
        few = [None if found is None or len(found) > self.most else found for found in values]
        return {"numbers": numbers, "values": few}

    def of(self, rows: pa.Table) -> Sums:
        """Return rows, cells that are missing, and sums of numbers and of their squares; and values of categories."""
        read = read_frame(conformed(rows, self.columns, strays=True), factors=True)
        parts = self.layout.factors(read)
        # Conformed columns have the kinds that the layout was made of.
        assert parts is not None
        numeric, words = parts
        numbers = []
        for column, mean, spread in zip(numeric.T, self.mean, self.spread, strict=True):
            missing = np.isnan(column)
            steps = np.clip(np.rint((column[~missing] - mean) / spread * _STEPS), -_MOST, _MOST).astype(np.int64)
            numbers.append([len(column), int(missing.sum()), int(steps.sum()), int((steps * steps).sum())])
        # Values that a row has: Arrow's dictionaries hold no others.
        return {"numbers": numbers, "values": [known.tolist() for known, _ in words]}

    def fitted(self, found: TableMap, sums: Sums, table: Table) -> TableMap:
        """Return the features with means, spreads, missing cells and values of all rows."""
        counts = np.array(sums["numbers"], dtype=object).reshape(-1, 4)
        rows, missing, first, second = (counts[:, i].astype(np.float64) for i in range(4))
        there = np.maximum(rows - missing, 1)
        shift = first / there
        values = tuple(
            None if kept is None or now is None else np.array(now, dtype=str)
            for kept, now in zip(found.values, sums["values"], strict=True)
        )
        return replace(
            found,
            mean=self.mean + shift * self.spread / _STEPS,
            spread=np.sqrt(np.maximum(second / there - shift**2, 0)) * self.spread / _STEPS,
            missing=missing > 0,
            values=values,
            buckets=table.buckets if any(kept is None for kept in values) else 0,
        )


def look(task: Look, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one line, what there is in a partition; the frame has no labels."""
    whole = task.empty()
    for batch in batches:
        if batch.num_rows:
            whole = task.joined(whole, task.of(pa.Table.from_batches([batch])))
    yield _line(whole)


def unite(task: Look, batches: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Yield one line, what there is in those given."""
    yield _line(united(task, batches))


def united(task: Look, batches: Iterable[Any]) -> Sums:
    """Return what there is in all lines."""
    whole = task.empty()
    for batch in batches:
        for content in batch.column("found").to_pylist():
            whole = task.joined(whole, json.loads(content))
    return whole


def _line(found: Sums) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([json.dumps(found)])], ["found"])
