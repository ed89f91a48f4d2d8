"""A budget on disk: one file of JSON lines per label column, written before anything is drawn.

Every line is one charge against all rows. A line counts once it is complete and flushed to the disk, and
nothing is drawn before that: a crash can over-count, never under-count. Concurrent processes take turns by a
file lock.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from labeldp.atomic import flush
from labeldp.core.events import Event, Queries, Query, event_from_json, event_to_json
from labeldp.core.ledger import Budget, Group, add_query, check_budget, worst_epsilon

FORMAT = "labeldp-journal/1"


class JournalError(ValueError):
    """A journal that cannot be read or does not fit what was asked of it."""


@dataclass(frozen=True)
class Journal:
    """The charges against one label column, kept in a file.

    >>> import tempfile, pathlib
    >>> from labeldp.core.events import PureDP
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "income.journal"
    >>> journal = Journal.open(path, Budget(epsilon=2.0))
    >>> journal.charge(PureDP(1.5), note="first release")
    >>> journal.epsilon(delta=0)
    1.5
    >>> journal.charge(PureDP(1.5), note="second release")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    BudgetExceededError: the budget is epsilon=2, delta=0 ...
    """

    path: Path
    budget: Budget | None

    @classmethod
    def open(cls, path: Path, budget: Budget | None = None) -> Journal:
        """Open a journal, creating it with this budget if there is none; an existing budget cannot be changed."""
        header = {"format": FORMAT, "budget": budget and {"epsilon": budget.epsilon, "delta": budget.delta}}
        with _locked(path, create=True) as file:
            # A header cut short by a crash is written again; any other file is left alone and refused below.
            found, wanted = file.read(), _encode(header)
            if len(found) < len(wanted) and wanted.startswith(found):
                _append(file, header)
                flush(path.parent)
            kept = _read_budget(path, file)
        if budget is not None and budget != kept:
            raise JournalError(
                f"{path.name} was created with {_in_words(kept)}, which cannot become {_in_words(budget)}: "
                "a budget that can be raised later is none"
            )
        return cls(path, kept)

    def charge(self, event: Event, times: int = 1, note: str = "") -> None:
        """Write one charge against all rows, or raise BudgetExceededError and write nothing."""
        with _locked(self.path) as file:
            # What the file says counts, not what it said when it was opened.
            budget = _read_budget(self.path, file)
            queries = add_query(_read_queries(self.path, file), event, times)
            check_budget((Group(1, queries),), budget)
            _append(file, {"event": event_to_json(event), "times": times, "note": note, "time": _now()})

    def queries(self) -> Queries:
        """All charges so far, equal events merged."""
        with _locked(self.path) as file:
            _read_budget(self.path, file)
            return _read_queries(self.path, file)

    def notes(self) -> tuple[str, ...]:
        """The note of every charge so far, in order."""
        with _locked(self.path) as file:
            _read_budget(self.path, file)
            lines = enumerate(_lines(file)[1:], start=2)
            return tuple(str(_parse(self.path, line, number).get("note", "")) for number, line in lines)

    def epsilon(self, delta: float) -> float:
        """What the charges so far cost every row."""
        return worst_epsilon((Group(1, self.queries()),), delta)


def _in_words(budget: Budget | None) -> str:
    return "no budget" if budget is None else f"a budget of epsilon {budget.epsilon:g}, delta {budget.delta:g}"


@contextmanager
def _locked(path: Path, create: bool = False) -> Generator[IO[bytes]]:
    """The journal's file, positioned at the start, while no other process has it."""
    descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _lines(file: IO[bytes]) -> list[bytes]:
    """The complete lines. A last line without its end was never flushed, so nothing was drawn for it."""
    file.seek(0)
    return [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]


def _append(file: IO[bytes], fields: dict[str, Any]) -> None:
    file.seek(sum(map(len, _lines(file))))
    file.truncate()
    file.write(_encode(fields))
    file.flush()
    os.fsync(file.fileno())


def _encode(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def _read_budget(path: Path, file: IO[bytes]) -> Budget | None:
    lines = _lines(file)
    try:
        header = _parse(path, lines[0], 1) if lines else {}
    except JournalError:
        header = {}
    if header.get("format") != FORMAT:
        raise JournalError(f"{path.name} is not a journal of this library (its first line should say {FORMAT!r})")
    fields = header.get("budget")
    return None if fields is None else Budget(fields["epsilon"], fields["delta"])


def _read_queries(path: Path, file: IO[bytes]) -> Queries:
    queries: Queries = ()
    for number, line in enumerate(_lines(file)[1:], start=2):
        charge = _charge(path, line, number)
        queries = add_query(queries, charge.event, charge.times)
    return queries


def _charge(path: Path, line: bytes, number: int) -> Query:
    fields = _parse(path, line, number)
    try:
        return Query(event_from_json(fields["event"]), int(fields["times"]))
    except (KeyError, TypeError, ValueError):
        raise JournalError(_damaged(path, number)) from None


def _parse(path: Path, line: bytes, number: int) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (TypeError, ValueError):
        raise JournalError(_damaged(path, number)) from None


def _damaged(path: Path, number: int) -> str:
    return f"line {number} of {path.name} is damaged; restore the file from a backup before asking again"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
