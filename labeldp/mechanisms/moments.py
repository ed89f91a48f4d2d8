"""Release the label-feature moment once: all that a linear head needs to know about the labels.

Public features are added up by secret class, one block of rows at a time. A feature is rounded to a multiple of a
public power of two, the grid's step, before it is added: sums of such numbers are sums of integers, so they are exact
and do not depend on the order or on the size of the chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from numbers import Real
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array  # pyright: ignore[reportMissingTypeStubs]

from labeldp.core.events import Event, GridGaussian, PureDP
from labeldp.core.random import LARGEST_STD, SMALLEST_RATE, SecureRandom
from labeldp.core.vault import LabelArray
from labeldp.mechanisms.common import checked_classes, checked_integer, grid_std, pieces, same_classes
from labeldp.mechanisms.counts import GaussianNoise, LaplaceNoise
from labeldp.mechanisms.users import Charge, Users, group_charges
from labeldp.releases import FloatArray, NoisyMoments

Block = npt.NDArray[Any]
IntMatrix = npt.NDArray[np.int64]

# Half a megabyte of rows: they stay in the cache while they are measured, rounded and added.
_CELLS_AT_ONCE = 1 << 17
_ROWS_AT_ONCE = 1 << 9
# A float next to 1.5·2^p·step, p its mantissa bits, is a multiple of step, and its bits count the steps.
_MANTISSA = {"float32": (23, np.uint32, np.int32), "float64": (52, np.uint64, np.int64)}
# Rounding to the grid may lengthen a row by this part of the radius, and the noise with it.
_FINENESS = 12
# Discrete draws take a few microseconds each; more cells than this get rounded noise unless `exact` says otherwise.
_EXACT_CELLS = 1 << 22
_SMALLEST_RADIUS, _LARGEST_RADIUS = 1e-10, 1e10

# -- exact sums of public features by secret class -----------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RowChunks:
    """Read public features in chunks of rows, in the order of the labels: 10⁹ rows in the memory of one chunk.

    Args:
        num_rows: how many rows there are in all.
        width: how many features a row has.
        read: starts from the first row and yields arrays (m, width), any m. Must not know a label.

    >>> parts = RowChunks(5, 2, lambda: (np.full((m, 2), m, dtype=np.float32) for m in (3, 2)))
    >>> [len(chunk) for chunk in parts.read()]
    [3, 2]
    """

    num_rows: int
    width: int
    read: Callable[[], Iterable[Block]] = field(repr=False)

    def __post_init__(self) -> None:
        checked_integer("num_rows", self.num_rows, 0, 1 << 62)
        checked_integer("width", self.width, 1, 1 << 31)


def as_chunks(features: npt.ArrayLike | RowChunks) -> RowChunks:
    """Return the features as chunks; an array (a memory map, too) is read where it lies, block by block."""
    if isinstance(features, RowChunks):
        return features
    table: Block = np.asanyarray(features)
    if table.ndim != 2 or table.shape[1] == 0 or table.dtype.kind not in "fiub":
        raise ValueError(
            f"features has shape {table.shape} and type {table.dtype}; give numbers of shape (n, d), d ≥ 1"
        )
    return RowChunks(len(table), table.shape[1], lambda: [table])


def blocks(chunks: RowChunks, at_once: int) -> Iterator[tuple[slice, Block]]:
    """Yield row numbers and features, float32 or float64, C-contiguous, at most `at_once` rows at a time."""
    done, shape = 0, f"({chunks.num_rows}, {chunks.width}) in all"
    for chunk in chunks.read():
        given: Block = np.asanyarray(chunk)
        if given.ndim != 2 or given.shape[1] != chunks.width or done + len(given) > chunks.num_rows:
            raise ValueError(f"a chunk has shape {given.shape} after {done} rows; features must be {shape}")
        kind = np.float32 if given.dtype == np.float32 else np.float64
        for rows in pieces(len(given), at_once):
            yield slice(done + rows.start, done + rows.stop), np.ascontiguousarray(given[rows], dtype=kind)
        done += len(given)
    if done != chunks.num_rows:
        raise ValueError(f"features ended after {done} rows; they must be {shape}")


class GridSum:
    """Add up Σ_i onehot(y_i) ⊗ round(φ_i/step) in int64, (K, d), block by block.

    Args:
        num_classes, width: K and d.
        exponent: step = 2^exponent.
        reach: no |φ_ij|/step is larger, nor is 0.5 more; at most 2^50.

    With p mantissa bits, φ + 1.5·2^p·step is rounded by the processor to a multiple of step, ties to even, and its bits
    are those of 1.5·2^p·step plus the number of steps. So one addition rounds, and the bits can be summed as integers
    modulo 2^32 (2^64); what the constant added is then taken off again. True sums of a block stay below 2^31 (2^63).

    >>> sums = GridSum(num_classes=2, width=1, exponent=-3, reach=64)
    >>> sums.add(np.array([0, 1, 0], dtype=np.uint8), np.array([[0.25], [-1.0], [0.30]], dtype=np.float32))
    >>> sums.total.ravel().tolist()
    [4, -8]
    """

    def __init__(self, num_classes: int, width: int, exponent: int, reach: int) -> None:
        self.total: IntMatrix = np.zeros((num_classes, width), dtype=np.int64)
        self._exponent = exponent
        self._reach = reach
        self._selector: Any = None

    @property
    def rows_at_once(self) -> int:
        """Return a good number of rows to give at a time."""
        # Many classes: more rows, or clearing and adding up the table of sums would take most of the time.
        return max(_ROWS_AT_ONCE, 4 * len(self.total), _CELLS_AT_ONCE // self.total.shape[1])

    def add(self, labels: LabelArray, block: Block) -> None:
        """Add these rows; float32 or float64."""
        kind = "float32" if block.dtype == np.float32 and self._reach < 1 << 21 else "float64"
        mantissa, unsigned, signed = _MANTISSA[kind]
        shift = np.dtype(kind).type(1.5 * 2.0 ** (mantissa + self._exponent))
        most = (1 << (31 if kind == "float32" else 62)) // self._reach
        for rows in pieces(len(block), min(self.rows_at_once, most)):
            own = labels[rows]
            select = self._select(own, unsigned)
            counts = np.bincount(own, minlength=len(self.total)).astype(unsigned)
            offset = counts[:, None] * shift.view(unsigned)
            for columns in pieces(block.shape[1], max(64, _CELLS_AT_ONCE // len(own))):
                rounded = np.add(block[rows, columns], shift, dtype=kind)
                sums: Block = select @ rounded.view(unsigned)
                sums -= offset
                self.total[:, columns] += sums.view(signed)

    def _select(self, labels: LabelArray, kind: type[np.unsignedinteger[Any]]) -> Any:
        """Return onehotᵀ, (K, rows), written into the last one where it fits: making one takes longer than using it."""
        rows = len(labels)
        if self._selector is None or self._selector.shape[1] != rows or self._selector.dtype != kind:
            parts = (np.ones(rows, kind), np.zeros(rows, np.int32), np.arange(rows + 1, dtype=np.int32))
            self._selector = csc_array(parts, shape=(len(self.total), rows))
        self._selector.indices[:] = labels
        return self._selector


# -- public bounds on what one row, or one user, adds --------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """Hold the step 2^exponent, and the largest length `reach`, in steps, of what a row or user adds.

    A row has length |φ| ≤ B·(1 + slack), which allows for the rounding of float32 lengths; a user has rows with
    Σ_j |φ_j| ≤ B·(1 + slack). Rounding moves each of d entries by half a step at most, so a row by √d/2 in the norm of
    order 2 and by d/2 in that of order 1, and m rows m times as far. `reach` is the sum, rounded up.
    """

    exponent: int
    reach: int

    @property
    def step(self) -> float:
        """Return 2^exponent."""
        return math.ldexp(1.0, self.exponent)

    @property
    def radius(self) -> float:
        """Return `reach` as a length: the radius asked for, and at most a little more."""
        return math.ldexp(self.reach, self.exponent)


def grid_for(radius: float, width: int, order: int, most_rows: int) -> Grid:
    """Return the grid whose rounding lengthens a row, or a user of `most_rows` rows, by at most radius/4096.

    >>> grid_for(1.0, width=256, order=2, most_rows=1)
    Grid(exponent=-15, reach=32779)
    """
    moved = Fraction(most_rows * (width if order == 1 else math.isqrt(width - 1) + 1), 2)
    exponent = math.floor(math.log2(radius / float(moved))) - _FINENESS
    longest = Fraction(radius) * (1 + Fraction(slack(width))) / Fraction(2) ** exponent
    return Grid(exponent, math.ceil(longest + moved))


def slack(width: int) -> float:
    """Return how far beyond the radius, in relative terms, a row may be whose float32 length is within it."""
    return (width + 8) * 2.0**-22


def lengths(block: Block, order: int) -> npt.NDArray[Any]:
    """Return the length of every row in the norm of order 1 or 2, in the type of the block."""
    if order == 1:
        return np.abs(block).sum(axis=1)
    return np.sqrt(np.vecdot(block, block))


class RowLimiter:
    """Scale rows longer than the radius down to it, and empty those that are not finite; count both."""

    def __init__(self, radius: float, order: int) -> None:
        self._radius = radius
        self._order = order
        self.scaled = 0
        self.dropped = 0

    def __call__(self, rows: slice, block: Block) -> Block:
        """Return the block itself where no row is too long, else a copy."""
        with np.errstate(over="ignore", invalid="ignore"):
            # Half the slack here: the length computed may be off by the other half.
            fine = lengths(block, self._order) <= self._radius * (1 + slack(block.shape[1]) / 2)
        beyond = np.flatnonzero(~fine)
        if not beyond.size:
            return block
        part = block[beyond].astype(np.float64)
        length = finite_lengths(part, self._order)
        self.dropped += int(np.count_nonzero(length == np.inf))
        self.scaled += int(np.count_nonzero(length < np.inf))
        part[length == np.inf] = 0.0
        changed = block.copy()
        changed[beyond] = part * np.minimum(1.0, self._radius / length)[:, None]
        return changed


class UserLimiter:
    """Scale the rows of each user by min(1, radius/Σ_j |φ_j|), which needs one reading of all features beforehand."""

    def __init__(self, radius: float, order: int, users: Users, chunks: RowChunks) -> None:
        length = np.empty(len(users.owner))
        for rows, block in blocks(chunks, _ROWS_AT_ONCE):
            length[rows] = finite_lengths(block.astype(np.float64), order)
        usable = length < np.inf
        together = np.bincount(users.owner[usable], length[usable], minlength=len(users))
        factor = np.minimum(1.0, radius / np.maximum(together, 1e-300))
        self._weights = np.where(usable, factor[users.owner], 0.0)
        self.dropped = int(np.count_nonzero(~usable))
        self.scaled = int(np.count_nonzero(self._weights < 1.0)) - self.dropped

    def __call__(self, rows: slice, block: Block) -> Block:
        """Return the block, each row times its user's factor."""
        weights = self._weights[rows, None]
        return np.where(weights > 0, block, 0.0) * weights


