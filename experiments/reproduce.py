"""Train what a paper's table lacks, with progress on the terminal, and return the table as text.

`labeldp reproduce` calls these functions; a table that is complete is printed without loading PyTorch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments import records
from experiments.report import paper_table
from experiments.sweep import failed
from experiments.tables import select, tables
from labeldp.data.files import MissingDataError


def known_tables() -> str:
    """Return every table that can be reproduced, one to a line."""
    known = tables()
    width = max(map(len, known))
    return "\n".join(f"{name:<{width}}  {table.title}" for name, table in known.items())


def reproduce(
    name: str,
    *,
    quick: bool = False,
    seeds: int | None = None,
    epsilons: tuple[float, ...] = (),
    methods: tuple[str, ...] = (),
    device: str | None = None,
    out: Path | None = None,
    jobs: int = 1,
    recorded: bool = False,
) -> str:
    """Train what has no line in `out` yet (by default in experiments/results) and return the table as text.

    Where only what was `recorded` is asked for, nothing is trained, and what has no line is named.
    """
    known = tables()
    if name not in known:
        raise ValueError(f"no table {name!r} is known here; there are {', '.join(known)}")
    table = known[name]
    runs = select(table.runs(seeds=seeds, quick=quick), epsilons, methods)
    target: Path = out or table.results(quick)
    left = records.missing(runs, records.read(target))
    if left and not recorded:
        _train(left, len(runs) - len(left), target, device, jobs)
    return f"{paper_table(table, runs, records.read(target))}\nOne line per run: {target}"


def _train(left: list[Any], done: int, out: Path, device: str | None, jobs: int) -> None:
    with _one_sentence(out):
        # Only now: PyTorch takes seconds to load, and a table that is complete does not need it.
        from experiments import run

        chosen = run.checked_device(device)
        with _bars(left, done) as tell:
            run.train_missing(left, out, chosen, jobs=jobs, tell=tell)


@contextmanager
def _one_sentence(out: Path) -> Generator[None]:
    """Turn whatever stops a sweep into one sentence that does not forget the runs already kept."""
    kept = f"Finished runs are kept in {out}; the same command goes on from there"
    try:
        yield
    except KeyboardInterrupt:
        raise ValueError(f"interrupted. {kept}") from None
    except ModuleNotFoundError as error:
        needs = ". Training needs PyTorch: pip install 'labeldp[torch]'" if error.name == "torch" else ""
        raise ValueError(f"{error}{needs}") from None
    except MissingDataError as error:
        raise ValueError(str(error)) from None
    except (ValueError, OSError):
        raise
    except Exception as error:
        if os.environ.get("LABELDP_DEBUG"):
            raise
        raise ValueError(f"{failed(error)} (LABELDP_DEBUG=1 shows it). {kept}") from None


@contextmanager
def _bars(left: list[Any], done: int) -> Generator[Callable[[Any], None]]:
    """Show progress bars on stderr: one over runs, one over the epochs of each run under way."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False), TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as bar:
        everything = bar.add_task("runs", total=done + len(left), completed=done, note="")
        under_way: dict[str, Any] = {}

        def tell(news: Any) -> None:
            run = news.run
            if run.name not in under_way:
                under_way[run.name] = bar.add_task(run.name, total=run.epochs, note="")
            note = "" if not news.epoch else f"epochs, loss {news.loss:.3f}"
            bar.update(under_way[run.name], completed=news.epoch, note=note)
            if news.record is not None:
                bar.remove_task(under_way.pop(run.name))
                bar.advance(everything)
                line = f"{run.name}: {news.record['value']:.2f} in {news.record['seconds']:.1f} s"
                console.print(line, markup=False, highlight=False, soft_wrap=True)

        yield tell
