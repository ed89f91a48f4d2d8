"""Which candidate is right most often, and nothing else: a private choice between models."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from labeldp.core.events import Event, PureDP
from labeldp.core.random import SecureRandom, exp_coins
from labeldp.core.vault import LabelArray
from labeldp.mechanisms.common import checked_classes, checked_epsilon, pieces, same_classes
from labeldp.releases import BoolArray, FloatArray

_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False, init=False)
class BestCandidate:
    """The candidate with most right predictions, by permute-and-flip (McKenna and Sheldon 2020): one query.

        s_c = #{i : prediction_ci = y_i};  candidate c comes up heads with probability p_c = e^{-(ε/2)·(s_max − s_c)};
        the winner is any of the heads, all alike.   P(c wins) = p_c · ∫₀¹ Π_{j≠c} (1 − u·p_j) du

    Predictions are public: the candidates must have learnt from other rows, or from releases that were paid for.
    The best candidate is always heads, so there is a winner, and a candidate g rows behind the best wins with chance at
    most e^{-(ε/2)·g}: with C of them the winner is in the mean at most about (2/ε)·ln C rows worse. No mechanism of
    this kind does better at every score table (McKenna and Sheldon 2020).

    Proof of ε-privacy. The same distribution has argmax_c s_c + E_c with independent exponential E_c, P(E ≥ m) = min(1,
    e^{-(ε/2)·m}) (Ding et al. 2021). Given the others' E, candidate c wins iff E_c ≥ m = max_{j≠c}(s_j + E_j) − s_c. A
    replaced label takes at most 1 from every score or adds at most 1, so m rises by at most 2, and P(E ≥ m + 2) ≥
    e^{-ε}·P(E ≥ m). Scores do move against each other, where one candidate said the old label and another says the new
    one, so the rate cannot be ε.

    >>> ask = BestCandidate([[0, 1, 1, 0], [0, 0, 0, 0]], num_classes=2, epsilon=math.inf)
    >>> ask.sample(np.array([0, 1, 1, 1], dtype=np.uint8), SecureRandom())
    0
    >>> ask.chances([3, 1]).tolist()
    [1.0, 0.0]
    """

    epsilon: float
    num_classes: int
    predictions: npt.NDArray[np.int64] = field(repr=False)

    def __init__(self, predictions: npt.ArrayLike, num_classes: int, epsilon: float) -> None:
        table = np.array(predictions)
        if table.ndim != 2 or not len(table) or table.dtype.kind not in "iu":
            raise ValueError(
                f"predictions has shape {table.shape} and type {table.dtype}; give whole numbers (candidates, rows)"
            )
        classes = checked_classes(num_classes)
        strange = int(np.count_nonzero((table < 0) | (table >= classes)))
        if strange:
            raise ValueError(f"predictions has {strange} entries outside 0 to {classes - 1}")
        table = table.astype(np.int64)
        table.setflags(write=False)
        object.__setattr__(self, "epsilon", checked_epsilon(epsilon))
        object.__setattr__(self, "num_classes", classes)
        object.__setattr__(self, "predictions", table)

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless every candidate predicts every row, in the classes of the data."""
        same_classes(self.num_classes, num_classes)
        if self.predictions.shape[1] != num_rows:
            raise ValueError(f"predictions has {self.predictions.shape[1]} rows, the data {num_rows}; make it equal")

    def event(self) -> Event:
        """ε-privacy with δ = 0."""
        return PureDP(self.epsilon)

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> int:
        """The winner's number."""
        scores = np.zeros(len(self.predictions), dtype=np.int64)
        for part in pieces(len(labels), _ROWS_AT_ONCE):
            scores += np.count_nonzero(self.predictions[:, part] == labels[part], axis=1)
        heads = np.flatnonzero(self._heads(scores, rng))
        return int(heads[int(rng.below(len(heads), 1)[0])])

    def _heads(self, scores: npt.NDArray[np.int64], rng: SecureRandom) -> BoolArray:
        """One coin per candidate, (C,); exact, no probability is ever rounded."""
        behind = scores.max() - scores
        if self.epsilon == math.inf:
            return behind == 0
        rate = Fraction(self.epsilon) / 2
        with np.errstate(over="ignore"):
            gamma = behind * (self.epsilon / 2)
        return exp_coins(rng, gamma, lambda c: rate * int(behind[c]))

    def chances(self, scores: npt.ArrayLike) -> FloatArray:
        """P(candidate wins), (C,), for scores that are no secret: to plan with.

        The integral is that of a polynomial of degree C − 1, and ⌈C/2⌉ Gauss points make it exact but for rounding.
        """
        table = np.asarray(scores, dtype=np.float64)
        behind = table.max() - table
        heads = np.exp(-behind * (self.epsilon / 2)) if self.epsilon < math.inf else (behind == 0).astype(np.float64)
        points, weights = np.polynomial.legendre.leggauss(-(-len(table) // 2))
        result = np.zeros_like(table)
        for u, weight in zip((points + 1.0) / 2.0, weights / 2.0, strict=True):
            tails = 1.0 - u * heads
            result += weight * tails.prod() * (heads / tails)
        return result
