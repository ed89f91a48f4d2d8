"""Protect all labels of one user together: whose each row is, and a vault whose ledger counts per user.

Neighbours here differ in **all labels of one user**, any number of them at once. Whose each row is, like every feature,
is public. A claim about users is the stronger one: it covers each of their labels by itself, too.

What a mechanism that speaks of one label costs a user, and why. Let the user own m of the rows asked. Replacing its
labels one after the other is m steps between neighbours in the sense of one label. An ε-private response then has odds
within e^{mε} (group privacy); a Gaussian sum that one label moves by D is moved by at most mD (triangle inequality).
Sampled queries have no such simple rule and are refused, unless nobody owns two of the rows. Mechanisms made for users
state their own cost (`charges`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from labeldp.core.events import Event, of_group
from labeldp.core.ledger import ONE_USER, Budget, Charged, Ledger, RowIndex, Unit
from labeldp.core.protocols import LedgerStore
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault, Mechanism, digest
from labeldp.mechanisms.common import checked_integer

# -- whose each row is, and which rows of a user are used ----------------------------------------------------


@dataclass(frozen=True, eq=False, init=False)
class Users:
    """Say whose each row is. Users are numbered 0 … U − 1 in the order of their first rows.

    `ids` may be anything hashable: numbers, text, tuples. They are public.

    >>> users = Users(["ann", "bob", "ann"])
    >>> len(users), users.owner.tolist(), users.sizes.tolist()
    (2, [0, 1, 0], [2, 1])
    """

    ids: npt.NDArray[Any] = field(repr=False)
    owner: RowIndex = field(repr=False)

    def __init__(self, ids: npt.ArrayLike | Sequence[Any]) -> None:
        found, owner = _numbered(_id_column(ids))
        owner.setflags(write=False)
        object.__setattr__(self, "ids", found)
        object.__setattr__(self, "owner", owner)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Users({len(self)} users, {len(self.owner)} rows)"

    @property
    def sizes(self) -> RowIndex:
        """Return how many rows each user has, (U,)."""
        return np.bincount(self.owner, minlength=len(self)).astype(np.intp)

    def take(self, rows: npt.ArrayLike | None) -> Users:
        """Return the users of these rows (indices or a mask; all when None), numbered anew."""
        return self if rows is None else Users(self.ids[self.owner[np.asarray(rows)]])

    def digest(self) -> str:
        """Return a short public name of the grouping, whatever the ids."""
        return digest(self.owner)

    def same_as(self, others: Users) -> bool:
        """Say whether both group as many rows in the same way, whatever the ids."""
        return np.array_equal(self.owner, others.owner)

    def check_asked(self, asked: Users) -> None:
        """Raise ValueError unless the rows asked are grouped as here, where a mechanism was made for these users."""
        if not asked.same_as(self):
            raise ValueError(
                f"the mechanism was made for {self}, grouped otherwise than the {asked} asked; make it with "
                "users=vault.users, or vault.users.take(rows) for some rows"
            )


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Hold at most k rows of each user, chosen without their labels.

    Args:
        rows: the distinct rows kept, ascending. Ask the vault about these: each label is then drawn once.
        repeats: how often each counts, (len(rows),): 1, or more where a user with fewer than k rows was resampled.
    """

    rows: RowIndex
    repeats: RowIndex

    def listed(self) -> RowIndex:
        """Return positions in `rows`, each as often as it counts: the resampled data set, made after all draws."""
        return np.repeat(np.arange(len(self.rows)), self.repeats)


def cap_rows(users: Users, k: int, *, resample: bool = True, seed: int = 0) -> KeptRows:
    """Choose at most k rows of every user at random; with `resample`, users with fewer count some again, up to k.

    The choice sees users only, so it costs nothing and its seed is public. The procedure of Ghazi et al. 2024
    (LabelDP-Pro, section 6), except that a repeated row keeps its one private response instead of getting a second one.

    >>> kept = cap_rows(Users(["ann", "bob", "ann", "ann"]), k=2)
    >>> len(kept.rows), kept.repeats.sum()
    (3, np.int64(4))
    """
    k = checked_integer("k", k, 1, 1 << 31)
    chance, sizes = np.random.default_rng(seed), users.sizes
    order = np.lexsort((chance.random(len(users.owner)), users.owner))
    first = np.cumsum(sizes) - sizes
    rank = np.arange(len(order)) - first[users.owner[order]]
    counts = np.zeros(len(order), dtype=np.intp)
    counts[order[rank < k]] = 1
    if resample:
        short = np.repeat(np.arange(len(users)), np.maximum(k - sizes, 0))
        drawn = first[short] + (chance.random(len(short)) * sizes[short]).astype(np.intp)
        np.add.at(counts, order[drawn], 1)
    rows = np.flatnonzero(counts)
    return KeptRows(rows, counts[rows])


@dataclass(frozen=True, eq=False)
class Charge:
    """State what one response costs some users: `times` queries of one event. `users` are numbers, None all of them."""

    event: Event
    times: int
    users: RowIndex | None


