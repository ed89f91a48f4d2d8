"""Public bounds on how much one row, or one user, adds to a moment: the grid, and rows scaled down to a radius."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.private.moment_sums import Block, RowChunks, blocks
from labeldp.private.user_rows import Users

_ROWS_AT_ONCE = 1 << 9
# Rounding to the grid may lengthen a row by this part of the radius, and the noise with it.
_FINENESS = 12


@dataclass(frozen=True)
class Grid:
    """Multiples of 2^exponent, and the largest length `reach`, in steps, of what a row or user adds.

    A row has length |φ| ≤ B·(1 + slack), which allows for the rounding of float32 lengths; a user has rows with
    Σ_j |φ_j| ≤ B·(1 + slack). Rounding moves each of d entries by half a step at most, so a row by √d/2 in the norm of
    order 2 and by d/2 in that of order 1, and m rows m times as far. `reach` is the sum, rounded up.
    """

    exponent: int
    reach: int

    @property
    def step(self) -> float:
        """2^exponent."""
        return math.ldexp(1.0, self.exponent)

    @property
    def radius(self) -> float:
        """`reach` as a length: the radius asked for, and at most a little more."""
        return math.ldexp(self.reach, self.exponent)


def grid_for(radius: float, width: int, order: int, most_rows: int) -> Grid:
    """The grid whose rounding lengthens a row, or a user of `most_rows` rows, by at most radius/4096.

    >>> grid_for(1.0, width=256, order=2, most_rows=1)
    Grid(exponent=-15, reach=32779)
    """
    moved = Fraction(most_rows * (width if order == 1 else math.isqrt(width - 1) + 1), 2)
    exponent = math.floor(math.log2(radius / float(moved))) - _FINENESS
    longest = Fraction(radius) * (1 + Fraction(slack(width))) / Fraction(2) ** exponent
    return Grid(exponent, math.ceil(longest + moved))


def slack(width: int) -> float:
    """How far beyond the radius, in relative terms, a row may be whose float32 length is within it."""
    return (width + 8) * 2.0**-22


def lengths(block: Block, order: int) -> npt.NDArray[Any]:
    """Length of every row in the norm of order 1 or 2, in the type of the block."""
    if order == 1:
        return np.abs(block).sum(axis=1)
    return np.sqrt(np.vecdot(block, block))


class RowLimiter:
    """Scales rows longer than the radius down to it, and empties those that are not finite; counts both."""

    def __init__(self, radius: float, order: int) -> None:
        self._radius = radius
        self._order = order
        self.scaled = 0
        self.dropped = 0

    def __call__(self, rows: slice, block: Block) -> Block:
        """The block itself where no row is too long, else a copy."""
        with np.errstate(over="ignore", invalid="ignore"):
            # Half the slack here: the length computed may be off by the other half.
            fine = lengths(block, self._order) <= self._radius * (1 + slack(block.shape[1]) / 2)
        beyond = np.flatnonzero(~fine)
        if not beyond.size:
            return block
        changed = block.copy()
        changed[beyond] = self._shortened(block[beyond].astype(np.float64))
        return changed

    def _shortened(self, part: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        length = finite_lengths(part, self._order)
        self.dropped += int(np.count_nonzero(length == np.inf))
        self.scaled += int(np.count_nonzero(length < np.inf))
        part[length == np.inf] = 0.0
        return part * np.minimum(1.0, self._radius / length)[:, None]


class UserLimiter:
    """Scales the rows of each user by min(1, radius/Σ_j |φ_j|), which needs one reading of all features beforehand."""

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
        """The block, each row times its user's factor."""
        weights = self._weights[rows, None]
        return np.where(weights > 0, block, 0.0) * weights


def finite_lengths(block: npt.NDArray[np.float64], order: int) -> npt.NDArray[np.float64]:
    """Length of every row, and infinity where it is not a finite number."""
    with np.errstate(over="ignore", invalid="ignore"):
        length = lengths(block, order)
    return np.where(np.isfinite(length), length, np.inf)
