"""Run `labeldp verify`: check a result, and say what that proves and what it does not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import click


@click.command()
@click.argument("file", metavar="FILE|FOLDER", type=click.Path(path_type=Path, exists=True))
@click.option("--max-epsilon", type=click.FloatRange(0), help="Fail if the claim is larger than this.")
@click.option("--max-delta", type=click.FloatRange(0), help="Fail if the claim is larger than this.")
@click.option("--signer", "signers", multiple=True, help="Fail unless this public key, or the one in this file, has "
              "signed; see labeldp keys. If repeated, one of them must have signed.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(
    file: Path, max_epsilon: float | None, max_delta: float | None, signers: tuple[str, ...], as_json: bool
) -> None:
    """Check a certificate, and the files that it is about.

    Epsilon is recomputed from the ledger. FILE is a certificate or the file that it is about, or the history of a store
    (labeldp budget history --out). FOLDER is what labeldp train wrote; all of its files are checked, and that they
    agree. A claim that protects nothing fails: an infinite epsilon, a delta of one over the rows or more, or noise from
    a seed. If a check fails, the reasons are printed and the exit code is 1.

    Anyone who can change the files can also write files that claim a smaller epsilon. Where that matters, ask for a
    signature:

    \b
    labeldp verify model --max-epsilon 1 --signer ann.key.pub
    """
    from labeldp.results.card import at_most, odds_in_words, one_line
    from labeldp.results.verify import check

    found = check(file, max_epsilon=max_epsilon, max_delta=max_delta, signers=signers)
    claim, spent = found.certificate, found.spent
    if as_json:
        click.echo(json.dumps({
            "file": str(file), "holds": not found.problems, "problems": list(found.problems),
            "epsilon": spent and ("infinity" if math.isinf(spent[0]) else spent[0]),
            "delta": spent and spent[1], "signer": found.signature and found.signature.signer,
            "trusted": found.trusted, "proved": found.proved, "not_proved": found.not_proved,
        }))  # fmt: skip
    elif found.problems:
        click.echo("\n".join(one_line(f"{file}: {problem}") for problem in found.problems), err=True)
    else:
        if claim is not None:
            click.echo(f"{file}: the certificate holds, for epsilon {at_most(claim.epsilon)}.")
            click.echo(odds_in_words(claim.epsilon, claim.delta, claim.unit.protects))
        click.echo(f"Proved: {found.proved}. Not proved: {found.not_proved}.")
    if found.problems:
        raise click.exceptions.Exit(1)
