"""Count prepaid queries on disk before each is drawn: a killed run goes on without drawing a query twice.

A run pays for all its queries when it begins. This file says which queries those were, under a random name (the query
id), and how many of them have been begun. A query is drawn only after its line has reached the disk: over any number of
processes no more queries are drawn than were paid for, and one that was begun and lost stays lost.

A copy of the file would count by itself. Where a budget store was charged, the store counts the same queries: each is
begun by one copy only, an older copy is refused, and the run may move anywhere. Without a store the file is bound to
its place: its inode with its device, or with its path after a restart. A copy has another inode and is refused. (What
cannot be told without a store: an older copy in the place of a deleted file, if the file system gives it the same
inode.) A store that has forgotten the queries of this file is an older copy itself, and is refused, too.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from labeldp.atomic import flush
from labeldp.core.ledger import BudgetExceededError
from labeldp.core.protocols import Stores

# On disk the words are those of the first version: its name for a counter, and "receipt" for the query id.
FORMAT = "labeldp-tally/2"
_START = b'{"format": "labeldp-tally/2", "receipt": '
# Without a place.
_FIRST_START = b'{"format": "labeldp-tally/1", "receipt": '
_ENTRIES = {"charge", "place", "store"}


class CounterError(ValueError):
    """A counter that cannot be read, is in use, or belongs to another run."""


class QueryCounter:
    """How many of a run's prepaid queries were begun. Open in one process at a time.

    Args:
        path: the file; made when there is none.
        question: the settings of the run as plain JSON values. A file with other settings is refused.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "q.counter"
    >>> with QueryCounter(path, {"recipe": "demo", "epsilon": 1.0}) as counter:
    ...     counter.count()
    >>> with QueryCounter(path, {"recipe": "demo", "epsilon": 1.0}) as counter:
    ...     counter.drawn()
    1
    >>> QueryCounter(path, {"recipe": "demo", "epsilon": 2.0})
    Traceback (most recent call last):
    labeldp.budgets.counter.CounterError: q.counter belongs to another question (epsilon differs); use a new folder
    """

    def __init__(self, path: Path, question: Mapping[str, Any]) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._drawn: Counter[int] = Counter()
        self._charge: dict[str, Any] | None = None
        # Whether the file is not where it was made.
        self._moved = False
        # Ids of stores that were seen to hold the queries.
        self._held: set[str] = set()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._query_id = self._read(_plain(question))
        except BlockingIOError:
            self.close()
            raise CounterError(f"{path.name} is in use by a run that has not ended; wait for it") from None
        except BaseException:
            self.close()
            raise

    @property
    def query_id(self) -> str:
        """The random name under which the queries were paid for."""
        return self._query_id

    @property
    def charge(self) -> dict[str, Any] | None:
        """What the queries cost, as it was fixed when they were paid for; None while they are not."""
        return self._charge

    @property
    def total(self) -> int:
        """How many queries were begun, over all batches."""
        return sum(self._drawn.values())

    def drawn(self, number: int = 0) -> int:
        """Return how many queries of batch `number` were begun."""
        return self._drawn[number]

    def bind(self, charge: Mapping[str, Any], stores: Stores = ()) -> None:
        """Fix what the queries cost, before they are paid for; raise CounterError if it was fixed to something else.

        Raises CounterError, too, where this file, or a store, is found to be a copy.
        """
        with self._lock:
            self._refuse_copy(stores)
            for store, query_id, _ in stores:
                if store.id in self._held and not store.holds(query_id):
                    raise CounterError(
                        f"the store that was charged for the queries of {self._path.name} has forgotten them: an older "
                        "copy was put in its place. Put the newest one back before asking again"
                    )
            if self._charge is None:
                self._append({"charge": _plain(charge)})
                self._charge = _plain(charge)
            self._check_same(self._charge, _plain(charge))

    def count(self, number: int = 0, most: int | None = None, stores: Stores = ()) -> None:
        """Write down that a query of batch `number` begins, unless `most` have begun; return when it is on the disk.

        The stores are told after the file: what they know to be begun, the newest copy of the file knows, too.
        """
        with self._lock:
            self._refuse_copy(stores)
            if most is not None and self._drawn[number] >= most:
                raise BudgetExceededError(f"all {most} queries counted in {self._path.name} are drawn; lease more")
            self._append(number)
            self._drawn[number] += 1
            for store, query_id, there in stores:
                store.begin(query_id, there, self._drawn[number], self._drawn[number] if most is None else most)
                if store.id not in self._held:
                    # Evidence against an older copy of the store, and no more: the query is begun, and is drawn.
                    with suppress(OSError):
                        self._append({"store": store.id})
                        self._held.add(store.id)

    def _refuse_copy(self, stores: Stores) -> None:
        if self._moved and not stores:
            raise CounterError(
                f"{self._path.name} is a copy, or was moved: the original may be drawing the same queries. Go on where "
                "it was made; or charge a budget store, which counts wherever the folder lies; or use a new folder and "
                "pay again"
            )

    def close(self) -> None:
        """Let go of the file: queries leased with this counter can no longer be drawn."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> QueryCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, question: dict[str, Any]) -> str:
        """Read the file, or begin it; return its query id."""
        content = os.pread(self._file, os.fstat(self._file).st_size, 0)
        if content[: len(_START)] not in (_START[: len(content)], _FIRST_START[: len(content)]):
            raise CounterError(f"{self._path.name} is not a counter of this library (it should begin with {FORMAT!r})")
        lines = [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
        # A last line without its end never reached the disk whole, so its query was never drawn.
        self._end = sum(map(len, lines))
        os.ftruncate(self._file, self._end)
        here = self._here()
        if not lines:
            query_id = secrets.token_hex(16)
            self._append({"format": FORMAT, "receipt": query_id, "question": question, "place": here})
            flush(self._path.parent)
            return query_id
        header, *entries = [self._parsed(line, number) for number, line in enumerate(lines, start=1)]
        if isinstance(header, int):
            raise CounterError(self._damaged(1))
        self._check_same(header["question"], question)
        place = header.get("place")
        for entry in entries:
            if isinstance(entry, int):
                self._drawn[entry] += 1
                continue
            self._charge = entry.get("charge", self._charge)
            place = entry.get("place", place)
            self._held |= {entry["store"]} if "store" in entry else set()
        # Renamed, or after a restart that numbers devices anew, a file is where it was; copied it is not.
        stays = (
            place is not None
            and place["inode"] == here["inode"]
            and (place["device"] == here["device"] or place["path"] == here["path"])
        )
        self._moved = place is not None and not stays
        # A file of the first version is bound now; one that was renamed, or whose device has a new number, anew.
        if place != here and not self._moved:
            self._append({"place": here})
        return str(header["receipt"])

    def _here(self) -> dict[str, Any]:
        """Return where the file is. The path as a hash: it may name a user."""
        found = os.fstat(self._file)
        path = hashlib.sha256(os.path.realpath(self._path).encode()).hexdigest()[:16]
        return {"device": found.st_dev, "inode": found.st_ino, "path": path}

    def _parsed(self, line: bytes, number: int) -> dict[str, Any] | int:
        try:
            entry: object = json.loads(line)
        except ValueError:
            entry = None
        if type(entry) is int or (
            isinstance(entry, dict) and (_ENTRIES if number > 1 else {"question"}) & entry.keys()
        ):
            return cast("dict[str, Any] | int", entry)
        raise CounterError(self._damaged(number))

    def _damaged(self, number: int) -> str:
        return f"line {number} of {self._path.name} is damaged; use a new folder and pay again"

    def _append(self, entry: dict[str, Any] | int) -> None:
        if self._file < 0:
            raise CounterError(f"{self._path.name} is closed; its run has ended")
        line = json.dumps(entry).encode() + b"\n"
        # Written at the end of the last whole line: what a failed attempt left behind is overwritten.
        try:
            if os.pwrite(self._file, line, self._end) != len(line):
                raise OSError(f"{self._path.name} could not be written to; is the disk full?")
            os.fsync(self._file)
        except OSError:
            # Nothing is drawn for a line that may not be on the disk, so that it must not count later.
            os.ftruncate(self._file, self._end)
            raise
        self._end += len(line)

    def _check_same(self, kept: dict[str, Any], given: dict[str, Any]) -> None:
        odd = sorted(key for key in kept.keys() | given.keys() if kept.get(key) != given.get(key))
        if odd:
            verb = "differs" if len(odd) == 1 else "differ"
            raise CounterError(
                f"{self._path.name} belongs to another question ({', '.join(odd)} {verb}); use a new folder"
            )


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as they come back from a file: tuples are lists there."""
    return json.loads(json.dumps(dict(values)))
