"""Labels that belong to users: a vault whose ledger counts per user.

Neighbours here differ in **all labels of one user**, any number of them at once. Whose each row is, like every feature,
is public. A claim about users is the stronger one: it covers each of their labels by itself, too.

What a mechanism that speaks of one label costs a user, and why. Let the user own m of the rows asked. Replacing its
labels one after the other is m steps between neighbours in the sense of one label. An ε-private response then has odds
within e^{mε} (group privacy); a Gaussian sum that one label moves by D is moved by at most mD (triangle inequality).
Sampled queries have no such simple rule and are refused, unless nobody owns two of the rows. Mechanisms made for users
state their own cost (`charges`).

Randomized response for users: a user's budget is shared among its labels.

A user with m labels in the question has each of them answered by randomized response at ε/m, or at ε/k where every user
is to be treated alike (k a cap on m), all responses independent:

    P(responses | labels) = Π_j P_{ε/m}(answer_j | label_j)

Proof of ε-privacy for all labels of one user. Replacing them changes m factors of the product, each by at most e^{ε/m},
so the odds of any list of responses move by at most e^ε. Other users' responses keep their channel. m is public. A row
that a learner uses several times keeps its one response; asking the same label again would be a further factor, to be
paid for.

With δ > 0 the labels may be answered at more than ε/m. Each response is a post-processing of binary randomized
response, and m of those composed lose more than ε only where nearly all of them go the same way (Kairouz, Oh &
Viswanath 2015: exact for two classes, safe for more). The gain is nothing up to about ten labels and 1.9 times at fifty
(ε = 1, δ = 1e-5).

Warner 1965, Randomized Response; Ghazi et al. 2024, LabelDP-Pro, section 6, for ε/k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, Protocol, Self, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from labeldp.core import accountant
from labeldp.core.events import Event, PureDP, Query, event_to_json, of_group
from labeldp.core.ledger import ONE_USER, Budget, Charged, Ledger, RowIndex, Unit
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelArray, LabelVault, LeaseCounter, LedgerStore, Mechanism, digest
from labeldp.mechanisms.common import checked_classes, checked_epsilon, checked_integer, described, same_classes
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.releases import BoolArray, FloatArray, IntArray, NoisyLabels

# -- whose each row is, and which rows of a user are used ----------------------------------------------------


@dataclass(frozen=True, eq=False, init=False)
class Users:
    """Whose each row is. Users are numbered 0 … U − 1 in the order of their first rows.

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
        """How many rows each user has, (U,)."""
        return np.bincount(self.owner, minlength=len(self)).astype(np.intp)

    def take(self, rows: npt.ArrayLike | None) -> Users:
        """The users of these rows (indices or a mask; all when None), numbered anew."""
        return self if rows is None else Users(self.ids[self.owner[np.asarray(rows)]])

    def digest(self) -> str:
        """A short public name of the grouping, whatever the ids."""
        return digest(self.owner)

    def same_as(self, others: Users) -> bool:
        """Whether both group as many rows in the same way, whatever the ids."""
        return np.array_equal(self.owner, others.owner)


@dataclass(frozen=True, eq=False)
class KeptRows:
    """At most k rows of each user, chosen without their labels.

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
    """At most k rows of every user, at random; with `resample`, users with fewer count some of theirs repeatedly, to k.

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


def _id_column(ids: npt.ArrayLike | Sequence[Any]) -> npt.NDArray[Any]:
    """One id per row as an array; what numpy would take apart or mix (tuples, numbers with text) stays as it is."""
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
    """The distinct ids in the order of their first rows, and the number of each row's id."""
    if column.dtype.kind == "O":
        return _numbered_objects(column)
    found, first, code = np.unique(column, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return found[order], place[code.reshape(-1)].astype(np.intp)


def _numbered_objects(column: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], RowIndex]:
    numbers: dict[Any, int] = {}
    try:
        owner = np.fromiter((numbers.setdefault(value, len(numbers)) for value in column), np.intp, len(column))
    except TypeError:
        raise ValueError("users has ids that cannot be hashed (lists, say); give numbers, text or tuples") from None
    return _objects(list(numbers)), owner


__all__ = ["Charge", "KeptRows", "UserCharged", "UserVault", "Users", "cap_rows", "group_charges"]


