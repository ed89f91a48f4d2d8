"""Keep budgets that outlive a process, in one SQLite file, or in a PostgreSQL database for a team.

A data set is known by a keyed hash of its labels, never by the labels, and has a budget that cannot be changed. A query
is written down, committed and flushed *before* it is taken: a process killed in between leaves its query charged, and
processes that ask at once take turns, so that together they cannot overspend. What is composed is the exact ledger of
every row, over all processes: two halves of the rows asked by two processes cost what one of them costs.

The hash of the labels knows them again only in the same order: a reordered or filtered table is another data set. With
`ids` every row is known by a keyed hash of a public id instead, and meets what it has spent wherever it turns up. Ids
must be the data owner's: a row with a new id starts at zero.

Queries that are paid for in advance (`LabelVault.lease` with a counter) are counted here, too, before each is drawn:
copies of a run's folder together draw no more than was charged.

Every line carries a seal under the store's key, over the line before it. A line that was changed, taken out or put in
without the key is found out; an older copy of the whole store, put back in its place, is found out by the counter of a
run that it has forgotten, and by nothing else.
"""

from __future__ import annotations

import json
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.budgets.ids import KIND, Charge, Hashes, Ids, Plan, by_unit, extended, numbered
from labeldp.budgets.keys import StoreError, StoreKeyError
from labeldp.budgets.tables import (
    BEGUN,
    CHARGES,
    DATASETS,
    IDS,
    Database,
    DataSet,
    Entry,
    charge_line,
    checked_name,
    dataset_line,
    describe,
    now,
    open_database,
    read_charge,
    read_dataset,
    read_entry,
    recorded_charge,
    refuse_change,
    sa,
    sealed_line,
    tampered,
    user_name,
    whole_line,
)
from labeldp.core.display import at_most, table
from labeldp.core.events import Event, Queries
from labeldp.core.ledger import Budget, BudgetExceededError, Charged, Ledger, RowIndex, Unit, check_budget
from labeldp.core.vault import LabelVault, digest

__all__ = ["Account", "BudgetStore", "Charge", "DataSet", "Entry", "StoreError", "StoreKeyError", "UnknownDataSetError"]


class UnknownDataSetError(StoreError):
    """These labels, or this name, have no budget yet."""


