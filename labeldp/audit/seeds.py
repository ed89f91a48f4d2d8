"""Noise from a seed that can be guessed: draw it again, and see which labels explain the answers.

ALIBI's published code had 255 possible seeds (Malek et al. 2021); trying all of them gives every label back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.private.randomness import SecureRandom
from labeldp.releases import FloatArray, NoisyLabels

SEEDS = 256
# Rows in which a seed is looked for, rows that are then explained, and numbers drawn in all while looking.
_FIRST, _EXPLAINED, _MOST_DRAWS = 500, 20_000, 3_000_000


def replayed(private: NoisyLabels, truth: npt.NDArray[np.intp], known: npt.NDArray[np.bool_]) -> FloatArray | None:
    """1 where a class of a row would have got this answer from the likeliest small seed, (n, K); 0 on later rows.

    Labels are used where `known` only. None where the law cannot draw.
    """
    law: Any = private.law
    if not hasattr(law, "sample") or not known[:_FIRST].any():
        return None
    rows = min(_EXPLAINED, len(private))
    # The noise of a vector depends on how many are drawn at once; that of a class comes row by row.
    looked_at = rows if private.answers.ndim == 2 else min(_FIRST, rows)
    cells = looked_at * (private.num_classes if private.answers.ndim == 2 else 1)
    # A row's noise does not depend on other rows' labels, so those that must not be used are filled in.
    filled = np.where(known, truth, 0)[:looked_at]
    seeds = range(min(SEEDS, max(16, _MOST_DRAWS // cells)))
    likeliest = int(np.argmax([_same(private, filled, seed)[known[:looked_at]].mean() for seed in seeds]))
    explained = np.zeros((len(private), private.num_classes))
    for label in range(private.num_classes):
        explained[:rows, label] = _same(private, np.full(rows, label), likeliest)
    return explained


def _same(private: NoisyLabels, labels: npt.NDArray[np.intp], seed: int) -> npt.NDArray[np.bool_]:
    """Whether the answers are those that these labels, of the first rows, get from this seed."""
    law: Any = private.law.take(np.arange(len(labels)))
    kind = np.min_scalar_type(private.num_classes - 1)
    again = law.sample(labels.astype(kind), SecureRandom(seed)).answers
    same = np.equal(again, private.answers[: len(labels)]).reshape(len(labels), -1)
    return np.asarray(same.all(axis=1))
