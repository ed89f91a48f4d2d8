"""Draw the charts of a report with matplotlib, as SVG to put into a page.

Text is drawn as outlines of the font that comes with matplotlib, so that a chart is the same on every machine and no
two labels collide. Charts are drawn in the page's light colours; each then becomes a CSS variable, so that a dark page
has dark charts. Lines differ in dashes, and points in shape, as well as in colour. A chart is 320 units wide, about a
phone, so that its text can be read there.
"""

from __future__ import annotations

import io
import math
import re
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

try:
    import matplotlib as mpl
    from matplotlib import ticker
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
except ModuleNotFoundError:
    raise ImportError("reports need matplotlib; install it with: pip install 'labeldp[report]'") from None

LIGHT = {
    "page": "#f6f7f9", "card": "#ffffff", "text": "#1b2330", "soft": "#4f5b6b", "rule": "#d5dbe3", "grid": "#e6eaef",
    "good": "#0b6b3a", "bad": "#b3261e", "code": "#eef1f5", "hollow": "#8a94a3",
    "t1": "#0b61c4", "t2": "#b84a00", "t3": "#0a7a55", "t4": "#8a3ab9", "t5": "#66758a",
}  # fmt: skip
DARK = {
    "page": "#10151c", "card": "#19202a", "text": "#e8edf3", "soft": "#aab6c5", "rule": "#364252", "grid": "#2a3442",
    "good": "#5fd39a", "bad": "#ff8a80", "code": "#232c38", "hollow": "#77859a",
    "t1": "#6cb0ff", "t2": "#ffa366", "t3": "#4fd1a5", "t4": "#d09bf5", "t5": "#8d9bb0",
}  # fmt: skip
_NAMES = {colour: name for name, colour in LIGHT.items()}

WIDTH, HEIGHT = 320, 200
SIZE = 10.0
_LINE = 1.5 * SIZE
_STYLE: Any = {
    "svg.fonttype": "path", "text.parse_math": False, "font.family": "DejaVu Sans", "font.size": SIZE,
    "axes.labelsize": SIZE, "xtick.labelsize": SIZE, "ytick.labelsize": SIZE, "legend.fontsize": SIZE,
    "axes.edgecolor": LIGHT["soft"], "axes.labelcolor": LIGHT["text"], "text.color": LIGHT["text"],
    "xtick.color": LIGHT["soft"], "ytick.color": LIGHT["soft"], "ytick.major.size": 0.0,
    "axes.spines.left": False, "axes.spines.top": False, "axes.spines.right": False,
    "axes.axisbelow": True, "axes.xmargin": 0.0, "grid.color": LIGHT["grid"], "lines.linewidth": 2.0,
    "lines.dashed_pattern": (3.0, 2.0), "lines.markeredgecolor": LIGHT["card"], "lines.markersize": 8.0,
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
    "legend.frameon": False, "legend.borderpad": 0.0, "legend.borderaxespad": 0.0, "legend.labelspacing": 0.3,
}  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """A labelled range of numbers.

    Args:
        label: what is measured, with its unit.
        low, high: the ends; above 0 where `log`.
        log: powers of ten at equal distances.
        percent: the numbers are shares and are shown in percent.
        whole: ticks are whole numbers.
    """

    label: str
    low: float
    high: float
    log: bool = False
    percent: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Series:
    """Points under one name.

    Args:
        name: for the legend; empty for none.
        points: (x, y), x rising for lines.
        tone: 1 to 5, a colour of the page.
        line: joined; else by themselves.
        dashed, dotted: as dashes, or as dots.
        dots: marked points.
        margins: how far each point may be off, up and down; empty where that is not shown.
    """

    name: str
    points: Sequence[tuple[float, float]]
    tone: int = 1
    line: bool = True
    dashed: bool = False
    dots: bool = False
    dotted: bool = False
    margins: Sequence[float] = ()


@dataclass(frozen=True)
class Band:
    """The area between two lines over the same x."""

    name: str
    xs: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    tone: int = 1


