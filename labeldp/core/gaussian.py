"""Evaluate the Gaussian mechanism in closed form, and the discrete Gaussian by sums, accurate far into the tails.

Write Φ, φ for the standard normal distribution and density, m(x) = Φ(−x)/φ(x) for the Mills ratio, and μ for the
distance of the two means in units of the noise. With z = μ/2 − ε/μ (Balle & Wang 2018)

    δ(ε) = Φ(z) − e^ε Φ(z − μ) = φ(z) [m(−z) − m(−z + μ)].

The first form loses every digit when μ is small; the second, with the difference written as an integral
of −m′(x) = 1 − x m(x) > 0, keeps them all.

The discrete Gaussian N_Z(0, s²) has P(X = k) ∝ e^{−k²/(2s²)} (Canonne, Kamath & Steinke 2020).
"""

# scipy ships no types: the few functions used from it are wrapped here.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.special
from numpy.typing import NDArray

Array = NDArray[np.float64]

_special: Any = scipy.special
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
# Relative accuracy granted to the special functions when a result must be rounded to the safe side.
ROUNDING = 1e-13
# Beyond this many standard deviations a double-precision Gaussian weight is zero.
_REACH = 38.6
# Above this squared length of the moves the direct convolution of a small noise is too slow.
MAX_SQUARED_MOVES = 64


class AccountingError(ValueError):
    """A privacy question that cannot be answered soundly, with the reason."""


# -- special functions ---------------------------------------------------------------------------------------


def ndtr(x: Array) -> Array:
    """Return Φ(x)."""
    return _special.ndtr(x)


def mills(x: Array) -> Array:
    """Return Φ(−x)/φ(x)."""
    return math.sqrt(math.pi / 2) * _special.erfcx(x / math.sqrt(2))


def expit(x: float) -> float:
    """Return 1/(1 + e^{−x})."""
    return float(_special.expit(x))


def log_binomial(n: int, k: Array) -> Array:
    """Return the logarithm of n over k."""
    return _special.gammaln(n + 1.0) - _special.gammaln(k + 1.0) - _special.gammaln(n - k + 1.0)


def root(function: Callable[[float], float], low: float, high: float, *, rtol: float = 1e-15) -> float:
    """Return a zero of a function with a change of sign on [low, high] (Brent 1973)."""
    # A third of a second to load, and many commands solve nothing.
    import scipy.optimize

    optimize: Any = scipy.optimize
    return low if low == high else float(optimize.brentq(function, low, high, xtol=1e-300, rtol=rtol, maxiter=500))


# -- the Gaussian mechanism ----------------------------------------------------------------------------------


