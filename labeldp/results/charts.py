"""Small charts as inline SVG: no script, colours from the page's style, text that does not overlap.

A chart is drawn 340 units wide, the width of a phone, so that its text is readable there; a page scales it up.
Lines differ in colour, in dashes and in the shape of their points. The legend is part of the page's text, not of the
picture, so that it wraps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from labeldp.results.markup import escape

# --- scales --------------------
#
# Axes: where ticks go, what they say, and how labels keep out of each other's way.


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


WIDTH, HEIGHT = 340, 236
SIZE = 11.0
_TOP, _RIGHT, _BOTTOM = 26, 16, 40

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """Points under one name.

    Args:
        name: for the legend.
        points: (x, y), x rising for lines.
        tone: 1 to 5, a colour of the page.
        line: joined; else by themselves.
        dashed: as dashes.
        dots: marked points.
    """

    name: str
    points: Sequence[Point]
    tone: int = 1
    line: bool = True
    dashed: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Band:
    """The area between two lines over the same x."""

    name: str
    xs: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    tone: int = 1


@dataclass(frozen=True)
class _Frame:
    """Where the plot lies in the picture."""

    x: Axis
    y: Axis
    left: float

    @property
    def room(self) -> float:
        return WIDTH - self.left - _RIGHT

    @property
    def height(self) -> float:
        return HEIGHT - _TOP - _BOTTOM

    def across(self, value: float) -> float:
        return self.left + self.x.share(value) * self.room

    def down(self, value: float) -> float:
        return _TOP + (1 - self.y.share(value)) * self.height

    def path(self, points: Sequence[Point]) -> str:
        places = [f"{self.across(x):.1f},{self.down(y):.1f}" for x, y in points]
        return "M" + "L".join(places)


def chart(title: str, told: str, x: Axis, y: Axis, shown: Sequence[Series | Band]) -> str:
    """Lines, points and bands over two axes.

    Args:
        title: what it is, for those who hear the page.
        told: what is to be seen in it, for them.
        x, y: axes that hold every point.
        shown: drawn in this order.

    >>> drawn = chart("A line", "It rises.", Axis("x", 0, 1), Axis("y", 0, 1), [Series("up", [(0, 0), (1, 1)])])
    >>> drawn.startswith('<svg viewBox="0 0 340 236" role="img"'), "<title>A line</title>" in drawn
    (True, True)
    """
    marks = y.marks(6)
    # A label may stick out by half its width on the right, and needs its width on the left.
    frame = _Frame(x, y, 8 + max(text_width(label, SIZE) for label in y.labels(marks)))
    parts = [*_grid(frame, marks), *(_drawn(frame, one) for one in shown)]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(f"{title}. {told}")}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _grid(frame: _Frame, marks: Sequence[float]) -> list[str]:
    x, y = frame.x, frame.y
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    lines = [f'<path class="grid" d="M{frame.left:.1f},{frame.down(m):.1f}H{right}"/>' for m in marks]
    said = zip(marks, y.labels(marks), strict=True)
    lines += [text(frame.left - 5, frame.down(mark) + 4, label, "end") for mark, label in said]
    along = x.fitting(frame.room, SIZE)
    for mark, label in zip(along, x.labels(along), strict=True):
        at, half = frame.across(mark), text_width(label, SIZE) / 2
        lines.append(f'<path class="axis" d="M{at:.1f},{bottom}v4"/>')
        lines.append(text(min(at, WIDTH - half), bottom + 16, label, "middle"))
    lines.append(f'<path class="axis" d="M{frame.left:.1f},{bottom}H{right}"/>')
    lines.append(text(frame.left + frame.room / 2, HEIGHT - 6, x.label, "middle", "name"))
    lines.append(text(4, 13, y.label, "start", "name"))
    return lines


def text(x: float, y: float, said: str, anchor: str, kind: str = "tick") -> str:
    """Text at a place; `anchor` start, middle or end."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def _drawn(frame: _Frame, one: Series | Band) -> str:
    if isinstance(one, Band):
        back = list(zip(one.xs, one.low, strict=True))[::-1]
        outline = frame.path([*zip(one.xs, one.high, strict=True), *back])
        return f'<path class="band t{one.tone}" d="{outline}Z"/>'
    parts = []
    if one.line and len(one.points) > 1:
        dashes = " dashed" if one.dashed else ""
        parts.append(f'<path class="line t{one.tone}{dashes}" d="{frame.path(one.points)}"/>')
    if one.dots or not one.line or len(one.points) == 1:
        parts += [marker(frame.across(x), frame.down(y), one.tone) for x, y in one.points]
    return "".join(parts)


