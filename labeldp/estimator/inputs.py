"""Bring public features, however they are held, to the two arrays that `labeldp.features.tables.Table` takes.

NumPy arrays, lists, pandas, polars and Arrow tables, torch tensors. A column is numeric or categorical once and for
all, as it was when the model was fitted; numbers that are missing stay missing, and so do categories.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.data.arrays import is_missing

# What a missing category is called: a value like any other.
MISSING = "(missing)"
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_DAY = 86_400.0


class ColumnError(ValueError):
    """Features that cannot be read, or are not like those the model was fitted to."""


@dataclass(frozen=True)
class Layout:
    """Which columns are numbers, in the order in which they come; the others are categories."""

    numeric: tuple[bool, ...]

    def split(self, columns: list[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any]]:
        """Return numbers, (n, a), and categories, (n, b)."""
        rows = len(columns[0]) if columns else 0
        numbers = [column for column, number in zip(columns, self.numeric, strict=True) if number]
        texts = [column for column, number in zip(columns, self.numeric, strict=True) if not number]
        return (
            np.stack(numbers, axis=1) if numbers else np.empty((rows, 0)),
            np.stack(texts, axis=1) if texts else np.empty((rows, 0), dtype="U1"),
        )


def is_frame(inputs: object) -> bool:
    """Return whether it is a table with named columns: pandas, polars or Arrow; none is imported to find out."""
    module = type(inputs).__module__.split(".")[0]
    return module in {"pandas", "polars", "pyarrow"} and hasattr(inputs, "columns") and not hasattr(inputs, "name")


def names_of(inputs: Any) -> list[Any]:
    """Return the names of a frame's columns."""
    # An Arrow table's `columns` are the data.
    return list(inputs.column_names if hasattr(inputs, "column_names") else inputs.columns)


def comes_in_parts(inputs: Any) -> bool:
    """Return whether some rows are read as all would be: types are the columns', not found in their values."""
    if isinstance(inputs, np.ndarray):
        return inputs.ndim == 2 and inputs.dtype.kind in "biuf"
    # A pandas column of objects may hold anything.
    return is_frame(inputs) and not any(str(kind).lower() == "object" for kind in getattr(inputs, "dtypes", ()))


def some_rows(inputs: Any, rows: npt.NDArray[np.intp]) -> Any:
    """Return these rows of a table or array."""
    return inputs.take(rows) if is_frame(inputs) and hasattr(inputs, "take") else inputs[rows]


def parts_of(inputs: Any, at_once: int) -> Iterator[Any]:
    """Yield all rows, so many at a time; none is copied."""
    for start in range(0, len(inputs), at_once):
        if hasattr(inputs, "slice"):
            yield inputs.slice(start, at_once)
        else:
            yield (inputs.iloc if hasattr(inputs, "iloc") else inputs)[start : start + at_once]


def read_frame(inputs: Any) -> list[npt.NDArray[Any]]:
    """Return one array per column: float64 for numbers, text for categories."""
    return [_from_arrow(str(name), _arrow(inputs, name)) for name in names_of(inputs)]


def read_array(inputs: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Return one array per column of a plain array (n, p); a column of objects is numeric where all of it is."""
    if inputs.dtype.kind in "biuf":
        _refuse_infinite(inputs)
        return list(inputs.astype(np.float64).T)
    return [_from_objects(number, column) for number, column in enumerate(inputs.astype(object).T)]


def layout_of(columns: list[npt.NDArray[Any]]) -> Layout:
    """Return which of these columns are numbers."""
    return Layout(tuple(_is_numeric(column) for column in columns))


def like(layout: Layout, columns: list[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Return the columns as the layout has them; ColumnError where text stands in place of numbers."""
    both = zip(columns, layout.numeric, strict=True)
    return [
        column if numeric == _is_numeric(column) else _turned(n, column) for n, (column, numeric) in enumerate(both)
    ]


def _is_numeric(column: npt.NDArray[Any]) -> bool:
    return column.dtype.kind == "f"


def _turned(number: int, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Turn numbers into text (postcodes may happen to be all digits), and text into numbers only if all is missing."""
    if _is_numeric(column):
        texts = (str(int(value)) if value == np.floor(value) else str(value) for value in column.tolist())
        return np.array([MISSING if text == "nan" else text for text in texts])
    # All missing: a frame cannot tell what it would have been.
    if (column == MISSING).all():
        return np.full(len(column), np.nan)
    raise ColumnError(f"X: column {number} holds text; it held numbers when the model was fitted")


def _arrow(inputs: Any, name: Any) -> Any:
    import pyarrow as pa

    column = inputs[name]
    if type(column).__module__.startswith("pandas"):
        try:
            return pa.array(column, from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return pa.array([None if is_missing(value) else str(value) for value in column], pa.string())
    if hasattr(column, "to_arrow"):
        column = column.to_arrow()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _from_arrow(name: str, column: Any) -> npt.NDArray[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_temporal(kind):
        return _days(name, column)
    if (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
    ):
        numbers = pc.fill_null(pc.cast(column, pa.float64(), safe=False), float("nan")).to_numpy(zero_copy_only=False)
        _refuse_infinite(numbers, name)
        return np.array(numbers, dtype=np.float64)
    if not (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or str(kind) == "string_view"
        or pa.types.is_null(kind)
    ):
        raise ColumnError(f"X: column {name!r} holds {kind}; give numbers, text, dates or true/false")
    texts = pc.fill_null(pc.cast(column, pa.string()), MISSING)
    return np.asarray(texts.to_pylist(), dtype=str)


def _days(name: str, column: Any) -> npt.NDArray[np.float64]:
    """Return dates, durations and times of day as days."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        whole, scale = pc.cast(column, pa.int32()), (1.0 if pa.types.is_date32(kind) else _SECONDS[kind.unit] / _DAY)
    elif pa.types.is_interval(kind):
        raise ColumnError(f"X: column {name!r} holds {kind}; give numbers, text, dates or true/false")
    else:
        unit = "ms" if pa.types.is_date64(kind) else kind.unit
        whole, scale = pc.cast(column, pa.int64()), _SECONDS[unit] / _DAY
    numbers = pc.fill_null(pc.cast(whole, pa.float64(), safe=False), float("nan")).to_numpy(zero_copy_only=False)
    return np.asarray(numbers, dtype=np.float64) * scale


def _from_objects(number: int, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    plain = [value for value in column if not is_missing(value)]
    if all(
        isinstance(value, (bool, int, float, np.generic)) and not isinstance(value, (str, bytes)) for value in plain
    ):
        numbers = np.array([np.nan if is_missing(value) else float(value) for value in column], dtype=np.float64)
        _refuse_infinite(numbers, number)
        return numbers
    if not all(isinstance(value, str) for value in plain):
        odd = next(type(value).__name__ for value in plain if not isinstance(value, str))
        raise ColumnError(f"X: column {number} mixes text with {odd}; an argument must be a string or a number")
    return np.array([MISSING if is_missing(value) else value for value in column], dtype=str)


def _refuse_infinite(numbers: npt.NDArray[Any], name: object = None) -> None:
    if numbers.dtype.kind == "f" and np.isinf(numbers).any():
        where = "X" if name is None else f"X: column {name!r}"
        raise ColumnError(f"{where} contains infinity or a value too large; cap it, and leave missing numbers as NaN")
