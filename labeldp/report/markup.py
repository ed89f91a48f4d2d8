"""Pieces of HTML. Every text is escaped here, so that names of classes and columns cannot become markup."""

from __future__ import annotations

import html
from collections.abc import Sequence


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


def figure(picture: str, caption: str, under: str = "") -> str:
    """A picture with its legend and caption."""
    return f"<figure>{picture}{under}<figcaption>{escape(caption)}</figcaption></figure>"


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

    >>> table("Looks", ["rows", "cost"], [["5", "<1"]]).count("&lt;1")
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
