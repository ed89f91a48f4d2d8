"""From a source to a result: train, measure what may be measured, tell the story."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from labeldp.artifacts.card import Story
from labeldp.artifacts.folder import Result
from labeldp.artifacts.measures import answers_right, measured, measured_numbers
from labeldp.artifacts.models import Model, network_for
from labeldp.artifacts.sources import Rows, Source
from labeldp.choosing.choice import choose
from labeldp.estimators import LabelDPClassifier, LabelDPRegressor
from labeldp.estimators.methods import trains_net
from labeldp.estimators.progress import Recorder

Report = Callable[[Any], None]


def trained(
    source: Source,
    epsilon: float,
    *,
    delta: float | None = None,
    method: str = "auto",
    device: str = "cpu",
    seed: int = 0,
    store: Any = None,
    note: str | None = None,
    report: Report | None = None,
) -> Model:
    """A model of this source's labels, at most (ε, δ) spent on them; see `LabelDPClassifier` and `LabelDPRegressor`."""
    why, network = "It was asked for by name.", None
    if source.columns is None:
        method, why = _for_pictures(source, epsilon, delta, method, device, why)
        network = network_for(source.train.features.shape) if trains_net(method) else None
    recorder = Recorder(report)
    told = {"store": store, "note": note, "report": recorder}
    settings: dict[str, Any] = {"device": device, "random_state": seed, **told}
    if network is not None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            settings["model"] = network.made(len(source.classes))
    if source.bounds is None:
        estimator = LabelDPClassifier(epsilon, delta, method, classes=range(len(source.classes)), **settings)
    else:
        estimator = LabelDPRegressor(epsilon, source.bounds, delta, method, **settings)
    estimator.fit(source.train.features, source.train.given)
    why = why if estimator.choice_ is None else estimator.choice_.reason
    name, curves = None if network is None else network.name, tuple(recorder.curves())
    return Model(estimator, source.classes, source.columns, source.label, name, why, curves)


def _for_pictures(
    source: Source, epsilon: float, delta: float | None, method: str, device: str, why: str
) -> tuple[str, str]:
    """Which method, and why. Chosen here, because only some methods want a network to be brought."""
    if method != "auto":
        return method, why
    pixels, place = int(np.prod(source.train.features.shape[1:])), "cuda" if device.startswith("cuda") else "cpu"
    allowed = 1e-5 if delta is None else delta
    choice = choose(
        len(source.train), len(source.classes), epsilon, allowed, feature_dim=pixels, modality="images", device=place
    )
    return choice.recipe, choice.reason


def result_of(source: Source, model: Model, epsilon: float, delta: float | None, run: Mapping[str, Any]) -> Result:
    """All that goes into a folder; the run gets the method and the δ that were settled on."""
    estimator = model.estimator
    certificate, method = estimator.certificate_, str(estimator.method_)
    asked = certificate.delta if delta is None else delta
    story = Story(
        source.name,
        source.label,
        source.classes or None,
        len(source.train),
        source.described,
        method,
        model.why,
        epsilon,
        asked,
        source.bounds,
    )
    settled = {**run, "method": method, **({"delta": asked} if asked > 0 else {})}
    described, tensors = model.parts()
    return Result(model.kind, described, tensors, certificate, {"train": settled}, story, metrics_of(source, model))


def metrics_of(source: Source, model: Model) -> dict[str, Any]:
    """From the certificate, from public rows and the private model, and from open labels; never from secret ones."""
    certificate = model.estimator.certificate_
    spent = certificate.epsilon
    found: dict[str, Any] = {
        "epsilon": "infinity" if math.isinf(spent) else spent,
        "delta": certificate.delta,
        "rows": len(source.train),
        **(_of_classes(source, model, spent) if source.bounds is None else _of_numbers(source, model)),
    }
    if model.curves:
        # Of losses on private targets and of the ledger; see `Recorder`, which says why they are free.
        found["curves"] = list(model.curves)
    if source.test is not None:
        found["test"] = _on_open_labels(model, source.test)
    return found


def _of_classes(source: Source, model: Model, spent: float) -> dict[str, Any]:
    sure = model.estimator.predict_proba(source.train.features).max(axis=1).mean()
    expected = {
        "mean_confidence_on_training_rows": round(float(sure), 4),
        "share_right_of_plain_randomized_response": round(answers_right(spent, len(source.classes)), 4),
    }
    return {"classes": len(source.classes), "expected": expected}


def _of_numbers(source: Source, model: Model) -> dict[str, Any]:
    predicted = model.estimator.predict(source.train.features)
    expected = {
        "mean_prediction_on_training_rows": float(f"{predicted.mean():.6g}"),
        "spread_of_predictions_on_training_rows": float(f"{predicted.std():.6g}"),
    }
    return {"bounds": list(source.bounds or ()), "expected": expected}


def _on_open_labels(model: Model, rows: Rows) -> dict[str, float | int]:
    if model.classes:
        return measured(model.estimator.predict_proba(rows.features), rows.given)
    return measured_numbers(model.estimator.predict(rows.features), rows.given)
