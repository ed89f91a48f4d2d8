"""A vault's spending kept in a journal, so that a budget outlives the process."""

from __future__ import annotations

from labeldp.accounting.events import Event
from labeldp.accounting.journal import Journal
from labeldp.accounting.ledger import Ledger


class OneVault:
    """A store that is charged with what a ledger has *more* than the last one, so every ledger must be of one vault.

    The ledgers of two vaults know nothing of each other: the second would be charged only for what it spends beyond the
    first.
    """

    _vault: str | None = None

    def serve(self, vault: str) -> None:
        """Called by a vault with its id when it takes the store; ValueError for a second vault."""
        if self._vault not in (None, vault):
            raise ValueError(
                f"this {type(self).__name__} already serves another vault, and would not count what a second one "
                "spends; make one for each vault (they may share the journal or database)"
            )
        self._vault = vault


class JournalStore(OneVault):
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
