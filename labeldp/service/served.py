"""Hold the data sets of a service: sealed labels, and the public ids by which analysts choose and order their rows.

An analyst names its rows once, by their ids, and gets a short name for that choice of rows, made from its content: the
same rows in the same order have the same name, in every process. Rows are matched by id; the order is the analyst's.
Ids that are not known, or repeat, are counted and refused, never listed.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from labeldp.budgets.ids import Charge
from labeldp.core.vault import LabelVault, Mechanism
from labeldp.mechanisms.users import Users, UserVault
from labeldp.mechanisms.values import ValueVault
from labeldp.service.source import Source
from labeldp.service.wire import WireError

# Its functions are made at run time, so type checkers know none of them.
pc: Any = pyarrow.compute
Rows = npt.NDArray[np.int64]
# Bytes of row numbers that are remembered; what is forgotten, analysts send again.
MOST_REMEMBERED = 1 << 30


@dataclass(frozen=True, eq=False)
class Served:
    """One data set: its name and what is public of it, and a vault of its labels.

    Args:
        name: as the budget store has it.
        vault: the labels, in the order of the ids.
        ids: of the rows, as texts, all different.
        label: the secret column.
        classes: as declared; empty where the label is a number.
        bounds: of a number, as declared.
        source: where a job reads the labels again; None where there are no jobs.
    """

    name: str
    vault: LabelVault
    ids: pa.Array = field(repr=False)
    label: str = ""
    classes: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None
    source: Source | None = None

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.vault):
            raise ValueError(f"{self.name!r} has {len(self.ids)} ids for {len(self.vault)} labels; give one for each")
        repeats = len(self.ids) - len(self.ids.unique())
        if repeats or self.ids.null_count:
            raise ValueError(
                f"the ids of {self.name!r} have {repeats} repeats and {self.ids.null_count} gaps; name a column that "
                "tells all rows apart"
            )

    @classmethod
    def of_source(cls, name: str, source: Source) -> Served:
        """Return the data set of a Parquet or CSV file: one secret column, sealed, and one of ids."""
        if source.label in (source.ids, source.users):
            raise ValueError(f"the label {source.label!r} cannot say which or whose a row is; name a public column")
        return cls(name, source.seal(), source.read_ids(), source.label, source.classes, source.bounds, source)

    def describe(self) -> dict[str, Any]:
        """Return what an analyst with a grant may know."""
        grid = self.vault.grid if isinstance(self.vault, ValueVault) else None
        return {
            "dataset": self.name, "label": self.label, "rows": len(self.vault), "num_classes": self.vault.num_classes,
            "classes": list(self.classes), "bounds": None if self.bounds is None else list(self.bounds),
            "grid": None if grid is None else [grid.low, grid.high, grid.levels],
            "users": self.units if isinstance(self.vault, UserVault) else None,
            "noise": self.vault.certificate().noise, "seeded": self.vault.seeded,
        }  # fmt: skip

    @property
    def units(self) -> int:
        """How many pay: rows, or users where all labels of a user are protected together."""
        return self.vault.ledger.num_rows

    def users(self, rows: Rows | None) -> Users | None:
        """Return whose these rows are, numbered in their order; None where every label is protected by itself."""
        return self.vault.users.take(rows) if isinstance(self.vault, UserVault) else None

    def payers(self, rows: Rows | None) -> npt.NDArray[np.intp] | None:
        """Return who pays for a query of these rows: the rows or their users; None for all."""
        found = rows
        if rows is not None and isinstance(self.vault, UserVault):
            found = np.unique(self.vault.users.owner[rows])
        return None if found is None or len(found) == self.units else found

    def charges(self, mechanism: Mechanism[Any], rows: Rows | None) -> list[Charge]:
        """Return what one query of these rows costs; ValueError where it does not fit, or has no stated cost."""
        asked = self.vault._charges(mechanism, 1, rows)
        return [
            Charge(event, times, None if who is None or len(who) == self.units else who) for event, times, who in asked
        ]

    def find(self, ids: pa.Array) -> Rows:
        """Return the row of every id; WireError, with counts only, where some are unknown or repeat."""
        places = pc.index_in(ids, value_set=self.ids)
        if places.null_count:
            raise WireError(
                f"{places.null_count} of {len(ids)} ids are not in the data set; leave their rows out. Which ones is "
                "not told"
            )
        rows = places.to_numpy(zero_copy_only=True).astype(np.int64)
        repeats = len(rows) - np.count_nonzero(np.bincount(rows, minlength=len(self.ids)))
        if repeats:
            raise WireError(f"{repeats} of {len(ids)} ids repeat; name each row once")
        return rows


@dataclass(frozen=True, eq=False)
class Choice:
    """Rows of a data set in an analyst's order; None for all of them in the order of the data set."""

    rows: Rows | None
    count: int


class Choices:
    """The choices of rows that analysts have named, by the names made from their content; old ones are forgotten."""

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._lock, self._most, self._held = threading.Lock(), most, 0
        self._known: OrderedDict[tuple[str, str], Choice] = OrderedDict()

    def add(self, dataset: str, name: str, rows: Rows, num_rows: int) -> None:
        """Remember a choice."""
        if len(rows) == num_rows and np.array_equal(rows, np.arange(num_rows)):
            choice = Choice(None, num_rows)
        else:
            rows = rows.astype(np.int64)
            rows.setflags(write=False)
            choice = Choice(rows, len(rows))
        with self._lock:
            self._drop(self._known.pop((dataset, name), None))
            self._known[dataset, name] = choice
            self._held += 0 if choice.rows is None else choice.rows.nbytes
            while self._held > self._most and len(self._known) > 1:
                self._drop(self._known.popitem(last=False)[1])

    def _drop(self, choice: Choice | None) -> None:
        self._held -= 0 if choice is None or choice.rows is None else choice.rows.nbytes

    def get(self, dataset: str, name: str) -> Choice | None:
        """Return a choice; None where it was never named, or is forgotten."""
        with self._lock:
            found = self._known.get((dataset, name))
            if found is not None:
                self._known.move_to_end((dataset, name))
            return found


def name_of_ids(ids: pa.Array) -> str:
    """Return the name of a choice of rows: a hash of the ids in their order, however they were cut into parts."""
    name = hashlib.sha256(f"ids/1 {len(ids)} ".encode())
    name.update(pc.binary_length(ids).to_numpy(zero_copy_only=True).astype("<i8").tobytes())
    offsets = np.frombuffer(ids.buffers()[1], dtype=np.int64)[ids.offset : ids.offset + len(ids) + 1]
    if len(ids) and ids.buffers()[2] is not None:
        name.update(memoryview(ids.buffers()[2])[int(offsets[0]) : int(offsets[-1])])
    return name.hexdigest()[:32]


def name_of_rows(base: str, rows: npt.NDArray[Any]) -> str:
    """Return the name of a choice among the rows of another choice."""
    return hashlib.sha256(f"rows/1 {base} ".encode() + rows.astype("<i8").tobytes()).hexdigest()[:32]
