"""Say in words what ε promises. What is promised is rounded up, never down."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal

# Beliefs that cards and reports give as examples.
BELIEFS = (0.01, 0.1, 0.5, 0.9)


def at_most(value: float, digits: int = 6) -> str:
    """Return a number ≥ 0 rounded up to this many significant digits.

    >>> at_most(0.1), at_most(1.0000004), at_most(2.0138, 3), at_most(math.inf)
    ('0.1', '1.00001', '2.02', 'infinity')
    """
    if math.isinf(value):
        return "infinity"
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(repr(value)))
    return f"{float(rounded):.{digits}g}"


def odds_in_words(epsilon: float, delta: float, protects: str = "one label") -> str:
    """Return what ε means: how far the odds between two values of what is protected can move.

    `labeldp verify` looks for this sentence in the cards of old folders, too: its wording cannot change.

    >>> odds_in_words(1.0, 0.0)
    'Whoever sees the result can change their odds between two values of one label by at most 2.72×.'
    """
    if math.isinf(epsilon):
        return "No promise: the labels can be recovered."
    promise = f"Whoever sees the result can change their odds between two values of {protects} by at most "
    promise += f"{at_most(math.exp(epsilon), 3)}×" if epsilon < 50 else "an astronomical factor"
    promise += "." if delta == 0 else f", except with probability {at_most(delta, 3)}."
    return promise if epsilon < 10 else f"{promise} That protects hardly anything; below 5 is usual."


def belief_after(belief: float, epsilon: float) -> float:
    """Return the largest belief in one value, against another, that `belief` can become: odds times e^ε.

    >>> round(belief_after(0.5, 1.0), 4), round(belief_after(0.01, 1.0), 4), belief_after(0.0, 1.0)
    (0.7311, 0.0267, 0.0)
    """
    # 1/(1 + (1 − p)/p e^−ε), written so that no ε overflows.
    return 0.0 if belief <= 0 else belief / (belief + (1 - belief) * math.exp(-epsilon))


def belief_below(belief: float, epsilon: float) -> float:
    """Return the smallest belief that `belief` can become: odds divided by e^ε."""
    return 1 - belief_after(1 - belief, epsilon)


def belief_in_words(belief: float, epsilon: float) -> str:
    """Return `belief_after` in percent, rounded up, but never a certainty that is not there.

    >>> belief_in_words(0.5, 1.0), belief_in_words(0.9, 30.0)
    ('73.2%', 'almost 100%')
    """
    percent = at_most(100 * belief_after(belief, epsilon), 3)
    return "almost 100%" if float(percent) >= 100 else f"{percent}%"