@dataclass(frozen=True, eq=False)
class Charge:
    """What one response costs some users: `times` queries of one event. `users` are numbers; None is all of them."""

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
        """Whose each row is."""
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
        asked, numbers = self.users.take(index), self._numbers_of(index)
        stated = mechanism.charges(asked) if isinstance(mechanism, UserCharged) else group_charges(mechanism, asked)
        times = checked_integer("times", times, 1, 1 << 53)
        return [(c.event, c.times * times, numbers if c.users is None else numbers[c.users]) for c in stated]

    def _bound(
        self,
        counter: LeaseCounter,
        charges: Sequence[Charged],
        times: int,
        index: RowIndex | None,
        sizes: tuple[int, ...] | None = None,
    ) -> str:
        """Bind a counter to queries that cost all their users the same."""
        if len(charges) != 1:
            raise ValueError(f"{charges[0][0]!r} costs users differently; lease it without a counter")
        rows = "all" if index is None else digest(index)
        data = {"labels": len(self), "classes": self.num_classes, "users": self.users.digest(), "rows asked": rows}
        bound = {"event": event_to_json(charges[0][0]), "times": times, **data, **self._seed_mark()}
        counter.bind(bound, self._counting(counter.query_id))
        return counter.query_id

    def _numbers_of(self, index: RowIndex | None) -> RowIndex:
        """The number here of every user of these rows, in the order of their first rows."""
        if index is None:
            return np.arange(len(self.users))
        owner = self.users.owner[index]
        return owner[np.sort(np.unique(owner, return_index=True)[1])]


def group_charges(mechanism: Mechanism[Any], users: Users) -> Sequence[Charge]:
    """What a mechanism that states its cost for one label costs users with several; see the proof above."""
    event, sizes = mechanism.event(), users.sizes
    return [Charge(of_group(event, int(m)), 1, np.flatnonzero(sizes == m)) for m in np.unique(sizes)]


# -- randomized response for users ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, init=False)
class RowResponse:
    """Randomized response where every row has its own ε, public, (n,).

    >>> channel = RowResponse([1.0, 0.0], num_classes=2)
    >>> channel.probabilities(1, row=0).round(3), channel.probabilities(1, row=1)
    (array([[0.269, 0.731]]), array([[0.5, 0.5]]))
    """

    epsilons: FloatArray = field(repr=False)
    num_classes: int

    def __init__(self, epsilons: npt.ArrayLike, num_classes: int) -> None:
        checked = np.array(epsilons, dtype=np.float64)
        if checked.ndim != 1 or not (checked >= 0).all():
            raise ValueError(f"epsilons has shape {checked.shape}; give one number of at least 0 per row")
        checked.setflags(write=False)
        object.__setattr__(self, "epsilons", checked)
        object.__setattr__(self, "num_classes", checked_classes(num_classes))

    @property
    def epsilon(self) -> float:
        """The largest of the rows' epsilons."""
        return float(self.epsilons.max(initial=0.0))

    # -- mechanism ------------------------------------------------------------------------------------------

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless there is one epsilon per row and the classes are those of the data."""
        same_classes(self.num_classes, num_classes)
        if num_rows != len(self.epsilons):
            raise ValueError(f"the mechanism is for {len(self.epsilons)} rows, the data has {num_rows}; make it anew")

    def event(self) -> Event:
        """The worst row's ε-privacy with δ = 0."""
        return PureDP(self.epsilon)

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> NoisyLabels:
        """One response per label, in the labels' own type."""
        responses = np.empty_like(labels)
        for rows, response in self._parts():
            responses[rows] = response.sample(labels[rows], rng).responses
        return NoisyLabels(self, responses)

    # -- channel ------------------------------------------------------------------------------------------------

    def probabilities(self, label: int, row: int = 0) -> FloatArray:
        """P(response | label) of one row, (1, K)."""
        return self._response(float(self.epsilons[row])).probabilities(label)

    def log_likelihood(self, responses: IntArray) -> FloatArray:
        """log P(response | class), (n, K)."""
        result = np.empty((len(responses), self.num_classes))
        for rows, response in self._parts():
            result[rows] = response.log_likelihood(responses[rows])
        return result

    def unbiased(self, responses: IntArray) -> FloatArray:
        """An estimate of the one-hot label with the right mean, (n, K); zero on rows with ε = 0."""
        result = np.zeros((len(responses), self.num_classes))
        for rows, response in self._parts():
            result[rows] = response.unbiased(responses[rows])
        return result

    def informative(self, num_rows: int) -> BoolArray:
        """Rows with an ε that is not zero to 64 bits, where there are at least two classes, (n,)."""
        result = np.zeros(num_rows, dtype=np.bool_)
        for rows, response in self._parts():
            result[rows] = response.informative(len(rows))
        return result

    def take(self, rows: IntArray) -> RowResponse:
        """The channel of these rows, in this order."""
        return RowResponse(self.epsilons[rows], self.num_classes)

    def describe(self) -> Mapping[str, Any]:
        """The public parameters: how many rows have which epsilon."""
        found, counts = np.unique(self.epsilons, return_counts=True)
        shown = described("row-response", self.epsilon, self.num_classes)
        return {**shown, "rows": {repr(float(e)): int(n) for e, n in zip(found, counts, strict=True)}}

    def _parts(self) -> Iterator[tuple[npt.NDArray[np.intp], RandomizedResponse]]:
        """Rows with the same ε, and their response: few, however many rows there are."""
        found, part = np.unique(self.epsilons, return_inverse=True)
        for number, epsilon in enumerate(found):
            yield np.flatnonzero(part == number), self._response(float(epsilon))

    def _response(self, epsilon: float) -> RandomizedResponse:
        return RandomizedResponse(epsilon, self.num_classes)


