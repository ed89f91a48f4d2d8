"""Compose plans that were chosen one after the other: which comes next may depend on what the last one gave.

A *plan* is a set of queries whose events were fixed before the first of them was drawn. Inside a plan privacy losses
add up as distributions (:mod:`labeldp.core.accountant`). Between plans they do not: whoever picks the next event by the
last outcome can make more of both than any fixed list allows. What holds then is a *filter*: a rule, fixed in
advance, that stops before the plans so far would break (ε, δ) (Rogers, Roth, Ullman & Vadhan 2016). `epsilon` is the
smallest ε at which the rule below lets a history of plans pass, so a budget is kept when it stays within the budget's
ε; and a claim about several plans says what a budget fixed in advance would have had to be.

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
from functools import lru_cache
from itertools import chain

from labeldp.core import accountant
from labeldp.core.events import PureDP, Queries, Query
from labeldp.core.gaussian import expit, gaussian_epsilon, root
from labeldp.core.pld import log_moment

Plans = tuple[Queries, ...]

NAME = "fully adaptive filter (sums, Gaussian, Rényi)"
# Shares of δ: Gaussian, sums, Rényi. A first plan that is not Gaussian leaves the Gaussian filter nothing to pass.
_AFTER_GAUSSIAN, _AFTER_OTHERS = (0.8, 0.1, 0.1), (0.0, 0.5, 0.5)
# Losses that `log_moment` leaves out come to less than this part of δ, over 2^53 queries of every event.
_LEFT_OUT = 1e-9
_ROUNDING = 1e-12


def epsilon(plans: Plans, delta: float) -> float:
    """Return the smallest ε at which the filter lets these plans pass, at ``delta``, rounded up.

    >>> epsilon(((Query(PureDP(0.5)),), (Query(PureDP(0.25)),)), 0.0)
    0.75
    """
    asked = tuple(plan for plan in map(accountant.merged, plans) if plan)
    if len(asked) < 2:
        return accountant.epsilon(chain(*asked), delta)
    return _epsilon(asked, accountant.checked_delta(delta))


def accountant_name(plans: Plans, delta: float) -> str:
    """Say in words how these plans are accounted for."""
    asked = tuple(plan for plan in map(accountant.merged, plans) if plan)
    if len(asked) > 1 and delta > 0 and not accountant.is_infinite(_together(asked)):
        return NAME
    return accountant.accountant_name(chain(*asked), delta)


@lru_cache(maxsize=4096)
def _epsilon(plans: Plans, delta: float) -> float:
    together = _together(plans)
    pure = accountant.pure_sum(together) if accountant.is_pure(together) else math.inf
    if delta == 0 or accountant.is_infinite(together):
        return pure
    gaussian, sums, renyi = _AFTER_GAUSSIAN if accountant.is_gaussian(plans[0]) else _AFTER_OTHERS
    best = min(pure, _renyi(together, renyi * delta))
    if accountant.is_gaussian(together):
        best = min(best, gaussian_epsilon(accountant.total_mu(together), gaussian * delta))
    return min(best, _sums(plans, sums * delta, best))


def _together(plans: Plans) -> Queries:
    """Return the queries of all plans, equal events merged."""
    return accountant.merged(chain(*plans))


def _sums(plans: Plans, delta: float, enough: float) -> float:
    """Return the sum; infinity where it is more than ``enough``."""
    total, others = 0.0, 0
    for plan in plans:
        if accountant.is_pure(plan):
            total += accountant.pure_sum(plan)
        else:
            others += 1
            part = delta * 6 / (math.pi * others) ** 2
            total += accountant.epsilon(plan, part) if part >= accountant.SMALLEST_DELTA else math.inf
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
        if high > accountant.LARGEST_EPSILON:
            return math.inf
    low = high
    while low > accountant.SMALLEST_DELTA and excess(low) <= 0:
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
