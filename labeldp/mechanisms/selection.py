"""Choose the largest of several counts and release nothing else: between models, or between the classes of each group.

Permute-and-flip (McKenna and Sheldon 2020), with counts s_c of C options:

    option c comes up heads with probability p_c = e^{-(ε/2)·(s_max − s_c)};  the winner is any of the heads,
    all alike.   P(c wins) = p_c · ∫₀¹ Π_{j≠c} (1 − u·p_j) du

The largest option is always heads, so there is a winner; to take one of the heads at random is to flip in random order
until the first. An option g behind the largest wins with chance at most e^{-(ε/2)·g}: the winner is in the mean at most
about (2/ε)·ln C smaller than the largest, and no mechanism of this kind does better at every table (McKenna and Sheldon
2020). Coins are exact: no probability is ever rounded.

Proof of ε-privacy, where a replaced label takes at most 1 from each count or adds at most 1. The same distribution has
argmax_c s_c + E_c with independent exponential E_c, P(E ≥ m) = min(1, e^{-(ε/2)·m}) (Ding et al. 2021): integrate over
the winning value s with u = e^{-(ε/2)·(s − s_max)}. Given the others' E, option c wins iff
E_c ≥ m = max_{j≠c}(s_j + E_j) − s_c. A replaced label raises m by at most 2, and P(E ≥ m + 2) ≥ e^{-ε}·P(E ≥ m).
One count may fall while another rises, so the rate cannot be ε: that is for scores that all move the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from labeldp.core.events import Event, PureDP
from labeldp.core.random import SecureRandom, exp_coins
from labeldp.core.vault import LabelArray
from labeldp.mechanisms.common import checked_classes, checked_epsilon, pieces, same_classes
from labeldp.mechanisms.counts import GroupCounts, LaplaceNoise
from labeldp.releases import FloatArray

Winners = npt.NDArray[np.int64]

_ROWS_AT_ONCE, _CELLS_AT_ONCE = 1 << 16, 1 << 16


def permute_and_flip(scores: npt.NDArray[np.int64], epsilon: float, rng: SecureRandom) -> Winners:
    """Draw the winner of every row of a table of counts, (m, C) to (m,)."""
    behind = scores.max(axis=1, keepdims=True) - scores
    if epsilon == math.inf:
        heads = behind == 0
    else:
        gaps, rate = behind.ravel(), Fraction(epsilon) / 2
        with np.errstate(over="ignore"):
            gamma = gaps * (epsilon / 2)
        heads = exp_coins(rng, gamma, lambda i: rate * int(gaps[i])).reshape(scores.shape)
    # Of r heads the one with a random rank below r.
    ranks = np.cumsum(heads, axis=1)
    chosen = rng.below(ranks[:, -1], len(heads)).astype(np.int64)
    return (ranks > chosen[:, None]).argmax(axis=1)


def winning_chances(scores: npt.ArrayLike, epsilon: float) -> FloatArray:
    """Return P(option wins), (m, C), for a table of counts that is no secret: to plan with.

    The integral is that of a polynomial of degree C − 1, and ⌈C/2⌉ Gauss points make it exact but for rounding.
    """
    table = np.asarray(scores, dtype=np.float64)
    behind = table.max(axis=1, keepdims=True) - table
    heads = np.exp(-behind * (epsilon / 2)) if epsilon < math.inf else (behind == 0).astype(np.float64)
    points, weights = np.polynomial.legendre.leggauss(-(-table.shape[1] // 2))
    result = np.zeros_like(table)
    for u, weight in zip((points + 1.0) / 2.0, weights / 2.0, strict=True):
        tails = 1.0 - u * heads
        result += weight * tails.prod(axis=1, keepdims=True) * (heads / tails)
    return result


@dataclass(frozen=True, eq=False, init=False)
class BestCandidate:
    """Choose the candidate with most right predictions: one query.

    The counts are s_c = #{i : prediction_ci = y_i}. Predictions are public: the candidates must have learnt from other
    rows, or from releases that were paid for.

    Proof of ε-privacy. A replaced label takes at most 1 from every score or adds at most 1; where one candidate said
    the old label and another says the new one, they move against each other. The rest is in the module's proof.

    >>> ask = BestCandidate([[0, 1, 1, 0], [0, 0, 0, 0]], num_classes=2, epsilon=math.inf)
    >>> ask.sample(np.array([0, 1, 1, 1], dtype=np.uint8), SecureRandom())
    0
    >>> ask.chances([3, 1]).tolist()
    [1.0, 0.0]
    """

    epsilon: float
    num_classes: int
    predictions: npt.NDArray[np.int64] = field(repr=False)

    def __init__(self, predictions: npt.ArrayLike, num_classes: int, epsilon: float) -> None:
        table = np.array(predictions)
        if table.ndim != 2 or not len(table) or table.dtype.kind not in "iu":
            raise ValueError(
                f"predictions has shape {table.shape} and type {table.dtype}; give whole numbers (candidates, rows)"
            )
        classes = checked_classes(num_classes)
        strange = int(np.count_nonzero((table < 0) | (table >= classes)))
        if strange:
            raise ValueError(f"predictions has {strange} entries outside 0 to {classes - 1}")
        table = table.astype(np.int64)
        table.setflags(write=False)
        object.__setattr__(self, "epsilon", checked_epsilon(epsilon))
        object.__setattr__(self, "num_classes", classes)
        object.__setattr__(self, "predictions", table)

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless every candidate predicts every row, in the classes of the data."""
        same_classes(self.num_classes, num_classes)
        if self.predictions.shape[1] != num_rows:
            raise ValueError(f"predictions has {self.predictions.shape[1]} rows, the data {num_rows}; make it equal")

    def event(self) -> Event:
        """Return ε-privacy with δ = 0."""
        return PureDP(self.epsilon)

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> int:
        """Draw the winner's number."""
        scores = np.zeros(len(self.predictions), dtype=np.int64)
        for part in pieces(len(labels), _ROWS_AT_ONCE):
            scores += np.count_nonzero(self.predictions[:, part] == labels[part], axis=1)
        return int(permute_and_flip(scores[None, :], self.epsilon, rng)[0])

    def chances(self, scores: npt.ArrayLike) -> FloatArray:
        """Return P(candidate wins), (C,), for scores that are no secret."""
        return winning_chances(np.asarray(scores)[None, :], self.epsilon)[0]


