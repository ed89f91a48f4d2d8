"""Runs of equal looks: how many a budget pays for, and what those taken so far have cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from labeldp.accounting.accountant import epsilon as epsilon_of
from labeldp.accounting.events import Event, Gaussian, Look

_MOST = 10_000_000


def most_looks(event: Event, epsilon: float, delta: float) -> int:
    """The largest number of looks that together cost at most `epsilon` at `delta`; 0 when one costs more.

    ε never falls with the number of looks, so bisection finds it. Refuses beyond ten million looks.

    >>> from labeldp.accounting.events import PoissonGaussian
    >>> most_looks(PoissonGaussian(noise_std=4.0, radius=1.0, diameter=2.0, rate=0.01), epsilon=1.0, delta=1e-5)
    2873
    """
    paid, refused, looks = 0, math.inf, 1
    while refused - paid > 1:
        cost = epsilon_of((Look(event, looks),), delta)
        if cost <= epsilon:
            paid = looks
        else:
            refused = looks
        if paid >= _MOST:
            raise ValueError(f"epsilon={epsilon:g} pays for more than {_MOST} looks at {event}; give less noise")
        looks = (paid + int(refused)) // 2 if refused < math.inf else _farther(paid, epsilon / max(cost, 1e-300))
    return paid


def _farther(looks: int, room: float) -> int:
    """Where to look next: ε grows at least like the root of the number of looks."""
    return min(_MOST, max(looks + 1, int(looks * min(room * room, 1000.0) * 1.01)))


def meter(event: Event, looks: int, delta: float, marks: int = 24) -> Callable[[int], float]:
    """A cheap function from looks taken to ε so far, of `looks` in all. Never too small.

    Gaussian looks have a closed form. For others ε is computed at `marks` evenly spaced numbers of looks, each when
    it is first needed, and a number in between costs what the next mark does.

    >>> from labeldp.accounting.events import PoissonGaussian
    >>> spent = meter(PoissonGaussian(noise_std=4.0, radius=1.0, diameter=2.0, rate=0.01), looks=2873, delta=1e-5)
    >>> [round(spent(taken), 3) for taken in (0, 1, 1400, 2873)]
    [0.0, 0.177, 0.684, 1.0]
    """
    marks = looks if isinstance(event, Gaussian) else min(marks, looks)

    @cache
    def at(mark: int) -> float:
        return epsilon_of((Look(event, -(-mark * looks // marks)),), delta)

    return lambda taken: at(-(-taken * marks // looks)) if taken else 0.0
