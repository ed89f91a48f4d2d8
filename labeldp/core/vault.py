"""Keep true labels in one place, a LabelVault, and answer mechanisms only.

A vault runs mechanisms and nothing else. Each query is paid for first: new ledger, compared with the
budget, stored, and only then drawn. A refused query leaves no trace; a crash can only over-count.

The vault is a capability, not a prison. It stops accidents (a printed label, a pickled data set, classes read
off the data, an error message that quotes a row); it does not stop a programmer who reaches into private
attributes. It shrinks what an auditor must read to `core/`, `releases.py` and the file of each mechanism.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from labeldp.core.certificate import Certificate, certify
from labeldp.core.events import Event, NonPrivate, event_to_json
from labeldp.core.ledger import (
    ONE_LABEL,
    Budget,
    BudgetExceededError,
    Charged,
    Ledger,
    RowIndex,
    Unit,
    check_budget,
)
from labeldp.core.protocols import LabelArray, LeaseCounter, LedgerStore, Mechanism, QueryStore, Stores
from labeldp.core.random import SecureRandom
from labeldp.core.sealing import fingerprint, row_numbers, sealed_labels

__all__ = ["LabelArray", "LabelVault", "Lease", "Mechanism", "MechanismError"]

Out = TypeVar("Out")
# Row numbers without repeats, or a mask; None for all rows.
Rows = npt.ArrayLike | None
# A release and nothing, or nothing and why there is none.
Drawn = tuple[Out | None, BaseException | None]

# A charge with its rows named by their digest, so that equal ones are equal.
Named = tuple[Event, int, str]


class LabelVault:
    """Labels behind a door that only takes mechanisms.

    Args:
        labels: integers 0 … num_classes − 1, one per row. Copied; the caller should drop its own reference.
        num_classes: how many classes there are. Declared, never read off the data: that would leak.
        budget: refuse any query that would cost the worst row more than this. None keeps count only.
        store: called with the new ledger before every draw; when it raises, nothing is drawn. A `QueryStore` is not
            charged again for a lease that another process began.
        rng: the noise. Fresh operating-system entropy when None; `SecureRandom(seed=...)` is for tests, and the
            certificate says so.

    >>> from labeldp import LabelVault, RandomizedResponse
    >>> vault = LabelVault([0, 1, 2, 1], num_classes=3)
    >>> private = vault.release(RandomizedResponse(epsilon=1.0, num_classes=3))
    >>> len(private), vault.certificate().epsilon
    (4, 1.0)
    """

    # Whose labels are protected together: what the ledger counts.
    unit: ClassVar[Unit] = ONE_LABEL

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
        self._rng = rng if rng is not None else SecureRandom()
        self._home = os.getpid()
        # The vault that this one is a part of, and its rows there; see `part`.
        self._whole: tuple[LabelVault, RowIndex | None] | None = None
        # What the certificate must say besides the ledger: sentences, and whether a recorded release was seeded.
        self._assumptions: tuple[str, ...] = ()
        self._recorded_seeded = False
        self._open_books(budget, store, len(self.__labels))

    def _open_books(self, budget: Budget | None, store: LedgerStore | None, units: int) -> None:
        self._budget, self._store, self._ledger = budget, store, Ledger(units)
        # What was paid for under an id, and its place in a plan; see `_charge`.
        self._paid: dict[str | None, tuple[list[Named], int]] = {}
        # What this vault may draw, where it is that of a plan, and the plans made of it; see `plan`.
        self._reserved: Reserved | None = None
        self._plans: list[tuple[Reserved, Self]] = []
        self._lock, self._id = threading.Lock(), secrets.token_hex(16)
        if isinstance(store, QueryStore):
            store.serve(self._id, self.unit)

    def __len__(self) -> int:
        return len(self.__labels)

    @property
    def num_classes(self) -> int:
        """How many classes were declared."""
        return self._num_classes

    @property
    def budget(self) -> Budget | None:
        """The most that all queries together may cost; fixed when the labels were sealed."""
        return self._budget

    @property
    def id(self) -> str:
        """A random name for this vault, public: tells kept releases of this vault from those of another."""
        return self._id

    @property
    def place(self) -> str:
        """A public name of its rows among those of the vault that it is a part of; "all" where it has all of them."""
        parts = (vault._whole[1] for vault in self._lineage() if vault._whole is not None)
        return " of ".join(digest(rows) for rows in parts if rows is not None) or "all"

    @property
    def seeded(self) -> bool:
        """Whether any noise behind this vault's certificate came from a seed, in this process or an earlier one."""
        return self._rng.seed is not None or self._recorded_seeded

    @property
    def stores(self) -> tuple[LedgerStore, ...]:
        """The stores that its queries are charged to: its own, and those of the vaults that it is a part of."""
        return tuple(vault._store for vault in self._lineage() if vault._store is not None)

    @property
    def ledger(self) -> Ledger:
        """What has been paid for so far, per row."""
        return self._ledger

    def __repr__(self) -> str:
        return f"LabelVault({len(self)} labels, num_classes={self.num_classes}, budget={self.budget})"

    # -- queries ---------------------------------------------------------------------------------------------

    def release(self, mechanism: Mechanism[Out], rows: Rows = None) -> Out:
        """Pay for one query of these rows (all when None), then draw it.

        `rows` are indices without repeats, or a mask; the release follows their order. Rows the caller names
        are charged plainly: no amplification is claimed for them.
        """
        return self.lease(mechanism, 1, rows)()

    def lease(
        self, mechanism: Mechanism[Out], times: int, rows: Rows = None, *, counter: LeaseCounter | None = None
    ) -> Lease[Out]:
        """Pay for `times` queries now and return a callable that draws them one by one.

        The learner gets the callable and nothing else. Queries not drawn stay paid for. With a counter the lease
        outlives the process: another vault of the same labels pays for the whole of it in its own ledger, so that its
        certificate covers it, and can draw only what no process has begun to draw. A vault pays for a counter once.
        """
        return self.lease_batches([mechanism], times, [rows], counter=counter)[0]

    def lease_batches(
        self,
        mechanisms: Sequence[Mechanism[Out]],
        times: int,
        batches: Sequence[Rows],
        *,
        counter: LeaseCounter | None = None,
    ) -> tuple[Lease[Out], ...]:
        """Pay at once for `times` queries of each of these batches, one mechanism to a batch; see `lease`.

        No row may be in two batches, and all mechanisms must cost the same: each row then pays for its own batch.
        """
        if not 0 < len(mechanisms) == len(batches):
            raise ValueError(f"{len(mechanisms)} mechanisms for {len(batches)} batches; give one for each")
        parts = [self._checked_rows(rows) for rows in batches]
        asked = [self._charges(mechanism, times, part) for mechanism, part in zip(mechanisms, parts, strict=True)]
        charges, rows, sizes = asked[0], parts[0], [len(self)]
        if len(parts) > 1:
            self._check_by_row()
            named = cast("list[RowIndex]", parts)
            rows, sizes = self._checked_rows(np.concatenate(named)), list(map(len, named))
            charges = [(event, times, rows) for event in {event for ((event, _, _),) in asked}]
            if len(charges) != 1:
                raise ValueError(
                    f"the {len(parts)} batches have {len(charges)} different events; they must cost the same"
                )
        if counter is not None:
            self._bind(counter, charges, times, rows, sizes)
        query_id = None if counter is None else counter.query_id
        place, leases = self._charge(charges, query_id), list[Lease[Out]]()
        for number, (mechanism, part) in enumerate(zip(mechanisms, parts, strict=True)):
            self.assume(*getattr(mechanism, "assumptions", ()))
            sample = partial(draw, mechanism, self._chosen(part), self._rng)
            leases.append(Lease(sample, times, self._counting(query_id, place + number), counter, number))
        return tuple(leases)

    def record(
        self, mechanism: Mechanism[Any], rows: Rows = None, *, seeded: bool = False, query_id: str | None = None
    ) -> None:
        """Pay for a release that was drawn earlier, by a vault that is gone, and is about to be used again.

        A run that continues in a new process has its releases but a new vault; the ledger must say what they cost.
        `seeded` is what `LabelVault.seeded` was where the release was drawn: the mark stays for ever. A store that
        holds `query_id`, the id of the counter under which it was paid for, is not charged again.
        """
        self._charge(self._charges(mechanism, 1, self._checked_rows(rows)), query_id)
        self.assume(*getattr(mechanism, "assumptions", ()))
        for vault in self._lineage() if seeded else ():
            vault._recorded_seeded = True

    def assume(self, *sentences: str) -> None:
        """Let the certificate name what the claim rests on and the ledger cannot show.

        >>> vault = LabelVault([0, 1], num_classes=2)
        >>> vault.assume("The list of classes was read off the labels and is declared public.")
        >>> vault.certificate().assumptions
        ('The list of classes was read off the labels and is declared public.',)
        """
        for vault in self._lineage():
            vault._assumptions = tuple(dict.fromkeys([*vault._assumptions, *sentences]))

    def _lineage(self) -> Iterator[LabelVault]:
        """Yield this vault and those that it is a part of: what this one's certificate must say, so must theirs."""
        vault = self
        while vault is not None:
            yield vault
            vault = None if vault._whole is None else vault._whole[0]

    def reveal(self, reason: str) -> npt.NDArray[np.int64]:
        """Hand out the true labels. The certificate then says infinity, and gives the reason."""
        self._charge([(NonPrivate(reason), 1, None)])
        return self.__labels.astype(np.int64)

    def certificate(self, delta: float | None = None) -> Certificate:
        """Return the claim so far, at this delta (the budget's delta when None, else 0)."""
        delta = delta if delta is not None else self.budget.delta if self.budget else 0.0
        return certify(
            self._ledger.groups(), delta, noise=self._rng.source, seeded=self.seeded, unit=self.unit,
            assumptions=self._assumptions,
        )  # fmt: skip

    def part(self, rows: Rows = None, budget: Budget | None = None, *, store: LedgerStore | None = None) -> Self:
        """Return a vault of some rows (all when None) with a ledger, a budget and a store of its own.

        What the part is charged, this vault is charged first: its ledger covers all of its parts, and so does its
        budget. The certificate of a part is about the queries of that part alone.

        >>> vault = LabelVault([0, 1, 1], num_classes=2)
        >>> part = vault.part([0, 2], Budget(1.0))
        >>> len(part), part.budget, len(part.ledger.groups()), len(vault.ledger.groups())
        (2, Budget(epsilon=1.0, delta=0.0), 1, 1)
        """
        index = self._checked_rows(rows)
        part = object.__new__(type(self))
        vars(part).update(vars(self), _whole=(self, index))
        part.__labels = self._chosen(index)
        part._open_books(budget, store, self._ledger.num_rows if index is None else len(index))
        return part

    def plan(self, queries: Sequence[tuple[Event, int, Rows]], *, query_id: str | None = None) -> Self:
        """Return a vault that can draw these queries (event, times, rows) of this one, each once, and nothing else.

        All of them are paid for with the first that is drawn, as one plan: their events are fixed before any outcome,
        so they compose as tightly as independent ones, and less tightly otherwise (`labeldp.core.accountant`).
        Mechanisms may still depend on what the plan gave before, a prior say; their events and rows may not. Refused at
        once when the budget does not allow all of it. What is not drawn stays paid for: a plan of this vault that still
        has all of these queries is gone on with. `query_id` names one that goes on in another process: a store that
        holds it is not charged again, and counts what is drawn.

        >>> from labeldp import RandomizedResponse
        >>> vault = LabelVault([0, 1, 1], num_classes=2)
        >>> from labeldp.core.events import PureDP
        >>> plan = vault.plan([(PureDP(1.0), 1, None), (PureDP(0.5), 1, [0, 2])])
        >>> _ = plan.release(RandomizedResponse(1.0, 2)), plan.release(RandomizedResponse(0.5, 2), [0, 2])
        >>> [len(group.plans) for group in vault.ledger.groups()]
        [1, 1]
        """
        self._check_by_row()
        reserved = Reserved([(event, times, self._checked_rows(rows)) for event, times, rows in queries], query_id)
        for earlier, plan in self._plans:
            if earlier.given_id == query_id and earlier.left >= reserved.left:
                return plan
        if reserved.query_id in self._paid:
            raise BudgetExceededError(f"the plan {query_id!r} has fewer queries left than asked for; pay for a new one")
        check_budget(self._ledger.charge_plan(reserved.charges).groups(), self.budget, self.unit)
        plan = self.part()
        plan._reserved, plan._id = reserved, self._id
        self._plans.append((reserved, plan))
        return plan

    def fingerprint(self, secret: bytes, rows: Rows = None) -> str:
        """Return the keyed hash of the labels (of these rows) by which a budget store knows them.

        It is not private, and nothing is charged: it is for the owner's store, under the owner's key; see
        `labeldp.core.sealing`.
        """
        return fingerprint(self._chosen(self._checked_rows(rows)), secret)

    # -- paying ----------------------------------------------------------------------------------------------

    def _charges(self, mechanism: Mechanism[Any], times: int, index: RowIndex | None) -> Sequence[Charged]:
        """Return what `times` queries of these rows cost."""
        self._check_fit(mechanism, index)
        return [(mechanism.event(), times, index)]

    def _check_fit(self, mechanism: Mechanism[Any], index: RowIndex | None) -> None:
        if isinstance(mechanism, type) or not hasattr(mechanism, "fits"):
            raise ValueError(f"{mechanism!r} is not a mechanism; give an instance, say RandomizedResponse(1.0, 10)")
        mechanism.fits(len(self) if index is None else len(index), self.num_classes)

    def _check_by_row(self) -> None:
        if self._ledger.num_rows != len(self):
            raise ValueError(f"{self!r} does not charge row by row; query it with release or a plain lease")

    def _charge(self, charges: Sequence[Charged], query_id: str | None = None) -> int:
        """Charge all of it or nothing, stored before anything is drawn; return its place in a plan, else 0.

        What was paid for under an id is not paid for again, and nothing else can be drawn under it.
        """
        stay_home(self._home)
        names = [] if query_id is None else list(map(_named, charges))
        with self._lock:
            if query_id in self._paid:
                paid, place = self._paid[query_id]
                if paid != names:
                    raise ValueError(
                        f"other queries were paid for under the id {query_id!r}; give these one of their own"
                    )
                return place
            plan = self._reserved
            if plan is None:
                place = self._pay(charges, query_id)
            else:
                place = plan.place(charges)
                if not plan.paid:
                    self._pay(plan.charges, plan.query_id)
                plan.take(place)
            if query_id is not None:
                self._paid[query_id] = names, place
            return place

    def _pay(self, charges: Sequence[Charged], query_id: str | None) -> int:
        """Charge one plan: this vault within its budget, the vault it is a part of, and the store."""
        new, place = self._ledger.charge_plan(charges), 0
        check_budget(new.groups(), self.budget, self.unit)
        if self._whole is not None:
            whole, own = self._whole
            there = [(e, n, rows if own is None else own if rows is None else own[rows]) for e, n, rows in charges]
            place = whole._charge(there, _known_as(query_id, own))
        if self._store is None:
            pass
        elif isinstance(self._store, QueryStore):
            self._store.keep(charges, new.num_rows, query_id)
        else:
            self._store(new)
        self._ledger = new
        return place

    def _bind(
        self, counter: LeaseCounter, charges: Sequence[Charged], times: int, rows: RowIndex | None, sizes: Sequence[int]
    ) -> None:
        """Bind a counter to what it counts, before it is paid for, so that it can never count anything else."""
        if len(charges) != 1:
            raise ValueError(f"{charges[0][0]!r} costs users differently; lease it without a counter")
        data = {"labels": len(self), "classes": self.num_classes, **self._binding(rows, sizes)}
        # No vault goes on with the draws of a seed, nor a seeded one with others.
        seeded = {"seeded": True} if self._rng.seed is not None else {}
        bound = {"event": event_to_json(charges[0][0]), "times": times, **data, **seeded}
        counter.bind(bound, self._counting(counter.query_id))

    def _binding(self, rows: RowIndex | None, sizes: Sequence[int]) -> dict[str, str]:
        """Return the name of the rows that a counter is for, and of how they are cut into batches."""
        return {"rows asked": "all" if rows is None else digest(rows, sizes)}

    def _counting(self, query_id: str | None, place: int = 0) -> list[tuple[QueryStore, str, int]]:
        """Return the stores that count prepaid queries, here and in the whole, with the id and the place there."""
        known = query_id if self._reserved is None else self._reserved.query_id
        stores = [(self._store, known, place)] if known is not None and isinstance(self._store, QueryStore) else []
        if self._whole is not None:
            stores += self._whole[0]._counting(_known_as(known, self._whole[1]), place)
        return stores

    # -- drawing ---------------------------------------------------------------------------------------------

    def _chosen(self, rows: RowIndex | None) -> LabelArray:
        if rows is None:
            return self.__labels
        chosen = self.__labels[rows]
        chosen.setflags(write=False)
        return chosen

    def _checked_rows(self, rows: Rows) -> RowIndex | None:
        if rows is None:
            return None
        # A copy, whatever was given: nobody can change it between the charge and the draw.
        index, num_rows = row_numbers(rows, len(self)).astype(np.intp), len(self)
        outside = int(((index < 0) | (index >= num_rows)).sum())
        if outside:
            raise ValueError(f"rows has {outside} entries outside 0 … {num_rows - 1}")
        repeats = len(index) - np.count_nonzero(np.bincount(index, minlength=num_rows))
        if repeats:
            raise ValueError(f"rows has {repeats} repeats; name each row once (query again to pay again)")
        return index

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            "a LabelVault cannot be iterated, indexed, copied, pickled or turned into an array: true labels must not "
            "leave it; query it with release(mechanism, rows=...)"
        )

    __iter__ = __getitem__ = __array__ = __reduce_ex__ = _refuse


