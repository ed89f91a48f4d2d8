"""The key of a budget store: it names a label column without telling it, and seals every line that is written.

A label column is known by HMAC-SHA256 under this key. Without the key the name tells nothing, not even to somebody who
can guess the whole column; with it, a guess of the *whole* column can be confirmed, so the key is kept like the labels.
The hash itself is `labeldp.core.fingerprint`.
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

import numpy.typing as npt

from labeldp.atomic import flush
from labeldp.core.fingerprint import fingerprint
from labeldp.core.vault import LabelVault

_LEAST_BYTES = 16


class StoreError(ValueError):
    """A budget store that cannot be used as asked. One sentence; it never quotes a label."""


class StoreKeyError(StoreError):
    """The key of a budget store is missing, unsafe or another one."""


@dataclass(frozen=True)
class Key:
    """The secret of one budget store.

    >>> key = Key(b"sixteen bytes or more")
    >>> key.fingerprint([0, 1, 1]) == key.fingerprint(["no", "yes", "yes"])
    True
    >>> key.fingerprint([0, 1, 1]) == Key(b"a different key, long").fingerprint([0, 1, 1])
    False
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(cast("Any", self.secret), bytes) or len(self.secret) < _LEAST_BYTES:
            raise StoreKeyError(f"key is not {_LEAST_BYTES} or more bytes; make one with secrets.token_bytes(32)")

    def fingerprint(self, labels: npt.ArrayLike | LabelVault) -> str:
        """Return the keyed hash of a label column or a vault: the same whatever holds it, however classes are coded."""
        return labels.fingerprint(self.secret) if isinstance(labels, LabelVault) else fingerprint(labels, self.secret)

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
