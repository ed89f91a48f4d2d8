"""Find the best bins for randomized response on real-valued labels, when the labels' distribution is known.

Labels take m values v_1 < … < v_m with probabilities p. Randomized response on k bins, each with one output o_j,
reports the label's own bin with probability e^ε/(e^ε + k − 1), so that its expected loss is, with q = e^{-ε},

    E ℓ = Σ_j cost(bin j) / (1 − q + k·q),   cost(bin) = min_o (1 − q)·Σ_{y in bin} p_y ℓ(o, y) + q·Σ_y p_y ℓ(o, y).

A sum of costs over a partition, divided by a linear function of the number of bins. Ghazi, Kamath, Kumar, Leeman,
Manurangsi, Varadarajan & Zhang 2023, Regression with Label Differential Privacy, show that no ε-private randomizer
at all does better when the loss grows with the distance from the label. Everything here is post-processing: the
distribution is public, or was paid for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from labeldp.releases import FloatArray

Loss = Literal["squared", "absolute"] | Callable[[FloatArray, FloatArray], FloatArray]
Bins = npt.NDArray[np.int64]

_IMPROVEMENT = 1e-12


def optimal_bins(
    histogram: npt.ArrayLike,
    grid_values: npt.ArrayLike,
    epsilon: float,
    loss: Loss = "squared",
    candidates: npt.ArrayLike | None = None,
) -> tuple[Bins, FloatArray]:
    """Return the bin of every level, (m,), and the output of every bin, (k,), of least expected loss.

    `histogram` is (m,), unnormalised; all zeros count as uniform. A callable loss takes (outputs, labels),
    broadcasts, and should be one where labels that prefer the larger of two outputs are the larger labels (any
    convex function of the difference): only then are intervals the best bins. Outputs come from `candidates`:
    by default any real number for the squared loss, and the grid's own values otherwise.

    The ratio is minimised by Dinkelbach's method (1967): given the best ratio λ so far, a shortest path over
    the m + 1 ends of bins with edges cost − λ·q finds a better partition or shows that there is none. A few
    rounds of m² steps do, where a table over the number of bins takes m³.

    >>> bins, outputs = optimal_bins([6, 3, 1, 0, 0, 0, 0, 2], np.arange(8.0), epsilon=3.0)
    >>> bins, outputs.round(2)
    (array([0, 1, 1, 1, 2, 2, 2, 2]), array([0.15, 1.3 , 5.7 ]))
    """
    weights, values, odds = _checked(histogram, grid_values, epsilon)
    usual = None if loss == "squared" else values  # None is any real number
    allowed = usual if candidates is None else _increasing("candidates", candidates)
    if odds == 0.0:
        # Without privacy what is left to choose is the best output for every single label.
        best = values.copy() if allowed is None else allowed[_losses(loss, allowed, values).argmin(axis=0)]
        return np.arange(len(values)), best
    costs, outputs = (
        _squared_costs(weights, values, odds)
        if allowed is None
        else _costs(_losses(loss, allowed, values) * weights, allowed, odds)
    )
    ends = _best_ends(costs, odds)
    sizes = np.diff(ends)
    bins = np.repeat(np.arange(len(sizes)), sizes)
    return _preferred(bins, outputs[ends[1:], ends[:-1]], values, loss)


def expected_loss(
    histogram: npt.ArrayLike,
    grid_values: npt.ArrayLike,
    epsilon: float,
    bins: npt.ArrayLike,
    outputs: npt.ArrayLike,
    loss: Loss = "squared",
) -> float:
    """Return E ℓ(output of the reported bin, label) when labels follow the histogram.

    >>> expected_loss([1, 1], [0.0, 1.0], math.log(3), bins=[0, 1], outputs=[0.25, 0.75])
    0.1875
    """
    weights, values, odds = _checked(histogram, grid_values, epsilon)
    responses, own = np.asarray(outputs, dtype=np.float64), np.asarray(bins)
    losses = _losses(loss, responses, values) * weights
    total = (1.0 - odds) * losses[own, np.arange(len(values))].sum() + odds * losses.sum()
    return float(total / (1.0 + (len(responses) - 1) * odds))


def nearest_distribution(counts: npt.ArrayLike, total: float) -> FloatArray:
    """Return the probabilities nearest to noisy counts of `total` rows: least squares over h ≥ 0, Σ h = total.

    max(c − t, 0) with the threshold t that leaves `total` (Duchi et al. 2008). Clipping at 0 and normalising
    instead keeps the upper half of the noise of every empty cell, and with many cells that is most of the mass.

    >>> nearest_distribution([9, -3, 2, 1], total=8)
    array([0.9375, 0.    , 0.0625, 0.    ])
    """
    cells = np.asarray(counts, dtype=np.float64)
    if total <= 0:
        return np.full(len(cells), 1.0 / len(cells))
    largest = np.sort(cells)[::-1]
    thresholds = (np.cumsum(largest) - total) / np.arange(1, len(cells) + 1)
    return np.clip(cells - thresholds[largest > thresholds][-1], 0.0, None) / total


# -- what a bin costs ---------------------------------------------------------------------------------------


def _squared_costs(weights: FloatArray, values: FloatArray, odds: float) -> tuple[FloatArray, FloatArray]:
    """Return costs and outputs of the bins from i up to j, at [j, i]. The best output is a mean, in closed form."""
    mean = float(weights @ values)
    apart = values - mean
    moments = [_spans(weights * apart**power) * (1.0 - odds) for power in range(3)]
    mass, first, second = moments[0] + odds, moments[1], moments[2] + odds * float(weights @ apart**2)
    shift = first / mass
    return np.clip(second - first * shift, 0.0, None), np.clip(mean + shift, values[0], values[-1])


def _spans(terms: FloatArray) -> FloatArray:
    """Return the sum of terms i … j − 1, at [j, i]."""
    sums = np.concatenate([[0.0], np.cumsum(terms)])
    return np.subtract.outer(sums, sums)


def _costs(losses: FloatArray, allowed: FloatArray, odds: float) -> tuple[FloatArray, FloatArray]:
    """Return the same for any loss, p_y·ℓ(o, y) given as (candidates, m): the best candidate is searched for."""
    sums = np.zeros((losses.shape[1] + 1, len(allowed)))
    np.cumsum(losses.T, axis=0, out=sums[1:])
    everywhere = odds * sums[-1]
    sums *= 1.0 - odds
    costs = np.full((len(sums), len(sums)), np.inf)
    outputs = np.zeros_like(costs)
    for end in range(1, len(sums)):
        rise = sums[end] + everywhere - sums[:end]
        best = rise.argmin(axis=1)
        costs[end, :end] = rise[np.arange(end), best]
        outputs[end, :end] = allowed[best]
    return costs, outputs


def _losses(loss: Loss, outputs: FloatArray, values: FloatArray) -> FloatArray:
    """Return ℓ(output, label), (outputs, m)."""
    o, y = outputs[:, None], values[None, :]
    if callable(loss):
        table = np.broadcast_to(np.asarray(loss(o, y), dtype=np.float64), (len(outputs), len(values)))
        if not np.isfinite(table).all():
            raise ValueError("loss is not finite for some output and label; clip it, or leave those outputs out")
        return table
    if loss not in {"squared", "absolute"}:
        raise ValueError(f'loss is {loss!r}; give "squared", "absolute" or a function of (outputs, labels)')
    return (o - y) ** 2 if loss == "squared" else np.abs(o - y)


# -- the partition ------------------------------------------------------------------------------------------


def _best_ends(costs: FloatArray, odds: float) -> npt.NDArray[np.int64]:
    """Return the ends 0 = e_0 < … < e_k = m of the bins of least Σ cost / (1 − q + k·q), one bin unless more pay."""
    ends = np.array([0, len(costs) - 1])
    while True:
        ratio = _ratio(costs, ends, odds)
        found = _shortest_path(costs, ratio * odds)
        if not _ratio(costs, found, odds) < ratio * (1.0 - _IMPROVEMENT):
            return ends
        ends = found


def _ratio(costs: FloatArray, ends: npt.NDArray[np.int64], odds: float) -> float:
    return float(costs[ends[1:], ends[:-1]].sum() / (1.0 + (len(ends) - 2) * odds))


def _shortest_path(costs: FloatArray, rebate: float) -> npt.NDArray[np.int64]:
    """Return the partition of least Σ (cost − rebate), as its ends."""
    length, before = np.zeros(len(costs)), np.zeros(len(costs), dtype=np.int64)
    for end in range(1, len(costs)):
        through = length[:end] + costs[end, :end]
        before[end] = through.argmin()
        length[end] = through[before[end]] - rebate
    ends = [len(costs) - 1]
    while ends[-1]:
        ends.append(int(before[ends[-1]]))
    return np.array(ends[::-1])


def _preferred(bins: Bins, outputs: FloatArray, values: FloatArray, loss: Loss) -> tuple[Bins, FloatArray]:
    """Put every level in the bin whose output it prefers: no worse, and it places the levels of probability 0."""
    distinct = np.unique(outputs)
    preferred = _losses(loss, distinct, values).argmin(axis=0)
    if (np.diff(preferred) < 0).any():
        return bins, outputs
    # An output that no level prefers costs at least as much as one bin for all: it is left out.
    kept, bins = np.unique(preferred, return_inverse=True)
    return bins.astype(np.int64), distinct[kept]


# -- checks -------------------------------------------------------------------------------------------------


def _checked(
    histogram: npt.ArrayLike, grid_values: npt.ArrayLike, epsilon: float
) -> tuple[FloatArray, FloatArray, float]:
    """Return probabilities, label values and e^{-ε}."""
    if not epsilon >= 0:
        raise ValueError(f"epsilon is {epsilon!r}; give a number of at least 0 (math.inf for no privacy)")
    values = _increasing("grid_values", grid_values)
    weights = np.array(histogram, dtype=np.float64)
    if weights.shape != values.shape:
        raise ValueError(f"histogram has shape {weights.shape}; give one weight for each of {len(values)} grid_values")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError("histogram has entries that are negative or not finite; give weights of at least 0")
    weights = weights / (weights.max() or 1.0)
    total = weights.sum()
    uniform = np.full(len(values), 1.0 / len(values))
    return (weights / total if total > 0 else uniform), values, math.exp(-epsilon)


def _increasing(name: str, numbers: npt.ArrayLike) -> FloatArray:
    array = np.array(numbers, dtype=np.float64)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all() or not (np.diff(array) > 0).all():
        raise ValueError(f"{name} has shape {array.shape}; give at least one finite number, in increasing order")
    return array
