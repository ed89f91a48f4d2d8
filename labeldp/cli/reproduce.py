"""Run `labeldp reproduce`: train the missing runs of a paper's table, and print our mean ± spread beside its figures.

Runner, settings, figures and results are files of a checkout, in `experiments/`; the installed package has none.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from labeldp.cli.options import OptionError

_INDEX = Path("experiments") / "tables.toml"


@click.command("reproduce")
@click.argument("table", required=False)
@click.option("--list", "show_list", is_flag=True, help="Show the tables there are.")
@click.option("--recorded", is_flag=True, help="Train nothing: print what was recorded, and name what was not.")
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
    recorded: bool,
    quick: bool,
    seeds: int | None,
    epsilons: tuple[float, ...],
    methods: tuple[str, ...],
    device: str | None,
    out: Path | None,
    jobs: int,
) -> None:
    """Train a published table again, and compare.

    The mean and spread of our runs are printed beside the published values. This works in a checkout, on data sets
    that are found through LABELDP_DATA. Runs that were already recorded are not repeated, so an interrupted command can
    continue.

    \b
    labeldp reproduce --list
    labeldp reproduce ghazi2024-table6 --recorded
    labeldp reproduce ghazi2021-table4 --epsilon 1 --epsilon 2 --method lp-2st
    """
    if (table is None) != show_list:
        raise OptionError("give the name of one table, or --list to see which there are")
    if quick and seeds is not None:
        raise OptionError("--quick is one seed; leave out --seeds")
    runner = _experiments()
    how = {"quick": quick, "seeds": seeds, "epsilons": epsilons, "methods": methods, "device": device}
    how |= {"recorded": recorded}
    click.echo(runner.known_tables() if table is None else runner.reproduce(table, **how, out=out, jobs=jobs))


def _experiments() -> Any:
    """Import the runner of the checkout that this package belongs to, else of the one we stand in."""
    places = (Path(__file__).resolve().parents[2], Path.cwd())
    found = next((place for place in places if (place / _INDEX).is_file()), None)
    if found is None:
        raise ValueError(
            f"the experiments are not part of the installed package: {_INDEX} is neither in {places[0]} nor in "
            f"{places[1]}. Get the source and run this command in its folder"
        )
    if str(found) not in sys.path:
        sys.path.insert(0, str(found))
    return import_module("experiments.reproduce")
