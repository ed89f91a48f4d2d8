"""Keep a budget in one file of JSON lines per label column, written before anything is drawn.

Every line is one charge against all rows, or against all users: the first line says which, and the other is refused. A
line counts once it is complete and flushed to the disk, and nothing is drawn before that: a crash can over-count, never
under-count. Concurrent processes take turns by a file lock.

Every line carries a seal under the journal's key (a file beside it, named like it and `.key`, unless another is given),
over the line before it. How many there are, and the seal of the last one, is kept in a second file, `.head`: a line
that was changed, taken out or put in without the key is found out, and so is an older copy of the journal that was put
back without its head. Both put back together are not. Journals of the first version have no seals and no unit; they are
read as they are, about rows (`sealed` is False).
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import IO, Any

from labeldp.atomic import flush, replacing
from labeldp.budgets.keys import Key, find_key
from labeldp.core.events import Event, Queries, Query, event_from_json, event_to_json
from labeldp.core.ledger import ONE_LABEL, UNITS, Budget, Ledger, Unit, check_budget

FORMAT = "labeldp-journal/2"
UNSEALED = "labeldp-journal/1"
_START = b'{"format": "labeldp-journal/2"'
# "row" and "user": what one line of a journal charges.
_UNITS = {unit.counted[:-1]: unit for unit in UNITS}


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
    unit: Unit = ONE_LABEL
    key: bytes | str | Path | None = field(default=None, repr=False)

    @classmethod
    def open(
        cls,
        path: Path,
        budget: Budget | None = None,
        *,
        unit: Unit | None = None,
        key: bytes | str | Path | None = None,
    ) -> Journal:
        """Open a journal, creating it if there is none; what it was created with cannot be changed.

        Args:
            path: the file.
            budget: what all charges together may cost. None takes the journal's own.
            unit: whose labels one charge is about, for a new journal `ONE_LABEL` when None.
            key: the secret that seals it, or a file of mode 600 that holds it; found as for a `BudgetStore` when None.
        """
        with _locked(path, create=True) as file:
            found = file.read()
            # A header cut short by a crash is written again; any other file is left alone and refused below.
            if b"\n" not in found and found[: len(_START)] == _START[: len(found)]:
                _begin(path, file, find_key(key, path, make=True), budget, unit or ONE_LABEL)
            kept = _read(path, file, key)
        if budget is not None and budget != kept.budget:
            raise JournalError(
                f"{path.name} was created with {_in_words(kept.budget)}, which cannot become {_in_words(budget)}: "
                "a budget that can be raised later is none"
            )
        if unit is not None:
            _check_unit(path, kept.unit, unit)
        return cls(path, kept.budget, kept.unit, key)

    @property
    def sealed(self) -> bool:
        """Whether a changed line would be found out; False for a journal of the first version."""
        return self._contents().key is not None

    def charge(self, event: Event, times: int = 1, note: str = "", unit: Unit = ONE_LABEL) -> None:
        """Write one charge against all rows, or all users; or raise BudgetExceededError and write nothing."""
        with _locked(self.path) as file:
            # What the file says counts, not what it said when it was opened.
            kept = _read(self.path, file, self.key)
            _check_unit(self.path, kept.unit, unit)
            check_budget(kept.ledger.charge(event, times).groups(), kept.budget, kept.unit)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            line = {"event": event_to_json(event), "times": times, "note": note, "time": now}
            head = _append(file, line, kept)
            if kept.key is not None:
                _write_head(self.path, kept.key, len(kept.charges) + 1, head)

    def queries(self) -> Queries:
        """Return the charges so far, in order."""
        return tuple(query for query, _ in self._contents().charges)

    def notes(self) -> tuple[str, ...]:
        """Return the note of every charge so far, in order."""
        return tuple(note for _, note in self._contents().charges)

    def epsilon(self, delta: float) -> float:
        """Return what the charges so far cost every row, or every user."""
        return self._contents().ledger.epsilon(delta)

    def _contents(self) -> _Contents:
        with _locked(self.path) as file:
            return _read(self.path, file, self.key)


@dataclass(frozen=True)
class _Contents:
    """What a journal says: each charge with its note, the seal of the last line, and where that line ends."""

    budget: Budget | None
    unit: Unit
    key: Key | None
    charges: list[tuple[Query, str]]
    head: str
    end: int

    @property
    def ledger(self) -> Ledger:
        """The charges as the history of one line. Each is a plan of its own: it may answer what came before it."""
        return reduce(lambda ledger, charge: ledger.charge(charge[0].event, charge[0].times), self.charges, Ledger(1))


def _in_words(budget: Budget | None) -> str:
    return "no budget" if budget is None else f"a budget of epsilon {budget.epsilon:g}, delta {budget.delta:g}"


def _check_unit(path: Path, kept: Unit, given: Unit) -> None:
    if kept != given:
        raise JournalError(
            f"{path.name} counts what is spent on {kept.protects}, and this query costs {given.protects}: the two "
            f"cannot be added up; keep a journal for each"
        )


@contextmanager
def _locked(path: Path, create: bool = False) -> Generator[IO[bytes]]:
    """Yield the journal's file, positioned at the start, while no other process has it."""
    descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _begin(path: Path, file: IO[bytes], key: Key, budget: Budget | None, unit: Unit) -> None:
    """Write the first line, after the head: a journal without a head is then never a new one."""
    if _read_head(path).get("charges"):
        raise JournalError(f"{path.name} is empty, but {_head(path).name} knows of charges: {_PUT_BACK}")
    limits = budget and {"epsilon": budget.epsilon, "delta": budget.delta}
    line = {"format": FORMAT, "id": secrets.token_hex(16), "unit": unit.counted[:-1], "budget": limits}
    _write_head(path, key, 0, key.seal("", line))
    _append(file, line, _Contents(budget, unit, key, [], "", 0))
    flush(path.parent)


