"""How often each row met each event. The claim is the worst row.

Rows with the same history form a *group*; a group keeps one `Queries` for all its rows. Sequential and parallel
composition need no special case: two disjoint stages at epsilon 1 leave every row with one query (1 in all),
ten rows queried again at 0.5 become a group of their own (1.5).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from labeldp.core import accountant
from labeldp.core.events import Event, Queries, Query

RowIndex = npt.NDArray[np.intp]

# Budgets are typed as decimals and spent as binary floats: three queries at 0.1 are allowed 0.3.
_FLOAT_DUST = 1e-12


# -- the ledger ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """`rows` many rows that have all met exactly the same queries."""

    rows: int
    queries: Queries


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
    histories: tuple[Queries, ...] = ((),)
    # Index into `histories` per row; None while all rows share the only history.
    history_of_row: npt.NDArray[np.int32] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.num_rows < 0:
            raise ValueError(f"num_rows={self.num_rows} is negative; give the number of labels")
        if self.history_of_row is not None:
            self.history_of_row.setflags(write=False)

    def charge(self, event: Event, times: int = 1, rows: npt.ArrayLike | None = None) -> Ledger:
        """Return the ledger after `times` queries of these rows (all when None; indices, unrepeated, otherwise)."""
        add_query((), event, times)
        if rows is None:
            charged = tuple(add_query(queries, event, times) for queries in self.histories)
            return Ledger(self.num_rows, charged, self.history_of_row)
        index = np.asarray(rows, dtype=np.intp)
        before = np.zeros(self.num_rows, dtype=np.int32) if self.history_of_row is None else self.history_of_row
        histories = list(self.histories)
        known = {queries: i for i, queries in enumerate(histories)}
        renamed = np.zeros(len(self.histories), dtype=np.int32)
        for old in map(int, np.unique(before[index])):
            queries = add_query(histories[old], event, times)
            if queries not in known:
                known[queries] = len(histories)
                histories.append(queries)
            renamed[old] = known[queries]
        after = before.copy()
        after[index] = renamed[before[index]]
        # Histories that no row has any more are forgotten.
        used, compact = np.unique(after, return_inverse=True)
        kept = tuple(histories[int(i)] for i in used) or (histories[0],)
        return Ledger(self.num_rows, kept, compact.astype(np.int32) if len(kept) > 1 else None)

    def groups(self) -> tuple[Group, ...]:
        """Return the distinct histories and how many rows have each, the empty ledger included."""
        if self.history_of_row is None:
            return (Group(self.num_rows, self.histories[0]),)
        sizes = np.bincount(self.history_of_row, minlength=len(self.histories))
        return tuple(Group(int(n), queries) for n, queries in zip(sizes, self.histories, strict=True))

    def epsilon(self, delta: float) -> float:
        """Return what the queries so far cost the worst row, at this delta."""
        return worst_epsilon(self.groups(), delta)


def add_query(queries: Queries, event: Event, times: int) -> Queries:
    """Return the queries with one more, equal events merged, in a fixed order so that equal histories are equal."""
    if type(times) is not int or times < 1:
        raise ValueError(f"times={times!r} is not a number of queries; give a whole number of at least 1")
    counts = _counts((*queries, Query(event, times)))
    return tuple(Query(e, t) for e, t in sorted(counts.items(), key=lambda item: repr(item[0])))


def merge_disjoint(parts: Iterable[tuple[Group, ...]]) -> tuple[Group, ...]:
    """Return the groups of data sets that share no row, put side by side (parallel composition)."""
    sizes: dict[Queries, int] = {}
    for group in (group for groups in parts for group in groups):
        sizes[group.queries] = sizes.get(group.queries, 0) + group.rows
    return tuple(Group(rows, queries) for queries, rows in sizes.items())


def worst_epsilon(groups: Iterable[Group], delta: float) -> float:
    """Return the largest epsilon(delta) over the groups that have rows, or queries that no row has met yet."""
    counts = [_counts(group.queries) for group in groups]
    # A history contained in another one cannot be the worst row.
    worst = (mine for mine in counts if not any(_is_less(mine, theirs) for theirs in counts))
    return max((accountant.epsilon([Query(e, t) for e, t in mine.items()], delta) for mine in worst), default=0.0)


def _counts(queries: Queries) -> dict[Event, int]:
    counts: dict[Event, int] = {}
    for query in queries:
        counts[query.event] = counts.get(query.event, 0) + query.times
    return counts


def _is_less(mine: dict[Event, int], theirs: dict[Event, int]) -> bool:
    return mine != theirs and all(theirs.get(event, 0) >= times for event, times in mine.items())


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

    def allows(self, spent: float) -> bool:
        """Whether this much epsilon, at the budget's own delta, is within the budget."""
        return spent <= self.epsilon * (1 + _FLOAT_DUST)


def check_budget(groups: Iterable[Group], budget: Budget | None, unit: Unit = ONE_LABEL) -> None:
    """Raise BudgetExceededError when these groups cost more than the budget."""
    if budget is not None and not budget.allows(spent := worst_epsilon(groups, budget.delta)):
        cost = "without bound" if math.isinf(spent) else f"epsilon={spent:.12g}"
        raise BudgetExceededError(
            f"the budget is epsilon={budget.epsilon:.12g}, delta={budget.delta:.3g} and this query would bring the "
            f"worst {unit.counted[:-1]} to {cost}; nothing was charged. Ask for less than is left"
        )
