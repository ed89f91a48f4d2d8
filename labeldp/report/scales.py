"""Axes: where ticks go, what they say, and how labels keep out of each other's way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# Width of a character in parts of the font's size: wider than the mean of common sans-serif fonts, so never too small.
_CHARACTER = 0.72


def text_width(text: str, size: float) -> float:
    """About how wide a text is, in the units of its font size; rather too wide than too narrow."""
    return _CHARACTER * size * len(text)


def ticks(low: float, high: float, most: int = 6) -> tuple[float, ...]:
    """At most `most` round numbers from low to high, 1, 2 or 5 times a power of ten apart; at least one.

    >>> ticks(0.0, 1.0), ticks(0.0, 97.0, 5), ticks(3.1, 3.1)
    ((0.0, 0.2, 0.4, 0.6, 0.8, 1.0), (0.0, 20.0, 40.0, 60.0, 80.0), (3.1,))
    """
    if not high > low:
        return (low,)
    for step in _steps((high - low) / max(most, 1)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= most:
            # A quotient rather than a product with a rounded step: 3/10 is the float nearest to 0.3, 3·0.1 is not.
            found = tuple(_multiple(place, step) for place in range(first, last + 1))
            return found or ((low + high) / 2,)
    raise AssertionError("steps grow without end")


def log_ticks(low: float, high: float, most: int = 6) -> tuple[float, ...]:
    """At most `most` numbers from low to high, above 0: 1, 2 and 5 times powers of ten, or fewer; at least one.

    >>> log_ticks(0.1, 8.0), log_ticks(1e-4, 1e4, 4)
    ((0.1, 0.2, 0.5, 1.0, 2.0, 5.0), (0.0001, 0.1, 100.0))
    """
    bottom, top = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    for leads in ((1, 2, 5), (1, 3), (1,)):
        found = _between([lead * _power(place) for place in range(bottom, top) for lead in leads], low, high)
        if found and len(found) <= most:
            return found
    decades = _between([_power(place) for place in range(bottom, top)], low, high)
    # Where even 1, 2 and 5 miss a narrow range, it is as good as straight.
    return decades[:: math.ceil(len(decades) / max(most, 1))] if decades else ticks(low, high, most)


def _steps(least: float) -> Sequence[float]:
    power = math.floor(math.log10(least))
    return [lead * _power(place) for place in (power, power + 1, power + 2) for lead in (1, 2, 5)]


def _power(place: int) -> float:
    return float(f"1e{place}")


def _multiple(place: int, step: float) -> float:
    return float(f"{place * step:.15g}")


def _between(values: Sequence[float], low: float, high: float) -> tuple[float, ...]:
    return tuple(value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9))


@dataclass(frozen=True)
class Axis:
    """A labelled range of numbers.

    Args:
        label: what is measured, with its unit.
        low, high: the ends; above 0 where `log`.
        log: powers of ten at equal distances.
        percent: the numbers are shares and are shown in percent.
        whole: ticks are whole numbers, where there are any.
    """

    label: str
    low: float
    high: float
    log: bool = False
    percent: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"an axis from low={self.low} to high={self.high} has no room; give low < high, finite")
        if self.log and self.low <= 0:
            raise ValueError(f"low={self.low} has no logarithm; give a number above 0, or leave out log")

    def share(self, value: float) -> float:
        """How far along the axis a value is: 0 at low, 1 at high."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def marks(self, most: int) -> tuple[float, ...]:
        """Ticks."""
        found = (log_ticks if self.log else ticks)(self.low, self.high, most)
        return (tuple(mark for mark in found if mark.is_integer()) or found) if self.whole else found

    def fitting(self, room: float, size: float, most: int = 7) -> tuple[float, ...]:
        """As many ticks as can be labelled along `room` without touching, two spaces between them."""
        for number in range(most, 1, -1):
            marks = self.marks(number)
            if self._apart(marks, room, size):
                return marks
        return self.marks(1)

    def _apart(self, marks: Sequence[float], room: float, size: float) -> bool:
        said = zip(marks, self.labels(marks), strict=True)
        ends = [(self.share(mark) * room, text_width(label + "  ", size) / 2) for mark, label in said]
        pairs = pairwise(ends)
        return all(left + half <= right - other for (left, half), (right, other) in pairs)

    def labels(self, marks: Sequence[float]) -> tuple[str, ...]:
        """What the ticks say, in as few digits as tell them apart.

        >>> Axis("x", 0, 1, percent=True).labels((0.0, 0.5)), Axis("x", 0, 1e6).labels((0.0, 20_000.0, 1_500_000.0))
        (('0%', '50%'), ('0', '20k', '1.5M'))
        """
        tries = (tuple(self._said(mark, digits) for mark in marks) for digits in range(3, 16))
        return next((said for said in tries if len(set(said)) == len(marks)), tuple(map(repr, marks)))

    def _said(self, value: float, digits: int) -> str:
        return f"{100 * value:.{digits}g}%" if self.percent else _number(value, digits)


def _number(value: float, digits: int) -> str:
    for unit, shown, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= unit:
            return f"{value / shown:.{digits}g}{letter}"
    return f"{value:.{digits}g}"
