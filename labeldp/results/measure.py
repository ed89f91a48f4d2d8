"""Measure how good a model is, by open labels given for it, public rows and releases; never by labels of a vault."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from labeldp.data.stored import some_of
from labeldp.results.card import belief_after

if TYPE_CHECKING:
    from labeldp.data.door import PrivateData
    from labeldp.results.model import Model

_LEAST = 1e-12


def metrics_of(data: PrivateData, model: Model) -> dict[str, Any]:
    """Measure by the certificate, by public rows with the private model, and by open labels; never by secret ones."""
    estimator, rows = model.estimator, some_of(data.features)
    if model.classes:
        sure = estimator.predict_proba(rows).max(axis=1).mean()
        on_rows = {"mean_confidence_on_training_rows": round(float(sure), 4)}
    else:
        predicted = estimator.predict(rows)
        on_rows = {
            "mean_prediction_on_training_rows": _digits(predicted.mean()),
            "spread_of_predictions_on_training_rows": _digits(predicted.std()),
        }
    found = fit_metrics(estimator, len(data), model.classes, model.problem, on_rows)
    if data.test is not None:
        features, labels = data.test.features, data.test.labels.values
        if model.classes:
            found["test"] = measured(estimator.predict_proba(features), labels)
        else:
            found["test"] = measured_numbers(estimator.predict(features), labels)
        if data.test.left_out:
            found["test"]["training_rows_left_out"] = data.test.left_out
    return found


def fit_metrics(
    estimator: Any,
    rows: int,
    classes: tuple[str, ...],
    problem: Mapping[str, Any] | None,
    on_rows: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return what is known of a fit: its claim, its curves, and measures of rows set aside.

    Args:
        rows: that it was given.
        classes: their names; empty for numbers.
        problem: what the method was chosen for, where it was, so that a report compares recipes for the same.
        on_rows: means over public rows.
    """
    certificate, own = estimator.certificate_, getattr(estimator, "evaluation_", None)
    spent, expected = certificate.epsilon, dict(on_rows or {})
    found: dict[str, Any] = {
        "epsilon": "infinity" if math.isinf(spent) else spent, "delta": certificate.delta, "rows": rows
    }  # fmt: skip
    if classes:
        found["classes"] = len(classes)
        # The share of true labels among plain randomized responses at ε: what one response per row would keep.
        expected["share_right_of_plain_randomized_response"] = round(belief_after(1 / len(classes), spent), 4)
    elif expected:
        found["bounds"] = list(estimator.bounds)
    if expected:
        found["expected"] = expected
    if problem:
        found["chosen_for"] = dict(problem)
    if estimator._curves:
        # Of losses on private targets and of the ledger; see `Recorder`, which says why they are free.
        found["curves"] = list(estimator._curves)
    return found if own is None else {**found, "evaluation": replace(own, classes=classes).to_json()}


def measured(probabilities: npt.NDArray[np.floating], labels: npt.NDArray[np.integer]) -> dict[str, float | int]:
    """Return accuracy, that of always the most frequent class, AUC (mean over classes, one against the rest), log loss.

    >>> measured(np.array([[0.8, 0.2], [0.4, 0.6], [0.6, 0.4]]), np.array([0, 1, 1]))
    {'rows': 3, 'accuracy': 0.6667, 'majority_baseline': 0.6667, 'auc': 1.0, 'log_loss': 0.5501}
    """
    right = float((probabilities.argmax(axis=1) == labels).mean())
    found = {"rows": len(labels), "accuracy": round(right, 4)}
    found["majority_baseline"] = round(float(np.bincount(labels).max() / len(labels)), 4)
    area = mean_auc(probabilities, labels)
    if area is not None:
        found["auc"] = round(area, 4)
    likely = np.clip(probabilities[np.arange(len(labels)), labels].astype(np.float64), _LEAST, 1)
    return found | {"log_loss": round(float(-np.log(likely).mean()), 4)}


def measured_numbers(predictions: npt.NDArray[np.floating], labels: npt.NDArray[np.floating]) -> dict[str, float | int]:
    """Return R² (not where all labels are one number), mean absolute and root mean squared error of predictions (m,).

    >>> measured_numbers(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0]))
    {'rows': 3, 'r2': 0.5, 'mean_absolute_error': 0.333333, 'root_mean_squared_error': 0.57735}
    """
    off, around = predictions - labels, labels - labels.mean()
    found: dict[str, float | int] = {"rows": len(labels)}
    if around.any():
        found["r2"] = _digits(1 - float(off @ off) / float(around @ around))
    errors = {"mean_absolute_error": np.abs(off).mean(), "root_mean_squared_error": math.sqrt((off @ off) / len(off))}
    return found | {name: _digits(float(value)) for name, value in errors.items()}


def _digits(value: float) -> float:
    """Round to six significant digits: numbers come in any unit."""
    return float(f"{value:.6g}")


def mean_auc(probabilities: npt.NDArray[np.floating], labels: npt.NDArray[np.integer]) -> float | None:
    """Return one AUC for two classes; else the mean over those that occur, each against the rest; None for one."""
    present = np.unique(labels)
    if len(present) < 2:
        return None
    places = [1] if probabilities.shape[1] == 2 else list(present)
    return float(np.mean([auc(probabilities[:, place], (labels == place).astype(int)) for place in places]))


def auc(scores: npt.ArrayLike | Tensor, labels: npt.ArrayLike | Tensor) -> float:
    """Return P(score of a positive > score of a negative) + ½ P(equal), over all pairs: the area under the ROC curve.

    Counted exactly, in integers, ties included (Mann and Whitney 1947; Hanley and McNeil 1982). NaN scores are refused.

    >>> auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]), auc([1, 1, 1], [0, 1, 0])
    (0.75, 0.5)
    """
    values, truth = _column("scores", scores).astype(np.float64), _column("labels", labels)
    if len(values) != len(truth):
        raise ValueError(f"scores has {len(values)} entries and labels {len(truth)}; give one score per label")
    if np.isnan(values).any():
        raise ValueError(
            f"scores has {int(np.isnan(values).sum())} entries that are not numbers; did training diverge?"
        )
    if not np.isin(truth, (0, 1)).all():
        raise ValueError("labels has entries other than 0 and 1; AUC compares two classes")
    _, place = np.unique(values, return_inverse=True)
    size = int(place.max(initial=-1)) + 1
    ones, zeros = (np.bincount(place[truth == label], minlength=size) for label in (1, 0))
    pairs = int(ones.sum()) * int(zeros.sum())
    if pairs == 0:
        raise ValueError(f"labels has {int(ones.sum())} ones and {int(zeros.sum())} zeros; AUC needs both")
    # Twice the number of pairs won, a tie being half a pair: an integer.
    won = int((ones * (2 * np.cumsum(zeros) - zeros)).sum())
    return won / (2 * pairs)


def _column(name: str, values: npt.ArrayLike | Tensor) -> np.ndarray:
    column = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if column.ndim != 1:
        raise ValueError(f"{name} has shape {column.shape}; give one number per row, shape (n,)")
    return column