class Reserved:
    """The queries of a plan, and which of them were not drawn yet."""

    def __init__(self, charges: list[Charged], given_id: str | None) -> None:
        # In an order of their own, and under an id with their name: in any process, the same id means the same places.
        self.charges = sorted(charges, key=lambda charge: repr(_named(charge)))
        self.given_id, self.paid = given_id, False
        self._open = dict(enumerate(map(_named, self.charges)))
        name = hashlib.sha256(repr(list(self._open.values())).encode()).hexdigest()[:16]
        self.query_id = None if given_id is None else f"{given_id} {name}"

    @property
    def left(self) -> Counter[Named]:
        """What was not drawn yet."""
        return Counter(self._open.values())

    def place(self, charges: Sequence[Charged]) -> int:
        """Return which query of the plan this is; BudgetExceededError unless it was reserved and not drawn yet."""
        ((event, times, rows),) = charges
        found = [place for place, name in self._open.items() if name == _named(charges[0])]
        if not found:
            raise BudgetExceededError(
                f"{times} × {event!r} of {'all' if rows is None else len(rows)} rows is not in the plan, or was drawn; "
                "a plan holds what was fixed before its first query, so query the vault itself"
            )
        return found[0]

    def take(self, place: int) -> None:
        """Write down that this one is drawn."""
        self.paid = True
        del self._open[place]