def finite_lengths(block: npt.NDArray[np.float64], order: int) -> npt.NDArray[np.float64]:
    """Return the length of every row, and infinity where it is not a finite number."""
    with np.errstate(over="ignore", invalid="ignore"):
        length = lengths(block, order)
    return np.where(np.isfinite(length), length, np.inf)


# -- the mechanism -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MomentSum:
    """The moment of some rows without noise, in steps, (K, d): integers, so that parts may be added in any order.

    Secret until it is noised. `scaled` and `dropped` count rows that were too long, or not finite; these are public.
    """

    total: IntMatrix = field(repr=False)
    rows: int
    scaled: int
    dropped: int

    def __add__(self, other: MomentSum) -> MomentSum:
        counts = (self.rows + other.rows, self.scaled + other.scaled, self.dropped + other.dropped)
        return MomentSum(self.total + other.total, *counts)

    def to_numbers(self) -> npt.NDArray[np.int64]:
        """Return all of it as a list of numbers, of which sums are sums."""
        return np.concatenate([[self.rows, self.scaled, self.dropped], self.total.reshape(-1)])

    def from_numbers(self, numbers: npt.NDArray[np.int64]) -> MomentSum:
        """Return the sum that these numbers are, of the shape of this one."""
        rows, scaled, dropped = numbers[:3].tolist()
        return MomentSum(numbers[3:].reshape(self.total.shape), rows, scaled, dropped)


