"""Public columns of a table, brought to the few kinds a model reads, the same way for training and for predicting.

    number     floats; a missing one is NaN                        (numbers, decimals, dates and times, booleans)
    category   text; a missing one is the empty text               (text, dictionaries)
    vector     several numbers: a list of fixed size               (embeddings)

A model keeps names and kinds, so that the columns of a new table are found by name, in any order, among others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from labeldp.data import parquet
from labeldp.data.arrow import pc
from labeldp.data.csv import checked_delimiter, read_header
from labeldp.data.request import TableError, column_advice, listed

TEXT, PARQUET = (".csv", ".tsv", ".txt"), (".parquet", ".pq")


@dataclass(frozen=True)
class Column:
    """A public column by name and kind; `size` numbers for a vector."""

    name: str
    kind: str
    size: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"name": self.name, "kind": self.kind, "size": self.size}


def column_names(path: Path, delimiter: str | None = None) -> list[str]:
    """Return the names of all columns of a Parquet or CSV file, from its footer or header."""
    kind = path.suffix.lower()
    if not path.is_file():
        raise TableError(f"{str(path)!r} is not a file; give the path of one Parquet or CSV file")
    if kind not in TEXT + PARQUET:
        raise TableError(f"{str(path)!r} has no known format; its name must end in {', '.join(PARQUET + TEXT)}")
    if kind in PARQUET:
        if delimiter is not None:
            raise TableError(f"delimiter={delimiter!r} has no meaning for Parquet; leave it out")
        with parquet.reading(path), parquet.opened(path) as file:
            return list(file.schema_arrow.names)
    with path.open("rb") as file:
        cells = read_header(file, checked_delimiter(delimiter, path)).cells
    try:
        return [cell.decode("utf-8") for cell in cells]
    except UnicodeDecodeError:
        raise TableError(f"the header of {str(path)!r} is not UTF-8; save the file as UTF-8") from None


def read_columns(path: Path, names: Sequence[str], delimiter: str | None, as_text: Sequence[str] = ()) -> pa.Table:
    """Read these columns and no others; those of `as_text` are not guessed to be numbers."""
    if path.suffix.lower() in PARQUET:
        with parquet.reading(path), parquet.opened(path) as file:
            return file.read(columns=list(names))
    import pyarrow.csv as pacsv

    separator = checked_delimiter(delimiter, path)
    parse = pacsv.ParseOptions(delimiter=separator.decode("ascii"), newlines_in_values=True)
    texts = {name: pa.string() for name in as_text if name in names}
    convert = pacsv.ConvertOptions(include_columns=list(names), column_types=texts)
    try:
        # Arrow's own block of 1 MiB would refuse a longer record.
        return pacsv.read_csv(path, pacsv.ReadOptions(block_size=16 << 20), parse, convert)
    except (pa.ArrowException, UnicodeError):
        # Its message may quote a whole line, label included.
        raise TableError(
            f"{path.name} cannot be read as CSV; check that every line has as many fields as the header, give the "
            "--delimiter, and save it as UTF-8"
        ) from None


def read_public(
    path: Path, without: Sequence[str] = (), delimiter: str | None = None, as_text: Sequence[str] = ()
) -> pa.Table:
    """Read a Parquet or CSV file but for the columns `without`, which must be there and stay unread."""
    names = column_names(path, delimiter)
    missing = [name for name in without if names.count(name) != 1]
    if missing:
        advice = column_advice(missing[0], names)
        raise TableError(f"there is no single column {missing[0]!r} in {path.name}; {advice}")
    kept = [name for name in names if name not in without]
    if not kept:
        raise TableError(f"{path.name} has no column beside {listed(without)}; give a table with public features")
    table = read_columns(path, kept, delimiter, as_text)
    if not table.num_rows:
        raise TableError(f"{path.name} has no rows; give a table with some")
    return table


def read_like(
    path: Path, columns: Sequence[Column], delimiter: str | None = None, keep: Sequence[str] = ()
) -> tuple[pa.Table, pa.Table]:
    """Read the columns that a model was trained on, conformed, and those to `keep` as they are; no others are read."""
    names = column_names(path, delimiter)
    for name in keep:
        if name not in names:
            raise TableError(f"--keep: there is no column {name!r} in {path}; check the spelling (case matters)")
    _check_present(columns, names)
    texts = [column.name for column in columns if column.kind == "category"]
    wanted = dict.fromkeys([*(column.name for column in columns), *keep])
    table = read_columns(path, list(wanted), delimiter, as_text=(*texts, *keep))
    if not table.num_rows:
        raise TableError(f"{path.name} has no rows; give a table with some")
    return conformed(table, columns), table.select(list(keep))


def columns_of(table: pa.Table) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """Return the columns a model can learn from, and the names of those left out because all values are the same."""
    found = [_column(field, table.column(place)) for place, field in enumerate(table.schema)]
    kept = tuple(column for column in found if column.kind != "constant")
    if not kept:
        raise TableError(
            f"no public column says anything: {listed(table.column_names) or 'there is none'} "
            "each have one value in all rows; give at least one feature that varies"
        )
    return kept, tuple(column.name for column in found if column.kind == "constant")


def conformed(table: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Return these columns of a table, in this order: float64 (NaN where missing) and text ('' where missing)."""
    _check_present(columns, table.column_names)
    return pa.table(dict(part for column in columns for part in _values(table.column(column.name), column)))


