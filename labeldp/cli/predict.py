"""Run `labeldp predict`: a folder with a model and a table in, predictions out."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labeldp.atomic import replacing
from labeldp.cli.columns import table_file
from labeldp.cli.keys import put_signature, signing_key, with_signature
from labeldp.cli.options import Names, OptionError, check_device, delimiter_of, option_values

if TYPE_CHECKING:
    import pyarrow as pa

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

    TABLE has the columns that the model was trained on, in any order; others are ignored; - is standard input. A model
    of images takes the name of a data set, and predicts its test part. This costs no privacy, however often it is done.

    \b
    labeldp predict model new.csv --out predictions.csv --keep id --probabilities
    """
    if folder is None or table is None:
        raise OptionError("give a folder that labeldp train wrote and a table, as in: labeldp predict model new.csv")
    if out is not None:
        if out.suffix.lower() not in _FORMATS:
            raise OptionError(f"--out {str(out)!r} has no known format; its name must end in {', '.join(_FORMATS)}")
        taken = [path for path in (out, _config_path(out)) if os.path.lexists(path)]
        if taken:
            raise OptionError(
                f"{str(taken[0])!r} exists already and is never overwritten; choose another --out or move it"
            )
        if not out.parent.is_dir():
            raise OptionError(f"the folder {str(out.parent)!r} does not exist; create it, or choose another --out")
        if not os.access(out.parent, os.W_OK):
            raise _unwritable(out, "Permission denied")
    elif sign is not None:
        raise OptionError("--sign needs --out: there is no file to sign")
    signer = signing_key(sign, out)
    check_device(device)
    from labeldp.results.model import for_spreadsheets, predictions

    how = {"delimiter": delimiter_of(delimiter), "probabilities": probabilities, "device": device}
    with table_file(table) as path:
        found = predictions(folder, path, keep=keep or (), **how)
    if not raw_text and (out is None or out.suffix.lower() == ".csv"):
        found = for_spreadsheets(found)
    if out is None:
        import pyarrow as pa
        import pyarrow.csv as pacsv

        sink = pa.BufferOutputStream()
        pacsv.write_csv(found, sink)
        click.echo(sink.getvalue().to_pybytes(), nl=False)
        return
    try:
        _write(found, out, option_values(ctx, without=("out", "quiet", "json")))
    except OSError as error:
        raise _unwritable(out, os.strerror(error.errno) if error.errno else type(error).__name__) from None
    put_signature(out, signer)
    if as_json:
        click.echo(json.dumps({"file": str(out), "rows": found.num_rows, "columns": found.column_names}))
    elif not quiet:
        from labeldp.results.card import counted

        click.echo(f"{out}: {counted(found.num_rows, 'row')} predicted by {folder}, at no further cost to any label.")


def _unwritable(out: Path, why: str) -> OptionError:
    return OptionError(f"{str(out)!r} cannot be written ({why}); choose an --out where you may write and there is room")


def _config_path(out: Path) -> Path:
    return out.with_name(out.name + ".config.toml")


def _write(found: pa.Table, out: Path, run: dict[str, Any]) -> None:
    """Write the file and, beside it, the run: both, or none."""
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    from labeldp.results.folder import run_toml

    try:
        with replacing(out) as draft:
            pacsv.write_csv(found, draft) if out.suffix.lower() == ".csv" else pq.write_table(found, draft)
            _config_path(out).write_text(run_toml({"predict": run}), encoding="utf-8")
    except BaseException:
        with suppress(OSError):
            _config_path(out).unlink(missing_ok=True)
        raise
