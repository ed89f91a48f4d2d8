"""Run `labeldp plan`: which recipe, and why, from public numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labeldp.cli.options import EPSILON, OptionError, listing, names_in, table_file, with_columns, with_delimiter

if TYPE_CHECKING:
    from labeldp.choosing.choice import Choice
    from labeldp.data.kinds import Reading

_KINDS = ("number", "date", "category", "text", "vector")
# Values up to which a category has a number per row for each, and how many numbers all others share (`Table`).
_ONE_HOT, _HASHED = 64, 256
# Numbers per row that prose becomes, all of it together at most (`Text`).
_TEXT, _MOST_TEXT = 128, 512
# Pipes and files have no width of their own.
_WIDTH = 110


@click.command()
@click.argument("table", required=False, type=click.Path(allow_dash=True))
@click.option("--rows", type=click.IntRange(1), help="How many labels there are.  [with a table: counted]")
@click.option("--classes", help="How many classes the label can take, or their names, comma-separated.")
@click.option("--regression", is_flag=True, help="The labels are numbers, not classes.")
@click.option("--epsilon", type=EPSILON, required=True, help="Privacy of one label; smaller is more private.")
@click.option("--delta", type=float, help="0 leaves out what needs Gaussian noise.  [default: as for labeldp train, a "
              "tenth of one over the rows, at most 1e-5]")  # fmt: skip
@click.option("--features", type=click.IntRange(1), help="Numbers per row of the public features.  [with a table: "
              "counted in its columns]")  # fmt: skip
@click.option("--modality", type=click.Choice(("images", "table", "text", "embeddings")),
              help="What the features are.  [default: images; with a table: table]")  # fmt: skip
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True,
              help="Where you would train.")  # fmt: skip
@click.option("--hours", type=float, default=4.0, show_default=True, help="Recipes that train longer are not chosen.")
@click.option("--rows-per-user", type=click.IntRange(1), help="Protect all labels of a user together; the most rows "
              "one of them has.")  # fmt: skip
@click.option("--label", help="With a table: the secret column, which is not read.")
@with_columns
@with_delimiter
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    table: str | None,
    rows: int | None,
    classes: str | None,
    regression: bool,
    epsilon: float,
    delta: float | None,
    features: int | None,
    modality: str | None,
    device: str,
    hours: float,
    rows_per_user: int | None,
    label: str | None,
    columns: dict[str, Any],
    delimiter: str | None,
    as_json: bool,
) -> None:
    """Find which recipe is expected to do best, and why.

    This uses public numbers only and spends nothing. Give the numbers, or a Parquet or CSV file (or adult, the bundled
    table). The rows of a file are counted, and you see how each public column would be read; the label column is not
    read. As in labeldp train, a tenth of the rows of a table is set aside. labeldp choose is the same command.

    \b
    labeldp plan --rows 60000 --classes 10 --epsilon 0.1 --features 784 --device cuda
    labeldp plan patients.parquet --label diagnosis --classes none,mild,severe --epsilon 1
    """
    from labeldp.budgets.calibrate import usual_delta
    from labeldp.choosing.choice import choose

    if table is not None and table != "-" and not Path(table).exists():
        table, label, classes = _named(table, label, classes)
    if not classes and not regression:
        raise OptionError(
            "--classes is missing: say how many classes the label can take, for example --classes 3 or --classes "
            "none,mild,severe. They are not counted in the data, because which classes occur is itself private; for "
            "labels that are numbers, give --regression"
        )
    if regression and classes:
        raise OptionError("--classes means nothing with --regression; leave one of them out")
    many = None
    if classes:
        many = int(classes) if classes.strip().isdecimal() else len(names_in(classes))
    found = None
    if table is not None:
        from labeldp.data.door import read_columns
        from labeldp.data.own_images import is_folder_of_classes
        from labeldp.recipes.holdout import rows_set_aside

        if is_folder_of_classes(table, label):
            raise OptionError(
                "for a folder of images, give --rows, how many there are, and --features, the numbers of one, in place "
                "of it: for example --rows 2000 --features 4096 for 64 × 64 grey ones"
            )
        if label is None:
            raise OptionError("--label is missing: name the secret column, so that it is left out of what is looked at")
        if rows is not None:
            raise OptionError(
                f"--rows means nothing with a table: its rows are counted in {Path(table).name}; leave it out"
            )
        with table_file(table) as path:
            found = read_columns(path, label, **columns, delimiter=delimiter)
        features = features or width_of(found.readings)
        # What labeldp train would do: set rows aside to measure the model with, and learn from the others.
        whole = len(found.features)
        aside = rows_set_aside(whole, 0 if rows_per_user else None, seed=0)
        rows = whole - (0 if aside is None else len(aside))
    elif label is not None or delimiter is not None or any(columns.values()):
        raise OptionError(
            "--label, --delimiter, --drop and kinds of columns belong to a table; name its file, or leave them out"
        )
    elif rows is None:
        raise OptionError("give --rows, the number of labels, or the file of a table to count them in")
    choice = choose(
        rows, many, epsilon, usual_delta(rows if found is None else len(found.features)) if delta is None else delta,
        feature_dim=features, modality=modality or ("images" if table is None else "table"), device=device,
        rows_per_user=rows_per_user, hours=hours,
        # What labeldp train has for images without a GPU are heads on their features.
        network=device != "cpu" or (modality or ("images" if table is None else "table")) != "images",
    )  # fmt: skip
    if as_json:
        read = {} if found is None else {"columns": [one.to_json() for one in found.readings]}
        click.echo(json.dumps({**choice.to_json(), **read}))
        return
    show(choice)
    if found is not None:
        click.echo("\n" + listing(found.readings, found.note))


def _named(table: str, label: str | None, classes: str | None) -> tuple[str, str, str]:
    """Return what labeldp train takes for a data set that it knows by name: file, label and classes."""
    from labeldp.data.door import NAMES
    from labeldp.data.files import ADULT_CLASSES, adult_path

    if table not in NAMES:
        raise OptionError(
            f"there is no file {table!r}; give a Parquet or CSV file, or --rows, --classes and --features"
        )
    if table != "adult":
        raise OptionError(
            f"{table} is a data set of images; give its numbers in place of its name, for MNIST: --rows 60000 "
            "--classes 10 --features 784"
        )
    return str(adult_path()), label or "income", classes or str(len(ADULT_CLASSES))


def width_of(readings: Sequence[Reading]) -> int:
    """Return how many numbers per row the public columns of a table become, as `labeldp train` encodes them.

    A number is one, and a second that marks missing ones; a category has one for each of its values, or all of those
    with many share some; prose is projected on a few directions.
    """
    kinds = {kind: [one for one in readings if one.column and one.column.kind == kind] for kind in _KINDS}
    vectors = sum(one.column.size for one in kinds["vector"] if one.column)
    numbers = sum(1 + bool(one.missing) for one in (*kinds["number"], *kinds["date"]))
    values = [(one.distinct or 0) + bool(one.missing) for one in kinds["category"]]
    categories = sum(many for many in values if many <= _ONE_HOT) + _HASHED * any(many > _ONE_HOT for many in values)
    prose = len(kinds["text"])
    return max(1, vectors + numbers + categories + prose * min(_TEXT, _MOST_TEXT // max(prose, 1)))


def show(choice: Choice) -> None:
    """Print the sentence, the promise, where to start, and the ranking as a table, wrapped to the terminal."""
    from rich import box
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

    from labeldp.choosing.choice import count

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
    columns = {
        "recipe": [one.recipe for one in choice.ranking],
        "worth in clean labels": [count(one.clean_labels) if one.clean_labels else "–" for one in choice.ranking],
        "accuracy": ["–" if one.accuracy is None else f"{one.accuracy:.1f} %" for one in choice.ranking],
        "behind by": ["–" if one.regret is None else f"{max(one.regret, 0.0):.1f}" for one in choice.ranking],
        "training": ["–" if one.seconds is None else duration(one.seconds) for one in choice.ranking],
        "rests on": [one.obstacle or one.evidence for one in choice.ranking],
    }
    # Of tables like a user's own no accuracy is known: a column of dashes says nothing.
    columns = {name: cells for name, cells in columns.items() if set(cells) != {"–"}}
    for name in columns:
        worded = name in ("recipe", "rests on")
        ranking.add_column(name, justify="left" if worded else "right", no_wrap=name == "recipe")
    for one, *cells in zip(choice.ranking, *columns.values(), strict=True):
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
