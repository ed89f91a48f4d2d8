"""Small charts as inline SVG: no script, colours from the page's style, text that does not overlap.

A chart is drawn 340 units wide, the width of a phone, so that its text is readable there; a page scales it up.
Lines differ in colour, in dashes and in the shape of their points. The legend is part of the page's text, not of the
picture, so that it wraps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labeldp.report.markup import escape
from labeldp.report.scales import Axis, text_width

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
