"""Compose privacy loss distributions on a grid by a tilted Fourier transform, always on the safe side.

1. *Discretize.* On every cell (ε, ε+h] of the loss, keep the masses of P and of Q but move them to the two
   ends ("connect the dots", Doroshenko et al. 2022). The new pair dominates the old one at every ε.
2. *Tilt.* Multiply the distribution by e^{λx}/M(λ), λ being the saddle point of what is asked for, so that the
   result sits in the bulk of the tilted distribution and is computed to relative accuracy, even at δ = 1e-12.
3. *Compose.* Multiply the Fourier transforms on a window around the tilted mean. Whatever is neglected
   (beyond the window, by Chernoff's bound; beyond the grid; rounding) is bounded and added to δ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labeldp.core.events import Event, Query
from labeldp.core.gaussian import AccountingError, smallest_epsilon
from labeldp.core.saddle import CoarsePLD, Saddle, aligned_step, coarse_pld, grid_step

Array = NDArray[np.float64]

MAX_LENGTH = 1 << 21
_LARGEST_LOSS = 1e9
_UNIT = 2.0**-53
# What may be neglected, relative to δ.
NEGLECT = 2e-8
# Discretization error aimed at, and the largest one that is still worth a result; relative, in ε.
AIM, _HOPELESS = 4e-7, 0.05
# The grid for moments, and how likely the losses are that it leaves out.
_FINE_CELLS, _LEFT_OUT = 1 << 17, 1e-40


def pld_epsilon(queries: Sequence[Query], delta: float) -> float:
    """Return the smallest ε ≥ 0 with δ(ε) ≤ delta, rounded up."""
    rough = coarse(queries, NEGLECT * delta)
    saddle = rough.saddle_at_delta(delta)
    composed = compose(queries, rough, saddle, tolerance=AIM * max(saddle.epsilon, 0.05 * saddle.spread))
    top = max(0.0, (composed.first + len(composed.mass) - 1) * composed.step)
    if composed.delta(top) > delta:
        raise AccountingError(
            f"delta = {delta!r} is too small for these queries: the neglected mass alone may exceed it. "
            "Use a larger delta."
        )
    return smallest_epsilon(composed.delta, delta, top)


def coarse(queries: Sequence[Query], neglected: float) -> CoarsePLD:
    """Return the coarse picture, up to losses that all queries together exceed with probability ``neglected``."""
    steps = sum(query.times for query in queries)
    return coarse_pld(queries, [reach(query.event, neglected / steps) for query in queries])


def log_moment(event: Event, tilt: float) -> float:
    """Return log E e^{tilt·L} of one query, rounded up, without losses so large that P exceeds them once in 10^40."""
    return _fine_grid(event).log_moment(tilt) + 1e-13


@lru_cache(maxsize=64)
def _fine_grid(event: Event) -> Grid:
    step = aligned_step([Query(event)], reach(event, _LEFT_OUT) / _FINE_CELLS)
    return connect_dots(event, step, math.ceil(reach(event, _LEFT_OUT) / step) + 1)


def reach(event: Event, mass: float) -> float:
    """Return a loss that P exceeds with probability at most ``mass``, near the smallest one."""
    low, high = 0.0, _LARGEST_LOSS
    edges = np.geomspace(1e-14, high, 460)
    if event.tail(edges[-1:])[0][0] > mass:
        raise AccountingError(
            f"{event!r} has privacy losses beyond {high:g}. Give it more noise, or call it NonPrivate."
        )
    for _ in range(3):
        beyond = event.tail(edges)[0] <= mass
        index = int(np.argmax(beyond))
        low, high = float(edges[index - 1]) if index else low, float(edges[index])
        edges = np.linspace(low, high, 60)
    return high


@dataclass(frozen=True)
class Grid:
    """Loss distribution of one event on the multiples of h: ``mass[j]`` sits at (j − centre)·h, ``infinite`` at +∞."""

    mass: Array
    infinite: float
    step: float
    times: int

    @property
    def positions(self) -> Array:
        """The losses."""
        return self.step * (np.arange(len(self.mass), dtype=np.float64) - len(self.mass) // 2)

    def log_moment(self, tilt: float) -> float:
        """Return log Σ mass·e^{tilt·x}."""
        exponent = tilt * self.positions
        top = float(np.max(np.where(self.mass > 0, exponent, -np.inf)))
        return top + math.log(float(np.sum(self.mass * np.exp(np.minimum(exponent - top, 0.0)))))


def connect_dots(event: Event, step: float, cells: int, times: int = 1) -> Grid:
    """Return the dominating distribution on the grid: end weights w₀, w₁ of each cell keep the masses of both P and Q.

    w₀ + w₁ = p and w₀ e^{−ε} + w₁ e^{−ε−h} = q give w₀ = (q e^ε − p e^{−h})/(1 − e^{−h}). The tails carry a
    few units of rounding; they are charged to w₀, hence in favour of the larger loss.
    """
    edges = step * np.arange(cells + 1, dtype=np.float64)
    p_tail, q_tail = event.tail(edges)
    p, q = p_tail[:-1] - p_tail[1:], q_tail[:-1] - q_tail[1:]
    grown = np.where(edges[:-1] < 700, q * np.exp(np.minimum(edges[:-1], 700)), 0.0)
    lower = (grown - p * math.exp(-step) - 8 * _UNIT * p_tail[:-1]) / -math.expm1(-step)
    lower = np.clip(lower, 0.0, p)
    weights = np.append(lower, 0.0)
    weights[1:] += p - lower
    mirrored = weights * np.exp(-edges)
    infinite = float(p_tail[-1])
    # The rest has no loss, or one below the last edge; at 0 it is counted as too large, if anything.
    rest = max(0.0, 1 - infinite - float(np.sum(weights)) - float(np.sum(mirrored)))
    mass = np.concatenate([mirrored[:0:-1], [2 * weights[0] + rest], weights[1:]])
    return Grid(mass, infinite, step, times)


@dataclass(frozen=True)
class Composition:
    """Tilted distribution of the total loss: mass[j] at x = (first + j)·h is e^{tilt·x − log_moment} times the mass."""

    mass: Array
    first: int
    step: float
    tilt: float
    log_moment: float
    missing: float  # tilted mass that may not be in ``mass``
    infinite: float

    def delta(self, epsilon: float) -> float:
        """Return δ(ε) = Σ_{x>ε} f(x)(1 − e^{ε−x}), plus everything neglected."""
        start = max(0, math.floor(epsilon / self.step) - self.first)
        # Further out the weights are below e^{−60}, and the tilted masses add up to one.
        stop = min(len(self.mass), start + math.ceil(60 / (self.tilt * self.step)) + 2)
        above = np.maximum((self.first + np.arange(start, stop)) * self.step - epsilon, 0.0)
        bulk = float(np.sum(self.mass[start:stop] * np.exp(-self.tilt * above) * -np.expm1(-above)))
        # e^700 times e^{−60} is more than any probability.
        scale = math.exp(min(self.log_moment - self.tilt * epsilon, 700.0))
        return (bulk + self.missing + math.exp(-60)) * scale + self.infinite


def compose(queries: Sequence[Query], rough: CoarsePLD, saddle: Saddle, tolerance: float) -> Composition:
    """Return the distribution of the total loss, tilted to the saddle point; its grid moves ε by ``tolerance``."""
    tops = rough.tops
    step = max(grid_step(rough, saddle, tolerance), max(tops) / (MAX_LENGTH // 4))
    hopeless = max(tolerance, _HOPELESS * max(saddle.epsilon, 0.05 * saddle.spread))
    while rough.bias(saddle, step) <= hopeless:
        step = aligned_step(queries, step)
        grids = [
            connect_dots(query.event, step, math.ceil(top / step) + 1, query.times)
            for query, top in zip(queries, tops, strict=True)
        ]
        moment = log_moments(grids, saddle.tilt)
        first, length = _window(grids, rough, saddle, moment)
        if length <= MAX_LENGTH:
            mass, rounding = _convolve(grids, saddle.tilt, first, length)
            # By Cauchy-Schwarz, the rounding error against the weights e^{−tilt·(x−ε)}.
            decay = -math.expm1(-2 * saddle.tilt * step)
            missing = 2 * NEGLECT * saddle.share + rounding * math.sqrt(min(1 / decay, length))
            return Composition(mass, first, step, saddle.tilt, moment, missing, infinite_mass(grids))
        step *= 1.1 * length / MAX_LENGTH
    raise AccountingError(
        "these queries are beyond the accountant's reach: a grid fine enough for them has more than "
        f"{MAX_LENGTH} points. Use fewer queries, or noises and rates of more usual size."
    )


def _window(grids: Sequence[Grid], rough: CoarsePLD, saddle: Saddle, moment: float) -> tuple[int, int]:
    """Return first cell and length of a window that misses at most the allowed tilted mass at either end (Chernoff)."""
    allowed = NEGLECT * saddle.share
    up, down = rough.chernoff_tilts(saddle, allowed)
    high = (log_moments(grids, saddle.tilt + up) - moment - math.log(allowed)) / up
    low = -(log_moments(grids, saddle.tilt - down) - moment - math.log(allowed)) / down
    step = grids[0].step
    first = math.floor(low / step) - 2
    return first, int(_fourier().next_fast_len(max(math.ceil(high / step) + 2 - first, 64), real=True))


def infinite_mass(grids: Sequence[Grid]) -> float:
    """Return the probability that a loss is infinite."""
    return -math.expm1(math.fsum(grid.times * math.log1p(-grid.infinite) for grid in grids))


def log_moments(grids: Sequence[Grid], tilt: float) -> float:
    """Return log E e^{tilt·L} of the total loss, where it is finite."""
    return math.fsum(grid.times * grid.log_moment(tilt) for grid in grids)


def _convolve(grids: Sequence[Grid], tilt: float, first: int, length: int) -> tuple[Array, float]:
    """Return the tilted distributions convolved in a circle of ``length`` cells, and the L2 norm of the error."""
    log_size, angle = np.zeros(length // 2 + 1), np.zeros(length // 2 + 1)
    sizes: list[tuple[int, Array]] = []
    for grid in grids:
        exponent = np.where(grid.mass > 0, tilt * grid.positions - grid.log_moment(tilt), -np.inf)
        tilted = grid.mass * np.exp(exponent)
        wrapped = np.arange(len(tilted)) - len(tilted) // 2
        folded = np.bincount(wrapped % length, weights=tilted, minlength=length).astype(np.float64)
        spectrum = _fourier().rfft(folded)
        with np.errstate(divide="ignore"):
            size = np.log(np.abs(spectrum))
        sizes.append((grid.times, size))
        log_size += grid.times * size
        angle += grid.times * np.angle(spectrum)
    shape = np.exp(np.minimum(log_size, 0.0))
    live = shape > 1e-40
    product = np.zeros(len(shape), dtype=np.complex128)
    product[live] = shape[live] * np.exp(1j * angle[live])
    mass = np.maximum(np.roll(_fourier().irfft(product, length), -(first % length)), 0.0)
    return mass, _rounding(log_size, sizes, length)


def _fourier() -> Any:
    # A third of a second to load, and many commands compose nothing.
    import scipy.fft  # pyright: ignore[reportMissingTypeStubs]

    return scipy.fft


def _rounding(log_size: Array, sizes: Sequence[tuple[int, Array]], length: int) -> float:
    """Return the L2 norm of the error.

    A coefficient is off by at most u·O(log N); a power t multiplies that by t times the other factors.
    """
    unit = 16 * _UNIT * (math.log2(length) + 4)
    error = np.exp(np.minimum(log_size, 0.0))
    for times, size in sizes:
        others = np.where(np.isfinite(size), log_size - size, -np.inf if times > 1 else 0.0)
        error += times * np.exp(np.minimum(others, 0.0))
    return unit * math.sqrt(2 * float(np.sum(error**2)) / length)
