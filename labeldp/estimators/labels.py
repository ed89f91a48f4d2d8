"""Labels, however they are held, to codes 0 … K − 1 of a declared list of classes. Errors give counts, never values."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from labeldp.estimators.columns import is_missing
from labeldp.estimators.spending import note_classes


def as_array(labels: Any, name: str) -> npt.NDArray[Any]:
    """One label per row, (n,)."""
    if labels is None:
        raise ValueError(f"{name} requires y to be passed, but the target y is None")
    if hasattr(labels, "detach"):
        labels = labels.detach().cpu().numpy()
    elif type(labels).__module__.startswith("pyarrow"):
        labels = labels.to_pandas().to_numpy()
    elif hasattr(labels, "to_numpy"):
        labels = labels.to_numpy()
    raw = column_or_1d(np.asarray(labels), warn=True)
    if raw.dtype.kind == "c":
        raise ValueError("Complex data not supported: y holds complex numbers; give one class or number per row")
    _refuse_missing(raw)
    return raw


def as_numbers(labels: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Floats, or ValueError: float() must not speak for itself here, it quotes the value."""
    if labels.dtype.kind in "biuf":
        return labels.astype(np.float64)
    if labels.dtype.kind == "O" and all(isinstance(value, (bool, int, float, np.number, Decimal)) for value in labels):
        return np.array([float(value) for value in labels], dtype=np.float64)
    raise ValueError("y holds something else than numbers; give one number per row, or use LabelDPClassifier")


def encode(labels: npt.NDArray[Any], classes: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The classes in order, and each label's place among them. Without a list it is read off, with a warning."""
    check_classification_targets(labels)
    if classes is None:
        note_classes()
        known, codes = np.unique(labels, return_inverse=True)
    else:
        known = checked_classes(classes)
        codes = codes_of(labels, known)
    if len(known) < 2:
        raise ValueError(
            f"the labels have {len(known)} class; there is nothing to learn. Declare all of them: classes="
        )
    return known, codes.astype(np.int64)


def checked_classes(classes: Any) -> npt.NDArray[Any]:
    """The declared list, sorted, or ValueError."""
    known = np.asarray(list(classes))
    if known.ndim != 1 or known.dtype.kind not in "biufUO" or len(np.unique(known)) != len(known):
        raise ValueError(f"classes={classes!r} is not a list of different classes; give each of them once")
    return np.sort(known)


def codes_of(labels: npt.NDArray[Any], known: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Places in a sorted list; ValueError with the number of labels that are not in it."""
    text = known.dtype.kind in "UO"
    if text != (labels.dtype.kind in "UO"):
        said = ("text", "numbers") if text else ("numbers", "text")
        raise ValueError(f"classes are {said[0]} and the labels {said[1]}; give both alike")
    if text:
        place = {str(name): number for number, name in enumerate(known)}
        codes = np.array([place.get(str(label), -1) for label in labels], dtype=np.int64)
    else:
        codes = np.minimum(np.searchsorted(known, labels), len(known) - 1).astype(np.int64)
        codes = np.where(known[codes] == labels, codes, -1)
    strange = int(np.count_nonzero(codes < 0))
    if strange:
        raise ValueError(
            f"{strange} of {len(labels)} labels are not among the {len(known)} declared classes. Which ones is not "
            "shown because it is private; declare all classes, spelt as in the labels"
        )
    return codes


def _refuse_missing(raw: npt.NDArray[Any]) -> None:
    if raw.dtype.kind == "f":
        missing, infinite = int(np.isnan(raw).sum()), int(np.isinf(raw).sum())
    elif raw.dtype.kind == "O":
        missing = sum(is_missing(value) for value in raw)
        infinite = 0
    else:
        return
    if missing or infinite:
        raise ValueError(
            f"Input y contains NaN or infinity: of {len(raw)} labels, {missing} are missing and {infinite} infinite. "
            "Drop or fill them by a rule fixed in advance"
        )
