"""The command line: parse, call one function, write files.

Exit codes: 0 done; 1 `verify` found a problem; 2 bad input, refused or interrupted, with one sentence on stderr
and nothing written.
"""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from labeldp.cli_audit import audit
from labeldp.cli_budget import account_of, budget
from labeldp.cli_options import EPSILON, takes_config
from labeldp.cli_predict import completion, predict
from labeldp.cli_report import report
from labeldp.cli_train import train

if TYPE_CHECKING:
    from labeldp.accounting.certificate import Certificate
    from labeldp.data.request import Report

MECHANISMS = ("randomized-response", "prior-response", "top-k-response", "bit-flip", "laplace-one-hot")
BATCHES = ("poisson", "fixed-size", "public", "partition")


class Refusal(click.ClickException):
    """Bad input: one sentence, exit code 2."""

    exit_code = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="labeldp")
def cli() -> None:
    """Machine learning on private labels.

    Features are public, labels are secret: every number printed here is about replacing ONE LABEL.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `labeldp` command."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        # Outside of standalone mode click hands back the code of an early exit, and None otherwise.
        return cli.main(args=arguments, prog_name="labeldp", standalone_mode=False) or 0
    except click.ClickException as error:
        return _shown(error)
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted; nothing was written (a charge already made stays in its journal or store)")
    except ValueError as error:
        return _say(str(error))
    except OSError as error:
        return _say(f"{error.filename or 'the system'}: {error.strerror or type(error).__name__}")
    except Exception as error:
        if os.environ.get("LABELDP_DEBUG"):
            raise
        return _say(
            f"unexpected {type(error).__name__}; its message is withheld because it could quote a label "
            "(set LABELDP_DEBUG=1 to see it). Nothing was written"
        )


def _shown(error: click.ClickException) -> int:
    """Misused options in one sentence, too."""
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx else "labeldp"
        return _say(f"{' '.join(error.format_message().split()).rstrip('.')} (see: {where} --help)")
    error.show()
    return error.exit_code


def _say(sentence: str) -> int:
    click.echo(f"labeldp: {sentence}", err=True)
    return Refusal.exit_code


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


# --- accounting -----------------------------------------------------------------------------------------------


_noise_options = [
    click.option("--steps", type=click.IntRange(1), help="Number of noisy sums T.  [default: 1]"),
    click.option("--rate", type=click.FloatRange(0, 1, min_open=True),
                 help="Probability q that a row is in a batch.  [default: 1]"),
    click.option("--batches", type=click.Choice(BATCHES),
                 help="[default: poisson] "
                      "How batches are drawn: secretly row by row, secretly of fixed size, in public, or as a "
                      "partition named in advance and passed ⌈steps·rate⌉ times."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
]  # fmt: skip


def _with_noise_options(command: Any) -> Any:
    for option in reversed(_noise_options):
        command = option(command)
    return command


@cli.command()
@click.option("--noise-multiplier", type=float, help="Noise std ÷ clipping norm C of the summed gradients.")
@click.option("--response-epsilon", type=float, help="Epsilon of one private answer per row, instead of a noise.")
@click.option("--times", type=click.IntRange(1), help="Answers asked of the same row.  [default: 1]")
@click.option("--delta", type=float, help="Needed with a noise multiplier; optional for answers (default 0).")
@_with_noise_options
def epsilon(
    noise_multiplier: float | None,
    response_epsilon: float | None,
    times: int | None,
    delta: float | None,
    steps: int | None,
    rate: float | None,
    batches: str | None,
    as_json: bool,
) -> None:
    """What a planned release costs, exactly, when one label is replaced.

    A replaced label moves a sum of vectors clipped at norm C by up to 2C; the noise multiplier is still
    noise std ÷ C.

    \b
    labeldp epsilon --noise-multiplier 2 --steps 293 --rate 0.0171 --delta 1e-5
    labeldp epsilon --response-epsilon 0.5 --times 3
    """
    from labeldp.accounting import accountant
    from labeldp.accounting.events import Look, PureDP

    if (noise_multiplier is None) == (response_epsilon is None):
        raise Refusal("give either --noise-multiplier or --response-epsilon")
    if noise_multiplier is None:
        _refuse_idle("--response-epsilon", steps=steps, rate=rate, batches=batches)
        looks = (Look(PureDP(response_epsilon or 0.0), times or 1),)
    else:
        _refuse_idle("--noise-multiplier", times=times)
        if not delta or delta >= 1:
            raise Refusal("--noise-multiplier needs a --delta between 0 and 1 (say 1e-5, below one over the rows)")
        looks = accountant.gradient_looks(noise_multiplier, steps or 1, rate or 1.0, batches or "poisson")
    spent = accountant.epsilon(looks, delta or 0.0)
    _print_cost(spent, delta or 0.0, noise_multiplier, accountant.accountant_name(looks, delta or 0.0), as_json)


def _refuse_idle(chosen: str, **options: object) -> None:
    """Refuse options that would be ignored: silence would be taken for an answer."""
    idle = [f"--{name}" for name, value in options.items() if value is not None]
    if idle:
        raise Refusal(f"{' and '.join(idle)} mean nothing with {chosen}; leave them out")


@cli.command()
@click.option("--epsilon", "target", type=float, required=True, help="The epsilon to stay within.")
@click.option("--delta", type=float, required=True, help="The delta to stay within.")
@_with_noise_options
def calibrate(
    target: float, delta: float, steps: int | None, rate: float | None, batches: str | None, as_json: bool
) -> None:
    """The least noise that keeps T noisy sums within (epsilon, delta), re-checked by the accountant.

    \b
    labeldp calibrate --epsilon 1 --delta 1e-5 --steps 293 --rate 0.0171
    """
    from labeldp.accounting import accountant

    how = (steps or 1, rate or 1.0, batches or "poisson")
    multiplier = accountant.noise_multiplier(target, delta, *how)
    looks = accountant.gradient_looks(multiplier, *how)
    spent = accountant.epsilon(looks, delta)
    _print_cost(spent, delta, multiplier, accountant.accountant_name(looks, delta), as_json)


def _print_cost(spent: float, delta: float, multiplier: float | None, accountant: str, as_json: bool) -> None:
    if as_json:
        cost = {"epsilon": _plain(spent), "delta": delta, "noise_multiplier": multiplier, "accountant": accountant}
        click.echo(json.dumps(cost))
        return
    from labeldp.accounting.words import at_most, odds_in_words

    click.echo(f"epsilon           {at_most(spent)}\ndelta             {at_most(delta)}")
    if multiplier is not None:
        click.echo(f"noise multiplier  {at_most(multiplier)}   (noise std ÷ clipping norm)")
    click.echo(f"accountant        {accountant}\n{odds_in_words(spent, delta)}")


def _plain(value: float) -> float | str:
    return "infinity" if math.isinf(value) else value


# --- tables -----------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.option("--label", required=True, help="The column to privatize.")
@click.option("--classes", help="All classes the label can take, comma-separated, in the order to use.")
@click.option("--epsilon", type=float, required=True, help="Privacy of one label; smaller is more private.")
@click.option("--out", "target", required=True, type=click.Path(path_type=Path), help="The file to write.")
@click.option("--mechanism", type=click.Choice(MECHANISMS), help="Default: randomized-response, or prior-response "
              "when prior columns are given.")  # fmt: skip
@click.option("--prior-columns", help="Columns with each row's public guess, one per class, comma-separated.")
@click.option("--k", type=click.IntRange(1), help="Size of the answer set of top-k-response.")
@click.option("--delimiter", help="Of a CSV file.  [default: a comma; a tab for .tsv]")
@click.option("--journal", type=click.Path(path_type=Path), help="Keep this column's spending in this file.")
@click.option("--budget", type=float, help="Total epsilon the journal allows; fixed when it is created.")
@click.option("--store", help="Charge the budget that these labels have in this store; see labeldp budget.")
@click.option("--key", type=click.Path(path_type=Path), help="File that holds the store's key.")
@click.option("--insecure-seed", type=int, help="Noise from a seed: for tests only, marked in the certificate.")
@click.option("--quiet", is_flag=True, help="No progress bar and no summary.")
@click.option("--json", "as_json", is_flag=True, help="Print the certificate as JSON.")
def privatize(
    source: Path,
    label: str,
    classes: str | None,
    epsilon: float,
    target: Path,
    mechanism: str | None,
    prior_columns: str | None,
    k: int | None,
    delimiter: str | None,
    journal: Path | None,
    budget: float | None,
    store: str | None,
    key: Path | None,
    insecure_seed: int | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Replace a label column by a private one and write a certificate beside it.

    Works on Parquet and CSV in a stream; all other columns and the row order stay as they are. The output may
    be given to anyone: epsilon holds whatever they do with it. Spending adds up over releases of the same
    column, so keep a --journal, or give the column a budget in a --store that all its users share.

    \b
    labeldp privatize patients.parquet --label diagnosis --classes none,mild,severe \\
        --epsilon 1 --out private.parquet
    """
    from labeldp.data import tables

    delimiter = "\t" if delimiter == r"\t" else delimiter
    names = _declared(classes)
    if store is None:
        _refuse_idle("a run without --store", key=key)
        charged = _journal(journal, budget)
    else:
        _refuse_idle("--store, which has its own budget", journal=journal, budget=budget)
        charged = account_of(source, label, names, delimiter, store, key, f"privatize into {target.name}")
    certificate = _privatized(
        tables, source, target, quiet or as_json,
        label=label, classes=names, epsilon=epsilon, mechanism=mechanism, k=k,
        prior_columns=_names(prior_columns), delimiter=delimiter, journal=charged, rng=_noise(insecure_seed),
    )  # fmt: skip
    if as_json:
        click.echo(json.dumps(certificate.to_json()))
    elif not quiet:
        click.echo(_summary(certificate, target))


