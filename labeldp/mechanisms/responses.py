"""Answer labels by randomized response among a set of classes: all of them, given sets, or the best sets for a prior.

One channel and one sampler serve all three. Row i has a public set S of k ≥ 1 allowed responses; N = e^ε + k − 1:

    label y in S:      P(y) = e^ε/N,  P(any other member) = 1/N
    label y not in S:  P(any member) = 1/k

Proof of ε-privacy. Every response's probability is one of e^ε/N ≥ 1/k ≥ 1/N, and the outer two have ratio e^ε.
The sets depend on public things only, so they may be shown. The probabilities are multiples of 2^-64,
rounded so that no ratio exceeds e^ε (`response_thresholds`); the channel below states them to within k·2^-64.

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

from labeldp.core.events import Event, PureDP
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelArray
from labeldp.mechanisms.common import (
    checked_classes,
    checked_epsilon,
    described,
    pieces,
    response_thresholds,
    same_classes,
)
from labeldp.releases import BoolArray, FloatArray, IntArray, NoisyLabels

WordArray = npt.NDArray[np.uint64]

# Room for the sum of a row in float64.
_LARGEST_WEIGHT = 1e300
# Below this 64-bit words cannot tell ε from 0.
_LEAST_EPSILON = 2.0**-60
# Pieces that stay in the cache.
_ROWS_AT_ONCE, _CELLS_AT_ONCE, _PRIOR_CELLS_AT_ONCE = 1 << 14, 1 << 18, 1 << 17

# -- drawing: from words to members of sets ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Thresholds:
    """Say where a word belongs: gap and width per set size, twice (label outside, label inside the set).

    A uniform response has gap 0 and width ⌊2^64/k⌋; its few left-over words are replaced by an exact draw.
    """

    honest: bool
    gaps: WordArray
    widths: WordArray

    @classmethod
    def of(cls, epsilon: float, sizes: npt.NDArray[np.int64]) -> Thresholds:
        """Return the thresholds of every set size that occurs."""
        present = np.flatnonzero(np.bincount(sizes.ravel()))
        gaps = np.zeros(2 * (int(present.max(initial=0)) + 1), dtype=np.uint64)
        widths = np.ones_like(gaps)
        for k in present.tolist():
            uniform = (0, min(2**64 // k, 2**64 - 1))
            inside = None if epsilon == math.inf else response_thresholds(epsilon, k)
            gaps[2 * k], widths[2 * k] = uniform
            gaps[2 * k + 1], widths[2 * k + 1] = inside or uniform
        return cls(epsilon == math.inf, gaps, widths)

    def response(self, labels: LabelArray, sets: BoolArray | None, rng: SecureRandom) -> npt.NDArray[Any]:
        """Draw one response per label; no other function of this file looks at labels."""
        # The size of each row's set and whether it holds the label: one number where one serves all rows.
        sizes: Any
        inside: Any
        if sets is None:
            sizes, inside = (len(self.gaps) - 2) // 2, 1
        elif sets.ndim == 1:
            sizes, inside = np.count_nonzero(sets), sets[labels].view(np.uint8)
        else:
            sizes, inside = np.count_nonzero(sets, axis=1), sets[np.arange(len(labels)), labels].view(np.uint8)
        words, cell = rng.words(len(labels)), 2 * sizes + inside
        gaps, widths = self.gaps[cell], self.widths[cell]
        keep = words < gaps
        position = ((words - gaps) // widths).view(np.int64)
        spilled = np.flatnonzero(~keep & (position >= sizes))
        if spilled.size:
            position[spilled] = rng.at(spilled).below(np.broadcast_to(sizes, len(labels))[spilled], spilled.size)
        if self.honest:
            keep = np.broadcast_to(inside, labels.shape)
        return np.where(keep, labels, _member(sets, sizes, np.where(keep, 0, position)).astype(labels.dtype))


def _member(sets: BoolArray | None, sizes: Any, position: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the class at this position of each row's set."""
    if sets is None:
        return position
    classes = np.flatnonzero(sets)
    if sets.ndim == 1:
        return classes[position]
    first = np.cumsum(sizes) - sizes
    return classes[first + position] % sets.shape[1]


# -- which responses to allow when a prior is known ----------------------------------------------------------


