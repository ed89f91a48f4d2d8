"""Numbers said in words, for people who do not read epsilons."""

from __future__ import annotations

import math


def odds_in_words(epsilon: float, delta: float) -> str:
    """Epsilon as what it means: how far the odds between two values of one label can move."""
    if math.isinf(epsilon):
        return "No promise: the labels can be recovered."
    odds = f"{math.exp(epsilon):.3g}" if epsilon < 50 else "an astronomical number"
    promise = f"Whoever sees the result can change their odds between two values of one label by at most {odds}×"
    return f"{promise}." if delta == 0 else f"{promise}, except with probability {delta:.3g}."
