"""A vault's spending kept in a journal: the smallest `QueryStore`, to test vaults and runs with."""

from collections.abc import Sequence

from labeldp.budgets.journal import Journal
from labeldp.core.events import Event
from labeldp.core.ledger import Charged, Ledger, Unit


class JournalStore:
    """The `store` of a vault that writes what it spends into a journal before anything is drawn.

    A journal charges all rows alike. For every event it is charged with the most that any row has met, so disjoint
    batches cost it once, and no row has ever met more than the journal says. Queries leased under an id are
    charged once, however many processes continue them.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._vault: str | None = None
        self._charged: dict[Event, int] = {}
        self._ledger: Ledger | None = None

    def keep(self, plan: Sequence[Charged], num_rows: int, query_id: str | None) -> None:
        """Charge the journal with what the ledger has more after this plan."""
        if query_id is not None and self.holds(query_id):
            return
        ledger = (self._ledger or Ledger(num_rows)).charge_plan(plan)
        most = _most(ledger)
        for event, times in most.items():
            more = times - self._charged.get(event, 0)
            if more > 0:
                self.journal.charge(event, more, note=_note(query_id) if query_id else "", unit=self.journal.unit)
        self._charged, self._ledger = most, ledger

    def serve(self, vault: str, unit: Unit) -> None:
        if unit != self.journal.unit:
            raise ValueError(f"the journal is about {self.journal.unit.protects}, not {unit.protects}")
        if self._vault not in (None, vault):
            raise ValueError("this store already serves another vault; make one for each vault")
        self._vault = vault

    @property
    def id(self) -> str:
        return str(self.journal.path)

    def begin(self, query_id: str, number: int, index: int, most: int) -> None:
        """Nothing: a journal keeps charges only."""

    def holds(self, query_id: str) -> bool:
        """Whether the queries of this id have been charged, by this process or an earlier one."""
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