def marker(x: float, y: float, tone: int, size: float = 4.5) -> str:
    """A point; its shape goes with its tone, so that nothing is told by colour alone."""
    if tone % 3 == 1:
        return f'<circle class="dot t{tone}" cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>'
    if tone % 3 == 2:
        half = size + 1
        rhomb = f"l{half},{half}l-{half},{half}l-{half},-{half}z"
        return f'<path class="dot t{tone}" d="M{x:.1f},{y - half:.1f}{rhomb}"/>'
    return f'<path class="dot t{tone}" d="M{x - size:.1f},{y - size:.1f}h{2 * size}v{2 * size}h-{2 * size}z"/>'


def legend(shown: Sequence[Series | Band]) -> str:
    """What is what, as a list that wraps."""
    items = [f"<li>{_sample(one)}{escape(one.name)}</li>" for one in shown if one.name]
    return f'<ul class="legend">{"".join(items)}</ul>' if items else ""


def _sample(one: Series | Band) -> str:
    if isinstance(one, Band):
        drawn = f'<path class="band t{one.tone}" d="M0,1h26v12h-26z"/>'
    else:
        dashes = " dashed" if one.dashed else ""
        drawn = f'<path class="line t{one.tone}{dashes}" d="M0,7h26"/>' if one.line and len(one.points) > 1 else ""
        drawn += marker(13, 7, one.tone) if one.dots or not one.line or len(one.points) == 1 else ""
    return f'<svg class="sample" viewBox="0 0 26 14" aria-hidden="true">{drawn}</svg>'


def dot_grid(title: str, told: str, filled: int, total: int = 100, across: int = 20) -> str:
    """`filled` of `total` dots in one colour, the others hollow.

    >>> dot_grid("Right", "73 of 100.", 73).count('class="dot t1"')
    73
    """
    step = WIDTH / across
    rows = -(-total // across)
    dots = []
    for place in range(total):
        x, y = (place % across + 0.5) * step, (place // across + 0.5) * step
        kind = "dot t1" if place < filled else "hollow"
        dots.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{0.32 * step:.1f}"/>')
    return (
        f'<svg viewBox="0 0 {WIDTH} {rows * step:.0f}" role="img" aria-label="{escape(f"{title}. {told}")}">'
        f"<title>{escape(title)}</title>{''.join(dots)}</svg>"
    )


def bars(title: str, told: str, values: Sequence[tuple[str, float, str, bool]]) -> str:
    """Horizontal bars, each with its name above it: (name, length from 0 on, what it says, whether it stands out)."""
    longest = max((value for _, value, _, _ in values), default=0.0) or 1.0
    parts, step = [], 34
    for place, (name, value, said, chosen) in enumerate(values):
        top = place * step
        parts.append(text(0, top + 12, name, "start", "tick strong" if chosen else "tick"))
        parts.append(text(WIDTH, top + 12, said, "end"))
        width = max(1.5, WIDTH * value / longest)
        parts.append(
            f'<rect class="bar {"t1" if chosen else "t5"}" x="0" y="{top + 17}" width="{width:.1f}" height="9" rx="2"/>'
        )
    return (
        f'<svg viewBox="0 0 {WIDTH} {max(len(values), 1) * step}" role="img" aria-label="{escape(f"{title}. {told}")}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
