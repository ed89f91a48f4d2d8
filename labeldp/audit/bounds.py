"""Turn guesses about labels into a lower bound on ε, exact and one-sided, and say whether it contradicts a claim.

*Guesses.* Each of m canaries has one of c candidate labels, by a fair draw. An ε-private release changes the odds
between two labels of one row by at most e^ε, whatever is known of all other rows; so each guess, given the release and
all other labels, is right with probability at most

    cap(ε) = e^ε / (e^ε + c − 1),

and the number of right guesses among r is at most Binomial(r, cap) in the stochastic order: a martingale argument that
holds row by row, so r and the choice of rows may depend on the release (δ = 0). With δ > 0 and two candidates, for an r
fixed in advance (Steinke, Nasr & Jagielski 2023, Theorem 5.2; flipping a coin here is replacing one label, so there is
no factor 2 in ε):

    p(v) = P[Bin(r, cap) ≥ v] + 2 m δ · max_{1 ≤ i ≤ v} P[v > Bin(r, cap) ≥ v − i] / i.

The lower bound is the largest ε whose p is still below 1 − confidence; for δ = 0 it is Clopper and Pearson's (1934).

*Separate canaries* give tighter bounds for Gaussian noise, from the whole curve that a ledger promises. Where every
canary moves its own part of the release (an orthogonal feature, a group of its own, a training run of its own), the
statistics T_i are independent given the coins s_i = ±1. Call a canary *right* if s_i T_i ≥ t and *wrong* if
s_i T_i ≤ −t; let a and b be the probabilities of the two, averaged over canaries and coins. Each canary by itself tells
two neighbours apart, so its probabilities obey a ≤ e^x b + δ(x) for every x ≥ 0, δ the curve of the ledger; and so do
the averages. The counts of right and wrong are sums of independent indicators, more concentrated than binomials of the
same means (Hoeffding 1956), so Clopper and Pearson's limits hold for a and b. If they break the inequality for one x,
the claim is broken. A single (ε, δ) uses one point of the curve; for Gaussian queries all of it is known, and a halved
noise shows from some thousand canaries (Nasr et al. 2023 do this for one Gaussian). In words of ε: find the largest λ
for which the same queries with λ times less noise are still broken; ε is at least that of those queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betainccinv, betaincinv, expit, ndtri

from labeldp.core import accountant, inverse
from labeldp.core import random as randomness
from labeldp.core.certificate import Certificate
from labeldp.core.events import NonPrivate, PureDP, Queries, Query
from labeldp.core.ledger import worst_epsilon

# No release of labels has an ε beyond this that anyone would call private.
LARGEST = 100.0
# The noise is looked for between this many times as much and as little.
_RANGE = 8.0
_LEAST_P = 1e-30

# Points (x, δ(x)).
Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class Claim:
    """State what was promised: (ε, δ) for one label, and the queries behind it where they are known.

    >>> Claim(1.0)
    Claim(epsilon=1.0, delta=0.0, queries=())
    """

    epsilon: float
    delta: float = 0.0
    queries: Queries = ()

    def __post_init__(self) -> None:
        if not self.epsilon >= 0 or not 0 <= self.delta < 1:
            raise ValueError(f"epsilon={self.epsilon}, delta={self.delta} is not a claim; give ε ≥ 0 and δ below 1")

    @classmethod
    def of(cls, certificate: Certificate, delta: float | None = None) -> Claim:
        """Return the claim of a certificate, at its own δ or another, with the queries of its worst row."""
        groups = [group for group in certificate.groups if group.rows]
        at = certificate.delta if delta is None else delta
        worst = max(groups, key=lambda group: worst_epsilon((group,), at), default=None)
        epsilon = certificate.epsilon if delta is None else worst_epsilon(groups, delta)
        # Of several plans no curve is promised, only the claim itself.
        return cls(epsilon, at, worst.queries if worst and len(worst.plans) == 1 else ())


# -- guesses -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guesses:
    """Count right guesses among c candidates each; nothing is assumed of what was released."""

    name: str
    correct: int
    guesses: int
    canaries: int
    candidates: int = 2

    @property
    def counts(self) -> tuple[int, int, int]:
        """Return right guesses, guesses, canaries."""
        return self.correct, self.guesses, self.canaries

    def p_value(self, claim: Claim) -> float:
        """Return the chance, at most, of guesses as good under the claim."""
        return p_value(self.correct, self.guesses, claim.epsilon, delta=claim.delta, **self._sizes())

    def bound(self, claim: Claim, confidence: float) -> float:
        """Return the largest ε, at the claim's δ, that the guesses rule out."""
        return lower_bound(self.correct, self.guesses, confidence, delta=claim.delta, **self._sizes())

    def _sizes(self) -> dict[str, int]:
        return {"canaries": self.canaries, "candidates": self.candidates}


