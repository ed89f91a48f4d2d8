"""Answer the labels of users by randomized response: a user's budget is shared among its labels.

A user with m labels in the question has each of them answered by randomized response at ε/m, or at ε/k where every user
is to be treated alike (k a cap on m), all responses independent:

    P(responses | labels) = Π_j P_{ε/m}(response_j | label_j)

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
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.core import accountant
from labeldp.core.events import Event, PureDP, Query
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelArray
from labeldp.mechanisms.common import checked_classes, checked_epsilon, checked_integer, described, same_classes
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.users import Charge, Users
from labeldp.releases import BoolArray, FloatArray, IntArray, NoisyLabels


@dataclass(frozen=True, eq=False, init=False)
class RowResponse:
    """Answer by randomized response where every row has its own ε, public, (n,).

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
        """Return the largest of the rows' epsilons."""
        return float(self.epsilons.max(initial=0.0))

    # -- mechanism ------------------------------------------------------------------------------------------

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless there is one epsilon per row and the classes are those of the data."""
        same_classes(self.num_classes, num_classes)
        if num_rows != len(self.epsilons):
            raise ValueError(f"the mechanism is for {len(self.epsilons)} rows, the data has {num_rows}; make it anew")

    def event(self) -> Event:
        """Return the worst row's ε-privacy with δ = 0."""
        return PureDP(self.epsilon)

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> NoisyLabels:
        """Draw one response per label, in the labels' own type."""
        responses = np.empty_like(labels)
        for rows, response in self._parts():
            responses[rows] = response.sample(labels[rows], rng).responses
        return NoisyLabels(self, responses)

    # -- channel ------------------------------------------------------------------------------------------------

    def probabilities(self, label: int, row: int = 0) -> FloatArray:
        """Return P(response | label) of one row, (1, K)."""
        return self._response(float(self.epsilons[row])).probabilities(label)

    def log_likelihood(self, responses: IntArray) -> FloatArray:
        """Return log P(response | class), (n, K)."""
        result = np.empty((len(responses), self.num_classes))
        for rows, response in self._parts():
            result[rows] = response.log_likelihood(responses[rows])
        return result

    def unbiased(self, responses: IntArray) -> FloatArray:
        """Return an estimate of the one-hot label with the right mean, (n, K); zero on rows with ε = 0."""
        result = np.zeros((len(responses), self.num_classes))
        for rows, response in self._parts():
            result[rows] = response.unbiased(responses[rows])
        return result

    def informative(self, num_rows: int) -> BoolArray:
        """Return the rows with an ε that is not zero to 64 bits, where there are at least two classes, (n,)."""
        result = np.zeros(num_rows, dtype=np.bool_)
        for rows, response in self._parts():
            result[rows] = response.informative(len(rows))
        return result

    def take(self, rows: IntArray) -> RowResponse:
        """Return the channel of these rows, in this order."""
        return RowResponse(self.epsilons[rows], self.num_classes)

    def describe(self) -> Mapping[str, Any]:
        """Return the public parameters: how many rows have which epsilon."""
        found, counts = np.unique(self.epsilons, return_counts=True)
        shown = described("row-response", self.epsilon, self.num_classes)
        return {**shown, "rows": {repr(float(e)): int(n) for e, n in zip(found, counts, strict=True)}}

    def _parts(self) -> Iterator[tuple[npt.NDArray[np.intp], RandomizedResponse]]:
        """Yield rows with the same ε, and their response: few, however many rows there are."""
        found, part = np.unique(self.epsilons, return_inverse=True)
        for number, epsilon in enumerate(found):
            yield np.flatnonzero(part == number), self._response(float(epsilon))

    def _response(self, epsilon: float) -> RandomizedResponse:
        return RandomizedResponse(epsilon, self.num_classes)


class UserResponse(RowResponse):
    """Answer by randomized response that costs every user at most ε, however many of its labels are asked.

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
    cap: int | None
    delta: float
    whole: bool

    def __init__(
        self, epsilon: float, num_classes: int, users: Users, *, cap: int | None = None, delta: float = 0.0
    ) -> None:
        sizes = users.sizes
        over = 0 if cap is None else int(np.count_nonzero(sizes > checked_integer("cap", cap, 1, 1 << 31)))
        if over:
            raise ValueError(
                f"cap is {cap} and {over} users have more rows, {int(sizes.max())} at most; ask about cap_rows(users, "
                f"{cap}).rows, or leave out the cap"
            )
        shares = np.full_like(sizes, cap) if cap is not None else sizes
        per_size = {int(m): label_epsilon(epsilon, int(m), delta) for m in np.unique(shares)}
        items = np.array([per_size[int(m)] for m in shares], dtype=np.float64)
        super().__init__(items[users.owner], num_classes)
        object.__setattr__(self, "user_epsilon", checked_epsilon(epsilon))
        object.__setattr__(self, "users", users)
        object.__setattr__(self, "cap", cap)
        object.__setattr__(self, "delta", float(delta))
        # Every user spends ε, and nothing is gained by counting its queries apart.
        object.__setattr__(self, "whole", cap is None and delta == 0)

    def charges(self, users: Users) -> Sequence[Charge]:
        """Return one query at ε each; with a cap or a δ as many as the user has labels: independent, they compose."""
        self.users.check_asked(users)
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
    """Return the largest ε at which each of a user's labels can be answered so that all cost at most `epsilon`.

    >>> label_epsilon(1.0, 4), round(label_epsilon(1.0, 50, delta=1e-5) * 50, 2)
    (0.25, 1.94)
    """
    epsilon, labels = checked_epsilon(epsilon), checked_integer("labels", labels, 1, 1 << 31)
    share = epsilon / labels
    # Rounded down: m times it is at most ε, exactly.
    if math.isfinite(share) and labels * Fraction(share) > Fraction(epsilon):
        share = math.nextafter(share, 0.0)
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
