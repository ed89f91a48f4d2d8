"""LabelVault: the one place where true labels live.

A vault answers mechanisms and nothing else. Each answer is paid for first: new ledger, compared with the
budget, stored, and only then drawn. A refused look leaves no trace; a crash can only over-count.

The vault is a capability, not a prison. It stops accidents (a printed label, a pickled data set, classes read
off the data, an error message that quotes a row); it does not stop a programmer who reaches into private
attributes. It shrinks what an auditor must read to `private/`, `accounting/` and `releases.py`.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from labeldp.accounting.certificate import Certificate, certify
from labeldp.accounting.events import Event, NonPrivate, event_to_json
from labeldp.accounting.ledger import Budget, Ledger, RowIndex, check_budget
from labeldp.accounting.spending import OneVault
from labeldp.accounting.tally import Tally
from labeldp.private.lease import Lease, MechanismError, draw, stay_home
from labeldp.private.mechanism import LabelArray, Mechanism
from labeldp.private.randomness import SecureRandom
from labeldp.private.sealing import sealed_labels

__all__ = ["LabelVault", "Lease", "LedgerStore", "MechanismError", "ReceiptStore"]

Out = TypeVar("Out")
LedgerStore = Callable[[Ledger], None]


@runtime_checkable
class ReceiptStore(Protocol):
    """A store that knows looks it was charged for by an earlier process (`labeldp.accounting.spending`)."""

    def __call__(self, ledger: Ledger, receipt: str | None = None) -> None:
        """Keep what this ledger has more than the last one, under this receipt."""
        ...

    def holds(self, receipt: str) -> bool:
        """Whether the looks of this receipt are kept already."""
        ...


class LabelVault:
    """Labels behind a door that only takes mechanisms.

    Args:
        labels: integers 0 … num_classes − 1, one per row. Copied; the caller should drop its own reference.
        num_classes: how many classes there are. Declared, never read off the data: that would leak.
        budget: refuse any look that would cost the worst row more than this. None keeps count only.
        store: called with the new ledger before every draw; when it raises, nothing is drawn. A `ReceiptStore` is not
            charged again for a lease that another process began.
        rng: the noise. Fresh operating-system entropy when None; `SecureRandom(seed=...)` is for tests, and the
            certificate says so.

    >>> from labeldp import LabelVault, RandomizedResponse
    >>> vault = LabelVault([0, 1, 2, 1], num_classes=3)
    >>> private = vault.release(RandomizedResponse(epsilon=1.0, num_classes=3))
    >>> len(private), vault.certificate().epsilon
    (4, 1.0)
    """

    def __init__(
        self,
        labels: npt.ArrayLike,
        num_classes: int,
        budget: Budget | None = None,
        *,
        store: LedgerStore | None = None,
        rng: SecureRandom | None = None,
    ) -> None:
        if budget is not None and not isinstance(cast("Any", budget), Budget):
            raise ValueError(f"budget={budget!r} is not a budget; give labeldp.Budget(epsilon=..., delta=...)")
        self.__labels = sealed_labels(labels, num_classes)
        self._num_classes = num_classes
        self._budget = budget
        self._store = store
        self._rng = rng if rng is not None else SecureRandom()
        self._ledger = Ledger(len(self.__labels))
        # Without the leases that the store already held; None while there are none.
        self._stored: Ledger | None = None
        self._receipts: set[str] = set()
        self._lock = threading.Lock()
        self._home = os.getpid()
        self._id = secrets.token_hex(16)
        if isinstance(store, OneVault):
            store.serve(self._id)

    def __len__(self) -> int:
        return len(self.__labels)

    @property
    def num_classes(self) -> int:
        """How many classes were declared."""
        return self._num_classes

    @property
    def budget(self) -> Budget | None:
        """The most that all looks together may cost; fixed when the labels were sealed."""
        return self._budget

    @property
    def id(self) -> str:
        """A random name for this vault, public: tells kept answers of this vault from those of another."""
        return self._id

    def __repr__(self) -> str:
        return f"LabelVault({len(self)} labels, num_classes={self.num_classes}, budget={self.budget})"

    def release(self, mechanism: Mechanism[Out], rows: npt.ArrayLike | None = None) -> Out:
        """Pay for one answer about these rows (all when None), then draw it.

        `rows` are indices without repeats, or a mask; the answer follows their order. Rows the caller names
        are charged plainly: no amplification is claimed for them.
        """
        return self.lease(mechanism, 1, rows)()

    def lease(
        self, mechanism: Mechanism[Out], times: int, rows: npt.ArrayLike | None = None, *, tally: Tally | None = None
    ) -> Lease[Out]:
        """Pay for `times` answers now and return a callable that draws them one by one.

        The learner gets the callable and nothing else. Looks not drawn stay paid for. With a tally the lease outlives
        the process: another vault of the same labels pays for the whole of it in its own ledger, so that its
        certificate covers it, and can draw only what no process has begun to draw. A vault pays for a tally once.
        """
        if tally is None:
            index = self._paid(mechanism, times, rows)
        else:
            index = None if rows is None else self._checked_rows(rows)
            self._fitted(mechanism, index)
            self._charge_counted(mechanism.event(), times, index, (len(self),), tally)
        return self._leased(mechanism, times, index, 0, tally)

    def lease_batches(
        self,
        mechanisms: Sequence[Mechanism[Out]],
        times: int,
        batches: Sequence[npt.ArrayLike],
        *,
        tally: Tally | None = None,
    ) -> tuple[Lease[Out], ...]:
        """Pay at once for `times` answers about each of these batches, one mechanism to a batch; see `lease`.

        No row may be in two batches, and all mechanisms must cost the same: each row then pays for its own batch.
        """
        if not 0 < len(mechanisms) == len(batches):
            raise ValueError(f"{len(mechanisms)} mechanisms for {len(batches)} batches; give one for each")
        parts = [self._checked_rows(rows) for rows in batches]
        for mechanism, part in zip(mechanisms, parts, strict=True):
            self._fitted(mechanism, part)
        events = {mechanism.event() for mechanism in mechanisms}
        if len(events) != 1:
            raise ValueError(f"the {len(parts)} batches have {len(events)} different events; they must cost the same")
        together = self._checked_rows(np.concatenate(parts))
        self._charge_counted(events.pop(), times, together, tuple(map(len, parts)), tally)
        both = zip(mechanisms, parts, strict=True)
        return tuple(self._leased(mechanism, times, part, i, tally) for i, (mechanism, part) in enumerate(both))

    def _leased(
        self, mechanism: Mechanism[Out], times: int, rows: RowIndex | None, number: int, tally: Tally | None
    ) -> Lease[Out]:
        chosen = self.__labels if rows is None else _read_only(self.__labels[rows])
        left, before = times, None
        if tally is not None:
            left, before = max(0, times - tally.drawn(number)), lambda: tally.count(number, times)
        return Lease(lambda *args: draw(mechanism, chosen, self._rng, *args), left, before)

    def record(self, mechanism: Mechanism[Any], rows: npt.ArrayLike | None = None) -> None:
        """Pay for an answer that was drawn earlier, by a vault that is gone, and is about to be used again.

        A run that continues in a new process has its answers but a new vault; the ledger must say what they cost.
        """
        self._paid(mechanism, 1, rows)

    def _paid(self, mechanism: Mechanism[Any], times: int, rows: npt.ArrayLike | None) -> RowIndex | None:
        index = None if rows is None else self._checked_rows(rows)
        self._fitted(mechanism, index)
        self._charge(mechanism.event(), times, index)
        return index

    def _fitted(self, mechanism: Mechanism[Any], index: RowIndex | None) -> None:
        if isinstance(mechanism, type) or not hasattr(mechanism, "fits"):
            raise ValueError(f"{mechanism!r} is not a mechanism; give an instance, say RandomizedResponse(1.0, 10)")
        mechanism.fits(len(self) if index is None else len(index), self.num_classes)

    def reveal(self, reason: str) -> npt.NDArray[np.int64]:
        """Hand out the true labels. The certificate then says infinity, and gives the reason."""
        self._charge(NonPrivate(reason), 1, None)
        return self.__labels.astype(np.int64)

    @property
    def ledger(self) -> Ledger:
        """What has been paid for so far, per row."""
        return self._ledger

    def certificate(self, delta: float | None = None) -> Certificate:
        """The claim so far, at this delta (the budget's delta when None, else 0)."""
        if delta is None:
            delta = self.budget.delta if self.budget else 0.0
        return certify(self._ledger.groups(), delta, noise=self._rng.source, seeded=self._rng.seed is not None)

    def _charge(self, event: Event, times: int, rows: RowIndex | None, receipt: str | None = None) -> None:
        stay_home(self._home)
        with self._lock:
            if receipt in self._receipts:
                return
            new = self._ledger.charge(event, times, rows)
            check_budget(new.groups(), self.budget)
            self._keep(new, event, times, rows, receipt)
            self._ledger = new
            if receipt is not None:
                self._receipts.add(receipt)

    def _charge_counted(
        self, event: Event, times: int, rows: RowIndex | None, sizes: tuple[int, ...], tally: Tally | None
    ) -> None:
        """Charge looks that a tally counts; it is bound to them first, so that it can never count others."""
        if self._ledger.num_rows != len(self):
            raise ValueError(f"{self!r} does not charge row by row; ask it with release or a plain lease")
        if tally is not None:
            asked = "all" if rows is None else _digest(rows, sizes)
            data = {"labels": len(self), "classes": self.num_classes, "rows asked": asked}
            tally.bind({"event": event_to_json(event), "times": times, **data})
        self._charge(event, times, rows, None if tally is None else tally.receipt)

    def _keep(self, new: Ledger, event: Event, times: int, rows: RowIndex | None, receipt: str | None) -> None:
        """Call the store, unless it holds these looks since an earlier process."""
        store = self._store
        if store is None:
            return
        if receipt is not None and isinstance(store, ReceiptStore):
            if store.holds(receipt):
                self._stored = self._ledger if self._stored is None else self._stored
                return
            store = partial(store, receipt=receipt)
        kept = new if self._stored is None else self._stored.charge(event, times, rows)
        store(kept)
        self._stored = None if self._stored is None else kept

    def _checked_rows(self, rows: npt.ArrayLike) -> RowIndex:
        index = np.asarray(rows)
        if index.dtype == np.bool_:
            if index.shape != (len(self),):
                raise ValueError(f"rows is a mask of shape {index.shape}; it must be ({len(self)},)")
            return np.flatnonzero(index)
        return _checked_index(index, len(self))

    def __iter__(self) -> NoReturn:
        raise TypeError("a LabelVault cannot be iterated; ask it with release(mechanism)")

    def __getitem__(self, _: object) -> NoReturn:
        raise TypeError("a LabelVault cannot be indexed; ask it with release(mechanism, rows=...)")

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a LabelVault is not an array; ask it with release(mechanism)")

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError("a LabelVault cannot be pickled or copied; true labels must not leave it")


def _read_only(labels: LabelArray) -> LabelArray:
    labels.setflags(write=False)
    return labels


def _checked_index(index: npt.NDArray[Any], num_rows: int) -> RowIndex:
    if index.ndim != 1 or (index.size and index.dtype.kind not in "iu"):
        raise ValueError(f"rows has shape {index.shape} and type {index.dtype}; give a list of row numbers or a mask")
    index = index.astype(np.intp)
    outside = int(((index < 0) | (index >= num_rows)).sum())
    if outside:
        raise ValueError(f"rows has {outside} entries outside 0 … {num_rows - 1}")
    seen = np.zeros(num_rows, dtype=bool)
    seen[index] = True
    repeats = len(index) - int(np.count_nonzero(seen))
    if repeats:
        raise ValueError(f"rows has {repeats} repeats; name each row once (ask again to pay again)")
    return index


def _digest(rows: RowIndex, sizes: tuple[int, ...]) -> str:
    """A short public name for these rows in these batches."""
    return hashlib.sha256(repr(sizes).encode() + rows.astype(np.int64).tobytes()).hexdigest()[:16]
