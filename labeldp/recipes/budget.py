"""What each query of a recipe may cost: ε split between queries of the same rows, or turned into noise and steps."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real

from labeldp.budgets.calibrate import calibrate, most_queries
from labeldp.core.accountant import epsilon as epsilon_of
from labeldp.core.events import Event, GridGaussian, PureDP, Query
from labeldp.core.gaussian import gaussian_epsilon
from labeldp.core.inverse import gaussian_mu
from labeldp.mechanisms.common import checked_epsilon
from labeldp.mechanisms.gradients.sums import DiameterBound, NormBound

Bound = NormBound | DiameterBound
_ROOT2 = math.sqrt(2.0)
# What rounding may lose when μ is taken apart and put together again, with room.
_SLACK = 1e-9


def split_budget(
    epsilon: float, delta: float, shares: Sequence[float], *, last_pure: bool = False
) -> tuple[float, ...]:
    """Return the ε of each query, so that all of them on the same rows cost (ε, δ) together and not more.

    All are Gaussian, each at the same δ, and μ(ε_r, δ)² = share_r · μ(ε, δ)²: the ε_r add up to more than ε, and the
    queries still cost ε, because squares of μ add up (Dong, Roth & Su 2022). With `last_pure` there is one Gaussian
    query and one pure response per row, ε₂ = share₂ · ε, and ε₁ is the largest for which both cost (ε, δ) by their
    privacy loss distributions. Two pure queries are split by `split_pure`.

    >>> [round(part, 4) for part in split_budget(1.0, 1e-5, (0.5, 0.5))]
    [0.6841, 0.6841]
    >>> [round(part, 4) for part in split_budget(2.0, 1e-5, (0.25, 0.75), last_pure=True)]
    [0.5074, 1.5]
    """
    # Nothing may be left for a pure query: then there is none.
    least = min(shares) >= 0 and shares[0] > 0 if shares and last_pure else bool(shares) and min(shares) > 0
    if not least or not abs(sum(shares) - 1) <= 1e-9:
        raise ValueError(f"shares={tuple(shares)} do not split the budget; give positive numbers that add up to 1")
    if not 0 < epsilon < math.inf or not 0 < delta < 1:
        raise ValueError(f"epsilon={epsilon}, delta={delta}: Gaussian noise needs finite ε > 0 and 0 < δ < 1")
    if last_pure:
        second = shares[-1] * epsilon
        return (_largest_first(epsilon, delta, second), second) if second > 0 else (epsilon, 0.0)
    mu = gaussian_mu(epsilon, delta) * (1 - _SLACK)
    parts = [gaussian_epsilon(mu * math.sqrt(share / sum(shares)), delta) for share in shares]
    if min(parts) <= 0:
        raise ValueError(f"epsilon={epsilon} is too small for {len(parts)} queries at delta={delta}; use one query")
    return tuple(parts)


def split_pure(epsilon: float, first: float) -> tuple[float, float]:
    """Return `first` and the rest of ε, for two pure queries: they add up to ε without a rounding error.

    For that `first` may differ from the one given in its last digits.

    >>> split_pure(1.0, 0.25)
    (0.25, 0.75)
    """
    rest = epsilon - first
    # Exact both ways: what is subtracted last, or first, is at least ε/2 (Sterbenz 1974).
    return (epsilon - rest if rest < math.inf else first), rest


@functools.lru_cache(maxsize=256)
def _largest_first(epsilon: float, delta: float, second: float) -> float:
    """Return the ε₁ whose Gaussian noise leaves ε₂ = `second` to a pure query."""
    # A little over: the noise of ε₁ is found from ε₁ again, and must not be less.
    std = 1.0001 * calibrate(
        lambda noise: (Query(GridGaussian(noise, _ROOT2)), Query(PureDP(second))),
        epsilon, delta, guess=_ROOT2 / gaussian_mu(epsilon - second, delta), rtol=1e-5,
    )  # fmt: skip
    return gaussian_epsilon(_ROOT2 / std, delta)


def checked_part(name: str, part: float, epsilon: float) -> float:
    """Return ε's part, or raise ValueError when it is not between 0 and ε."""
    if not 0 <= checked_epsilon(part) <= epsilon:
        raise ValueError(f"{name}={part} is not a part of epsilon={epsilon}; give 0 to {epsilon}")
    return part