@runtime_checkable
class UserCharged(Protocol):
    """Describe a mechanism that knows what it costs a user."""

    def charges(self, users: Users) -> Sequence[Charge]:
        """Return the cost when all labels of one user are replaced; raise ValueError if made for another grouping.

        `users` are those of the rows asked. Each of them must be charged, unless its labels are not used at all.
        """
        ...


class UserVault(LabelVault):
    """Protect all labels of one user together; the ledger of this vault has one line per user.

    Args:
        labels: integers 0 … num_classes − 1, one per row.
        users: whose each row is: ids, one per row, or `Users`.
        num_classes: how many classes there are; declared, never read off the data.
        budget: refuse any query that would cost the worst user more than this. None keeps count only.
        store, rng: as in `LabelVault`.

    >>> from labeldp import RandomizedResponse
    >>> vault = UserVault([0, 1, 1, 0], users=["ann", "bob", "ann", "ann"], num_classes=2)
    >>> private = vault.release(RandomizedResponse(epsilon=0.5, num_classes=2))
    >>> claim = vault.certificate()
    >>> claim.epsilon, claim.unit.protects
    (1.5, 'all labels of one user')
    """

    unit: ClassVar[Unit] = ONE_USER

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
        """Return whose each row is."""
        return self._users

    def __repr__(self) -> str:
        return (
            f"UserVault({len(self)} labels of {len(self.users)} users, num_classes={self.num_classes}, "
            f"budget={self.budget})"
        )

    def part(
        self, rows: npt.ArrayLike | None = None, budget: Budget | None = None, *, store: LedgerStore | None = None
    ) -> Self:
        """Return a vault of the same labels with a ledger, a budget and a store of its own; see `LabelVault.part`."""
        if rows is not None:
            raise ValueError("rows cannot be taken out of a UserVault: a user may have others; ask about rows instead")
        return super().part(None, budget, store=store)

    def _charges(self, mechanism: Mechanism[Any], times: int, index: RowIndex | None) -> Sequence[Charged]:
        """Return what `times` queries of these rows cost each of their users."""
        self._check_fit(mechanism, index)
        asked, numbers = self.users.take(index), np.arange(len(self.users))
        if index is not None:
            # Users as they are numbered here, in the order of their first rows.
            owner = self.users.owner[index]
            numbers = owner[np.sort(np.unique(owner, return_index=True)[1])]
        stated = mechanism.charges(asked) if isinstance(mechanism, UserCharged) else group_charges(mechanism, asked)
        times = checked_integer("times", times, 1, 1 << 53)
        return [(c.event, c.times * times, numbers if c.users is None else numbers[c.users]) for c in stated]

    def _binding(self, rows: RowIndex | None, sizes: Sequence[int]) -> dict[str, str]:
        """Return the names of the users and of the rows that a counter is for."""
        return {"users": self.users.digest(), "rows asked": "all" if rows is None else digest(rows)}


def group_charges(mechanism: Mechanism[Any], users: Users) -> Sequence[Charge]:
    """Return what a mechanism that states its cost for one label costs users with several; see the proof above."""
    event, sizes = mechanism.event(), users.sizes
    return [Charge(of_group(event, int(m)), 1, np.flatnonzero(sizes == m)) for m in np.unique(sizes)]


# -- ids as numbers ------------------------------------------------------------------------------------------


def _id_column(ids: npt.ArrayLike | Sequence[Any]) -> npt.NDArray[Any]:
    """Return one id per row as an array; what numpy would take apart or mix (tuples, numbers with text) stays."""
    if isinstance(ids, np.ma.MaskedArray):
        column = _objects(cast("Any", ids).tolist())
    elif isinstance(ids, np.ndarray):
        column = cast("npt.NDArray[Any]", ids)
    elif hasattr(ids, "__array__"):
        column = np.asarray(ids)
    else:
        column = _objects(list(cast("Sequence[Any]", ids)))
    if column.ndim != 1:
        raise ValueError(f"users has shape {column.shape}; give one id per row, shape (n,)")
    missing = int(np.count_nonzero([_is_missing(value) for value in column])) if column.dtype.kind in "fOM" else 0
    if missing:
        raise ValueError(f"users has {missing} missing ids; give every row one: it must be known whose labels change")
    return column


def _objects(values: list[Any]) -> npt.NDArray[Any]:
    return np.fromiter(values, dtype=object, count=len(values))


def _is_missing(value: object) -> bool:
    # NaN and NaT are the values that differ from themselves; pandas.NA refuses to say.
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
        return True
    return isinstance(value, (float, np.floating, np.datetime64)) and value != value  # noqa: PLR0124


def _numbered(column: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], RowIndex]:
    """Return the distinct ids in the order of their first rows, and the number of each row's id."""
    if column.dtype.kind == "O":
        numbers: dict[Any, int] = {}
        try:
            owner = np.fromiter((numbers.setdefault(value, len(numbers)) for value in column), np.intp, len(column))
        except TypeError:
            raise ValueError("users has ids that cannot be hashed (lists, say); give numbers, text or tuples") from None
        return _objects(list(numbers)), owner
    found, first, code = np.unique(column, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return found[order], place[code.reshape(-1)].astype(np.intp)
