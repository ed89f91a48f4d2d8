"""Labels in memory, however they are held, as class numbers 0 … K − 1 or as floats. Errors give counts, never values.

Only the door (`labeldp.data.door`) calls these functions: what they return is open.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

# Given instead of a list of classes: those that occur, which are then declared to be public.
OBSERVED = "observed"


def as_array(labels: Any, name: str) -> npt.NDArray[Any]:
    """Return one label per row, (n,); `name` is who asks, for messages."""
    from sklearn.utils.validation import column_or_1d

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
    missing = infinite = 0
    if raw.dtype.kind == "f":
        missing, infinite = int(np.isnan(raw).sum()), int(np.isinf(raw).sum())
    elif raw.dtype.kind == "O":
        missing = sum(is_missing(value) for value in raw)
    if missing or infinite:
        raise ValueError(
            f"Input y contains NaN or infinity: of {len(raw)} labels, {missing} are missing and {infinite} infinite. "
            "Drop or fill them by a rule fixed in advance"
        )
    return raw


def as_numbers(labels: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return floats, or raise ValueError: float() must not speak for itself here, it quotes the value."""
    if labels.dtype.kind in "biuf":
        return labels.astype(np.float64)
    if labels.dtype.kind == "O" and all(isinstance(value, (bool, int, float, np.number, Decimal)) for value in labels):
        return np.array([float(value) for value in labels], dtype=np.float64)
    raise ValueError("y holds something else than numbers; give one number per row, or use LabelDPClassifier")


def encode(labels: npt.NDArray[Any], classes: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the classes in order and each label's place among them; for OBSERVED they are read off the labels."""
    if isinstance(classes, str) and classes == OBSERVED:
        from sklearn.utils.multiclass import check_classification_targets

        check_classification_targets(labels)
        known, codes = np.unique(labels, return_inverse=True)
    else:
        known = np.sort(checked_classes(classes))
        codes = _places(labels, known)
    if len(known) < 2:
        raise ValueError(
            f"the labels have {len(known)} class; there is nothing to learn. Declare all of them: classes="
        )
    return known, codes.astype(np.int64)


def checked_classes(classes: Any) -> npt.NDArray[Any]:
    """Return the declared list as an array, or raise ValueError."""
    if isinstance(classes, str):
        raise ValueError(f"classes={classes!r} is one text; give a list of them, as in ['no', 'yes']")
    known = np.asarray(list(classes))
    if known.ndim != 1 or known.dtype.kind not in "biufUO" or len(np.unique(known)) != len(known):
        raise ValueError(f"classes={classes!r} is not a list of different classes; give each of them once")
    return known


def declared_by_type(labels: Any) -> list[Any] | None:
    """Return the classes that the type of the labels declares, whichever occur; None where it declares none.

    These are pandas categories, a polars Enum, an Arrow dictionary, and true/false. (A polars Categorical lists what it
    has met.)

    >>> declared_by_type(np.array([True, True]))
    [False, True]
    """
    home = type(labels).__module__.split(".")[0]
    kind: Any = getattr(labels, "dtype", getattr(labels, "type", None))
    if str(kind).lower() in {"bool", "boolean", "torch.bool", "bool[pyarrow]"}:
        return [False, True]
    if home == "pyarrow" and hasattr(kind, "value_type") and hasattr(kind, "index_type"):
        whole = labels.unify_dictionaries().combine_chunks() if hasattr(labels, "chunks") else labels
        return whole.dictionary.to_pylist()
    if (home == "pandas" and hasattr(kind, "categories")) or (home == "polars" and type(kind).__name__ == "Enum"):
        return kind.categories.tolist() if home == "pandas" else kind.categories.to_list()
    return None


def _places(labels: npt.NDArray[Any], known: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Places in a sorted list; ValueError with the number of labels that are not in it."""
    text = known.dtype.kind in "UO"
    if text != (labels.dtype.kind in "UO"):
        kinds = ("text", "numbers") if text else ("numbers", "text")
        raise ValueError(f"classes are {kinds[0]} and the labels {kinds[1]}; give both alike")
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


def is_missing(value: object) -> bool:
    """Whether it is None, NaN, pandas.NA or pandas.NaT; the last two are recognised without importing pandas."""
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
        return True
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))
