"""Canaries that do not touch each other: tighter bounds for Gaussian noise, from the whole curve a ledger promises.

Where every canary moves its own part of the release (an orthogonal feature, a group of its own, a training run of its
own), the statistics T_i are independent given the coins s_i = ±1. Call a canary *right* if s_i T_i ≥ t and *wrong* if
s_i T_i ≤ −t; let a and b be the probabilities of the two, averaged over canaries and coins. Each canary by itself tells
two neighbours apart, so its probabilities obey a ≤ e^x b + δ(x) for every x ≥ 0, δ the curve of the ledger; and so do
the averages. The counts of right and wrong are sums of independent indicators, more concentrated than binomials of the
same means (Hoeffding 1956), so Clopper and Pearson's limits hold for a and b. If they break the inequality for one x,
the claim is broken. A single (ε, δ) uses one point of the curve; for Gaussian queries all of it is known, and a halved
noise shows from some thousand canaries (Nasr et al. 2023 do this for one Gaussian).

The bound in words of ε: find the largest λ for which the same queries with λ times less noise are still broken. Then ε
is at least that of those queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from labeldp.audit.bounds import LARGEST, largest_true, share_at_least, share_at_most
from labeldp.audit.result import Claim
from labeldp.core import accountant
from labeldp.core.events import NonPrivate, PureDP, Queries, Query

# The noise is looked for between this many times as much and as little.
_RANGE = 8.0
_LEAST_P = 1e-30

# Points (x, δ(x)).
Curve = list[tuple[float, float]]


@dataclass(frozen=True, eq=False)
class Separate:
    """Right and wrong canaries among independent ones; see the module.

    Of a claim without queries, one point of the curve is known: a ≤ e^ε b + δ.

    >>> rng = np.random.default_rng(0)
    >>> coins = rng.choice([-1, 1], size=20_000)
    >>> from labeldp.core.events import Gaussian
    >>> claim = Claim(accountant.epsilon([Query(Gaussian(4.0, 2.0))], 1e-5), 1e-5, (Query(Gaussian(4.0, 2.0)),))
    >>> honest, halved = (separate("a shift", coins, coins + rng.normal(size=20_000) * std) for std in (4.0, 2.0))
    >>> honest.bound(claim, 0.999) < claim.epsilon < halved.bound(claim, 0.999)
    True
    """

    name: str
    correct: int
    wrong: int
    canaries: int

    @property
    def counts(self) -> tuple[int, int, int]:
        """Right guesses, guesses, canaries."""
        return self.correct, self.correct + self.wrong, self.canaries

    def p_value(self, claim: Claim) -> float:
        """The chance, at most, of guesses as good under the claim."""
        broken = self._breaks(self._curve(claim.queries) if claim.queries else [(claim.epsilon, claim.delta)])
        # The smallest level at which the claim is still broken; levels are searched by their logarithm.
        missed = -largest_true(lambda power: broken(10.0**-power), -math.log10(_LEAST_P))
        return 1.0 if missed == 0 else 10.0**missed

    def bound(self, claim: Claim, confidence: float) -> float:
        """Return ε of the claim's queries with as much less noise as the guesses prove."""
        missed = 1 - confidence
        if not claim.queries:
            return largest_true(lambda epsilon: self._breaks([(epsilon, claim.delta)])(missed), LARGEST)

        def proved(power: float) -> bool:
            return self._breaks(self._curve(_scaled(claim.queries, 2.0**power)))(missed)

        end = math.log2(_RANGE)
        if not proved(-end):
            return 0.0
        factor = 2.0 ** largest_true(proved, end, -end, steps=12)
        return accountant.epsilon(_scaled(claim.queries, factor), claim.delta)

    def _curve(self, queries: Queries) -> Curve:
        return [(slope, accountant.delta(queries, slope)) for slope in self._slopes]

    def _breaks(self, curve: Curve) -> Callable[[float], bool]:
        """Whether this curve cannot explain the counts, as a function of the chance to be wrong about it."""

        def broken(missed: float) -> bool:
            right = share_at_least(self.correct, self.canaries, missed / 2)
            wrong = share_at_most(self.wrong, self.canaries, missed / 2)
            return any(right > math.exp(slope) * wrong + delta for slope, delta in curve)

        return broken

    @cached_property
    def _slopes(self) -> tuple[float, ...]:
        """Points x of the curve worth trying, around the best one for a Gaussian with these counts."""
        low = share_at_least(self.correct, self.canaries, 0.5) if self.correct else 0.5 / self.canaries
        high = max(share_at_most(self.wrong, self.canaries, 0.5), 1e-12)
        place, shift = -ndtri(min(high, 0.999)), ndtri(min(low, 0.999)) - ndtri(min(high, 0.999))
        best = float(np.clip(shift * place - shift * shift / 2, 0.0, 30.0))
        return tuple(sorted({0.0, 0.8 * best, best, 1.2 * best}))


def separate(name: str, coins: npt.ArrayLike, statistics: npt.ArrayLike) -> Separate:
    """Coins ±1 and what the release says about each; the threshold is chosen on a quarter, the rest is counted."""
    signed = np.asarray(coins, dtype=np.float64) * np.asarray(statistics, dtype=np.float64)
    first, rest = signed[::4], np.concatenate([signed[i::4] for i in (1, 2, 3)])
    at = max(np.unique(np.quantile(np.abs(first), (0.0, 0.25, 0.5, 0.75, 0.9))), key=lambda t: _worth(first, t))
    # A statistic of 0 says nothing: it is neither right nor wrong.
    decided = np.abs(rest) >= max(at, np.finfo(np.float64).tiny)
    return Separate(name, int(np.sum(decided & (rest > 0))), int(np.sum(decided & (rest < 0))), len(rest))


def _worth(signed: npt.NDArray[np.float64], at: float) -> float:
    """A lower limit of the distance between two Gaussians, seen from this threshold."""
    decided = np.abs(signed) >= max(at, np.finfo(np.float64).tiny)
    # Strict, so that a threshold with few guesses is not chosen for its luck.
    right = share_at_least(int(np.sum(decided & (signed > 0))), len(signed), 1e-4)
    wrong = share_at_most(int(np.sum(decided & (signed < 0))), len(signed), 1e-4)
    return float(ndtri(np.clip(right, 1e-12, 1 - 1e-12)) - ndtri(np.clip(wrong, 1e-12, 1 - 1e-12)))


def _scaled(queries: Queries, factor: float) -> Queries:
    """Return the same queries with `factor` times less noise."""
    return tuple(Query(_less_noise(query.event, factor), query.times) for query in queries)


def _less_noise(event: Any, factor: float) -> Any:
    if isinstance(event, NonPrivate):
        return event
    if isinstance(event, PureDP):
        return PureDP(event.epsilon * factor)
    return replace(event, noise_std=event.noise_std / factor)
