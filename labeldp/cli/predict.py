"""Run `labeldp predict`: a folder with a model and a table in, predictions out."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labeldp.atomic import replacing
from labeldp.cli.keys import put_signature, signing_key, with_signature
from labeldp.cli.options import (
    Names,
    OptionError,
    check_device,
    loaded_encoder,
    option_values,
    refuse_idle,
    table_file,
    with_delimiter,
    with_encoder,
)

if TYPE_CHECKING:
    import pyarrow as pa

_FORMATS = (".csv", ".parquet", ".pq")
# What spreadsheets take for the start of a formula (OWASP, "CSV injection"), in full width, too; and plain numbers.
_FORMULA, _NUMBER = "^[=+\\-@\t\r\n＝＋－＠]", r"^[+\-]?(\d+\.?\d*|\.\d+)([eE][+\-]?\d+)?$"


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.argument("table", required=False)
@click.option("--out", type=click.Path(path_type=Path), help="A .csv or .parquet file to write.  [default: CSV to "
              "standard output]")  # fmt: skip
@click.option("--probabilities", is_flag=True, help="Also write the probability of each class. Numbers have no "
              "probabilities.")  # fmt: skip
@click.option("--image", metavar="COLUMN", help="The column of TABLE that has the images, or the names of "
              "their files.  [default: as it was called in training]")  # fmt: skip
@with_encoder
@click.option("--keep", type=Names(), help="Columns of TABLE to copy to the output, such as an id, comma-separated.")
@with_delimiter
@click.option("--device", default="cpu", show_default=True, help="Where to compute: cpu or cuda.")
@click.option("--raw-text", is_flag=True, help="Leave texts in CSV that begin with = + - @ unchanged, although a "
              "spreadsheet would run them as formulas.")  # fmt: skip
@with_signature
@click.option("--quiet", is_flag=True, help="Print no summary.")
@click.option("--json", "as_json", is_flag=True, help="With --out: print one JSON object.")
@click.pass_context
def predict(
    ctx: click.Context,
    folder: Path | None,
    table: str | None,
    out: Path | None,
    probabilities: bool,
    image: str | None,
    encoder: Path | None,
    keep: tuple[str, ...] | None,
    delimiter: str | None,
    device: str,
    raw_text: bool,
    sign: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Predict the labels of a table with a trained model.

    FOLDER is what labeldp train wrote. TABLE needs the columns that the model was trained on, in any order, and may
    have others; - is standard input. For a model of images, TABLE is one image, a folder of them, a table with a column
    of them, or the name of a data set, whose test part is predicted. Predicting costs no privacy, however often you do
    it.

    \b
    labeldp predict model new.csv --out predictions.csv --keep id --probabilities
    labeldp predict model new_photos --out predictions.csv
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
    signer = None if sign is None else signing_key(sign, out)
    check_device(device)
    with table_file(table) as path:
        found = _predictions(folder, path, keep or (), delimiter, probabilities, device, image, encoder)
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


def _predictions(
    folder: Path,
    table: str,
    keep: Sequence[str],
    delimiter: str | None,
    probabilities: bool,
    device: str,
    image: str | None = None,
    encoder: Path | None = None,
) -> pa.Table:
    """Return what the model of a folder predicts for the rows of a table, or for the test part of a data set of images.

    Columns to `keep` come in front, and names of files; `probabilities` adds one column for each class.
    """
    import numpy as np
    import pyarrow as pa

    from labeldp.data.door import NAMES, read
    from labeldp.data.own_images import images_like
    from labeldp.data.stored import read_like
    from labeldp.results.folder import ArtifactError
    from labeldp.results.model import load

    model = load(folder, device, loaded_encoder(encoder))
    if model.images is None:
        refuse_idle("a model that was not trained on images in files", image=image)
    if model.columns is not None:
        refuse_idle("a model of a table", encoder=encoder)
    if probabilities and not model.classes:
        raise ArtifactError("the model predicts a number, which has no probabilities; leave out --probabilities")
    try:
        if model.images is not None:
            form = model.images if image is None else replace(model.images, column=image)
            inputs, copied = images_like(Path(table), form, delimiter=delimiter, keep=keep)
            columns: dict[str, Any] = {name: copied.column(name) for name in copied.column_names}
        elif model.columns is not None:
            inputs, copied = read_like(Path(table), model.columns, delimiter, tuple(keep))
            columns = {name: copied.column(name) for name in keep}
        elif table in NAMES and not keep:
            opened = read(table).test
            inputs, columns = None if opened is None else opened.features, {}
        else:
            raise ArtifactError(
                "the model was trained on images or on sparse rows; give the name of a data set of images, and no "
                "--keep, or predict in Python: labeldp.load(folder).predict(X)"
            )
        taken = [name for name in columns if name in ("prediction", "probability")]
        if taken:
            raise ArtifactError(f"--keep {taken[0]} would hide what is predicted; rename the column")
        if not model.classes:
            return pa.table({**columns, "prediction": model.estimator.predict(inputs)})
        likely = model.estimator.predict_proba(inputs)
        best = likely.argmax(axis=1)
        columns["prediction"] = pa.array(np.asarray(model.classes)[best])
        columns["probability"] = likely[np.arange(len(best)), best]
        if probabilities:
            columns |= {f"probability of {name}": likely[:, place] for place, name in enumerate(model.classes)}
        return pa.table(columns)
    except (RuntimeError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        # Tables that do not fit are refused by ValueErrors: this is a model whose numbers and description disagree.
        raise ArtifactError(
            f"the model in {str(folder)!r} cannot be applied ({type(error).__name__}); check it with: labeldp verify"
        ) from None


def for_spreadsheets(table: pa.Table) -> pa.Table:
    """Return the table with an apostrophe before every text that a spreadsheet would take for a formula.

    Columns that are numbers stay, and so do texts that are: -1 is no formula.

    >>> import pyarrow as pa
    >>> for_spreadsheets(pa.table({"id": ["=1+1", "-1", "a"], "n": [-1, 2, 3]})).to_pydict()
    {'id': ["'=1+1", '-1', 'a'], 'n': [-1, 2, 3]}
    """
    import pyarrow as pa
    import pyarrow.compute

    # Its functions are made at run time, so type checkers know none of them.
    pc: Any = pyarrow.compute

    def safe(column: Any) -> Any:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            return column
        formula = pc.match_substring_regex(column, _FORMULA)
        number = pc.match_substring_regex(column, _NUMBER)
        quoted = pc.binary_join_element_wise(pa.scalar("'", column.type), column, pa.scalar("", column.type))
        return pc.if_else(pc.and_not(formula, number), quoted, column)

    names = safe(pa.chunked_array([table.column_names], pa.string())).to_pylist()
    return pa.table([safe(column) for column in table.columns], names=names)


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
