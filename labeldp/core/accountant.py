"""Turn queries into ε at a given δ, by the tightest accountant that is exact for the queries at hand.

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
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from labeldp.core.events import Event, Gaussian, NonPrivate, PureDP, Queries, Query, gathered, rounded_up
from labeldp.core.gaussian import AccountingError, expit, gaussian_epsilon, log_binomial, smallest_epsilon
from labeldp.core.pld import pld_epsilon, reach

Array = NDArray[np.float64]

SMALLEST_DELTA = 1e-12
# Beyond this an ε is as good as infinite.
LARGEST_EPSILON = 1e6
MAX_ATOMS = 20_000


def epsilon(queries: Iterable[Query], delta: float) -> float:
    """Return the smallest ε the queries together guarantee at ``delta``, rounded up.

    >>> epsilon([Query(PureDP(0.5), 2)], 0.0)
    1.0
    """
    return _epsilon(merged(queries), checked_delta(delta))


def accountant_name(queries: Iterable[Query], delta: float) -> str:
    """Say in words which accountant is the one for these queries."""
    return _accountant(merged(queries), checked_delta(delta))[0]


@lru_cache(maxsize=4096)
def _epsilon(queries: Queries, delta: float) -> float:
    return _accountant(queries, delta)[1]()


def _accountant(queries: Queries, delta: float) -> tuple[str, Callable[[], float]]:
    """Return the accountant's name, and what computes ε: the first row of the table that fits."""
    table: list[tuple[bool, str, Callable[[], float]]] = [
        (is_infinite(queries) or (delta == 0 and not is_pure(queries)), "infinite", lambda: math.inf),
        (not queries or delta == 1, "nothing to account", lambda: 0.0),
        (is_pure(queries) and delta == 0, "sum of pure epsilons", lambda: pure_sum(queries)),
        (is_pure(queries), "composed randomized responses", lambda: _pure_epsilon(queries, delta)),
        (is_gaussian(queries), "Gaussian closed form", lambda: gaussian_epsilon(total_mu(queries), delta)),
        (is_single(queries), "privacy profile of one query", lambda: _profile_epsilon(queries[0].event, delta)),
        (True, "privacy loss distribution, connect-the-dots", lambda: pld_epsilon(queries, delta)),
    ]
    return next((name, compute) for fits, name, compute in table if fits)


def _profile_epsilon(event: Event, delta: float) -> float:
    # δ(ε) ≤ P(L > ε), so ε need not be searched beyond the event's reach.
    return smallest_epsilon(lambda eps: float(event.profile(eps)[0]), delta, reach(event, delta))


def merged(queries: Iterable[Query]) -> Queries:
    """Drop free queries, count equal events together, join Gaussians into one; order does not matter."""
    asked = gathered(query for query in queries if query.times and not query.event.free)
    shifts = tuple(query for query in asked if query.event.mu is not None)
    if sum(query.times for query in shifts) < 2:
        return asked
    return (*(query for query in asked if query.event.mu is None), Query(Gaussian(1.0, total_mu(shifts))))


def total_mu(queries: Queries) -> float:
    """Return the μ of the one Gaussian that these Gaussian queries amount to."""
    return math.sqrt(math.fsum(query.times * (query.event.mu or 0.0) ** 2 for query in queries))


# -- which kind of queries -----------------------------------------------------------------------------------


def is_gaussian(queries: Queries) -> bool:
    """Return whether all of them are plain Gaussians."""
    return all(query.event.mu is not None for query in queries)


def is_pure(queries: Queries) -> bool:
    """Return whether all of them are pure."""
    return all(isinstance(query.event, PureDP) for query in queries)


def is_single(queries: Queries) -> bool:
    """Return whether there is one, asked once."""
    return len(queries) == 1 and queries[0].times == 1


def is_infinite(queries: Queries) -> bool:
    """Return whether any of them protects nothing."""
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
    if atom_count(queries) > MAX_ATOMS:
        return min(total, pld_epsilon(queries, delta))
    return smallest_epsilon(lambda eps: pure_delta(queries, eps), delta, total)


def atom_count(queries: Queries) -> int:
    """Return how many total losses pure queries can have, were no two of them equal."""
    return math.prod(query.times + 1 for query in queries)


def pure_delta(queries: Queries, epsilon: float) -> float:
    """Return δ(ε) of pure queries, from all their losses."""
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
