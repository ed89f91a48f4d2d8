"""Find the public size of a table, rows and public numbers per row; the label column is named and never read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from labeldp.data import parquet
from labeldp.data.csv import Records, checked_delimiter, read_header, scan
from labeldp.data.request import TableError, column_advice

# A column of categories becomes several numbers, one-hot or hashed; how many is guessed rather than counted.
_PER_CATEGORY = 16


@dataclass(frozen=True)
class Shape:
    """How many rows, how many public columns, and about how many numbers per row they make."""

    num_rows: int
    columns: int
    feature_dim: int


def public_shape(path: Path, label: str, delimiter: str | None = None) -> Shape:
    """Return the size of a Parquet file from its footer, of a CSV file by counting its records.

    >>> from labeldp.data.files import adult_path
    >>> public_shape(adult_path(), "income")
    Shape(num_rows=32561, columns=14, feature_dim=134)
    """
    if path.suffix.lower() in (".csv", ".tsv", ".txt"):
        return _csv_shape(path, label, delimiter)
    if delimiter is not None:
        raise TableError(f"delimiter={delimiter!r} has no meaning for Parquet; leave it out")
    return _parquet_shape(path, label)


def _parquet_shape(path: Path, label: str) -> Shape:
    try:
        file = parquet.opened(path)
    except (pa.ArrowException, UnicodeError) as error:
        # Its message may quote what it stumbled over.
        kind = type(error).__name__
    else:
        with file:
            schema = file.schema_arrow
            _check_there(label, schema.names)
            widths = [_numbers(schema.field(name).type) for name in schema.names if name != label]
            return _shape(file.metadata.num_rows, widths)
    raise TableError(f"source={str(path)!r} cannot be read as Parquet ({kind}); is it a Parquet or CSV file?")


def _numbers(kind: Any) -> int:
    if pa.types.is_fixed_size_list(kind):
        return kind.list_size
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return 1 if plain or pa.types.is_boolean(kind) or pa.types.is_temporal(kind) else _PER_CATEGORY


def _csv_shape(path: Path, label: str, delimiter: str | None) -> Shape:
    separator = checked_delimiter(delimiter, path)
    with path.open("rb") as file:
        header = read_header(file, separator)
        names = [cell.decode(errors="replace") for cell in header.cells]
        _check_there(label, names)
        rows, widths = 0, [1] * (len(names) - 1)
        for part in scan(file, separator, len(names)):
            if not isinstance(part, Records):
                continue
            if rows == 0 and len(part):
                widths = [_cell_numbers(part, place) for place in range(len(names)) if place != names.index(label)]
            rows += len(part)
        return _shape(rows, widths)


def _cell_numbers(records: Records, column: int) -> int:
    """Return how many numbers a column makes, by its first row: one for a number, more for a category."""
    starts, stops = records.spans(column)
    try:
        float(records.data[starts[0] : stops[0]] or b"0")
    except ValueError:
        return _PER_CATEGORY
    return 1


def _shape(num_rows: int, widths: list[int]) -> Shape:
    if num_rows == 0 or not widths:
        raise TableError(f"the table has {num_rows} rows and {len(widths)} public columns; there is nothing to plan")
    return Shape(num_rows, len(widths), sum(widths))


def _check_there(label: str, names: list[str]) -> None:
    if names.count(label) != 1:
        raise TableError(f"label: there is no single column {label!r}; {column_advice(label, names)}")
