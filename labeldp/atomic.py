"""Write files whole or not at all: a reader, or a run that comes after a crash, never finds half a file."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a hidden draft beside `path`, which takes its name when the block ends and is removed when it fails.

    An older file stays until the new one is on the disk. Only a killed process can leave something: `.NAME.….part`,
    which may be deleted.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "notes.txt"
    >>> with replacing(path) as draft:
    ...     _ = draft.write_text("all of it")
    >>> path.read_text(), len(list(path.parent.iterdir()))
    ('all of it', 1)
    """
    draft = draft_of(path)
    try:
        yield draft
        flush(draft)
        os.replace(draft, path)
        flush(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def draft_of(path: Path) -> Path:
    """Return a new hidden name beside `path`, ending in `.part`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")


def flush(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
