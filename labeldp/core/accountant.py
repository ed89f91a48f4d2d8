"""Turn a history of queries into ε at a given δ, never below the truth.

**One plan.** A *plan* is a set of queries whose events were fixed before the first of them was drawn. Inside a plan
privacy losses add up as distributions, and the first row of this table that fits computes ε:

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

ε is at most about 1e-6 (relative) above the truth, except where the grid had to be coarsened: beyond about 1e6 queries,
or tiny rates with rare large losses (rate 1e-6 over 1e5 queries), it may be 1e-4 to several percent above.

**Several plans**, chosen one after the other: which comes next may depend on what the last one gave. Losses do not add
up as distributions then: whoever picks the next event by the last outcome can make more of both than any fixed list
allows. What holds is a *filter*: a rule, fixed in advance, that stops before the plans so far would break (ε, δ)
(Rogers, Roth, Ullman & Vadhan 2016). `plans_epsilon` is the smallest ε at which the rule below lets a history of plans
pass, so a budget is kept when it stays within the budget's ε; and a claim about several plans says what a budget fixed
in advance would have had to be.

The rule passes a history when one of these does. Let H(ε) be P(S) − e^ε Q(S) at its largest.

* *One plan*: its own ε at δ. It was chosen before any outcome.
* *All pure*: Σ ε. Every factor of P/Q is bounded wherever the choices lead; no δ is used.
* *Sums*: Σ εᵢ(δⱼ), pure plans at no δ and the j-th other plan at δⱼ = 6/(π²j²) of this filter's share. By induction
  from the last plan: where what follows outcome o has H(ε − ε₁) ≤ δ − δ₁, P(S) is at most
  ∫ p(do) min(1, e^{ε−ε₁} Q_o(S)) + δ − δ₁ ≤ e^{ε₁} ∫ q(do) e^{ε−ε₁} Q_o(S) + δ₁ + δ − δ₁.
* *Gaussian*, where every event is one: Σ μᵢ² ≤ μ², with μ the largest for ε and this share of δ. A Gaussian query of
  distance μᵢ is post-processing of a Brownian motion of drift 0 or 1 watched for a time μᵢ² (Blackwell). Plans watch
  one stretch after the other, so all that is seen follows from the path up to time μ² (Smith & Thakurta 2022).
* *Rényi* at one order α = 1 + λ that ε and δ fix: Σ Kᵢ(λ) ≤ K, with K(λ) = log E_P e^{λL}. Given the past,
  E e^{λLᵢ − Kᵢ} ≤ 1, so E e^{λL} ≤ e^K when the rule stops (Feldman & Zrnic 2021), and
  (1 − e^{ε−x})₊ ≤ e^{λ(x−ε)} λ^λ/α^α gives H(ε) ≤ e^{K−λε} λ^λ/α^α (Canonne, Kamath & Steinke 2020). The order
  λ = (ℓ + √(ℓ² + ℓε))/ε, ℓ = −log δ, is about the best for a Gaussian that fills the budget. As ε grows it falls, and
  with it K(λ)/λ, while ε − (ℓ − log α)/λ + log(α/λ) grows: what passes at ε passes at every larger one.

Which of them passes depends on the outcomes, so their δ must add up to δ: a history that filter f lets pass has the
probability that f alone would give it, and P(S) = Σ_f P(S, f passes) ≤ Σ_f (e^ε Q(S, f passes) + δ_f). The shares may
depend on the first plan, which no outcome has touched. "One plan" needs no share: if only it lets the first plan
pass, none of the others lets a second one pass; and if another does, the others' shares cover the first plan, too.
Plans may be drawn in turns, a lease while a moment is released: filters hold for that as well (Haney et al. 2023,
Concurrent Composition for Interactive Differential Privacy with Adaptive Privacy-Loss Parameters).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from labeldp.core.events import Event, Gaussian, NonPrivate, PureDP, Queries, Query, gathered, rounded_up
from labeldp.core.gaussian import AccountingError, expit, gaussian_epsilon, log_binomial, root, smallest_epsilon
from labeldp.core.pld import log_moment, pld_epsilon, reach

Array = NDArray[np.float64]
Plans = tuple[Queries, ...]

SMALLEST_DELTA = 1e-12
# Beyond this an ε is as good as infinite.
LARGEST_EPSILON = 1e6
MAX_ATOMS = 20_000
FILTER = "fully adaptive filter (sums, Gaussian, Rényi)"
# Shares of δ: Gaussian, sums, Rényi. A first plan that is not Gaussian leaves the Gaussian filter nothing to pass.
_AFTER_GAUSSIAN, _AFTER_OTHERS = (0.8, 0.1, 0.1), (0.0, 0.5, 0.5)
# Losses that `log_moment` leaves out come to less than this part of δ, over 2^53 queries of every event.
_LEFT_OUT = 1e-9
_ROUNDING = 1e-12


def epsilon(queries: Iterable[Query], delta: float) -> float:
    """Return the smallest ε the queries together guarantee at ``delta``, rounded up.

    >>> epsilon([Query(PureDP(0.5), 2)], 0.0)
    1.0
    """
    return _epsilon(merged(queries), checked_delta(delta))


def plans_epsilon(plans: Plans, delta: float) -> float:
    """Return the smallest ε at which the filter lets these plans pass, at ``delta``, rounded up.

    >>> plans_epsilon(((Query(PureDP(0.5)),), (Query(PureDP(0.25)),)), 0.0)
    0.75
    """
    asked = _asked(plans)
    return epsilon(chain(*asked), delta) if len(asked) < 2 else _filtered(asked, checked_delta(delta))


def accountant_name(plans: Plans, delta: float) -> str:
    """Say in words how these plans are accounted for."""
    asked, together = _asked(plans), merged(chain(*plans))
    if len(asked) > 1 and delta > 0 and not is_infinite(together):
        return FILTER
    return _accountant(together, checked_delta(delta))[0]


def _asked(plans: Plans) -> Plans:
    return tuple(plan for plan in map(merged, plans) if plan)


# -- one plan ------------------------------------------------------------------------------------------------


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


# -- several plans: the filter -------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _filtered(plans: Plans, delta: float) -> float:
    together = merged(chain(*plans))
    pure = pure_sum(together) if is_pure(together) else math.inf
    if delta == 0 or is_infinite(together):
        return pure
    gaussian, sums, renyi = _AFTER_GAUSSIAN if is_gaussian(plans[0]) else _AFTER_OTHERS
    best = min(pure, _renyi(together, renyi * delta))
    if is_gaussian(together):
        best = min(best, gaussian_epsilon(total_mu(together), gaussian * delta))
    return min(best, _sums(plans, sums * delta, best))


def _sums(plans: Plans, delta: float, enough: float) -> float:
    """Return the sum; infinity where it is more than ``enough``."""
    total, others = 0.0, 0
    for plan in plans:
        if is_pure(plan):
            total += pure_sum(plan)
        else:
            others += 1
            part = delta * 6 / (math.pi * others) ** 2
            total += epsilon(plan, part) if part >= SMALLEST_DELTA else math.inf
        if total > enough:
            return math.inf
    return total * (1 + _ROUNDING)


def _renyi(queries: Queries, delta: float) -> float:
    log_delta = -math.log(delta * (1 - _LEFT_OUT))

    def excess(eps: float) -> float:
        tilt = (log_delta + math.sqrt(log_delta * (log_delta + eps))) / eps
        spent = math.fsum(query.times * _log_moment(query, tilt) for query in queries) / tilt
        return spent - math.log1p(1 / tilt) + (log_delta - math.log1p(tilt)) / tilt - eps

    high = 1.0
    while excess(high) > 0:
        high *= 2
        if high > LARGEST_EPSILON:
            return math.inf
    low = high
    while low > SMALLEST_DELTA and excess(low) <= 0:
        low /= 2
    if excess(low) <= 0:
        return low
    eps = root(excess, low, high, rtol=_ROUNDING) * (1 + 2 * _ROUNDING)
    while excess(eps) > 0:
        eps *= 1 + 2 * _ROUNDING
    return eps


def _log_moment(query: Query, tilt: float) -> float:
    """Return log E e^{λL} of one query, in closed form for responses and Gaussians."""
    event = query.event
    if isinstance(event, PureDP):
        return tilt * event.epsilon + math.log1p(expit(-event.epsilon) * math.expm1(-2 * tilt * event.epsilon))
    return tilt * (tilt + 1) * event.mu**2 / 2 if event.mu is not None else log_moment(event, tilt)
