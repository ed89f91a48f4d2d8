"""Privacy loss distributions on a grid, composed by a tilted Fourier transform; always on the safe side.

1. *Discretize.* On every cell (ε, ε+h] of the loss, keep the masses of P and of Q but move them to the two
   ends ("connect the dots", Doroshenko et al. 2022). The new pair dominates the old one at every ε.
2. *Tilt.* Multiply the law by e^{λx}/M(λ), λ being the saddle point of the question asked, so that the
   answer sits in the bulk of the tilted law and is computed to relative accuracy, even at δ = 1e-12.
3. *Compose.* Multiply the Fourier transforms on a window around the tilted mean. Whatever is neglected
   (beyond the window, by Chernoff's bound; beyond the grid; rounding) is bounded and added to δ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labeldp.core.events import Event, Query
from labeldp.core.gaussian import AccountingError, fast_length, irfft, rfft, root

# --- sketch --------------------
#
# A cheap, coarse picture of the privacy loss, from which tilt, window and grid of the answer are chosen.
#
# Nothing here enters the answer: a bad choice costs accuracy or time, never soundness. Write K(λ) for the
# log-moment of the total loss. The Laplace inversion of δ(ε) = E(1 − e^{ε−L})₊ has its saddle point where
#
#     K′(λ) = ε + 1/λ + 1/(1+λ),   log δ(ε) ≈ K(λ) − λε − log λ(1+λ) − ½ log 2πV,   V = K″ + 1/λ² + 1/(1+λ)²


Array = NDArray[np.float64]

_CELLS = 600
_DECADES = 7
_LARGEST_LOSS = 1e9


@dataclass(frozen=True)
class Saddle:
    """Where the answer sits: the tilt λ, ε and δ there, the spread √K″ of the tilted loss."""

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
        """K, K′, K″ of the total loss."""
        log_moment, channel = self._tilted(tilt)
        mean = np.sum(channel * self.positions, axis=1)
        variance = np.sum(channel * (self.positions - mean[:, None]) ** 2, axis=1)
        return float(self.times @ log_moment), float(self.times @ mean), float(self.times @ variance)

    def saddle(self, tilt: float) -> Saddle:
        """The saddle point that belongs to a tilt."""
        k, mean, variance = self.cumulants(tilt)
        curvature = variance + tilt**-2 + (1 + tilt) ** -2
        epsilon = mean - 1 / tilt - 1 / (1 + tilt)
        log_share = -math.log(tilt) - math.log1p(tilt) - 0.5 * math.log(2 * math.pi * curvature)
        log_delta = min(k - tilt * epsilon + log_share, 0.0)
        return Saddle(tilt, epsilon, math.exp(max(log_delta, -690)), math.sqrt(variance), math.exp(log_share))

    def saddle_at_epsilon(self, epsilon: float) -> Saddle:
        """Tilt for the question δ(ε)."""
        return self.saddle(self._solve(lambda tilt: self.saddle(tilt).epsilon - epsilon))

    def saddle_at_delta(self, delta: float) -> Saddle:
        """Tilt for the question ε(δ)."""
        return self.saddle(self._solve(lambda tilt: math.log(delta) - math.log(self.saddle(tilt).delta)))

    def bias(self, saddle: Saddle, step: float) -> float:
        """Expected rise of ε by connecting dots ``step`` apart.

        A mass at x in a cell [a, b] becomes a chord that is exact for 1 and e^{−x}; on e^{λx} it is too large by
        the factor 1 + ½λ(1+λ)(x−a)(b−x). A rise of K moves ε by 1/λ times it, but never a loss by more than a step.
        """
        channel = self._tilted(saddle.tilt)[1]
        gap = np.minimum(step * step / 6, np.abs(self.positions) * step)
        rise = np.minimum(0.5 * (1 + saddle.tilt) * gap, step)
        return float(self.times @ np.sum(channel * rise, axis=1))

    def chernoff_tilts(self, saddle: Saddle, allowed: float) -> tuple[float, float]:
        """Extra tilts (up, down) for which Chernoff's window of missing mass ``allowed`` is short."""
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
        """Root in log λ of a function that rises with λ, or the nearer end of a very wide bracket."""
        spread = math.sqrt(self.cumulants(0.0)[2])
        low, high = math.log(1e-4 / spread), math.log(1e9 / spread)
        if rising(math.exp(low)) >= 0:
            return math.exp(low)
        if rising(math.exp(high)) <= 0:
            return math.exp(high)
        return math.exp(root(lambda x: rising(math.exp(x)), low, high, rtol=1e-6))


