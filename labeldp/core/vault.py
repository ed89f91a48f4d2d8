"""LabelVault: the one place where true labels live.

A vault answers mechanisms and nothing else. Each answer is paid for first: new ledger, compared with the
budget, stored, and only then drawn. A refused look leaves no trace; a crash can only over-count.

The vault is a capability, not a prison. It stops accidents (a printed label, a pickled data set, classes read
off the data, an error message that quotes a row); it does not stop a programmer who reaches into private
attributes. It shrinks what an auditor must read to `private/`, `accounting/` and `releases.py`.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, Generic, NoReturn, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from labeldp.budgets.counter import QueryCounter
from labeldp.budgets.journal import OneVault
from labeldp.core.certificate import Certificate, certify
from labeldp.core.events import Event, NonPrivate, event_to_json
from labeldp.core.ledger import Budget, BudgetExceededError, Ledger, RowIndex, check_budget
from labeldp.core.random import SecureRandom

# --- mechanism --------------------
#
# The Mechanism protocol: the only kind of question a vault answers.


Out_co = TypeVar("Out_co", covariant=True)

LabelArray = npt.NDArray[np.unsignedinteger[Any]]


class Mechanism(Protocol[Out_co]):
    """A question about labels. A frozen dataclass: every field is public, secrets are only arguments.

    The vault calls the three methods in this order: `fits` (refuse before anything is spent), `event` (what
    one answer costs the worst row), `sample` (draw it). Only the vault calls `sample`, or a mechanism made of others.
    """

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError if the mechanism's public settings do not fit these rows. Sees no label."""
        ...

    def event(self) -> Event:
        """What one answer costs, under the replacement of one label."""
        ...

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> Out_co:
        """Draw one answer. `labels` is read-only and must not be kept; all noise comes from `rng`."""
        ...


# --- lease --------------------
#
# Prepaid looks, drawn one by one; and what happens when a mechanism fails while it holds labels.


Out = TypeVar("Out")


class MechanismError(RuntimeError):
    """A mechanism failed while it held labels. Its own message is withheld: it could quote a label."""


class Lease(Generic[Out]):
    """Prepaid looks: call it to draw the next one."""

    def __init__(
        self, draw: Callable[..., Out | Withheld], times: int, before: Callable[[], None] | None = None
    ) -> None:
        self._draw = draw
        self._remaining = times
        self._before = before
        self._lock = threading.Lock()
        self._home = os.getpid()

    @property
    def remaining(self) -> int:
        """How many looks are paid for and not drawn yet."""
        return self._remaining

    def __call__(self, *args: Any) -> Out:
        """Draw the next prepaid answer. Public arguments of the mechanism (a model, say) are passed on."""
        stay_home(self._home)
        with self._lock:
            if self._remaining == 0:
                raise BudgetExceededError("this lease is used up; lease more looks from the vault")
            # On disk before anything is drawn: when this fails, no look is taken.
            if self._before is not None:
                self._before()
            self._remaining -= 1
        response = self._draw(*args)
        # Raised here and not where it happened: no frame of the traceback then holds a label.
        if isinstance(response, Withheld):
            raise response.error
        return response

    def __repr__(self) -> str:
        return f"Lease({self.remaining} looks left)"

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError("a Lease cannot be pickled or copied; it holds the way to true labels")


@dataclass(frozen=True)
class Withheld:
    """A failure without its message and its frames."""

    error: BaseException


def draw(mechanism: Mechanism[Out], labels: LabelArray, rng: SecureRandom, *args: Any) -> Out | Withheld:
    """One answer, or the bare fact that there is none."""
    try:
        return mechanism.sample(labels, rng, *args)
    except KeyboardInterrupt:
        return Withheld(KeyboardInterrupt())
    except BaseException as error:
        return Withheld(
            MechanismError(
                f"{type(mechanism).__name__} failed with {type(error).__name__} while it held labels; the look "
                "stays charged and the message is withheld because it could quote a label. Reproduce it on "
                "made-up labels with labeldp.testing.check_mechanism"
            )
        )


def stay_home(home: int) -> None:
    """Refuse in a forked process: what it spends, its parent's ledger would not know."""
    if os.getpid() != home:
        raise RuntimeError("a LabelVault cannot be asked in a forked process: its spending would be lost; ask before")


# --- sealing --------------------
#
# From whatever holds labels to a compact, checked, read-only array. Errors give counts, never values.


# Not the full type: "<U17" would tell how long the longest label is.
_KINDS = {"U": "text", "S": "bytes", "O": "mixed objects", "M": "dates", "c": "complex numbers"}