def call_price(z: Array, r: float) -> Array:
    """Return ∫₀^∞ φ(z − t)(1 − e^{−rt}) dt = Φ(z) − e^{r²/2 − rz} Φ(z − r), without cancellation.

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
    direct = ndtr(z) - np.exp(0.5 * r * r - r * z + _special.log_ndtr(z - r))
    return np.where(z > 5.0, direct, ratio)


def gaussian_profile(mu: float, eps: Array) -> Array:
    """Return δ at every ε ≥ 0 for two unit Gaussians at distance ``mu``."""
    return np.zeros_like(eps) if mu == 0 else call_price(mu / 2 - eps / mu, mu)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the smallest δ of a Gaussian mechanism whose output moves by ``mu`` noise standard deviations."""
    check_arguments(mu=mu, epsilon=epsilon)
    return 0.0 if math.isinf(epsilon) else float(gaussian_profile(mu, np.array([epsilon]))[0])


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest ε of a Gaussian mechanism at ``delta``, rounded up.

    >>> round(gaussian_epsilon(1.0, 1e-5), 6)
    4.377178
    """
    check_arguments(mu=mu, open_delta=delta)
    # Φ(z) ≤ δ at this ε, since Φ(−t) ≤ e^{−t²/2}: a bracket without search.
    upper = mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    return smallest_epsilon(lambda eps: gaussian_delta(mu, eps), delta, upper)


def smallest_epsilon(profile: Callable[[float], float], delta: float, upper: float) -> float:
    """Return the smallest ε ≥ 0 with profile(ε) ≤ δ, rounded up; the profile falls and is ≤ δ at ``upper``."""
    if profile(0.0) <= delta:
        return 0.0

    def excess(eps: float) -> float:
        return finite_log(profile(eps)) - math.log(delta)

    if excess(upper) >= 0:
        return upper
    eps = root(excess, 0.0, upper) * (1 + 2 * ROUNDING)
    while profile(eps) > delta and eps < upper:
        eps *= 1 + 2 * ROUNDING
    return min(eps, upper)


def finite_log(value: float) -> float:
    """Return the logarithm; where a profile underflows, or is exactly zero, the root search needs a finite number."""
    return math.log(value) if value > 0 else -1e4


def check_arguments(open_delta: float = 0.5, **arguments: float) -> None:
    """Raise AccountingError that names an argument which is no number of at least 0, or a δ that is no probability."""
    for name, value in arguments.items():
        if not value >= 0 or (math.isinf(value) and name != "epsilon"):
            raise AccountingError(f"{name} must be a finite number ≥ 0, got {value!r}.")
    if not 0 < open_delta < 1:
        raise AccountingError(
            f"delta must lie strictly between 0 and 1 for a Gaussian mechanism, got {open_delta!r}: Gaussian "
            "noise is never pure. Choose delta well below one over the number of rows, for example 1e-6."
        )


# -- the discrete Gaussian -----------------------------------------------------------------------------------


def reduced(moves: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Return the greatest common divisor g of the moves, and the non-zero moves divided by it."""
    g = math.gcd(*moves)
    return g, tuple(sorted(abs(m) // g for m in moves if m))


def smooth_enough(noise_std: float, moves: tuple[int, ...]) -> bool:
    """Return whether Y = Σ mᵢXᵢ is itself a discrete Gaussian, of variance s²|m|², to better than 1e-30.

    P(Y = k) is e^{−k²/(2s²|m|²)} times a Gaussian sum over a shifted copy of the lattice {x : m·x = 0}. By
    Poisson summation that sum is a constant up to relative terms e^{−2π²s²ℓ²}, ℓ ranging over the non-zero
    lengths of the dual lattice, the projections of integer vectors. For integer z not parallel to m the Gram
    determinant |z|²|m|² − (z·m)² is a positive integer, hence ℓ² ≥ 1/|m|²; at s ≥ 2|m| a term is below 1e-34.
    """
    return noise_std >= 2 * math.sqrt(sum(m * m for m in moves))


@lru_cache(maxsize=8)
def upper_tail(noise_std: float, moves: tuple[int, ...]) -> Array:
    """Return S[k] = P(Y > k) for k = 0, 1, …, where Y = Σ mᵢXᵢ for coprime positive moves."""
    if len(moves) == 1 or smooth_enough(noise_std, moves):
        pmf = _pmf(noise_std * math.sqrt(sum(m * m for m in moves)))
    else:
        pmf = _convolved(noise_std, moves)
    centre = len(pmf) // 2
    # Summed from the far end in extended precision: every entry keeps its relative accuracy.
    tail = np.cumsum(pmf[:centre:-1].astype(np.longdouble))[::-1].astype(np.float64)
    result = np.append(tail, 0.0)
    result.setflags(write=False)
    return result


def survival(tail: Array, threshold: Array) -> Array:
    """Return P(Y > k) for integers k, from the table of :func:`upper_tail` and the symmetry of Y."""
    last = len(tail) - 1
    k = np.clip(threshold, -last - 1, last).astype(np.int64)
    return np.where(k >= 0, tail[np.maximum(k, 0)], 1.0 - tail[np.maximum(-k - 1, 0)])


def _pmf(std: float) -> Array:
    k = np.arange(-math.ceil(_REACH * std) - 1, math.ceil(_REACH * std) + 2, dtype=np.float64)
    weights = np.exp(-0.5 * (k / std) ** 2)
    return weights / weights.sum()


def _convolved(noise_std: float, moves: tuple[int, ...]) -> Array:
    one = _pmf(noise_std)
    half = math.ceil(_REACH * noise_std * math.sqrt(sum(m * m for m in moves))) + 1
    total = np.ones(1)
    for move in moves:
        spread = np.zeros((len(one) - 1) * move + 1)
        spread[::move] = one
        total = np.convolve(total, spread)
        centre = len(total) // 2
        total = total[max(0, centre - half) : centre + half + 1]
    return total
