"""A budget on disk: one file of JSON lines per label column, written before anything is drawn.

Every line is one charge against all rows. A line counts once it is complete and flushed to the disk, and a
look is taken only after that: a crash can over-count, never under-count. Concurrent processes take turns by a
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

from labeldp.core.events import Event, Queries, Query, event_from_json, event_to_json
from labeldp.core.ledger import Budget, Group, Ledger, add_query, check_budget, worst_epsilon

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


def flush(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- spending --------------------
#
# A vault's spending kept in a journal, so that a budget outlives the process.


class OneVault:
    """A store that is charged with what a ledger has *more* than the last one, so every ledger must be of one vault.

    The ledgers of two vaults know nothing of each other: the second would be charged only for what it spends beyond the
    first.
    """

    _vault: str | None = None

    def serve(self, vault: str) -> None:
        """Called by a vault with its id when it takes the store; ValueError for a second vault."""
        if self._vault not in (None, vault):
            raise ValueError(
                f"this {type(self).__name__} already serves another vault, and would not count what a second one "
                "spends; make one for each vault (they may share the journal or database)"
            )
        self._vault = vault


class JournalStore(OneVault):
    """The `store` of a vault that writes what it spends into a journal before anything is drawn.

    A journal charges all rows alike. For every event it is charged with the most that any row has met, so disjoint
    batches cost it once, and no row has ever met more than the journal says. Looks leased under a receipt are
    charged once, however many processes continue them.

    >>> import tempfile, pathlib
    >>> from labeldp import Budget, LabelVault, RandomizedResponse
    >>> journal = Journal.open(pathlib.Path(tempfile.mkdtemp()) / "labels.journal", Budget(1.5))
    >>> vault = LabelVault([0, 1, 1], num_classes=2, store=JournalStore(journal))
    >>> _ = vault.release(RandomizedResponse(1.0, 2), rows=[0]), vault.release(RandomizedResponse(1.0, 2), rows=[1])
    >>> journal.epsilon(delta=0)
    1.0
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._charged: dict[Event, int] = {}

    def __call__(self, ledger: Ledger, query_id: str | None = None) -> None:
        """Charge the journal with what this ledger has more than the last one."""
        most = _most(ledger)
        for event, times in most.items():
            more = times - self._charged.get(event, 0)
            if more > 0:
                self.journal.charge(event, more, note=_note(query_id) if query_id else "")
        self._charged = most

    def holds(self, query_id: str) -> bool:
        """Whether the looks of this receipt have been charged, by this process or an earlier one."""
        return _note(query_id) in self.journal.notes()


def _most(ledger: Ledger) -> dict[Event, int]:
    """For every event, how often it was met by the row that met it most often."""
    most: dict[Event, int] = {}
    for group in ledger.groups():
        for query in group.queries:
            most[query.event] = max(most.get(query.event, 0), query.times)
    return most


def _note(query_id: str) -> str:
    return f"lease {query_id}"