class UserResponse(RowResponse):
    """Randomized response that costs every user at most ε, however many of its labels are asked.

    Args:
        epsilon: the budget of one user, for all its labels together.
        num_classes: the number of classes K.
        users: whose each row asked is: `vault.users`, or `vault.users.take(rows)`.
        cap: answer every label at ε/cap; refused when a user has more rows. None uses ε/m for a user with m rows,
            which is never less.
        delta: the probability with which a user may lose more than ε; 0 for none.

    >>> from labeldp.mechanisms.users import UserVault
    >>> vault = UserVault([0, 1, 1, 0], users=["ann", "bob", "ann", "ann"], num_classes=2)
    >>> question = UserResponse(1.2, 2, vault.users)
    >>> question.epsilons.round(6)
    array([0.4, 1.2, 0.4, 0.4])
    >>> private = vault.release(question)
    >>> vault.certificate().epsilon
    1.2
    """

    user_epsilon: float
    users: Users
    whole: bool

    def __init__(
        self, epsilon: float, num_classes: int, users: Users, *, cap: int | None = None, delta: float = 0.0
    ) -> None:
        sizes = users.sizes
        _check_cap(sizes, cap)
        shares = np.full_like(sizes, cap) if cap is not None else sizes
        per_size = {int(m): label_epsilon(epsilon, int(m), delta) for m in np.unique(shares)}
        items = np.array([per_size[int(m)] for m in shares], dtype=np.float64)
        super().__init__(items[users.owner], num_classes)
        object.__setattr__(self, "user_epsilon", checked_epsilon(epsilon))
        object.__setattr__(self, "users", users)
        # Every user spends ε, and nothing is gained by counting its queries apart.
        object.__setattr__(self, "whole", cap is None and delta == 0)

    def charges(self, users: Users) -> Sequence[Charge]:
        """Return one query at ε each; with a cap or a δ as many as the user has labels: independent, they compose."""
        if not users.same_as(self.users):
            raise ValueError(
                f"the mechanism was made for {self.users}, grouped otherwise than the {users} asked; make it with "
                "users=vault.users, or vault.users.take(rows) for some rows"
            )
        if self.whole:
            return [Charge(PureDP(self.user_epsilon), 1, None)]
        first = np.unique(users.owner, return_index=True)[1]
        alike, part = np.unique(np.stack([self.epsilons[first], users.sizes]), axis=1, return_inverse=True)
        return [
            Charge(PureDP(float(epsilon)), int(labels), np.flatnonzero(part.reshape(-1) == number))
            for number, (epsilon, labels) in enumerate(alike.T)
        ]


@lru_cache(maxsize=4096)
def label_epsilon(epsilon: float, labels: int, delta: float = 0.0) -> float:
    """The largest ε at which each of a user's labels can be answered so that all together cost at most `epsilon`.

    >>> label_epsilon(1.0, 4), round(label_epsilon(1.0, 50, delta=1e-5) * 50, 2)
    (0.25, 1.94)
    """
    epsilon, labels = checked_epsilon(epsilon), checked_integer("labels", labels, 1, 1 << 31)
    share = _share(epsilon, labels)
    if delta == 0 or share in {0.0, math.inf}:
        return share

    def affordable(each: float) -> bool:
        return accountant.epsilon([Query(PureDP(each), labels)], delta) <= epsilon

    low, high = share, 2 * share
    while affordable(high):
        low, high = high, 2 * high
    while high - low > 1e-9 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if affordable(middle) else (low, middle)
    return low


def _share(epsilon: float, labels: int) -> float:
    """ε/m, rounded down: m times it is at most ε, exactly."""
    share = epsilon / labels
    if math.isfinite(share) and labels * Fraction(share) > Fraction(epsilon):
        return math.nextafter(share, 0.0)
    return share


def _check_cap(sizes: npt.NDArray[np.intp], cap: int | None) -> None:
    if cap is None:
        return
    over = int(np.count_nonzero(sizes > checked_integer("cap", cap, 1, 1 << 31)))
    if over:
        raise ValueError(
            f"cap is {cap} and {over} users have more rows, {int(sizes.max())} at most; ask about cap_rows(users, "
            f"{cap}).rows, or leave out the cap"
        )
