"""Budgets that outlive a process: one SQLite file, or a PostgreSQL database for a team.

A data set is known by a keyed hash of its labels, never by the labels, and has a budget that cannot be changed. A query
is written down, committed and flushed *before* it is taken: a process killed in between leaves its query charged, and
processes that ask at once take turns, so that together they cannot overspend. What is composed is the exact ledger of
every row, over all processes: two halves of the rows asked by two processes cost what one of them costs.

Every line carries a seal under the store's key, over the line before it. A line that was changed, taken out or put in
without the key is found out; an older copy of the whole store, put back in its place, is not.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.budgets.keys import StoreError, StoreKeyError
from labeldp.budgets.tables import (
    CHARGES,
    DATASETS,
    Charge,
    Database,
    DataSet,
    Entry,
    Grouping,
    charge_line,
    charged,
    checked_name,
    dataset_line,
    describe,
    growth,
    largest_growth,
    now,
    open_database,
    read_charge,
    read_dataset,
    read_entry,
    refuse_change,
    sa,
    tampered,
    user_name,
)
from labeldp.core.events import Event
from labeldp.core.ledger import Budget, Ledger, RowIndex, check_budget
from labeldp.core.vault import LabelVault

__all__ = ["Account", "BudgetStore", "Charge", "DataSet", "Entry", "StoreError", "StoreKeyError", "UnknownDataSetError"]


class UnknownDataSetError(StoreError):
    """These labels, or this name, have no budget yet."""


class BudgetStore:
    """Budgets of data sets, kept on disk and shared by processes.

    >>> import tempfile
    >>> from labeldp import Budget, LabelVault, RandomizedResponse
    >>> store = BudgetStore.open(Path(tempfile.mkdtemp()) / "budgets.db")
    >>> labels = [0, 1, 1, 0]
    >>> _ = store.create("visits", labels, num_classes=2, budget=Budget(epsilon=1.5))
    >>> vault = LabelVault(labels, 2, store=store.account(labels, 2))
    >>> private = vault.release(RandomizedResponse(1.0, 2))
    >>> store.epsilon("visits"), [entry.times for entry in store.history("visits")]
    (1.0, [1])
    >>> LabelVault(labels, 2, store=store.account(labels, 2)).release(RandomizedResponse(1.0, 2))
    Traceback (most recent call last):
    labeldp.core.ledger.BudgetExceededError: the budget is epsilon=1.5, delta=0 and this query would bring the \
