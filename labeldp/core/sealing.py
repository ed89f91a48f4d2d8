"""Check labels and copy them before they are sealed; errors give counts, never values.

Each label becomes a whole number by itself, so that whatever happens here is a function of one label per row: a mistake
would be a wrong label, and no claim about it less true.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from labeldp.core.protocols import LabelArray

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