def sealed_labels(labels: npt.ArrayLike, num_classes: int) -> LabelArray:
    """Check labels and copy them into the smallest unsigned type that holds `num_classes` classes."""
    if not _is_count(num_classes):
        raise ValueError(
            f"num_classes={num_classes!r} is not a number of classes; declare it (≥ 1). It is never read off "
            "the labels: which classes occur is itself private"
        )
    refuse_masked(labels)
    raw = np.asarray(labels)
    if raw.ndim != 1:
        raise ValueError(f"labels have shape {raw.shape}; give one label per row, shape (n,)")
    _refuse_unusable(raw, num_classes)
    sealed = raw.astype(np.min_scalar_type(int(num_classes) - 1))
    sealed.setflags(write=False)
    return sealed


def refuse_masked(labels: object) -> None:
    """Raise ValueError for masked labels: numpy would hand out what lies under the mask as if it were a label."""
    masked = np.count_nonzero(cast("Any", labels).mask) if isinstance(labels, np.ma.MaskedArray) else 0
    if masked:
        raise ValueError(f"labels cannot be sealed: {int(masked)} of them are masked, so missing")


def _is_count(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(cast("int", value)) >= 1


def _refuse_unusable(raw: npt.NDArray[Any], num_classes: int) -> None:
    values, missing = _as_numbers(raw)
    whole = values[~missing]
    fractional = int(np.count_nonzero(whole != np.floor(whole)))
    outside = int(np.count_nonzero((whole < 0) | (whole >= num_classes))) if whole.size else 0
    found = {"missing": int(missing.sum()), "not whole numbers": fractional, "out of range": outside}
    wrong = ", ".join(f"{count} {what}" for what, count in found.items() if count)
    if wrong:
        raise ValueError(
            f"labels cannot be sealed: of {raw.size} labels, {wrong} (expected 0 … {num_classes - 1}). "
            "Their values and places are not shown because they are private"
        )


def _as_numbers(raw: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """The labels as a numeric array, and which of them are missing."""
    if raw.dtype.kind in "biu":
        return raw, np.zeros(raw.shape, dtype=bool)
    if raw.dtype.kind == "f":
        missing = ~np.isfinite(raw)
        return raw, missing
    if raw.dtype.kind == "O":
        # Never let float() speak for itself here: its message quotes the value.
        missing = np.array([_is_missing(value) for value in raw], dtype=bool)
        if all(isinstance(value, (bool, int, np.integer, float, np.floating)) for value in raw[~missing]):
            numbers = np.zeros(raw.shape)
            numbers[~missing] = raw[~missing].astype(np.float64)
            return numbers, missing
    raise ValueError(
        f"labels are {_KINDS.get(raw.dtype.kind, 'not numbers')}; encode them as integers 0 … K − 1 in an order "
        "fixed in advance (not with an encoder fitted on the labels: that leaks which classes occur)"
    )


def _is_missing(value: object) -> bool:
    """None, NaN, infinities, pandas.NA and pandas.NaT; the last two are recognised without importing pandas."""
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
        return True
    return isinstance(value, (float, np.floating)) and not math.isfinite(cast("float", value))


__all__ = ["LabelVault", "Lease", "LedgerStore", "MechanismError", "QueryStore"]

LedgerStore = Callable[[Ledger], None]


@runtime_checkable
class QueryStore(Protocol):
    """A store that knows looks it was charged for by an earlier process (`labeldp.budgets.journal`)."""

    def __call__(self, ledger: Ledger, query_id: str | None = None) -> None:
        """Keep what this ledger has more than the last one, under this receipt."""
        ...

    def holds(self, query_id: str) -> bool:
        """Whether the looks of this receipt are kept already."""
        ...


class LabelVault:
    """Labels behind a door that only takes mechanisms.

    Args:
        labels: integers 0 … num_classes − 1, one per row. Copied; the caller should drop its own reference.
        num_classes: how many classes there are. Declared, never read off the data: that would leak.
        budget: refuse any look that would cost the worst row more than this. None keeps count only.
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
        self._query_ids: set[str] = set()
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
        self,
        mechanism: Mechanism[Out],
        times: int,
        rows: npt.ArrayLike | None = None,
        *,
        counter: QueryCounter | None = None,
    ) -> Lease[Out]:
        """Pay for `times` answers now and return a callable that draws them one by one.

        The learner gets the callable and nothing else. Looks not drawn stay paid for. With a tally the lease outlives
        the process: another vault of the same labels pays for the whole of it in its own ledger, so that its
        certificate covers it, and can draw only what no process has begun to draw. A vault pays for a tally once.
        """
        if counter is None:
            index = self._paid(mechanism, times, rows)
        else:
            index = None if rows is None else self._checked_rows(rows)
            self._fitted(mechanism, index)
            self._charge_counted(mechanism.event(), times, index, (len(self),), counter)
        return self._leased(mechanism, times, index, 0, counter)

    def lease_batches(
        self,
        mechanisms: Sequence[Mechanism[Out]],
        times: int,
        batches: Sequence[npt.ArrayLike],
        *,
        counter: QueryCounter | None = None,
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
        self._charge_counted(events.pop(), times, together, tuple(map(len, parts)), counter)
        both = zip(mechanisms, parts, strict=True)
        return tuple(self._leased(mechanism, times, part, i, counter) for i, (mechanism, part) in enumerate(both))

    def _leased(
        self, mechanism: Mechanism[Out], times: int, rows: RowIndex | None, number: int, counter: QueryCounter | None
    ) -> Lease[Out]:
        chosen = self.__labels if rows is None else _read_only(self.__labels[rows])
        left, before = times, None
        if counter is not None:
            left, before = max(0, times - counter.drawn(number)), lambda: counter.count(number, times)
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

    def _charge(self, event: Event, times: int, rows: RowIndex | None, query_id: str | None = None) -> None:
        stay_home(self._home)
        with self._lock:
            if query_id in self._query_ids:
                return
            new = self._ledger.charge(event, times, rows)
            check_budget(new.groups(), self.budget)
            self._keep(new, event, times, rows, query_id)
            self._ledger = new
            if query_id is not None:
                self._query_ids.add(query_id)

    def _charge_counted(
        self, event: Event, times: int, rows: RowIndex | None, sizes: tuple[int, ...], counter: QueryCounter | None
    ) -> None:
        """Charge looks that a tally counts; it is bound to them first, so that it can never count others."""
        if self._ledger.num_rows != len(self):
            raise ValueError(f"{self!r} does not charge row by row; ask it with release or a plain lease")
        if counter is not None:
            asked = "all" if rows is None else _digest(rows, sizes)
            data = {"labels": len(self), "classes": self.num_classes, "rows asked": asked}
            counter.bind({"event": event_to_json(event), "times": times, **data})
        self._charge(event, times, rows, None if counter is None else counter.query_id)

    def _keep(self, new: Ledger, event: Event, times: int, rows: RowIndex | None, query_id: str | None) -> None:
        """Call the store, unless it holds these looks since an earlier process."""
        store = self._store
        if store is None:
            return
        if query_id is not None and isinstance(store, QueryStore):
            if store.holds(query_id):
                self._stored = self._ledger if self._stored is None else self._stored
                return
            store = partial(store, query_id=query_id)
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


# --- shared --------------------
#
# Small things the mechanisms share: checks of public settings, and walking over rows piece by piece.


def checked_epsilon(epsilon: Any) -> float:
    """Epsilon as a float, 0 ≤ ε ≤ ∞, or ValueError."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, Real) or not float(epsilon) >= 0:
        raise ValueError(f"epsilon is {epsilon!r}; give a number of at least 0 (math.inf for no privacy)")
    return float(epsilon)


def checked_integer(name: str, value: Any, low: int, high: int) -> int:
    """A whole number in [low, high], or ValueError."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= int(value) <= high:
        raise ValueError(f"{name} is {value!r}; give a whole number from {low} to {high}")
    return int(value)


def checked_classes(num_classes: Any) -> int:
    """A number of classes, at least 1, or ValueError."""
    return checked_integer("num_classes", num_classes, 1, 1 << 31)


def same_classes(expected: int, num_classes: int) -> None:
    """Raise ValueError when the data have another number of classes than the mechanism."""
    if num_classes != expected:
        raise ValueError(f"num_classes is {expected} in the mechanism and {num_classes} in the data; make it equal")


def described(mechanism: str, epsilon: float, num_classes: int) -> dict[str, Any]:
    """What every description has. Strict JSON has no infinity: ε = ∞ is "inf", and `float` reads it back."""
    shown = epsilon if math.isfinite(epsilon) else "inf"
    return {"mechanism": mechanism, "epsilon": shown, "num_classes": num_classes}


def pieces(num_rows: int, size: int) -> Iterator[slice]:
    """Consecutive slices of at most `size` rows: pieces that stay in the cache, whatever the data."""
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))