worst row to epsilon=2; nothing was charged. Ask for less than is left
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        # Per data set what was read and checked so far: charges, seal of the last one, ledger.
        self._known: dict[str, tuple[int, str, Ledger]] = {}

    @classmethod
    def open(
        cls, where: str | Path = "budgets.db", *, key: bytes | str | Path | None = None, create: bool = True
    ) -> BudgetStore:
        """The store at this path or `postgresql://` address.

        Args:
            where: a file, or the address of a PostgreSQL database.
            key: the secret of the store, or a file of mode 600 that holds it in hexadecimal. When None, the file that
                LABELDP_STORE_KEY names; else the file beside the store named like it and `.key`, made with the store.
                PostgreSQL has no such place.
            create: make the store when there is none.
        """
        return cls(open_database(where, key, create))

    def __repr__(self) -> str:
        return f"BudgetStore({self._database.name!r})"

    def create(
        self,
        name: str,
        labels: npt.ArrayLike | LabelVault,
        num_classes: int,
        budget: Budget,
        *,
        users: Grouping | None = None,
    ) -> DataSet:
        """Give these labels a budget, once and for all; doing it again with the same budget changes nothing.

        With `users` the budget, like a `UserVault`, is about all labels of one user.
        """
        wanted = describe(self._database.key, checked_name(name), labels, num_classes, budget, users)
        same = sa.or_(DATASETS.c.name == name, DATASETS.c.fingerprint == wanted.fingerprint)
        with self._database.writing() as connection:
            found = [self._read(line) for line in connection.execute(sa.select(DATASETS).where(same)).mappings()]
            for old in found:
                refuse_change(old, wanted)
            if not found:
                connection.execute(sa.insert(DATASETS).values(**dataset_line(self._database.key, wanted, "", 0)))
        return self.dataset(name)

    def datasets(self) -> tuple[DataSet, ...]:
        """All data sets, in the order of their names."""
        with self._database.reading() as connection:
            lines = connection.execute(sa.select(DATASETS).order_by(DATASETS.c.name)).mappings().all()
        return tuple(self._read(line) for line in lines)

    def dataset(self, name: str) -> DataSet:
        """The data set of this name."""
        with self._database.reading() as connection:
            return self._read(self._line(connection, name))

    def account(
        self,
        labels: npt.ArrayLike | LabelVault,
        num_classes: int,
        *,
        users: Grouping | None = None,
        note: str | None = None,
        host: bool = False,
    ) -> Account:
        """The `store` of one vault of these labels. Their budget must have been made before.

        Args:
            labels, num_classes, users: as the vault is given them; or a vault of the labels.
            note: what the queries are for; the program's name when None.
            host: whether history shows this machine's name.
        """
        wanted = describe(self._database.key, "", labels, num_classes, Budget(0.0), users)
        known = sa.select(DATASETS).where(DATASETS.c.fingerprint == wanted.fingerprint)
        with self._database.reading() as connection:
            line = connection.execute(known).mappings().one_or_none()
        if line is None:
            raise UnknownDataSetError(
                f"these labels have no budget in {self._database.name!r}; give them one with: labeldp budget create. "
                "(Another order or selection of rows is another data set; for a fold use part_of)"
            )
        found = self._read(line)
        refuse_change(found, replace(wanted, name=found.name, budget=found.budget))
        return Account(self, found, False, _note(note), host)

    def part_of(self, name: str, *, note: str | None = None, host: bool = False) -> Account:
        """The `store` of one vault that holds some of the rows of this data set, a fold for example.

        Which rows they are is not known, so every row is charged with the most that any of them has met.
        """
        found = self.dataset(name)
        if found.grouping:
            raise StoreError(f"the budget of {name!r} is about users; open the account of all of its labels")
        return Account(self, found, True, _note(note), host)

    def ledger(self, name: str) -> Ledger:
        """What each row of the data set has met, over all processes."""
        with self._database.reading() as connection:
            return self._replayed(connection, self._line(connection, name))[1]

    def epsilon(self, name: str, delta: float | None = None) -> float:
        """Return what all queries so far cost the worst row, at this δ (the budget's when None)."""
        return self.ledger(name).epsilon(self.dataset(name).budget.delta if delta is None else delta)

    def history(self, name: str) -> tuple[Entry, ...]:
        """Every charge, in order."""
        with self._database.reading() as connection:
            line = self._line(connection, name)
            self._known.pop(self._read(line).fingerprint, None)
            self._replayed(connection, line)
            charges = connection.execute(_charges(line["id"], 0)).mappings().all()
        return tuple(read_entry(charge) for charge in charges)

    def holds(self, name: str, query_id: str) -> bool:
        """Whether queries were charged under this id."""
        with self._database.reading() as connection:
            line = self._line(connection, name)
            self._replayed(connection, line)
            under = sa.select(CHARGES.c.number).where(CHARGES.c.dataset == line["id"], CHARGES.c.receipt == query_id)
            return connection.execute(under).first() is not None

    def reserve(
        self, name: str, charges: Sequence[Charge], *, note: str = "", host: bool = False, query_id: str | None = None
    ) -> None:
        """Write these charges down, all or none, or raise BudgetExceededError; on the disk when it returns."""
        key = self._database.key
        with self._database.writing() as connection:
            line = self._line(connection, name, lock=True)
            dataset, (head, ledger) = self._read(line), self._replayed(connection, line)
            new = charged(ledger, charges)
            check_budget(new.groups(), dataset.budget, dataset.unit)
            said = {
                "receipt": query_id, "who": user_name(), "host": socket.gethostname() if host else "", "note": note,
                "time": now(), "epsilon": new.epsilon(dataset.budget.delta),
            }  # fmt: skip
            for number, charge in enumerate(charges, start=dataset.charges + 1):
                written = charge_line(key, charge, line["id"], number, dataset.units, head, **said)
                connection.execute(sa.insert(CHARGES).values(**written))
                head = written["seal"]
            counted = dataset_line(key, dataset, head, dataset.charges + len(charges))
            connection.execute(sa.update(DATASETS).where(DATASETS.c.id == line["id"]).values(**counted))

    def _line(self, connection: sa.Connection, name: str, lock: bool = False) -> sa.RowMapping:
        # SQLite has no such lock, and needs none: a transaction that writes is alone.
        asked = sa.select(DATASETS).where(DATASETS.c.name == name)
        line = connection.execute(asked.with_for_update() if lock else asked).mappings().one_or_none()
        if line is None:
            raise UnknownDataSetError(
                f"there is no data set {name!r} in {self._database.name!r}; see: labeldp budget show"
            )
        return line

    def _read(self, line: sa.RowMapping) -> DataSet:
        return read_dataset(self._database.key, line, self._database.name)

    def _replayed(self, connection: sa.Connection, line: sa.RowMapping) -> tuple[str, Ledger]:
        """Seal of the last charge, and the ledger. Only what is new since the last time is read."""
        dataset = self._read(line)
        count, head, ledger = self._known.get(dataset.fingerprint, (0, "", Ledger(dataset.units)))
        for written in connection.execute(_charges(line["id"], count)).mappings():
            charge = read_charge(self._database.key, written, count + 1, dataset.units, head)
            if charge is None:
                raise StoreError(tampered(dataset.name, self._database.name))
            count, head, ledger = count + 1, written["seal"], charged(ledger, [charge])
        if (count, head) != (dataset.charges, line["head"]):
            raise StoreError(tampered(dataset.name, self._database.name))
        self._known[dataset.fingerprint] = (count, head, ledger)
        return head, ledger


