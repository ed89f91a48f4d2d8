"""Show a choice to people: the sentence, the promise, where to start, and the ranking as a table."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from labeldp.choosing.choice import Choice, count

# Pipes and files have no width of their own.
_WIDTH = 110


def show(choice: Choice, console: Console | None = None) -> None:
    """Print the choice, wrapped to the terminal."""
    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=_WIDTH)
    summary = Table.grid(padding=(0, 2))
    summary.add_column(style="bold", no_wrap=True)
    summary.add_column(overflow="fold")
    summary.add_row("recipe", Text(choice.recipe, style="bold green"))
    summary.add_row("call", Text(choice.call))
    summary.add_row("why", Text(choice.reason))
    summary.add_row("promise", Text(choice.price))
    summary.add_row("start with", Text("\n".join(f"{name} = {value}" for name, value in choice.settings.items())))
    for note in choice.notes:
        summary.add_row("note", Text(note, style="yellow"))
    ranking = Table(box=box.SIMPLE, pad_edge=False)
    ranking.add_column("recipe", no_wrap=True)
    for name in ("worth in clean labels", "accuracy", "behind by", "training"):
        ranking.add_column(name, justify="right")
    ranking.add_column("rests on")
    for one in choice.ranking:
        cells = (
            one.recipe,
            count(one.clean_labels) if one.clean_labels else "–",
            "–" if one.accuracy is None else f"{one.accuracy:.1f} %",
            "–" if one.regret is None else f"{max(one.regret, 0.0):.1f}",
            "–" if one.seconds is None else duration(one.seconds),
            one.obstacle or one.evidence,
        )
        ranking.add_row(*(Text(cell, style="dim" if one.obstacle else "") for cell in cells))
    console.print(Group(summary, ranking))
    if choice.alike:
        console.print(
            f"Accuracy: expected, with caution, on data like {' and '.join(choice.alike)}; yours may be easier or "
            "harder. Behind by: most points lost to the best recipe on one of them.",
            markup=False,
        )


def duration(seconds: float) -> str:
    """Return a time in the unit that people would use.

    >>> duration(8.2), duration(600.0), duration(86_400.0)
    ('8 s', '10 min', '24 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"