def p_value(
    correct: int, guesses: int, epsilon: float, *, delta: float = 0.0, canaries: int = 0, candidates: int = 2
) -> float:
    """Return the chance, at most, of so many right guesses or more under an (ε, δ)-private release.

    >>> p_value(correct=75, guesses=100, epsilon=0.0) < 1e-6
    True
    >>> p_value(correct=75, guesses=100, epsilon=1.0) > 0.3
    True
    """
    if not 0 <= correct <= guesses:
        raise ValueError(f"correct={correct} of guesses={guesses} is not a count of right guesses")
    if candidates < 2:
        raise ValueError(f"candidates={candidates}: with fewer than two there is nothing to guess")
    if correct == 0 or math.isinf(epsilon):
        return 1.0
    cap = float(expit(epsilon - math.log(candidates - 1)))
    chance = float(_at_least(correct, guesses, cap))
    if delta == 0:
        return chance
    if candidates != 2:
        raise ValueError(f"candidates={candidates}: with delta={delta:g} the bound is proved for two; give 2")
    fewer = np.arange(1, correct + 1)
    worst = float(np.max((_at_least(correct - fewer, guesses, cap) - chance) / fewer))
    return min(1.0, chance + 2 * max(canaries, guesses) * delta * worst)


def _at_least(count: npt.ArrayLike, total: int, chance: float) -> npt.NDArray[np.float64]:
    """Return P[Bin(total, chance) ≥ count], the incomplete beta function; 1 for a count of 0.

    >>> _at_least([0, 1, 2], 2, 0.25)
    array([1.    , 0.4375, 0.0625])
    """
    counts = np.asarray(count, dtype=np.float64)
    return np.where(counts > 0, betainc(np.maximum(counts, 1), total - counts + 1, chance), 1.0)


def lower_bound(
    correct: int, guesses: int, confidence: float, *, delta: float = 0.0, canaries: int = 0, candidates: int = 2
) -> float:
    """Return the largest ε that so many right guesses rule out, with this confidence; 0 if they rule out none.

    >>> round(lower_bound(correct=731, guesses=1000, confidence=0.95), 3)
    0.881
    """
    missed = 1 - checked_confidence(confidence)

    def ruled_out(epsilon: float) -> bool:
        return p_value(correct, guesses, epsilon, delta=delta, canaries=canaries, candidates=candidates) < missed

    return largest_true(ruled_out, LARGEST)