@dataclass(frozen=True, eq=False, init=False)
class Moments:
    """Release Σ_i onehot(y_i) ⊗ φ_i plus noise on every entry, (K, d): one query.

    For a linear head W the labels enter softmax regression, Σ_i lse(Wφ_i) − ⟨W, S⟩, and least squares only through
    this S, which does not depend on W. So it is released once and everything else is post-processing.

    Gaussian noise. A replaced label takes φ_i from row y and adds it to row y′: the moment moves by √2·|φ_i| ≤ √2·B.
    Noise of deviation σ·B, σ = `noise.std`, is then a Gaussian query with μ = √2/σ, the same as for counts (φ = 1).
    Laplace noise. |φ_i|₁ ≤ B instead, the moment moves by 2B in the norm of order 1, and the rate is ε/(2B): ε-private.

    Exact noise. Features are public and are rounded to a public grid of step g *before* they are added, so that the
    moment is an integer multiple of g, and B is replaced by the bound on rounded rows (`Grid`): that is the length
    that counts. Laplace noise is then exact on the integers, and ε-privacy is a ratio of two exponents.
    Gaussian noise is the discrete distribution of deviation s, in steps, with s² ≥ (σB/g)²·(1 + 2^-39) + 4.
    Proof. Let U = x + N(0, s² − 4) and Y a discrete Gaussian of deviation 2 around U: a post-processing of a Gaussian
    release. P(Y = k) = ∫ N(u; x, s² − 4)·e^{−(k−u)²/8}/ρ(u) du with ρ(u) = Σ_j e^{−(j−u)²/8} = √(8π)·(1 ± η),
    η < 1.1·10^-34, by Poisson summation. Up to factors 1 ± 3η, then, Y has the discrete distribution of deviation s
    around x. Over the cells that move (at most 10⁸) the loss shifts by less than 10^-25, which the factor 1 + 2^-39
    outweighs for 10^-7 ≤ μ ≤ 10. Hence no pair of neighbours is told apart better than by Gaussian noise of deviation
    σB.
    Above 2^22 entries Gaussian noise is the rounded Gaussian of the same deviation, which is drawn a hundred times as
    fast. The moment x is a vector of integers, so x + round(Z) = round(x + Z): post-processing of Gaussian noise.

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
        exact: discrete Gaussian noise; False is the rounded Gaussian (for Gaussian noise only), just as exact on the
            grid. None: discrete up to 2^22 entries.

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
        real = not isinstance(cast("Any", radius), bool) and isinstance(cast("Any", radius), Real)
        if not real or not _SMALLEST_RADIUS <= float(radius) <= _LARGEST_RADIUS:
            raise ValueError(f"radius is {radius!r}; give a number from {_SMALLEST_RADIUS:g} to {_LARGEST_RADIUS:g}")
        values = (chunks, classes, noise, float(radius), users, exact)
        for name, value in zip(self.__dataclass_fields__, values, strict=True):
            object.__setattr__(self, name, value)
        if isinstance(noise, LaplaceNoise):
            if not exact:
                raise ValueError("exact is False; Laplace noise is always drawn on the grid: leave exact out")
            if self._rate(noise) < SMALLEST_RATE:
                raise ValueError(f"noise is {noise!r}; with {chunks.width} features epsilon is too small")
        elif not isinstance(cast("Any", noise), GaussianNoise):
            raise ValueError(f"noise is {noise!r}; give GaussianNoise(std) or LaplaceNoise(epsilon)")
        elif grid_std(noise.std, self.grid.reach) > LARGEST_STD:
            raise ValueError(f"noise is {noise!r}; with {chunks.width} features its std is too large")

    # -- mechanism ------------------------------------------------------------------------------------------

    def event(self) -> Event:
        """Return what the noise costs, in units of the radius."""
        if isinstance(self.noise, LaplaceNoise):
            return PureDP(self.noise.epsilon)
        return GridGaussian(self.noise.std, math.sqrt(2.0))

    def charges(self, users: Users) -> Sequence[Charge]:
        """Return what it costs a user: one query where it was made for users, else as many as the user has rows."""
        if self.users is None:
            return group_charges(self, users)
        self.users.check_asked(users)
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
        return self.noised(self.added(labels), rng)

    def added(self, labels: LabelArray) -> MomentSum:
        """Add up the rounded features by class. Not private: for `noised`, of this or of parts added up elsewhere."""
        if self.users is None:
            limiter = RowLimiter(self.radius, self._order)
        else:
            limiter = UserLimiter(self.radius, self._order, self.users, self.chunks)
        sums = GridSum(self.num_classes, self.chunks.width, self.grid.exponent, self.grid.reach)
        for rows, block in blocks(self.chunks, sums.rows_at_once):
            sums.add(labels[rows], limiter(rows, block))
        return MomentSum(sums.total, self.chunks.num_rows, limiter.scaled, limiter.dropped)

    def noised(self, sums: MomentSum, rng: SecureRandom) -> NoisyMoments:
        """Release the moment of all rows, however it was added up: the noise is added once."""
        if sums.rows != self.chunks.num_rows:
            raise ValueError(f"the sum is of {sums.rows} rows and features of {self.chunks.num_rows}; add up all rows")
        total = sums.total.sum(axis=0)
        value = self._noisy(sums.total, rng)
        # From here on only what is released and what is public.
        value -= (value.sum(axis=0) - total) / self.num_classes
        return NoisyMoments(
            value=value * self.grid.step,
            total=total * self.grid.step,
            num_rows=self.chunks.num_rows,
            noise=self.noise.name if self.exact else "rounded Gaussian",
            noise_std=self.noise_std,
            radius=self.grid.radius,
            scaled_rows=sums.scaled,
            dropped_rows=sums.dropped,
        )

    def describe(self) -> Mapping[str, Any]:
        """Return the public parameters as plain JSON values."""
        return {
            "mechanism": "moments",
            "num_classes": self.num_classes,
            "width": self.chunks.width,
            "noise": self.noise.name if self.exact else "rounded Gaussian",
            "noise_std": self.noise_std,
            "radius": self.grid.radius,
            "step": self.grid.step,
            "unit": "row" if self.users is None else "user",
        }

    # -- the grid and the noise on it -----------------------------------------------------------------------

    @cached_property
    def grid(self) -> Grid:
        """Return what features are rounded to, and how far a row or user reaches on it."""
        most = 1 if self.users is None else max(1, int(self.users.sizes.max(initial=1)))
        return grid_for(self.radius, self.chunks.width, self._order, most)

    @property
    def noise_std(self) -> float:
        """Return the standard deviation of the noise on each entry, as added."""
        if isinstance(self.noise, LaplaceNoise):
            rate = float(self._rate(self.noise))
            steps = math.sqrt(2.0) * math.exp(-rate / 2) / -math.expm1(-rate)
        else:
            steps = grid_std(self.noise.std, self.grid.reach)
        return steps * self.grid.step

    def _noisy(self, exact: IntMatrix, rng: SecureRandom) -> FloatArray:
        """Return the moment with its noise, in steps."""
        if isinstance(self.noise, LaplaceNoise):
            drawn = rng.discrete_laplace(self._rate(self.noise), exact.size)
        else:
            draw = rng.discrete_gaussian if self.exact else rng.rounded_gaussian
            drawn = draw(grid_std(self.noise.std, self.grid.reach), exact.size)
        # Added as integers: the noise is exact before anything is rounded to a float.
        return (exact + drawn.reshape(exact.shape)).astype(np.float64)

    @property
    def _order(self) -> int:
        """Return the order of the norm that bounds a row."""
        return 1 if isinstance(self.noise, LaplaceNoise) else 2

    def _rate(self, noise: LaplaceNoise) -> Fraction | float:
        """Return ε/(2B), B in steps."""
        return Fraction(noise.epsilon) / (2 * self.grid.reach) if noise.epsilon < math.inf else math.inf
