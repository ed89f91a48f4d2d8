"""Learning-rate schedules: functions from the share of training done, in [0, 1), to a factor on the peak rate.

A schedule counts from the start of training, warm-up included, so a drop "at 30%" happens at 30%: step t of T
uses the factor at t / T.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[float], float]


def constant() -> Schedule:
    """The peak rate throughout."""
    return lambda done: 1.0


def piecewise(drops: tuple[float, ...] = (0.3, 0.6, 0.9), factor: float = 0.1, warmup: float = 0.15) -> Schedule:
    """Linear from 0 to the peak during `warmup`, then multiplied by `factor` at each of `drops`.

    >>> rate = piecewise()
    >>> [round(rate(done), 3) for done in (0.0, 0.075, 0.15, 0.299, 0.3, 0.6, 0.9)]
    [0.0, 0.5, 1.0, 1.0, 0.1, 0.01, 0.001]
    """
    _check_share("warmup", warmup)
    return lambda done: _ramp(done, warmup) * factor ** sum(done >= drop for drop in drops)


def linear(warmup: float = 0.15) -> Schedule:
    """Linear from 0 to the peak during `warmup`, then linear to 0 at the end.

    >>> rate = linear(warmup=0.2)
    >>> [round(rate(done), 3) for done in (0.0, 0.1, 0.2, 0.6, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    _check_share("warmup", warmup)
    return lambda done: _ramp(done, warmup) * min(1.0, (1.0 - done) / (1.0 - warmup))


def one_cycle(warmup: float = 0.3, start: float = 0.04, end: float = 1e-4) -> Schedule:
    """Cosine from `start` to the peak during `warmup`, cosine down to `end` after it (Smith and Topin 2019)."""
    _check_share("warmup", warmup)

    def rate(done: float) -> float:
        if done < warmup:
            return _cosine(start, 1.0, done / warmup)
        return _cosine(1.0, end, (done - warmup) / (1.0 - warmup))

    return rate


def cosine(warmup: float = 0.0) -> Schedule:
    """Linear from 0 during `warmup`, then half a cosine from the peak to 0."""
    _check_share("warmup", warmup)
    return lambda done: _ramp(done, warmup) * _cosine(1.0, 0.0, max(0.0, done - warmup) / (1.0 - warmup))


def _ramp(done: float, warmup: float) -> float:
    return min(1.0, done / warmup) if warmup else 1.0


def _cosine(first: float, last: float, share: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * min(share, 1.0))) / 2


def _check_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name}={value} is not a share of training; give a number in [0, 1)")
