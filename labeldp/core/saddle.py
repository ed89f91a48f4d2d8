"""Choose tilt, window and grid of the exact computation from a coarse picture of the privacy loss.

Nothing here enters a result: a bad choice costs accuracy or time, never soundness (`labeldp.core.pld` bounds what its
own window and grid leave out). Write K(λ) for the log-moment of the total loss. The Laplace inversion of
δ(ε) = E(1 − e^{ε−L})₊ has its saddle point where

    K′(λ) = ε + 1/λ + 1/(1+λ),   log δ(ε) ≈ K(λ) − λε − log λ(1+λ) − ½ log 2πV,   V = K″ + 1/λ² + 1/(1+λ)²
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labeldp.core.events import Event, Query
from labeldp.core.gaussian import root

Array = NDArray[np.float64]

_CELLS = 600
_DECADES = 7


@dataclass(frozen=True)
class Saddle:
    """Where the result sits: the tilt λ, ε and δ there, the spread √K″ of the tilted loss."""

    tilt: float
    epsilon: float
    delta: float
    spread: float

    # δ as a share of e^{K − λε}: what a tilted mass is to be compared with.
    share: float


@dataclass(frozen=True)
class CoarsePLD:
    """Atoms of every event's loss: positions and log-masses, one row per event, up to the losses ``tops``."""

    positions: Array
    log_mass: Array
    times: Array
    tops: tuple[float, ...]

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """Return K, K′, K″ of the total loss."""
        log_moment, tilted = self._tilted(tilt)
        mean = np.sum(tilted * self.positions, axis=1)
        variance = np.sum(tilted * (self.positions - mean[:, None]) ** 2, axis=1)
        return float(self.times @ log_moment), float(self.times @ mean), float(self.times @ variance)

    def saddle(self, tilt: float) -> Saddle:
        """Return the saddle point that belongs to a tilt."""
        k, mean, variance = self.cumulants(tilt)
        curvature = variance + tilt**-2 + (1 + tilt) ** -2
        epsilon = mean - 1 / tilt - 1 / (1 + tilt)
        log_share = -math.log(tilt) - math.log1p(tilt) - 0.5 * math.log(2 * math.pi * curvature)
        log_delta = min(k - tilt * epsilon + log_share, 0.0)
        return Saddle(tilt, epsilon, math.exp(max(log_delta, -690)), math.sqrt(variance), math.exp(log_share))

    def saddle_at_epsilon(self, epsilon: float) -> Saddle:
        """Return the saddle point for δ(ε)."""
        return self.saddle(self._solve(lambda tilt: self.saddle(tilt).epsilon - epsilon))

    def saddle_at_delta(self, delta: float) -> Saddle:
        """Return the saddle point for ε(δ)."""
        return self.saddle(self._solve(lambda tilt: math.log(delta) - math.log(self.saddle(tilt).delta)))

    def bias(self, saddle: Saddle, step: float) -> float:
        """Return the expected rise of ε by connecting dots ``step`` apart.

        A mass at x in a cell [a, b] becomes a chord that is exact for 1 and e^{−x}; on e^{λx} it is too large by
        the factor 1 + ½λ(1+λ)(x−a)(b−x). A rise of K moves ε by 1/λ times it, but never a loss by more than a step.
        """
        tilted = self._tilted(saddle.tilt)[1]
        gap = np.minimum(step * step / 6, np.abs(self.positions) * step)
        rise = np.minimum(0.5 * (1 + saddle.tilt) * gap, step)
        return float(self.times @ np.sum(tilted * rise, axis=1))

    def chernoff_tilts(self, saddle: Saddle, allowed: float) -> tuple[float, float]:
        """Return extra tilts (up, down) for which Chernoff's window of missing mass ``allowed`` is short."""
        k = self.cumulants(saddle.tilt)[0]
        scale = 1 / max(saddle.spread, 1e-3 / saddle.tilt)
        candidates = scale * np.geomspace(0.25, 64, 17)

        def width(extra: float) -> float:
            return (self.cumulants(saddle.tilt + extra)[0] - k - math.log(allowed)) / abs(extra)

        up = min(candidates, key=width)
        down = min(candidates, key=lambda extra: width(-extra))
        return float(up), float(down)

    def _tilted(self, tilt: float) -> tuple[Array, Array]:
        exponent = self.log_mass + tilt * self.positions
        top = np.max(exponent, axis=1, keepdims=True)
        raw = np.exp(exponent - top)
        total = np.sum(raw, axis=1, keepdims=True)
        return (top + np.log(total))[:, 0], raw / total

    def _solve(self, rising: Callable[[float], float]) -> float:
        """Return the root in log λ of a function that rises with λ, or the nearer end of a very wide bracket."""
        spread = math.sqrt(self.cumulants(0.0)[2])
        low, high = math.log(1e-4 / spread), math.log(1e9 / spread)
        if rising(math.exp(low)) >= 0:
            return math.exp(low)
        if rising(math.exp(high)) <= 0:
            return math.exp(high)
        return math.exp(root(lambda x: rising(math.exp(x)), low, high, rtol=1e-6))


def coarse_pld(queries: Sequence[Query], tops: Sequence[float]) -> CoarsePLD:
    """Return atoms on geometric cells up to a largest loss for each query.

    An atom sits at log(p/q), the mean odds of its cell; exact if the event itself has an atom there.
    """
    rows = [_atoms(query.event, top) for query, top in zip(queries, tops, strict=True)]
    positions, log_mass = (np.stack(parts) for parts in zip(*rows, strict=True))
    return CoarsePLD(positions, log_mass, np.array([float(query.times) for query in queries]), tuple(tops))


def _atoms(event: Event, top: float) -> tuple[Array, Array]:
    edges = np.concatenate([[0.0], top * np.geomspace(10.0**-_DECADES, 1.0, _CELLS)])
    p_tail, q_tail = event.tail(edges)
    p, q = p_tail[:-1] - p_tail[1:], q_tail[:-1] - q_tail[1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        at = np.clip(np.where((p > 0) & (q > 0), np.log(p) - np.log(q), edges[1:]), edges[:-1], edges[1:])
        rest = max(0.0, 1.0 - float(p_tail[0]) - float(q_tail[0]))
        return np.concatenate([-at, [0.0], at]), np.log(np.concatenate([q, [rest], p]))


def grid_step(rough: CoarsePLD, saddle: Saddle, tolerance: float) -> float:
    """Return the widest step whose bias in ε stays within ``tolerance``."""

    def excess(log_step: float) -> float:
        return math.log(max(rough.bias(saddle, math.exp(log_step)), 1e-300)) - math.log(tolerance)

    low = high = math.log(tolerance)
    while excess(low) > 0:
        low -= 3
    while excess(high) < 0 and high < 20:
        high += 3
    return math.exp(root(excess, low, high, rtol=1e-9) if excess(high) >= 0 else high)


def aligned_step(queries: Sequence[Query], step: float) -> float:
    """Return a step no longer, of which a lattice of losses is a multiple: what is on the grid need not move."""
    spacing = max(query.event.lattice for query in queries)
    return spacing / math.ceil(spacing / step) if spacing > step else step
