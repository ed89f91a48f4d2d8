"""What one look at the labels costs, under the one neighbouring relation of this library.

Two data sets are neighbours when **one label is replaced**; features, the number of rows and their order
are public. Every event below describes the worst pair of output laws (P, Q) over such neighbours. Since a
replacement can be undone by a replacement, every pair is symmetric: what P can do to Q, Q can do to P.

Parameters, defined once for the whole library. A row contributes a vector g(x, y) to a released sum.

``noise_std`` (s)
    Standard deviation of the noise on each coordinate of the *sum* (not of the mean).
``radius`` (R)
    Largest norm of one row's contribution: |g(x, y)| ≤ R. The clipping norm C.
``diameter`` (D)
    Furthest one row's contribution moves when its label is replaced: |g(x, y) − g(x, y′)| ≤ D ≤ 2R.
    With norm clipping alone D = 2C.
``rate`` (q)
    Probability that a given row is in the batch. The batch is drawn by the vault and never shown.
``epsilon`` (ε)
    Largest log-ratio of two probabilities of one answer.

A *noise multiplier* is s / C everywhere (the command line included), never s / (2C).

Every event answers two questions about the privacy loss L = log dP/dQ of its worst pair.

``tail(ε)``
    (P(L > ε), Q(L > ε)) for ε ≥ 0. The rest of the law follows by symmetry: P puts e^{−ℓ} times its mass at ℓ
    on −ℓ, and what is left over on 0.
``profile(ε)``
    δ(ε) = P(L > ε) − e^ε Q(L > ε), for any real ε, of one look.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from labeldp.accounting import discrete
from labeldp.accounting.base import BaseEvent, check_ratio, set_noise, set_real
from labeldp.accounting.gaussian import gaussian_profile
from labeldp.accounting.sampled import FixedSizeGaussian, PoissonGaussian, PublicBatchGaussian
from labeldp.accounting.special import expit, ndtr
from labeldp.accounting.voting import TeacherVoting

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PureDP(BaseEvent):
    """Any ε-private answer. The worst pair is binary randomized response: loss ±ε, with odds e^ε.

    Every pure mechanism is a post-processing of it (Kairouz, Oh & Viswanath 2015).
    """

    epsilon: float

    def __post_init__(self) -> None:
        set_real(self, "epsilon", finite=False)

    @property
    def free(self) -> bool:
        """True at ε = 0."""
        return self.epsilon == 0

    @property
    def lattice(self) -> float:
        """Losses are ±ε."""
        return self.epsilon

    def tail(self, eps: Array) -> tuple[Array, Array]:
        """One atom, at ε."""
        below = eps < self.epsilon
        return np.where(below, expit(self.epsilon), 0.0), np.where(below, expit(-self.epsilon), 0.0)

    def _profile(self, eps: Array) -> Array:
        gap = np.minimum(eps - self.epsilon, 0.0) if math.isfinite(self.epsilon) else np.full_like(eps, -math.inf)
        return -np.expm1(gap) * expit(self.epsilon)


@dataclass(frozen=True, slots=True)
class Gaussian(BaseEvent):
    """Gaussian noise on an answer that moves by at most the diameter: μ = D/s."""

    noise_std: float
    diameter: float

    def __post_init__(self) -> None:
        set_noise(self)
        set_real(self, "diameter")
        check_ratio(self.noise_std, self.diameter)

    @property
    def mu(self) -> float:
        """Distance of the two means in units of the noise."""
        return self.diameter / self.noise_std

    @property
    def free(self) -> bool:
        """True when nothing moves."""
        return self.mu == 0

    def tail(self, eps: Array) -> tuple[Array, Array]:
        """Φ(z) and Φ(z − μ) with z = μ/2 − ε/μ."""
        z = self.mu / 2 - eps / self.mu
        return ndtr(z), ndtr(z - self.mu)

    def _profile(self, eps: Array) -> Array:
        return gaussian_profile(self.mu, eps)


@dataclass(frozen=True, slots=True)
class PartitionGaussian(Gaussian):
    """One pass over batches named in advance: a row is in exactly one of them, so one Gaussian look in all.

    The diameter is that of one row's contribution to its batch. Nothing is hidden, so nothing is amplified.
    """


@dataclass(frozen=True, slots=True)
class GridGaussian(Gaussian):
    """Exact discrete Gaussian noise on a fine grid; costs no more than the Gaussian look with these numbers.

    `labeldp.private.moments` proves it; its own name, so that a certificate tells it from floating-point noise.
    """


@dataclass(frozen=True, slots=True)
class DiscreteGaussian(BaseEvent):
    """Exact discrete Gaussian noise N_Z(0, s²) on integer counts; one label moves coordinate i by moves[i].

    A replaced label leaves one class and joins another: moves (1, 1). With Y = Σ mᵢXᵢ the loss is
    (|m|² − 2Y)/(2s²), and Q shifts Y by |m|²; so P(L > ε) = P(Y > s²ε − |m|²/2), and with + for Q. The law
    of Y is summed exactly; it is not the continuous Gaussian (Canonne, Kamath & Steinke 2020).
    """

    noise_std: float
    moves: tuple[int, ...]

    _MAX_STD: ClassVar[float] = 1e5

    def __post_init__(self) -> None:
        set_noise(self)
        set_real(self, "noise_std", high=self._MAX_STD)
        given = cast("Any", self.moves)
        if not isinstance(given, tuple) or any(type(m) is not int for m in cast("tuple[Any, ...]", given)):
            raise ValueError(f"moves must be a tuple of integers, got {given!r}. Class counts have (1, 1).")
        if self.free:
            return
        _, moves = discrete.reduced(self.moves)
        length = sum(m * m for m in moves)
        if length > discrete.MAX_SQUARED_MOVES and not discrete.smooth_enough(self.noise_std, moves):
            raise ValueError(
                f"noise_std must be at least {2 * math.sqrt(length):g} for moves {self.moves!r}, got "
                f"{self.noise_std!r}: the exact sum would be too long."
            )
        if self.noise_std * math.sqrt(length) > self._MAX_STD:
            raise ValueError(f"noise_std {self.noise_std!r} is too large for moves {self.moves!r}.")

    @property
    def free(self) -> bool:
        """True when no count moves."""
        return not any(self.moves)

    @property
    def lattice(self) -> float:
        """Losses are multiples of g/(2s²), g the greatest common divisor of the moves."""
        return math.gcd(*self.moves) / (2 * self.noise_std**2)

    def tail(self, eps: Array) -> tuple[Array, Array]:
        """Exact lattice sums."""
        g, moves = discrete.reduced(self.moves)
        table = discrete.upper_tail(self.noise_std, moves)
        shift = sum(m * m for m in self.moves) // g
        # One integer threshold for both laws: rounded apart, an atom could lose its share of Q.
        k = np.floor(np.minimum(self.noise_std**2 / g * eps, 1e15) - shift / 2)
        return discrete.survival(table, k), discrete.survival(table, k + shift)

    def _profile(self, eps: Array) -> Array:
        if self.free:
            return np.zeros_like(eps)
        p, q = self.tail(eps)
        with np.errstate(over="ignore", invalid="ignore"):
            shrunk = np.where(q > 0, np.exp(np.minimum(eps, 700.0)) * q, 0.0)
        return np.maximum(p - shrunk, 0.0)


@dataclass(frozen=True, slots=True)
class NonPrivate(BaseEvent):
    """Labels seen in the clear. Honest: its ε is infinite, and the reason travels with it."""

    reason: str

    def __post_init__(self) -> None:
        if not isinstance(cast("Any", self.reason), str) or not self.reason.strip():
            raise ValueError(f"reason must be a non-empty text, got {self.reason!r}. Say why labels were seen.")

    @property
    def free(self) -> bool:
        """Never."""
        return False

    def tail(self, eps: Array) -> tuple[Array, Array]:
        """All mass at infinity."""
        return np.ones_like(eps), np.zeros_like(eps)

    def _profile(self, eps: Array) -> Array:
        return np.ones_like(eps)


Event = (
    PureDP
    | Gaussian
    | PoissonGaussian
    | FixedSizeGaussian
    | PublicBatchGaussian
    | PartitionGaussian
    | GridGaussian
    | DiscreteGaussian
    | TeacherVoting
    | NonPrivate
)
_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        PureDP,
        Gaussian,
        PoissonGaussian,
        FixedSizeGaussian,
        PublicBatchGaussian,
        PartitionGaussian,
        GridGaussian,
        DiscreteGaussian,
        TeacherVoting,
        NonPrivate,
    )
}


@dataclass(frozen=True, slots=True)
class Look:
    """One event, met ``times`` times by the same row."""

    event: Event
    times: int = 1

    def __post_init__(self) -> None:
        times = cast("Any", self.times)
        if type(times) is not int or times < 0:
            raise ValueError(f"times must be an integer ≥ 0, got {times!r}.")
        if not isinstance(cast("Any", self.event), BaseEvent):
            raise ValueError(f"event must be one of {', '.join(_KINDS)}, got {self.event!r}.")


Looks = tuple[Look, ...]


def event_to_json(event: Event) -> dict[str, Any]:
    """The event as plain values, exact when written with ``json``; an infinite ε becomes the text "inf".

    >>> event_to_json(PureDP(0.5))
    {'kind': 'PureDP', 'epsilon': 0.5}
    """
    record: dict[str, Any] = {"kind": type(event).__name__}
    for field in fields(event):
        value = getattr(event, field.name)
        if isinstance(value, tuple):
            value = list(cast("tuple[int, ...]", value))
        record[field.name] = "inf" if value == math.inf else value
    return record


def event_from_json(record: dict[str, Any]) -> Event:
    """The event a record of :func:`event_to_json` describes; refuses unknown, missing or ill-typed fields."""
    if not isinstance(cast("Any", record), dict) or str(record.get("kind")) not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, got the record {record!r}.")
    kind = _KINDS[str(record["kind"])]
    names = {field.name for field in fields(kind)}
    given = {name: value for name, value in record.items() if name != "kind"}
    if set(given) != names:
        raise ValueError(f"{kind.__name__} has the fields {sorted(names)}, got {sorted(map(str, given))}.")
    if isinstance(given.get("moves"), list):
        given["moves"] = tuple(given["moves"])
    if kind is PureDP and given["epsilon"] == "inf":
        given["epsilon"] = math.inf
    return kind(**given)
