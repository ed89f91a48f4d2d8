"""`labeldp predict`: a folder with a model and a table in, predictions out. And `labeldp completion`."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labeldp.atomic import replacing
from labeldp.cli.keys import put_signature, signing_key, with_signature
from labeldp.cli.options import Names, OptionError, delimiter_of, option_values

if TYPE_CHECKING:
    import pyarrow as pa

    from labeldp.results.training import Model


_FORMATS = (".csv", ".parquet", ".pq")


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.argument("table", required=False)
@click.option("--out", type=click.Path(path_type=Path), help="A .csv or .parquet file to write.  [default: CSV to "
              "standard output]")  # fmt: skip
@click.option("--probabilities", is_flag=True, help="One more column for each class, with its probability (a number "
              "has none).")  # fmt: skip
@click.option("--keep", type=Names(), help="Columns of TABLE to copy in front, such as an id, comma-separated.")
@click.option("--delimiter", help="Of a CSV file.  [default: a comma; a tab for .tsv]")
@click.option("--device", default="cpu", show_default=True, help="Where to compute: cpu or cuda.")
@click.option("--raw-text", is_flag=True, help="In CSV, write texts that begin with = + - @ as they are, though a "
              "spreadsheet would run them as formulas.")  # fmt: skip
@with_signature
@click.option("--quiet", is_flag=True, help="No summary.")
@click.option("--json", "as_json", is_flag=True, help="With --out: print one JSON object.")
@click.pass_context
def predict(
    ctx: click.Context,
    folder: Path | None,
    table: str | None,
    out: Path | None,
    probabilities: bool,
    keep: tuple[str, ...] | None,
    delimiter: str | None,
    device: str,
    raw_text: bool,
    sign: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Predict the labels of a table's rows, classes or numbers, with a model that labeldp train wrote.

    TABLE has the columns that the model was trained on, in any order; others are ignored. A model of images
    takes the name of a data set, and predicts its test part. This costs no privacy, however often it is done.

    \b
    labeldp predict model new.csv --out predictions.csv --keep id --probabilities
    """
    from labeldp.cli.train import check_device
    from labeldp.results.training import load
    from labeldp.results.writing import for_spreadsheets

    if folder is None or table is None:
        raise OptionError("give a folder that labeldp train wrote and a table, as in: labeldp predict model new.csv")
    if out is not None:
        _check_target(out)
    elif sign is not None:
        raise OptionError("--sign needs --out: there is no file to sign")
    signer = signing_key(sign, out)
    check_device(device)
    model = load(folder, device)
    try:
        found = _predicted(model, table, tuple(keep or ()), delimiter_of(delimiter), probabilities)
    except (RuntimeError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        # Tables that do not fit are refused by ValueErrors: this is a model whose numbers and description disagree.
        raise OptionError(
            f"the model in {str(folder)!r} cannot be applied ({type(error).__name__}); check it with: labeldp verify"
        ) from None
    if not raw_text and (out is None or out.suffix.lower() == ".csv"):
        found = for_spreadsheets(found)
    if out is None:
        _print_csv(found)
        return
    _write(found, out, option_values(ctx, without=("out", "quiet", "json")))
    put_signature(out, signer)
    if as_json:
        click.echo(json.dumps({"file": str(out), "rows": found.num_rows, "columns": found.column_names}))
    elif not quiet:
        click.echo(f"{out}: {found.num_rows:,} rows predicted by {folder}, at no further cost to any label.")


def _check_target(out: Path) -> None:
    if out.suffix.lower() not in _FORMATS:
        raise OptionError(f"--out {str(out)!r} has no known format; its name must end in {', '.join(_FORMATS)}")
    for path in (out, _config_path(out)):
        if os.path.lexists(path):
            raise OptionError(f"{str(path)!r} exists already and is never overwritten; choose another --out or move it")
    if not out.parent.is_dir():
        raise OptionError(f"the folder {str(out.parent)!r} does not exist; create it, or choose another --out")


def _config_path(out: Path) -> Path:
    return out.with_name(out.name + ".config.toml")


def _predicted(model: Model, table: str, keep: tuple[str, ...], delimiter: str | None, probabilities: bool) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    if probabilities and not model.classes:
        raise OptionError("the model predicts a number, which has no probabilities; leave out --probabilities")
    inputs, kept = _inputs(model, table, keep, delimiter)
    taken = [name for name in kept if name in ("prediction", "probability")]
    if taken:
        raise OptionError(f"--keep {taken[0]} would hide what is predicted; rename the column")
    if not model.classes:
        return pa.table({**kept, "prediction": model.estimator.predict(inputs)})
    likely = model.estimator.predict_proba(inputs)
    best = likely.argmax(axis=1)
    columns: dict[str, Any] = {**kept, "prediction": pa.array(np.asarray(model.classes)[best])}
    columns["probability"] = likely[np.arange(len(best)), best]
    if probabilities:
        columns |= {f"probability of {name}": likely[:, place] for place, name in enumerate(model.classes)}
    return pa.table(columns)


def _inputs(model: Model, table: str, keep: tuple[str, ...], delimiter: str | None) -> tuple[Any, dict[str, Any]]:
    """What the model reads, and the columns to copy."""
    from labeldp.data.columns import read_like
    from labeldp.data.door import NAMES, read

    if model.columns is not None:
        rows, kept = read_like(Path(table), model.columns, delimiter, keep)
        return rows, {name: kept.column(name) for name in keep}
    if table not in NAMES or keep:
        raise OptionError("the model was trained on images; give the name of a data set of them, and no --keep")
    opened = read(table).test
    return None if opened is None else opened.features, {}


def _print_csv(found: pa.Table) -> None:
    import pyarrow as pa
    import pyarrow.csv as pacsv

    sink = pa.BufferOutputStream()
    pacsv.write_csv(found, sink)
    click.echo(sink.getvalue().to_pybytes(), nl=False)


def _write(found: pa.Table, out: Path, run: dict[str, Any]) -> None:
    """The file and, beside it, the run: both, or none."""
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    from labeldp.results.writing import run_toml

    try:
        with replacing(out) as draft:
            pacsv.write_csv(found, draft) if out.suffix.lower() == ".csv" else pq.write_table(found, draft)
            _config_path(out).write_text(run_toml({"predict": run}), encoding="utf-8")
    except BaseException:
        with suppress(OSError):
            _config_path(out).unlink(missing_ok=True)
        raise


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that lets a shell complete labeldp's commands and options.

    \b
    eval "$(labeldp completion bash)"                                  # in ~/.bashrc; zsh alike
    labeldp completion fish > ~/.config/fish/completions/labeldp.fish
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    if script is None:
        raise OptionError(f"shell={shell!r} is not known here")
    click.echo(script(ctx.find_root().command, {}, "labeldp", "_LABELDP_COMPLETE").source())
