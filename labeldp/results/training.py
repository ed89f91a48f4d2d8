"""From private data to a result: train, measure what may be measured, and describe it.

A `Model` is a trained estimator with what a folder must know beside it: columns by name, and the names of the classes.
"""

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
from labeldp.data.columns import Column, conformed
from labeldp.data.door import PrivateData
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.estimator.progress import Recorder
from labeldp.estimator.regressor import LabelDPRegressor
from labeldp.estimator.serialise import PartsError
from labeldp.recipes.catalogue import AUTO, BY_KEY, find
from labeldp.results.card import Story
from labeldp.results.folder import ArtifactError, Result, read
from labeldp.results.measure import measured, measured_numbers, responses_right

KIND, REGRESSOR = "LabelDPClassifier", "LabelDPRegressor"
Report = Callable[[Any], None]


@dataclass(frozen=True, eq=False)
class Model:
    """Predicts class names from tables with the columns it was trained on, or from images; or numbers from tables.

    Args:
        estimator: a fitted `LabelDPClassifier` of the classes 0 … K − 1, or a fitted `LabelDPRegressor`.
        classes: their names; empty for numbers.
        columns: of a table; None for images.
        label: what is predicted; empty for images.
        network: the name of the network for images, where one was trained.
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
        own = {"label": self.label, "classes": list(self.classes), "columns": columns, "network": self.network}
        return {**own, "estimator": config}, tensors


@dataclass(frozen=True)
class Network:
    """A network for images, by name."""

    name: str

    def made(self, num_classes: int) -> Any:
        """With weights from torch's generator."""
        from labeldp.models import zoo

        return getattr(zoo, self.name)(num_classes)


# By the shape of one image. Without batch norm, so that every method can train them.
_NETWORKS: dict[tuple[int, ...], str] = {(1, 28, 28): "mnist_cnn", (3, 32, 32): "cifar_cnn"}


def network_for(shape: Sequence[int]) -> Network:
    """Return the network for images (n, channels, height, width)."""
    try:
        return Network(_NETWORKS[tuple(shape[1:])])
    except KeyError:
        raise ArtifactError(
            f"there is no network for images of shape {tuple(shape[1:])}; use a method that trains none, such as "
            f"{next(recipe.key for recipe in BY_KEY.values() if not recipe.network)}"
        ) from None


def load(folder: Path | str, device: str | None = None) -> Model:
    """Return the model of a folder that `labeldp train` wrote; refused where it is not the certified one."""
    result = read(Path(folder))
    try:
        return rebuilt(result, device)
    except (ArtifactError, PartsError):
        raise
    except Exception as error:
        # A stranger's description may be anything; whatever it is, the outcome is a sentence.
        raise ArtifactError(
            f"the model in {str(folder)!r} cannot be rebuilt from its description ({type(error).__name__}); restore "
            "the folder from a copy, or train again"
        ) from None


def rebuilt(result: Result, device: str | None = None) -> Model:
    """Return the model of a result, ready to predict on this device (the processor when None)."""
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
    columns = None if described["columns"] is None else tuple(Column(**column) for column in described["columns"])
    return Model(estimator, classes, columns, described["label"], name, result.story.reason)


