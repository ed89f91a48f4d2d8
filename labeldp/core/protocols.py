"""Say what a vault expects of a mechanism, of the store that keeps its charges, and of the counter of its queries.

Signatures only. Mechanisms are written in `labeldp.mechanisms`; stores and counters, which outlive a process, in
`labeldp.budgets`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from labeldp.core.events import Event
from labeldp.core.ledger import Charged, Ledger, Unit
from labeldp.core.random import SecureRandom

Out_co = TypeVar("Out_co", covariant=True)
LabelArray = npt.NDArray[np.unsignedinteger[Any]]


class Mechanism(Protocol[Out_co]):
    """A query of labels. A frozen dataclass: every field is public, secrets are only arguments.

    The vault calls the three methods in this order: `fits` (refuse before anything is spent), `event` (what
    one query costs the worst row), `sample` (draw it). Only the vault calls `sample`, or a mechanism made of others.
    """

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError if the mechanism's public settings do not fit these rows. Sees no label."""
        ...

    def event(self) -> Event:
        """Return what one query costs, under the replacement of one label."""
        ...

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> Out_co:
        """Draw one release. `labels` is read-only and must not be kept; all noise comes from `rng`."""
        ...


@runtime_checkable
class QueryStore(Protocol):
    """A store that knows queries it was charged for by an earlier process (`labeldp.budgets.store.Account`)."""

    @property
    def id(self) -> str:
        """A random name of what keeps it: the same for all who charge it."""
        ...

    def serve(self, vault: str, unit: Unit) -> None:
        """Take the id of the vault that uses the store, and its unit; ValueError for a second vault or another unit."""
        ...

    def keep(self, plan: Sequence[Charged], num_rows: int, query_id: str | None) -> None:
        """Keep one plan of a ledger with so many rows, under this id, unless it is kept already; or raise.

        On the disk when it returns.
        """
        ...

    def holds(self, query_id: str) -> bool:
        """Return whether the queries of this id are kept already."""
        ...

    def begin(self, query_id: str, number: int, index: int, most: int) -> None:
        """Write down that query `index` (1, 2, …) of batch `number` begins; raise if it did before, or is too many."""
        ...


# What keeps a vault's charges: or a function that is called with the new ledger before every draw. When it raises,
# nothing is drawn.
LedgerStore = Callable[[Ledger], None] | QueryStore

# Stores that count prepaid queries, each with the id under which it knows them and their batch or place in a plan.
Stores = Sequence[tuple[QueryStore, str, int]]


class LeaseCounter(Protocol):
    """Counts the prepaid queries of a run over all its processes (`labeldp.budgets.counter.QueryCounter`)."""

    @property
    def query_id(self) -> str:
        """The random name under which the queries were paid for."""
        ...

    def bind(self, charge: Mapping[str, Any], stores: Stores = ()) -> None:
        """Fix what the queries cost, before they are paid for; raise if it was fixed to something else.

        `stores` count the queries, too: where there is none, a copy of the counter must be refused.
        """
        ...

    def drawn(self, number: int = 0) -> int:
        """Return how many queries of batch `number` were begun."""
        ...

    def count(self, number: int = 0, most: int | None = None, stores: Stores = ()) -> None:
        """Write down that a query of batch `number` begins, unless `most` have begun; return when it is on disk."""
        ...
