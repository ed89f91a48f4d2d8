"""Data sets and charges of a budget store as lines of its tables: written with a seal, read back if it is whole."""

from __future__ import annotations

import getpass
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from labeldp.accounting.events import Event, event_from_json, event_to_json
from labeldp.accounting.ledger import Budget
from labeldp.accounting.store_key import Key, StoreError
from labeldp.accounting.store_rows import Charge, pack, unpack
from labeldp.accounting.units import ONE_LABEL, ONE_USER, Unit

_LONGEST_NAME = 200
# A row of a table, by the names of its columns.
Line = Mapping[Any, Any]


class Grouping(Protocol):
    """Whose each row is (`labeldp.private.user_rows.Users`)."""

    def __len__(self) -> int: ...

    def digest(self) -> str:
        """A public name of the grouping."""
        ...


@dataclass(frozen=True)
class DataSet:
    """What a store knows of a data set: all of it may be shown.

    `units` counts the lines of its ledger: rows, or the users of `grouping`.
    """

    name: str
    fingerprint: str
    num_rows: int
    num_classes: int
    units: int
    grouping: str
    budget: Budget
    created: str
    created_by: str
    charges: int = 0

    @property
    def unit(self) -> Unit:
        """Whose labels may change at once."""
        return ONE_USER if self.grouping else ONE_LABEL


@dataclass(frozen=True)
class Entry:
    """One line of a data set's history: who asked what, and what all looks so far cost the worst row."""

    number: int
    time: str
    who: str
    host: str
    note: str
    event: Event
    times: int
    rows: int
    epsilon: float
    receipt: str | None


def describe(
    key: Key, name: str, labels: npt.ArrayLike, num_classes: int, budget: Budget, users: Grouping | None
) -> DataSet:
    """What a store is told about these labels: their keyed hash and how many there are."""
    classes = cast("Any", num_classes)
    if isinstance(classes, bool) or not isinstance(classes, (int, np.integer)) or num_classes < 1:
        raise ValueError(f"num_classes={num_classes!r} is not a number of classes; declare it (≥ 1)")
    if not isinstance(cast("Any", budget), Budget):
        raise ValueError(f"budget={budget!r} is not a budget; give labeldp.Budget(epsilon=..., delta=...)")
    fingerprint, rows = key.fingerprint(labels), len(np.asarray(labels))
    if not rows:
        raise ValueError("labels is empty; there is nothing to protect")
    units, grouping = (rows, "") if users is None else (len(users), users.digest())
    return DataSet(name, fingerprint, rows, int(num_classes), units, grouping, budget, now(), user_name())


def dataset_line(key: Key, dataset: DataSet, head: str, charges: int) -> dict[str, Any]:
    """The line of a data set with so many charges, the last of which has the seal `head`."""
    line = {
        "name": dataset.name, "fingerprint": dataset.fingerprint, "num_rows": dataset.num_rows,
        "num_classes": dataset.num_classes, "units": dataset.units, "grouping": dataset.grouping,
        "epsilon": float(dataset.budget.epsilon), "delta": float(dataset.budget.delta), "created": dataset.created,
        "created_by": dataset.created_by, "charges": charges, "head": head,
    }  # fmt: skip
    return {**line, "seal": _seal(key, line)}


def read_dataset(key: Key, line: Line, store: str) -> DataSet:
    """The data set of a line; StoreError if the line is not as it was written."""
    try:
        dataset = DataSet(
            line["name"], line["fingerprint"], line["num_rows"], line["num_classes"], line["units"], line["grouping"],
            Budget(line["epsilon"], line["delta"]), line["created"], line["created_by"], line["charges"],
        )  # fmt: skip
        whole = dataset_line(key, dataset, line["head"], dataset.charges)["seal"] == line["seal"]
    except (ValueError, TypeError):
        whole, dataset = False, None
    if dataset is None or not whole:
        raise StoreError(tampered(str(line["name"]), store))
    return dataset


def charge_line(
    key: Key, charge: Charge, dataset: int, number: int, units: int, before: str, **said: Any
) -> dict[str, Any]:
    """The line of a charge, sealed over the one before it."""
    asked = units if charge.rows is None else len(charge.rows)
    line = {
        "dataset": dataset, "number": number, "event": json.dumps(event_to_json(charge.event)),
        "times": charge.times, "rows": pack(charge.rows, units), "rows_asked": asked, **said,
    }  # fmt: skip
    return {**line, "seal": _seal(key, line, before)}


def read_charge(key: Key, line: Line, number: int, units: int, before: str) -> Charge | None:
    """The charge of a line; None if it is not as it was written or not the one of this number."""
    body = {name: value for name, value in line.items() if name != "seal"}
    if line["number"] != number or _seal(key, body, before) != line["seal"]:
        return None
    return Charge(event_from_json(json.loads(line["event"])), line["times"], unpack(line["rows"], units))


def read_entry(line: Line) -> Entry:
    """A line for people."""
    return Entry(
        line["number"], line["time"], line["who"], line["host"], line["note"],
        event_from_json(json.loads(line["event"])), line["times"], line["rows_asked"], line["epsilon"], line["receipt"],
    )  # fmt: skip


def refuse_change(old: DataSet, new: DataSet) -> None:
    """Raise StoreError where `new` is not the data set that was given its budget as `old`."""
    if old.fingerprint != new.fingerprint:
        raise StoreError(f"the name {old.name!r} belongs to other labels; choose another one")
    if old.name != new.name:
        raise StoreError(f"these labels have a budget already, under the name {old.name!r}: they cannot have two")
    if old.num_classes != new.num_classes:
        raise StoreError(f"{old.name!r} was declared with {old.num_classes} classes, not {new.num_classes}")
    if (old.units, old.grouping) != (new.units, new.grouping):
        same = "grouped otherwise" if old.grouping and new.grouping else f"not {new.unit.protects}"
        raise StoreError(f"the budget of {old.name!r} is about {old.unit.protects}, {same}")
    if old.budget != new.budget:
        raise StoreError(
            f"{old.name!r} was given {_in_words(old.budget)}, which cannot become {_in_words(new.budget)}: a budget "
            "that can be raised later is none"
        )


def checked_name(name: object) -> str:
    """A name that a table can show."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise StoreError(f"name={name!r} does not name a data set; give a short text, say 'visits-2024'")
    return name


def tampered(name: str, store: str) -> str:
    """What is said of lines whose seals are not whole."""
    return (
        f"the budget of {name!r} in {store!r} was changed or damaged behind the library's back; restore the store from "
        "a backup before asking again"
    )


def user_name() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def now() -> str:
    """The time in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _in_words(budget: Budget) -> str:
    return f"a budget of epsilon {budget.epsilon:g}, delta {budget.delta:g}"


def _seal(key: Key, line: Line, before: str = "") -> str:
    return key.seal(before, [[name, _plain(value)] for name, value in sorted(line.items())])


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    return "inf" if isinstance(value, float) and math.isinf(value) else value
