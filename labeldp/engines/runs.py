"""Keep what one release over many machines needs until its output is written: its key, its snapshot, its charge.

In the hidden folder `.NAME.run` beside the output, in this order:

    settings  →  snapshot (ids, labels, all columns)  →  checked  →  key  →  charged  →  output  →  done
    →  key and snapshot destroyed  →  the output gets its name

Stopped before it was charged, nothing is kept. Stopped later, the same call goes on from there: same snapshot, same
key, so the same noise and the same output, and no second charge. The folder is for its owner alone (mode 700, the key
600). It holds the labels as they are, so whoever can read the key there can read what it protects: nobody new has to be
trusted. The key is overwritten before it is deleted; on media that keep old blocks, or in backups, that proves nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labeldp.atomic import check_room, flush, rename, replacing
from labeldp.budgets.journal import Journal
from labeldp.core import random as randomness
from labeldp.core.events import Event
from labeldp.core.ledger import Budget, Group, Ledger, check_budget, merge_disjoint
from labeldp.data.request import TableError

if TYPE_CHECKING:
    from labeldp.budgets.store import Account

_LEAST_ROOM = 1 << 20
# An event, and how many rows meet it; no row meets two.
Charges = Sequence[tuple[Event, int]]


@dataclass
class Run:
    """The folder of a run that is under way."""

    target: Path
    folder: Path
    paid: bool = False

    @property
    def snapshot(self) -> Path:
        """Where the rows are, once and for all."""
        return self.folder / "snapshot"

    @property
    def output(self) -> Path:
        """Where the output is before it has its name."""
        return self.folder / "output"

    @property
    def release(self) -> str:
        """The random name of the release, public; made when it is first asked for."""
        return self.kept("release", lambda: {"release": secrets.token_hex(16)})["release"]

    @property
    def charged(self) -> bool:
        """Whether the run was paid for."""
        return self.paid or (self.folder / "charged.json").exists()

    @property
    def done(self) -> bool:
        """Whether the output is whole and only lacks its name."""
        return (self.folder / "done.json").exists()

    def kept(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return what is kept under this name; when there is nothing, what `make` returns, and keep that."""
        file = self.folder / f"{name}.json"
        if not file.exists():
            found = make()
            with replacing(file) as draft:
                draft.write_text(json.dumps(dict(found)), encoding="utf-8")
        return json.loads(file.read_text(encoding="utf-8"))

    def key(self) -> bytes:
        """Return the key of the release, made when it is first asked for: on the disk before anything is charged."""
        file = self.folder / "key"
        if not file.exists():
            with replacing(file) as draft:
                descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                os.write(descriptor, randomness.system_key())
                os.close(descriptor)
        return file.read_bytes()

    def pay(self, payer: Journal | Account | None, charges: Charges, budget: Budget, note: str) -> tuple[Group, ...]:
        """Charge all rows before any of them is answered, once for all processes; return the ledger.

        A store knows the release by its name; a journal, which knows no names, by what stands in its notes.
        """
        groups = merge_disjoint([Ledger(rows).charge(event).groups() for event, rows in charges])
        check_budget(groups, budget)
        self.key()
        if not self.charged:
            said = f"{note}, release {self.release}"
            if isinstance(payer, Journal):
                if not any(self.release in one for one in payer.notes()):
                    ((event, _),) = charges
                    payer.charge(event, note=said)
            elif payer is not None:
                ((event, rows),) = charges
                payer.keep([(event, 1, None)], rows, self.release)
            self.paid = True
            self.kept("charged", lambda: {"release": self.release})
        return groups

    def check_room(self, more: int) -> None:
        """Raise TableError unless the disk has room for another snapshot and so many bytes more."""
        size = sum(file.stat().st_size for file in self.snapshot.rglob("*") if file.is_file())
        if not self.output.exists():
            _checked_room(self.target, self.folder, size + more)

    def finish(self) -> None:
        """Destroy key and snapshot, and give the output its name."""
        self.kept("done", dict)
        key = self.folder / "key"
        if key.exists():
            with key.open("r+b") as file:
                file.write(bytes(key.stat().st_size))
                file.flush()
                os.fsync(file.fileno())
            key.unlink()
            flush(self.folder)
        shutil.rmtree(self.snapshot, ignore_errors=True)
        rename(self.output, self.target)


@contextmanager
def running(target: Path, settings: Mapping[str, Any]) -> Iterator[Run]:
    """Yield the run that makes `target` with these settings (plain JSON values): a new one, or one that was stopped.

    Raises TableError where the target exists, where another process is at it, or where a run with other settings was
    paid for and stopped.
    """
    folder = target.with_name(f".{target.name}.run")
    if os.path.lexists(target):
        if not (folder / "snapshot").exists():
            # What a run leaves that was killed between its last two lines.
            shutil.rmtree(folder, ignore_errors=True)
        raise TableError(f"out={str(target)!r} exists already and is never overwritten; choose another")
    _checked_room(target, folder, 0)
    folder.chmod(0o700)
    descriptor, run = os.open(folder, os.O_RDONLY), Run(target, folder)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TableError(f"out={str(target)!r} is being written by another process; wait for it") from None
        asked = json.loads(json.dumps(dict(settings)))
        earlier = run.kept("settings", lambda: asked)
        odd = sorted(name for name in earlier.keys() | asked.keys() if earlier.get(name) != asked.get(name))
        if odd and (run.charged or run.done):
            raise TableError(
                f"{str(folder)!r} keeps what another call has paid for ({', '.join(odd)} differ): give that call again "
                "to go on with it, choose another out, or delete the folder and what was spent for it"
            )
        if odd or not (run.done or (folder / "key").exists()):
            # Nothing was paid for, and the rows may be others now.
            for left in folder.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            run.kept("settings", lambda: asked)
        try:
            yield run
        except BaseException:
            if not run.charged:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        with suppress(OSError):
            os.close(descriptor)


def _checked_room(target: Path, folder: Path, size: int) -> None:
    try:
        check_room(folder, size + _LEAST_ROOM)
    except (ValueError, OSError) as error:
        with suppress(OSError):
            # As empty as it was made for this.
            folder.rmdir()
        raise TableError(f"out={str(target)!r}: {error}") from None
