"""A trained estimator with what a folder must know beside it: columns by name, and the names of the classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from labeldp.artifacts.columns import Column, conformed
from labeldp.artifacts.folder import ArtifactError, Result, read

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
        curves: how the training went, as `labeldp.estimators.progress.Recorder` has it; empty for a model of a folder.
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
    from labeldp.estimators import LabelDPClassifier, LabelDPRegressor

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
