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
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from labeldp.accounting.certificate import Certificate
from labeldp.accounting.events import Event, Gaussian, PureDP
from labeldp.accounting.ledger import Budget, BudgetExceededError, Ledger, RowIndex, check_budget
from labeldp.accounting.units import ONE_USER
from labeldp.private.mechanism import Mechanism
from labeldp.private.randomness import SecureRandom
from labeldp.private.shared import checked_integer
from labeldp.private.user_rows import KeptRows, Users, cap_rows
from labeldp.private.vault import LabelVault, LedgerStore

__all__ = ["Charge", "KeptRows", "UserCharged", "UserVault", "Users", "cap_rows", "group_charges"]


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

    def _paid(self, mechanism: Mechanism[Any], times: int, rows: npt.ArrayLike | None) -> RowIndex | None:
        if isinstance(mechanism, type) or not hasattr(mechanism, "fits"):
            raise ValueError(f"{mechanism!r} is not a mechanism; give an instance, say UserResponse(1.0, 10, users)")
        index = None if rows is None else self._checked_rows(rows)
        mechanism.fits(len(self) if index is None else len(index), self.num_classes)
        asked = self.users.take(index)
        stated = mechanism.charges(asked) if isinstance(mechanism, UserCharged) else group_charges(mechanism, asked)
        self._charge_users(stated, times, self._numbers_of(index))
        return index

    def _numbers_of(self, index: RowIndex | None) -> RowIndex:
        """The number here of every user of these rows, in the order of their first rows."""
        if index is None:
            return np.arange(len(self.users))
        owner = self.users.owner[index]
        return owner[np.sort(np.unique(owner, return_index=True)[1])]

    def _charge_users(self, charges: Sequence[Charge], times: int, numbers: RowIndex) -> None:
        """All charges or none, stored before anything is drawn; as `LabelVault` charges one."""
        times = checked_integer("times", times, 1, 1 << 53)
        if os.getpid() != self._home:
            raise RuntimeError(
                "a UserVault cannot be asked in a forked process: its spending would be lost; ask before"
            )
        with self._lock:
            new = self._ledger
            for charge in charges:
                new = new.charge(charge.event, charge.times * times, _some(numbers, charge.users))
            _check_users_budget(new, self.budget)
            if self._store is not None:
                self._store(new)
            self._ledger = new


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


def _some(numbers: RowIndex, users: RowIndex | None) -> RowIndex:
    return numbers if users is None else numbers[users]


def _check_users_budget(ledger: Ledger, budget: Budget | None) -> None:
    try:
        check_budget(ledger.groups(), budget)
    except BudgetExceededError as refusal:
        raise BudgetExceededError(str(refusal).replace("worst row", "worst user")) from None