def _privatized(tables: Any, source: Path, target: Path, silent: bool, **settings: Any) -> Certificate:
    with _progress(source.name, silent) as report:
        return tables.privatize(source, target, report=report, **settings)


def _declared(classes: str | None) -> list[str]:
    if not classes:
        raise Refusal(
            "--classes is missing: declare every class the label can take, for example --classes no,yes. They are "
            "not read off the data because which classes occur is itself private"
        )
    return _names(classes)


def _names(text: str | None) -> list[str]:
    """Comma-separated names, spaces after commas dropped; a name with a comma goes between double quotes."""
    return next(csv.reader([text], skipinitialspace=True)) if text else []


def _journal(path: Path | None, budget: float | None) -> Any:
    from labeldp.accounting.journal import Journal
    from labeldp.accounting.ledger import Budget

    if path is None:
        if budget is not None:
            raise Refusal("--budget needs --journal FILE: without a file there is nothing to remember it")
        return None
    return Journal.open(path, None if budget is None else Budget(budget))


def _noise(seed: int | None) -> Any:
    from labeldp.private.randomness import SecureRandom

    return SecureRandom(seed)


@contextmanager
def _progress(what: str, silent: bool) -> Generator[Report | None]:
    """A progress bar on stderr, or nothing."""
    if silent:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(),
        TextColumn("{task.fields[rows]:,} rows"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0, rows=0)
        yield lambda rows, fraction: bar.update(task, completed=fraction, rows=rows)