def checked_confidence(confidence: float) -> float:
    """Return a probability strictly between 0 and 1, or raise ValueError."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} is not a probability; give one below 1, say 0.999")
    return confidence


# -- separate canaries ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Separate:
    """Count right and wrong canaries among independent ones.

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
        """Return right guesses, guesses, canaries."""
        return self.correct, self.correct + self.wrong, self.canaries

    def p_value(self, claim: Claim) -> float:
        """Return the chance, at most, of guesses as good under the claim."""
        curve = self._curve(claim.queries) if claim.queries else [(claim.epsilon, claim.delta)]
        # The smallest level at which the claim is still broken; levels are searched by their logarithm.
        missed = -largest_true(lambda power: self._breaks(curve, 10.0**-power), -math.log10(_LEAST_P))
        return 1.0 if missed == 0 else 10.0**missed

    def bound(self, claim: Claim, confidence: float) -> float:
        """Return ε of the claim's queries with as much less noise as the guesses prove."""
        missed = 1 - confidence
        if not claim.queries:
            return largest_true(lambda epsilon: self._breaks([(epsilon, claim.delta)], missed), LARGEST)

        def proved(power: float) -> bool:
            return self._breaks(self._curve(_with_less_noise(claim.queries, 2.0**power)), missed)

        end = math.log2(_RANGE)
        if not proved(-end):
            return 0.0
        factor = 2.0 ** largest_true(proved, end, -end, steps=12)
        return accountant.epsilon(_with_less_noise(claim.queries, factor), claim.delta)

    def _curve(self, queries: Queries) -> Curve:
        return [(slope, inverse.delta(queries, slope)) for slope in self._slopes]

    @cached_property
    def _slopes(self) -> tuple[float, ...]:
        """Return the points x of the curve worth trying, around the best one for a Gaussian with these counts."""
        low = share_at_least(self.correct, self.canaries, 0.5) if self.correct else 0.5 / self.canaries
        high = max(share_at_most(self.wrong, self.canaries, 0.5), 1e-12)
        place, shift = -ndtri(min(high, 0.999)), ndtri(min(low, 0.999)) - ndtri(min(high, 0.999))
        best = float(np.clip(shift * place - shift * shift / 2, 0.0, 30.0))
        return tuple(sorted({0.0, 0.8 * best, best, 1.2 * best}))

    def _breaks(self, curve: Curve, missed: float) -> bool:
        """Say whether this curve cannot explain the counts, but with a chance of `missed` to be wrong about it."""
        right = share_at_least(self.correct, self.canaries, missed / 2)
        wrong = share_at_most(self.wrong, self.canaries, missed / 2)
        return any(right > math.exp(slope) * wrong + delta for slope, delta in curve)


def separate(name: str, coins: npt.ArrayLike, statistics: npt.ArrayLike) -> Separate:
    """Count coins ±1 by what the release says about each; a quarter chooses the threshold, the rest is counted."""
    signed = np.asarray(coins, dtype=np.float64) * np.asarray(statistics, dtype=np.float64)
    first, rest = signed[::4], np.concatenate([signed[i::4] for i in (1, 2, 3)])

    def counted(part: npt.NDArray[np.float64], at: float) -> tuple[int, int]:
        # A statistic of 0 says nothing: it is neither right nor wrong.
        decided = np.abs(part) >= max(at, np.finfo(np.float64).tiny)
        return int(np.sum(decided & (part > 0))), int(np.sum(decided & (part < 0)))

    def worth(at: float) -> float:
        """Return a lower limit of the distance between two Gaussians, seen from this threshold."""
        right, wrong = counted(first, at)
        # Strict, so that a threshold with few guesses is not chosen for its luck.
        shares = share_at_least(right, len(first), 1e-4), share_at_most(wrong, len(first), 1e-4)
        above, below = (ndtri(np.clip(share, 1e-12, 1 - 1e-12)) for share in shares)
        return float(above - below)

    thresholds = np.unique(np.quantile(np.abs(first), (0.0, 0.25, 0.5, 0.75, 0.9)))
    return Separate(name, *counted(rest, max(thresholds, key=worth)), len(rest))


def _with_less_noise(queries: Queries, factor: float) -> Queries:
    """Return the same queries with `factor` times less noise."""

    def event(of: Any) -> Any:
        if isinstance(of, NonPrivate):
            return of
        if isinstance(of, PureDP):
            return PureDP(of.epsilon * factor)
        return replace(of, noise_std=of.noise_std / factor)

    return tuple(Query(event(query.event), query.times) for query in queries)


# -- limits and searches -------------------------------------------------------------------------------------


def share_at_least(count: int, total: int, missed: float) -> float:
    """Return Clopper and Pearson's lower limit of a probability, too large with probability `missed` at most."""
    return 0.0 if count == 0 else float(betaincinv(count, total - count + 1, missed))


def share_at_most(count: int, total: int, missed: float) -> float:
    """Return Clopper and Pearson's upper limit of a probability, too small with probability `missed` at most."""
    return 1.0 if count == total else float(betainccinv(count + 1, total - count, missed))


def largest_true(holds: Callable[[float], bool], top: float, bottom: float = 0.0, steps: int = 50) -> float:
    """Return the largest number up to `top` for which this holds, rounded down; `bottom` if it holds nowhere."""
    if not holds(bottom):
        return bottom
    if holds(top):
        return top
    low, high = bottom, top
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


# -- the verdict -------------------------------------------------------------------------------------------------------


