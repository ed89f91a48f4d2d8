"""Noisy class counts per public group: cluster votes, histograms, the prior of a semi-supervised learner."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.core.events import DiscreteGaussian, Event, PureDP
from labeldp.core.gaussian import analytic_gaussian_std
from labeldp.core.random import SMALLEST_RATE, SecureRandom, exp_coins
from labeldp.core.vault import LabelArray
from labeldp.mechanisms.common import checked_classes, checked_epsilon, checked_integer, pieces, same_classes
from labeldp.releases import BoolArray, FloatArray, NoisyCounts


@dataclass(frozen=True)
class LaplaceNoise:
    """Discrete Laplace noise for counts, P(x) ∝ e^{-ε|x|/2}: ε-private, δ = 0 (Ghosh et al. 2012).

    Proof. A replaced label takes 1 from one cell and adds 1 to another, so the exponents Σ|x|·ε/2 of the two
    data sets differ by at most 2·ε/2.

    >>> round(LaplaceNoise(0.5).exact_std, 3)
    5.642
    """

    epsilon: float
    name: str = field(default="discrete Laplace", init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checked_epsilon(self.epsilon))
        if self._rate < SMALLEST_RATE:
            raise ValueError(f"epsilon is {self.epsilon!r}; noisy counts need at least 2^-44")

    @property
    def _rate(self) -> Fraction | float:
        return Fraction(self.epsilon) / 2 if self.epsilon < math.inf else math.inf

    @property
    def exact_std(self) -> float:
        """1/(√2·sinh(ε/4))."""
        return math.sqrt(2.0) * math.exp(-self.epsilon / 4) / -math.expm1(-self.epsilon / 2)

    def event(self) -> Event:
        """ε-privacy with δ = 0."""
        return PureDP(self.epsilon)

    def draw(self, rng: SecureRandom, size: int) -> npt.NDArray[np.int64]:
        """Independent noise for `size` cells."""
        return rng.discrete_laplace(self._rate, size)


@dataclass(frozen=True)
class GaussianNoise:
    """Discrete Gaussian noise for counts, P(x) ∝ e^{-x²/(2·std²)} (Canonne, Kamath & Steinke 2020).

    Smaller than Laplace noise only when many releases compose. Its cost is that of the exact discrete distribution:
    two cells move by 1 each.

    >>> round(GaussianNoise.for_budget(epsilon=1.0, delta=1e-5).std, 3)
    5.276
    """

    std: float
    name: str = field(default="discrete Gaussian", init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "std", float(self.std))
        self.event()

    @classmethod
    def for_budget(cls, epsilon: float, delta: float) -> GaussianNoise:
        """The noise for one release with this (ε, δ).

        At least the noise of the continuous distribution (Balle & Wang 2018, distance √2), and more until the
        discrete distribution, which for small noise is another one, meets the budget too.
        """
        std = analytic_gaussian_std(epsilon, delta, math.sqrt(2.0))
        while DiscreteGaussian(std, (1, 1)).profile(epsilon)[0] > delta:
            std *= 1.0 + 2.0**-10
        return cls(std)

    @property
    def exact_std(self) -> float:
        """The standard deviation itself, which for small `std` is a little less than `std`."""
        if self.std > 8.0:
            # They differ by a relative 8π²·std²·e^{-2π²·std²}, far below rounding.
            return self.std
        weights = np.exp(-0.5 * (np.arange(1, 400) / self.std) ** 2)
        return math.sqrt(2.0 * np.sum(np.arange(1, 400.0) ** 2 * weights) / (1.0 + 2.0 * weights.sum()))

    def event(self) -> Event:
        """The exact discrete distribution, with two counts moving by one."""
        return DiscreteGaussian(self.std, (1, 1))

    def draw(self, rng: SecureRandom, size: int) -> npt.NDArray[np.int64]:
        """Independent noise for `size` cells."""
        return rng.discrete_gaussian(self.std, size)


@dataclass(frozen=True, eq=False)
class GroupCounts:
    """How many rows of each public group have each class, plus noise on every cell: one query.

    `groups` gives each row's group, 0 to num_groups − 1. It must not depend on the labels.

    All groups together cost as much as one. Proof: a row is in one group, so replacing its label changes
    the counts of that group only; the noise of the other groups is independent and its factor cancels in
    the ratio of the two likelihoods (parallel composition).

    >>> import numpy as np
    >>> ask = GroupCounts([0, 0, 1], num_groups=2, num_classes=3, noise=LaplaceNoise(math.inf))
    >>> ask.sample(np.array([2, 2, 1], dtype=np.uint8), SecureRandom()).counts
    array([[0, 0, 2],
           [0, 1, 0]])
    """

    groups: npt.NDArray[np.int64] = field(repr=False)
    num_groups: int
    num_classes: int
    noise: LaplaceNoise | GaussianNoise

    def __init__(
        self, groups: npt.ArrayLike, num_groups: int, num_classes: int, noise: LaplaceNoise | GaussianNoise
    ) -> None:
        object.__setattr__(self, "num_groups", checked_integer("num_groups", num_groups, 1, 1 << 40))
        object.__setattr__(self, "num_classes", checked_classes(num_classes))
        object.__setattr__(self, "groups", _checked_groups(groups, self.num_groups))
        object.__setattr__(self, "noise", noise)

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless there is a group for every row and the classes are those of the data."""
        same_classes(self.num_classes, num_classes)
        if len(self.groups) != num_rows:
            raise ValueError(f"groups has {len(self.groups)} rows, the data {num_rows}; give one group per row")

    def event(self) -> Event:
        """What the noise costs when two cells move by one."""
        return self.noise.event()

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> NoisyCounts:
        """Noisy counts, (groups, classes)."""
        cells = self.num_groups * self.num_classes
        counts = np.bincount(self.groups * self.num_classes + labels.astype(np.int64), minlength=cells)
        noisy = (counts.astype(np.int64) + self.noise.draw(rng, cells)).reshape(self.num_groups, self.num_classes)
        sizes = np.bincount(self.groups, minlength=self.num_groups).astype(np.int64)
        return NoisyCounts(noisy, sizes, self.noise.name, self.noise.exact_std)


def _checked_groups(groups: npt.ArrayLike, num_groups: int) -> npt.NDArray[np.int64]:
    given: npt.NDArray[Any] = np.asarray(groups)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(f"groups has type {given.dtype} and shape {given.shape}; give a whole number per row")
    wrong = int(np.count_nonzero((given < 0) | (given >= num_groups)))
    if wrong:
        raise ValueError(f"groups has {wrong} entries outside 0 to {num_groups - 1}, as num_groups says")
    copied = given.astype(np.int64)
    copied.setflags(write=False)
    return copied


# -- the winning class of each group and nothing else --------------------------------------------------------


Winners = npt.NDArray[np.int64]

_CELLS_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False, init=False)
class GroupVotes:
    """The class with most rows in each public group, by permute-and-flip (McKenna and Sheldon 2020): one query.

        class c comes up heads with probability p_c = e^{-(ε/2)·(n_max − n_c)};  the winner is any of the heads,
        all alike.   P(c wins) = p_c · ∫₀¹ Π_{j≠c} (1 − u·p_j) du

    n_c is the group's count of class c. The largest class is always heads, so there is a winner; to take one of the
    heads at random is to flip in random order until the first. Coins are exact: no probability is ever rounded.

    Proof of ε-privacy. The same distribution has argmax_c n_c + E_c with independent exponential E_c, P(E ≥ m) =
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
