"""Share between mechanisms: checks of public settings, walking over rows in pieces, exact response thresholds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import MAX_EMAX, MIN_EMIN, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from numbers import Integral, Real
from typing import Any


def checked_epsilon(epsilon: Any) -> float:
    """Return epsilon as a float, 0 ≤ ε ≤ ∞, or raise ValueError."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, Real) or not float(epsilon) >= 0:
        raise ValueError(f"epsilon is {epsilon!r}; give a number of at least 0 (math.inf for no privacy)")
    return float(epsilon)


def checked_integer(name: str, value: Any, low: int, high: int) -> int:
    """Return a whole number in [low, high], or raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= int(value) <= high:
        raise ValueError(f"{name} is {value!r}; give a whole number from {low} to {high}")
    return int(value)


def checked_classes(num_classes: Any) -> int:
    """Return a number of classes, at least 1, or raise ValueError."""
    return checked_integer("num_classes", num_classes, 1, 1 << 31)


def same_classes(expected: int, num_classes: int) -> None:
    """Raise ValueError when the data have another number of classes than the mechanism."""
    if num_classes != expected:
        raise ValueError(f"num_classes is {expected} in the mechanism and {num_classes} in the data; make it equal")


def described(mechanism: str, epsilon: float, num_classes: int) -> dict[str, Any]:
    """Return what every description has. Strict JSON has no infinity: ε = ∞ is "inf", and `float` reads it back."""
    shown = epsilon if math.isfinite(epsilon) else "inf"
    return {"mechanism": mechanism, "epsilon": shown, "num_classes": num_classes}


def pieces(num_rows: int, size: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `size` rows: pieces that stay in the cache, whatever the data."""
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


@lru_cache(maxsize=256)
def exp_rounded_down(epsilon: float) -> Fraction:
    """Return a rational number at most e^ε, within a relative 10^-90 of it for ε ≤ 1000 (above, e^1000 serves)."""
    context = Context(prec=100, rounding=ROUND_FLOOR, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
    return max(Fraction(1), Fraction(context.next_minus(context.exp(Decimal(min(epsilon, 1000.0))))))


def response_thresholds(epsilon: float, set_size: int, bits: int = 64) -> tuple[int, int] | None:
    """Return (G, B) for exact randomized response among k = `set_size` classes, or None where it must be uniform.

    For a uniform word u of 2^bits: the response is the true class if u < G, else number (u − G) // B of the k.
    So every class owns B words and the true one G more.

    Proof. E ≤ e^ε, B = ⌈2^bits/(E + k − 1)⌉, A = 2^bits − (k − 1)·B, G = A − B. The k classes fill
    G + k·B = 2^bits words. B·(E + k − 1) ≥ 2^bits, so A = 2^bits − (k−1)·B ≤ B·E: the odds A/B never exceed
    e^ε. They are at least 1 where G ≥ 0; where rounding makes G negative, uniform responses do (None).
    """
    if set_size == 1:
        return None
    width = math.ceil(Fraction(2**bits) / (exp_rounded_down(epsilon) + set_size - 1))
    gap = 2**bits - set_size * width
    return (gap, width) if gap >= 0 else None


def grid_std(std: float, steps: int) -> float:
    """Return the deviation, in steps, of discrete noise that tells no more than Gaussian noise of std·steps.

    √((std·steps)²·(1 + 2^-39) + 4), rounded up; the proof is in `labeldp.mechanisms.moments.Moments`.
    """
    least = (Fraction(std) * steps) ** 2 * (1 + Fraction(1, 1 << 39)) + 4
    found = math.sqrt(least)
    while Fraction(found) ** 2 < least:
        found = math.nextafter(found, math.inf)
    return found
