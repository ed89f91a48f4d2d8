"""Bring labels, however they are held, to class numbers 0 … K − 1 or to floats, and responses back to their type.

In memory they are a list, an array, a Series or a tensor; in files a column of Arrow. What these functions return is
open: only the door and `privatize` call them. Errors give counts, never values.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
from pyarrow import types

from labeldp.data.request import Codes, Request, TableError
from labeldp.releases import IntArray

# Given instead of a list of classes: those that occur, which are then declared to be public.
OBSERVED = "observed"
# Arrow makes these functions at import time, where no type checker sees them.
pc: Any = pyarrow.compute


# -- in memory -------------------------------------------------------------------------------------------------------


def as_array(labels: Any, name: str) -> npt.NDArray[Any]:
    """Return one label per row, (n,); `name` is who asks, for messages."""
    from sklearn.utils.validation import column_or_1d

    if labels is None:
        raise ValueError(f"{name} requires y to be passed, but the target y is None")
    if hasattr(labels, "detach"):
        labels = labels.detach().cpu().numpy()
    elif type(labels).__module__.startswith("pyarrow"):
        labels = labels.to_pandas().to_numpy()
    elif hasattr(labels, "to_numpy"):
        labels = labels.to_numpy()
    raw = column_or_1d(np.asarray(labels), warn=True)
    if raw.dtype.kind == "c":
        raise ValueError("Complex data not supported: y holds complex numbers; give one class or number per row")
    missing = infinite = 0
    if raw.dtype.kind == "f":
        missing, infinite = int(np.isnan(raw).sum()), int(np.isinf(raw).sum())
    elif raw.dtype.kind == "O":
        missing = sum(is_missing(value) for value in raw)
    if missing or infinite:
        raise ValueError(
            f"Input y contains NaN or infinity: of {len(raw)} labels, {missing} are missing and {infinite} infinite. "
            "Drop or fill them by a rule fixed in advance"
        )
    return raw


def is_missing(value: object) -> bool:
    """Return whether it is None, NaN, pandas.NA or pandas.NaT; the last two are recognised without importing pandas."""
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
        return True
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def as_numbers(labels: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return floats, or raise ValueError: float() must not speak for itself here, it quotes the value."""
    if labels.dtype.kind in "biuf":
        return labels.astype(np.float64)
    if labels.dtype.kind == "O" and all(isinstance(value, (bool, int, float, np.number, Decimal)) for value in labels):
        return np.array([float(value) for value in labels], dtype=np.float64)
    raise ValueError("y holds something else than numbers; give one number per row, or use LabelDPClassifier")


