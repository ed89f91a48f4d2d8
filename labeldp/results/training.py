"""From a source to a result: train, measure what may be measured, tell the story."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from labeldp.choosing.choice import choose
from labeldp.data.door import Column, Rows, Source, conformed
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.estimator.methods import trains_net
from labeldp.estimator.progress import Recorder
from labeldp.estimator.regressor import LabelDPRegressor
from labeldp.results.card import Story
from labeldp.results.folder import ArtifactError, Result, read
from labeldp.results.measure import measured, measured_numbers, responses_right

# --- models --------------------
#
# A trained estimator with what a folder must know beside it: columns by name, and the names of the classes.


KIND, REGRESSOR = "LabelDPClassifier", "LabelDPRegressor"


@dataclass(frozen=True, eq=False)
class Model:
    """Predicts class names from tables with the columns it was trained on, or from pictures; or numbers from tables.

    Args:
        estimator: a fitted `LabelDPClassifier` of the classes 0 … K − 1, or a fitted `LabelDPRegressor`.
        classes: their names; empty for numbers.
        columns: of a table; None for pictures.
        label: what is predicted; empty for pictures.
        network: the name of the network for pictures, where one was trained.
        why: this method and no other.
        curves: how the training went, as `labeldp.estimator.progress.Recorder` has it; empty for a model of a folder.
    """

    estimator: Any
    classes: tuple[str, ...]
    columns: tuple[Column, ...] | None
    label: str
    network: str | None = None
    why: str = ""
    curves: tuple[Mapping[str, Any], ...] = ()

    @property
    def kind(self) -> str:
        """The class of the estimator."""
        return KIND if self.classes else REGRESSOR

    def probabilities(self, inputs: pa.Table | npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """P(class | row), (n, K). A table may have its columns in any order, and others beside them."""
        if not self.classes:
            raise ArtifactError("the model predicts a number, which has no probabilities; call predict")
        return self.estimator.predict_proba(self._rows(inputs))

    def predict(self, inputs: pa.Table | npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The likeliest class of each row, by name; or its expected number."""
        if not self.classes:
            return self.estimator.predict(self._rows(inputs))
        return np.asarray(self.classes)[self.probabilities(inputs).argmax(axis=1)]

    def _rows(self, inputs: pa.Table | npt.NDArray[Any]) -> Any:
        return inputs if self.columns is None else conformed(inputs, self.columns)

    def parts(self) -> tuple[dict[str, Any], Mapping[str, npt.NDArray[Any]]]:
        """A description in plain values, and tensors."""
        config, tensors = self.estimator.to_parts()
        columns = None if self.columns is None else [column.to_json() for column in self.columns]
        told = {"label": self.label, "classes": list(self.classes), "columns": columns, "network": self.network}
        return {**told, "estimator": config}, tensors


@dataclass(frozen=True)
class Network:
    """A network for pictures, by name."""

    name: str

    def made(self, num_classes: int) -> Any:
        """With weights from torch's generator."""
        from labeldp.models import zoo

        return getattr(zoo, self.name)(num_classes)


# By the shape of one picture. Without batch norm, so that every method can train them.
_NETWORKS: dict[tuple[int, ...], str] = {(1, 28, 28): "mnist_cnn", (3, 32, 32): "cifar_cnn"}


def network_for(shape: Sequence[int]) -> Network:
    """The network for pictures (n, channels, height, width)."""
    try:
        return Network(_NETWORKS[tuple(shape[1:])])
    except KeyError:
        raise ArtifactError(
            f"there is no network for pictures of shape {tuple(shape[1:])}; use method one_shot"
        ) from None


def load(folder: Path | str, device: str | None = None) -> Model:
    """The model of a folder that `labeldp train` wrote; refused where it is not the certified one."""
    return rebuilt(read(Path(folder)), device)


def rebuilt(result: Result, device: str | None = None) -> Model:
    """The model of a result, ready to predict on this device (the processor when None)."""
    from labeldp.estimator.classifier import LabelDPClassifier
    from labeldp.estimator.regressor import LabelDPRegressor

    known = {KIND: LabelDPClassifier, REGRESSOR: LabelDPRegressor}
    if result.kind not in known:
        raise ArtifactError(f"the folder holds a {result.kind}, which this version cannot rebuild; use a newer one")
    described = result.model
    name, classes = described["network"], tuple(described["classes"])
    if name is not None and name not in _NETWORKS.values():
        raise ArtifactError(f"the folder's network, {name!r}, is not known to this version; use a newer one")
    network = None if name is None else Network(name).made(len(classes))
    estimator = known[result.kind].from_parts(
        described["estimator"], dict(result.tensors), model=network, certificate=result.certificate, device=device
    )
    return Model(estimator, classes, _columns(described["columns"]), described["label"], name, result.story.reason)


def _columns(described: Sequence[Mapping[str, Any]] | None) -> tuple[Column, ...] | None:
    return None if described is None else tuple(Column(**column) for column in described)


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
        method, why = _for_images(source, epsilon, delta, method, device, why)
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


def _for_images(
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
        "share_right_of_plain_randomized_response": round(responses_right(spent, len(source.classes)), 4),
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
