"""Show a choice to people: the sentence, the promise, where to start, and the ranking as a table."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from labeldp.choosing.choice import Choice
from labeldp.choosing.predict import Ranked
from labeldp.choosing.words import count

# Pipes and files have no width of their own.
_WIDTH = 110


def show(choice: Choice, console: Console | None = None) -> None:
    """Print the choice, wrapped to the terminal."""
    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=_WIDTH)
    console.print(Group(_summary(choice), _ranking(choice.ranking)))
    if choice.alike:
        console.print(
            f"Accuracy: expected, with caution, on data like {' and '.join(choice.alike)}; yours may be easier or "
            "harder. Behind by: most points lost to the best recipe on one of them.",
            markup=False,
        )


def _summary(choice: Choice) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("recipe", Text(choice.recipe, style="bold green"))
    grid.add_row("call", Text(choice.call))
    grid.add_row("why", Text(choice.reason))
    grid.add_row("promise", Text(choice.price))
    grid.add_row("start with", Text("\n".join(f"{name} = {value}" for name, value in choice.settings.items())))
    for note in choice.notes:
        grid.add_row("note", Text(note, style="yellow"))
    return grid


def _ranking(ranking: tuple[Ranked, ...]) -> RenderableType:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    for name in ("worth in clean labels", "accuracy", "behind by", "training"):
        table.add_column(name, justify="right")
    table.add_column("rests on")
    for one in ranking:
        cells = (
            one.recipe,
            count(one.clean_labels) if one.clean_labels else "–",
            "–" if one.accuracy is None else f"{one.accuracy:.1f} %",
            "–" if one.regret is None else f"{max(one.regret, 0.0):.1f}",
            _time(one.seconds),
            one.obstacle or one.evidence,
        )
        table.add_row(*(Text(cell, style="dim" if one.obstacle else "") for cell in cells))
    return table


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"
