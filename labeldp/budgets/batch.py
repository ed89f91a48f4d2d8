"""Charge many plans of one data set in one transaction, for all who spend together and for each of them.

A service answers many small queries. Each would wait for the disk by itself; here they are written down together, and
whoever asked is answered when the transaction has been committed. Lines, seals and budgets are those of
`labeldp.budgets.store`: a batch is read like the charges of many processes.

Whoever spends has a ledger of its own, read from the same lines, and so a budget of its own beside that of all.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, reduce
from itertools import chain, groupby
from typing import Any

import numpy as np

from labeldp.budgets.ids import Charge, Plan, extended
from labeldp.budgets.keys import StoreError
from labeldp.budgets.tables import (
    BEGUN,
    CHARGES,
    DATASETS,
    Database,
    DataSet,
    charge_line,
    dataset_line,
    now,
    read_charge,
    read_dataset,
    recorded_charge,
    sa,
    sealed_line,
    tampered,
)
from labeldp.core.events import PureDP
from labeldp.core.ledger import Budget, BudgetExceededError, Ledger, Unit, check_budget

# What was charged since a ledger was composed, the newest first: (all before it, plan).
_Later = tuple["_Later", Plan] | None


@dataclass(frozen=True, eq=False)
class Book:
    """A ledger, and the plain sum of all that was charged to it, which no row's cost exceeds; None if some has no ε.

    The sum takes no time, whatever the history: a budget that allows even it allows the query. Only where it does not
    is the ledger itself composed, row by row; until then plans are only kept.

    >>> book = Book(Ledger(3)).charged([Charge(PureDP(0.5))]).charged([Charge(PureDP(0.25))])
    >>> float(book.at_most), book.ledger.epsilon(0.0)
    (0.75, 0.75)
    """

    settled: Ledger
    at_most: Fraction | None = Fraction(0)
    later: _Later = field(default=None, repr=False)

    @cached_property
    def ledger(self) -> Ledger:
        """What every row has met."""
        plans, rest = list[Plan](), self.later
        while rest is not None:
            rest, plan = rest
            plans.append(plan)
        ledger = self.settled
        for everybody, run in groupby(reversed(plans), lambda plan: all(each.rows is None for each in plan)):
            if everybody:
                # Many plans of everybody are one change of the histories: row by row they would take as long each.
                new = tuple(chain(*(Ledger(0).charge_plan(plan).histories[0] for plan in run)))
                histories = tuple((*history, *new) for history in ledger.histories)
                ledger = replace(ledger, histories=histories)
            else:
                ledger = reduce(Ledger.charge_plan, run, ledger)
        return ledger

    def sum_with(self, plan: Plan) -> Fraction | None:
        """Return the plain sum after one more plan; None if something in it has no ε."""
        if self.at_most is None:
            return None
        costs = list[Fraction]()
        for each in plan:
            if not isinstance(each.event, PureDP) or not math.isfinite(each.event.epsilon):
                return None
            costs.append(Fraction(each.event.epsilon) * each.times)
        named = [each.rows for each in plan if each.rows is not None]
        if len(named) == len(plan) > 1 and len(np.unique(np.concatenate(named))) == sum(map(len, named)):
            # Nobody pays for two of them: users with few and with many rows, say.
            return self.at_most + max(costs)
        return self.at_most + sum(costs)

    def charged(self, plan: Plan) -> Book:
        """Return the book after one plan."""
        if "ledger" in vars(self):
            return Book(self.ledger, self.sum_with(plan), (None, plan))
        return Book(self.settled, self.sum_with(plan), (self.later, plan))

    def check_with(self, plan: Plan, budget: Budget, unit: Unit) -> None:
        """Raise BudgetExceededError where one more plan would cost some row more than the budget."""
        total = self.sum_with(plan)
        if total is None or total > Fraction(budget.epsilon):
            self.charged(plan).check(budget, unit)

    def extended(self, num_rows: int) -> Book:
        """Return the book with more rows, which have met nothing."""
        return self if num_rows == self.settled.num_rows else Book(extended(self.ledger, num_rows), self.at_most)

    def check(self, budget: Budget, unit: Unit) -> None:
        """Raise BudgetExceededError where some row has cost more than the budget."""
        if self.at_most is None or self.at_most > Fraction(budget.epsilon):
            check_budget(self.ledger.groups(), budget, unit)

    def epsilon(self, delta: float) -> float:
        """Return what the worst row has cost at most: the plain sum where there is one, else what composition gives."""
        return self.ledger.epsilon(delta) if self.at_most is None else float(self.at_most)


# Statements are made once: making one takes longer than running it.
_LINES = (
    sa.select(DATASETS)
    .where(DATASETS.c.name.in_(sa.bindparam("names", expanding=True)))
    .order_by(DATASETS.c.name)
    .with_for_update()
)
_NEWER = (
    sa.select(CHARGES)
    .where(CHARGES.c.dataset == sa.bindparam("dataset"), CHARGES.c.number > sa.bindparam("count"))
    .order_by(CHARGES.c.number)
)
_OF_PLAN = (
    sa.select(CHARGES)
    .where(CHARGES.c.dataset == sa.bindparam("dataset"), CHARGES.c.receipt == sa.bindparam("receipt"))
    .order_by(CHARGES.c.number)
)
_CHARGE, _CHANGE = sa.insert(CHARGES), sa.update(DATASETS).where(DATASETS.c.id == sa.bindparam("which"))


@dataclass(frozen=True)
class State:
    """What was read and checked of a data set's charges so far: how many, the last seal, the books of all and of each.

    Args:
        count: of charges.
        head: the seal of the last one.
        total: the book of all together.
        own: the book of each who spends.
    """

    count: int
    head: str
    total: Book
    own: Mapping[str, Book] = field(default_factory=dict[str, Book])

    @classmethod
    def empty(cls, num_rows: int) -> State:
        """Return the state of a data set that was never charged."""
        return cls(0, "", Book(Ledger(num_rows)))

    def charged(self, plan: Plan, who: str, count: int, head: str) -> State:
        """Return the state after one plan of one of them."""
        rows = self.total.settled.num_rows
        mine = self.own.get(who) or Book(Ledger(rows))
        return State(count, head, self.total.charged(plan), {**self.own, who: mine.extended(rows).charged(plan)})


class Batch:
    """The books of one data set within one transaction, which holds them until it ends.

    Args:
        database: whose transaction it is.
        connection: the transaction.
        name: of the data set.
        known: what an earlier batch of this process found, so that only newer lines are read.
    """

    def __init__(self, database: Database, connection: sa.Connection, name: str, known: State | None = None) -> None:
        (line,) = _lines(database, connection, [name])
        self._begin(database, connection, line, known)

    @classmethod
    def all(
        cls, database: Database, connection: sa.Connection, names: Collection[str], known: Mapping[str, State]
    ) -> dict[str, Batch]:
        """Return the batches of several data sets, read and locked at once, always in the same order."""
        batches: dict[str, Batch] = {}
        for line in _lines(database, connection, names):
            batches[line["name"]] = batch = object.__new__(cls)
            batch._begin(database, connection, line, known.get(line["name"]))
        return batches

    def _begin(self, database: Database, connection: sa.Connection, line: sa.RowMapping, known: State | None) -> None:
        self._database, self._connection, self._id = database, connection, int(line["id"])
        self.dataset: DataSet = read_dataset(database.key, line, database.name)
        self.state = self._replayed(line["head"], known or State.empty(self.dataset.units))
        self._lines: list[dict[str, Any]] = []

    def _replayed(self, head: str, known: State) -> State:
        """Return the state of the committed lines; StoreError where they are not whole."""
        dataset, key = self.dataset, self._database.key
        state = replace(known, total=known.total.extended(dataset.units))
        if (state.count, state.head) == (dataset.charges, head):
            return state
        written = self._connection.execute(_NEWER, {"dataset": self._id, "count": state.count}).mappings()
        for _, lines in groupby(written, lambda each: each["plan"] or each["number"]):
            plan: list[Charge] = []
            who, count, last = "", state.count, state.head
            for each in lines:
                charge = read_charge(key, each, count + 1, dataset.units, last)
                if charge is None:
                    raise StoreError(tampered(dataset.name, self._database.name))
                who, count, last = str(each["who"]), count + 1, str(each["seal"])
                plan.append(charge)
            state = state.charged(plan, who, count, last)
        if (state.count, state.head) != (dataset.charges, head):
            raise StoreError(tampered(dataset.name, self._database.name))
        return state

    def plan_of(self, query_id: str, who: str) -> list[tuple[int, Charge]]:
        """Return what was charged under this id to one who spends, with the number of each charge; nothing if nothing.

        Raises StoreError where the id is somebody else's.
        """
        pending = [line for line in self._lines if line["receipt"] == query_id]
        written = self._connection.execute(_OF_PLAN, {"dataset": self._id, "receipt": query_id}).mappings().all()
        found: list[tuple[int, Charge]] = []
        for line in [*written, *pending]:
            if line["who"] != who:
                raise StoreError(f"the plan {query_id!r} is not yours; give yours an id of its own")
            # Its seal was checked when it was replayed, or made a moment ago.
            charge = recorded_charge(line, self.dataset.units)
            found.append((int(line["number"]), charge))
        return found

    def charge(self, plan: Plan, *, who: str, query_id: str, note: str, own: Budget) -> list[int]:
        """Charge one plan to all and to one of them, or raise BudgetExceededError; return the numbers of its charges.

        What others have spent is not told: where all together would spend too much, the message has no figures.
        """
        dataset = self.dataset
        after = self.state.charged(plan, who, 0, "")
        after.own[who].check(own, dataset.unit)
        try:
            after.total.check(dataset.budget, dataset.unit)
        except BudgetExceededError:
            raise BudgetExceededError(
                f"what is left of {dataset.name!r} for all who spend on it together does not allow this query; nothing "
                "was charged. Ask for less, or ask its owner"
            ) from None
        said = {
            "receipt": query_id, "who": who, "host": "", "note": note, "time": now(),
            "epsilon": after.total.epsilon(dataset.budget.delta),
        }  # fmt: skip
        first, head = self.state.count + 1, self.state.head
        numbers = list(range(first, first + len(plan)))
        for number, charge in zip(numbers, plan, strict=True):
            line = charge_line(self._database.key, charge, self._id, number, dataset.units, head, plan=first, **said)
            self._lines.append(line)
            head = line["seal"]
        self.state = replace(after, count=numbers[-1], head=head)
        return numbers

    def count_draws(self, query_id: str) -> None:
        """Let the draws of prepaid queries that are charged under this id be counted, by `BudgetStore.begin`."""
        line = sealed_line(self._database.key, dataset=self._id, receipt=query_id, batches="{}")
        self._connection.execute(sa.insert(BEGUN).values(**line))

    def write(self, *others: Batch) -> None:
        """Write all charges of this batch, and of others; they are on the disk when the transaction is committed."""
        batches = [batch for batch in (self, *others) if batch._lines]
        if not batches:
            return
        self._connection.execute(_CHARGE, [line for batch in batches for line in batch._lines])
        self._connection.execute(_CHANGE, [batch._changed() for batch in batches])

    def _changed(self) -> dict[str, Any]:
        changed = replace(self.dataset, charges=self.state.count, begun=self.dataset.begun or 0)
        return {**dataset_line(self._database.key, changed, self.state.head), "which": self._id}


def _lines(database: Database, connection: sa.Connection, names: Collection[str]) -> list[sa.RowMapping]:
    """Return the lines of data sets, and hold them until the transaction ends."""
    found = list(connection.execute(_LINES, {"names": list(names)}).mappings())
    for name in set(names) - {line["name"] for line in found}:
        raise StoreError(f"there is no data set {name!r} in {database.name!r}; see: labeldp budget show")
    return found