# Of audits alone: see `coins_of`.
_APART = 0xA0D17


def coins_of(seed: int | None) -> np.random.Generator:
    """Return the coins of an audit; with a seed they are apart from those of anybody who used the same number.

    Features drawn from `default_rng(0)` would know the coins of `default_rng(0)` beforehand, and an honest recipe would
    be accused of telling them.
    """
    # Without a seed from the source of all keys, which tests can name: an audit accuses the honest at a stated rate.
    fresh = int.from_bytes(randomness.system_key(), "big") if seed is None else 0
    return np.random.default_rng(fresh if seed is None else [seed, _APART])


class Attack(Protocol):
    """Describe guesses that were made and checked."""

    @property
    def name(self) -> str:
        """Return how the guesses were made, in a few words."""
        ...

    @property
    def counts(self) -> tuple[int, int, int]:
        """Return right guesses, guesses, canaries."""
        ...

    def p_value(self, claim: Claim) -> float:
        """Return the chance, at most, of guesses as good under the claim."""
        ...

    def bound(self, claim: Claim, confidence: float) -> float:
        """Return the largest ε, at the claim's δ, that the guesses rule out."""
        ...


@dataclass(frozen=True)
class AuditResult:
    """Hold an empirical lower bound on ε beside the claim.

    Args:
        bound: with `confidence`, a mechanism with a smaller ε (at the claim's δ) would not give itself away like this.
        confidence: an honest mechanism is accused with probability at most one minus this.
        epsilon, delta: the claim.
        p_value: the chance, at most, of guesses as good under the claim.
        attack: how the guesses of the best attack were made.
        correct, guesses, canaries: how many of its guesses were right, how many it made, about how many labels.
        assumes: what must be true of the data for the bound to hold; empty if nothing.
    """

    bound: float
    confidence: float
    epsilon: float
    delta: float
    p_value: float
    attack: str
    correct: int
    guesses: int
    canaries: int
    assumes: str = ""

    @property
    def contradicts(self) -> bool:
        """Say whether the claim is ruled out."""
        return self.bound > self.epsilon

    @property
    def verdict(self) -> str:
        """Say what follows, in words."""
        seen = f"{self.correct:,} of {self.guesses:,} guesses about {self.canaries:,} labels were right ({self.attack})"
        found = f"with {100 * self.confidence:.10g}% confidence epsilon is at least {_digits(self.bound)}"
        given = f", given that {self.assumes}" if self.assumes else ""
        claimed = f"{_digits(self.epsilon)}" + (f" at delta {self.delta:.3g}" if self.delta else "")
        if not self.contradicts:
            return (
                f"No contradiction: {seen}; {found}, and {claimed} is claimed{given}. An audit can catch a broken "
                "promise; it cannot prove that one is kept."
            )
        return (
            f"THE CLAIM IS BROKEN: {seen}; {found}, but only {claimed} is claimed{given}. Under the claim, guesses as "
            f"good have a chance of {self.p_value:.1g} at most."
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values; an infinite claim becomes the text "infinity"."""
        values = {**asdict(self), "contradicts": self.contradicts, "verdict": self.verdict}
        return {name: "infinity" if value == math.inf else value for name, value in values.items()}


def judged(claim: Claim, attacks: Sequence[Attack], confidence: float, assumes: str = "") -> AuditResult:
    """Return the result of the best attack, corrected for how many were tried (Bonferroni)."""
    share = 1 - (1 - checked_confidence(confidence)) / len(attacks)
    bounds = [attack.bound(claim, share) for attack in attacks]
    chances = [attack.p_value(claim) for attack in attacks]
    # Where no bound tells them apart, the smallest chance does.
    best = max(range(len(attacks)), key=lambda i: (bounds[i], -chances[i]))
    return AuditResult(
        bounds[best], confidence, claim.epsilon, claim.delta, min(1.0, len(attacks) * chances[best]),
        attacks[best].name, *attacks[best].counts, assumes,
    )  # fmt: skip


def _digits(value: float) -> str:
    """Round down, so that no bound is stated larger than it is."""
    if not 0 < value < math.inf:
        return f"{value:g}"
    scale = 10 ** (2 - math.floor(math.log10(value)))
    return f"{math.floor(value * scale + 1e-9) / scale:g}"
