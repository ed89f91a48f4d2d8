"""Pieces of HTML. Every text is escaped here, so that names of classes and columns cannot become markup."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence


def escape(said: object) -> str:
    """Text that is safe between tags and in attributes."""
    return html.escape(str(said), quote=True)


def paragraph(said: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f"<p{_kind(kind)}>{escape(said)}</p>"


def section(name: str, title: str, *parts: str) -> str:
    """A section with a heading to link to."""
    heading = f'<h2 id="{name}-h">{escape(title)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-h">{heading}{"".join(parts)}</section>'


def figure(image: str, caption: str, under: str = "") -> str:
    """A picture with its legend and caption."""
    return f"<figure>{image}{under}<figcaption>{escape(caption)}</figcaption></figure>"


def side_by_side(*parts: str) -> str:
    """Next to each other where there is room."""
    return f'<div class="pair">{"".join(parts)}</div>'


def bullets(items: Sequence[tuple[str, str]]) -> str:
    """A list: what, in bold, and what about it."""
    return "<ul>" + "".join(f"<li><b>{escape(what)}</b> {escape(about)}</li>" for what, about in items) + "</ul>"


def code(lines: Sequence[str]) -> str:
    """Commands, one a line."""
    return f"<pre><code>{escape(chr(10).join(lines))}</code></pre>"


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table with headers; on a phone each row becomes a block, its cells named.

    Roles are given in full because some browsers drop them where rows are shown as blocks. `numbers` are the columns
    that are aligned on the right.

    >>> table("Queries", ["rows", "cost"], [["5", "<1"]]).count("&lt;1")
    1
    """
    heads = "".join(
        f'<th role="columnheader" scope="col"{_right(i, numbers)}>{escape(h)}</th>' for i, h in enumerate(head)
    )
    body = "".join(f'<tr role="row">{_cells(head, row, numbers)}</tr>' for row in rows)
    return (
        f'<table role="table"><caption>{escape(caption)}</caption><thead role="rowgroup"><tr role="row">{heads}</tr>'
        f'</thead><tbody role="rowgroup">{body}</tbody></table>'
    )


def _cells(head: Sequence[str], row: Sequence[str], numbers: Sequence[int]) -> str:
    first = f'<th role="rowheader" scope="row"{_right(0, numbers)} data-name="{escape(head[0])}">{escape(row[0])}</th>'
    named = list(enumerate(zip(head, row, strict=True)))[1:]
    rest = (
        f'<td role="cell"{_right(i, numbers) or _hash(v)} data-name="{escape(n)}">{escape(v)}</td>'
        for i, (n, v) in named
    )
    return first + "".join(rest)


def _hash(value: str) -> str:
    """Long and without a space: may be broken anywhere."""
    return ' class="hash"' if len(value) == 64 and value.isalnum() else ""


def _right(place: int, numbers: Sequence[int]) -> str:
    return ' class="number"' if place in numbers else ""


def _kind(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


# --- style --------------------
#
# How the page looks, light and dark. Every colour is named once, so that a test can compute every contrast.


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

_RULES = """
* { box-sizing: border-box }
html { -webkit-text-size-adjust: 100% }
body { margin: 0; background: var(--page); color: var(--text); overflow-wrap: break-word;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", Arial, sans-serif }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 3rem }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .4rem }
h2 { font-size: 1.25rem; margin: 0 0 .7rem }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem }
p, ul { margin: .5rem 0 .8rem } ul { padding-left: 1.2rem } li { margin: .25rem 0 }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 1.2rem;
  margin: 1.1rem 0 }
.soft, figcaption { color: var(--soft) } figcaption { font-size: .9rem; margin-top: .4rem }
.lead { font-size: 1.15rem; line-height: 1.5 }
.pair { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 23rem), 1fr));
  align-items: start }
figure { margin: .6rem 0; max-width: 34rem } figure > svg { display: block; width: 100%; height: auto }
dl.tiles { display: grid; gap: .7rem; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); margin: 1rem 0 0 }
.tiles div { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: .7rem .9rem }
.tiles dt { color: var(--soft); font-size: .85rem }
.tiles dd { margin: 0; font-size: 1.35rem; font-weight: 650; line-height: 1.25 }
.status { border-left: 6px solid var(--good); border-radius: 6px; background: var(--card);
  padding: .7rem 1rem; margin: 1rem 0 }
.status.bad { border-color: var(--bad) } .status b { color: var(--good) } .status.bad b { color: var(--bad) }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1rem; padding: 0; margin: .3rem 0;
  font-size: .87rem }
.legend li { display: flex; align-items: center; gap: .4rem } .sample { width: 26px; height: 14px; flex: none }
text { fill: var(--soft); font-size: 11px } text.name { fill: var(--text) }
text.strong { fill: var(--text); font-weight: 700 }
.grid { stroke: var(--grid); fill: none } .axis { stroke: var(--soft); fill: none }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round } .dashed { stroke-dasharray: 6 4 }
.dot, .bar { stroke: var(--card); stroke-width: 1 } .hollow { fill: none; stroke: var(--hollow); stroke-width: 1.3 }
.band { fill-opacity: .2; stroke: none !important }
table { border-collapse: collapse; width: 100%; margin: .8rem 0; font-size: .93rem; font-variant-numeric: tabular-nums }
caption { text-align: left; color: var(--soft); font-size: .9rem; padding-bottom: .3rem }
th, td { text-align: left; vertical-align: top; padding: .4rem .7rem .4rem 0; border-bottom: 1px solid var(--rule) }
thead th { color: var(--soft); font-weight: 600 } tbody th { font-weight: 500 }
.number { text-align: right; white-space: nowrap }
code, .hash { font-family: ui-monospace, "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: .86em } .hash { overflow-wrap: anywhere }
pre { background: var(--code); border-radius: 8px; padding: .8rem 1rem; white-space: pre-wrap; margin: .6rem 0 }
footer { color: var(--soft); font-size: .9rem }
@media (max-width: 40rem) {
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }
  table, tbody, tr, tbody th, td, caption { display: block }
  tr { border-bottom: 1px solid var(--rule); padding: .5rem 0 }
  tbody th, td, .number { border: 0; padding: .1rem 0; text-align: left;
    white-space: normal; overflow-wrap: anywhere } tbody th { font-weight: 650 }
  tbody th::before, td::before { content: attr(data-name) ": "; color: var(--soft); font-weight: 400 }
  section { padding: 1rem .85rem } h1 { font-size: 1.4rem }
}
@media print { body { background: none } section, .tiles div { break-inside: avoid; border-color: #999 } }
"""


def stylesheet() -> str:
    """All rules, the light colours first and the dark ones where they are asked for."""
    tones = "".join(_tone(number) for number in range(1, 6))
    dark = f"@media (prefers-color-scheme: dark) {{ :root {{ {_names(DARK)} }} }}"
    return f":root {{ color-scheme: light dark; {_names(LIGHT)} }}\n{dark}\n{tones}{_RULES}"


def _tone(number: int) -> str:
    colour = f"var(--t{number})"
    return (
        f".line.t{number} {{ stroke: {colour} }} .dot.t{number}, .bar.t{number}, .band.t{number} {{ fill: {colour} }}\n"
    )


def _names(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())
