"""Closed forms for the Gaussian mechanism, accurate in relative terms far into the tails.

Write Φ, φ for the standard normal law and density, m(x) = Φ(−x)/φ(x) for the Mills ratio, and μ for the
distance of the two means in units of the noise. With z = μ/2 − ε/μ (Balle & Wang 2018)

    δ(ε) = Φ(z) − e^ε Φ(z − μ) = φ(z) [m(−z) − m(−z + μ)].

The first form loses every digit when μ is small; the second, with the difference written as an integral
of −m′(x) = 1 − x m(x) > 0, keeps them all.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from labeldp.accounting.special import log_ndtr, mills, ndtr, root

Array = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
# Relative accuracy granted to the special functions when a result must be rounded to the safe side.
_ROUNDING = 1e-13


class AccountingError(ValueError):
    """A privacy question that cannot be answered soundly, with the reason."""


def call_price(z: Array, r: float) -> Array:
    """∫₀^∞ φ(z − t)(1 − e^{−rt}) dt = Φ(z) − e^{r²/2 − rz} Φ(z − r), without cancellation.

    The name is from finance: a Black-Scholes call is this integral, and so is every hockey-stick divergence
    between Gaussians. For r < 1/2 the difference of Mills ratios is integrated by Gauss-Legendre (12 nodes:
    exact to rounding on so short an interval); callers with such an r always have z ≤ r.
    """
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    if r < 0.5:
        x = -z[..., None] + 0.5 * r * (1 + _NODES)
        return density * (0.5 * r) * ((1 - x * mills(x)) @ _WEIGHTS)
    near = np.minimum(z, 5.0)
    ratio = density * (mills(-near) - mills(r - near))
    direct = ndtr(z) - np.exp(0.5 * r * r - r * z + log_ndtr(z - r))
    return np.where(z > 5.0, direct, ratio)


def gaussian_profile(mu: float, eps: Array) -> Array:
    """δ at every ε ≥ 0 for two unit Gaussians at distance ``mu``."""
    return np.zeros_like(eps) if mu == 0 else call_price(mu / 2 - eps / mu, mu)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Smallest δ of a Gaussian mechanism whose answer moves by ``mu`` noise standard deviations."""
    _check(mu=mu, epsilon=epsilon)
    if math.isinf(epsilon):
        return 0.0
    return float(gaussian_profile(mu, np.array([epsilon]))[0])


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Smallest ε of a Gaussian mechanism at ``delta``, rounded up.

    >>> round(gaussian_epsilon(1.0, 1e-5), 6)
    4.377178
    """
    _check(mu=mu)
    _check_open_delta(delta)
    # Φ(z) ≤ δ at this ε, since Φ(−t) ≤ e^{−t²/2}: a bracket without search.
    upper = mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    return smallest_epsilon(lambda eps: gaussian_delta(mu, eps), delta, upper)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Largest μ that is (ε, δ) private, rounded down: the inverse of :func:`gaussian_epsilon`."""
    _check(epsilon=epsilon)
    _check_open_delta(delta)

    def excess(log_mu: float) -> float:
        return _log(gaussian_delta(math.exp(log_mu), epsilon)) - math.log(delta)

    low = high = math.log(max(epsilon, delta))
    while excess(low) > 0:
        low -= 2
    while excess(high) < 0:
        high += 2
    return math.exp(root(excess, low, high)) * (1 - 4 * _ROUNDING)


def analytic_gaussian_std(epsilon: float, delta: float, sensitivity: float) -> float:
    """Noise standard deviation for an L2 ``sensitivity``, rounded up (Balle & Wang 2018).

    >>> round(analytic_gaussian_std(1.0, 1e-5, 2**0.5), 5)
    5.27591
    """
    _check(sensitivity=sensitivity)
    return sensitivity / gaussian_mu(epsilon, delta)


def smallest_epsilon(profile: Callable[[float], float], delta: float, upper: float) -> float:
    """Smallest ε ≥ 0 with profile(ε) ≤ δ, rounded up; the profile falls steadily and is ≤ δ at ``upper``."""
    if profile(0.0) <= delta:
        return 0.0

    def excess(eps: float) -> float:
        return _log(profile(eps)) - math.log(delta)

    if excess(upper) >= 0:
        return upper
    eps = root(excess, 0.0, upper) * (1 + 2 * _ROUNDING)
    while profile(eps) > delta and eps < upper:
        eps *= 1 + 2 * _ROUNDING
    return min(eps, upper)


def _log(value: float) -> float:
    # Where a profile underflows, or is exactly zero, the root search still needs a finite number.
    return math.log(value) if value > 0 else -1e4


def _check(**arguments: float) -> None:
    for name, value in arguments.items():
        if not value >= 0 or (math.isinf(value) and name != "epsilon"):
            raise AccountingError(f"{name} must be a finite number ≥ 0, got {value!r}.")


def _check_open_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise AccountingError(
            f"delta must lie strictly between 0 and 1 for a Gaussian mechanism, got {delta!r}: Gaussian "
            "noise is never pure. Choose delta well below one over the number of rows, for example 1e-6."
        )