# --- from ε to noise and steps ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """Two of ε, noise multiplier and queries per row, at this δ."""

    delta: float
    epsilon: float | None
    noise_multiplier: float | None
    times: int | None

    def __post_init__(self) -> None:
        if [self.epsilon, self.noise_multiplier, self.times].count(None) != 1:
            raise ValueError(
                f"epsilon={self.epsilon}, noise_multiplier={self.noise_multiplier} and a length of {self.times} steps: "
                "give two of epsilon, noise_multiplier and length (epochs or steps); the third follows"
            )
        for name in ("delta", "epsilon", "noise_multiplier"):
            value = getattr(self, name)
            if value is None and name != "delta":
                continue
            if isinstance(value, bool) or not isinstance(value, Real):
                raise ValueError(f"{name}={value!r} is not a number")
            object.__setattr__(self, name, float(value))
        check_target(1.0 if self.epsilon is None else self.epsilon, self.delta)
        if self.noise_multiplier is not None and not 0 < self.noise_multiplier < math.inf:
            raise ValueError(f"noise_multiplier={self.noise_multiplier} is not an amount of noise; give a number > 0")

    def terms(
        self, event_of: Callable[[float], Event], bound: Bound, rate: float, paid: tuple[float, int] | None
    ) -> tuple[float, int]:
        """Return noise of a sum and queries per row; those paid for in an earlier process, if they keep the promise."""
        if paid is not None:
            spent = epsilon_of((Query(event_of(paid[0]), paid[1]),), self.delta)
            # Another machine may round the last digits of ε otherwise.
            if self.epsilon is not None and spent > self.epsilon * (1 + 1e-6):
                raise ValueError(f"the run in this folder was paid for with epsilon={spent:.9g}; use a new folder")
            return paid
        match self.epsilon, self.noise_multiplier, self.times:
            case float() as epsilon, None, int() as times:
                return least_noise(event_of, times, epsilon, self.delta, bound.diameter, rate), times
            case None, float() as multiplier, int() as times:
                return multiplier * bound.radius, times
            case float() as epsilon, float() as multiplier, None:
                event = event_of(multiplier * bound.radius)
                times = most_queries(event, epsilon, self.delta)
                if times == 0:
                    raise ValueError(f"epsilon={epsilon} does not pay for a single {event}; give more noise")
                return multiplier * bound.radius, times
        raise ValueError(f"{self} is not made of numbers")


def multiplier_of(noise: float, radius: float) -> float:
    """Return the least multiplier that gives at least this noise: of what it gives, it is itself the multiplier.

    >>> found = multiplier_of(0.7, 0.3)
    >>> found * 0.3 >= 0.7, multiplier_of(found * 0.3, 0.3) == found
    (True, True)
    """
    found = noise / radius
    while math.nextafter(found, 0.0) * radius >= noise:
        found = math.nextafter(found, 0.0)
    while found * radius < noise:
        found = math.nextafter(found, math.inf)
    return found


def least_noise(
    event_of: Callable[[float], Event], times: int, epsilon: float, delta: float, diameter: float, rate: float = 1.0
) -> float:
    """Return the smallest noise with which `times` queries cost at most `epsilon` at `delta`."""
    check_target(epsilon, delta)
    # What the central limit says; right when the noise is large.
    guess = diameter * rate * math.sqrt(times) / gaussian_mu(epsilon, delta)
    return calibrate(lambda noise: (Query(event_of(noise), times),), epsilon, delta, guess=guess)


def check_target(epsilon: float, delta: float) -> None:
    """Raise ValueError unless Gaussian noise can reach this target."""
    if not 0 < epsilon < math.inf:
        raise ValueError(
            f"epsilon={epsilon} cannot be reached with Gaussian noise; give a finite number greater than 0. To train "
            "without privacy, reveal the labels and use labeldp.learning.train"
        )
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta} cannot be reached with Gaussian noise; give, say, 1e-5")
