"""Labels that belong to users: a vault whose ledger counts per user.

Neighbours here differ in **all labels of one user**, any number of them at once. Whose each row is, like every feature,
is public. A claim about users is the stronger one: it covers each of their labels by itself, too.

What a mechanism that speaks of one label costs a user, and why. Let the user own m of the rows asked. Replacing its
labels one after the other is m steps between neighbours in the sense of one label. An ε-private answer then has odds
within e^{mε} (group privacy); a Gaussian sum that one label moves by D is moved by at most mD (triangle inequality).
Sampled looks have no such simple rule and are refused, unless nobody owns two of the rows. Mechanisms made for users
state their own cost (`charges`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from labeldp.accounting.certificate import Certificate
from labeldp.accounting.events import Event, Gaussian, PureDP, event_to_json
from labeldp.accounting.ledger import Budget, BudgetExceededError, Ledger, RowIndex, check_budget
from labeldp.accounting.tally import Tally
from labeldp.accounting.units import ONE_USER
from labeldp.private.lease import Lease, stay_home
from labeldp.private.mechanism import Mechanism
from labeldp.private.randomness import SecureRandom
from labeldp.private.shared import checked_integer
from labeldp.private.user_rows import KeptRows, Users, cap_rows, digest
from labeldp.private.vault import LabelVault, LedgerStore

__all__ = ["Charge", "KeptRows", "UserCharged", "UserVault", "Users", "cap_rows", "group_charges"]

Out = TypeVar("Out")


@dataclass(frozen=True, eq=False)
class Charge:
    """What one answer costs some users: `times` looks of one event. `users` are numbers; None is all of them."""

    event: Event
    times: int
    users: RowIndex | None


@runtime_checkable
class UserCharged(Protocol):
    """A mechanism that knows what it costs a user."""

    def charges(self, users: Users) -> Sequence[Charge]:
        """The cost when all labels of one user are replaced; ValueError if it was made for another grouping.

        `users` are those of the rows asked. Each of them must be charged, unless its labels are not used at all.
        """
        ...


class UserVault(LabelVault):
    """A vault that protects all labels of one user together; its ledger has one line per user.

    Args:
        labels: integers 0 … num_classes − 1, one per row.
        users: whose each row is: ids, one per row, or `Users`.
        num_classes: how many classes there are; declared, never read off the data.
        budget: refuse any look that would cost the worst user more than this. None keeps count only.
        store, rng: as in `LabelVault`.

    >>> from labeldp import RandomizedResponse
    >>> vault = UserVault([0, 1, 1, 0], users=["ann", "bob", "ann", "ann"], num_classes=2)
    >>> private = vault.release(RandomizedResponse(epsilon=0.5, num_classes=2))
    >>> claim = vault.certificate()
    >>> claim.epsilon, claim.unit.protects
    (1.5, 'all labels of one user')
    """

    def __init__(
        self,
        labels: npt.ArrayLike,
        users: npt.ArrayLike | Sequence[Any] | Users,
        num_classes: int,
        budget: Budget | None = None,
        *,
        store: LedgerStore | None = None,
        rng: SecureRandom | None = None,
    ) -> None:
        super().__init__(labels, num_classes, budget, store=store, rng=rng)
        self._users = users if isinstance(users, Users) else Users(users)
        if len(self._users.owner) != len(self):
            raise ValueError(f"users has {len(self._users.owner)} entries for {len(self)} labels; give one per row")
        self._ledger = Ledger(len(self._users))

    @property
    def users(self) -> Users:
        """Whose each row is."""
        return self._users

    def __repr__(self) -> str:
        return (
            f"UserVault({len(self)} labels of {len(self.users)} users, num_classes={self.num_classes}, "
            f"budget={self.budget})"
        )

    def certificate(self, delta: float | None = None) -> Certificate:
        """The claim so far, about all labels of one user."""
        return replace(super().certificate(delta), unit=ONE_USER)

    def lease(
        self, mechanism: Mechanism[Out], times: int, rows: npt.ArrayLike | None = None, *, tally: Tally | None = None
    ) -> Lease[Out]:
        """Pay for `times` answers now and return a callable that draws them one by one; see `LabelVault.lease`.

        A tally counts looks that cost all users asked the same.
        """
        if tally is None:
            return super().lease(mechanism, times, rows)
        index = None if rows is None else self._checked_rows(rows)
        charges = self._stated(mechanism, index)
        if len(charges) != 1:
            raise ValueError(f"{type(mechanism).__name__} costs users differently; lease it without a tally")
        rows_asked = "all" if index is None else digest(index)
        data = {
            "labels": len(self),
            "classes": self.num_classes,
            "users": self.users.digest(),
            "rows asked": rows_asked,
        }
        tally.bind({"event": event_to_json(charges[0].event), "times": times, **data})
        self._charge_users(charges, times, index, tally.receipt)
        return self._leased(mechanism, times, index, 0, tally)

    def _paid(self, mechanism: Mechanism[Any], times: int, rows: npt.ArrayLike | None) -> RowIndex | None:
        index = None if rows is None else self._checked_rows(rows)
        self._charge_users(self._stated(mechanism, index), times, index)
        return index

    def _stated(self, mechanism: Mechanism[Any], index: RowIndex | None) -> Sequence[Charge]:
        """What one answer costs the users of these rows, numbered among themselves."""
        self._fitted(mechanism, index)
        asked = self.users.take(index)
        return mechanism.charges(asked) if isinstance(mechanism, UserCharged) else group_charges(mechanism, asked)

    def _charge_users(
        self, charges: Sequence[Charge], times: int, index: RowIndex | None, receipt: str | None = None
    ) -> None:
        """All charges or none, stored before anything is drawn."""
        times, numbers = checked_integer("times", times, 1, 1 << 53), self._numbers_of(index)
        parts = [(c.event, c.times * times, numbers if c.users is None else numbers[c.users]) for c in charges]
        try:
            if len(parts) == 1:
                self._charge(*parts[0], receipt)
            else:
                self._charge_all(parts)
        except BudgetExceededError as refusal:
            raise BudgetExceededError(str(refusal).replace("worst row", "worst user")) from None

    def _charge_all(self, parts: Sequence[tuple[Event, int, RowIndex]]) -> None:
        """`LabelVault._charge` for several charges at once."""
        stay_home(self._home)

        def charged(ledger: Ledger) -> Ledger:
            return reduce(lambda before, part: before.charge(*part), parts, ledger)

        with self._lock:
            new = charged(self._ledger)
            check_budget(new.groups(), self.budget)
            kept = new if self._stored is None else charged(self._stored)
            if self._store is not None:
                self._store(kept)
            self._stored = None if self._stored is None else kept
            self._ledger = new

    def _numbers_of(self, index: RowIndex | None) -> RowIndex:
        """The number here of every user of these rows, in the order of their first rows."""
        if index is None:
            return np.arange(len(self.users))
        owner = self.users.owner[index]
        return owner[np.sort(np.unique(owner, return_index=True)[1])]


def group_charges(mechanism: Mechanism[Any], users: Users) -> Sequence[Charge]:
    """What a mechanism that states its cost for one label costs users with several; see the proof above."""
    event, sizes = mechanism.event(), users.sizes
    return [Charge(_of_group(event, int(m)), 1, np.flatnonzero(sizes == m)) for m in np.unique(sizes)]


def _of_group(event: Event, labels: int) -> Event:
    if labels == 1:
        return event
    if isinstance(event, PureDP):
        return PureDP(_times(labels, event.epsilon))
    if isinstance(event, Gaussian):
        return Gaussian(event.noise_std, _times(labels, event.diameter))
    raise ValueError(
        f"a {type(event).__name__} look has no stated cost for a user with {labels} rows; use a mechanism made for "
        "users (UserResponse, UserGradientSum), or ask about one row of each user"
    )


def _times(count: int, value: float) -> float:
    """count · value, rounded up."""
    if math.isinf(value):
        return value
    exact = count * Fraction(value)
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)