class Account:
    """The `store` of one vault: what it spends is reserved in a budget store before anything is drawn.

    One account serves one vault: it charges what the vault's ledger has more than last time.
    """

    def __init__(self, store: BudgetStore, dataset: DataSet, part: bool, note: str, host: bool) -> None:
        self._store, self._dataset, self._part, self._note, self._host = store, dataset, part, note, host
        self._last: Ledger | None = None
        self._vault: str | None = None

    @property
    def dataset(self) -> DataSet:
        """Whose budget is charged, as it was when the account was opened."""
        return self._dataset

    @property
    def budget(self) -> Budget:
        """The most that all queries of all processes together may cost."""
        return self._dataset.budget

    def __repr__(self) -> str:
        return f"Account({self._dataset.name!r}, {self._dataset.budget})"

    def __call__(self, ledger: Ledger, query_id: str | None = None) -> None:
        """Reserve what this ledger has more than the last one."""
        last = self._last or Ledger(ledger.num_rows if self._part else self._dataset.units)
        charges = growth(last, ledger)
        if not charges:
            raise StoreError("the vault asks nothing new of any row; open one account for each vault")
        if self._part:
            charges = largest_growth(last, ledger)
        if charges:
            self._store.reserve(self._dataset.name, charges, note=self._note, host=self._host, query_id=query_id)
        self._last = ledger

    def serve(self, vault: str) -> None:
        """Take the id of the vault that uses the account; ValueError for a second one.

        The ledgers of two vaults know nothing of each other: the second would be charged only for what it spends
        beyond the first.
        """
        if self._vault not in (None, vault):
            raise ValueError(
                "this account already serves another vault, and would not count what a second one spends; open one "
                "for each vault (they may share the database)"
            )
        self._vault = vault

    def holds(self, query_id: str) -> bool:
        """Whether the queries of this id have been charged, by this process or an earlier one."""
        return self._store.holds(self._dataset.name, query_id)

    def charge(self, event: Event, times: int = 1, rows: npt.ArrayLike | None = None, note: str | None = None) -> None:
        """Reserve queries that no vault makes, against these rows (all when None)."""
        index: RowIndex | None = None if rows is None else np.asarray(rows, dtype=np.intp)
        said = self._note if note is None else note
        self._store.reserve(self._dataset.name, [Charge(event, times, index)], note=said, host=self._host)

    def epsilon(self, delta: float | None = None) -> float:
        """Return what all queries of all processes so far cost the worst row."""
        return self._store.epsilon(self._dataset.name, delta)


def _charges(dataset: int, after: int) -> sa.Select[Any]:
    wanted = (CHARGES.c.dataset == dataset, CHARGES.c.number > after)
    return sa.select(CHARGES).where(*wanted).order_by(CHARGES.c.number)


def _note(note: str | None) -> str:
    return Path(sys.argv[0]).name if note is None else note
