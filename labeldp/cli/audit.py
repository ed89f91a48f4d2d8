"""Run `labeldp audit`: a lower bound on epsilon beside the claim."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import click

from labeldp.cli.options import Delimiter, OptionError, check_device, loaded_encoder, refuse_idle, with_encoder


@click.command()
@click.argument("private", metavar="[FOLDER|FILE]", required=False, type=click.Path(path_type=Path))
@click.option("--table", help="With a folder: the table it was trained on, or the name of the data set. Its labels are "
              "not used.  [default: as its config.toml has it]")  # fmt: skip
@click.option("--labels", "original", type=click.Path(path_type=Path), help="With a file: what it was made of, the "
              "same rows with true labels.")  # fmt: skip
@click.option("--recipe", help="Audit a recipe of the library on made-up labels instead; --list names them.")
@click.option("--epsilon", type=float, help="With --recipe: the epsilon it must stay within.")
@click.option("--delta", type=float, help="With --recipe.  [default: 1e-7 where the recipe needs one]")
@click.option("--rows", type=click.IntRange(20), help="With a folder or --recipe: how many canaries; more find more.  "
              "[default: all rows of a folder's table, at most 100,000]")  # fmt: skip
@click.option("--candidates", type=click.IntRange(2), help="With --labels: classes a guess is among.  [default: 2]")
@click.option("--delimiter", type=Delimiter(), metavar="TEXT", help="Of a CSV file: the folder's table, or the "
              "original.  [default: a comma; a tab for .tsv]")  # fmt: skip
@with_encoder
@click.option("--device", help="With a folder: where to compute, cpu or cuda.  [default: cpu]")
@click.option("--confidence", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.999,
              show_default=True, help="Honest mechanisms are accused with at most one minus this chance.")  # fmt: skip
@click.option("--list", "show_list", is_flag=True, help="Show the recipes that can be audited.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def audit(
    private: Path | None,
    table: str | None,
    original: Path | None,
    recipe: str | None,
    epsilon: float | None,
    delta: float | None,
    rows: int | None,
    candidates: int | None,
    delimiter: str | None,
    encoder: Path | None,
    device: str | None,
    confidence: float,
    show_list: bool,
    as_json: bool,
) -> None:
    """Try to break the claim, and print the epsilon it proves.

    An audit guesses labels from what was released. Many right guesses prove that epsilon is at least so much.

    FOLDER is what labeldp train wrote. Its recipe is run three more times on the same features, with made-up labels
    that coins decide. No true label is used, so this costs no privacy. The result is kept in FOLDER/audit.json, where
    labeldp report finds it.

    FILE is what labeldp privatize wrote. It is compared with the true labels of --labels. Keep that result to
    yourself, because everything that is computed from true labels is not private.

    An audit can catch a broken promise, but it cannot prove that one is kept. If the claim is broken, the
    exit code is 1.

    \b
    labeldp audit model
    labeldp audit private.parquet --labels patients.parquet
    labeldp audit --recipe dp-sgd --epsilon 1
    """
    if show_list:
        from labeldp.audit.selftest import subjects

        click.echo("\n".join(subjects()))
        return
    if (private is None) == (recipe is None):
        raise OptionError(
            "give a folder of labeldp train, a private file and its --labels, or the name of a --recipe (see --list)"
        )
    if private is not None and not private.exists():
        raise OptionError(
            f"there is no file or folder {str(private)!r}; give a folder of labeldp train or a private file"
        )
    if private is not None and private.is_dir():
        refuse_idle("a folder", labels=original, candidates=candidates, epsilon=epsilon, delta=delta)
        from labeldp.audit.folders import audit_folder, keep_audit

        device = device or "cpu"
        check_device(device)
        tell = partial(click.echo, err=True) if sys.stderr.isatty() and not as_json else lambda _: None
        audited = audit_folder(
            private, table, canaries=rows, delimiter=delimiter, encoder=loaded_encoder(encoder), device=device,
            confidence=confidence, report=tell,
        )  # fmt: skip
        found, printed = audited.result, audited.to_json()
        verdict = f"{audited.verdict}\nKept in {keep_audit(audited, private)}; see it with: labeldp report {private}"
    elif private is not None:
        refuse_idle("a file", epsilon=epsilon, delta=delta, rows=rows, table=table, device=device, encoder=encoder)
        from labeldp.audit.responses import audit_table

        if original is None:
            raise OptionError(
                "--labels is missing: give the file with the true labels that the private one was made of"
            )
        how = {"candidates": candidates or 2, "confidence": confidence, "delimiter": delimiter}
        found = audit_table(private, original, **how)
        printed, verdict = found.to_json(), found.verdict
    else:
        given = {"labels": original, "candidates": candidates, "delimiter": delimiter, "table": table}
        refuse_idle("--recipe", **given, device=device, encoder=encoder)
        from labeldp.audit.selftest import self_test

        if epsilon is None:
            raise OptionError("--epsilon is missing: give what the recipe must stay within, say 1")
        found = self_test(str(recipe), epsilon, delta, rows=rows, confidence=confidence)
        printed, verdict = found.to_json(), found.verdict
    click.echo(json.dumps(printed) if as_json else verdict)
    if found.contradicts:
        raise click.exceptions.Exit(1)
