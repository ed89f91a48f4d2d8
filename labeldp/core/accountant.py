"""From queries to ε and δ: the tightest accountant that is exact for the queries at hand.

========================================  ==================================================================
queries                                   accountant
========================================  ==================================================================
any non-private one                       ε = ∞
pure only, δ = 0                          the sum
pure only, δ > 0                          randomized responses composed exactly (Kairouz, Oh & Viswanath 2015)
Gaussian only                             one Gaussian with μ² = Σ μᵢ² (Dong, Roth & Su 2022)
one query                                 its own privacy profile
everything else                           :mod:`labeldp.core.pld`
========================================  ==================================================================

Results are never below the truth. ε is at most about 1e-6 (relative) above it, except where the grid had to be
coarsened: beyond about 1e6 queries, or tiny rates with rare large losses (rate 1e-6 over 1e5 queries), it may be 1e-4
to several percent above.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from labeldp.core.events import Gaussian, NonPrivate, PureDP, Queries, Query, rounded_up
from labeldp.core.gaussian import (
    AccountingError,
    expit,
    gaussian_delta,
    gaussian_epsilon,
    log_binomial,
    smallest_epsilon,
)
from labeldp.core.pld import pld_delta, pld_epsilon, reach

Array = NDArray[np.float64]

SMALLEST_DELTA = 1e-12
# Beyond this an ε is as good as infinite.
LARGEST_EPSILON = 1e6
_MAX_ATOMS = 20_000


def epsilon(queries: Iterable[Query], delta: float) -> float:
    """Return the smallest ε the queries together guarantee at ``delta``, rounded up.

    >>> epsilon([Query(PureDP(0.5), 2)], 0.0)
    1.0
    """
    return _epsilon(merged(queries), checked_delta(delta))


def delta(queries: Iterable[Query], epsilon: float) -> float:
    """Return the smallest δ the queries together guarantee at ``epsilon``, rounded up.

    >>> delta([Query(PureDP(0.5), 2)], 1.0)
    0.0
    """
    if not epsilon >= 0:
        raise AccountingError(f"epsilon must be a number ≥ 0, got {epsilon!r}.")
    return _delta(merged(queries), float(epsilon))


def accountant_name(queries: Iterable[Query], delta: float) -> str:
    """Say in words which accountant is the one for these queries."""
    checked_delta(delta)
    asked = merged(queries)
    if not asked:
        return "nothing to account"
    if is_infinite(asked) or (delta == 0 and not is_pure(asked)):
        return "infinite"
    if is_pure(asked):
        return "sum of pure epsilons" if delta == 0 else "composed randomized responses"
    if is_gaussian(asked):
        return "Gaussian closed form"
    return "privacy profile of one query" if _single(asked) else "privacy loss distribution, connect-the-dots"


@lru_cache(maxsize=4096)
def _epsilon(queries: Queries, delta: float) -> float:
    if not queries or (delta == 1 and not is_infinite(queries)):
        return 0.0
    if is_infinite(queries) or (delta == 0 and not is_pure(queries)):
        return math.inf
    if is_pure(queries):
        return _pure_epsilon(queries, delta)
    if is_gaussian(queries):
        return gaussian_epsilon(total_mu(queries), delta)
    if _single(queries):
        # δ(ε) ≤ P(L > ε), so ε need not be searched beyond this.
        return smallest_epsilon(lambda eps: _delta(queries, eps), delta, reach(queries[0].event, delta))
    return pld_epsilon(queries, delta)


@lru_cache(maxsize=4096)
def _delta(queries: Queries, epsilon: float) -> float:
    if not queries or is_infinite(queries):
        return 1.0 if queries else 0.0
    if math.isinf(epsilon) or (is_pure(queries) and epsilon >= pure_sum(queries)):
        return 0.0
    if is_gaussian(queries):
        return gaussian_delta(total_mu(queries), epsilon)
    if _single(queries):
        return float(queries[0].event.profile(epsilon)[0])
    if is_pure(queries) and _atom_count(queries) <= _MAX_ATOMS:
        return min(1.0, _pure_delta(queries, epsilon))
    return pld_delta(queries, epsilon)


def merged(queries: Iterable[Query]) -> Queries:
    """Drop free queries, count equal events together, join Gaussians into one; order does not matter."""
    counts: dict[Query, int] = {}
    for query in queries:
        if query.times and not query.event.free:
            counts[Query(query.event)] = counts.get(Query(query.event), 0) + query.times
    merged = sorted((Query(one.event, times) for one, times in counts.items()), key=repr)
    shifts = [query for query in merged if query.event.mu is not None]
    if len(shifts) > 1 or any(query.times > 1 for query in shifts):
        joint = Query(Gaussian(1.0, total_mu(tuple(shifts))))
        merged = [*(query for query in merged if query.event.mu is None), joint]
    return tuple(merged)


def total_mu(queries: Queries) -> float:
    """Return the μ of the one Gaussian that these Gaussian queries amount to."""
    return math.sqrt(math.fsum(query.times * (query.event.mu or 0.0) ** 2 for query in queries))


# -- which kind of queries -----------------------------------------------------------------------------------


def is_gaussian(queries: Queries) -> bool:
    """Whether all of them are plain Gaussians."""
    return all(query.event.mu is not None for query in queries)


def is_pure(queries: Queries) -> bool:
    """Whether all of them are pure."""
    return all(isinstance(query.event, PureDP) for query in queries)


def _single(queries: Queries) -> bool:
    return len(queries) == 1 and queries[0].times == 1


def is_infinite(queries: Queries) -> bool:
    """Whether any of them protects nothing."""
    events = [query.event for query in queries]
    return any(isinstance(e, NonPrivate) or (isinstance(e, PureDP) and math.isinf(e.epsilon)) for e in events)


# -- pure queries --------------------------------------------------------------------------------------------


def pure_sum(queries: Queries) -> float:
    """Return the exact sum of the epsilons, rounded up to a float."""
    if is_infinite(queries):
        return math.inf
    epsilons = ((query.times, query.event.epsilon) for query in queries if isinstance(query.event, PureDP))
    return rounded_up(sum((times * Fraction(each) for times, each in epsilons), Fraction(0)))


def _pure_epsilon(queries: Queries, delta: float) -> float:
    total = pure_sum(queries)
    if delta == 0:
        return total
    if _atom_count(queries) > _MAX_ATOMS:
        return min(total, pld_epsilon(queries, delta))
    return smallest_epsilon(lambda eps: _pure_delta(queries, eps), delta, total)


def _atom_count(queries: Queries) -> int:
    return math.prod(query.times + 1 for query in queries)


def _pure_delta(queries: Queries, epsilon: float) -> float:
    losses, masses = _pure_atoms(queries)
    return float(np.sum(masses * -np.expm1(np.minimum(epsilon - losses, 0.0))))


@lru_cache(maxsize=64)
def _pure_atoms(queries: Queries) -> tuple[Array, Array]:
    """Return every total loss Σ (2jₖ − tₖ)εₖ and its binomial probability, inflated by what logarithms may lose."""
    losses, log_mass, slack = np.zeros(1), np.zeros(1), 1e-13
    for query in queries:
        if isinstance(query.event, PureDP):
            eps, n = query.event.epsilon, query.times
            k = np.arange(n + 1, dtype=np.float64)
            log_p = log_binomial(n, k) + k * math.log(expit(eps)) + (n - k) * (math.log(expit(eps)) - eps)
            losses = (losses[:, None] + (2 * k - n) * eps).ravel()
            log_mass = (log_mass[:, None] + log_p).ravel()
            slack += 1e-15 * n * (10 + math.log(n) + eps)
    return losses, np.exp(log_mass + slack)


def checked_delta(delta: float) -> float:
    """Return δ, or raise AccountingError when it is not one."""
    if not 0 <= delta <= 1:
        raise AccountingError(f"delta must lie between 0 and 1, got {delta!r}.")
    if 0 < delta < SMALLEST_DELTA:
        raise AccountingError(
            f"delta must be 0 or at least {SMALLEST_DELTA:g}, got {delta!r}: less is beyond double precision."
        )
    return delta
