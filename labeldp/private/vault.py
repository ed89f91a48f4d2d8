"""LabelVault: the one place where true labels live.

A vault answers mechanisms and nothing else. Each answer is paid for first: new ledger, compared with the
budget, stored, and only then drawn. A refused look leaves no trace; a crash can only over-count.

The vault is a capability, not a prison. It stops accidents (a printed label, a pickled data set, classes read
off the data, an error message that quotes a row); it does not stop a programmer who reaches into private
attributes. It shrinks what an auditor must read to `private/`, `accounting/` and `releases.py`.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar, cast

import numpy as np
import numpy.typing as npt

from labeldp.accounting.certificate import Certificate, certify
from labeldp.accounting.events import Event, NonPrivate
from labeldp.accounting.ledger import Budget, BudgetExceededError, Ledger, RowIndex, check_budget
from labeldp.private.mechanism import LabelArray, Mechanism
from labeldp.private.randomness import SecureRandom
from labeldp.private.sealing import sealed_labels

Out = TypeVar("Out")
LedgerStore = Callable[[Ledger], None]


class MechanismError(RuntimeError):
    """A mechanism failed while it held labels. Its own message is withheld: it could quote a label."""


class LabelVault:
    """Labels behind a door that only takes mechanisms.

    Args:
        labels: integers 0 … num_classes − 1, one per row. Copied; the caller should drop its own reference.
        num_classes: how many classes there are. Declared, never read off the data: that would leak.
        budget: refuse any look that would cost the worst row more than this. None keeps count only.
        store: called with the new ledger before every draw; when it raises, nothing is drawn.
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
        self._lock = threading.Lock()
        self._home = os.getpid()
        self._id = secrets.token_hex(16)

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

    def lease(self, mechanism: Mechanism[Out], times: int, rows: npt.ArrayLike | None = None) -> Lease[Out]:
        """Pay for `times` answers now and return a callable that draws them one by one.

        The learner gets the callable and nothing else. Looks not drawn stay paid for.
        """
        index = self._paid(mechanism, times, rows)
        chosen = self.__labels if index is None else _read_only(self.__labels[index])
        return Lease(lambda *args: _draw(mechanism, chosen, self._rng, *args), times)

    def record(self, mechanism: Mechanism[Any], rows: npt.ArrayLike | None = None) -> None:
        """Pay for an answer that was drawn earlier, by a vault that is gone, and is about to be used again.

        A run that continues in a new process has its answers but a new vault; the ledger must say what they cost.
        """
        self._paid(mechanism, 1, rows)

    def _paid(self, mechanism: Mechanism[Any], times: int, rows: npt.ArrayLike | None) -> RowIndex | None:
        if isinstance(mechanism, type) or not hasattr(mechanism, "fits"):
            raise ValueError(f"{mechanism!r} is not a mechanism; give an instance, say RandomizedResponse(1.0, 10)")
        index = None if rows is None else self._checked_rows(rows)
        mechanism.fits(len(self) if index is None else len(index), self.num_classes)
        self._charge(mechanism.event(), times, index)
        return index

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

    def _charge(self, event: Event, times: int, rows: RowIndex | None) -> None:
        _stay_home(self._home)
        with self._lock:
            new = self._ledger.charge(event, times, rows)
            check_budget(new.groups(), self.budget)
            if self._store is not None:
                self._store(new)
            self._ledger = new

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


class Lease(Generic[Out]):
    """Prepaid looks: call it to draw the next one."""

    def __init__(self, draw: Callable[..., Out | _Withheld], times: int) -> None:
        self._draw = draw
        self._remaining = times
        self._lock = threading.Lock()
        self._home = os.getpid()

    @property
    def remaining(self) -> int:
        """How many looks are paid for and not drawn yet."""
        return self._remaining

    def __call__(self, *args: Any) -> Out:
        """Draw the next prepaid answer. Public arguments of the mechanism (a model, say) are passed on."""
        _stay_home(self._home)
        with self._lock:
            if self._remaining == 0:
                raise BudgetExceededError("this lease is used up; lease more looks from the vault")
            self._remaining -= 1
        answer = self._draw(*args)
        # Raised here and not where it happened: no frame of the traceback then holds a label.
        if isinstance(answer, _Withheld):
            raise answer.error
        return answer

    def __repr__(self) -> str:
        return f"Lease({self.remaining} looks left)"

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError("a Lease cannot be pickled or copied; it holds the way to true labels")


@dataclass(frozen=True)
class _Withheld:
    """A failure without its message and its frames."""

    error: BaseException


def _draw(mechanism: Mechanism[Out], labels: LabelArray, rng: SecureRandom, *args: Any) -> Out | _Withheld:
    try:
        return mechanism.sample(labels, rng, *args)
    except KeyboardInterrupt:
        return _Withheld(KeyboardInterrupt())
    except BaseException as error:
        return _Withheld(
            MechanismError(
                f"{type(mechanism).__name__} failed with {type(error).__name__} while it held labels; the look "
                "stays charged and the message is withheld because it could quote a label. Reproduce it on "
                "made-up labels with labeldp.testing.check_mechanism"
            )
        )


def _stay_home(home: int) -> None:
    """Refuse in a forked process: what it spends, its parent's ledger would not know."""
    if os.getpid() != home:
        raise RuntimeError("a LabelVault cannot be asked in a forked process: its spending would be lost; ask before")


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