def checked_prior(prior: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return the prior as a real array, (K,) or (n, K), or raise ValueError. Rows need not sum to 1."""
    weights = np.asarray(prior)
    if weights.dtype.kind not in "fiub":
        weights = np.asarray(prior, dtype=np.float64)
    if weights.ndim not in {1, 2} or not weights.shape[-1]:
        raise ValueError(f"prior has shape {weights.shape}; give (classes,) or (rows, classes)")
    # A NaN makes both comparisons false.
    if weights.size and not (float(weights.min()) >= 0 and float(weights.max()) <= _LARGEST_WEIGHT):
        wide = weights.astype(np.float64)
        good = ((wide >= 0) & (wide <= _LARGEST_WEIGHT)).all(axis=-1)
        raise ValueError(
            f"prior has {int(np.count_nonzero(~good))} rows with entries that are negative or not finite; "
            "give probabilities or other weights of at least 0"
        )
    return weights


def likely_sets(weights: npt.NDArray[Any], epsilon: float) -> BoolArray:
    """Return the set S of each row that maximises P(response = label), as booleans of the prior's shape.

    With p_(1) ≥ p_(2) ≥ … and S the k likeliest, P(response = label) = e^ε·(p_(1) + … + p_(k))/(e^ε + k − 1).
    Going from k to k + 1 does not lower it iff  Σ_{j≤k} (p_(j) − p_(k+1)) ≤ p_(k+1)·(e^ε − 1).
    The left side grows with k and the right side falls, so there is one peak and the condition holds up to
    it; among equal peaks the largest set is taken. In terms of one class:

        c is in S   iff   Σ_j max(p_j − p_c, 0) ≤ p_c·(e^ε − 1),

    which needs no normalisation and no rule for ties: equal classes enter together. For equal p the left
    side is exactly 0, so a uniform (or all-zero) prior allows every class at every ε ≥ 0. At ε = ∞ every
    class is allowed, whatever the prior: then the response is the label.
    """
    if epsilon == math.inf:
        return np.ones(weights.shape, dtype=np.bool_)
    rows = weights.reshape(-1, weights.shape[-1])
    sets = np.empty(rows.shape, dtype=np.bool_)
    growth = math.expm1(min(epsilon, 700.0))
    for part in pieces(len(rows), max(1 << 8, _PRIOR_CELLS_AT_ONCE // rows.shape[1])):
        block = rows[part].astype(np.float64, copy=False)
        np.greater_equal(block, _smallest_member(block, growth)[:, None], out=sets[part])
    return sets.reshape(weights.shape)


def _smallest_member(weights: FloatArray, growth: float) -> FloatArray:
    """Return the smallest p_c in each row's set. (m, K) to (m,)."""
    ranked = np.ascontiguousarray(np.sort(weights, axis=1)[:, ::-1].T)
    smallest, lead = ranked[0].copy(), np.zeros(len(weights))
    with np.errstate(over="ignore"):
        for k in range(1, len(ranked)):
            # Differences of neighbours, not of running sums: equal weights add exactly nothing.
            lead += k * (ranked[k - 1] - ranked[k])
            enters = lead <= ranked[k] * growth
            if not enters.any():
                break
            np.copyto(smallest, ranked[k], where=enters)
    return smallest


# -- the mechanisms ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, init=False)
class SetResponse(ABC):
    """Share what the three responses have in common; `sets` is None (every class), (K,) for all rows, or (n, K)."""

    epsilon: float
    num_classes: int
    sets: BoolArray | None = field(repr=False)

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Return the public parameters as plain JSON values."""

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
        """Return ε-privacy with δ = 0."""
        return PureDP(self.epsilon)

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> NoisyLabels:
        """Draw one response per label, in the labels' own type."""
        responses = np.empty_like(labels)
        thresholds = Thresholds.of(self.epsilon, self.set_sizes())
        sets, wide = self.sets, self.num_classes if _per_row(self.sets) else 1
        for rows in pieces(len(labels), min(_ROWS_AT_ONCE, max(256, _CELLS_AT_ONCE // wide))):
            part = sets[rows] if sets is not None and sets.ndim == 2 else sets
            responses[rows] = thresholds.response(labels[rows], part, rng.at(rows))
        return NoisyLabels(self, responses)

    # -- channel ------------------------------------------------------------------------------------------------

    def members(self) -> BoolArray:
        """Return which responses are allowed: (K,) where all rows share one set, else (n, K)."""
        return np.ones(self.num_classes, dtype=np.bool_) if self.sets is None else self.sets

    def set_sizes(self) -> npt.NDArray[np.int64]:
        """Return the number k of allowed responses: shape () where all rows share one set, else (n,)."""
        if self.sets is None:
            return np.asarray(self.num_classes)
        return np.asarray(np.count_nonzero(self.sets, axis=-1))

    def probabilities(self, label: int, row: int = 0) -> FloatArray:
        """Return P(response | label) of one row, (1, K)."""
        members = self.members() if not _per_row(self.sets) else self.members()[row]
        own, other, outside = np.exp(_log_chances(self.epsilon, np.count_nonzero(members)))
        chances = np.where(members, other if members[label] else outside, 0.0)
        if members[label]:
            chances[label] = own
        return chances[None, :]

    def log_likelihood(self, responses: IntArray) -> FloatArray:
        """Return log P(response | class), (n, K): −∞ throughout where the response is not allowed."""
        sets, sizes, rows = self._sets_of(len(responses)), self._sizes_of(len(responses)), np.arange(len(responses))
        own, other, outside = _log_chances(self.epsilon, sizes)
        result = np.where(sets, other[:, None], outside[:, None])
        result[rows, responses] = own
        result[~sets[rows, responses]] = -np.inf
        return result

    def unbiased(self, responses: IntArray) -> FloatArray:
        """Return (onehot(response) − p)/(1 − k·p) on the set, p = 1/N, and 0 off it, (n, K).

        Its mean is onehot(y) for y in the set. For y outside it is the uniform vector on the set: the
        response's channel is then the same for every such y, so no estimate from it is unbiased.
        """
        num_rows, keep = len(responses), math.exp(-self.epsilon)
        result = np.zeros((num_rows, self.num_classes))
        informative = self.informative(num_rows)
        if not informative.any():
            return result
        scale = (1.0 + (self._sizes_of(num_rows) - 1.0) * keep) / -math.expm1(-self.epsilon)
        result[self._sets_of(num_rows)] = keep / math.expm1(-self.epsilon)
        result[np.arange(num_rows), responses] += scale
        result[~informative] = 0.0
        return result

    def informative(self, num_rows: int) -> BoolArray:
        """Return the rows with at least two allowed responses, when ε is not zero to 64 bits, (n,)."""
        return (self._sizes_of(num_rows) > 1) & (self.epsilon >= _LEAST_EPSILON)

    def take(self, rows: IntArray) -> Self:
        """Return the channel of these rows, in this order."""
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
    """Answer the true label with probability e^ε/(e^ε + K − 1), else one of the others, all alike (Warner 1965).

    >>> import numpy as np
    >>> channel = RandomizedResponse(epsilon=1.0, num_classes=10)
    >>> channel.probabilities(3).round(4)[0, 2:5]
    array([0.0853, 0.232 , 0.0853])
    >>> len(channel.sample(np.zeros(100, dtype=np.uint8), SecureRandom()))
    100
    """

    def __init__(self, epsilon: float, num_classes: int) -> None:
        self._set(checked_epsilon(epsilon), checked_classes(num_classes), None)

    def describe(self) -> Mapping[str, Any]:
        """Return the public parameters."""
        return self._parameters("randomized-response")


class TopKResponse(SetResponse):
    """Answer by randomized response within given sets of classes: RRTop-k of Ghazi et al. 2021.

    `members` is boolean, (K,) or (n, K), and public. A label outside its set is answered uniformly.

    >>> channel = TopKResponse.of_prior(1.0, [0.5, 0.1, 0.1, 0.3], k=3)
    >>> channel.members()
    array([ True,  True, False,  True])
    >>> channel.probabilities(2).round(3)
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
            raise ValueError(f"members allows no response in {empty} rows; allow at least one in each")
        self._set(checked_epsilon(epsilon), sets.shape[-1], sets)

    @classmethod
    def of_prior(cls, epsilon: float, prior: npt.ArrayLike, k: int) -> Self:
        """Allow each row's k likeliest classes; of equally likely ones the lower index comes first."""
        weights = checked_prior(prior)
        if not 1 <= k <= weights.shape[-1]:
            raise ValueError(f"k is {k}; give a number of responses from 1 to {weights.shape[-1]}")
        best = np.argsort(-weights.astype(np.float64), axis=-1, kind="stable")[..., :k]
        sets = np.zeros(weights.shape, dtype=np.bool_)
        np.put_along_axis(sets, best, True, axis=-1)
        return cls(epsilon, sets)

    def describe(self) -> Mapping[str, Any]:
        """Return the public parameters, with the set where all rows share one, else with k where it is one."""
        shown = self._parameters("top-k-response")
        if not _per_row(self.sets):
            return {**shown, "members": np.flatnonzero(self.members()).tolist()}
        sizes = np.unique(self.set_sizes())
        return {**shown, "k": int(sizes[0]) if len(sizes) == 1 else None}


class PriorResponse(SetResponse):
    """Answer by randomized response within the sets that keep most labels true: RRWithPrior of Ghazi et al. 2021.

    Of all ε-private ways to answer it has the largest probability that the response is the label, when labels
    follow `prior`, (K,) or (n, K), unnormalised (Theorem 3 there). `likely_sets` finds the sets and
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
        """Return the public parameters, without the prior."""
        return self._parameters("prior-response")


def _per_row(sets: BoolArray | None) -> bool:
    return sets is not None and sets.ndim == 2


def _log_chances(epsilon: float, sizes: npt.ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the logarithms of e^ε/N, 1/N and 1/k, finite for every finite ε."""
    k = np.asarray(sizes, dtype=np.float64)
    own = -np.log1p((k - 1.0) * math.exp(-epsilon))
    return own, own - epsilon, -np.log(k)
