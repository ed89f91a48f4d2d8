"""Numbers said in words, for people who do not read epsilons. What is promised is rounded up, never down."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal


def at_most(value: float, digits: int = 6) -> str:
    """A number ≥ 0 rounded up to this many significant digits.

    >>> at_most(0.1), at_most(1.0000004), at_most(2.0138, 3), at_most(math.inf)
    ('0.1', '1.00001', '2.02', 'infinity')
    """
    if math.isinf(value):
        return "infinity"
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(repr(value)))
    return f"{float(rounded):.{digits}g}"


def odds_in_words(epsilon: float, delta: float, protects: str = "one label") -> str:
    """Epsilon as what it means: how far the odds between two values of what is protected can move.

    >>> odds_in_words(1.0, 0.0)
    'Whoever sees the result can change their odds between two values of one label by at most 2.72×.'
    """
    if math.isinf(epsilon):
        return "No promise: the labels can be recovered."
    promise = f"Whoever sees the result can change their odds between two values of {protects} by at most "
    promise += f"{at_most(math.exp(epsilon), 3)}×" if epsilon < 50 else "an astronomical factor"
    promise += "." if delta == 0 else f", except with probability {at_most(delta, 3)}."
    return promise if epsilon < 10 else f"{promise} That protects hardly anything; below 5 is usual."