@dataclass(frozen=True, eq=False, init=False)
class GroupVotes:
    """Choose the class with most rows in each public group: one query.

    The counts are those of the classes in the group. `groups` gives each row's group, 0 to num_groups − 1; it must not
    depend on the labels. A group without rows has a random winner.

    Proof of ε-privacy. A replaced label takes 1 from one count of its group and adds 1 to another, which is the
    module's proof; the other groups are drawn independently and do not change (parallel composition). Nothing is
    wasted: where all m ≥ 2 rows of a group have one of two classes, replacing one of them multiplies the other class's
    chance by exactly e^ε.

    >>> ask = GroupVotes([0, 0, 1], num_groups=2, num_classes=3, epsilon=math.inf)
    >>> ask.sample(np.array([2, 2, 1], dtype=np.uint8), SecureRandom())
    array([2, 1])
    >>> GroupVotes([], 1, 2, epsilon=1.0).chances([[14, 10]]).round(4)
    array([[0.9323, 0.0677]])
    """

    epsilon: float
    votes: GroupCounts = field(repr=False)

    def __init__(self, groups: npt.ArrayLike, num_groups: int, num_classes: int, epsilon: float) -> None:
        object.__setattr__(self, "epsilon", checked_epsilon(epsilon))
        # Counts without noise: they stay inside `sample`.
        object.__setattr__(self, "votes", GroupCounts(groups, num_groups, num_classes, LaplaceNoise(math.inf)))

    @property
    def groups(self) -> npt.NDArray[np.int64]:
        """Return each row's group, (n,)."""
        return self.votes.groups

    @property
    def num_groups(self) -> int:
        """Return how many groups have a winner."""
        return self.votes.num_groups

    @property
    def num_classes(self) -> int:
        """Return the number of classes K."""
        return self.votes.num_classes

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless there is a group for every row and the classes are those of the data."""
        self.votes.fits(num_rows, num_classes)

    def event(self) -> Event:
        """Return ε-privacy with δ = 0."""
        return PureDP(self.epsilon)

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> Winners:
        """Draw one class per group, (groups,)."""
        counts = self.votes.sample(labels, rng).counts
        winners = np.empty(self.num_groups, dtype=np.int64)
        for part in pieces(self.num_groups, max(1, _CELLS_AT_ONCE // self.num_classes)):
            winners[part] = permute_and_flip(counts[part], self.epsilon, rng)
        winners.setflags(write=False)
        return winners

    def chances(self, counts: npt.ArrayLike) -> FloatArray:
        """Return P(class wins), (groups, K), for a table of counts, (groups, K), that is no secret."""
        return winning_chances(counts, self.epsilon)
