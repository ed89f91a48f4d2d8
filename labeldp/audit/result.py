"""Judge attacks against a claim: a lower bound beside it, and the verdict in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from labeldp.audit.bounds import Claim, checked_confidence
from labeldp.core import random as randomness

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
