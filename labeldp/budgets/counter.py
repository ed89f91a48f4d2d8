"""A count of prepaid queries on disk, flushed before every draw: a killed run goes on without drawing a query twice.

A run pays for all its queries when it begins. This file says which queries those were, under a random name (the query
id), and how many of them have been begun. A query is drawn only after its line has reached the disk: over any number of
processes no more queries are drawn than were paid for, and one that was begun and lost stays lost. (An older copy of
the file, put back in its place, would forget queries: never restore one behind the back of its run.)
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from labeldp.atomic import flush
from labeldp.core.ledger import BudgetExceededError

# On disk the words are those of the first version: a tally, and the receipt that is its query id.
FORMAT = "labeldp-tally/1"
_START = b'{"format": "labeldp-tally/1", "receipt": '


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

    def bind(self, charge: Mapping[str, Any]) -> None:
        """Fix what the queries cost, before they are paid for; raise CounterError if it was fixed to something else."""
        with self._lock:
            if self._charge is None:
                self._append({"charge": _plain(charge)})
                self._charge = _plain(charge)
            self._check_same(self._charge, _plain(charge))

    def count(self, number: int = 0, most: int | None = None) -> None:
        """Write down that a query of batch `number` begins, unless `most` have begun; return when it is on the disk."""
        with self._lock:
            if most is not None and self._drawn[number] >= most:
                raise BudgetExceededError(f"all {most} queries counted in {self._path.name} are drawn; lease more")
            self._append(number)
            self._drawn[number] += 1

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
        if content[: len(_START)] != _START[: len(content)]:
            raise CounterError(f"{self._path.name} is not a counter of this library (it should begin with {FORMAT!r})")
        lines = [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
        # A last line without its end never reached the disk whole, so its query was never drawn.
        self._end = sum(map(len, lines))
        os.ftruncate(self._file, self._end)
        if not lines:
            query_id = secrets.token_hex(16)
            self._append({"format": FORMAT, "receipt": query_id, "question": question})
            flush(self._path.parent)
            return query_id
        header, *entries = [self._parsed(line, number) for number, line in enumerate(lines, start=1)]
        if isinstance(header, int):
            raise CounterError(self._damaged(1))
        self._check_same(header["question"], question)
        for entry in entries:
            if isinstance(entry, int):
                self._drawn[entry] += 1
            else:
                self._charge = entry["charge"]
        return str(header["receipt"])

    def _parsed(self, line: bytes, number: int) -> dict[str, Any] | int:
        try:
            entry: object = json.loads(line)
        except ValueError:
            entry = None
        if type(entry) is int or (isinstance(entry, dict) and ("charge" if number > 1 else "question") in entry):
            return cast("dict[str, Any] | int", entry)
        raise CounterError(self._damaged(number))

    def _damaged(self, number: int) -> str:
        return f"line {number} of {self._path.name} is damaged; use a new folder and pay again"

    def _append(self, entry: dict[str, Any] | int) -> None:
        if self._file < 0:
            raise CounterError(f"{self._path.name} is closed; its run has ended")
        line = json.dumps(entry).encode() + b"\n"
        # Written at the end of the last whole line: what a failed attempt left behind is overwritten.
        if os.pwrite(self._file, line, self._end) != len(line):
            raise OSError(f"{self._path.name} could not be written to; is the disk full?")
        os.fsync(self._file)
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
