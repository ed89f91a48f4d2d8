"""The label-feature moment, released once: all that a linear head needs to know about the labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from numbers import Real
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from labeldp.accounting.events import Event, Gaussian, GridGaussian, PureDP
from labeldp.private.counts import GaussianNoise, LaplaceNoise
from labeldp.private.discrete import LARGEST_STD, SMALLEST_RATE
from labeldp.private.mechanism import LabelArray
from labeldp.private.moment_bounds import Grid, RowLimiter, UserLimiter, grid_for
from labeldp.private.moment_sums import GridSum, IntMatrix, RowChunks, as_chunks, blocks
from labeldp.private.randomness import SecureRandom
from labeldp.private.shared import checked_classes, same_classes
from labeldp.private.user_rows import Users
from labeldp.private.users import Charge, group_charges
from labeldp.releases import FloatArray, NoisyMoments

__all__ = ["Moments", "RowChunks"]

# Exact draws take a few microseconds each; more cells than this get floating-point noise unless `exact` says otherwise.
_EXACT_CELLS = 1 << 22
_SMALLEST_RADIUS, _LARGEST_RADIUS = 1e-10, 1e10


@dataclass(frozen=True, eq=False, init=False)
class Moments:
    """Σ_i onehot(y_i) ⊗ φ_i plus noise on every entry, (K, d): one look.

    For a linear head W the labels enter softmax regression, Σ_i lse(Wφ_i) − ⟨W, S⟩, and least squares only through
    this S, which does not depend on W. So it is released once and everything else is post-processing.

    Gaussian noise. A replaced label takes φ_i from row y and adds it to row y′: the moment moves by √2·|φ_i| ≤ √2·B.
    Noise of deviation σ·B, σ = `noise.std`, is then a Gaussian look with μ = √2/σ, the same as for counts (φ = 1).
    Laplace noise. |φ_i|₁ ≤ B instead, the moment moves by 2B in the norm of order 1, and the rate is ε/(2B): ε-private.

    Exact noise. Features are public and are rounded to a public grid of step g *before* they are added, so that the
    moment is an integer multiple of g, and B is replaced by the bound on rounded rows (`Grid`): that is the length
    that counts. Laplace noise is then exact on the integers, and ε-privacy is a ratio of two exponents.
    Gaussian noise is the discrete law of deviation s, in steps, with s² ≥ (σB/g)²·(1 + 2^-39) + 4.
    Proof. Let U = x + N(0, s² − 4) and Y a discrete Gaussian of deviation 2 around U: a post-processing of a Gaussian
    answer. P(Y = k) = ∫ N(u; x, s² − 4)·e^{−(k−u)²/8}/ρ(u) du with ρ(u) = Σ_j e^{−(j−u)²/8} = √(8π)·(1 ± η),
    η < 1.1·10^-34, by Poisson summation. Up to factors 1 ± 3η, then, Y has the discrete law of deviation s around x.
    Over the cells that move (at most 10⁸) the loss shifts by less than 10^-25, which the factor 1 + 2^-39 outweighs for
    10^-7 ≤ μ ≤ 10. Hence no pair of neighbours is told apart better than by Gaussian noise of deviation σB.

    The sum over classes is public, Σ_i φ_i. What the noise adds to it is taken off again in equal parts, which is
    post-processing, and the noise keeps (K − 1)/K of its variance, half for two classes.

    Users. With `users`, B bounds Σ_j |φ_j| over the rows of each user; longer users are scaled down by a public factor.
    Replacing all labels of a user moves the moment by |Σ_j (e_{y′_j} − e_{y_j}) ⊗ φ_j| ≤ √2·Σ_j |φ_j| ≤ √2·B.

    Args:
        features: public, (n, d), in the vault's order (of the rows asked): an array, a memory map, or `RowChunks`.
            Already preconditioned, if at all. Read in place, so do not change them.
        num_classes: K.
        noise: `GaussianNoise(σ)`, say from `GaussianNoise.for_budget(ε, δ)`, or `LaplaceNoise(ε)`.
        radius: B. Rows longer than that (in the norm of order 1 for Laplace noise) are scaled down to it, rows that are
            not finite count as zero; the release says how many.
        users: whose each row is; None protects each label by itself.
        exact: noise on the grid, or in floating point (Gaussian only). None: on the grid up to 2^22 entries. The event,
            and so the certificate, says which.

    >>> ask = Moments(np.eye(3), num_classes=2, noise=GaussianNoise.for_budget(1.0, 1e-5), radius=1.0)
    >>> noisy = ask.sample(np.array([0, 1, 1], dtype=np.uint8), SecureRandom(seed=1))
    >>> noisy.value.shape, noisy.value.sum(axis=0).round(6)
    ((2, 3), array([1., 1., 1.]))
    """

    chunks: RowChunks = field(repr=False)
    num_classes: int
    noise: GaussianNoise | LaplaceNoise
    radius: float
    users: Users | None
    exact: bool

    def __init__(
        self,
        features: npt.ArrayLike | RowChunks,
        num_classes: int,
        noise: GaussianNoise | LaplaceNoise,
        radius: float,
        *,
        users: Users | None = None,
        exact: bool | None = None,
    ) -> None:
        chunks, classes = as_chunks(features), checked_classes(num_classes)
        if exact is None:
            exact = isinstance(noise, LaplaceNoise) or classes * chunks.width <= _EXACT_CELLS
        values = (chunks, classes, noise, _checked_radius(radius), users, exact)
        for name, value in zip(self.__dataclass_fields__, values, strict=True):
            object.__setattr__(self, name, value)
        self._check_noise()

    # -- mechanism ------------------------------------------------------------------------------------------

    def event(self) -> Event:
        """What the noise costs, in units of the radius."""
        if isinstance(self.noise, LaplaceNoise):
            return PureDP(self.noise.epsilon)
        return (GridGaussian if self.exact else Gaussian)(self.noise.std, math.sqrt(2.0))

    def charges(self, users: Users) -> Sequence[Charge]:
        """What it costs a user: one look where it was made for users, else as many as the user has rows."""
        if self.users is None:
            return group_charges(self, users)
        if not users.same_as(self.users):
            raise ValueError(
                f"the mechanism was made for {self.users}, grouped otherwise than the {users} asked; make it with "
                "users=vault.users, or vault.users.take(rows) for some rows"
            )
        return [Charge(self.event(), 1, None)]

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless there are features (and a user) for every label and the sums fit into 64 bits."""
        same_classes(self.num_classes, num_classes)
        if self.chunks.num_rows != num_rows:
            raise ValueError(
                f"features has {self.chunks.num_rows} rows, the data {num_rows}; give one row of features per label"
            )
        if self.users is not None and len(self.users.owner) != num_rows:
            raise ValueError(f"users has {len(self.users.owner)} rows, the data {num_rows}; give one user per label")
        if num_rows * self.grid.reach > 1 << 61:
            raise ValueError(
                f"{num_rows} rows of {self.chunks.width} features overflow 64 bits; ask about parts of them"
            )

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> NoisyMoments:
        """Add up the rounded features by class, add the noise."""
        limiter = self._limiter()
        sums = GridSum(self.num_classes, self.chunks.width, self.grid.exponent, self.grid.reach)
        for rows, block in blocks(self.chunks, sums.rows_at_once):
            sums.add(labels[rows], limiter(rows, block))
        total = sums.total.sum(axis=0)
        value = self._noisy(sums.total, rng)
        # From here on only what is released and what is public.
        value -= (value.sum(axis=0) - total) / self.num_classes
        return NoisyMoments(
            value=value * self.grid.step,
            total=total * self.grid.step,
            num_rows=self.chunks.num_rows,
            noise=self.noise.name if self.exact else "floating-point Gaussian",
            noise_std=self.noise_std,
            radius=self.grid.radius,
            scaled_rows=limiter.scaled,
            dropped_rows=limiter.dropped,
        )

    def describe(self) -> Mapping[str, Any]:
        """The public parameters as plain JSON values."""
        return {
            "mechanism": "moments",
            "num_classes": self.num_classes,
            "width": self.chunks.width,
            "noise": self.noise.name if self.exact else "floating-point Gaussian",
            "noise_std": self.noise_std,
            "radius": self.grid.radius,
            "step": self.grid.step,
            "unit": "row" if self.users is None else "user",
        }

    # -- the grid and the noise on it -----------------------------------------------------------------------

    @cached_property
    def grid(self) -> Grid:
        """What features are rounded to, and how far a row or user reaches on it."""
        order = 1 if isinstance(self.noise, LaplaceNoise) else 2
        most = 1 if self.users is None else max(1, int(self.users.sizes.max(initial=1)))
        return grid_for(self.radius, self.chunks.width, order, most)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each entry, as added."""
        if isinstance(self.noise, LaplaceNoise):
            rate = float(self._rate(self.noise))
            steps = math.sqrt(2.0) * math.exp(-rate / 2) / -math.expm1(-rate)
        else:
            steps = self._std(self.noise)
        return steps * self.grid.step

    def _noisy(self, exact: IntMatrix, rng: SecureRandom) -> FloatArray:
        """The moment with its noise, in steps."""
        if isinstance(self.noise, LaplaceNoise):
            drawn = rng.discrete_laplace(self._rate(self.noise), exact.size)
        elif self.exact:
            drawn = rng.discrete_gaussian(self._std(self.noise), exact.size)
        else:
            return exact + rng.gaussian(exact.size, self._std(self.noise)).reshape(exact.shape)
        # Added as integers: the noise is exact before anything is rounded to a float.
        return (exact + drawn.reshape(exact.shape)).astype(np.float64)

    def _rate(self, noise: LaplaceNoise) -> Fraction | float:
        """ε/(2B), B in steps."""
        return Fraction(noise.epsilon) / (2 * self.grid.reach) if noise.epsilon < math.inf else math.inf

    def _std(self, noise: GaussianNoise) -> float:
        """The deviation s in steps, rounded up; see the proof for what is added to σB."""
        least = (Fraction(noise.std) * self.grid.reach) ** 2 * (1 + Fraction(1, 1 << 39)) + 4
        std = math.sqrt(least)
        while Fraction(std) ** 2 < least:
            std = math.nextafter(std, math.inf)
        return std

    def _limiter(self) -> RowLimiter | UserLimiter:
        order = 1 if isinstance(self.noise, LaplaceNoise) else 2
        if self.users is None:
            return RowLimiter(self.radius, order)
        return UserLimiter(self.radius, order, self.users, self.chunks)

    def _check_noise(self) -> None:
        if isinstance(self.noise, LaplaceNoise):
            if not self.exact:
                raise ValueError("exact is False; Laplace noise is always drawn on the grid: leave exact out")
            if self._rate(self.noise) < SMALLEST_RATE:
                raise ValueError(f"noise is {self.noise!r}; with {self.chunks.width} features epsilon is too small")
        elif not isinstance(cast("Any", self.noise), GaussianNoise):
            raise ValueError(f"noise is {self.noise!r}; give GaussianNoise(std) or LaplaceNoise(epsilon)")
        elif self._std(self.noise) > LARGEST_STD:
            raise ValueError(f"noise is {self.noise!r}; with {self.chunks.width} features its std is too large")


def _checked_radius(value: Any) -> float:
    real = not isinstance(value, bool) and isinstance(value, Real)
    if not real or not _SMALLEST_RADIUS <= float(value) <= _LARGEST_RADIUS:
        raise ValueError(f"radius is {value!r}; give a number from {_SMALLEST_RADIUS:g} to {_LARGEST_RADIUS:g}")
    return float(value)
