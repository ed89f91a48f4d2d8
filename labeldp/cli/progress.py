"""Show where a long command stands: one line on a terminal's stderr that fits 80 columns, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Called with a phase, what goes on in it, the share of it that is done (None where that is not known), and a number.
Show = Callable[[str, str, float | None, str], None]


@contextmanager
def shown(what: str, number: str = "", *, console: Any = None) -> Iterator[Show | None]:
    """Yield what changes the line: spinner, words, bar, share, time left and a number; None where nobody looks.

    Spinner and clock go on by themselves, also while a phase reports nothing. `what` is the first phase.
    """
    from rich.console import Console

    console = Console(stderr=True) if console is None else console
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
    from rich.table import Column
    from rich.text import Text

    begun = time.monotonic()

    class Share(ProgressColumn):
        """The share that is done, where it is known."""

        def render(self, task: Any) -> Text:
            return Text("" if task.total is None else f"{task.percentage:3.0f}%")

    class Left(ProgressColumn):
        """The time that the phase still takes, where its share is known; else the time since the command began."""

        def render(self, task: Any) -> Text:
            left = task.time_remaining if task.total is not None else None
            return Text(f"{clock(left)} left" if left is not None else clock(time.monotonic() - begun))

    whole = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    columns = (
        SpinnerColumn(), TextColumn("{task.description}", markup=False, table_column=whole), BarColumn(bar_width=12),
        Share(table_column=Column(width=4, no_wrap=True)),
        Left(table_column=Column(width=10, no_wrap=True, justify="right")),
        TextColumn("{task.fields[number]}", markup=False, table_column=Column(no_wrap=True)),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, expand=True) as bar:
        task, before = bar.add_task(what, total=None, number=number), (what, 0.0)

        def show(phase: str, detail: str, share: float | None, number: str) -> None:
            nonlocal before
            now = phase, share or 0.0
            if now[0] != before[0] or now[1] < before[1]:
                # A new phase has a pace of its own: the time left is estimated from its own share.
                bar.reset(task)
            before = now
            # Set here: to `update` and `reset`, None means that the total stays as it was.
            bar.tasks[0].total = None if share is None else 1.0
            bar.update(task, description=f"{phase}, {detail}", completed=now[1], number=number)

        yield show


@contextmanager
def of_training(table: str, epsilon: float) -> Iterator[Callable[[Any], None] | None]:
    """Show phase, epsilon spent and time left on a terminal's stderr, or nothing."""
    from labeldp.results.card import at_most

    name, spent = Path(table).name, "0"
    with shown(f"{name}: reading", f"ε 0 of {epsilon:g}") as show:
        if show is None:
            yield None
            return

        def report(progress: Any) -> None:
            nonlocal spent
            if progress.epsilon is not None:
                # Rounded up: by the steps drawn so far, or by all queries where they are paid for at once.
                spent = at_most(progress.epsilon, 3)
            show(f"{name}: {progress.phase}", progress.detail, progress.share, f"ε {spent} of {epsilon:g}")

        yield report


def clock(seconds: float) -> str:
    """Return a time as minutes and seconds, or hours, minutes and seconds.

    >>> clock(7.9), clock(83), clock(7325)
    ('0:07', '1:23', '2:02:05')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
