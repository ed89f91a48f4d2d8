"""Check labels and copy them before they are sealed, and name them by a keyed hash; errors give counts, never values.

Each label becomes a whole number by itself, so that whatever happens here is a function of one label per row: a mistake
would be a wrong label, and no claim about it less true.

By its name a budget store knows a column again without keeping it. The name is HMAC-SHA256 under a secret key. Without
the key it tells nothing, not even to somebody who can guess the whole column; with it, a guess of the *whole* column
can be confirmed. It is not differentially private: the key is kept like the labels, and the name stays in the store of
their owner.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from labeldp.core.protocols import LabelArray

_BLOCK = 1 << 20
# Of so few rows, repeats say nothing about what the values are.
_FEW_ROWS = 20
# Not the full type: "<U17" would tell how long the longest label is.
_KINDS = {"U": "text", "S": "bytes", "O": "mixed objects", "M": "dates", "c": "complex numbers"}


def sealed_labels(labels: npt.ArrayLike, num_classes: int) -> LabelArray:
    """Check labels and copy them into the smallest unsigned type that holds `num_classes` classes, read-only."""
    count = cast("Any", num_classes)
    if not isinstance(count, (int, np.integer)) or isinstance(count, bool) or count < 1:
        raise ValueError(
            f"num_classes={num_classes!r} is not a number of classes; declare it (≥ 1). It is never read off "
            "the labels: which classes occur is itself private"
        )
    refuse_masked(labels)
    raw = np.asarray(labels)
    if raw.ndim != 1:
        raise ValueError(f"labels have shape {raw.shape}; give one label per row, shape (n,)")
    values, missing = _as_numbers(raw)
    whole = values[~missing]
    found = {
        "missing": np.count_nonzero(missing),
        "not whole numbers": np.count_nonzero(whole != np.floor(whole)),
        "out of range": np.count_nonzero((whole < 0) | (whole >= num_classes)),
    }
    wrong = ", ".join(f"{count} {what}" for what, count in found.items() if count)
    if wrong:
        raise ValueError(
            f"labels cannot be sealed: of {raw.size} labels, {wrong} (expected 0 … {num_classes - 1}). "
            "Their values and places are not shown because they are private"
        )
    sealed = raw.astype(np.min_scalar_type(int(num_classes) - 1))
    sealed.setflags(write=False)
    return sealed


def row_numbers(rows: npt.ArrayLike, num_rows: int) -> npt.NDArray[np.integer[Any]]:
    """Return row numbers as an array, those of a mask where one is given; the vault checks range and repeats.

    >>> row_numbers([False, True, True], 3)
    array([1, 2])
    """
    index = np.asarray(rows)
    if index.dtype == np.bool_:
        if index.shape != (num_rows,):
            raise ValueError(f"rows is a mask of shape {index.shape}; it must be ({num_rows},)")
        return np.flatnonzero(index)
    if index.ndim != 1 or (index.size and index.dtype.kind not in "iu"):
        raise ValueError(f"rows has shape {index.shape} and type {index.dtype}; give a list of row numbers or a mask")
    return index


def refuse_masked(labels: object) -> None:
    """Raise ValueError for masked labels: numpy would hand out what lies under the mask as if it were a label."""
    masked = np.count_nonzero(cast("Any", labels).mask) if isinstance(labels, np.ma.MaskedArray) else 0
    if masked:
        raise ValueError(f"labels cannot be sealed: {int(masked)} of them are masked, so missing")


def _as_numbers(raw: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return the labels as a numeric array, and which of them are missing."""
    if raw.dtype.kind in "biuf":
        return raw, ~np.isfinite(raw)
    if raw.dtype.kind == "O":
        # Never let float() speak for itself here: its message quotes the value.
        missing = np.array([_is_missing(value) for value in raw], dtype=bool)
        if all(isinstance(value, (bool, int, np.integer, float, np.floating)) for value in raw[~missing]):
            return np.where(missing, 0, raw).astype(np.float64), missing
    raise ValueError(
        f"labels are {_KINDS.get(raw.dtype.kind, 'not numbers')}; encode them as integers 0 … K − 1 in an order "
        "fixed in advance (not with an encoder fitted on the labels: that leaks which classes occur)"
    )


def _is_missing(value: object) -> bool:
    """Return whether it is None, NaN, infinite, pandas.NA or pandas.NaT; recognised without importing pandas."""
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
        return True
    return isinstance(value, (float, np.floating)) and not math.isfinite(cast("float", value))


def fingerprint(labels: npt.NDArray[np.integer[Any]], secret: bytes) -> str:
    """Return the keyed hash of whole numbers, the same however classes are coded: they count by their first rows.

    >>> fingerprint(np.array([0, 1, 1]), b"a key") == fingerprint(np.array([7, 2, 2]), b"a key")
    True
    """
    values, first, which = np.unique(labels, return_index=True, return_inverse=True)
    place = np.empty(len(values), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(values))
    # Where most values occur once they are quantities: numbered by first rows, all such columns would look the same.
    wide = 2 * len(values) > len(labels) > _FEW_ROWS
    kind, column = ("<f8", labels) if wide else ("<i8", place[which])
    digest = hmac.new(secret, f"labels/1 {kind} {len(labels)} ".encode(), hashlib.sha256)
    for start in range(0, len(labels), _BLOCK):
        digest.update(column[start : start + _BLOCK].astype(kind).tobytes())
    return digest.hexdigest()
