"""A shift that happens only sometimes: the worst pair of a secretly sampled Gaussian sum."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labeldp.accounting.gaussian import call_price
from labeldp.accounting.special import ndtr

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Mixture:
    """The pair (1−q)N(0) + qN(v), (1−q)N(0) + qN(v′) at its worst: v = r, v′ = r − d in noise units.

    For a = e^ε ≥ 1 and c = (a−1)(1−q)/q the divergence is q E(1 − S)₊ under N(v), where S = c L₀ + a L₁ and
    L₀, L₁ are lognormals of mean 1 and log-spread |v|, |v − v′|. Splitting the strike, E(S−1)₊ is at most a
    sum of two calls, each growing with its spread; L₀ and L₁ monotone in one variable reach that bound, and 0
    and v′ on one side of v, at distances r and d, make them so. (Compare Choquette-Choo et al. 2024.)
    Being worst at every a, the pair dominates and composes adaptively (Zhu, Dong & Wang 2022).

    S crosses 1 at z = d/2 − (v+ε)/d, where v ≥ 0 solves 1 − e^{−v} = C e^{−(r/d)v} and
    C = c e^{r(d−r)/2 − (r/d)ε}.
    """

    r: float
    d: float
    rate: float

    def tail(self, eps: Array) -> tuple[Array, Array]:
        """qΦ(z) + (1−q)Φ(z−r) and qΦ(z−d) + (1−q)Φ(z−r): the divergence and its slope in a."""
        z = self._threshold(eps)[1]
        rest = (1 - self.rate) * ndtr(z - self.r)
        return self.rate * ndtr(z) + rest, self.rate * ndtr(z - self.d) + rest

    def profile(self, eps: Array) -> Array:
        """q[(1 − e^{−v}) call(z, r) + e^{−v} call(z, d)]: a sum of positive terms."""
        v, z = self._threshold(eps)
        return self.rate * (-np.expm1(-v) * call_price(z, self.r) + np.exp(-v) * call_price(z, self.d))

    def _threshold(self, eps: Array) -> tuple[Array, Array]:
        slope = self.r / self.d
        with np.errstate(divide="ignore"):
            log_expm1 = np.maximum(eps, 0.0) + np.log(-np.expm1(-eps))
        odds = math.log1p(-self.rate) - math.log(self.rate) if self.rate < 1 else -math.inf
        log_c = log_expm1 + odds + self.r * (self.d - self.r) / 2 - slope * eps
        v = _solve_saturation(log_c, slope)
        return v, self.d / 2 - (v + eps) / self.d


def _solve_saturation(log_c: Array, slope: float) -> Array:
    """The root v ≥ 0 of 1 − e^{−v} = C e^{−slope·v}, relatively accurate from C = 0 to C = ∞."""
    if abs(slope - 0.5) < 1e-15:  # 2 sinh(v/2) = C; norm clipping
        small = 2 * np.arcsinh(0.5 * np.exp(np.minimum(log_c, 20.0)))
        return np.where(log_c > 20.0, 2 * log_c, small)
    if abs(slope - 1) < 1e-15:  # e^v = 1 + C; batches of fixed size
        return np.where(log_c > 40.0, log_c, np.log1p(np.exp(np.minimum(log_c, 40.0))))
    # log(1 − e^{−v}) + slope·v − log C is increasing and concave: Newton from the left never overshoots.
    # Left ends: log(1 − e^{−v}) is at most 0 and at most log v, and Lambert's W(x) ≥ x/(1 + x).
    log_c = np.where(np.isneginf(log_c), log_c, np.maximum(log_c, -700.0))  # v is negligible long before
    v = np.maximum(1 / (np.exp(np.minimum(-log_c, 700.0)) + slope), log_c / slope)
    active = np.isfinite(log_c)
    v = np.where(active, v, 1.0)
    target = np.where(active, log_c, 0.0)
    for _ in range(60):
        lost = -np.expm1(-v)
        step = (target - np.log(lost) - slope * v) / (np.exp(-v) / lost + slope)
        v = np.maximum(v + step, 0.5 * v)
        if np.max(np.abs(step[active]) / v[active], initial=0.0) < 4e-16:
            break
    return np.where(active, v, 0.0)