def _check_present(columns: Sequence[Column], names: list[str]) -> None:
    missing = [column.name for column in columns if names.count(column.name) != 1]
    if missing:
        raise TableError(
            f"the table lacks {listed(missing)}, which the model was trained on, among {len(names)} columns. Give a "
            "table with the same columns, named alike (case matters)"
        )


def _column(field: pa.Field, values: Any) -> Column:
    kind = field.type
    if types.is_fixed_size_list(kind) and _is_number(kind.value_type):
        return Column(field.name, "vector", kind.list_size)
    if types.is_binary(kind) or types.is_large_binary(kind):
        raise TableError(
            f"column {field.name!r} is not UTF-8 text; save the file as UTF-8, or leave the column out with --drop"
        )
    if not (types.is_null(kind) or _is_number(kind) or _is_text(kind)):
        raise TableError(f"column {field.name!r} has type {kind}, which no model reads; leave it out with --drop")
    if types.is_dictionary(kind):
        values = values.cast(kind.value_type)
    if len(pc.unique(values)) < 2:
        return Column(field.name, "constant")
    return Column(field.name, "category" if _is_text(kind) else "number")


def _values(values: Any, column: Column) -> Iterator[tuple[str, Any]]:
    """Name and values of what one column becomes: itself, or one column for each number of a vector."""
    name, kind = column.name, values.type
    if column.kind == "number":
        yield name, pa.array(_numbers(values, name))
    elif column.kind == "category":
        if not (_is_text(kind) or _is_number(kind) or types.is_null(kind)):
            raise TableError(f"column {name!r} has type {kind}, but the model was trained on text; check the table")
        yield name, pc.fill_null(values.cast(pa.string()), "")
    else:
        if not types.is_fixed_size_list(kind) or kind.list_size != column.size or values.null_count:
            raise TableError(f"column {name!r} must hold lists of {column.size} numbers, none missing; check the table")
        flat = _numbers(pa.chunked_array([values.combine_chunks().flatten()]), name).reshape(-1, column.size)
        yield from ((f"{name}[{i}]", pa.array(np.ascontiguousarray(flat[:, i]))) for i in range(column.size))


def _numbers(values: Any, name: str) -> np.ndarray:
    try:
        if types.is_temporal(values.type) and not types.is_duration(values.type):
            # Seconds since 1970, or since midnight.
            unit = pa.time64("us") if types.is_time(values.type) else pa.timestamp("us")
            values = pc.divide(values.cast(unit).cast(pa.int64()).cast(pa.float64()), pa.scalar(1e6))
        if types.is_boolean(values.type):
            values = values.cast(pa.int8())
        found = np.asarray(values.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    except (pa.ArrowException, ValueError):
        found = None
    if found is None:
        raise TableError(f"column {name!r} has type {values.type}, but the model reads numbers there; check the table")
    if np.isinf(found).any():
        raise TableError(f"column {name!r} has infinite values; cap them, or leave cells empty where nothing is known")
    return found


def _is_number(kind: Any) -> bool:
    plain = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)
    return plain or types.is_date(kind) or types.is_timestamp(kind) or types.is_time(kind)


def _is_text(kind: Any) -> bool:
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
