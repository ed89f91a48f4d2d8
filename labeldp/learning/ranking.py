"""How well scores rank: for open test labels, never for a vault's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor


def auc(scores: npt.ArrayLike | Tensor, labels: npt.ArrayLike | Tensor) -> float:
    """P(score of a positive > score of a negative) + ½ P(equal), over all pairs: the area under the ROC curve.

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
    positive, negative = (np.bincount(place[truth == label]) for label in (1, 0))
    return _share_of_pairs(positive, negative)


def _share_of_pairs(positive: npt.NDArray[np.intp], negative: npt.NDArray[np.intp]) -> float:
    """From the counts of both classes at every score, in ascending order."""
    pairs = int(positive.sum()) * int(negative.sum())
    if pairs == 0:
        raise ValueError(f"labels has {int(positive.sum())} ones and {int(negative.sum())} zeros; AUC needs both")
    size = max(len(positive), len(negative))
    ones, zeros = (np.pad(counts, (0, size - len(counts))) for counts in (positive, negative))
    # Twice the number of pairs won, a tie being half a pair: an integer.
    won = int((ones * (2 * np.cumsum(zeros) - zeros)).sum())
    return won / (2 * pairs)


def _column(name: str, values: npt.ArrayLike | Tensor) -> np.ndarray:
    column = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if column.ndim != 1:
        raise ValueError(f"{name} has shape {column.shape}; give one number per row, shape (n,)")
    return column
