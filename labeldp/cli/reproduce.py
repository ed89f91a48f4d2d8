"""`labeldp reproduce`: train the missing runs of a paper's table, and print our mean ± spread beside its figures.

Runner, settings, figures and results are files of a checkout, in `experiments/`; the installed package has none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from labeldp.cli.options import Refusal
from labeldp.data.files import MissingDataError

_INDEX = Path("experiments") / "tables.toml"


@click.command("reproduce")
@click.argument("table", required=False)
@click.option("--list", "show_list", is_flag=True, help="Show the tables there are.")
@click.option("--quick", is_flag=True, help="One seed and few epochs; kept apart from the results.")
@click.option("--seeds", type=click.IntRange(1), help="Runs per setting.  [default: as the settings say]")
@click.option("--epsilon", "epsilons", type=float, multiple=True, help="Only this epsilon (may be repeated).")
@click.option("--method", "methods", multiple=True, help="Only this method, such as lp-2st (may be repeated).")
@click.option("--device", help="Where to train.  [default: cuda where there is one, else cpu]")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Result lines, appended to.  "
              "[default: the table's file in experiments/results]")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Trainings at once.")
def reproduce_table(
    table: str | None,
    show_list: bool,
    quick: bool,
    seeds: int | None,
    epsilons: tuple[float, ...],
    methods: tuple[str, ...],
    device: str | None,
    out: Path | None,
    jobs: int,
) -> None:
    """Train a paper's table again and print our mean ± spread beside the paper's values.

    Works in a checkout, on data sets found through LABELDP_DATA. A run that has its line already is not trained
    again, so an interrupted command goes on where it stopped.

    \b
    labeldp reproduce --list
    labeldp reproduce ghazi2021-table4 --epsilon 1 --epsilon 2 --method lp-2st
    """
    if (table is None) != show_list:
        raise Refusal("give the name of one table, or --list to see which there are")
    if quick and seeds is not None:
        raise Refusal("--quick is one seed; leave out --seeds")
    if table is None:
        click.echo(known_tables())
        return
    click.echo(
        reproduce(
            table, quick=quick, seeds=seeds, epsilons=epsilons, methods=methods, device=device, out=out, jobs=jobs
        )
    )


def checkout() -> Path:
    """Return the checkout this package belongs to, else the one we stand in."""
    places = (Path(__file__).resolve().parents[2], Path.cwd())
    found = next((place for place in places if (place / _INDEX).is_file()), None)
    if found is None:
        raise ValueError(
            f"the experiments are not part of the installed package: {_INDEX} is neither in {places[0]} nor in "
            f"{places[1]}. Get the source and run this command in its folder"
        )
    return found


def _part(name: str) -> Any:
    """Import a module of the checkout's runner."""
    root = str(checkout())
    if root not in sys.path:
        sys.path.insert(0, root)
    return import_module(f"experiments.{name}")


def known_tables() -> str:
    """Return every table that can be reproduced, one to a line."""
    tables = _part("tables").tables()
    width = max(map(len, tables))
    return "\n".join(f"{name:<{width}}  {table.title}" for name, table in tables.items())


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
) -> str:
    """Train what has no line in `out` yet (by default in experiments/results) and return the table as text."""
    index, records, report = _part("tables"), _part("records"), _part("report")
    tables = index.tables()
    if name not in tables:
        raise ValueError(f"no table {name!r} is known here; there are {', '.join(tables)}")
    table = tables[name]
    runs = index.select(table.runs(seeds=seeds, quick=quick), epsilons, methods)
    target: Path = out or table.results(quick)
    left = records.missing(runs, records.read(target))
    if left:
        _train(left, len(runs) - len(left), target, device, jobs)
    return f"{report.paper_table(table, runs, records.read(target))}\nOne line per run: {target}"


def _train(left: list[Any], done: int, out: Path, device: str | None, jobs: int) -> None:
    with _one_sentence(out):
        # Only now: PyTorch takes seconds to load, and a table that is complete does not need it.
        run = _part("run")
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
        raise ValueError(f"{_part('sweep').failed(error)} (LABELDP_DEBUG=1 shows it). {kept}") from None


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