def _named(charge: Charged) -> Named:
    event, times, rows = charge
    return event, times, "all" if rows is None else digest(np.sort(rows))


def _known_as(query_id: str | None, part: RowIndex | None) -> str | None:
    """Return the id of a part's queries in the whole: a counter is not paid for by another part, of other rows."""
    return query_id if part is None or query_id is None else f"{query_id} {digest(part)}"


def digest(rows: RowIndex, sizes: Sequence[int] | None = None) -> str:
    """Return a short public name of a list of numbers, and of how it is cut into batches."""
    cut = b"" if sizes is None else repr(tuple(sizes)).encode()
    return hashlib.sha256(cut + rows.astype(np.int64).tobytes()).hexdigest()[:16]


def stay_home(home: int) -> None:
    """Refuse in a forked process: what it spends, its parent's ledger would not know."""
    if os.getpid() != home:
        raise RuntimeError("a LabelVault cannot be used in a forked process: its spending would be lost; query before")


# -- leases --------------------------------------------------------------------------------------------------


class MechanismError(RuntimeError):
    """A mechanism failed while it held labels. Its own message is withheld: it could quote a label."""


class Lease(Generic[Out]):
    """Prepaid queries: call it to draw the next one.

    Before each is drawn it is counted: by the counter of a lease that outlives the process, and by the stores.
    """

    def __init__(
        self, draw: Callable[..., Drawn[Out]], times: int, stores: Stores, counter: LeaseCounter | None, number: int
    ) -> None:
        self._draw, self._times, self._stores, self._counter, self._number = draw, times, stores, counter, number
        self._begun = 0 if counter is None else counter.drawn(number)
        self._lock, self._home = threading.Lock(), os.getpid()

    @property
    def remaining(self) -> int:
        """How many queries are paid for and not drawn yet."""
        return max(0, self._times - self._begun)

    def __call__(self, *args: Any) -> Out:
        """Draw the next prepaid query. Public arguments of the mechanism (a model, say) are passed on."""
        stay_home(self._home)
        with self._lock:
            if self.remaining == 0:
                raise BudgetExceededError("this lease is used up; lease more queries from the vault")
            # On disk before anything is drawn: when this fails, nothing is drawn.
            if self._counter is not None:
                self._counter.count(self._number, self._times, self._stores)
            else:
                for store, query_id, place in self._stores:
                    store.begin(query_id, place, self._begun + 1, self._times)
            self._begun += 1
        drawn, error = self._draw(*args)
        # Raised here and not where it happened: no frame of the traceback then holds a label.
        if error is not None:
            raise error
        return cast("Out", drawn)

    def __repr__(self) -> str:
        return f"Lease({self.remaining} queries left)"

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError("a Lease cannot be pickled or copied; it holds the way to true labels")


def draw(mechanism: Mechanism[Out], labels: LabelArray, rng: SecureRandom, *args: Any) -> Drawn[Out]:
    """Return one release; or None, and the bare fact that there is none."""
    try:
        return mechanism.sample(labels, rng, *args), None
    except KeyboardInterrupt:
        return None, KeyboardInterrupt()
    except BaseException as error:
        return None, MechanismError(
            f"{type(mechanism).__name__} failed with {type(error).__name__} while it held labels; the query "
            "stays charged and the message is withheld because it could quote a label. Reproduce it on "
            "made-up labels with labeldp.testing.check_mechanism"
        )
