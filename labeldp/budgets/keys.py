"""Seal a budget store or a journal under its key, which names a label column without telling it.

A label column is known by HMAC-SHA256 under this key (`labeldp.core.sealing`). Without the key the name tells
nothing, not even to somebody who can guess the whole column; with it, a guess of the *whole* column can be confirmed:
the key is kept like the labels.

An address may hold secrets, too: it is shown without them.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from labeldp.atomic import creating

_LEAST_BYTES = 16
_plain_json = json.JSONEncoder(separators=(",", ":")).encode


class StoreError(ValueError):
    """A budget store that cannot be used as asked. One sentence; it never quotes a label."""


class StoreKeyError(StoreError):
    """The key of a budget store is missing, unsafe or another one."""


@dataclass(frozen=True)
class Key:
    """The secret of one budget store.

    >>> key = Key(b"sixteen bytes or more")
    >>> key.seal("a line") == key.seal("a line"), key.seal("a line") == Key(b"a different key, long").seal("a line")
    (True, False)
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(cast("Any", self.secret), bytes) or len(self.secret) < _LEAST_BYTES:
            raise StoreKeyError(f"key is not {_LEAST_BYTES} or more bytes; make one with secrets.token_bytes(32)")

    def digest(self, kind: str, text: str) -> bytes:
        """Return a keyed hash of a text, another one for every kind of text."""
        return hmac.digest(self.secret, f"{kind} {text}".encode(), "sha256")

    def seal(self, *parts: object) -> str:
        """Return a keyed hash of these plain values: who changes them without the key is found out."""
        return hmac.digest(self.secret, b"sealed/1 " + _plain_json(parts).encode(), "sha256").hex()


def read_key(path: Path) -> Key:
    """Return the key in this file, which nobody but its owner may be able to read."""
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
    """Return the key in this file, made there if there is none: one key, whoever comes first."""
    if not path.exists():
        with creating(path) as draft:
            draft.touch(mode=0o600)
            draft.write_text(secrets.token_bytes(32).hex() + "\n", encoding="ascii")
    return read_key(path)


def find_key(given: bytes | str | Path | None, beside: Path, make: bool = False) -> Key:
    """Return the key that was given, or is named by LABELDP_STORE_KEY, or lies beside this file, named like it.

    Only a new file may `make` it: a new key beside an old file would be a wrong one.
    """
    own = beside.with_name(beside.name + ".key")
    return given_key(given) or (make_key(own) if make else read_key(own))


def given_key(given: bytes | str | Path | None) -> Key | None:
    """Return the key itself, or the one in the file that is named here or by LABELDP_STORE_KEY; None if neither is."""
    if isinstance(given, bytes):
        return Key(given)
    named = given or os.environ.get("LABELDP_STORE_KEY")
    return read_key(Path(named).expanduser()) if named else None


# -- addresses of stores -------------------------------------------------------------------------------------


def shown_address(where: object) -> str:
    """Return a store's address as messages, logs and results may have it: no user, no password, no host, no key.

    A file keeps its path, with the home folder as `~`: its full name would tell a user's.

    >>> shown_address("postgresql://ann:secret@db.example.org:5432/budgets?sslpassword=secret")
    'postgresql:///budgets'
    >>> shown_address("budgets.db"), shown_address(Path.home() / "budgets.db")
    ('budgets.db', '~/budgets.db')
    """
    text = str(where)
    scheme, has_scheme, _ = text.partition("://")
    if not has_scheme:
        return shown_path(text)
    try:
        parts = urlsplit(text)
        # A password with a slash in it would end up in the path: then the port is no number, or an @ comes after it.
        if parts.port == 0 or "@" in parts.path:
            return f"{scheme}://"
    except ValueError:
        return f"{scheme}://"
    return f"{scheme}:///{parts.path.rsplit('/', 1)[-1]}"


def shown_path(path: str) -> str:
    """Return a path with the home folder as `~`."""
    home = str(Path.home())
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") and len(home) > 1 else path