def _summary(certificate: Certificate, target: Path) -> str:
    from labeldp.accounting.words import at_most, odds_in_words
    from labeldp.data.tables import certificate_path

    rows = sum(group.rows for group in certificate.groups)
    law = (certificate.release or {})["mechanism"]
    lines = [
        f"{target}: {rows:,} labels privatized by {law['mechanism']} at epsilon {at_most(certificate.epsilon)}.",
        odds_in_words(certificate.epsilon, certificate.delta),
    ]
    if law["mechanism"] == "randomized-response":
        kept = 1 / (1 + (law["num_classes"] - 1) * math.exp(-law["epsilon"]))
        lines.append(f"Each label was kept with probability {kept:.1%}; {1 - kept:.1%} are random other classes.")
    if certificate.seeded:
        lines.append("NOT PRIVATE: the noise came from --insecure-seed, so the certificate will not verify.")
    return "\n".join([*lines, f"Check it with: labeldp verify {certificate_path(target)}"])


@cli.command()
@click.argument("file", metavar="FILE|FOLDER", type=click.Path(path_type=Path, exists=True))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(file: Path, as_json: bool) -> None:
    """Recompute a certificate from its ledger and check the file, or the model, it speaks about.

    FILE is a certificate or the artifact beside it; a certificate that speaks about no file, such as a vault's, is
    checked by itself. FOLDER is what labeldp train wrote: all of its files are checked, and that they tell one story.
    Exit code 1 and the reasons when anything is off.
    """
    from labeldp.accounting.words import at_most, odds_in_words
    from labeldp.artifacts.verifying import certificate_of, problems_of

    problems = problems_of(file)
    if as_json:
        click.echo(json.dumps({"file": str(file), "holds": not problems, "problems": list(problems)}))
    elif problems:
        click.echo("\n".join(f"{file}: {problem}" for problem in problems), err=True)
    else:
        claim = certificate_of(file)
        click.echo(f"{file}: the certificate holds, for epsilon {at_most(claim.epsilon)}.")
        click.echo(odds_in_words(claim.epsilon, claim.delta, claim.unit.protects))
    if problems:
        raise click.exceptions.Exit(1)


