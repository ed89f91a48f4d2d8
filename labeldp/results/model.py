"""The model of a result: trained on private data, described for a folder, rebuilt from one.

A `Model` is a fitted estimator with what a folder must know beside it: columns by name, and the names of the classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from labeldp.budgets.calibrate import usual_delta
from labeldp.choosing.choice import Choice, choose
from labeldp.data.columns import conformed
from labeldp.data.door import PrivateData
from labeldp.data.kinds import Column
from labeldp.data.own_images import ImageFormat
from labeldp.data.released import ReleasedLabels
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.estimator.regressor import LabelDPRegressor
from labeldp.estimator.serialise import PartsError
from labeldp.recipes.catalogue import AUTO, BY_KEY, find
from labeldp.results import folder as folders
from labeldp.results.card import Story
from labeldp.results.folder import ArtifactError, Result
from labeldp.results.measure import metrics_of

KIND, REGRESSOR = "LabelDPClassifier", "LabelDPRegressor"
Report = Callable[[Any], None]
# By the shape of one image. Without batch norm, so that every method can train them.
_NETWORKS: dict[tuple[int, ...], str] = {(1, 28, 28): "mnist_cnn", (3, 32, 32): "cifar_cnn"}


@dataclass(frozen=True, eq=False)
class Model:
    """Predicts class names from tables with the columns it was trained on, or from images; or numbers from tables.

    Args:
        estimator: a fitted `LabelDPClassifier` of the classes 0 … K − 1, or a fitted `LabelDPRegressor`.
        classes: their names; empty for numbers.
        columns: of a table; None for images.
        label: what is predicted; empty where folders are the classes.
        network: the name of the network for images, where one was trained.
        why: this method and no other.
        problem: what the method was chosen for, as arguments of `labeldp.choose`; empty where it was named.
        images: how they are read from files; None for tables and named data sets.
    """

    estimator: Any
    classes: tuple[str, ...]
    columns: tuple[Column, ...] | None
    label: str
    network: str | None = None
    why: str = ""
    problem: Mapping[str, Any] = field(default_factory=dict[str, Any])
    images: ImageFormat | None = None

    @property
    def kind(self) -> str:
        """The class of the estimator."""
        return KIND if self.classes else REGRESSOR

    def probabilities(self, inputs: pa.Table | npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return P(class | row), (n, K). A table may have its columns in any order, and others beside them."""
        if not self.classes:
            raise ArtifactError("the model predicts a number, which has no probabilities; call predict")
        return self.estimator.predict_proba(self._rows(inputs))

    def predict(self, inputs: pa.Table | npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the likeliest class of each row, by name; or its expected number."""
        if not self.classes:
            return self.estimator.predict(self._rows(inputs))
        return np.asarray(self.classes)[self.probabilities(inputs).argmax(axis=1)]

    def _rows(self, inputs: pa.Table | npt.NDArray[Any]) -> Any:
        return inputs if self.columns is None else conformed(inputs, self.columns)

    def parts(self) -> tuple[dict[str, Any], Mapping[str, npt.NDArray[Any]]]:
        """Return a description in plain values, and tensors."""
        config, tensors = self.estimator.to_parts()
        columns = None if self.columns is None else [column.to_json() for column in self.columns]
        own = {"label": self.label, "classes": list(self.classes), "columns": columns, "network": self.network}
        read = {} if self.images is None else {"images": asdict(self.images)}
        return {**own, **read, "estimator": config}, tensors


@dataclass(frozen=True)
class Network:
    """A network for images, by name."""

    name: str

    def made(self, num_classes: int) -> Any:
        """Return the network, with weights from torch's generator."""
        from labeldp.models import zoo

        return getattr(zoo, self.name)(num_classes)


def network_for(shape: Sequence[int]) -> Network:
    """Return the network for images (n, channels, height, width)."""
    try:
        return Network(_NETWORKS[tuple(shape[1:])])
    except KeyError:
        raise ArtifactError(
            f"there is no network for images of shape {tuple(shape[1:])}; use a method that trains none, such as "
            f"{next(recipe.key for recipe in BY_KEY.values() if not recipe.network)}"
        ) from None


# -- training ----------------------------------------------------------------------------------------------------------


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
    holdout: float | None = None,
    weights: Mapping[str, float] | None = None,
    encoder: Any = None,
) -> Model:
    """Train a model on these labels, at most (ε, δ) spent on them; see `LabelDPClassifier` and `LabelDPRegressor`.

    `weights` say how much classes count, by name; see `class_weight` there. A folder keeps what is paid for as it is
    drawn, so that a run that was stopped goes on (`RunFolder`). From responses that were released before the model
    learns for nothing; ε has to allow what they were released at. An `encoder` makes features of images
    (`labeldp.features.encoders.load_encoder`).
    """
    if encoder is not None and data.columns is not None:
        raise ArtifactError("--encoder makes features of images, and there are none; leave it out")
    why, network, choice = "It was requested by name.", None, None
    if data.columns is None:
        method, why, choice = method_for_images(data, epsilon, delta, method, device, encoder is not None)
        network = network_for(data.features.shape) if method != AUTO and BY_KEY[method].network else None
    settings: dict[str, Any] = {
        "holdout": holdout,
        "device": device,
        "random_state": seed,
        "store": store,
        "note": note,
        "report": report,
        "settings": None if folder is None else {"folder": folder},
        "features": encoder,
    }
    if network is not None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            settings["model"] = network.made(len(data.classes))
    if data.bounds is None:
        counts = weights and {data.classes.index(name): weight for name, weight in weights.items()}
        estimator = LabelDPClassifier(
            epsilon, delta, method, classes=range(len(data.classes)), class_weight=counts, **settings
        )
    else:
        estimator = LabelDPRegressor(epsilon, data.bounds, delta, method, **settings)
    estimator.fit(data.features, data.vault)
    if isinstance(data.vault, ReleasedLabels) and method == AUTO:
        why = "It is expected to do best among the methods that learn from responses which were released before."
    elif estimator.choice_ is not None:
        choice = estimator.choice_
        # What a pilot found says more than why there was one.
        why = f"{choice.worth} {estimator.evidence_}" if estimator.evidence_ else choice.reason
    if weights:
        listed = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
        why += f" Probabilities are weighted by what was declared ({listed}), which costs no privacy."
    name, problem = network and network.name, {} if choice is None else choice.problem
    return Model(estimator, data.classes, data.columns, data.label, name, why, problem, data.images)


