"""Run `labeldp report`: a folder with a model in, one HTML page out."""

from __future__ import annotations

import json
from pathlib import Path

import click

from labeldp.cli.keys import put_signature, signing_key, with_signature
from labeldp.cli.options import OptionError


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The page to write; replaced where it exists.  [default: "
              "FOLDER.html beside the folder]")  # fmt: skip
@click.option("--audit", type=click.Path(path_type=Path), help="The output of labeldp audit --json.  [default: "
              "audit.json in the folder, where there is one]")  # fmt: skip
@click.option("--beside", multiple=True, type=click.Path(path_type=Path), help="Another result folder of the same data "
              "to compare with (may be repeated).")  # fmt: skip
@click.option("--non-private", type=float, help="Accuracy (R² for a number) without privacy, from 0 to 1, "
              "where you know it.")  # fmt: skip
@with_signature
@click.option("--quiet", is_flag=True, help="Print nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def report(
    folder: Path | None,
    out: Path | None,
    audit: Path | None,
    beside: tuple[Path, ...],
    non_private: float | None,
    sign: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write one HTML page about a trained model.

    The page says how good the model is, what the guarantee means, what it cost, and how to share and check it. It needs
    no network and costs no privacy, because it only shows what labeldp train wrote. It is written beside the folder,
    whose own files are certified. If the folder does not verify, the page says so and the exit code is 1.

    \b
    labeldp report model
    labeldp report model --beside model-eps-4 --non-private 0.872 --out model.html
    """
    try:
        from labeldp.data.tables import certificate_path
        from labeldp.results.facts import gather
        from labeldp.results.report import write_page
        from labeldp.results.signing import signature_path
    except ImportError as error:
        raise OptionError(str(error)) from None

    if folder is None:
        raise OptionError("give a folder that labeldp train wrote, as in: labeldp report model")
    if folder.is_file() and certificate_path(folder).is_file():
        raise OptionError(
            f"{str(folder)!r} is a privatized table, and a page is about a model: labeldp verify says what the table "
            "promises, and labeldp train learns a model from it"
        )
    signer = None if sign is None else signing_key(sign)
    facts = gather(folder, audit=audit, beside=beside, non_private=non_private)
    target = out or folder.resolve().with_name(f"{folder.resolve().name}.html")
    write_page(facts, target)
    if signer is not None:
        # The page is replaced where it exists, and so is its signature.
        signature_path(target).unlink(missing_ok=True)
        put_signature(target, signer)
    if as_json:
        click.echo(json.dumps({"page": str(target), "problems": list(facts.problems)}))
    elif not quiet:
        click.echo(f"{target}: open it in a browser." + "".join(f"\nBeware: {one}." for one in facts.problems))
    if facts.problems:
        raise click.exceptions.Exit(1)
