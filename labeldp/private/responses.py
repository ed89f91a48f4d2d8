"""Randomized response among a set of answers: all classes, given sets, or the best sets for a prior.

One law and one sampler serve all three. Row i has a public set S of k ≥ 1 allowed answers; N = e^ε + k − 1:

    label y in S:      P(y) = e^ε/N,  P(any other member) = 1/N
    label y not in S:  P(any member) = 1/k

Proof of ε-privacy. Every answer's probability is one of e^ε/N ≥ 1/k ≥ 1/N, and the outer two have ratio e^ε.
The sets depend on public things only, so they may be shown. The probabilities are multiples of 2^-64,
rounded so that no ratio exceeds e^ε (`response_thresholds`); the law below states them to within k·2^-64.

Warner 1965, Randomized Response; Ghazi, Golowich, Kumar, Manurangsi & Zhang 2021, Deep Learning with Label
Differential Privacy.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from labeldp.accounting.events import Event, PureDP
from labeldp.private.mechanism import LabelArray
from labeldp.private.priors import checked_prior, likely_sets
from labeldp.private.randomness import SecureRandom
from labeldp.private.response_draws import Thresholds
from labeldp.private.shared import checked_classes, checked_epsilon, described, pieces, same_classes
from labeldp.releases import BoolArray, FloatArray, IntArray, NoisyLabels

_ROWS_AT_ONCE = 1 << 14
# Below this 64-bit words cannot tell ε from 0.
_LEAST_EPSILON = 2.0**-60
_CELLS_AT_ONCE = 1 << 18


@dataclass(frozen=True, eq=False, init=False)
class SetResponse(ABC):
    """What the three responses share. `sets` is None (every class), (K,) for all rows, or (n, K) per row."""

    epsilon: float
    num_classes: int
    sets: BoolArray | None = field(repr=False)

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """The public parameters as plain JSON values."""

    def _set(self, epsilon: float, num_classes: int, sets: BoolArray | None) -> None:
        if sets is not None:
            sets.setflags(write=False)
        for name, value in (("epsilon", epsilon), ("num_classes", num_classes), ("sets", sets)):
            object.__setattr__(self, name, value)

    # -- mechanism ------------------------------------------------------------------------------------------

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless the classes, and the per-row sets if any, are those of the data."""
        same_classes(self.num_classes, num_classes)
        self._sets_of(num_rows)

    def event(self) -> Event:
        """ε-privacy with δ = 0."""
        return PureDP(self.epsilon)

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> NoisyLabels:
        """One answer per label, in the labels' own type."""
        answers = np.empty_like(labels)
        thresholds = Thresholds.of(self.epsilon, self.set_sizes())
        sets, wide = self.sets, self.num_classes if _per_row(self.sets) else 1
        for rows in pieces(len(labels), min(_ROWS_AT_ONCE, max(256, _CELLS_AT_ONCE // wide))):
            part = sets[rows] if sets is not None and sets.ndim == 2 else sets
            answers[rows] = thresholds.answer(labels[rows], part, rng)
        return NoisyLabels(self, answers)

    # -- law ------------------------------------------------------------------------------------------------

    def members(self) -> BoolArray:
        """Which answers are allowed: (K,) where all rows share one set, else (n, K)."""
        return np.ones(self.num_classes, dtype=np.bool_) if self.sets is None else self.sets

    def set_sizes(self) -> npt.NDArray[np.int64]:
        """The number k of allowed answers: shape () where all rows share one set, else (n,)."""
        if self.sets is None:
            return np.asarray(self.num_classes)
        return np.asarray(np.count_nonzero(self.sets, axis=-1))

    def probabilities(self, label: int, row: int = 0) -> FloatArray:
        """P(answer | label) of one row, (1, K)."""
        members = self.members() if not _per_row(self.sets) else self.members()[row]
        own, other, outside = np.exp(_log_chances(self.epsilon, np.count_nonzero(members)))
        chances = np.where(members, other if members[label] else outside, 0.0)
        if members[label]:
            chances[label] = own
        return chances[None, :]

    def log_likelihood(self, answers: IntArray) -> FloatArray:
        """log P(answer | class), (n, K): −∞ throughout where the answer is not allowed."""
        sets, sizes, rows = self._sets_of(len(answers)), self._sizes_of(len(answers)), np.arange(len(answers))
        own, other, outside = _log_chances(self.epsilon, sizes)
        result = np.where(sets, other[:, None], outside[:, None])
        result[rows, answers] = own
        result[~sets[rows, answers]] = -np.inf
        return result

    def unbiased(self, answers: IntArray) -> FloatArray:
        """(onehot(answer) − p)/(1 − k·p) on the set, p = 1/N, and 0 off it, (n, K).

        Its mean is onehot(y) for y in the set. For y outside it is the uniform vector on the set: the
        answer's law is then the same for every such y, so no estimate from it is unbiased.
        """
        num_rows, keep = len(answers), math.exp(-self.epsilon)
        result = np.zeros((num_rows, self.num_classes))
        informative = self.informative(num_rows)
        if not informative.any():
            return result
        scale = (1.0 + (self._sizes_of(num_rows) - 1.0) * keep) / -math.expm1(-self.epsilon)
        result[self._sets_of(num_rows)] = keep / math.expm1(-self.epsilon)
        result[np.arange(num_rows), answers] += scale
        result[~informative] = 0.0
        return result

    def informative(self, num_rows: int) -> BoolArray:
        """Rows with at least two allowed answers, when ε is not zero to 64 bits, (n,)."""
        return (self._sizes_of(num_rows) > 1) & (self.epsilon >= _LEAST_EPSILON)

    def take(self, rows: IntArray) -> Self:
        """The law of these rows, in this order."""
        if self.sets is None or self.sets.ndim == 1:
            return self
        part = copy.copy(self)
        part._set(self.epsilon, self.num_classes, self.sets[rows])
        return part

    def _sets_of(self, num_rows: int) -> BoolArray:
        sets = self.members()
        if sets.ndim == 2 and len(sets) != num_rows:
            raise ValueError(f"the mechanism has sets for {len(sets)} rows, the data has {num_rows}; make one per row")
        return np.broadcast_to(sets, (num_rows, self.num_classes))

    def _sizes_of(self, num_rows: int) -> npt.NDArray[np.int64]:
        return np.broadcast_to(self.set_sizes(), (num_rows,))

    def _parameters(self, mechanism: str) -> dict[str, Any]:
        shown = described(mechanism, self.epsilon, self.num_classes)
        return {**shown, "rows": len(self.members())} if _per_row(self.sets) else shown


class RandomizedResponse(SetResponse):
    """The true label with probability e^ε/(e^ε + K − 1), else one of the others, all alike (Warner 1965).

    >>> import numpy as np
    >>> law = RandomizedResponse(epsilon=1.0, num_classes=10)
    >>> law.probabilities(3).round(4)[0, 2:5]
    array([0.0853, 0.232 , 0.0853])
    >>> len(law.sample(np.zeros(100, dtype=np.uint8), SecureRandom()))
    100
    """

    def __init__(self, epsilon: float, num_classes: int) -> None:
        self._set(checked_epsilon(epsilon), checked_classes(num_classes), None)

    def describe(self) -> Mapping[str, Any]:
        """The public parameters."""
        return self._parameters("randomized-response")


class TopKResponse(SetResponse):
    """Randomized response within given sets of answers: RRTop-k of Ghazi et al. 2021.

    `members` is boolean, (K,) or (n, K), and public. A label outside its set is answered uniformly.

    >>> law = TopKResponse.of_prior(1.0, [0.5, 0.1, 0.1, 0.3], k=3)
    >>> law.members()
    array([ True,  True, False,  True])
    >>> law.probabilities(2).round(3)
    array([[0.333, 0.333, 0.   , 0.333]])
    """

    def __init__(self, epsilon: float, members: npt.ArrayLike) -> None:
        sets = np.array(members)
        if sets.dtype != np.bool_ or sets.ndim not in {1, 2} or not sets.shape[-1]:
            raise ValueError(
                f"members has type {sets.dtype} and shape {sets.shape}; "
                "give booleans of shape (classes,) or (rows, classes)"
            )
        empty = int(np.count_nonzero(~sets.any(axis=-1)))
        if empty:
            raise ValueError(f"members allows no answer in {empty} rows; allow at least one in each")
        self._set(checked_epsilon(epsilon), sets.shape[-1], sets)

    @classmethod
    def of_prior(cls, epsilon: float, prior: npt.ArrayLike, k: int) -> Self:
        """Each row's k likeliest classes; of equally likely ones the lower index first."""
        weights = checked_prior(prior)
        if not 1 <= k <= weights.shape[-1]:
            raise ValueError(f"k is {k}; give a number of answers from 1 to {weights.shape[-1]}")
        best = np.argsort(-weights.astype(np.float64), axis=-1, kind="stable")[..., :k]
        sets = np.zeros(weights.shape, dtype=np.bool_)
        np.put_along_axis(sets, best, True, axis=-1)
        return cls(epsilon, sets)

    def describe(self) -> Mapping[str, Any]:
        """The public parameters, with the set where all rows share one, else with k where it is one."""
        shown = self._parameters("top-k-response")
        if not _per_row(self.sets):
            return {**shown, "members": np.flatnonzero(self.members()).tolist()}
        sizes = np.unique(self.set_sizes())
        return {**shown, "k": int(sizes[0]) if len(sizes) == 1 else None}


class PriorResponse(SetResponse):
    """Randomized response within the sets that keep most labels true: RRWithPrior of Ghazi et al. 2021.

    Of all ε-private ways to answer it has the largest probability that the answer is the label, when labels
    follow `prior`, (K,) or (n, K), unnormalised (Theorem 3 there). `priors.likely_sets` finds the sets and
    shows why; the prior itself is not kept. It must not depend on the labels that are about to be answered.

    >>> PriorResponse(2.0, [0.5, 0.3, 0.1, 0.05, 0.05]).members()
    array([ True,  True,  True, False, False])
    >>> PriorResponse(0.5, [0.5, 0.3, 0.1, 0.05, 0.05]).set_sizes()
    array(1)
    """

    def __init__(self, epsilon: float, prior: npt.ArrayLike) -> None:
        budget = checked_epsilon(epsilon)
        weights = checked_prior(prior)
        self._set(budget, weights.shape[-1], likely_sets(weights, budget))

    def describe(self) -> Mapping[str, Any]:
        """The public parameters, without the prior."""
        return self._parameters("prior-response")


def _per_row(sets: BoolArray | None) -> bool:
    return sets is not None and sets.ndim == 2


def _log_chances(epsilon: float, sizes: npt.ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    """log of e^ε/N, 1/N and 1/k, finite for every finite ε."""
    k = np.asarray(sizes, dtype=np.float64)
    own = -np.log1p((k - 1.0) * math.exp(-epsilon))
    return own, own - epsilon, -np.log(k)