def method_for_images(
    data: PrivateData, epsilon: float, delta: float | None, method: str, device: str, encoded: bool = False
) -> tuple[str, str, Choice | None]:
    """Return the method, chosen from public numbers where it is "auto", why, and the choice if there was one.

    On a GPU, and where there is a network for such images, methods that train it are compared, too. Otherwise the
    estimator chooses, among heads on features.
    """
    if method != AUTO:
        return find(method, "classes" if data.classes else "numbers").key, "It was requested by name.", None
    if encoded or not device.startswith("cuda") or tuple(data.features.shape[1:]) not in _NETWORKS or not data.classes:
        return AUTO, "", None
    pixels, place = int(np.prod(data.features.shape[1:])), "cuda"
    allowed = usual_delta(len(data)) if delta is None else delta
    choice = choose(len(data), len(data.classes), epsilon, allowed, feature_dim=pixels, modality="images", device=place)
    return choice.recipe, choice.reason, choice


def result_of(data: PrivateData, model: Model, epsilon: float, delta: float | None, run: Mapping[str, Any]) -> Result:
    """Return all that goes into a folder; the run gets the method and the δ that were settled on."""
    estimator = model.estimator
    certificate, method = estimator.certificate_, str(estimator.method_)
    allowed = certificate.delta if delta is None else delta
    # Of responses that were released before, the certificate is still that of their file.
    source = certificate.artifact if isinstance(data.vault, ReleasedLabels) else None
    story = Story(
        data.name, data.label, data.classes or None, len(data), data.described, method, model.why, epsilon, allowed,
        data.bounds, source.sha256 if source else "", tuple(one.to_json() for one in data.readings),
    )  # fmt: skip
    settled = {**run, "method": method, **({"delta": allowed} if allowed > 0 else {})}
    described, tensors = model.parts()
    return Result(model.kind, described, tensors, certificate, {"train": settled}, story, metrics_of(data, model))


# -- from a folder -----------------------------------------------------------------------------------------------------


def load(folder: Path | str, device: str | None = None, encoder: Any = None) -> Model:
    """Return the model of a folder that `labeldp train` wrote; refused where it is not the certified one."""
    return rebuilding(folders.read(Path(folder)), folder, device, encoder=encoder)


def rebuilding(result: Result, folder: Path | str, device: Any = None, model: Any = None, encoder: Any = None) -> Model:
    """Return the model of a result that was read from this folder; whatever is wrong with it ends in a sentence."""
    try:
        return rebuilt(result, device, model, encoder)
    except (ArtifactError, PartsError):
        raise
    except Exception as error:
        # A stranger's description may be anything; whatever it is, the outcome is a sentence.
        raise ArtifactError(
            f"the model in {str(folder)!r} cannot be rebuilt from its description ({type(error).__name__}); restore "
            "the folder from a copy, or train again"
        ) from None


def rebuilt(result: Result, device: str | None = None, model: Any = None, encoder: Any = None) -> Model:
    """Return the model of a result, ready to predict on this device (the processor when None).

    A network of the user's is not in the folder, only its weights: `model` is one like it. Nor is an `encoder`.
    """
    known = {KIND: LabelDPClassifier, REGRESSOR: LabelDPRegressor}
    if result.kind not in known:
        raise ArtifactError(f"the folder holds a {result.kind}, which this version cannot rebuild; use a newer one")
    described = result.model
    name, classes = described["network"], tuple(described["classes"])
    if name is not None and name not in _NETWORKS.values():
        raise ArtifactError(f"the folder's network, {name!r}, is not known to this version; use a newer one")
    network = model if name is None else Network(name).made(len(classes))
    estimator = known[result.kind].from_parts(
        described["estimator"],
        dict(result.tensors),
        model=network,
        certificate=result.certificate,
        device=device,
        encoder=encoder,
    )
    columns = None if described["columns"] is None else tuple(map(Column.from_json, described["columns"]))
    images = described.get("images")
    form = None if images is None else ImageFormat(**images)
    return Model(estimator, classes, columns, described["label"], name, result.story.reason, images=form)
