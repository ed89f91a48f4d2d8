"""A vault's spending kept in a journal, so that a budget outlives the process."""

from __future__ import annotations

from labeldp.accounting.events import Event
from labeldp.accounting.journal import Journal
from labeldp.accounting.ledger import Ledger


class JournalStore:
    """The `store` of a vault that writes what it spends into a journal before anything is drawn.

    A journal charges all rows alike. For every event it is charged with the most that any row has met, so disjoint
    batches cost it once, and no row has ever met more than the journal says. Looks leased under a receipt are
    charged once, however many processes continue them.

    >>> import tempfile, pathlib
    >>> from labeldp import Budget, LabelVault, RandomizedResponse
    >>> journal = Journal.open(pathlib.Path(tempfile.mkdtemp()) / "labels.journal", Budget(1.5))
    >>> vault = LabelVault([0, 1, 1], num_classes=2, store=JournalStore(journal))
    >>> _ = vault.release(RandomizedResponse(1.0, 2), rows=[0]), vault.release(RandomizedResponse(1.0, 2), rows=[1])
    >>> journal.epsilon(delta=0)
    1.0
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._charged: dict[Event, int] = {}

    def __call__(self, ledger: Ledger, receipt: str | None = None) -> None:
        """Charge the journal with what this ledger has more than the last one."""
        most = _most(ledger)
        for event, times in most.items():
            more = times - self._charged.get(event, 0)
            if more > 0:
                self.journal.charge(event, more, note=_note(receipt) if receipt else "")
        self._charged = most

    def holds(self, receipt: str) -> bool:
        """Whether the looks of this receipt have been charged, by this process or an earlier one."""
        return _note(receipt) in self.journal.notes()


def _most(ledger: Ledger) -> dict[Event, int]:
    """For every event, how often it was met by the row that met it most often."""
    most: dict[Event, int] = {}
    for group in ledger.groups():
        for look in group.looks:
            most[look.event] = max(most.get(look.event, 0), look.times)
    return most


def _note(receipt: str) -> str:
    return f"lease {receipt}"