def chart(title: str, summary: str, x: Axis, y: Axis, shown: Sequence[Series | Band]) -> str:
    """Return lines, points and bands over two axes.

    Args:
        title: what it is, for those who hear the page.
        summary: what can be seen in it, for them.
        x, y: axes that hold every point.
        shown: drawn in this order.
    """
    names = [one.name for one in shown if one.name]
    with _drawing(HEIGHT + (8 if names else 0) + _LINE * len(names)) as axes:
        for one in shown:
            _draw(axes, one)
        _scale(axes.xaxis, x)
        _scale(axes.yaxis, y)
        axes.set_xlabel(x.label)
        axes.set_title(y.label, loc="left", size=SIZE, x=0.0)
        axes.grid(axis="y", clip_on=False)
        if names:
            _figure(axes).legend(loc="outside lower left", alignment="left")
        return _svg(axes, title, f"{summary} Axes: {x.label}; {y.label}.", names)


def dot_grid(title: str, summary: str, filled: int, names: tuple[str, str], total: int = 100, across: int = 20) -> str:
    """Return `filled` of `total` dots in one colour, the others hollow, and what both kinds are."""
    hollow: Any = {"markerfacecolor": "none", "markeredgecolor": LIGHT["hollow"], "markeredgewidth": 1.2}
    kinds: Any = ((names[0], range(filled), {"color": LIGHT["t1"]}), (names[1], range(filled, total), hollow))
    with _drawing(WIDTH / across * (total // across) + _LINE * 2.5) as axes:
        for name, dots, style in kinds:
            xs, ys = [dot % across for dot in dots], [-(dot // across) for dot in dots]
            axes.plot(xs, ys, "o", clip_on=False, label=name, **style)
        axes.set(xlim=(-0.5, across - 0.5), ylim=(0.5 - total / across, 0.5), aspect="equal")
        axes.axis("off")
        _figure(axes).legend(loc="outside lower left", alignment="left")
        return _svg(axes, title, summary, names)


def bars(title: str, summary: str, values: Sequence[tuple[str, float, str, bool]]) -> str:
    """Return horizontal bars with names above them: (name, length from 0 on, figure, whether it stands out)."""
    longest = max((value for _, value, _, _ in values), default=0.0) or 1.0
    with _drawing(32 * max(len(values), 1)) as axes:
        for place, (name, value, figure, chosen) in enumerate(values):
            # A sliver shows that there is a bar of length 0.
            colour = LIGHT["t1" if chosen else "t5"]
            axes.barh(-place, max(value / longest, 0.005), 0.28, color=colour, clip_on=False)
            above = {"y": 0.24 - place, "va": "bottom", "weight": "bold" if chosen else "normal"}
            axes.text(0, s=name, **above)
            axes.text(1, s=figure, ha="right", **above)
        axes.set(xlim=(0, 1), ylim=(0.75 - max(len(values), 1), 0.75))
        axes.axis("off")
        return _svg(axes, title, summary, [f"{name}: {figure}" for name, _, figure, _ in values])


def heat_table(title: str, summary: str, names: Sequence[str], rows: Sequence[Sequence[float]], side: str) -> str:
    """Return shares from 0 to 1 as a square of cells, the larger the darker; in figures where there is room for them.

    Args:
        title, summary: as for `chart`.
        names: of rows and, in the same order, of columns; long ones are cut.
        rows: a share for each column.
        side: what columns are, over the table.
    """
    count, cut = len(names), [name if len(name) <= 10 else f"{name[:9]}…" for name in names]
    with _drawing(min(WIDTH, 60 + 34 * count)) as axes:
        for down, row in enumerate(rows):
            for across, share in enumerate(row):
                darkness = 0.75 * min(max(share, 0.0), 1.0)
                axes.add_patch(Rectangle((across, down), 1, 1, color=LIGHT["t1"], alpha=darkness, linewidth=0))
                if count <= 7:
                    axes.text(across + 0.5, down + 0.5, f"{share:.0%}", ha="center", va="center")
        upright = count > 3 and max(map(len, cut)) > 2
        axes.set(xlim=(0, count), ylim=(count, 0))
        axes.set_xticks([place + 0.5 for place in range(count)], cut, rotation=90 if upright else 0)
        axes.set_yticks([place + 0.5 for place in range(count)], cut)
        axes.tick_params(length=0)
        axes.xaxis.tick_top()
        axes.spines["bottom"].set_visible(False)
        axes.set_title(side, loc="left", size=SIZE)
        shown = [f"{name}: {', '.join(f'{share:.0%}' for share in row)}" for name, row in zip(names, rows, strict=True)]
        return _svg(axes, title, summary, shown)


@contextmanager
def _drawing(height: float) -> Iterator[Axes]:
    """Yield axes in the page's style, whatever the user's settings of matplotlib are."""
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        # A name in a script that the font does not have is drawn as boxes; it is also in the chart's description.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure((WIDTH / 72, height / 72), dpi=72, layout="constrained")
        pads = {"w_pad": 1 / 72, "h_pad": 3 / 72, "wspace": 0.0, "hspace": 0.0}
        figure.get_layout_engine().set(**pads)  # pyright: ignore[reportOptionalMemberAccess]
        yield figure.add_subplot()


def _figure(axes: Axes) -> Figure:
    return axes.get_figure(root=True)  # pyright: ignore[reportReturnType]


def _draw(axes: Axes, one: Series | Band) -> None:
    colour, name = LIGHT[f"t{one.tone}"], one.name or "_nolegend_"
    if isinstance(one, Band):
        axes.fill_between(one.xs, one.low, one.high, color=colour, alpha=0.2, linewidth=0, clip_on=False, label=name)
        return
    # Shapes go with tones, so that nothing is shown by colour alone.
    marker = "oDs"[(one.tone - 1) % 3] if one.dots or not one.line or len(one.points) == 1 else None
    style = (":" if one.dotted else "--" if one.dashed else "-") if one.line else "none"
    xs, ys = [x for x, _ in one.points], [y for _, y in one.points]
    if one.margins:
        axes.vlines(xs, [y - off for y, off in zip(ys, one.margins, strict=True)],
                    [y + off for y, off in zip(ys, one.margins, strict=True)], color=colour, clip_on=False)  # fmt: skip
    axes.plot(xs, ys, color=colour, linestyle=style, marker=marker, clip_on=False, label=name)


def _scale(along: Any, axis: Axis) -> None:
    """Set range, scale and ticks of one axis."""
    if axis.log:
        along.axes.set_xscale("log") if along.axis_name == "x" else along.axes.set_yscale("log")
        wide = math.log10(axis.high / axis.low) > 2.5
        along.set_major_locator(ticker.LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=8))
        along.set_minor_locator(ticker.NullLocator())
    else:
        along.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 5, 10], integer=axis.whole, min_n_ticks=1))
    if axis.percent:
        along.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    elif max(abs(axis.low), abs(axis.high)) >= 10_000:
        along.set_major_formatter(ticker.EngFormatter(sep=""))
    else:
        along.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    along.axes.set(**{f"{along.axis_name}lim": (axis.low, axis.high)})


def _svg(axes: Axes, title: str, summary: str, names: Sequence[str]) -> str:
    """Return the drawing as an <svg> element for a page: named colours, ids of its own, its words in a description."""
    drawn = io.StringIO()
    # The same chart has the same ids in every run, and no other chart on the page has them.
    salt = f"c{zlib.crc32(f'{title} {summary}'.encode()):x}"
    mpl.rcParams["svg.hashsalt"] = salt
    _figure(axes).savefig(drawn, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    image = drawn.getvalue()
    image = image[image.index("<svg") :]
    image = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", image, flags=re.S)
    image = re.sub(r'(\bid="|xlink:href="#)', rf"\g<1>{salt}-", image)
    image = re.sub(r"(?<=: )#[0-9a-f]{6}", lambda found: f"var(--{_NAMES[found[0]]})", image)
    image = re.sub(r"\s+", " ", image[image.index(">") + 1 :]).replace("> <", "><")
    width, height = (72 * size for size in _figure(axes).get_size_inches())
    description = f"{title}. {summary}" + (f" Shown: {'; '.join(names)}." if names else "")
    opening = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(description)}">'
    return f"{opening}<title>{escape(title)}</title>{image.strip()}"