class BudgetStore:
    """Budgets of data sets, kept on disk and shared by processes.

    >>> import tempfile
    >>> from labeldp import Budget, LabelVault, RandomizedResponse
    >>> store = BudgetStore.open(Path(tempfile.mkdtemp()) / "budgets.db")
    >>> labels = LabelVault([0, 1, 1, 0], num_classes=2)
    >>> _ = store.create("visits", labels, Budget(epsilon=1.5))
    >>> vault = labels.part(store=store.account(labels))
    >>> private = vault.release(RandomizedResponse(1.0, 2))
    >>> store.epsilon("visits"), [entry.times for entry in store.history("visits")]
    (1.0, [1])
    >>> labels.part(store=store.account(labels)).release(RandomizedResponse(1.0, 2))
    Traceback (most recent call last):
    labeldp.core.ledger.BudgetExceededError: the budget is epsilon=1.5, delta=0 and this query would bring the \
worst row to epsilon=2; nothing was charged. Ask for less than is left
    """

    def __init__(self, database: Database, ids: Ids | None = None) -> None:
        self._database, self._given = database, ids
        # Per data set what was read and checked so far: charges, seal of the last one, ledger.
        self._known: dict[str, tuple[int, str, Ledger]] = {}

    @classmethod
    def open(
        cls, where: str | Path = "budgets.db", *, key: bytes | str | Path | None = None, create: bool = True
    ) -> BudgetStore:
        """Open the store at this path or `postgresql://` address.

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

    def _repr_html_(self) -> str:
        head = ("data set", "labels", "ε budget", "ε spent", "ε left", "δ", "charges")
        lines: list[tuple[object, ...]] = []
        for one in self.datasets():
            spent, most = self.epsilon(one.name), one.budget
            left = max(0.0, most.epsilon - spent)
            numbers = (at_most(most.epsilon), at_most(spent), f"{left:.6g}", at_most(most.delta))
            lines.append((one.name, f"{one.units:,} {one.unit.counted}", *numbers, one.charges))
        return table(f"Budgets in {self._database.name}", lines, head)

    @property
    def id(self) -> str:
        """A random name of the store, public: what tells it from another one."""
        return self._database.id

    def with_ids(self, ids: Ids) -> BudgetStore:
        """Return the same store for rows with these ids: what `create` and `account` take when they are given none."""
        return BudgetStore(self._database, ids)

    def create(self, name: str, vault: LabelVault, budget: Budget, *, ids: Ids | None = None) -> DataSet:
        """Give the labels of a vault a budget, once and for all; doing it again with the same budget changes nothing.

        Args:
            name: what the data set is called from now on.
            vault: the labels. The budget of a `UserVault` is about all labels of one user.
            budget: the most that all queries together may cost.
            ids: one public id per row by which the store knows it again, whatever table it comes in: whole numbers or
                text, the data owner's; of a `UserVault`, those of the users. An id has one budget in a store: another
                secret column of the same rows needs a store of its own.
        """
        key, ids = self._database.key, self._given if ids is None else ids
        wanted, hashes = describe(key, checked_name(name), vault, budget, ids)
        same = sa.or_(DATASETS.c.name == name, DATASETS.c.fingerprint == wanted.fingerprint)
        with self._database.writing() as connection:
            found = [self._read(line) for line in connection.execute(sa.select(DATASETS).where(same)).mappings()]
            for old in found:
                refuse_change(old, wanted)
            met = {} if hashes is None else self._met(connection, hashes)
            for other in met.keys() - {name}:
                raise StoreError(
                    f"{met[other]} of these ids have a budget already, under the name {other!r}: they cannot have two. "
                    "Another secret column of the same rows needs a store of its own"
                )
            if found and hashes is not None and name not in met:
                raise StoreError(f"the name {name!r} belongs to rows with other ids; choose another one")
            if not found:
                made = connection.execute(sa.insert(DATASETS).values(**dataset_line(key, wanted, "")))
                if hashes is not None and made.inserted_primary_key is not None:
                    self._add_ids(connection, made.inserted_primary_key[0], 0, numbered(hashes[:0], hashes)[1])
        return self.dataset(name)

    def datasets(self) -> tuple[DataSet, ...]:
        """Return all data sets, in the order of their names."""
        with self._database.reading() as connection:
            lines = connection.execute(sa.select(DATASETS).order_by(DATASETS.c.name)).mappings().all()
        return tuple(self._read(line) for line in lines)

    def dataset(self, name: str) -> DataSet:
        """Return the data set of this name."""
        with self._database.reading() as connection:
            return self._read(self._line(connection, name))

    def account(
        self,
        vault: LabelVault,
        *,
        ids: Ids | None = None,
        dataset: str | None = None,
        note: str | None = None,
        host: bool = False,
    ) -> Account:
        """Return the `store` of one vault of these labels: `vault.part(store=...)`. They must have a budget.

        Args:
            vault: the labels.
            ids: the id of every row, where the budget was made with ids. Rows in any order, some of them, or new ones.
            dataset: the name of the data set; needed where all ids are new.
            note: what the queries are for; the program's name when None.
            host: whether history shows this machine's name.
        """
        ids = self._given if ids is None else ids
        wanted, hashes = describe(self._database.key, "", vault, Budget(0.0), ids)
        with self._database.reading() as connection:
            known = sa.select(DATASETS).where(DATASETS.c.fingerprint == wanted.fingerprint)
            line = connection.execute(known).mappings().one_or_none()
            names: set[str] = set() if line is None else {self._read(line).name}
            if hashes is not None:
                names |= self._met(connection, hashes).keys() | ({dataset} if dataset else set[str]())
            if not names:
                raise UnknownDataSetError(
                    f"these labels have no budget in {self._database.name!r}; give them one with: labeldp budget "
                    "create. (Another order or selection of rows is another data set, unless rows are known by ids; "
                    "for a fold use part_of)"
                )
            name = names.pop()
            if names or dataset not in (None, name):
                known_as = " and as ".join(map(repr, sorted({name, *names} - {dataset})))
                raise StoreError(
                    f"dataset={dataset!r}, but the store knows these labels as {known_as}; open the account of each "
                    "part under its own name"
                )
            found = self._read(self._line(connection, name))
        refuse_change(found, replace(wanted, name=found.name, budget=found.budget))
        return Account(self, found, False, _note(note), host, hashes)

    def part_of(self, name: str, *, note: str | None = None, host: bool = False) -> Account:
        """Return the `store` of one vault that holds some of the rows of this data set, a fold for example.

        Which rows they are is not known, so every row is charged with the most that any of them has met.
        """
        found = self.dataset(name)
        if found.grouping:
            raise StoreError(f"the budget of {name!r} is about users; open the account of all of its labels")
        return Account(self, found, True, _note(note), host)

    def ledger(self, name: str) -> Ledger:
        """Return what each row of the data set has met, over all processes."""
        with self._database.reading() as connection:
            return self._replayed(connection, self._line(connection, name))[1]

    def epsilon(self, name: str, delta: float | None = None) -> float:
        """Return what all queries so far cost the worst row, at this δ (the budget's when None)."""
        return self.ledger(name).epsilon(self.dataset(name).budget.delta if delta is None else delta)

    def history(self, name: str) -> tuple[Entry, ...]:
        """Return every charge, in order."""
        with self._database.reading() as connection:
            line = self._line(connection, name)
            self._known.pop(self._read(line).fingerprint, None)
            self._replayed(connection, line)
            charges = connection.execute(_charges(line["id"], 0)).mappings().all()
        return tuple(read_entry(charge) for charge in charges)

    def holds(self, name: str, query_id: str) -> bool:
        """Return whether queries were charged under this id."""
        with self._database.reading() as connection:
            line = self._line(connection, name)
            self._replayed(connection, line)
            return self._held(connection, line, query_id)

    def reserve(
        self,
        name: str,
        plans: Sequence[Plan],
        *,
        ids: Hashes | None = None,
        note: str = "",
        host: bool = False,
        query_id: str | None = None,
    ) -> bool:
        """Write these plans down, all or none, or raise BudgetExceededError; on the disk when it returns.

        Returns whether it did: False where these queries were charged under this id before. StoreError where others
        were: what is drawn under an id is what was paid for under it.

        The charges of a plan are composed as one, whose queries were fixed before the first was drawn. With `ids`, the
        hash of every row, they are about these rows; rows that are new join the data set.
        """
        key = self._database.key
        with self._database.writing() as connection:
            line = self._line(connection, name, lock=True)
            dataset, (head, ledger) = self._read(line), self._replayed(connection, line)
            new: Hashes | None = None
            if ids is not None:
                places, new = numbered(self._ids(connection, line), ids)
                plans = [by_unit(plan, places) for plan in plans]
            if query_id is not None and self._held(connection, line, query_id):
                self._check_same(connection, line, query_id, plans)
                return False
            if new is not None:
                self._add_ids(connection, line["id"], dataset.units, new)
                dataset = replace(dataset, units=dataset.units + len(new))
            after = reduce(Ledger.charge_plan, plans, extended(ledger, dataset.units))
            check_budget(after.groups(), dataset.budget, dataset.unit)
            said = {
                "receipt": query_id, "who": user_name(), "host": socket.gethostname() if host else "", "note": note,
                "time": now(), "epsilon": after.epsilon(dataset.budget.delta),
            }  # fmt: skip
            number = dataset.charges
            for plan in plans:
                first = number + 1
                for number, charge in enumerate(plan, start=first):
                    written = charge_line(key, charge, line["id"], number, dataset.units, head, plan=first, **said)
                    connection.execute(sa.insert(CHARGES).values(**written))
                    head = written["seal"]
            if query_id is not None:
                begun = sealed_line(key, dataset=line["id"], receipt=query_id, batches="{}")
                connection.execute(sa.insert(BEGUN).values(**begun))
            self._write(connection, line, replace(dataset, charges=number, begun=dataset.begun or 0), head)
        return True

    def begin(self, name: str, query_id: str, number: int, index: int, most: int) -> None:
        """Write down that prepaid query `index` (1, 2, …) of batch `number` begins; on the disk when it returns.

        Raises:
            StoreError: it was begun before, by another copy of the run or by this one before it was put back.
            BudgetExceededError: fewer were paid for.
        """
        key = self._database.key
        with self._database.writing() as connection:
            line = self._line(connection, name, lock=True)
            dataset = self._read(line)
            lines = connection.execute(sa.select(BEGUN).where(BEGUN.c.dataset == line["id"])).mappings().all()
            begun: dict[str, dict[str, int]] = {each["receipt"]: json.loads(each["batches"]) for each in lines}
            total = sum(sum(batches.values()) for batches in begun.values())
            paid = sa.select(CHARGES.c.times, CHARGES.c.plan).where(
                CHARGES.c.dataset == line["id"], CHARGES.c.receipt == query_id
            )
            charges = connection.execute(paid).all()
            lost = query_id not in begun and any(charge.plan is not None for charge in charges)
            if total != (dataset.begun or 0) or lost or not all(whole_line(key, each) for each in lines):
                raise StoreError(tampered(dataset.name, self._database.name))
            if query_id not in begun and not charges:
                raise StoreError(f"nothing was charged to {name!r} under the query id {query_id!r}; lease the queries")
            batches = begun.get(query_id, {})
            if index > min(most, max((charge.times for charge in charges), default=most)):
                raise BudgetExceededError(f"query {index} of {most} was not paid for under {query_id!r}; lease more")
            if index <= batches.get(str(number), 0):
                raise StoreError(
                    f"query {index} was begun before, and {batches[str(number)]} of {most} are: this run is a copy, or "
                    "an older copy was put in its place. Go on with the newest one, or use a new folder and pay again"
                )
            written = sealed_line(
                key, dataset=line["id"], receipt=query_id, batches=json.dumps({**batches, str(number): index})
            )
            here = (BEGUN.c.dataset == line["id"], BEGUN.c.receipt == query_id)
            connection.execute(
                sa.update(BEGUN).where(*here).values(**written)
                if query_id in begun
                else sa.insert(BEGUN).values(**written)
            )
            more = index - batches.get(str(number), 0)
            self._write(connection, line, replace(dataset, begun=total + more), line["head"])

    def _held(self, connection: sa.Connection, line: sa.RowMapping, query_id: str) -> bool:
        under = ((table.c.dataset == line["id"], table.c.receipt == query_id) for table in (CHARGES, BEGUN))
        return any(connection.execute(sa.select(sa.literal(1)).where(*these)).first() for these in under)

    def _check_same(self, connection: sa.Connection, line: sa.RowMapping, query_id: str, plans: Sequence[Plan]) -> None:
        """Raise StoreError unless these plans are what was charged under the id; a part may have had nothing to pay."""
        dataset = self._read(line)
        written = sa.select(CHARGES).where(CHARGES.c.dataset == line["id"], CHARGES.c.receipt == query_id)
        charged = [recorded_charge(each, dataset.units) for each in connection.execute(written).mappings()]

        def named(charges: Iterable[Charge]) -> Counter[tuple[Event, int, str]]:
            everyone = np.arange(dataset.units)
            return Counter((c.event, c.times, digest(np.sort(everyone if c.rows is None else c.rows))) for c in charges)

        if charged and any(plans) and named(charged) != named(chain(*plans)):
            raise StoreError(
                f"other queries, or other rows, were charged to {dataset.name!r} under the query id {query_id!r}; use "
                "a new folder, and pay for these"
            )

    def _write(self, connection: sa.Connection, line: sa.RowMapping, dataset: DataSet, head: str) -> None:
        values = dataset_line(self._database.key, dataset, head)
        connection.execute(sa.update(DATASETS).where(DATASETS.c.id == line["id"]).values(**values))

    def _met(self, connection: sa.Connection, hashes: Hashes) -> dict[str, int]:
        """Return how many of these ids each data set knows, where it knows some."""
        bound = connection.execute(sa.select(DATASETS).where(DATASETS.c.bound == "ids")).mappings().all()
        distinct = set(hashes.tolist())
        met = {self._read(line).name: len(distinct & set(self._ids(connection, line).tolist())) for line in bound}
        return {name: count for name, count in met.items() if count}

    def _ids(self, connection: sa.Connection, line: sa.RowMapping) -> Hashes:
        """Return the hash of every line of a data set's ledger."""
        dataset, hashes = self._read(line), b""
        written = sa.select(IDS).where(IDS.c.dataset == line["id"]).order_by(IDS.c.first)
        size = np.dtype(KIND).itemsize
        for each in connection.execute(written).mappings():
            if each["first"] * size != len(hashes) or not whole_line(self._database.key, each):
                raise StoreError(tampered(dataset.name, self._database.name))
            hashes += each["hashes"]
        if len(hashes) != dataset.units * size:
            raise StoreError(tampered(dataset.name, self._database.name))
        return np.frombuffer(hashes, KIND)

    def _add_ids(self, connection: sa.Connection, dataset: int, first: int, new: Hashes) -> None:
        if len(new):
            line = sealed_line(self._database.key, dataset=dataset, first=first, hashes=new.tobytes())
            connection.execute(sa.insert(IDS).values(**line))

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
        """Return the seal of the last charge, and the ledger. Only what is new since the last time is read."""
        dataset = self._read(line)
        count, head, ledger = self._known.get(dataset.fingerprint, (0, "", Ledger(dataset.units)))
        ledger = extended(ledger, dataset.units)
        written = connection.execute(_charges(line["id"], count)).mappings()
        # A line of the first version is a plan of its own.
        for _, lines in groupby(written, lambda each: each["plan"] or each["number"]):
            plan: list[Charge] = []
            for each in lines:
                charge = read_charge(self._database.key, each, count + 1, dataset.units, head)
                if charge is None:
                    raise StoreError(tampered(dataset.name, self._database.name))
                count, head = count + 1, each["seal"]
                plan.append(charge)
            ledger = ledger.charge_plan(plan)
        if (count, head) != (dataset.charges, line["head"]):
            raise StoreError(tampered(dataset.name, self._database.name))
        self._known[dataset.fingerprint] = (count, head, ledger)
        return head, ledger


class Account:
    """The `store` of one vault: what it spends is reserved in a budget store before anything is drawn.

    One account serves one vault.
    """

    def __init__(
        self, store: BudgetStore, dataset: DataSet, part: bool, note: str, host: bool, ids: Hashes | None = None
    ) -> None:
        self._store, self._dataset, self._part, self._note, self._host = store, dataset, part, note, host
        self._ids = ids
        # Of a part, what its rows have met.
        self._charged: Ledger | None = None
        self._vault: str | None = None

    @property
    def id(self) -> str:
        """A random name of the store, public."""
        return self._store.id

    @property
    def dataset(self) -> DataSet:
        """Whose budget is charged, as it was when the account was opened."""
        return self._dataset

    @property
    def budget(self) -> Budget:
        """The most that all queries of all processes together may cost."""
        return self._dataset.budget

    @property
    def by_row(self) -> bool:
        """Whether every row is charged for itself: neither a part, which charges all rows, nor ids that repeat."""
        return not self._part and (self._ids is None or len(np.unique(self._ids)) == len(self._ids))

    def __repr__(self) -> str:
        return f"Account({self._dataset.name!r}, {self._dataset.budget})"

    def keep(self, plan: Sequence[Charged], num_rows: int, query_id: str | None = None) -> None:
        """Reserve one plan of the vault, whose ledger has so many rows, unless it is held under this id."""
        plans, charged = [[Charge(*charge) for charge in plan]], self._charged
        if self._part:
            charged = self._charged or Ledger(num_rows)
            plans, charged = largest_growth(charged, after := charged.charge_plan(plan)), after
        elif num_rows != (expected := self._dataset.units if self._ids is None else len(self._ids)):
            raise StoreError(f"the ledger has {num_rows} lines where {expected} are expected")
        if (not plans and query_id is None) or self._reserve(plans, self._note, query_id):
            self._charged = charged

    def serve(self, vault: str, unit: Unit) -> None:
        """Take the id of the vault that uses the account; ValueError for a second one, or for another unit.

        Two vaults may hold different parts of a data set: the second would be charged only for what its rows meet
        beyond those of the first. And what a row has met cannot be added to what a user has met.
        """
        self._check_unit(unit)
        if self._vault not in (None, vault):
            raise ValueError(
                "this account already serves another vault, and would not count what a second one spends; open one "
                "for each vault (they may share the database)"
            )
        self._vault = vault

    def holds(self, query_id: str) -> bool:
        """Return whether the queries of this id have been charged, by this process or an earlier one."""
        return self._store.holds(self._dataset.name, query_id)

    def begin(self, query_id: str, number: int, index: int, most: int) -> None:
        """Write down that a prepaid query begins; see `BudgetStore.begin`."""
        self._store.begin(self._dataset.name, query_id, number, index, most)

    def charge(
        self,
        event: Event,
        times: int = 1,
        rows: npt.ArrayLike | None = None,
        note: str | None = None,
        unit: Unit | None = None,
    ) -> None:
        """Reserve queries that no vault makes, against these rows (all when None), or users where these are counted."""
        self._check_unit(self._dataset.unit if unit is None else unit)
        index: RowIndex | None = None if rows is None else np.asarray(rows, dtype=np.intp)
        self._reserve([[Charge(event, times, index)]], self._note if note is None else note)

    def _check_unit(self, unit: Unit) -> None:
        if unit != self._dataset.unit:
            raise ValueError(
                f"the budget of {self._dataset.name!r} is about {self._dataset.unit.protects}, and this would count "
                f"what is spent on {unit.protects}; the two cannot be added up"
            )

    def _reserve(self, plans: Sequence[Plan], note: str, query_id: str | None = None) -> bool:
        return self._store.reserve(
            self._dataset.name, plans, ids=self._ids, note=note, host=self._host, query_id=query_id
        )  # fmt: skip

    def epsilon(self, delta: float | None = None) -> float:
        """Return what all queries of all processes so far cost the worst row."""
        return self._store.epsilon(self._dataset.name, delta)


def _charges(dataset: int, after: int) -> sa.Select[Any]:
    wanted = (CHARGES.c.dataset == dataset, CHARGES.c.number > after)
    return sa.select(CHARGES).where(*wanted).order_by(CHARGES.c.number)


def _note(note: str | None) -> str:
    return Path(sys.argv[0]).name if note is None else note


def largest_growth(before: Ledger, after: Ledger) -> list[Plan]:
    """Return as plans against all rows how much the most that any row has met of every plan has grown.

    Over the life of a ledger every plan that a row has met was charged as one, and not as parts of a larger one: what
    was fixed in advance together may not be taken apart and chosen bit by bit.
    """
    grown = _most(after) - _most(before)
    return [[Charge(query.event, query.times) for query in plan] for plan in grown.elements()]


def _most(ledger: Ledger) -> Counter[Queries]:
    """Return for every plan how often the row that met it most often did."""
    most: Counter[Queries] = Counter()
    for group in ledger.groups():
        most |= Counter(group.plans)
    return most
