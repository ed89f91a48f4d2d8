"""Write files whole or not at all: a reader, or a run that comes after a crash, never finds half a file."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES, errno.EXDEV}


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
        rename(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def rename(whole: Path, path: Path) -> None:
    """Give a file or folder that is whole its name, in place of what had it, and wait until that is on the disk.

    Only a folder that is empty gives way to a folder.
    """
    os.replace(whole, path)
    flush(path.parent)


@contextmanager
def creating(path: Path) -> Iterator[Path]:
    """Yield a hidden draft beside `path`, which takes its name when the block ends unless another file has it by then.

    The first of several processes wins, and all of them find its file.
    """
    draft = draft_of(path)
    try:
        yield draft
        flush(draft)
        with suppress(FileExistsError):
            os.link(draft, path)
        flush(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def publish(drafts: Sequence[tuple[Path, Path]]) -> None:
    """Give drafts their names, in this order: all of them or none. FileExistsError where a name is taken.

    Nothing is overwritten. Files go to the disk before they get their names.
    """
    for draft, _ in drafts:
        flush(draft)
    try:
        for draft, path in drafts:
            _name(draft, path)
        flush(drafts[0][1].parent)
    except BaseException:
        # An interrupt can fall between any two lines: take back what is ours, the last first.
        for draft, path in reversed(drafts):
            with suppress(OSError):
                # Linked, or renamed away; else it is somebody else's.
                if not draft.exists() or draft.samefile(path):
                    path.unlink()
        raise


def _name(draft: Path, path: Path) -> None:
    """Give the file its name, atomically, and fail if the name is taken."""
    try:
        os.link(draft, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # No hard links here (exFAT, some network shares): reserve the name, then rename onto the reservation.
        reserve(path)
        os.replace(draft, path)


def reserve(path: Path) -> None:
    """Create an empty file; FileExistsError if the name is taken."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))


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


def check_room(folder: Path, size: int) -> None:
    """Make the folder, write to it and see that it has room for so many bytes; raise ValueError where it has not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / "probe") as draft:
            draft.write_bytes(b"to be deleted")
        (folder / "probe").unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ValueError(f"folder={str(folder)!r} cannot be written to ({error.strerror}); name another") from None
    if free < size:
        raise ValueError(
            f"folder={str(folder)!r} has room for {free / 2**20:,.0f} MiB and this run needs {size / 2**20:,.0f}; free "
            "some, or name another"
        )


class Room:
    """Disk space taken before the content of a file is known: what is drawn next cannot be lost to a full disk.

    Args:
        path: the file that `fill` makes.
        size: the most bytes that it will have.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "release"
    >>> with Room(path, 100) as room:
    ...     room.fill(b"drawn")
    >>> path.read_bytes(), len(list(path.parent.iterdir()))
    (b'drawn', 1)
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._place, self._filled = path, self.beside(path), False
        self._file = os.open(self._place, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.posix_fallocate(self._file, 0, size)
        except BaseException:
            self.__exit__()
            raise

    @staticmethod
    def beside(path: Path) -> Path:
        """Return where the room for a file is; what is whole there and lacks its name was kept by a process that died.

        >>> Room.beside(Path("run/moment.npz")).name
        '.moment.npz.room'
        """
        return path.with_name(f".{path.name}.room")

    def fill(self, content: bytes | memoryview) -> None:
        """Write the content, wait until it is on the disk, and give the file its name."""
        rest, place = memoryview(content), 0
        while rest:
            done = os.pwrite(self._file, rest, place)
            rest, place = rest[done:], place + done
        os.ftruncate(self._file, place)
        os.fsync(self._file)
        # From here on it is whole, and stays even if it cannot be named.
        self._filled = True
        rename(self._place, self._path)

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        if not self._filled:
            self._place.unlink(missing_ok=True)
