"""Weigh rows and classes by public weights: rows by a draw before any label is used, classes after all queries.

Rows. Row i is kept with probability w_i / max w, by public chance, and the fit is to the rows that were kept. Rows are
drawn by systematic sampling (Madow 1949) in a random order, so that always Σ_i w_i / max w of them are kept, rounded up
or down. Whatever is summed over rows is then, in the mean, Σ_i w_i·(…) / max w: the weighted fit, for every recipe. No
label is used for it, a row that is kept pays what it would pay without weights, and another pays nothing.

A weight inside the query would be no better where noise is what matters. The weighted moment Σ_i w_i·onehot(y_i) ⊗ φ_i
moves by √2·max w·|φ| when a label is replaced, so its noise grows by max w: it knows as much as a moment of
Σ_i w_i / max w rows, which is how many are kept.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.estimator.serialise import plain

PUBLIC = "The weights of rows were declared public: what they were computed from is not protected."
# Of the rows; where fewer are kept, a few large weights are to blame.
_FEW = 0.1


def rows_kept(sample_weight: Any, rows: int, seed: int) -> npt.NDArray[np.intp] | None:
    """Return which rows are fitted to; None for all of them.

    >>> rows_kept([1, 0, 1], 3, seed=0), rows_kept([2, 2, 2], 3, seed=0)
    (array([0, 2]), None)
    """
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight)
    if weights.ndim == 0:
        weights = np.full(rows, weights)
    if weights.shape != (rows,):
        raise ValueError(f"sample_weight.shape == {weights.shape}, expected {(rows,)}! Give one weight per row")
    try:
        weights = weights.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"sample_weight has type {weights.dtype}; give numbers, 0 or more") from None
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise ValueError("sample_weight must be finite numbers, none below zero and not all of them zero")
    if (weights == weights[0]).all():
        return None
    # A stream of its own, which goes with nothing else that the seed draws.
    chance = np.random.default_rng([seed, rows])
    order = chance.permutation(rows)
    # Systematic sampling: a comb with teeth 1 apart, laid at random over lengths that sum up.
    ends = np.cumsum(weights[order] / weights.max()) + chance.random()
    kept = np.sort(order[np.floor(ends) > np.floor(np.append(ends[0] - weights[order[0]] / weights.max(), ends[:-1]))])
    if len(kept) < _FEW * np.count_nonzero(weights):
        warnings.warn(
            f"sample_weight keeps {len(kept):,} of {rows:,} rows (each with probability weight / largest weight): the "
            "largest weights are far above the others; cap them to learn from more rows",
            stacklevel=5,
        )
    return kept


def log_weights(class_weight: Any, classes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the logarithm of every class's weight, (K,), to be added to the scores; zeros where none are declared.

    Whoever weighs class c by w_c decides best by the largest w_c·P(c | row): so it is done to probabilities that were
    learnt, after the query, and costs nothing. Weights inside the query would gain nothing either. Of two classes,
    Σ w_y·onehot(y) ⊗ φ moves by √(w₀² + w₁²)·|φ|; with that noise, its two parts, each divided by its weight and joined
    by their public sum, know the moment just as well for every w.

    >>> log_weights({"yes": 10}, np.array(["no", "yes"])).round(4)
    array([0.    , 2.3026])
    """
    if class_weight is None:
        return np.zeros(len(classes))
    if not isinstance(class_weight, dict):
        raise ValueError(
            f"class_weight={class_weight!r} is not a dictionary from class to weight. Weights that are read off the "
            "labels, as 'balanced' is, would be a query that nobody paid for; declare them from what is public, say "
            "one over the frequency that is expected of a class"
        )
    known = plain(classes)
    unknown = [name for name in class_weight if name not in known]
    if unknown:
        raise ValueError(f"class_weight names {unknown}, which are not among the {len(known)} classes; declare those")
    wrong = {
        name: weight for name, weight in class_weight.items()
        if isinstance(weight, bool) or not isinstance(weight, (int, float, np.number)) or not 0 < weight < np.inf
    }  # fmt: skip
    if wrong:
        raise ValueError(f"class_weight={wrong!r} are no weights; give finite numbers above 0")
    return np.log(np.array([float(class_weight.get(name, 1.0)) for name in known]))
