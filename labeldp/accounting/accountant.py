"""From looks to ε and δ: the tightest accountant that is exact for the looks at hand.

========================================  ==================================================================
looks                                     accountant
========================================  ==================================================================
any non-private one                       ε = ∞
pure only, δ = 0                          the sum
pure only, δ > 0                          randomized responses composed exactly (Kairouz, Oh & Viswanath 2015)
Gaussian only                             one Gaussian with μ² = Σ μᵢ² (Dong, Roth & Su 2022)
one look                                  its own privacy profile
everything else                           :mod:`labeldp.accounting.pld`
========================================  ==================================================================

Answers are never below the truth. ε is at most about 1e-6 (relative) above it, except where the grid had to be
coarsened: beyond about 1e6 looks, or tiny rates with rare large losses (rate 1e-6 over 1e5 looks), it may be 1e-4
to several percent above.
"""

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from labeldp.accounting.calibration import calibrate, gradient_looks, noise_multiplier
from labeldp.accounting.events import (
    FixedSizeGaussian,
    Gaussian,
    Look,
    Looks,
    NonPrivate,
    PoissonGaussian,
    PublicBatchGaussian,
    PureDP,
    TeacherVoting,
)
from labeldp.accounting.gaussian import (
    AccountingError,
    analytic_gaussian_std,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    smallest_epsilon,
)
from labeldp.accounting.pld import pld_delta, pld_epsilon
from labeldp.accounting.sketch import reach
from labeldp.accounting.special import expit, log_binomial

__all__ = [
    "AccountingError",
    "accountant_name",
    "analytic_gaussian_std",
    "calibrate",
    "delta",
    "epsilon",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gradient_looks",
    "noise_multiplier",
]

Array = NDArray[np.float64]

SMALLEST_DELTA = 1e-12
_MAX_ATOMS = 20_000


def epsilon(looks: Iterable[Look], delta: float) -> float:
    """Smallest ε the looks together guarantee at ``delta``, rounded up.

    >>> epsilon([Look(PureDP(0.5), 2)], 0.0)
    1.0
    """
    _check_delta(delta)
    return _epsilon(_merged(looks), delta)


def delta(looks: Iterable[Look], epsilon: float) -> float:
    """Smallest δ the looks together guarantee at ``epsilon``, rounded up.

    >>> delta([Look(PureDP(0.5), 2)], 1.0)
    0.0
    """
    if not epsilon >= 0:
        raise AccountingError(f"epsilon must be a number ≥ 0, got {epsilon!r}.")
    return _delta(_merged(looks), float(epsilon))


def accountant_name(looks: Iterable[Look], delta: float) -> str:
    """Which accountant answers for these looks, in words."""
    _check_delta(delta)
    merged = _merged(looks)
    if not merged:
        return "nothing to account"
    if _infinite(merged) or (delta == 0 and not _pure(merged)):
        return "infinite"
    if _pure(merged):
        return "sum of pure epsilons" if delta == 0 else "composed randomized responses"
    if _gaussian_only(merged):
        return "Gaussian closed form"
    if _single(merged):
        return "privacy profile of one look"
    return "privacy loss distribution, connect-the-dots"


@lru_cache(maxsize=4096)
def _epsilon(looks: Looks, delta: float) -> float:
    if not looks or (delta == 1 and not _infinite(looks)):
        return 0.0
    if _infinite(looks) or (delta == 0 and not _pure(looks)):
        return math.inf
    if _pure(looks):
        return _pure_epsilon(looks, delta)
    if _gaussian_only(looks):
        return gaussian_epsilon(_total_mu(looks), delta)
    if _single(looks):
        # δ(ε) ≤ P(L > ε), so ε need not be searched beyond this.
        return smallest_epsilon(lambda eps: _delta(looks, eps), delta, reach(looks[0].event, delta))
    return pld_epsilon(looks, delta)


@lru_cache(maxsize=4096)
def _delta(looks: Looks, epsilon: float) -> float:
    if not looks or _infinite(looks):
        return 1.0 if looks else 0.0
    if math.isinf(epsilon) or (_pure(looks) and epsilon >= _pure_sum(looks)):
        return 0.0
    if _gaussian_only(looks):
        return gaussian_delta(_total_mu(looks), epsilon)
    if _single(looks):
        return float(looks[0].event.profile(epsilon)[0])
    if _pure(looks) and _atom_count(looks) <= _MAX_ATOMS:
        return min(1.0, _pure_delta(looks, epsilon))
    return pld_delta(looks, epsilon)


