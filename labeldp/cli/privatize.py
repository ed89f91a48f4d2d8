"""Run `labeldp privatize`: a table in, the same table with private labels out, and a certificate beside it."""

from __future__ import annotations

import json
import math
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labeldp.cli.budget import BESIDE, account_of
from labeldp.cli.keys import put_signature, signing_key, with_signature
from labeldp.cli.options import EPSILON, Names, OptionError, declared, refuse_idle, with_delimiter, with_rows
from labeldp.cli.progress import shown

if TYPE_CHECKING:
    from labeldp.core.certificate import Certificate

MECHANISMS = ("randomized-response", "prior-response", "top-k-response", "bit-flip", "laplace-one-hot")


@click.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.option("--label", required=True, help="The column to privatize.")
@click.option("--classes", type=Names(), help="All classes the label can take, comma-separated, in the order to use.")
@click.option("--epsilon", type=EPSILON, required=True, help="Privacy of one label; smaller is more private.")
@click.option("--out", "target", required=True, type=click.Path(path_type=Path), help="The file to write.")
@click.option("--mechanism", type=click.Choice(MECHANISMS), help="Default: randomized-response, or prior-response "
              "when prior columns are given.")  # fmt: skip
@click.option(
    "--prior-columns", type=Names(), help="Columns with each row's public guess, one per class, comma-separated."
)
@click.option("--k", type=click.IntRange(1), help="Number of classes to choose from in top-k-response.")
@with_rows
@with_delimiter
@click.option(
    "--journal", type=click.Path(path_type=Path), help="Keep count of what this column has spent in this file."
)
@click.option("--budget", type=float, help="The total epsilon that a new journal allows.")
@click.option("--store", help="The store whose budget for these labels is charged; see labeldp budget.  [default: "
              "LABELDP_STORE, else budgets.db beside IN]")  # fmt: skip
@click.option("--key", type=click.Path(path_type=Path), help="The file with the store's key.")
@click.option("--insecure-seed", type=int, help="Draw the noise from a seed. For tests only; the certificate says so.")
@with_signature
@click.option("--quiet", is_flag=True, help="Print neither progress nor a summary.")
@click.option("--json", "as_json", is_flag=True, help="Print the certificate as JSON.")
def privatize(
    source: Path,
    label: str,
    classes: tuple[str, ...] | None,
    epsilon: float,
    target: Path,
    mechanism: str | None,
    prior_columns: tuple[str, ...] | None,
    k: int | None,
    user: str | None,
    id_column: str | None,
    delimiter: str | None,
    journal: Path | None,
    budget: float | None,
    store: str | None,
    key: Path | None,
    insecure_seed: int | None,
    sign: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Replace a label column by private responses.

    A certificate is written beside the output. You can give both to anyone: the guarantee holds whatever they do with
    them. All other columns and the order of rows stay the same. Parquet and CSV files are read as a stream; a folder of
    Parquet files becomes one file. Releases of the same column add up, so keep a --journal, or use a --store, whose
    budget everyone shares who works with the labels.

    \b
    labeldp privatize patients.parquet --label diagnosis --classes none,mild,severe \\
        --epsilon 1 --out private.parquet
    """
    from labeldp.core.random import SecureRandom
    from labeldp.data import tables

    signer = None if sign is None else signing_key(sign, target)
    names = declared(classes)
    if store is not None:
        refuse_idle("--store, which has its own budget", journal=journal, budget=budget)
    if source.is_file() and not tables.has_rows(source, delimiter):
        raise OptionError(f"{source.name} has no rows, and there is nothing to privatize; give a table with some")
    charged: Any
    if journal is not None or budget is not None:
        refuse_idle("--journal", key=key, id=id_column)
        if journal is None:
            raise OptionError("--budget needs --journal FILE: without a file there is nothing to remember it")
        from labeldp.budgets.journal import Journal
        from labeldp.core.ledger import ONE_LABEL, ONE_USER, Budget

        allowed, unit = None if budget is None else Budget(budget), ONE_LABEL if user is None else ONE_USER
        charged = Journal.open(journal, allowed, unit=unit)
        if not charged.sealed:
            click.echo(
                f"{journal.name} is of the first version and not sealed: a line changed by hand would count", err=True
            )
        if "LABELDP_STORE" in os.environ or source.with_name(BESIDE).is_file():
            click.echo("--journal is charged, and no store: neither LABELDP_STORE nor one beside the table", err=True)
    else:
        # A store knows users by the ids of users, and rows by those of rows.
        known_by, note = user if user and id_column else id_column, f"privatize into {target.name}"
        charged = account_of(source, label, names, delimiter, store, key, note, known_by, user)
        if charged is None:
            refuse_idle("a run without --store", key=key, id=id_column)
    rng = SecureRandom(insecure_seed)
    with nullcontext() if quiet or as_json else shown(source.name) as show:
        certificate = tables.privatize(
            source, target, label=label, classes=names, epsilon=epsilon, mechanism=mechanism, k=k,
            prior_columns=prior_columns or (), users=user, delimiter=delimiter, journal=charged, rng=rng,
            report=None if show is None else lambda rows, share: show(source.name, f"{rows:,} rows", share, ""),
        )  # fmt: skip
    put_signature(target, signer)
    if as_json:
        click.echo(json.dumps(certificate.to_json()))
    elif not quiet:
        click.echo(_summary(certificate, target))


def _summary(certificate: Certificate, target: Path) -> str:
    from labeldp.core.ledger import ONE_LABEL
    from labeldp.data.tables import certificate_path
    from labeldp.results.card import at_most, counted, odds_in_words

    number, one = sum(group.rows for group in certificate.groups), certificate.unit == ONE_LABEL
    what = counted(number, "label") if one else f"the labels of {counted(number, 'user')}"
    channel = (certificate.release or {})["mechanism"]
    lines = [
        f"{target}: {what} privatized by {channel['mechanism']} at epsilon {at_most(certificate.epsilon)}.",
        odds_in_words(certificate.epsilon, certificate.delta, certificate.unit.protects),
    ]
    if channel["mechanism"] == "randomized-response":
        kept = 1 / (1 + (channel["num_classes"] - 1) * math.exp(-channel["epsilon"]))
        lines.append(f"Each label was kept with probability {kept:.1%}; {1 - kept:.1%} are random other classes.")
    if certificate.seeded:
        lines.append("NOT PRIVATE: the noise came from --insecure-seed, so the certificate will not verify.")
    return "\n".join([*lines, f"Check it with: labeldp verify {certificate_path(target)}"])
