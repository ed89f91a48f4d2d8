"""Leave the rows of a big table where they are: its public columns are read part by part, as often as they are needed.

How columns are read, and all that is fitted to public rows, comes from rows drawn at random by their number: a sample
that no label has a part in. The table itself is never in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from labeldp.data.columns import check_like, conformed, open_table
from labeldp.data.columns import read_like as columns_like
from labeldp.data.csv import CsvTable, typed
from labeldp.data.kinds import Column
from labeldp.data.parquet import ParquetTable

# Rows of which columns and features are found; a table of no more than these, or of fewer cells, is read whole.
SAMPLE_ROWS, MANY_CELLS = 200_000, 1 << 24
# Rows that show what types the columns of a CSV file have.
_FEW_ROWS = 20_000
Source = CsvTable | ParquetTable


@dataclass(frozen=True, eq=False)
class StoredTable:
    """Public columns of files, conformed as they are read; a table to whatever takes rows in parts.

    Args:
        source: where they are.
        columns: as a model reads them.
        sample: rows drawn at random, conformed, in their order.
        types: of the columns of a CSV file, as Arrow finds them in the sample.
        num_rows: how many rows there are in all.
        strays: whether cells that are no number, in columns of numbers, are missing ones; else they are refused.
    """

    source: Source = field(repr=False)
    columns: tuple[Column, ...] = field(repr=False)
    sample: pa.Table = field(repr=False)
    types: dict[str, pa.DataType] = field(repr=False)
    num_rows: int
    strays: bool = True

    def __len__(self) -> int:
        return self.num_rows

    @property
    def shape(self) -> tuple[int, int]:
        """Return rows and columns."""
        return self.num_rows, self.sample.num_columns

    @property
    def column_names(self) -> list[str]:
        """Return the names of the columns as they are read."""
        return list(self.sample.column_names)

    def parts(self) -> Iterator[pa.Table]:
        """Yield all rows in order, some ten thousand at a time."""
        names = [column.name for column in self.columns]
        for part in self.source.batches(names, self.types):
            yield conformed(part, self.columns, strays=self.strays)

    def read(self) -> pa.Table:
        """Return the whole table, in memory: for what cannot do with parts."""
        return pa.concat_tables(self.parts())


def read_like(
    path: Path, columns: Sequence[Column], delimiter: str | None = None, keep: Sequence[str] = ()
) -> tuple[pa.Table | StoredTable, pa.Table]:
    """Return the columns that a model was trained on, and those to `keep` as they are, as `columns.read_like` does.

    Those of a big table stay where they are.
    """
    source = open_table(path, delimiter)
    rows = source.lines(MANY_CELLS) if isinstance(source, CsvTable) else source.num_rows
    if not is_big(rows, len(columns)):
        return columns_like(path, columns, delimiter, keep)
    check_like(path, source.names, columns, keep)
    names, written = [column.name for column in columns], [column.name for column in columns if column.as_text]
    sample, types, rows = read_sample(source, names, written, _FEW_ROWS)
    found = StoredTable(source, tuple(columns), conformed(sample, columns), types, rows, strays=False)
    return found, source.read(list(keep), list(keep)) if keep else pa.table({})


def some_of(features: Any) -> Any:
    """Return rows of which a mean is as good as that of all: the sample of a stored table, and any other whole."""
    return features.sample if isinstance(features, StoredTable) else features


def whole_of(features: Any) -> Any:
    """Return all rows in memory: a stored table is read, and anything else is there already."""
    return features.read() if isinstance(features, StoredTable) else features


def drawn(
    batches: Iterator[pa.Table], most: int, seed: int = 0, report: Callable[[int], None] = lambda _: None
) -> tuple[pa.Table, int]:
    """Return rows drawn at random from a table that comes in batches, and how many there are in all.

    Every row gets a random number, by its place and the public seed, and those with the least numbers are kept: so the
    sample does not depend on how the batches are cut.

    >>> batches = [pa.table({"row": range(start, start + 40)}) for start in (0, 40, 80)]
    >>> sample, rows = drawn(iter(batches), 50)
    >>> sample.num_rows, rows, sample["row"].to_pylist() == sorted(sample["row"].to_pylist())
    (50, 120, True)
    """
    chance = np.random.default_rng(seed)
    kept: list[tuple[pa.Table, npt.NDArray[np.float64]]] = []
    limit, rows, held = 1.0, 0, 0
    for batch in batches:
        numbers = chance.random(len(batch))
        rows += len(batch)
        report(rows)
        kept.append(_below(batch, numbers, limit))
        held += len(kept[-1][0])
        if held > 2 * most:
            limit = float(np.partition(np.concatenate([one for _, one in kept]), most)[most])
            kept = [_below(*one, limit) for one in kept]
            held = sum(len(table) for table, _ in kept)
    if held > most:
        limit = float(np.partition(np.concatenate([one for _, one in kept]), most)[most])
        kept = [_below(*one, limit) for one in kept]
    return pa.concat_tables([table for table, _ in kept]), rows


def _below(table: pa.Table, numbers: npt.NDArray[np.float64], limit: float) -> tuple[pa.Table, npt.NDArray[np.float64]]:
    chosen = np.flatnonzero(numbers < limit)
    # Strings that are taken would otherwise keep all others in memory.
    return table.take(pa.array(chosen)).combine_chunks(), numbers[chosen]


def read_sample(
    source: Source,
    names: Sequence[str],
    as_text: Sequence[str] = (),
    most: int | None = None,
    report: Callable[[int], None] = lambda _: None,
) -> tuple[pa.Table, dict[str, pa.DataType], int]:
    """Return rows drawn at random with the types that they have, the types of a CSV file's columns, and how many rows.

    What types the columns of a CSV file have, Arrow finds in the sample; those of `as_text` stay text. `report` gets
    how many rows were read so far.
    """
    sample, rows = drawn(source.batches(list(names), None), most or SAMPLE_ROWS, report=report)
    if not isinstance(source, CsvTable) or not rows:
        return sample, {}, rows
    found = typed(sample, as_text)
    return found, {field.name: field.type for field in found.schema}, rows


def is_big(rows: int, columns: int) -> bool:
    """Return whether a table of so many rows and columns is left where it is."""
    return rows > SAMPLE_ROWS and rows * columns > MANY_CELLS