def trained(
    data: PrivateData,
    epsilon: float,
    *,
    delta: float | None = None,
    method: str = AUTO,
    device: str = "cpu",
    seed: int = 0,
    store: Any = None,
    note: str | None = None,
    report: Report | None = None,
    folder: Path | None = None,
) -> Model:
    """Train a model on these labels, at most (ε, δ) spent on them; see `LabelDPClassifier` and `LabelDPRegressor`.

    A folder keeps what is paid for as it is drawn, so that a run that was stopped goes on (`labeldp.results.resume`).
    """
    why, network = "It was requested by name.", None
    if data.columns is None:
        method, why = _for_images(data, epsilon, delta, method, device, why)
        network = network_for(data.features.shape) if BY_KEY[method].network else None
    recorder = Recorder(report)
    settings: dict[str, Any] = {
        "device": device,
        "random_state": seed,
        "store": store,
        "note": note,
        "report": recorder,
        "settings": None if folder is None else {"folder": folder},
    }
    if network is not None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            settings["model"] = network.made(len(data.classes))
    if data.bounds is None:
        estimator = LabelDPClassifier(epsilon, delta, method, classes=range(len(data.classes)), **settings)
    else:
        estimator = LabelDPRegressor(epsilon, data.bounds, delta, method, **settings)
    estimator.fit(data.features, data.vault)
    why = why if estimator.choice_ is None else estimator.choice_.reason
    name, curves = None if network is None else network.name, tuple(recorder.curves())
    return Model(estimator, data.classes, data.columns, data.label, name, why, curves)


def _for_images(
    data: PrivateData, epsilon: float, delta: float | None, method: str, device: str, why: str
) -> tuple[str, str]:
    """Return which method, and why. It is chosen here, because only some methods want a network to be brought."""
    if method != AUTO:
        return find(method).key, why
    pixels, place = int(np.prod(data.features.shape[1:])), "cuda" if device.startswith("cuda") else "cpu"
    allowed = 1e-5 if delta is None else delta
    choice = choose(len(data), len(data.classes), epsilon, allowed, feature_dim=pixels, modality="images", device=place)
    return choice.recipe, choice.reason


def result_of(data: PrivateData, model: Model, epsilon: float, delta: float | None, run: Mapping[str, Any]) -> Result:
    """Return all that goes into a folder; the run gets the method and the δ that were settled on."""
    estimator = model.estimator
    certificate, method = estimator.certificate_, str(estimator.method_)
    allowed = certificate.delta if delta is None else delta
    story = Story(
        data.name,
        data.label,
        data.classes or None,
        len(data),
        data.described,
        method,
        model.why,
        epsilon,
        allowed,
        data.bounds,
    )
    settled = {**run, "method": method, **({"delta": allowed} if allowed > 0 else {})}
    described, tensors = model.parts()
    return Result(model.kind, described, tensors, certificate, {"train": settled}, story, metrics_of(data, model))


def metrics_of(data: PrivateData, model: Model) -> dict[str, Any]:
    """Measure by the certificate, public rows with the private model, and open labels; never by secret ones."""
    certificate = model.estimator.certificate_
    spent = certificate.epsilon
    found: dict[str, Any] = {
        "epsilon": "infinity" if math.isinf(spent) else spent,
        "delta": certificate.delta,
        "rows": len(data),
        **(_of_classes(data, model, spent) if data.bounds is None else _of_numbers(data, model)),
    }
    if model.curves:
        # Of losses on private targets and of the ledger; see `Recorder`, which says why they are free.
        found["curves"] = list(model.curves)
    if data.test is not None:
        features, labels = data.test.features, data.test.labels.values
        if model.classes:
            found["test"] = measured(model.estimator.predict_proba(features), labels)
        else:
            found["test"] = measured_numbers(model.estimator.predict(features), labels)
        if data.test.left_out:
            found["test"]["training_rows_left_out"] = data.test.left_out
    return found


def _of_classes(data: PrivateData, model: Model, spent: float) -> dict[str, Any]:
    sure = model.estimator.predict_proba(data.features).max(axis=1).mean()
    expected = {
        "mean_confidence_on_training_rows": round(float(sure), 4),
        "share_right_of_plain_randomized_response": round(responses_right(spent, len(data.classes)), 4),
    }
    return {"classes": len(data.classes), "expected": expected}


def _of_numbers(data: PrivateData, model: Model) -> dict[str, Any]:
    predicted = model.estimator.predict(data.features)
    expected = {
        "mean_prediction_on_training_rows": float(f"{predicted.mean():.6g}"),
        "spread_of_predictions_on_training_rows": float(f"{predicted.std():.6g}"),
    }
    return {"bounds": list(data.bounds or ()), "expected": expected}