def coarse_pld(queries: Sequence[Query], neglected: float) -> CoarsePLD:
    """Atoms on geometric cells, up to losses that all looks together exceed with probability ``neglected``.

    An atom sits at log(p/q), the mean odds of its cell; exact if the event itself has an atom there.
    """
    steps = sum(query.times for query in queries)
    tops = tuple(reach(query.event, neglected / steps) for query in queries)
    rows = [_atoms(query.event, top) for query, top in zip(queries, tops, strict=True)]
    positions, log_mass = (np.stack(parts) for parts in zip(*rows, strict=True))
    return CoarsePLD(positions, log_mass, np.array([float(query.times) for query in queries]), tops)


def _atoms(event: Event, top: float) -> tuple[Array, Array]:
    edges = np.concatenate([[0.0], top * np.geomspace(10.0**-_DECADES, 1.0, _CELLS)])
    p_tail, q_tail = event.tail(edges)
    p, q = p_tail[:-1] - p_tail[1:], q_tail[:-1] - q_tail[1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        at = np.clip(np.where((p > 0) & (q > 0), np.log(p) - np.log(q), edges[1:]), edges[:-1], edges[1:])
        rest = max(0.0, 1.0 - float(p_tail[0]) - float(q_tail[0]))
        return np.concatenate([-at, [0.0], at]), np.log(np.concatenate([q, [rest], p]))


def reach(event: Event, mass: float) -> float:
    """A loss that P exceeds with probability at most ``mass``, near the smallest one."""
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


def grid_step(rough: CoarsePLD, saddle: Saddle, tolerance: float) -> float:
    """Widest step whose bias in ε stays within ``tolerance``."""

    def excess(log_step: float) -> float:
        return math.log(max(rough.bias(saddle, math.exp(log_step)), 1e-300)) - math.log(tolerance)

    low = high = math.log(tolerance)
    while excess(low) > 0:
        low -= 3
    while excess(high) < 0 and high < 20:
        high += 3
    return math.exp(root(excess, low, high, rtol=1e-9) if excess(high) >= 0 else high)


MAX_LENGTH = 1 << 21
_UNIT = 2.0**-53
# What may be neglected, relative to δ, and at all; below _TINY a bound replaces the answer.
_NEGLECT, _SMALLEST, _TINY = 2e-8, 1e-60, 1e-40
# Discretization error aimed at, and the largest one worth answering with; relative, in ε.
_AIM, _HOPELESS = 4e-7, 0.05


def pld_delta(queries: Sequence[Query], epsilon: float) -> float:
    """δ(ε) of the composition, rounded up."""
    # Far out the loss may have a heavy tail, which would draw the saddle point away from the answer.
    rough = coarse_pld(queries, _SMALLEST)
    for _ in range(2):
        rough = coarse_pld(queries, max(_NEGLECT * rough.saddle_at_epsilon(epsilon).delta, _SMALLEST))
    saddle = rough.saddle_at_epsilon(epsilon)
    if saddle.epsilon < 0.999 * epsilon - 0.01 * saddle.spread or saddle.delta < _TINY:
        return _chernoff(queries, saddle.tilt, epsilon)
    # A relative error of _AIM in δ needs an error of _AIM/λ in ε.
    composed = _compose(queries, rough, saddle, tolerance=_AIM / saddle.tilt)
    return min(1.0, composed.delta(epsilon))


def pld_epsilon(queries: Sequence[Query], delta: float) -> float:
    """Smallest ε ≥ 0 with δ(ε) ≤ delta, rounded up."""
    rough = coarse_pld(queries, _NEGLECT * delta)
    saddle = rough.saddle_at_delta(delta)
    composed = _compose(queries, rough, saddle, tolerance=_AIM * max(saddle.epsilon, 0.05 * saddle.spread))
    return composed.epsilon(delta, saddle.epsilon)


@dataclass(frozen=True)
class Grid:
    """Loss law of one event on the multiples of h: ``mass[j]`` sits at (j − centre)·h, ``infinite`` at +∞."""

    mass: Array
    infinite: float
    step: float
    times: int

    @property
    def positions(self) -> Array:
        """The losses."""
        return self.step * (np.arange(len(self.mass), dtype=np.float64) - len(self.mass) // 2)

    def log_moment(self, tilt: float) -> float:
        """log Σ mass·e^{tilt·x}."""
        exponent = tilt * self.positions
        top = float(np.max(np.where(self.mass > 0, exponent, -np.inf)))
        return top + math.log(float(np.sum(self.mass * np.exp(np.minimum(exponent - top, 0.0)))))


def connect_dots(event: Event, step: float, cells: int, times: int = 1) -> Grid:
    """The dominating law on the grid: end weights w₀, w₁ of each cell keep the masses of both P and Q.

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
    """Tilted law of the total loss: mass[j] at x = (first + j)·h is e^{tilt·x − log_moment} times the mass."""

    mass: Array
    first: int
    step: float
    tilt: float
    log_moment: float
    outside: float  # tilted mass that may be missing
    rounding: float  # L2 norm of the error of ``mass``
    infinite: float

    def delta(self, epsilon: float) -> float:
        """δ(ε) = Σ_{x>ε} f(x)(1 − e^{ε−x}), plus everything neglected."""
        start = max(0, math.floor(epsilon / self.step) - self.first)
        # Further out the weights are below e^{−60}, and the tilted masses add up to one.
        stop = min(len(self.mass), start + math.ceil(60 / (self.tilt * self.step)) + 2)
        above = np.maximum((self.first + np.arange(start, stop)) * self.step - epsilon, 0.0)
        bulk = float(np.sum(self.mass[start:stop] * np.exp(-self.tilt * above) * -np.expm1(-above)))
        return self._untilt(bulk + self._slack() + math.exp(-60), epsilon) + self.infinite

    def epsilon(self, delta: float, guess: float) -> float:
        """Solve δ(ε) = delta from a guess: between grid points δ is linear in e^ε."""
        cell = self._crossing(delta, guess)
        at = (self.first + cell) * self.step
        excess = self.delta(at) - delta
        if excess <= 0:
            return max(0.0, at)
        above = np.arange(1, len(self.mass) - cell) * self.step
        slope = self._untilt(float(np.sum(self.mass[cell + 1 :] * np.exp(-(1 + self.tilt) * above))), at)
        return max(0.0, at + (min(self.step, math.log1p(excess / slope)) if slope > 0 else self.step))

    def _crossing(self, delta: float, guess: float) -> int:
        """Last cell whose left end has δ(ε) > delta, else the first at ε ≥ 0. Newton steps, as δ ~ e^{−λε}."""
        low, high = max(0, -self.first), len(self.mass) - 1
        if self.delta((self.first + high) * self.step) > delta:
            raise AccountingError(
                f"delta = {delta!r} is too small for these looks: the neglected mass alone may exceed it. "
                "Use a larger delta."
            )
        if self.delta((self.first + low) * self.step) <= delta:
            return low
        middle = math.floor(guess / self.step) - self.first
        while high - low > 1:
            middle = min(max(middle, low + 1), high - 1)
            value = self.delta((self.first + middle) * self.step)
            low, high = (middle, high) if value > delta else (low, middle)
            move = math.log(value / delta) / (self.tilt * self.step) if value > 0 else -math.inf
            # Landing on the far side of the root makes the bracket one cell wide at once.
            middle = (low + high) // 2 if abs(move) > high - low else middle + math.floor(move) + (value <= delta)
        return low

    def _untilt(self, value: float, at: float) -> float:
        exponent = self.log_moment - self.tilt * at
        return value * math.exp(exponent) if exponent < 700 else math.inf

    def _slack(self) -> float:
        """Missing mass, and by Cauchy-Schwarz the rounding error against the weights e^{−tilt·(x−ε)}."""
        decay = -math.expm1(-2 * self.tilt * self.step)
        return self.outside + self.rounding * math.sqrt(min(1 / decay if decay > 0 else math.inf, len(self.mass)))


def _compose(queries: Sequence[Query], rough: CoarsePLD, saddle: Saddle, tolerance: float) -> Composition:
    tops = rough.tops
    step = max(grid_step(rough, saddle, tolerance), max(tops) / (MAX_LENGTH // 4))
    hopeless = max(tolerance, _HOPELESS * max(saddle.epsilon, 0.05 * saddle.spread))
    while rough.bias(saddle, step) <= hopeless:
        step = _aligned(queries, step)
        grids = [
            connect_dots(query.event, step, math.ceil(top / step) + 1, query.times)
            for query, top in zip(queries, tops, strict=True)
        ]
        moment = _total(grids, saddle.tilt)
        first, length = _window(grids, rough, saddle, moment)
        if length <= MAX_LENGTH:
            mass, rounding = _convolve(grids, saddle.tilt, first, length)
            outside = 2 * _NEGLECT * saddle.share
            return Composition(mass, first, step, saddle.tilt, moment, outside, rounding, _infinite(grids))
        step *= 1.1 * length / MAX_LENGTH
    raise AccountingError(
        "these looks are beyond the accountant's reach: a grid fine enough for them has more than "
        f"{MAX_LENGTH} points. Use fewer looks, or noises and rates of more usual size."
    )


def _aligned(queries: Sequence[Query], step: float) -> float:
    """A step no longer, of which a lattice of losses is a multiple: what is already on the grid need not move."""
    spacing = max(query.event.lattice for query in queries)
    return spacing / math.ceil(spacing / step) if spacing > step else step


def _window(grids: Sequence[Grid], rough: CoarsePLD, saddle: Saddle, moment: float) -> tuple[int, int]:
    """First cell and length of a window that misses at most the allowed tilted mass at either end (Chernoff)."""
    allowed = _NEGLECT * saddle.share
    up, down = rough.chernoff_tilts(saddle, allowed)
    high = (_total(grids, saddle.tilt + up) - moment - math.log(allowed)) / up
    low = -(_total(grids, saddle.tilt - down) - moment - math.log(allowed)) / down
    step = grids[0].step
    first = math.floor(low / step) - 2
    return first, fast_length(max(math.ceil(high / step) + 2 - first, 64))


def _chernoff(queries: Sequence[Query], tilt: float, epsilon: float) -> float:
    """δ(ε) ≤ P(L > ε) ≤ e^{K(λ) − λε}, for answers so small that only their order matters."""
    tops = [reach(query.event, _SMALLEST / sum(each.times for each in queries)) for query in queries]
    grids = [
        connect_dots(query.event, top / 10_000, 10_000, query.times) for query, top in zip(queries, tops, strict=True)
    ]
    return min(1.0, math.exp(min(_total(grids, tilt) - tilt * epsilon, 0.0)) + _infinite(grids))


def _infinite(grids: Sequence[Grid]) -> float:
    return -math.expm1(math.fsum(grid.times * math.log1p(-grid.infinite) for grid in grids))


def _total(grids: Sequence[Grid], tilt: float) -> float:
    return math.fsum(grid.times * grid.log_moment(tilt) for grid in grids)


def _convolve(grids: Sequence[Grid], tilt: float, first: int, length: int) -> tuple[Array, float]:
    """Circular convolution of the tilted laws on ``length`` cells from ``first``; the L2 norm of its error."""
    log_size, angle = np.zeros(length // 2 + 1), np.zeros(length // 2 + 1)
    sizes: list[tuple[int, Array]] = []
    for grid in grids:
        exponent = np.where(grid.mass > 0, tilt * grid.positions - grid.log_moment(tilt), -np.inf)
        tilted = grid.mass * np.exp(exponent)
        wrapped = np.arange(len(tilted)) - len(tilted) // 2
        folded = np.bincount(wrapped % length, weights=tilted, minlength=length).astype(np.float64)
        spectrum = rfft(folded)
        with np.errstate(divide="ignore"):
            size = np.log(np.abs(spectrum))
        sizes.append((grid.times, size))
        log_size += grid.times * size
        angle += grid.times * np.angle(spectrum)
    shape = np.exp(np.minimum(log_size, 0.0))
    live = shape > 1e-40
    product = np.zeros(len(shape), dtype=np.complex128)
    product[live] = shape[live] * np.exp(1j * angle[live])
    mass = np.maximum(np.roll(irfft(product, length), -(first % length)), 0.0)
    return mass, _rounding(log_size, sizes, length)


def _rounding(log_size: Array, sizes: Sequence[tuple[int, Array]], length: int) -> float:
    """A coefficient is off by at most u·O(log N); a power t multiplies that by t times the other factors."""
    unit = 16 * _UNIT * (math.log2(length) + 4)
    error = np.exp(np.minimum(log_size, 0.0))
    for times, size in sizes:
        others = np.where(np.isfinite(size), log_size - size, -np.inf if times > 1 else 0.0)
        error += times * np.exp(np.minimum(others, 0.0))
    return unit * math.sqrt(2 * float(np.sum(error**2)) / length)