@cli.command()
@click.option("--out", "folder", default="labeldp-demo", show_default=True, type=click.Path(path_type=Path),
              help="Where to write the model and its report.")  # fmt: skip
@click.option("--epsilon", type=EPSILON, default=1.0, show_default=True)
def demo(folder: Path, epsilon: float) -> None:
    """Train on a bundled real table (Adult census income), beside models without privacy; verify the result."""
    from labeldp.cli_train import _check_device, _training
    from labeldp.demo import run_demo

    _check_device("cpu")
    _training()
    run_demo(folder, epsilon, click.echo)


# --- planning -----------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("table", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--rows", type=click.IntRange(1), help="How many labels there are.  [with a table: counted]")
@click.option("--classes", help="How many classes the label can take, or their names, comma-separated.")
@click.option("--regression", is_flag=True, help="The labels are numbers, not classes.")
@click.option("--epsilon", type=float, required=True, help="Privacy of one label; smaller is more private.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="0 leaves out what needs Gaussian noise.")
@click.option("--features", type=click.IntRange(1), help="Numbers per row of the public features.  [with a table: "
              "guessed from its columns]")  # fmt: skip
@click.option("--modality", type=click.Choice(("images", "table", "text", "embeddings")),
              help="What the features are.  [default: images; with a table: table]")  # fmt: skip
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True,
              help="Where you would train.")  # fmt: skip
@click.option("--hours", type=float, default=4.0, show_default=True, help="Recipes that train longer are not chosen.")
@click.option("--rows-per-user", type=click.IntRange(1), help="Protect all labels of a user together; the most rows "
              "one of them has.")  # fmt: skip
@click.option("--label", help="With a table: the secret column, which is not read.")
@click.option("--delimiter", help="Of a CSV file.  [default: a comma; a tab for .tsv]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    table: Path | None,
    rows: int | None,
    classes: str | None,
    regression: bool,
    epsilon: float,
    delta: float,
    features: int | None,
    modality: str | None,
    device: str,
    hours: float,
    rows_per_user: int | None,
    label: str | None,
    delimiter: str | None,
    as_json: bool,
) -> None:
    """Which recipe is expected to do best, and why: from public numbers, before anything is spent.

    Give the numbers, or a Parquet or CSV file: then rows and public columns are counted, and the label column is not
    looked at.

    \b
    labeldp plan --rows 60000 --classes 10 --epsilon 0.1 --features 784 --device cuda
    labeldp plan patients.parquet --label diagnosis --classes none,mild,severe --epsilon 1
    """
    from labeldp.choosing import choose

    number = None if regression else _class_count(classes)
    if regression and classes:
        raise Refusal("--classes means nothing with --regression; leave one of them out")
    if table is not None:
        rows, features = _table_size(table, rows, features, label, delimiter)
    elif label is not None or delimiter is not None:
        raise Refusal("--label and --delimiter belong to a table; name its file, or leave them out")
    elif rows is None:
        raise Refusal("give --rows, the number of labels, or the file of a table to count them in")
    choice = choose(
        rows, number, epsilon, delta,
        feature_dim=features, modality=modality or ("images" if table is None else "table"), device=device,
        rows_per_user=rows_per_user, hours=hours,
    )  # fmt: skip
    if as_json:
        click.echo(json.dumps(choice.to_json()))
        return
    from labeldp.choosing.show import show

    show(choice)


def _class_count(classes: str | None) -> int:
    if not classes:
        raise Refusal(
            "--classes is missing: say how many classes the label can take, for example --classes 3 or --classes "
            "none,mild,severe. They are not counted in the data, because which classes occur is itself private; for "
            "labels that are numbers, give --regression"
        )
    return int(classes) if classes.strip().isdecimal() else len(_names(classes))


def _table_size(
    table: Path, rows: int | None, features: int | None, label: str | None, delimiter: str | None
) -> tuple[int, int]:
    from labeldp.choosing.shape import public_shape

    if label is None:
        raise Refusal("--label is missing: name the secret column, so that it is left out of what is looked at")
    if rows is not None:
        raise Refusal(f"--rows means nothing with a table: its rows are counted in {table.name}; leave it out")
    shape = public_shape(table, label, "\t" if delimiter == r"\t" else delimiter)
    return shape.num_rows, features or shape.feature_dim


# --- experiments --------------------------------------------------------------------------------------------------


@cli.command("reproduce")
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
    from labeldp.reproduce import known_tables, reproduce

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


# --- models, budgets and audits, in files of their own ------------------------------------------------------------

for _command in (train, predict, report, budget, audit):
    cli.add_command(_command)
takes_config(cli)
cli.add_command(completion)
