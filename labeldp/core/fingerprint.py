"""Name a label column by a keyed hash, so that a budget store knows it again without keeping it.

The name is HMAC-SHA256 under a secret key. Without the key it tells nothing, not even to somebody who can guess the
whole column; with it, a guess of the *whole* column can be confirmed. It is not differentially private: the key is kept
like the labels, and the name stays in the store of their owner.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, cast

import numpy as np
import numpy.typing as npt

_BLOCK = 1 << 20
# Of so few rows, repeats say nothing about what the values are.
_FEW_ROWS = 20


def fingerprint(labels: npt.ArrayLike, secret: bytes) -> str:
    """Return the keyed hash of a label column: the same whatever holds it, and however its classes are coded.

    >>> fingerprint([0, 1, 1], b"a key") == fingerprint(np.array(["no", "yes", "yes"]), b"a key")
    True
    """
    column = _canonical(labels)
    kind = "<f8" if column.dtype.kind == "f" else "<i8"
    digest = hmac.new(secret, f"labels/1 {kind} {len(column)} ".encode(), hashlib.sha256)
    for start in range(0, len(column), _BLOCK):
        digest.update(column[start : start + _BLOCK].astype(kind).tobytes())
    return digest.hexdigest()


def _canonical(labels: npt.ArrayLike) -> npt.NDArray[Any]:
    """Number classes in the order of their first rows; quantities become floats. Errors give counts, never values."""
    if isinstance(labels, np.ma.MaskedArray) and np.count_nonzero(cast("Any", labels).mask):
        raise ValueError("labels cannot be named: some of them are masked, so missing")
    raw = np.asarray(labels)
    if raw.ndim != 1:
        raise ValueError(f"labels have shape {raw.shape}; give one label per row, shape (n,)")
    if raw.dtype.kind == "O" and all(isinstance(value, str) for value in raw):
        raw = raw.astype(np.str_)
    elif raw.dtype.kind == "O" and all(isinstance(value, (bool, int, float, np.number)) for value in raw):
        raw = raw.astype(np.float64)
    if raw.dtype.kind not in "biufUS":
        raise ValueError("labels are neither numbers nor text; give one class or one number per row")
    unusable = int(np.count_nonzero(~np.isfinite(raw))) if raw.dtype.kind == "f" else 0
    if unusable:
        raise ValueError(f"labels cannot be named: {unusable} of {raw.size} are missing or infinite")
    values, first, which = np.unique(raw, return_index=True, return_inverse=True)
    # Where most values occur once they are quantities: numbered by first rows, all such columns would look the same.
    if raw.dtype.kind in "iuf" and 2 * len(values) > len(raw) > _FEW_ROWS:
        return raw.astype(np.float64)
    place = np.empty(len(values), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(values))
    return place[which]
