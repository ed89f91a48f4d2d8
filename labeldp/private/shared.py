"""Small things the mechanisms share: checks of public settings, and walking over rows piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any


def checked_epsilon(epsilon: Any) -> float:
    """Epsilon as a float, 0 ≤ ε ≤ ∞, or ValueError."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, Real) or not float(epsilon) >= 0:
        raise ValueError(f"epsilon is {epsilon!r}; give a number of at least 0 (math.inf for no privacy)")
    return float(epsilon)


def checked_integer(name: str, value: Any, low: int, high: int) -> int:
    """A whole number in [low, high], or ValueError."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= int(value) <= high:
        raise ValueError(f"{name} is {value!r}; give a whole number from {low} to {high}")
    return int(value)


def checked_classes(num_classes: Any) -> int:
    """A number of classes, at least 1, or ValueError."""
    return checked_integer("num_classes", num_classes, 1, 1 << 31)


def same_classes(expected: int, num_classes: int) -> None:
    """Raise ValueError when the data have another number of classes than the mechanism."""
    if num_classes != expected:
        raise ValueError(f"num_classes is {expected} in the mechanism and {num_classes} in the data; make it equal")


def described(mechanism: str, epsilon: float, num_classes: int) -> dict[str, Any]:
    """What every description has. Strict JSON has no infinity: ε = ∞ is "inf", and `float` reads it back."""
    shown = epsilon if math.isfinite(epsilon) else "inf"
    return {"mechanism": mechanism, "epsilon": shown, "num_classes": num_classes}


def pieces(num_rows: int, size: int) -> Iterator[slice]:
    """Consecutive slices of at most `size` rows: pieces that stay in the cache, whatever the data."""
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))
