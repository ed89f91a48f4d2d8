"""Write fitted estimators to folders, and read them back by `labeldp.load`.

The folder is the one that `labeldp train` writes, so that labeldp predict, verify, report and audit read it; and
`load` reads the folders of either. An estimator was fitted to a table in memory: what stands for the table's file is
how its columns were read, under the names they had there (x0, x1, … where they had none).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from labeldp.data.columns import MISSING
from labeldp.data.kinds import Column, Reading
from labeldp.estimator.serialise import plain
from labeldp.features.encoders import Encoder
from labeldp.features.tables import TableMap
from labeldp.features.text import Encode
from labeldp.results import folder as folders
from labeldp.results.card import Story
from labeldp.results.evaluation import evaluation_of
from labeldp.results.folder import IN_PYTHON, ArtifactError, Result, drafting
from labeldp.results.measure import fit_metrics
from labeldp.results.model import KIND, REGRESSOR, Model, rebuilding
from labeldp.results.signing import SigningKey

IN_MEMORY = "a table in memory"


def save(estimator: Any, folder: Path, *, data: str, label: str, key: SigningKey | None) -> None:
    """Write a fitted estimator to a folder, whole or not at all; see `LabelDPEstimator.save`."""
    if not hasattr(estimator, "certificate_"):
        raise ArtifactError("the estimator has no certificate: parts without one cannot be saved as a result")
    result = result_of(estimator, data, label)
    try:
        with drafting(folder) as draft:
            certificate = draft.write(result, key)
    except TypeError:
        raise ArtifactError(
            f"classes of type {estimator.classes_.dtype} cannot be written to a file; fit with text, numbers or "
            "true/false"
        ) from None
    except ArtifactError as error:
        raise ArtifactError(str(error).replace("--out", "folder")) from None
    logging.getLogger("labeldp").info("saved %s (epsilon %.6g)", folder.name, certificate.epsilon)


def load(
    folder: Path | str, *, model: nn.Module | None = None, device: Any = None, encoder: Encode | Encoder | None = None
) -> Any:
    """Return the estimator in a folder that `estimator.save` or `labeldp train` wrote, ready to predict.

    It is checked against its certificate, which is its `certificate_`; nothing in the folder is run. One of
    `labeldp train` takes frames (pandas, polars, Arrow) with the columns of its table, in any order.

    Args:
        folder: the folder.
        model: a network like the one that was given to the estimator, if one was; its weights are replaced.
        device: where to compute; the CPU when None.
        encoder: the encoder of sentences or images that was given to the estimator, if one was; refused where it gives
            other numbers.

    >>> import tempfile
    >>> from labeldp import LabelDPClassifier
    >>> x = np.random.default_rng(0).normal(size=(500, 3))
    >>> fitted = LabelDPClassifier(1.0, classes=[False, True]).fit(x, x[:, 0] > 0)
    >>> place = Path(tempfile.mkdtemp()) / "model"
    >>> again = load(fitted.save(place) and place)
    >>> bool((again.predict_proba(x) == fitted.predict_proba(x)).all()), again.certificate_.epsilon <= 1.0
    (True, True)
    """
    folder = Path(folder)
    result = folders.read(folder)
    found: Model = rebuilding(result, folder, device, model, encoder)
    estimator = found.estimator
    if not result.model.get("own_classes", False) and found.classes:
        # labeldp train numbers the classes that its table names.
        weights = estimator.class_weight
        estimator.classes = list(found.classes)
        estimator.classes_ = np.asarray(found.classes)
        estimator.class_weight = weights and {found.classes[place]: weight for place, weight in weights.items()}
    estimator.delta, estimator.evaluation_ = result.story.delta, evaluation_of(result.metrics)
    estimator.evidence_, estimator._reason, estimator._rows = "", result.story.reason, result.story.rows
    curves, problem = result.metrics.get("curves"), result.metrics.get("chosen_for")
    estimator._chosen_for = dict(problem) if isinstance(problem, Mapping) else None
    estimator._curves, estimator._network_name = tuple(curves) if isinstance(curves, list) else (), found.network
    if not result.model.get("in_memory", False):
        estimator._columns = found.columns
    if estimator._of_frame is not None:
        estimator.columns_ = tuple(Reading(**one) for one in result.story.columns)
    logging.getLogger("labeldp").info("loaded %s", folder.name)
    return estimator


def result_of(estimator: Any, data: str, label: str) -> Result:
    """Return all that goes into the folder of a fitted estimator."""
    certificate, bounds = estimator.certificate_, getattr(estimator, "bounds", None)
    names = () if bounds is not None else tuple(map(str, estimator.classes_))
    columns, readings = columns_of(estimator)
    # Labels that were queried before the fit, by whoever made the vault, have spent more than the fit was allowed.
    epsilon = max(float(estimator.epsilon), certificate.epsilon)
    delta = certificate.delta if estimator.delta is None else max(float(estimator.delta), certificate.delta)
    source = (certificate.release or {}).get("story", {}).get("released", "")
    if not source and certificate.artifact is not None and not (certificate.release or {}).get("story"):
        # Responses that were released before have the certificate of their file.
        source = certificate.artifact.sha256
    what = "pixels" if estimator._layout is None else "columns"
    features = tuple(column.name for column in columns) if columns else (f"{estimator.n_features_in_} {what}",)
    story = Story(
        data or IN_MEMORY, label, names or None, estimator._rows, features, estimator.method_, reason_of(estimator),
        epsilon, delta, bounds and (float(bounds[0]), float(bounds[1])), source,
        tuple(reading.to_json() for reading in readings),
    )  # fmt: skip
    config, tensors = estimator.to_parts()
    described = {
        "label": label, "classes": list(names), "network": estimator._network_name, "own_classes": True,
        "in_memory": estimator._columns is None,
        "columns": None if columns is None else [column.to_json() for column in columns],
        "estimator": {**config, "epsilon": epsilon},
    }  # fmt: skip
    run = {
        "class": type(estimator).__name__, "epsilon": epsilon, "method": estimator.method_,
        "task": "classification" if names else "regression", "label": label or None,
        "classes": list(names) or None, "range": story.bounds and list(story.bounds),
        **({"delta": delta} if delta > 0 else {}), "holdout": _plain(estimator.holdout),
        "seed": _plain(estimator.random_state), "settings": _plain(estimator.settings),
    }  # fmt: skip
    problem = estimator._chosen_for if estimator.choice_ is None else estimator.choice_.problem
    metrics = fit_metrics(estimator, estimator._rows, names, problem)
    return Result(KIND if names else REGRESSOR, described, tensors, certificate, {IN_PYTHON: run}, story, metrics)


def reason_of(estimator: Any) -> str:
    """Return why it was this method."""
    if estimator._reason:
        return estimator._reason
    chosen = getattr(estimator, "choice_", None)
    why = "It was requested by name." if chosen is None else chosen.reason
    evidence = getattr(estimator, "evidence_", "")
    return f"{why} {evidence}" if evidence else why


def columns_of(estimator: Any) -> tuple[tuple[Column, ...] | None, tuple[Reading, ...]]:
    """Return the columns of the table that was fitted to, and how each was read; None for images and sparse rows."""
    layout, found = estimator._layout, estimator._map
    if layout is None or not layout.numeric:
        return None, ()
    if estimator._columns is not None:
        return estimator._columns, tuple(Reading(column.name, column.kind) for column in estimator._columns)
    if estimator._of_frame is not None:
        read = estimator.columns_ or tuple(Reading(column.name, column.kind) for column in estimator._of_frame)
        return estimator._of_frame, read
    table = found if isinstance(found, TableMap) else getattr(found, "table", None)
    known = getattr(estimator, "feature_names_in_", None)
    names = [f"x{place}" for place in range(len(layout.numeric))] if known is None else list(map(str, known))
    prose = layout.prose or (False,) * len(names)
    gaps = iter(() if table is None else table.missing.tolist())
    values = iter(() if table is None else table.values)
    columns, readings = [], []
    for name, numeric, text in zip(names, layout.numeric, prose, strict=True):
        kind = "number" if numeric else "text" if text else "category"
        column = Column(name, kind, missing="" if numeric else MISSING)
        note = "some are missing" if numeric and next(gaps, False) else ""
        listed = next(values, None) if kind == "category" else None
        columns.append(column)
        readings.append(Reading(name, kind, None, None if listed is None else len(listed), note, column))
    return tuple(columns), tuple(readings)


def _plain(value: Any) -> Any:
    """Return a setting as TOML can have it, and what it cannot as its name."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items() if one is not None and name != "folder"}
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (np.generic, np.ndarray)):
        return plain(value)
    return type(value).__name__
