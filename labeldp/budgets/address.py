"""Say which budget store is meant, without saying who may open it or how."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit


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
