"""The key of a budget store: it names a label column without telling it, and seals every line that is written.

A label column is known by HMAC-SHA256 under this key. Without the key the name tells nothing, not even to somebody who
can guess the whole column; with it, a guess of the *whole* column can be confirmed, so the key is kept like the labels.
This module is the only one in `accounting` that is handed labels; it keeps none of them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from labeldp.budgets.journal import flush

_BLOCK = 1 << 20
_LEAST_BYTES = 16
# Of so few rows, repeats say nothing about what the values are.
_FEW_ROWS = 20


class StoreError(ValueError):
    """A budget store that cannot be used as asked. One sentence; it never quotes a label."""


class StoreKeyError(StoreError):
    """The key of a budget store is missing, unsafe or another one."""


@dataclass(frozen=True)
class Key:
    """The secret of one budget store.

    >>> key = Key(b"sixteen bytes or more")
    >>> key.fingerprint([0, 1, 1]) == key.fingerprint(np.array(["no", "yes", "yes"]))
    True
    >>> key.fingerprint([0, 1, 1]) == Key(b"a different key, long").fingerprint([0, 1, 1])
    False
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(cast("Any", self.secret), bytes) or len(self.secret) < _LEAST_BYTES:
            raise StoreKeyError(f"key is not {_LEAST_BYTES} or more bytes; make one with secrets.token_bytes(32)")

    def fingerprint(self, labels: npt.ArrayLike) -> str:
        """The keyed hash of a label column: the same whatever holds it, and however its classes are coded."""
        column = _canonical(labels)
        kind = "<f8" if column.dtype.kind == "f" else "<i8"
        digest = hmac.new(self.secret, f"labels/1 {kind} {len(column)} ".encode(), hashlib.sha256)
        for start in range(0, len(column), _BLOCK):
            digest.update(column[start : start + _BLOCK].astype(kind).tobytes())
        return digest.hexdigest()

    def seal(self, *parts: object) -> str:
        """A keyed hash of these plain values: who changes them without the key is found out."""
        text = json.dumps(parts, separators=(",", ":"))
        return hmac.new(self.secret, b"sealed/1 " + text.encode(), hashlib.sha256).hexdigest()


def read_key(path: Path) -> Key:
    """The key in this file, which nobody but its owner may be able to read."""
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="ascii")
        secret = bytes.fromhex(text.strip())
    except FileNotFoundError:
        raise StoreKeyError(
            f"the key file {path.name!r} is missing; put it back, or give the key with which the store was made"
        ) from None
    except OSError as error:
        raise StoreKeyError(f"the key file {path.name!r} cannot be read ({error.strerror})") from None
    except ValueError:
        raise StoreKeyError(f"{path.name!r} is not a key file: it should hold one line of hexadecimal digits") from None
    if mode & 0o077:
        raise StoreKeyError(f"others may read the key file {path.name!r}; take that back with: chmod 600 {path.name}")
    return Key(secret)


def make_key(path: Path) -> Key:
    """The key in this file, made there if there is none: one key, whoever comes first."""
    if not path.exists():
        _write_once(path, secrets.token_bytes(32).hex() + "\n")
    return read_key(path)


def _write_once(path: Path, text: str) -> None:
    """Appears whole and on the disk, or not at all; a file that is there already stays."""
    # mkstemp lets only the owner read.
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
        flush(path.parent)
    finally:
        Path(draft).unlink()


def _canonical(labels: npt.ArrayLike) -> npt.NDArray[Any]:
    """Classes numbered in the order of their first rows, or quantities as floats; errors give counts, never values."""
    if isinstance(labels, np.ma.MaskedArray) and np.count_nonzero(cast("Any", labels).mask):
        raise ValueError("labels cannot be named: some of them are masked, so missing")
    raw = np.asarray(labels)
    if raw.ndim != 1:
        raise ValueError(f"labels have shape {raw.shape}; give one label per row, shape (n,)")
    if raw.dtype.kind == "O":
        raw = _of_objects(raw)
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


def _of_objects(raw: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if all(isinstance(value, str) for value in raw):
        return raw.astype(np.str_)
    if all(isinstance(value, (bool, int, float, np.number)) for value in raw):
        return raw.astype(np.float64)
    return raw