def as_codes(labels: npt.NDArray[Any], classes: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the classes in order and each label's place among them; for OBSERVED they are read off the labels."""
    if isinstance(classes, str) and classes == OBSERVED:
        from sklearn.utils.multiclass import check_classification_targets

        check_classification_targets(labels)
        known, codes = np.unique(labels, return_inverse=True)
    else:
        known = np.sort(checked_classes(classes))
        codes = _places(labels, known)
    if len(known) < 2:
        raise ValueError(
            f"the labels have {len(known)} class; there is nothing to learn. Declare all of them: classes="
        )
    return known, codes.astype(np.int64)


def checked_classes(classes: Any) -> npt.NDArray[Any]:
    """Return the declared list as an array, or raise ValueError."""
    if isinstance(classes, str):
        raise ValueError(f"classes={classes!r} is one text; give a list of them, as in ['no', 'yes']")
    known = np.asarray(list(classes))
    if known.ndim != 1 or known.dtype.kind not in "biufUO" or len(np.unique(known)) != len(known):
        raise ValueError(f"classes={classes!r} is not a list of different classes; give each of them once")
    return known


def declared_by_type(labels: Any) -> list[Any] | None:
    """Return the classes that the type of the labels declares, whichever occur; None where it declares none.

    These are pandas categories, a polars Enum, an Arrow dictionary, and true/false. (A polars Categorical lists what it
    has met.)

    >>> declared_by_type(np.array([True, True]))
    [False, True]
    """
    home = type(labels).__module__.split(".")[0]
    kind: Any = getattr(labels, "dtype", getattr(labels, "type", None))
    if str(kind).lower() in {"bool", "boolean", "torch.bool", "bool[pyarrow]"}:
        return [False, True]
    if home == "pyarrow" and hasattr(kind, "value_type") and hasattr(kind, "index_type"):
        whole = labels.unify_dictionaries().combine_chunks() if hasattr(labels, "chunks") else labels
        return whole.dictionary.to_pylist()
    if (home == "pandas" and hasattr(kind, "categories")) or (home == "polars" and type(kind).__name__ == "Enum"):
        return kind.categories.tolist() if home == "pandas" else kind.categories.to_list()
    return None


def _places(labels: npt.NDArray[Any], known: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return places in a sorted list, or raise ValueError with the number of labels that are not in it."""
    text = known.dtype.kind in "UO"
    if text != (labels.dtype.kind in "UO"):
        kinds = ("text", "numbers") if text else ("numbers", "text")
        raise ValueError(f"classes are {kinds[0]} and the labels {kinds[1]}; give both alike")
    if text:
        place = {str(name): number for number, name in enumerate(known)}
        codes = np.array([place.get(str(label), -1) for label in labels], dtype=np.int64)
    else:
        codes = np.minimum(np.searchsorted(known, labels), len(known) - 1).astype(np.int64)
        codes = np.where(known[codes] == labels, codes, -1)
    strange = int(np.count_nonzero(codes < 0))
    if strange:
        raise ValueError(
            f"{strange} of {len(labels)} labels are not among the {len(known)} declared classes. Which ones is not "
            "shown because it is private; declare all classes, spelt as in the labels"
        )
    return codes


# -- between Arrow and NumPy by way of buffers: `pyarrow.array` and `to_numpy` import pandas where it is installed ---


def arrow_numbers(values: npt.NDArray[Any]) -> Any:
    """Return the same numbers as an Arrow array, without a copy where they lie in a row."""
    flat = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(flat.dtype), len(flat), [None, pa.py_buffer(flat)])


def arrow_bytes(values: Sequence[bytes]) -> Any:
    """Return byte strings as a large binary array."""
    offsets = np.concatenate(([0], np.cumsum([len(value) for value in values]))).astype(np.int64)
    return arrow_pieces(b"".join(values), offsets)


def arrow_pieces(data: bytes, offsets: npt.NDArray[np.int64]) -> Any:
    """Return the pieces of `data` between one offset and the next, as a large binary array that copies nothing."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def numpy_numbers(values: Any, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an Arrow array of this type, which has no nulls, as a NumPy array."""
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if not len(whole):
        return np.empty(0, dtype)
    return np.frombuffer(whole.buffers()[1], dtype, whole.offset + len(whole))[whole.offset :]


def places_in(values: Any, value_set: Any) -> npt.NDArray[np.int64]:
    """Return where each value of an Arrow column stands in a set of values; −1 where it does not."""
    found = pc.coalesce(pc.index_in(values, value_set=value_set), _MINUS_ONE)
    return numpy_numbers(found, np.int32).astype(np.int64)


_MINUS_ONE = arrow_numbers(np.array([-1], np.int32))[0]
_ZERO = arrow_numbers(np.array([0.0]))[0]


# -- columns of Arrow ------------------------------------------------------------------------------------------------

_TEXTS = (
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(),
)  # fmt: skip


@lru_cache(maxsize=8)
def class_values(classes: tuple[str, ...], kind: pa.DataType) -> Any:
    """Return the declared classes as values of a label column of this type (of its values, for a dictionary)."""
    plain = kind.value_type if types.is_dictionary(kind) else kind
    if not (plain in _TEXTS or types.is_boolean(plain) or types.is_integer(plain) or types.is_floating(plain)):
        raise TableError(f"label: the column has type {plain}; labels must be text, whole numbers, floats or booleans")
    if types.is_dictionary(kind) and len(classes) - 1 > np.iinfo(kind.index_type.to_pandas_dtype()).max:
        raise TableError(f"label: a column of type {kind} cannot hold {len(classes)} classes; store it as plain values")
    values = pa.concat_arrays([_class_value(name, plain) for name in classes])
    if len(pc.unique(_comparable(values))) < len(values):
        raise TableError(f"classes: two of the names are the same value of type {plain}; declare each class once")
    return values


def _class_value(name: str, kind: pa.DataType) -> Any:
    try:
        # Arrow parses text only into its larger float types.
        wide = pa.float64() if types.is_floating(kind) else kind
        value = arrow_bytes([name.encode()]).cast(pa.string()).cast(wide).cast(kind)
    except (pa.ArrowException, ValueError):
        raise TableError(f"classes: {name!r} is not a value of type {kind}, the type of the label column") from None
    if types.is_floating(kind) and not np.isfinite(value[0].as_py()):
        raise TableError(f"classes: {name!r} is not a finite number; a label that is missing has no class")
    return value


def _comparable(values: Any) -> Any:
    """Return values in a type that Arrow can search: one text type, and floats without a negative zero."""
    if values.type in _TEXTS:
        return values.cast(pa.large_binary())
    return pc.add(values.cast(pa.float64()), _ZERO) if types.is_floating(values.type) else values


def column_codes(column: Any, classes: tuple[str, ...]) -> tuple[Codes, int]:
    """Return the class numbers of a column, −1 where undeclared or missing, and how many are missing."""
    kind = column.type
    values = _comparable(column.cast(kind.value_type) if types.is_dictionary(kind) else column)
    missing = pc.sum(pc.is_null(values, nan_is_null=True)).as_py() or 0
    return places_in(values, _comparable(class_values(classes, kind))), missing


# Arrow's own reader of numbers would quote in its message what it cannot read.
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def column_numbers(column: Any, label: str) -> npt.NDArray[np.float64]:
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


# -- private responses as a column -----------------------------------------------------------------------------------


def response_type(kind: pa.DataType, request: Request) -> pa.DataType:
    """Return the type of the private column: the label's own for one class per row, else K small integers."""
    if request.is_vector:
        value = pa.uint8() if request.mechanism == "bit-flip" else pa.uint16()
        return pa.list_(value, len(request.classes))
    return kind


def response_column(responses: IntArray, kind: pa.DataType, request: Request) -> Any:
    """Return private responses as a column of `response_type`."""
    if request.is_vector:
        flat = arrow_numbers(responses.reshape(-1)).cast(response_type(kind, request).value_type)
        return pa.FixedSizeListArray.from_arrays(flat, len(request.classes))
    values = class_values(request.classes, kind)
    if types.is_dictionary(kind):
        # All declared classes in declared order and nothing else: what the old dictionary held is private.
        indices = arrow_numbers(responses).cast(kind.index_type)
        return pa.DictionaryArray.from_arrays(indices, values, ordered=kind.ordered)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # Arrow cannot pick from views.
        return values.cast(pa.large_binary()).take(arrow_numbers(responses)).cast(kind)
    return values.take(arrow_numbers(responses))


def column_responses(column: Any, request: Request) -> IntArray:
    """Return the private responses in a column that `response_column` made."""
    if request.is_vector and not column.null_count:
        flat = column.combine_chunks().flatten()
        dtype = np.uint8 if flat.type == pa.uint8() else np.uint16
        return numpy_numbers(flat, dtype).reshape(-1, len(request.classes))
    codes = None if column.null_count else column_codes(column, request.classes)[0]
    if codes is None or (codes < 0).any():
        raise TableError(f"label: column {request.label!r} holds values that privatize never writes; it was changed")
    return codes.astype(np.min_scalar_type(len(request.classes) - 1))
