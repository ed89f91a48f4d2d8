"""The winning class of each public group and nothing else: cluster labels at less noise than noisy counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from labeldp.accounting.events import Event, PureDP
from labeldp.private.counts import GroupCounts, LaplaceNoise
from labeldp.private.discrete import exp_coins
from labeldp.private.mechanism import LabelArray
from labeldp.private.randomness import SecureRandom
from labeldp.private.shared import checked_epsilon, pieces
from labeldp.releases import BoolArray, FloatArray

Winners = npt.NDArray[np.int64]

_CELLS_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False, init=False)
class GroupVotes:
    """The class with most rows in each public group, by permute-and-flip (McKenna and Sheldon 2020): one look.

        class c comes up heads with probability p_c = e^{-(ε/2)·(n_max − n_c)};  the winner is any of the heads,
        all alike.   P(c wins) = p_c · ∫₀¹ Π_{j≠c} (1 − u·p_j) du

    n_c is the group's count of class c. The largest class is always heads, so there is a winner; to take one of the
    heads at random is to flip in random order until the first. Coins are exact: no probability is ever rounded.

    Proof of ε-privacy. The same law has argmax_c n_c + E_c with independent exponential E_c, P(E ≥ m) =
    min(1, e^{-(ε/2)·m}) (Ding et al. 2021): integrate over the winning value s with u = e^{-(ε/2)·(s − n_max)}. Given
    the others' E, class c wins iff E_c ≥ m = max_{j≠c}(n_j + E_j) − n_c. A replaced label takes 1 from one count of
    its group and adds 1 to another, so m rises by at most 2, and P(E ≥ m + 2) ≥ e^{-ε}·P(E ≥ m). The other groups are
    drawn independently and do not change (parallel composition).

    Nothing is wasted: where all m ≥ 2 rows of a group have one of two classes, replacing one of them multiplies the
    other class's chance by exactly e^ε. One count falls while another rises, so the rate cannot be ε: that is for
    scores that all move the same way.

    `groups` gives each row's group, 0 to num_groups − 1. It must not depend on the labels. A group without rows has
    a random winner.

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
        """Each row's group, (n,)."""
        return self.votes.groups

    @property
    def num_groups(self) -> int:
        """How many groups have a winner."""
        return self.votes.num_groups

    @property
    def num_classes(self) -> int:
        """Number of classes K."""
        return self.votes.num_classes

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless there is a group for every row and the classes are those of the data."""
        self.votes.fits(num_rows, num_classes)

    def event(self) -> Event:
        """ε-privacy with δ = 0."""
        return PureDP(self.epsilon)

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> Winners:
        """One class per group, (groups,)."""
        counts = self.votes.sample(labels, rng).counts
        winners = np.empty(self.num_groups, dtype=np.int64)
        for part in pieces(self.num_groups, max(1, _CELLS_AT_ONCE // self.num_classes)):
            winners[part] = _any_of(self._heads(counts[part], rng), rng)
        winners.setflags(write=False)
        return winners

    def _heads(self, counts: npt.NDArray[np.int64], rng: SecureRandom) -> BoolArray:
        """One coin per group and class, (m, K)."""
        behind = counts.max(axis=1, keepdims=True) - counts
        if self.epsilon == math.inf:
            return behind == 0
        gaps, rate = behind.ravel(), Fraction(self.epsilon) / 2
        with np.errstate(over="ignore"):
            gamma = gaps * (self.epsilon / 2)
        return exp_coins(rng, gamma, lambda i: rate * int(gaps[i])).reshape(counts.shape)

    def chances(self, counts: npt.ArrayLike) -> FloatArray:
        """P(class wins), (groups, K), for a table of counts, (groups, K): to plan with tables that are no secret.

        The integral is that of a polynomial of degree K − 1, and ⌈K/2⌉ Gauss points make it exact but for rounding.
        """
        table = np.asarray(counts, dtype=np.float64)
        behind = table.max(axis=1, keepdims=True) - table
        heads = np.exp(-behind * (self.epsilon / 2)) if self.epsilon < math.inf else (behind == 0).astype(np.float64)
        points, weights = np.polynomial.legendre.leggauss(-(-table.shape[1] // 2))
        result = np.zeros_like(table)
        for u, weight in zip((points + 1.0) / 2.0, weights / 2.0, strict=True):
            tails = 1.0 - u * heads
            result += weight * tails.prod(axis=1, keepdims=True) * (heads / tails)
        return result


def _any_of(heads: BoolArray, rng: SecureRandom) -> Winners:
    """The column of one of the true entries of each row, all alike, (m,)."""
    ranks = np.cumsum(heads, axis=1)
    chosen = rng.below(ranks[:, -1], len(heads)).astype(np.int64)
    return (ranks > chosen[:, None]).argmax(axis=1)
