"""How much ε must a release have, if so many guesses about its labels were right? Exact, one-sided, no approximation.

Each of m canaries has one of c candidate labels, by a fair draw. An ε-private release changes the odds between two
labels of one row by at most e^ε, whatever is known of all other rows; so each guess, given the release and all other
labels, is right with probability at most

    cap(ε) = e^ε / (e^ε + c − 1),

and the number of right guesses among r is at most Binomial(r, cap) in the stochastic order: a martingale argument that
holds row by row, so r and the choice of rows may depend on the release (δ = 0). With δ > 0 and two candidates, for an r
fixed in advance (Steinke, Nasr & Jagielski 2023, Theorem 5.2; flipping a coin here is replacing one label, so there is
no factor 2 in ε):

    p(v) = P[Bin(r, cap) ≥ v] + 2 m δ · max_{1 ≤ i ≤ v} P[v > Bin(r, cap) ≥ v − i] / i.

The lower bound is the largest ε whose p is still below 1 − confidence; for δ = 0 it is Clopper and Pearson's (1934).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betainccinv, betaincinv, expit

# No release of labels has an ε beyond this that anyone would call private.
LARGEST = 100.0


def p_value(
    correct: int, guesses: int, epsilon: float, *, delta: float = 0.0, canaries: int = 0, candidates: int = 2
) -> float:
    """The chance, at most, of so many right guesses or more under an (ε, δ)-private release.

    >>> p_value(correct=75, guesses=100, epsilon=0.0) < 1e-6
    True
    >>> p_value(correct=75, guesses=100, epsilon=1.0) > 0.3
    True
    """
    check_counts(correct, guesses, candidates)
    if correct == 0 or math.isinf(epsilon):
        return 1.0
    cap = float(expit(epsilon - math.log(candidates - 1)))
    chance = float(_at_least(correct, guesses, cap))
    if delta == 0:
        return chance
    if candidates != 2:
        raise ValueError(f"candidates={candidates}: with delta={delta:g} the bound is proved for two; give 2")
    fewer = np.arange(1, correct + 1)
    worst = float(np.max((_at_least(correct - fewer, guesses, cap) - chance) / fewer))
    return min(1.0, chance + 2 * max(canaries, guesses) * delta * worst)


def _at_least(count: npt.ArrayLike, total: int, chance: float) -> npt.NDArray[np.float64]:
    """P[Bin(total, chance) ≥ count], the incomplete beta function; 1 for a count of 0.

    >>> _at_least([0, 1, 2], 2, 0.25)
    array([1.    , 0.4375, 0.0625])
    """
    counts = np.asarray(count, dtype=np.float64)
    return np.where(counts > 0, betainc(np.maximum(counts, 1), total - counts + 1, chance), 1.0)


def lower_bound(
    correct: int, guesses: int, confidence: float, *, delta: float = 0.0, canaries: int = 0, candidates: int = 2
) -> float:
    """The largest ε that so many right guesses rule out, with this confidence; 0 if they rule out none.

    >>> round(lower_bound(correct=731, guesses=1000, confidence=0.95), 3)
    0.881
    """
    missed = 1 - checked_confidence(confidence)

    def ruled_out(epsilon: float) -> bool:
        return p_value(correct, guesses, epsilon, delta=delta, canaries=canaries, candidates=candidates) < missed

    return largest_true(ruled_out, LARGEST)


def share_at_least(count: int, total: int, missed: float) -> float:
    """Clopper and Pearson's lower limit of a probability, too large with probability `missed` at most."""
    return 0.0 if count == 0 else float(betaincinv(count, total - count + 1, missed))


def share_at_most(count: int, total: int, missed: float) -> float:
    """Clopper and Pearson's upper limit of a probability, too small with probability `missed` at most."""
    return 1.0 if count == total else float(betainccinv(count + 1, total - count, missed))


def largest_true(holds: Callable[[float], bool], top: float, bottom: float = 0.0, steps: int = 50) -> float:
    """The largest number up to `top` for which this holds, rounded down; `bottom` if it holds nowhere."""
    if not holds(bottom):
        return bottom
    if holds(top):
        return top
    low, high = bottom, top
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def check_counts(correct: int, guesses: int, candidates: int) -> None:
    """Raise ValueError unless so many of the guesses can be right."""
    if not 0 <= correct <= guesses:
        raise ValueError(f"correct={correct} of guesses={guesses} is not a count of right guesses")
    if candidates < 2:
        raise ValueError(f"candidates={candidates}: with fewer than two there is nothing to guess")


def checked_confidence(confidence: float) -> float:
    """A probability strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} is not a probability; give one below 1, say 0.999")
    return confidence
