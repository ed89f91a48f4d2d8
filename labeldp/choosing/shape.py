"""Find the public size of a table, rows and public numbers per row; the label column is named and never read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
        num_rows, widths = _csv_size(path, label, checked_delimiter(delimiter, path))
    elif delimiter is not None:
        raise TableError(f"delimiter={delimiter!r} has no meaning for Parquet; leave it out")
    else:
        num_rows, widths = _parquet_size(path, label)
    if num_rows == 0 or not widths:
        raise TableError(f"the table has {num_rows} rows and {len(widths)} public columns; there is nothing to plan")
    return Shape(num_rows, len(widths), sum(widths))


def _parquet_size(path: Path, label: str) -> tuple[int, list[int]]:
    """Return rows, and numbers per row of each public column, by the types in the footer."""
    try:
        file = parquet.opened(path)
    except (pa.ArrowException, UnicodeError) as error:
        # Its message may quote what it stumbled over.
        kind = type(error).__name__
    else:
        with file:
            schema, widths = file.schema_arrow, []
            check_column(label, schema.names)
            for column in (schema.field(name).type for name in schema.names if name != label):
                plain = pa.types.is_integer(column) or pa.types.is_floating(column) or pa.types.is_decimal(column)
                plain = plain or pa.types.is_boolean(column) or pa.types.is_temporal(column)
                listed = pa.types.is_fixed_size_list(column)
                widths.append(column.list_size if listed else 1 if plain else _PER_CATEGORY)
            return file.metadata.num_rows, widths
    raise TableError(f"source={str(path)!r} cannot be read as Parquet ({kind}); is it a Parquet or CSV file?")


def _csv_size(path: Path, label: str, separator: bytes) -> tuple[int, list[int]]:
    """Return rows, and numbers per row of each public column, by the first row: one for a number, else a category."""
    with path.open("rb") as file:
        names = [cell.decode(errors="replace") for cell in read_header(file, separator).cells]
        check_column(label, names)
        rows, widths = 0, [1] * (len(names) - 1)
        for part in scan(file, separator, len(names)):
            if not isinstance(part, Records):
                continue
            if rows == 0 and len(part):
                public = [part.spans(place) for place in range(len(names)) if place != names.index(label)]
                first = [part.data[starts[0] : stops[0]] for starts, stops in public]
                widths = [1 if _is_number(cell) else _PER_CATEGORY for cell in first]
            rows += len(part)
        return rows, widths


def _is_number(cell: bytes) -> bool:
    try:
        float(cell or b"0")
    except ValueError:
        return False
    return True


def check_column(label: str, names: list[str]) -> None:
    """Raise TableError unless the table has one column of this name."""
    if names.count(label) != 1:
        raise TableError(f"label: there is no single column {label!r}; {column_advice(label, names)}")