def _read(path: Path, file: IO[bytes], key: bytes | str | Path | None) -> _Contents:
    """Read and check all lines. A last line without its end was never flushed, so nothing was drawn for it."""
    file.seek(0)
    lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
    end = sum(map(len, lines))
    try:
        header = _parse(path, lines[0], 1) if lines else {}
    except JournalError:
        header = {}
    if header.get("format") not in (FORMAT, UNSEALED):
        raise JournalError(f"{path.name} is not a journal of this library (its first line should say {FORMAT!r})")
    limits, unit = header.get("budget"), _UNITS.get(header.get("unit", "row"))
    secret = find_key(key, path) if header["format"] == FORMAT else None
    fields = [header, *(_parse(path, line, number) for number, line in enumerate(lines[1:], start=2))]
    seals = [""]
    for number, line in enumerate(fields if secret else [], start=1):
        seal = line.pop("seal", None)
        if secret is None or seal != secret.seal(seals[-1], line):
            raise JournalError(f"line {number} of {path.name} was changed behind the library's back; {_PUT_BACK}")
        seals.append(seal)
    if secret is not None:
        _check_head(path, secret, seals[1:])
    elif _head(path).exists():
        raise JournalError(f"{path.name} was sealed and is not any more: it was changed; {_PUT_BACK}")
    number, charges = 1, list[tuple[Query, str]]()
    try:
        budget = None if limits is None else Budget(limits["epsilon"], limits["delta"])
        for line in fields[1:]:
            number += 1
            charges.append((Query(event_from_json(line["event"]), int(line["times"])), str(line.get("note", ""))))
    except (KeyError, TypeError, ValueError):
        raise JournalError(f"line {number} of {path.name} is damaged; {_PUT_BACK}") from None
    if unit is None:
        raise JournalError(f"{path.name} is about a unit that this version does not know; use a later one")
    return _Contents(budget, unit, secret, charges, seals[-1], end)


def _parse(path: Path, line: bytes, number: int) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (TypeError, ValueError):
        raise JournalError(f"line {number} of {path.name} is damaged; {_PUT_BACK}") from None


def _append(file: IO[bytes], line: dict[str, Any], kept: _Contents) -> str:
    """Write a line after the last whole one, flush it, and return its seal."""
    seal = "" if kept.key is None else kept.key.seal(kept.head, line)
    file.seek(kept.end)
    file.truncate()
    file.write(json.dumps({**line, "seal": seal} if seal else line).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())
    return seal


# -- the head: how many charges there are, kept apart from them ----------------------------------------------

_PUT_BACK = "put the newest copy back before asking again"


def _head(path: Path) -> Path:
    return path.with_name(path.name + ".head")


def _write_head(path: Path, key: Key, charges: int, last: str) -> None:
    with replacing(_head(path)) as draft:
        draft.touch(mode=0o600)
        draft.write_text(json.dumps({"charges": charges, "seal": key.seal("journal head", charges, last)}) + "\n")


def _read_head(path: Path) -> dict[str, Any]:
    """Return what the head says; nothing where there is none."""
    try:
        return dict(json.loads(_head(path).read_bytes()))
    except FileNotFoundError:
        return {}
    except (TypeError, ValueError):
        raise JournalError(f"{_head(path).name} is damaged; {_PUT_BACK}") from None


def _check_head(path: Path, key: Key, seals: list[str]) -> None:
    """Refuse fewer lines than the head knows. One more is a charge whose process ended before it wrote the head."""
    head = _read_head(path)
    charges = head.get("charges")
    if not isinstance(charges, int):
        raise JournalError(f"{_head(path).name} is missing, which says how many charges there are; {_PUT_BACK}")
    made = len(seals) - 1
    if made not in (charges, charges + 1) or head.get("seal") != key.seal("journal head", charges, seals[charges]):
        raise JournalError(
            f"{path.name} has {made} charges where {_head(path).name} knows of {charges}, or is another journal: an "
            f"older copy of one of them is in its place; {_PUT_BACK}"
        )
