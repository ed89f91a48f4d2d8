"""All or nothing: an artifact and its certificate appear together under their names, or neither does."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from labeldp.accounting.certificate import Certificate
from labeldp.accounting.journal import flush
from labeldp.data.request import TableError

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES, errno.EXDEV}


def certificate_path(target: Path | str) -> Path:
    """Where the certificate of this artifact lies: beside it, with `.certificate.json` added to its name."""
    target = Path(target)
    return target.with_name(target.name + ".certificate.json")


@dataclass
class Draft:
    """An artifact in the making. Write `path`, then `seal` it; leaving the block publishes both files."""

    target: Path
    path: Path
    certificate: Certificate | None = None

    def seal(self, certificate: Certificate) -> Certificate:
        """Bind this certificate to the file as it now is, under the name it will have."""
        self.certificate = certificate.about(self.path, name=self.target.name)
        return self.certificate


@contextmanager
def publishing(target: Path) -> Iterator[Draft]:
    """A draft in the target's folder, published when the block ends and removed when it fails.

    Nothing is ever overwritten. The certificate is published first, so the artifact never stands without
    one. Files go to the disk before they get their names. Only a killed process can leave something: a
    hidden file `.NAME.….part`, which holds private answers and may be deleted.
    """
    _refuse_existing(target)
    stem = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    draft = Draft(target, Path(f"{stem}.part"))
    note = Path(f"{stem}.certificate.part")
    try:
        _create(draft.path)
        yield draft
        _write_certificate(draft, note)
        _publish(draft, note)
    except OSError as error:
        raise TableError(_explain(error, target)) from None
    finally:
        _remove(draft.path, note)


def _refuse_existing(target: Path) -> None:
    if not target.parent.is_dir():
        raise TableError(f"the folder of target={str(target)!r} does not exist; create it first")
    for path in (target, certificate_path(target)):
        if os.path.lexists(path):
            raise TableError(f"{str(path)!r} exists already and is never overwritten; move it or choose another target")


def _create(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))


def _write_certificate(draft: Draft, note: Path) -> None:
    if draft.certificate is None:
        raise RuntimeError("the draft was never sealed; call draft.seal(certificate) at the end of the block")
    _create(note)
    draft.certificate.write(note)


def _publish(draft: Draft, note: Path) -> None:
    flush(draft.path)
    flush(note)
    certificate = certificate_path(draft.target)
    try:
        _name(note, certificate)
        _name(draft.path, draft.target)
        flush(draft.target.parent)
    except BaseException:
        # An interrupt can fall between any two lines: take back what is ours, the artifact first.
        _take_back(draft.path, draft.target)
        _take_back(note, certificate)
        raise


def _take_back(path: Path, final: Path) -> None:
    """Remove `final` if it is this draft's file (linked, or renamed away) and not somebody else's."""
    with suppress(OSError):
        if not path.exists() or path.samefile(final):
            final.unlink()


def _name(path: Path, final: Path) -> None:
    """Give the file its final name, atomically, and fail if the name is taken."""
    try:
        os.link(path, final)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # No hard links here (exFAT, some network shares): reserve the name, then rename onto the reservation.
        _create(final)
        os.replace(path, final)


def _remove(*paths: Path) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _explain(error: OSError, target: Path) -> str:
    if error.errno in _NO_ROOM:
        return f"no room for target={str(target)!r} ({os.strerror(error.errno or 0)}); free some and try again"
    if isinstance(error, FileExistsError):
        return f"target={str(target)!r} or its certificate appeared meanwhile; nothing was overwritten"
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    return f"target={str(target)!r} cannot be written ({reason}); nothing was left behind"
