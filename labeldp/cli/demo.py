"""Run `labeldp demo`: a real table, a certified model, and what privacy cost beside not having it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labeldp.cli.options import EPSILON, check_device, needed_training
from labeldp.cli.progress import of_training

if TYPE_CHECKING:
    import numpy as np

    from labeldp.data.door import OpenLabels, PrivateData
    from labeldp.results.model import Model


@click.command()
@click.option("--out", "folder", default="labeldp-demo", show_default=True, type=click.Path(path_type=Path),
              help="Where to write the model and its report.")  # fmt: skip
@click.option("--epsilon", type=EPSILON, default=1.0, show_default=True, help="Privacy of one label; smaller is more "
              "private.")  # fmt: skip
def demo(folder: Path, epsilon: float) -> None:
    """Train on a bundled table, and compare.

    The table is Adult census income. The model is compared with one without privacy and with plain randomized response,
    and the result is verified.
    """
    check_device("cpu")
    training = needed_training()
    from labeldp.data.door import read
    from labeldp.results.card import at_most, promise
    from labeldp.results.facts import gather
    from labeldp.results.folder import drafting
    from labeldp.results.report import write_page
    from labeldp.results.verify import verify_folder

    folder.mkdir(parents=True, exist_ok=True)
    target, page, begun = folder / "model", folder / "report.html", time.perf_counter()
    with drafting(target) as draft:
        data = read("adult")
        secret = f"secret label '{data.label}' ∈ {{{', '.join(data.classes)}}}"
        click.echo(f"Adult census income: {len(data):,} people, {len(data.described)} public columns, {secret}")
        with of_training("adult", epsilon) as report:
            model = training.trained(data, epsilon, holdout=0, report=report)
        run = {"table": "adult", "epsilon": epsilon, "device": "cpu", "seed": 0, "holdout": 0}
        result = training.result_of(data, model, epsilon, None, run)
        certificate, method = draft.write(result), result.story.method
        seconds = time.perf_counter() - begun
        click.echo(f"Trained at epsilon {epsilon:g} in {seconds:.0f} s by {method}. Why this method:")
        click.echo(f"  {result.story.reason}\n\nOn {len(data.test or ()):,} other people, whose incomes are open")
        naive, without = _others(data, model, epsilon)
        click.echo(f"  {'':<54} accuracy    AUC")
        for name, found in (
            (f"labeldp, epsilon {epsilon:g} ({method})", result.metrics["test"]),
            (f"randomized response at epsilon {epsilon:g}, logistic regression", naive),
            ("no privacy, logistic regression", without),
        ):
            click.echo(f"  {name:<54} {found['accuracy']:>8.1%}  {found['auc']:.3f}")
    click.echo(f"\nWhat is promised (epsilon {at_most(certificate.epsilon)}, delta {at_most(certificate.delta, 3)})")
    click.echo(f"  {promise(certificate)}")
    click.echo("  This holds for every person in the table, whatever others know or do with the model.")
    problems = verify_folder(target)
    if problems:
        raise ValueError("; ".join(problems))
    write_page(gather(target, non_private=without["accuracy"]), page)
    click.echo(f"\nWritten and verified:\n  {target}/  the model, its certificate and its card")
    click.echo(f"  {page}  the same as a page for a browser\n\nYour own table, in three commands:")
    click.echo(f"  labeldp train my.csv --label Y --classes A,B --epsilon {epsilon:g} --out my-model")
    click.echo("  labeldp verify my-model\n  labeldp predict my-model new.csv --out predictions.csv")


def _others(data: PrivateData, model: Model, epsilon: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure logistic regression on randomized responses, and on the true labels: Adult is published.

    Both see the rows as the private model does, so that the comparison is about labels alone.
    """
    from labeldp.core.vault import LabelVault
    from labeldp.mechanisms.responses import RandomizedResponse

    if data.test is None or not isinstance(data.vault, LabelVault):
        raise ValueError(f"{data.name} has no open rows to compare on")
    estimator = model.estimator
    rows, others = (
        estimator._encode(estimator._read(features, reset=False))[0].cpu().numpy()
        for features in (data.features, data.test.features)
    )
    responses = data.vault.release(RandomizedResponse(epsilon, 2)).hard()
    truth = data.vault.reveal("Adult is published: what privacy costs")
    return _logistic(rows, responses, others, data.test.labels), _logistic(rows, truth, others, data.test.labels)


def _logistic(rows: np.ndarray, codes: np.ndarray, others: np.ndarray, truth: OpenLabels) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression

    from labeldp.results.measure import measured

    fitted = LogisticRegression(C=1.0, max_iter=1000, tol=1e-3).fit(rows, codes)
    return measured(fitted.predict_proba(others), truth.values)
