"""Results to report on: small, made by real releases."""

import dataclasses
import json

import numpy as np

from labeldp.core.events import PoissonGaussian
from labeldp.core.ledger import Budget
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.results.card import Story
from labeldp.results.folder import Result, drafting

CURVES = [{"name": "training loss", "x_name": "epoch", "x": [1, 2, 3, 4], "y": [2.3, 1.1, 0.9, 0.85]}]
AUDIT = {
    "bound": 0.41, "confidence": 0.999, "epsilon": 1.0, "delta": 0.0, "p_value": 1.0, "attack": "likelihood",
    "correct": 600, "guesses": 1000, "canaries": 1000, "assumes": "",
}  # fmt: skip


def result(epsilon=1.0, classes=("no", "yes"), method="forward", images=False, test=0.84, rng=None, rows=3000, **more):
    labels = np.arange(rows) % len(classes)
    vault = LabelVault(labels, len(classes), Budget(epsilon), rng=rng)
    responses = vault.release(RandomizedResponse(epsilon, len(classes)))
    certificate = vault.certificate(0.0)
    features = ("1 × 28 × 28 pixels",) if images else ("age", "town")
    data, label = ("fashion_mnist", "") if images else ("visits.csv", "y")
    story = Story(data, label, classes, rows, features, method, "It was requested by name.", epsilon, 0.0)
    run = {"train": {"table": data, "epsilon": epsilon, "method": method}}
    metrics = {"epsilon": certificate.epsilon, "delta": 0.0, "expected": {"answers_right": 0.73}, **more}
    if test is not None:
        metrics["test"] = {"rows": 500, "accuracy": test, "auc": 0.9, "log_loss": 0.4}
    shares = np.bincount(responses.hard(), minlength=len(classes)) / rows
    return Result("Shares", {"epsilon": epsilon}, {"shares": shares}, certificate, run, story, metrics)


def saved(target, made=None):
    with drafting(target) as draft:
        draft.write(result() if made is None else made)
    return target


def many_looks(epsilon=2.0, delta=1e-6, rows=2000):
    """A result whose ledger has two histories, one of them of many noisy sums."""
    made = result(epsilon=1.0, rows=rows)
    from labeldp.core.certificate import SECURE_NOISE, certify
    from labeldp.core.ledger import Ledger

    steps = PoissonGaussian(noise_std=8.0, radius=1.0, diameter=2.0, rate=0.1)
    ledger = (
        Ledger(rows).charge(steps, times=200).charge(next(iter(made.certificate.groups[0].queries)).event, rows=[0, 1])
    )
    certificate = certify(ledger.groups(), delta, noise=SECURE_NOISE, seeded=False)
    story = dataclasses.replace(
        made.story, epsilon=max(epsilon, certificate.epsilon), delta=delta, method="labeldp_pro"
    )
    metrics = {**made.metrics, "epsilon": certificate.epsilon, "delta": delta, "curves": CURVES}
    return dataclasses.replace(made, certificate=certificate, story=story, metrics=metrics, run={"train": {}})


def audited(folder, **changes):
    path = folder / "audit-of-this.json"
    path.write_text(json.dumps({**AUDIT, **changes}))
    return path