def _merged(looks: Iterable[Look]) -> Looks:
    """Free looks dropped, equal events counted together, Gaussians joined into one; order does not matter."""
    counts: dict[Look, int] = {}
    for look in looks:
        if look.times and not look.event.free:
            counts[Look(look.event)] = counts.get(Look(look.event), 0) + look.times
    merged = sorted((Look(one.event, times) for one, times in counts.items()), key=repr)
    shifts = [look for look in merged if _mu(look) is not None]
    if len(shifts) > 1 or any(look.times > 1 for look in shifts):
        joint = Look(Gaussian(1.0, _total_mu(tuple(shifts))))
        merged = [*(look for look in merged if _mu(look) is None), joint]
    return tuple(merged)


def _mu(look: Look) -> float | None:
    """Distance of means if the event is a plain Gaussian one, a vote, or a sampled one that always samples."""
    event = look.event
    if isinstance(event, Gaussian | TeacherVoting):
        return event.mu
    sampled = isinstance(event, PoissonGaussian | FixedSizeGaussian | PublicBatchGaussian)
    return event.diameter / event.noise_std if sampled and event.rate == 1 else None


def _total_mu(looks: Looks) -> float:
    return math.sqrt(math.fsum(look.times * (_mu(look) or 0.0) ** 2 for look in looks))


def _gaussian_only(looks: Looks) -> bool:
    return all(_mu(look) is not None for look in looks)


def _pure(looks: Looks) -> bool:
    return all(isinstance(look.event, PureDP) for look in looks)


def _single(looks: Looks) -> bool:
    return len(looks) == 1 and looks[0].times == 1


def _infinite(looks: Looks) -> bool:
    return any(
        isinstance(look.event, NonPrivate) or (isinstance(look.event, PureDP) and math.isinf(look.event.epsilon))
        for look in looks
    )


def _pure_sum(looks: Looks) -> float:
    """The exact sum of the epsilons, rounded up to a float."""
    exact = sum(
        (look.times * Fraction(look.event.epsilon) for look in looks if isinstance(look.event, PureDP)),
        Fraction(0),
    )
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def _pure_epsilon(looks: Looks, delta: float) -> float:
    total = _pure_sum(looks)
    if delta == 0:
        return total
    if _atom_count(looks) > _MAX_ATOMS:
        return min(total, pld_epsilon(looks, delta))
    return smallest_epsilon(lambda eps: _pure_delta(looks, eps), delta, total)


def _atom_count(looks: Looks) -> int:
    return math.prod(look.times + 1 for look in looks)


def _pure_delta(looks: Looks, epsilon: float) -> float:
    losses, masses = _pure_atoms(looks)
    return float(np.sum(masses * -np.expm1(np.minimum(epsilon - losses, 0.0))))


@lru_cache(maxsize=64)
def _pure_atoms(looks: Looks) -> tuple[Array, Array]:
    """Every total loss Σ (2jₖ − tₖ)εₖ and its binomial probability, inflated by what logarithms may lose."""
    losses, log_mass, slack = np.zeros(1), np.zeros(1), 1e-13
    for look in looks:
        if isinstance(look.event, PureDP):
            eps, n = look.event.epsilon, look.times
            k = np.arange(n + 1, dtype=np.float64)
            log_p = log_binomial(n, k) + k * math.log(expit(eps)) + (n - k) * (math.log(expit(eps)) - eps)
            losses = (losses[:, None] + (2 * k - n) * eps).ravel()
            log_mass = (log_mass[:, None] + log_p).ravel()
            slack += 1e-15 * n * (10 + math.log(n) + eps)
    return losses, np.exp(log_mass + slack)


def _check_delta(delta: float) -> None:
    if not 0 <= delta <= 1:
        raise AccountingError(f"delta must lie between 0 and 1, got {delta!r}.")
    if 0 < delta < SMALLEST_DELTA:
        raise AccountingError(
            f"delta must be 0 or at least {SMALLEST_DELTA:g}, got {delta!r}: less is beyond double precision."
        )
