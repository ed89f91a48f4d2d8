"""Release noisy class counts per public group: histograms, the prior of a semi-supervised learner."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.core.events import DiscreteGaussian, Event, PureDP
from labeldp.core.inverse import analytic_gaussian_std
from labeldp.core.random import SMALLEST_RATE, SecureRandom
from labeldp.core.vault import LabelArray
from labeldp.mechanisms.common import checked_classes, checked_epsilon, checked_integer, same_classes
from labeldp.releases import NoisyCounts


@dataclass(frozen=True)
class LaplaceNoise:
    """Draw discrete Laplace noise for counts, P(x) ∝ e^{-ε|x|/2}: ε-private, δ = 0 (Ghosh et al. 2012).

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
        """Return 1/(√2·sinh(ε/4))."""
        return math.sqrt(2.0) * math.exp(-self.epsilon / 4) / -math.expm1(-self.epsilon / 2)

    def event(self) -> Event:
        """Return ε-privacy with δ = 0."""
        return PureDP(self.epsilon)

    def draw(self, rng: SecureRandom, size: int) -> npt.NDArray[np.int64]:
        """Draw independent noise for `size` cells."""
        return rng.discrete_laplace(self._rate, size)


@dataclass(frozen=True)
class GaussianNoise:
    """Draw discrete Gaussian noise for counts, P(x) ∝ e^{-x²/(2·std²)} (Canonne, Kamath & Steinke 2020).

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
        """Return the noise for one release with this (ε, δ).

        At least the noise of the continuous distribution (Balle & Wang 2018, distance √2), and more until the
        discrete distribution, which for small noise is another one, meets the budget too.
        """
        std = analytic_gaussian_std(epsilon, delta, math.sqrt(2.0))
        while DiscreteGaussian(std, (1, 1)).profile(epsilon)[0] > delta:
            std *= 1.0 + 2.0**-10
        return cls(std)

    @property
    def exact_std(self) -> float:
        """Return the standard deviation itself, which for small `std` is a little less than `std`."""
        if self.std > 8.0:
            # They differ by a relative 8π²·std²·e^{-2π²·std²}, far below rounding.
            return self.std
        weights = np.exp(-0.5 * (np.arange(1, 400) / self.std) ** 2)
        return math.sqrt(2.0 * np.sum(np.arange(1, 400.0) ** 2 * weights) / (1.0 + 2.0 * weights.sum()))

    def event(self) -> Event:
        """Return the exact discrete distribution, with two counts moving by one."""
        return DiscreteGaussian(self.std, (1, 1))

    def draw(self, rng: SecureRandom, size: int) -> npt.NDArray[np.int64]:
        """Draw independent noise for `size` cells."""
        return rng.discrete_gaussian(self.std, size)


@dataclass(frozen=True, eq=False)
class GroupCounts:
    """Count how many rows of each public group have each class, and add noise to every cell: one query.

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
        given: npt.NDArray[Any] = np.asarray(groups)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise ValueError(f"groups has type {given.dtype} and shape {given.shape}; give a whole number per row")
        wrong = int(np.count_nonzero((given < 0) | (given >= self.num_groups)))
        if wrong:
            raise ValueError(f"groups has {wrong} entries outside 0 to {self.num_groups - 1}, as num_groups says")
        copied = given.astype(np.int64)
        copied.setflags(write=False)
        object.__setattr__(self, "groups", copied)
        object.__setattr__(self, "noise", noise)

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless there is a group for every row and the classes are those of the data."""
        same_classes(self.num_classes, num_classes)
        if len(self.groups) != num_rows:
            raise ValueError(f"groups has {len(self.groups)} rows, the data {num_rows}; give one group per row")

    def event(self) -> Event:
        """Return what the noise costs when two cells move by one."""
        return self.noise.event()

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> NoisyCounts:
        """Draw noisy counts, (groups, classes)."""
        cells = self.groups * self.num_classes + labels.astype(np.int64)
        return self.noised(np.bincount(cells, minlength=self.num_groups * self.num_classes).astype(np.int64), rng)

    def noised(self, counts: npt.NDArray[np.int64], rng: SecureRandom) -> NoisyCounts:
        """Release exact counts of all rows, (groups · classes,), however they were added up."""
        noisy = (counts + self.noise.draw(rng, len(counts))).reshape(self.num_groups, self.num_classes)
        sizes = np.bincount(self.groups, minlength=self.num_groups).astype(np.int64)
        return NoisyCounts(noisy, sizes, self.noise.name, self.noise.exact_std)
