"""The first minute with the library: a real table, a certified model, and what privacy cost beside not having it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labeldp.results.words import at_most

if TYPE_CHECKING:
    import numpy as np

    from labeldp.core.certificate import Certificate
    from labeldp.data.door import OpenLabels, OpenRows, PrivateData
    from labeldp.results.folder import Result
    from labeldp.results.training import Model


Say = Callable[[str], None]


def run_demo(folder: Path, epsilon: float, say: Say) -> None:
    """Train on Adult's secret incomes at this epsilon, compare on open test labels, write, verify and report."""
    from labeldp.results.card import promise
    from labeldp.results.facts import gather
    from labeldp.results.report import write_page
    from labeldp.results.verify import verify_folder

    folder.mkdir(parents=True, exist_ok=True)
    target, page = folder / "model", folder / "report.html"
    certificate, open_accuracy = _trained(target, epsilon, say)
    say(f"\nWhat is promised (epsilon {at_most(certificate.epsilon)}, delta {at_most(certificate.delta, 3)})")
    say(
        f"  {promise(certificate)}\n  It holds for everyone in the table, whatever anyone knows or does with the model."
    )
    problems = verify_folder(target)
    if problems:
        raise ValueError("; ".join(problems))
    write_page(gather(target, non_private=open_accuracy), page)
    say(f"\nWritten, and verified: the certificate holds\n  {target}/  the model, its certificate and its card")
    say(f"  {page}  the same as a page, for a browser\n\nYour own table, in three commands:")
    say(f"  labeldp train my.csv --label Y --classes A,B --epsilon {epsilon:g} --out my-model")
    say("  labeldp verify my-model\n  labeldp predict my-model new.csv --out predictions.csv")


def _trained(target: Path, epsilon: float, say: Say) -> tuple[Certificate, float]:
    """The certificate of the model in its folder, and the accuracy without privacy."""
    from labeldp.data.door import read
    from labeldp.results.folder import drafting
    from labeldp.results.training import result_of, trained

    begun = time.perf_counter()
    with drafting(target) as draft:
        data = read("adult")
        secret = f"secret label '{data.label}' ∈ {{{', '.join(data.classes)}}}"
        say(f"Adult census income: {len(data):,} people, {len(data.described)} public columns, {secret}")
        model = trained(data, epsilon)
        run = {"table": "adult", "epsilon": epsilon, "device": "cpu", "seed": 0}
        result = result_of(data, model, epsilon, None, run)
        certificate = draft.write(result)
        trained_by = (
            f"Trained at epsilon {epsilon:g} in {time.perf_counter() - begun:.0f} s by {result.story.method}, chosen"
        )
        say(f"{trained_by} because\n  {result.story.reason}")
        table, open_accuracy = _comparison(data, model, result, epsilon)
        say(f"\nOn {len(_test(data)):,} other people, whose incomes are open\n{table}")
    return certificate, open_accuracy


def _comparison(data: PrivateData, model: Model, result: Result, epsilon: float) -> tuple[str, float]:
    """The private model between two others on the same public features. Adult is published, so its labels may open."""
    from labeldp.mechanisms.responses import RandomizedResponse

    test = _test(data)
    rows, others = (_encoded(model, features) for features in (data.features, test.features))
    responses = data.vault.release(RandomizedResponse(epsilon, 2)).hard()
    naive = _logistic(rows, responses, others, test.labels)
    open_model = _logistic(rows, data.vault.reveal("Adult is published: what privacy costs"), others, test.labels)
    lines = [
        (f"labeldp, epsilon {epsilon:g} ({result.story.method})", result.metrics["test"]),
        (f"randomized response at epsilon {epsilon:g}, logistic regression", naive),
        ("no privacy, logistic regression", open_model),
    ]
    rows_of_text = [f"  {name:<54} {found['accuracy']:>8.1%}  {found['auc']:.3f}" for name, found in lines]
    return "\n".join([f"  {'':<54} accuracy    AUC", *rows_of_text]), open_model["accuracy"]


def _test(data: PrivateData) -> OpenRows:
    if data.test is None:
        raise ValueError(f"{data.name} has no open rows to compare on")
    return data.test


def _encoded(model: Model, features: Any) -> np.ndarray:
    """What the private model sees of the rows, so that the comparison is about labels alone."""
    estimator = model.estimator
    return estimator._encode(estimator._read(features, reset=False))[0].cpu().numpy()


def _logistic(rows: np.ndarray, codes: np.ndarray, others: np.ndarray, truth: OpenLabels) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression

    from labeldp.results.measure import measured

    fitted = LogisticRegression(C=1.0, max_iter=1000, tol=1e-3).fit(rows, codes)
    return measured(fitted.predict_proba(others), truth.values)
