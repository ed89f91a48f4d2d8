"""Real-valued labels in a vault: rounded to a public grid, a value is a class like any other.

Range and grid are declared, never read off the data. Clipping and rounding look at one label at a time and use
nothing else, so that replacing a label still replaces one class, and every mechanism keeps its guarantee.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.accounting.ledger import Budget
from labeldp.private.randomness import SecureRandom
from labeldp.private.sealing import refuse_masked
from labeldp.private.shared import checked_integer
from labeldp.private.vault import LabelVault, LedgerStore
from labeldp.releases import FloatArray

_MOST_LEVELS = 1 << 16
_KINDS = {"U": "text", "S": "bytes", "M": "dates", "m": "durations", "c": "complex numbers"}


@dataclass(frozen=True)
class Grid:
    """`levels` equally spaced values from `low` to `high`; a single level is the middle of the range.

    >>> Grid(0.0, 1.0, levels=5).values()
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """

    low: float
    high: float
    levels: int = 256

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, _checked_end(name, getattr(self, name)))
        object.__setattr__(self, "levels", checked_integer("levels", self.levels, 1, _MOST_LEVELS))
        if not self.low < self.high:
            raise ValueError(f"low is {self.low!r} and high is {self.high!r}; declare a range with low < high")
        if not math.isfinite(self.high - self.low) or not (np.diff(self.values()) > 0).all():
            raise ValueError(
                f"{self.levels} levels from {self.low!r} to {self.high!r} cannot be told apart as floats; "
                "rescale the labels or take fewer levels"
            )

    def values(self) -> FloatArray:
        """The value of every level, (levels,)."""
        if self.levels == 1:
            return np.array([self.low + (self.high - self.low) / 2])
        return np.linspace(self.low, self.high, self.levels)

    def nearest(self, numbers: FloatArray) -> npt.NDArray[np.int64]:
        """The level nearest to every number, those outside the range first clipped to it; halfway goes up."""
        share = (np.clip(numbers, self.low, self.high) - self.low) / (self.high - self.low)
        return np.floor(share * (self.levels - 1) + 0.5).astype(np.int64)


class ValueVault(LabelVault):
    """A vault of real-valued labels: class c stands for `grid.values()[c]`. Made by `seal_values`."""

    def __init__(
        self,
        values: npt.ArrayLike,
        grid: Grid,
        budget: Budget | None = None,
        *,
        store: LedgerStore | None = None,
        rng: SecureRandom | None = None,
    ) -> None:
        super().__init__(grid.nearest(_sealed_numbers(values)), grid.levels, budget, store=store, rng=rng)
        self.grid = grid

    def __repr__(self) -> str:
        return f"ValueVault({len(self)} labels, {self.grid}, budget={self.budget})"


def seal_values(
    values: npt.ArrayLike,
    low: float,
    high: float,
    *,
    levels: int = 256,
    budget: Budget | None = None,
    store: LedgerStore | None = None,
    rng: SecureRandom | None = None,
) -> ValueVault:
    """Put real-valued labels into a vault, clipped to [low, high] and rounded to `levels` equally spaced values.

    The range must come from what is known of the quantity (an age, a price cap), not from min and max of the
    labels: those would be the labels of two rows. How many labels were clipped is private and not told; missing
    ones are an error that gives their number.

    >>> vault = seal_values([0.2, 3.9, 250.0], low=0.0, high=10.0, levels=101)
    >>> vault
    ValueVault(3 labels, Grid(low=0.0, high=10.0, levels=101), budget=None)
    """
    return ValueVault(values, Grid(low, high, levels), budget, store=store, rng=rng)


def _checked_end(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}; declare the range of the labels with two finite numbers")
    return float(value)


def _sealed_numbers(values: npt.ArrayLike) -> FloatArray:
    """The labels as finite float64, or ValueError with counts only."""
    refuse_masked(values)
    raw = np.asarray(values)
    if raw.ndim != 1:
        raise ValueError(f"values have shape {raw.shape}; give one label per row, shape (n,)")
    if raw.dtype.kind not in "biufO":
        raise ValueError(f"values are {_KINDS.get(raw.dtype.kind, 'not numbers')}; give one number per row")
    with np.errstate(over="ignore"):
        numbers = np.array([_number(value) for value in raw] if raw.dtype.kind == "O" else raw, dtype=np.float64)
    unusable = int(np.count_nonzero(~np.isfinite(numbers)))
    if unusable:
        raise ValueError(
            f"values cannot be sealed: of {raw.size}, {unusable} are missing, infinite or not numbers. Which ones is "
            "not shown because it is private; drop or fill them by a rule fixed in advance"
        )
    return numbers


def _number(value: object) -> float:
    """A float, or NaN for whatever is none: float() must not speak for itself here, it quotes the value."""
    if not isinstance(value, (Real, Decimal)):
        return math.nan
    try:
        return float(value)
    except (OverflowError, ValueError):
        return math.nan
