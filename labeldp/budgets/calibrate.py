"""Find the least noise that meets a privacy target."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_FLOOR, Context, Decimal
from functools import cache

from labeldp.core.accountant import epsilon as epsilon_of
from labeldp.core.events import (
    Event,
    FixedSizeGaussian,
    Gaussian,
    PartitionGaussian,
    PoissonGaussian,
    PublicBatchGaussian,
    Queries,
    Query,
    TeacherVoting,
)
from labeldp.core.gaussian import AccountingError
from labeldp.core.inverse import gaussian_mu

_WIDEST = 1e15
# Confident-GNMax as published has thresholds of 1.6 (Malek et al. 2021: 800, 500) and 1.67 (Tang et al. 2022: 500, 300)
# times the noise of the responses.
PUBLISHED_RATIO = 1.6
SMALLEST_DELTA, _LARGEST_DELTA = 1e-12, 1e-5


def usual_delta(rows: int) -> float:
    """Return the δ that suits so many rows: a tenth of one over them, to two digits, at most 1e-5.

    >>> usual_delta(500), usual_delta(20_000), usual_delta(32_561), usual_delta(1_000_000)
    (1e-05, 5e-06, 3e-06, 1e-07)
    """
    tenth = Context(prec=2, rounding=ROUND_FLOOR).divide(Decimal(1), Decimal(10 * max(rows, 1)))
    return max(SMALLEST_DELTA, min(_LARGEST_DELTA, float(tenth)))


def check_delta(delta: float, units: int, counted: str = "rows") -> None:
    """Raise ValueError where δ is one over the number of rows, or of users, or more: it would protect nobody."""
    if delta * units >= 1:
        raise ValueError(
            f"delta={delta:g} is one over the {units:,} {counted} or more, which allows to publish the label of one of "
            f"them; give less, say {usual_delta(units):g}"
        )


def calibrate(
    queries_of_noise: Callable[[float], Queries],
    epsilon: float,
    delta: float,
    *,
    guess: float = 1.0,
    rtol: float = 1e-6,
    max_calls: int = 120,
) -> float:
    """Return the smallest noise, to a relative ``rtol``, whose ε at ``delta`` is at most ``epsilon``.

    ``queries_of_noise`` must cost less the larger its argument. The returned noise has itself been checked:
    feeding it back to :func:`labeldp.core.accountant.epsilon` gives at most ``epsilon``, always.

    >>> from labeldp.core.events import Gaussian
    >>> round(calibrate(lambda noise: (Query(Gaussian(noise, 2.0)),), 1.0, 1e-5), 4)
    7.4613
    """
    _check_target(epsilon, guess)
    # Imported late: the accountant's module offers this function, too.
    from labeldp.core.accountant import epsilon as epsilon_of

    search = _Search(lambda noise: epsilon_of(queries_of_noise(noise), delta), epsilon, max_calls)
    search.bracket(guess)
    return search.close(rtol)


class _Search:
    """Root of log ε(noise) = log target in log noise. ``safe`` and ``unsafe`` are the closest noises seen."""

    def __init__(self, epsilon_of: Callable[[float], float], target: float, max_calls: int) -> None:
        self._epsilon_of = epsilon_of
        self._target = target
        self._calls_left = max_calls
        self.safe: tuple[float, float] | None = None
        self.unsafe: tuple[float, float] | None = None

    def measure(self, noise: float) -> float:
        """Return the excess of log ε at a noise, and remember it on its side."""
        if self._calls_left == 0:
            raise AccountingError("calibration did not settle; is the cost falling as the noise grows?")
        self._calls_left -= 1
        eps = self._epsilon_of(noise)
        excess = math.log(eps / self._target) if eps > 0 else -math.inf
        if eps <= self._target:
            self.safe = (noise, min(excess, 0.0))
        else:
            self.unsafe = (noise, excess)
        return excess

    def bracket(self, guess: float) -> None:
        """Walk from the guess, in growing strides, until one noise is safe and one is not."""
        excess = self.measure(guess)
        noise, factor = guess, 1.0
        while self.safe is None or self.unsafe is None:
            # ε falls about like 1/noise, so the excess is a first stride; double it when that is not enough.
            stride = min(abs(excess), 2.0) if math.isfinite(excess) and excess else 1.0
            factor *= math.exp(stride * 1.01 + 1e-7) if factor == 1.0 else max(factor, 1.1)
            noise = guess * factor if self.safe is None else guess / factor
            if self.safe is not None:
                self._measure_below(noise, self.safe[0])
            elif noise < _WIDEST:
                self.measure(noise)
            else:
                raise AccountingError(f"no noise reaches epsilon = {self._target!r} at this delta. {_ADVICE}")

    def _measure_below(self, noise: float, safe: float) -> None:
        """Measure a smaller noise; where none is too little, the accountant gives up before the search does."""
        reason: AccountingError | None = None
        try:
            if noise > 1 / _WIDEST:
                self.measure(noise)
                return
        except AccountingError as error:
            reason = error
        if self._calls_left == 0 and reason is not None:
            raise reason
        raise AccountingError(
            f"a noise of {safe:.3g} is more than enough for epsilon = {self._target!r}, and {noise:.3g} is too little "
            "to be judged. Does delta cover the chance of being drawn? Give a smaller delta, or a guess nearer by."
        ) from reason

    def close(self, rtol: float) -> float:
        """Search by secant steps that aim just past the root, from both sides in turn; bisection when they stall."""
        stalled = False
        while self.safe and self.unsafe:
            (high, below), (low, above) = self.safe, self.unsafe
            width = math.log(high / low)
            if width <= rtol:
                return high
            at = 0.5
            if not stalled and math.isfinite(below) and math.isfinite(above):
                at = above / (above - below)
                margin = min(0.3 * rtol / width, 0.25)
                at += margin if 1 - at > at else -margin
            self.measure(low * math.exp(width * min(max(at, 0.0), 1.0)))
            stalled = math.log(self.safe[0] / self.unsafe[0]) > 0.5 * width and not stalled
        raise AccountingError(f"no noise reaches epsilon = {self._target!r} at this delta. {_ADVICE}")


_ADVICE = "Use a larger epsilon, or a delta greater than 0 if the noise is Gaussian."


def noise_multiplier(
    epsilon: float,
    delta: float,
    steps: int,
    rate: float = 1.0,
    batches: str = "poisson",
    *,
    rtol: float = 1e-6,
) -> float:
    """Return the noise multiplier s / C of DP-SGD with norm clipping: R = C, D = 2C, one label replaced.

    ``batches`` says who knows the batch: ``"poisson"`` and ``"fixed-size"`` are drawn in secret, ``"public"``
    is drawn at random and shown, ``"partition"`` is named in advance and passed ⌈steps·rate⌉ times.

    >>> round(noise_multiplier(1.0, 1e-5, steps=293, rate=1024 / 60000), 4)
    2.1872
    """
    _check_target(epsilon, 1.0)
    if not 0 < delta < 1:
        raise AccountingError(f"delta must lie strictly between 0 and 1 for Gaussian noise, got {delta!r}.")
    gradient_queries(1.0, steps, rate, batches)
    guess = _central_limit_guess(gaussian_mu(epsilon, delta), steps, rate, batches)
    return calibrate(lambda s: gradient_queries(s, steps, rate, batches), epsilon, delta, guess=guess, rtol=rtol)


def gradient_queries(noise_multiplier: float, steps: int, rate: float = 1.0, batches: str = "poisson") -> Queries:
    """Return the queries of DP-SGD with norm clipping at C and noise std ``noise_multiplier``·C, in units of C.

    >>> gradient_queries(2.0, steps=293, rate=0.0171)
    (Query(event=PoissonGaussian(noise_std=2.0, radius=1.0, diameter=2.0, rate=0.0171), times=293),)
    """
    if type(steps) is not int or steps < 1:
        raise AccountingError(f"steps must be an integer ≥ 1, got {steps!r}.")
    if not 0 < rate <= 1:
        raise AccountingError(f"rate must lie in (0, 1], got {rate!r}.")
    if not noise_multiplier > 0:
        raise AccountingError(f"noise multiplier must be greater than 0, got {noise_multiplier!r}.")
    match batches:
        case "poisson":
            return (Query(PoissonGaussian(noise_multiplier, 1.0, 2.0, float(rate)), steps),)
        case "fixed-size":
            return (Query(FixedSizeGaussian(noise_multiplier, 1.0, 2.0, float(rate)), steps),)
        case "public":
            return (Query(PublicBatchGaussian(noise_multiplier, 2.0, float(rate)), steps),)
        case "partition":
            return (Query(PartitionGaussian(noise_multiplier, 2.0), _passes(steps, rate)),)
        case _:
            raise AccountingError(f"batches must be poisson, fixed-size, public or partition, got {batches!r}.")


def _passes(steps: int, rate: float) -> int:
    return max(1, math.ceil(steps * rate - 1e-9))


def _central_limit_guess(mu: float, steps: int, rate: float, batches: str) -> float:
    """Return a first noise multiplier: a step is q²χ², with χ² = 4 sinh(1/s²) at ±1 and e^{4/s²} − 1 at 0 and 2."""
    squared = (mu / rate) ** 2 / steps
    match batches:
        case "poisson":
            return math.asinh(squared / 4) ** -0.5
        case "fixed-size":
            return 2 / math.sqrt(math.log1p(squared))
        case "public":
            return 2 * math.sqrt(steps * rate) / mu
        case _:
            return 2 * math.sqrt(_passes(steps, rate)) / mu


def _check_target(epsilon: float, guess: float) -> None:
    if not (0 < epsilon < math.inf):
        raise AccountingError(
            f"epsilon must be finite and greater than 0, got {epsilon!r}: only silence has epsilon 0."
        )
    if not (0 < guess < math.inf):
        raise AccountingError(f"guess must be finite and greater than 0, got {guess!r}.")


# -- runs of equal queries -----------------------------------------------------------------------------------


_MOST = 10_000_000


def most_queries(event: Event, epsilon: float, delta: float) -> int:
    """Return the largest number of queries that together cost at most `epsilon` at `delta`; 0 when one costs more.

    ε never falls with the number of queries, so bisection finds it. Refuses beyond ten million queries.

    >>> from labeldp.core.events import PoissonGaussian
    >>> most_queries(PoissonGaussian(noise_std=4.0, radius=1.0, diameter=2.0, rate=0.01), epsilon=1.0, delta=1e-5)
    2873
    """
    paid, refused, queries = 0, math.inf, 1
    while refused - paid > 1:
        cost = epsilon_of((Query(event, queries),), delta)
        if cost <= epsilon:
            paid = queries
        else:
            refused = queries
        if paid >= _MOST:
            raise ValueError(f"epsilon={epsilon:g} pays for more than {_MOST} queries of {event}; give less noise")
        # ε grows at least like the root of the number of queries.
        room = min(epsilon / max(cost, 1e-300), 1000.0**0.5) ** 2 * 1.01
        queries = (paid + int(refused)) // 2 if refused < math.inf else min(_MOST, max(paid + 1, int(paid * room)))
    return paid


def meter(event: Event, queries: int, delta: float, marks: int = 24) -> Callable[[int], float]:
    """Return a cheap function from queries made to ε so far, of `queries` in all. Never too small.

    Gaussian queries have a closed form. For others ε is computed at `marks` evenly spaced numbers of queries, each when
    it is first needed, and a number in between costs what the next mark does.

    >>> from labeldp.core.events import PoissonGaussian
    >>> spent = meter(PoissonGaussian(noise_std=4.0, radius=1.0, diameter=2.0, rate=0.01), queries=2873, delta=1e-5)
    >>> [round(spent(taken), 3) for taken in (0, 1, 1400, 2873)]
    [0.0, 0.177, 0.684, 1.0]
    """
    marks = queries if isinstance(event, Gaussian) else min(marks, queries)

    @cache
    def at(mark: int) -> float:
        return epsilon_of((Query(event, -(-mark * queries // marks)),), delta)

    return lambda taken: at(-(-taken * marks // queries)) if taken else 0.0


def voting_for_budget(
    epsilon: float, delta: float, queries: int, responses: int, ratio: float | None = PUBLISHED_RATIO
) -> TeacherVoting:
    """Return the least noise for so many queries and responses of teachers at (ε, δ), where s₁ = ratio·s.

        s = √(Q/ratio² + 2A)/μ(ε, δ);   without thresholds (ratio None) s = √(2A)/μ

    >>> event = voting_for_budget(1.0, 1e-5, queries=1000, responses=250)
    >>> round(event.noise_std, 2), round(event.threshold_std, 2)
    (111.33, 178.14)
    """
    if ratio is not None and not 0 < ratio < math.inf:
        raise ValueError(f"ratio={ratio} is not a ratio of deviations; give a number above 0, or None for no threshold")
    moved = 2.0 * responses + (0.0 if ratio is None else queries / ratio**2)
    # A relative 1e-13 for the rounding of squares and roots on the way back to μ.
    std = math.sqrt(moved) / gaussian_mu(epsilon, delta) * (1 + 1e-13)
    return TeacherVoting(std, responses, None if ratio is None else ratio * std, queries)
