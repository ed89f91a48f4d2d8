"""Keep how often each row met each event, plan by plan. The claim is the worst row.

A history is the row's *plans* in order; a plan is the queries that were fixed before the first of them was drawn
(:mod:`labeldp.core.accountant` says why that matters). Rows with the same history form a *group*. Sequential and
parallel composition need no special case: two disjoint stages at epsilon 1 leave every row with one query (1 in all),
ten rows queried again at 0.5 become a group of their own (1.5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from labeldp.core.accountant import Plans, plans_epsilon
from labeldp.core.display import budget_html
from labeldp.core.events import Event, Queries, Query, gathered

RowIndex = npt.NDArray[np.intp]
# Event, times, and the rows of the ledger (None for all of them).
Charged = tuple[Event, int, RowIndex | None]

# Budgets are typed as decimals and spent as binary floats: three queries at 0.1 are allowed 0.3.
_FLOAT_DUST = 1e-12


# -- the ledger ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """`rows` many rows that have all met exactly the same queries, in the same plans."""

    rows: int
    plans: Plans

    @property
    def queries(self) -> Queries:
        """The queries of all plans, equal events merged."""
        return gathered(chain(*self.plans))


@dataclass(frozen=True, eq=False)
class Ledger:
    """The history of every row. Immutable: `charge` returns a new ledger.

    >>> from labeldp.core.events import PureDP
    >>> stages = Ledger(4).charge(PureDP(1.0), rows=[0, 1]).charge(PureDP(1.0), rows=[2, 3])
    >>> stages.epsilon(delta=0)
    1.0
    >>> stages.charge(PureDP(0.5), rows=[3]).epsilon(delta=0)
    1.5
    """

    num_rows: int
    histories: tuple[Plans, ...] = ((),)
    # Index into `histories` per row; None while all rows share the only history.
    history_of_row: npt.NDArray[np.int32] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.num_rows < 0:
            raise ValueError(f"num_rows={self.num_rows} is negative; give the number of labels")
        if self.history_of_row is not None:
            self.history_of_row.setflags(write=False)

    def charge(self, event: Event, times: int = 1, rows: npt.ArrayLike | None = None) -> Ledger:
        """Return the ledger after a plan of `times` queries of these rows (all when None; indices, unrepeated)."""
        return self.charge_plan([(event, times, None if rows is None else np.asarray(rows, dtype=np.intp))])

    def charge_plan(self, charges: Sequence[Charged]) -> Ledger:
        """Return the ledger after one plan of all these charges: the queries of a row among them are one plan there.

        >>> from labeldp.core.events import PureDP
        >>> two = Ledger(3).charge_plan([(PureDP(1.0), 1, None), (PureDP(0.5), 1, np.array([2]))])
        >>> [(group.rows, len(group.plans), len(group.queries)) for group in two.groups()]
        [(2, 1, 1), (1, 1, 2)]
        """
        if not charges:
            return self
        named = [rows for _, _, rows in charges if rows is not None]
        anyone = np.concatenate(named) if len(named) == len(charges) else None
        # An empty plan for everyone who is asked anything, and then the queries.
        ledger = self._changed(anyone, lambda plans: (*plans, ()))
        for event, times, rows in charges:
            if type(times) is not int or times < 1:
                raise ValueError(f"times={times!r} is not a number of queries; give a whole number of at least 1")
            query = Query(event, times)
            ledger = ledger._changed(rows, lambda plans, q=query: (*plans[:-1], gathered((*plans[-1], q))))
        return ledger

    def _changed(self, index: RowIndex | None, change: Callable[[Plans], Plans]) -> Ledger:
        """Return the ledger with the histories of these rows changed once, however often a row is named."""
        if index is None:
            return Ledger(self.num_rows, tuple(map(change, self.histories)), self.history_of_row)
        count = len(self.histories)
        marked = np.zeros(self.num_rows, dtype=np.int32) if self.history_of_row is None else self.history_of_row.copy()
        marked[index] += count
        # Histories that no row has any more are forgotten, and equal ones are one.
        numbers, renamed = dict[Plans, int](), np.zeros(2 * count, dtype=np.int32)
        for i in np.flatnonzero(np.bincount(marked, minlength=2 * count)):
            plans = self.histories[i] if i < count else change(self.histories[i - count])
            renamed[i] = numbers.setdefault(plans, len(numbers))
        histories = tuple(numbers) or self.histories[:1]
        return Ledger(self.num_rows, histories, renamed[marked] if len(numbers) > 1 else None)

    def groups(self) -> tuple[Group, ...]:
        """Return the distinct histories and how many rows have each, the empty ledger included."""
        if self.history_of_row is None:
            return (Group(self.num_rows, self.histories[0]),)
        sizes = np.bincount(self.history_of_row, minlength=len(self.histories))
        return tuple(Group(int(n), plans) for n, plans in zip(sizes, self.histories, strict=True))

    def epsilon(self, delta: float) -> float:
        """Return what the queries so far cost the worst row, at this delta."""
        return worst_epsilon(self.groups(), delta)


def merge_disjoint(parts: Iterable[tuple[Group, ...]]) -> tuple[Group, ...]:
    """Return the groups of data sets that share no row, put side by side (parallel composition)."""
    sizes: dict[Plans, int] = {}
    for group in (group for groups in parts for group in groups):
        sizes[group.plans] = sizes.get(group.plans, 0) + group.rows
    return tuple(Group(rows, plans) for plans, rows in sizes.items())


def worst_epsilon(groups: Iterable[Group], delta: float) -> float:
    """Return the largest epsilon(delta) over the groups: the worst row, even if it is one that no data set has yet."""
    return max((plans_epsilon(plans, delta) for plans in {group.plans for group in groups}), default=0.0)


# -- whose labels may change at once -------------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """What one neighbour may replace.

    Args:
        protects: what the claim is about, in a few words.
        neighbours: when two data sets are neighbours, in full.
        counted: what the ledger counts one of per unit.
    """

    protects: str
    neighbours: str
    counted: str


ONE_LABEL = Unit(
    protects="one label",
    neighbours=(
        "Two data sets are neighbours when one label is replaced by any other. Features, the number of rows, "
        "their order and the set of classes are public."
    ),
    counted="rows",
)
ONE_USER = Unit(
    protects="all labels of one user",
    neighbours=(
        "Two data sets are neighbours when any or all labels of one user are replaced by any others. Features, which "
        "row belongs to which user, the number of rows, their order and the set of classes are public."
    ),
    counted="users",
)
UNITS = (ONE_LABEL, ONE_USER)


def unit_of_words(protects: object, neighbours: object) -> Unit | None:
    """Return the unit worded exactly like this, or None.

    >>> unit_of_words(ONE_USER.protects, ONE_USER.neighbours).counted
    'users'
    """
    return next((unit for unit in UNITS if (unit.protects, unit.neighbours) == (protects, neighbours)), None)


# -- the budget ----------------------------------------------------------------------------------------------


class BudgetExceededError(ValueError):
    """A query was refused because it would cost more than the budget. Nothing was charged or drawn."""


@dataclass(frozen=True)
class Budget:
    """The most that all queries together may cost the worst row.

    >>> Budget(epsilon=1.0)
    Budget(epsilon=1.0, delta=0.0)
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), (int, float)):
                raise ValueError(f"{name}={getattr(self, name)!r} is not a number")
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon={self.epsilon} is not a budget; give a number ≥ 0")
        if not 0 <= self.delta < 1:
            raise ValueError(f"delta={self.delta} is not a probability below 1; give 0 or, say, 1e-6")

    def _repr_html_(self) -> str:
        return budget_html(self)

    def allows(self, spent: float) -> bool:
        """Return whether this much epsilon, at the budget's own delta, is within the budget."""
        return spent <= self.epsilon * (1 + _FLOAT_DUST)


def check_budget(groups: Iterable[Group], budget: Budget | None, unit: Unit = ONE_LABEL) -> None:
    """Raise BudgetExceededError when these groups cost more than the budget."""
    if budget is not None and not budget.allows(spent := worst_epsilon(groups, budget.delta)):
        cost = "without bound" if math.isinf(spent) else f"epsilon={spent:.12g}"
        raise BudgetExceededError(
            f"the budget is epsilon={budget.epsilon:.12g}, delta={budget.delta:.3g} and this query would bring the "
            f"worst {unit.counted[:-1]} to {cost}; nothing was charged. Ask for less than is left"
        )
