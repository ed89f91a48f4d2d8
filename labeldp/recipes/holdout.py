"""Set rows aside to measure a model with: their labels pay for that and nothing else, so that it costs nothing more.

Which rows is decided by their number and a public seed, never by a label. The others train the model; these meet one
query, about what it predicts for them, and are never trained on afterwards. A row pays ε on one side or the other.
"""

from __future__ import annotations

import math
from numbers import Real
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from labeldp.core.ledger import BudgetExceededError, RowIndex
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.counts import LaplaceNoise
from labeldp.mechanisms.evaluation import ErrorCounts, ScoreCounts, right_epsilon
from labeldp.recipes.kept import digest, in_folder, load_note, query_note, release_once
from labeldp.releases import NoisyErrors, NoisyScores

# Unless it is asked for: no part of fewer rows than this is set aside, else a tenth, and at most so many.
FEWEST_ROWS, SHARE, MOST_ROWS = 1_000, 0.1, 20_000
# Asked for: fewer rows than this say nothing about a model, whatever ε.
FEWEST_MEASURED = 10
# Score bins of one predicted class, and deviations of noise on a bin's total that a bin must have in rows.
_MOST_BINS, _ABOVE_NOISE = 10, 4.0
# Beyond this many classes a confusion matrix is mostly noise: one group holds all rows.
_MOST_CLASSES = 128
# The grid of errors: this factor from point to point, from a 64th of the range on; and groups of predictions.
_RATIO, _FINEST, _HALVES = 1.6, 64, 2


def rows_set_aside(num_rows: int, holdout: Any, seed: int) -> RowIndex | None:
    """Return which rows measure, ascending; None for none.

    Args:
        num_rows: of the data.
        holdout: a share of the rows below 1, or a number of them; 0 for none. None for a tenth, at most 20,000, and
            none below 1,000 rows.
        seed: public.

    >>> rows_set_aside(10, 0.2, seed=0), rows_set_aside(999, None, seed=0), len(rows_set_aside(5000, None, seed=0))
    (array([6, 7]), None, 500)
    """
    if holdout is None:
        count = 0 if num_rows < FEWEST_ROWS else min(round(SHARE * num_rows), MOST_ROWS)
    elif holdout is True or not isinstance(holdout, Real) or not 0 <= float(holdout) < math.inf:
        raise ValueError(f"holdout={holdout!r} is no part of the rows; give a share, say 0.1, a number of rows, or 0")
    else:
        given = float(holdout)
        count = max(1, math.floor(given * num_rows)) if 0 < given < 1 else int(given)
        if given >= 1 and (count != given or count >= num_rows):
            raise ValueError(f"holdout={holdout!r} of {num_rows} rows; give a whole number of rows that leaves some")
    if count == 0:
        return None
    return np.sort(np.random.default_rng(seed).choice(num_rows, count, replace=False)).astype(np.intp)


# -- what is asked about them -----------------------------------------------------------------------------------------


def score_query(probabilities: npt.NDArray[np.floating], epsilon: float) -> ScoreCounts:
    """Return the query for classes: rows grouped by predicted class and, of each, by bins of like many rows by score.

    As many bins as have four deviations of their noise in rows, by a public formula of ε, rows and classes.
    """
    rows, classes = probabilities.shape
    predicted = probabilities.argmax(axis=1)
    noise = LaplaceNoise(epsilon - right_epsilon(epsilon, rows) if epsilon < math.inf else epsilon).exact_std
    if classes > _MOST_CLASSES:
        return ScoreCounts(predicted, np.zeros(rows, dtype=np.int64), 1, classes, epsilon)
    fit = rows / (classes * max(_ABOVE_NOISE * noise * math.sqrt(classes), 1.0))
    bins = int(min(max(fit, 1), _MOST_BINS))
    groups = predicted * bins + ranked(probabilities.max(axis=1), predicted, bins)
    return ScoreCounts(predicted, groups, classes * bins, classes, epsilon)


def error_query(levels: npt.NDArray[np.integer], num_levels: int, epsilon: float) -> ErrorCounts:
    """Return the query for numbers: errors on a grid that is fine around 0, in the lower and upper half of predictions.

    `levels` are predictions on the levels of the vault. Far errors are rare, and each cell has noise: few are for them.
    """
    grid = [0]
    for sign, furthest in ((-1, int(levels.max())), (1, num_levels - 1 - int(levels.min()))):
        size = furthest
        while size > 0:
            grid.append(sign * size)
            size = min(size - 1, round(size / _RATIO)) if size > max(num_levels // _FINEST, 1) else 0
    halves = ranked(levels, np.zeros(len(levels), dtype=np.int64), _HALVES)
    return ErrorCounts(levels, halves, _HALVES, num_levels, sorted(grid), epsilon)


def ranked(scores: npt.NDArray[Any], within: npt.NDArray[np.integer], bins: int) -> npt.NDArray[np.int64]:
    """Return the bin of each row among the rows with the same number in `within`, by score, like many rows in each.

    >>> ranked(np.array([0.9, 0.1, 0.5, 0.7]), np.array([0, 0, 0, 1]), bins=3)
    array([2, 0, 1, 0])
    """
    order = np.lexsort((scores, within))
    sizes = np.bincount(within)
    first = np.cumsum(sizes) - sizes
    found = np.empty(len(order), dtype=np.int64)
    found[order] = (np.arange(len(order)) - first[within[order]]) * bins // sizes[within[order]]
    return found


@overload
def released(vault: LabelVault, query: ScoreCounts, folder: Path | None) -> NoisyScores: ...
@overload
def released(vault: LabelVault, query: ErrorCounts, folder: Path | None) -> NoisyErrors: ...
def released(vault: LabelVault, query: ScoreCounts | ErrorCounts, folder: Path | None) -> NoisyScores | NoisyErrors:
    """Release the query about all rows of this vault, or return what an earlier run kept of it.

    Raises BudgetExceededError where the folder has a release about other predictions: these rows have paid for it and
    cannot pay again. It is recorded, so that the certificate covers it.
    """
    kept, cells = in_folder(folder, "evaluation.npz"), query.cells
    note = {**query_note(vault, query), "predictions": digest(query.predicted, cells.groups)}
    if kept is not None and kept.exists() and (earlier := load_note(kept)).get("predictions") != note["predictions"]:
        vault.record(query, seeded=earlier.get("seeded", False), query_id=earlier.get("query"))
        raise BudgetExceededError(f"{kept} measured other predictions, and the rows set aside cannot pay twice")
    return release_once(vault, query, kept, note, numbers=cells.num_groups * (cells.num_classes + 1))
