"""A label column in Arrow: from values to class numbers, and from private responses back to values."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from labeldp.data.arrow import MINUS_ONE, ZERO, of_bytes, of_numbers, pc, to_numbers
from labeldp.data.request import Codes, Request, TableError
from labeldp.releases import IntArray


@lru_cache(maxsize=8)
def class_values(classes: tuple[str, ...], kind: pa.DataType) -> Any:
    """The declared classes as values of a label column of this type (of its values, for a dictionary)."""
    plain = _plain_type(kind)
    _check_type(plain)
    if types.is_dictionary(kind) and len(classes) - 1 > np.iinfo(kind.index_type.to_pandas_dtype()).max:
        raise TableError(f"label: a column of type {kind} cannot hold {len(classes)} classes; store it as plain values")
    values = pa.concat_arrays([_cast(name, plain) for name in classes])
    if len(pc.unique(_comparable(values))) < len(values):
        raise TableError(f"classes: two of the names are the same value of type {plain}; declare each class once")
    return values


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if types.is_dictionary(kind) else kind


def _check_type(kind: pa.DataType) -> None:
    if _is_text(kind) or types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return
    raise TableError(f"label: the column has type {kind}; labels must be text, whole numbers, floats or booleans")


def _is_text(kind: pa.DataType) -> bool:
    texts = {
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
    }
    return kind in texts


def _cast(name: str, kind: pa.DataType) -> Any:
    try:
        # Arrow parses text only into its larger float types.
        wide = pa.float64() if types.is_floating(kind) else kind
        value = of_bytes([name.encode()]).cast(pa.string()).cast(wide).cast(kind)
    except (pa.ArrowException, ValueError):
        raise TableError(f"classes: {name!r} is not a value of type {kind}, the type of the label column") from None
    if types.is_floating(kind) and not np.isfinite(value[0].as_py()):
        raise TableError(f"classes: {name!r} is not a finite number; a label that is missing has no class")
    return value


def _comparable(values: Any) -> Any:
    """Return values in a type that Arrow can search: one text type, and floats without a negative zero."""
    kind = values.type
    if _is_text(kind):
        return values.cast(pa.large_binary())
    if types.is_floating(kind):
        return pc.add(values.cast(pa.float64()), ZERO)
    return values


def encode(column: Any, kind: pa.DataType, classes: tuple[str, ...]) -> tuple[Codes, int]:
    """Class numbers of a column, −1 where undeclared or missing, and how many are missing."""
    plain = column.cast(_plain_type(kind)) if types.is_dictionary(kind) else column
    values = _comparable(plain)
    found = pc.index_in(values, value_set=_comparable(class_values(classes, kind)))
    missing = pc.is_null(values, nan_is_null=True)
    return to_numbers(pc.coalesce(found, MINUS_ONE), np.int32).astype(np.int64), pc.sum(missing).as_py() or 0


def response_type(kind: pa.DataType, request: Request) -> pa.DataType:
    """The type of the private column: the label's own for one class per row, else K small integers."""
    if request.is_vector:
        value = pa.uint8() if request.mechanism == "bit-flip" else pa.uint16()
        return pa.list_(value, len(request.classes))
    return kind


def decode(responses: IntArray, kind: pa.DataType, request: Request) -> Any:
    """Return private responses as a column of `response_type`."""
    if request.is_vector:
        flat = of_numbers(responses.reshape(-1)).cast(response_type(kind, request).value_type)
        return pa.FixedSizeListArray.from_arrays(flat, len(request.classes))
    values = class_values(request.classes, kind)
    if types.is_dictionary(kind):
        # All declared classes in declared order and nothing else: what the old dictionary held is private.
        indices = of_numbers(responses).cast(kind.index_type)
        return pa.DictionaryArray.from_arrays(indices, values, ordered=kind.ordered)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # Arrow cannot pick from views.
        return values.cast(pa.large_binary()).take(of_numbers(responses)).cast(kind)
    return values.take(of_numbers(responses))


def responses_of(column: Any, request: Request) -> IntArray:
    """Return the private responses in a column that `decode` made."""
    changed = TableError(f"label: column {request.label!r} holds values that privatize never writes; it was changed")
    if column.null_count:
        raise changed
    if request.is_vector:
        flat = column.combine_chunks().flatten()
        dtype = np.uint8 if flat.type == pa.uint8() else np.uint16
        return to_numbers(flat, dtype).reshape(-1, len(request.classes))
    codes, _ = encode(column, column.type, request.classes)
    if (codes < 0).any():
        raise changed
    return codes.astype(np.min_scalar_type(len(request.classes) - 1))


# Arrow's own reader of numbers would quote in its message what it cannot read.
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def numbers(column: Any, label: str) -> npt.NDArray[np.float64]:
    """Return a column of numbers, or of text that spells them, as floats; NaN where there is none."""
    kind = column.type
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        trimmed = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
        # A plus sign is not read, and what is no number must not get as far as the reader.
        plain = pc.replace_substring_regex(trimmed, r"^\+", "")
        good = pc.fill_null(pc.match_substring_regex(trimmed, _NUMBER), False)
        column = pc.if_else(good, plain, pa.scalar(None, pa.large_string()))
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind)):
        raise TableError(f"the label {label!r} has type {kind}, which is no number; convert the column first")
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
