"""Which answers to allow when a prior is known: the optimal sets of RRWithPrior."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.private.shared import pieces
from labeldp.releases import BoolArray, FloatArray

# Room for the sum of a row in float64.
_LARGEST_WEIGHT = 1e300
_CELLS_AT_ONCE = 1 << 17


def checked_prior(prior: npt.ArrayLike) -> npt.NDArray[Any]:
    """The prior as a real array, (K,) or (n, K), or ValueError. Rows need not sum to 1."""
    weights = np.asarray(prior)
    if weights.dtype.kind not in "fiub":
        weights = np.asarray(prior, dtype=np.float64)
    if weights.ndim not in {1, 2} or not weights.shape[-1]:
        raise ValueError(f"prior has shape {weights.shape}; give (classes,) or (rows, classes)")
    # A NaN makes both comparisons false.
    if weights.size and not (float(weights.min()) >= 0 and float(weights.max()) <= _LARGEST_WEIGHT):
        wide = weights.astype(np.float64)
        good = ((wide >= 0) & (wide <= _LARGEST_WEIGHT)).all(axis=-1)
        raise ValueError(
            f"prior has {int(np.count_nonzero(~good))} rows with entries that are negative or not finite; "
            "give probabilities or other weights of at least 0"
        )
    return weights


def likely_sets(weights: npt.NDArray[Any], epsilon: float) -> BoolArray:
    """The set S of each row that maximises P(answer = label), as booleans of the prior's shape.

    With p_(1) ≥ p_(2) ≥ … and S the k likeliest, P(answer = label) = e^ε·(p_(1) + … + p_(k))/(e^ε + k − 1).
    Going from k to k + 1 does not lower it iff  Σ_{j≤k} (p_(j) − p_(k+1)) ≤ p_(k+1)·(e^ε − 1).
    The left side grows with k and the right side falls, so there is one peak and the condition holds up to
    it; among equal peaks the largest set is taken. In terms of one class:

        c is in S   iff   Σ_j max(p_j − p_c, 0) ≤ p_c·(e^ε − 1),

    which needs no normalisation and no rule for ties: equal classes enter together. For equal p the left
    side is exactly 0, so a uniform (or all-zero) prior allows every class at every ε ≥ 0. At ε = ∞ every
    class is allowed, whatever the prior: then the answer is the label.
    """
    if epsilon == math.inf:
        return np.ones(weights.shape, dtype=np.bool_)
    rows = weights.reshape(-1, weights.shape[-1])
    sets = np.empty(rows.shape, dtype=np.bool_)
    growth = math.expm1(min(epsilon, 700.0))
    for part in pieces(len(rows), max(1 << 8, _CELLS_AT_ONCE // rows.shape[1])):
        block = rows[part].astype(np.float64, copy=False)
        np.greater_equal(block, _smallest_member(block, growth)[:, None], out=sets[part])
    return sets.reshape(weights.shape)


def _smallest_member(weights: FloatArray, growth: float) -> FloatArray:
    """The smallest p_c in each row's set. (m, K) to (m,)."""
    ranked = np.ascontiguousarray(np.sort(weights, axis=1)[:, ::-1].T)
    smallest, lead = ranked[0].copy(), np.zeros(len(weights))
    with np.errstate(over="ignore"):
        for k in range(1, len(ranked)):
            # Differences of neighbours, not of running sums: equal weights add exactly nothing.
            lead += k * (ranked[k - 1] - ranked[k])
            enters = lead <= ranked[k] * growth
            if not enters.any():
                break
            np.copyto(smallest, ranked[k], where=enters)
    return smallest
