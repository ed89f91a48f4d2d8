"""Go back from ε: to δ, and at a given (ε, δ) to the most that a Gaussian may move.

For audits, and for the choice of noise. No certificate rests on it: what was chosen is accounted for as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

from labeldp.core.accountant import (
    MAX_ATOMS,
    atom_count,
    is_gaussian,
    is_infinite,
    is_pure,
    is_single,
    merged,
    pure_delta,
    pure_sum,
    total_mu,
)
from labeldp.core.events import Queries, Query
from labeldp.core.gaussian import ROUNDING, AccountingError, check_arguments, finite_log, gaussian_delta, root
from labeldp.core.pld import AIM, NEGLECT, coarse, compose, connect_dots, infinite_mass, log_moments, reach

# What may be neglected at all; below _TINY a bound replaces the result.
_SMALLEST, _TINY = 1e-60, 1e-40


def delta(queries: Iterable[Query], epsilon: float) -> float:
    """Return the smallest δ the queries together guarantee at ``epsilon``, rounded up.

    >>> from labeldp.core.events import PureDP
    >>> delta([Query(PureDP(0.5), 2)], 1.0)
    0.0
    """
    if not epsilon >= 0:
        raise AccountingError(f"epsilon must be a number ≥ 0, got {epsilon!r}.")
    return _delta(merged(queries), float(epsilon))


@lru_cache(maxsize=4096)
def _delta(queries: Queries, epsilon: float) -> float:
    if not queries or is_infinite(queries):
        return 1.0 if queries else 0.0
    if math.isinf(epsilon) or (is_pure(queries) and epsilon >= pure_sum(queries)):
        return 0.0
    if is_gaussian(queries):
        return gaussian_delta(total_mu(queries), epsilon)
    if is_single(queries):
        return float(queries[0].event.profile(epsilon)[0])
    if is_pure(queries) and atom_count(queries) <= MAX_ATOMS:
        return min(1.0, pure_delta(queries, epsilon))
    return pld_delta(queries, epsilon)


def pld_delta(queries: Sequence[Query], epsilon: float) -> float:
    """Return δ(ε) of the composed privacy loss distributions, rounded up."""
    # Far out the loss may have a heavy tail, which would draw the saddle point away from it.
    rough = coarse(queries, _SMALLEST)
    for _ in range(2):
        rough = coarse(queries, max(NEGLECT * rough.saddle_at_epsilon(epsilon).delta, _SMALLEST))
    saddle = rough.saddle_at_epsilon(epsilon)
    if saddle.epsilon < 0.999 * epsilon - 0.01 * saddle.spread or saddle.delta < _TINY:
        return _chernoff(queries, saddle.tilt, epsilon)
    # A relative error of AIM in δ needs an error of AIM/λ in ε.
    composed = compose(queries, rough, saddle, tolerance=AIM / saddle.tilt)
    return min(1.0, composed.delta(epsilon))


def _chernoff(queries: Sequence[Query], tilt: float, epsilon: float) -> float:
    """Return the bound δ(ε) ≤ P(L > ε) ≤ e^{K(λ) − λε}, for results so small that only their order matters."""
    tops = [reach(query.event, _SMALLEST / sum(each.times for each in queries)) for query in queries]
    grids = [
        connect_dots(query.event, top / 10_000, 10_000, query.times) for query, top in zip(queries, tops, strict=True)
    ]
    return min(1.0, math.exp(min(log_moments(grids, tilt) - tilt * epsilon, 0.0)) + infinite_mass(grids))


# -- the Gaussian mechanism ----------------------------------------------------------------------------------


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest μ that is (ε, δ) private, rounded down: the inverse of :func:`gaussian_epsilon`."""
    check_arguments(epsilon=epsilon, open_delta=delta)

    def excess(log_mu: float) -> float:
        return finite_log(gaussian_delta(math.exp(log_mu), epsilon)) - math.log(delta)

    low = high = math.log(max(epsilon, delta))
    while excess(low) > 0:
        low -= 2
    while excess(high) < 0:
        high += 2
    return math.exp(root(excess, low, high)) * (1 - 4 * ROUNDING)


def analytic_gaussian_std(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return the noise standard deviation for an L2 ``sensitivity``, rounded up (Balle & Wang 2018).

    >>> round(analytic_gaussian_std(1.0, 1e-5, 2**0.5), 5)
    5.27591
    """
    check_arguments(sensitivity=sensitivity)
    return sensitivity / gaussian_mu(epsilon, delta)
