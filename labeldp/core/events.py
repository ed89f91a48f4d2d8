"""State what one query of the labels costs, under the one neighbouring relation of this library.

Two data sets are neighbours when **one label is replaced**; features, the number of rows and their order
are public. Every event below describes the worst pair of output distributions (P, Q) over such neighbours. Since a
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
    Largest log-ratio of two probabilities of one output.

A *noise multiplier* is s / C everywhere (the command line included), never s / (2C).

Every event knows two things about the privacy loss L = log dP/dQ of its worst pair.

``tail(ε)``
    (P(L > ε), Q(L > ε)) for ε ≥ 0. The rest of the distribution follows by symmetry: P puts e^{−ℓ} times its mass at
    ℓ on −ℓ, and what is left over on 0.
``profile(ε)``
    δ(ε) = P(L > ε) − e^ε Q(L > ε), for any real ε, of one query.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, ClassVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from labeldp.core.gaussian import (
    MAX_SQUARED_MOVES,
    call_price,
    expit,
    gaussian_profile,
    ndtr,
    reduced,
    smooth_enough,
    survival,
    upper_tail,
)

Array = NDArray[np.float64]

# What a field of an event is declared to be: a number from 0 to "high", and not 0 where there is something "instead".
_NUMBER: dict[str, Any] = {"high": math.inf, "finite": True, "instead": None}
_NOISE: dict[str, Any] = {**_NUMBER, "instead": "A noiseless output is a NonPrivate event."}
_THRESHOLD: dict[str, Any] = {**_NUMBER, "instead": "For no threshold give None."}
_RATE: dict[str, Any] = {**_NUMBER, "high": 1.0}
# Of a discrete Gaussian, whose distribution is summed.
_MAX_STD = 1e5


class BaseEvent(ABC):
    """What all events share: checked numbers, and symmetry, so that only ε ≥ 0 has to be written down."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for each in fields(cast("Any", self)):
            if "high" in each.metadata:
                number = _checked_number(each.name, getattr(self, each.name), **each.metadata)
                object.__setattr__(self, each.name, number)

    @property
    def mu(self) -> float | None:
        """Distance of the two means in units of the noise where P and Q are plain Gaussians, else None."""
        return None

    @property
    def free(self) -> bool:
        """Whether the output does not depend on the label at all."""
        return False

    @property
    def lattice(self) -> float:
        """Spacing of which every loss is a multiple; 0 when the losses are continuous."""
        return 0.0

    @abstractmethod
    def tail(self, eps: Array) -> tuple[Array, Array]:
        """Return (P(L > ε), Q(L > ε)) for ε ≥ 0, accurate in relative terms."""

    def _profile(self, eps: Array) -> Array:
        """Return δ(ε) for ε ≥ 0. Events whose two tails nearly cancel have a form of their own."""
        p, q = self.tail(eps)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.maximum(p - np.where(q > 0, np.exp(np.minimum(eps, 700.0)) * q, 0.0), 0.0)

    def profile(self, eps: Array | float) -> Array:
        """Return δ(ε) of one query; below zero through H_a = 1 − a + a H_{1/a}, the symmetry of replacement."""
        values = np.atleast_1d(np.asarray(eps, dtype=np.float64))
        positive = np.zeros_like(values) if self.free else self._profile(np.abs(values))
        mirrored = -np.expm1(np.minimum(values, 0.0)) + np.exp(np.minimum(values, 0.0)) * positive
        return np.where(values >= 0, positive, mirrored)


def _checked_number(name: str, value: Any, high: float, finite: bool, instead: str | None) -> float:
    """Return the value of a declared number as a float, or raise ValueError that says what is wrong with it."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        raise ValueError(f"{name} must be a number, got {value!r}.")
    number = float(cast("float", value))
    if not 0 <= number <= high or (finite and math.isinf(number)):
        bound = f"between 0 and {high:g}" if math.isfinite(high) else "at least 0"
        raise ValueError(f"{name} must be {'finite and ' if finite else ''}{bound}, got {value!r}.")
    if instead is not None and number == 0:
        raise ValueError(f"{name} must be greater than 0, got 0. {instead}")
    return number


# -- pure ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PureDP(BaseEvent):
    """Any ε-private output. The worst pair is binary randomized response: loss ±ε, with odds e^ε.

    Every pure mechanism is a post-processing of it (Kairouz, Oh & Viswanath 2015).
    """

    epsilon: float = field(metadata={**_NUMBER, "finite": False})

    @property
    def free(self) -> bool:
        """True at ε = 0."""
        return self.epsilon == 0

    @property
    def lattice(self) -> float:
        """Losses are ±ε."""
        return self.epsilon

    def tail(self, eps: Array) -> tuple[Array, Array]:
        """Return one atom, at ε."""
        below = eps < self.epsilon
        return np.where(below, expit(self.epsilon), 0.0), np.where(below, expit(-self.epsilon), 0.0)

    def _profile(self, eps: Array) -> Array:
        gap = np.minimum(eps - self.epsilon, 0.0) if math.isfinite(self.epsilon) else np.full_like(eps, -math.inf)
        return -np.expm1(gap) * expit(self.epsilon)


# -- Gaussian noise ------------------------------------------------------------------------------------------


class _GaussianEvent(BaseEvent):
    """Two Gaussians at a distance d where the row is drawn, with probability q, and nothing where it is not.

    P and Q agree on who was drawn, so the loss is a Gaussian's with probability q and 0 otherwise.
    """

    __slots__ = ()

    noise_std: float
    diameter: float

    @property
    def shift(self) -> float:
        """Return d = D/s, the distance in units of the noise."""
        return self.diameter / self.noise_std

    @property
    def chance(self) -> float:
        """Return q."""
        return cast("float", getattr(self, "rate", 1.0))

    @property
    def mu(self) -> float | None:
        """The distance where every row is drawn."""
        return self.shift if self.chance == 1 else None

    @property
    def free(self) -> bool:
        """True when nothing moves, or nobody is drawn."""
        return self.shift == 0 or self.chance == 0

    def tail(self, eps: Array) -> tuple[Array, Array]:
        """Return qΦ(z) and qΦ(z − d) with z = d/2 − ε/d."""
        z = self.shift / 2 - eps / self.shift
        return self.chance * ndtr(z), self.chance * ndtr(z - self.shift)

    def _profile(self, eps: Array) -> Array:
        return self.chance * gaussian_profile(self.shift, eps)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_apart("noise_std", self.noise_std, self.diameter)


def _check_apart(name: str, noise: float, moved: float) -> None:
    """Refuse a ratio that leaves the range of floats when squared."""
    if moved > 0 and not 1e-100 <= moved / noise <= 1e100:
        raise ValueError(
            f"{name} {noise!r} and diameter {moved!r} are too far apart to account for. Without noise to "
            "speak of it is a NonPrivate event."
        )


@dataclass(frozen=True, slots=True)
class Gaussian(_GaussianEvent):
    """Gaussian noise on an output that moves by at most the diameter: μ = D/s."""

    noise_std: float = field(metadata=_NOISE)
    diameter: float = field(metadata=_NUMBER)


@dataclass(frozen=True, slots=True)
class PartitionGaussian(Gaussian):
    """One pass over batches named in advance: a row is in exactly one of them, so one Gaussian query in all.

    The diameter is that of one row's contribution to its batch. Nothing is hidden, so nothing is amplified.
    """


@dataclass(frozen=True, slots=True)
class GridGaussian(Gaussian):
    """Exact discrete Gaussian noise on a fine grid; costs no more than the Gaussian query with these numbers.

    `labeldp.mechanisms.moments` proves it; its own name, so that a certificate tells it from floating-point noise.
    """


@dataclass(frozen=True, slots=True)
class TeacherVoting(_GaussianEvent):
    """Confident-GNMax on a fixed number of queries, at most so many of them answered: μ² = Q/s₁² + 2A/s².

    Every query, answered or not, compares its largest count plus noise of deviation s₁ with a threshold: one teacher
    moves it by 1. A response is the largest of all counts, each with noise of deviation s: one teacher moves them by
    √2. `labeldp.mechanisms.teachers` proves that the sum holds although the data decide which queries are answered.
    Without a threshold (None) every query is answered, and only the responses cost.
    """

    noise_std: float = field(metadata=_NOISE)
    responses: int = field(metadata={"stored": "answers"})
    threshold_std: float | None
    queries: int

    def __post_init__(self) -> None:
        BaseEvent.__post_init__(self)
        # A replaced label changes one teacher: its vote leaves one class and joins another.
        _check_apart("noise_std", self.noise_std, math.sqrt(2.0))
        if self.threshold_std is not None:
            number = _checked_number("threshold_std", self.threshold_std, **_THRESHOLD)
            object.__setattr__(self, "threshold_std", number)
            _check_apart("threshold_std", number, 1.0)
        for name in ("responses", "queries"):
            value: Any = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be an integer ≥ 1, got {value!r}.")
        if self.responses > self.queries or (self.threshold_std is None and self.responses < self.queries):
            raise ValueError(
                f"responses must be at most the {self.queries} queries, and as many without a threshold; got "
                f"{self.responses}."
            )

    @property
    def shift(self) -> float:
        """Return μ, the distance in units of the noise of all queries together."""
        checked = 0.0 if self.threshold_std is None else self.queries * self.threshold_std**-2
        return math.sqrt(math.fsum([checked, 2 * self.responses * self.noise_std**-2]))


@dataclass(frozen=True, slots=True)
class DiscreteGaussian(BaseEvent):
    """Exact discrete Gaussian noise N_Z(0, s²) on integer counts; one label moves coordinate i by moves[i].

    A replaced label leaves one class and joins another: moves (1, 1). With Y = Σ mᵢXᵢ the loss is
    (|m|² − 2Y)/(2s²), and Q shifts Y by |m|²; so P(L > ε) = P(Y > s²ε − |m|²/2), and with + for Q. The distribution
    of Y is summed exactly; it is not the continuous Gaussian (Canonne, Kamath & Steinke 2020).
    """

    noise_std: float = field(metadata={**_NOISE, "high": _MAX_STD})
    moves: tuple[int, ...]

    def __post_init__(self) -> None:
        BaseEvent.__post_init__(self)
        given = cast("Any", self.moves)
        if not isinstance(given, tuple) or any(type(m) is not int for m in cast("tuple[Any, ...]", given)):
            raise ValueError(f"moves must be a tuple of integers, got {given!r}. Class counts have (1, 1).")
        if self.free:
            return
        _, moves = reduced(self.moves)
        length = sum(m * m for m in moves)
        if length > MAX_SQUARED_MOVES and not smooth_enough(self.noise_std, moves):
            raise ValueError(
                f"noise_std must be at least {2 * math.sqrt(length):g} for moves {self.moves!r}, got "
                f"{self.noise_std!r}: the exact sum would be too long."
            )
        if self.noise_std * math.sqrt(length) > _MAX_STD:
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
        """Return exact lattice sums."""
        g, moves = reduced(self.moves)
        table = upper_tail(self.noise_std, moves)
        shift = sum(m * m for m in self.moves) // g
        # One integer threshold for P and Q: rounded apart, an atom could lose its share of Q.
        k = np.floor(np.minimum(self.noise_std**2 / g * eps, 1e15) - shift / 2)
        return survival(table, k), survival(table, k + shift)


# -- Gaussian noise on a batch drawn at random ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PublicBatchGaussian(_GaussianEvent):
    """A batch drawn at random and then shown: with probability q a Gaussian query, else nothing."""

    noise_std: float = field(metadata=_NOISE)
    diameter: float = field(metadata=_NUMBER)
    rate: float = field(metadata=_RATE)


@dataclass(frozen=True, slots=True)
class PoissonGaussian(_GaussianEvent):
    """A secret Poisson batch, each row drawn with probability q on its own; (r, d) = (R, D)/s in units of the noise.

    Given the other rows' draws, the sum is shifted by g(x, y) with probability q, by 0 otherwise. Divide it
    by the expected batch size only: the realised size would reveal whether a row was drawn.

    The pair (1−q)N(0) + qN(v), (1−q)N(0) + qN(v′) is worst at v = r, v′ = r − d. Proof: for a = e^ε ≥ 1 and
    c = (a−1)(1−q)/q the divergence is q E(1 − S)₊ under N(v), where S = c L₀ + a L₁ and
    L₀, L₁ are lognormals of mean 1 and log-spread |v|, |v − v′|. Splitting the strike, E(S−1)₊ is at most a
    sum of two calls, each growing with its spread; L₀ and L₁ monotone in one variable reach that bound, and 0
    and v′ on one side of v, at distances r and d, make them so. (Compare Choquette-Choo et al. 2024.)
    Being worst at every a, the pair dominates and composes adaptively (Zhu, Dong & Wang 2022).

    S crosses 1 at z = d/2 − (v+ε)/d, where v ≥ 0 solves 1 − e^{−v} = C e^{−(r/d)v} and
    C = c e^{r(d−r)/2 − (r/d)ε}.
    """

    noise_std: float = field(metadata=_NOISE)
    radius: float = field(metadata=_NUMBER)
    diameter: float = field(metadata=_NUMBER)
    rate: float = field(metadata=_RATE)

    # r is so many radii, in units of the noise.
    _RADII: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        _GaussianEvent.__post_init__(self)
        if self.diameter > 2 * self.radius * (1 + 1e-12):
            raise ValueError(
                f"diameter must be at most twice the radius, got diameter {self.diameter!r} and radius "
                f"{self.radius!r}. With norm clipping alone it is exactly twice the clipping norm."
            )

    def tail(self, eps: Array) -> tuple[Array, Array]:
        """Return qΦ(z) + (1−q)Φ(z−r) and qΦ(z−d) + (1−q)Φ(z−r): the divergence and its slope in a."""
        r, d, _, z = self._threshold(eps)
        rest = (1 - self.rate) * ndtr(z - r)
        return self.rate * ndtr(z) + rest, self.rate * ndtr(z - d) + rest

    def _profile(self, eps: Array) -> Array:
        """Return q[(1 − e^{−v}) call(z, r) + e^{−v} call(z, d)]: a sum of positive terms."""
        r, d, v, z = self._threshold(eps)
        return self.rate * (-np.expm1(-v) * call_price(z, r) + np.exp(-v) * call_price(z, d))

    def _threshold(self, eps: Array) -> tuple[float, float, Array, Array]:
        """Return r, d, v and z."""
        r, d = self._RADII * self.radius / self.noise_std, self.shift
        with np.errstate(divide="ignore"):
            log_expm1 = np.maximum(eps, 0.0) + np.log(-np.expm1(-eps))
        odds = math.log1p(-self.rate) - math.log(self.rate) if self.rate < 1 else -math.inf
        v = _solve_saturation(log_expm1 + odds + r * (d - r) / 2 - r / d * eps, r / d)
        return r, d, v, d / 2 - (v + eps) / d


@dataclass(frozen=True, slots=True)
class FixedSizeGaussian(PoissonGaussian):
    """A secret batch of fixed size without replacement, q = batch / n; (r, d) = (2R, D)/s.

    A batch with the row and one without it differ by the row it displaces, so relative to that row the
    contribution has norm up to 2R. One profile bounds both directions. An upper bound; whether it is tight
    under composition is open.
    """

    _RADII: ClassVar[float] = 2.0


def _solve_saturation(log_c: Array, slope: float) -> Array:
    """Return the root v ≥ 0 of 1 − e^{−v} = C e^{−slope·v}, relatively accurate from C = 0 to C = ∞."""
    if abs(slope - 0.5) < 1e-15:  # 2 sinh(v/2) = C; norm clipping
        small = 2 * np.arcsinh(0.5 * np.exp(np.minimum(log_c, 20.0)))
        return np.where(log_c > 20.0, 2 * log_c, small)
    if abs(slope - 1) < 1e-15:  # e^v = 1 + C; batches of fixed size
        return np.where(log_c > 40.0, log_c, np.log1p(np.exp(np.minimum(log_c, 40.0))))
    # log(1 − e^{−v}) + slope·v − log C is increasing and concave: Newton from the left never overshoots.
    # Left ends: log(1 − e^{−v}) is at most 0 and at most log v, and Lambert's W(x) ≥ x/(1 + x).
    log_c = np.where(np.isneginf(log_c), log_c, np.maximum(log_c, -700.0))  # v is negligible long before
    v = np.maximum(1 / (np.exp(np.minimum(-log_c, 700.0)) + slope), log_c / slope)
    active = np.isfinite(log_c)
    v = np.where(active, v, 1.0)
    target = np.where(active, log_c, 0.0)
    for _ in range(60):
        lost = -np.expm1(-v)
        step = (target - np.log(lost) - slope * v) / (np.exp(-v) / lost + slope)
        v = np.maximum(v + step, 0.5 * v)
        if np.max(np.abs(step[active]) / v[active], initial=0.0) < 4e-16:
            break
    return np.where(active, v, 0.0)


# -- no privacy ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NonPrivate(BaseEvent):
    """Labels seen in the clear. Honest: its ε is infinite, and the reason travels with it."""

    reason: str

    def __post_init__(self) -> None:
        if not isinstance(cast("Any", self.reason), str) or not self.reason.strip():
            raise ValueError(f"reason must be a non-empty text, got {self.reason!r}. Say why labels were seen.")

    def tail(self, eps: Array) -> tuple[Array, Array]:
        """Return all mass at infinity."""
        return np.ones_like(eps), np.zeros_like(eps)


# -- queries, and their record in JSON -----------------------------------------------------------------------

Event = (
    PureDP | Gaussian | PartitionGaussian | GridGaussian | TeacherVoting | DiscreteGaussian
    | PublicBatchGaussian | PoissonGaussian | FixedSizeGaussian | NonPrivate
)  # fmt: skip
_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}


@dataclass(frozen=True, slots=True)
class Query:
    """One event, met ``times`` times by the same row."""

    event: Event
    times: int = 1

    def __post_init__(self) -> None:
        times = cast("Any", self.times)
        if type(times) is not int or times < 0:
            raise ValueError(f"times must be an integer ≥ 0, got {times!r}.")
        if not isinstance(cast("Any", self.event), BaseEvent):
            raise ValueError(f"event must be one of {', '.join(_KINDS)}, got {self.event!r}.")


Queries = tuple[Query, ...]


def gathered(queries: Iterable[Query]) -> Queries:
    """Return the queries with equal events counted together, in a fixed order so that equal histories are equal."""
    counts: dict[Event, int] = {}
    for query in queries:
        counts[query.event] = counts.get(query.event, 0) + query.times
    return tuple(Query(event, times) for event, times in sorted(counts.items(), key=lambda item: repr(item[0])))


def of_group(event: Event, labels: int) -> Event:
    """Return what a query costs when this many of its labels are replaced at once, rounded up.

    That is so many steps between neighbours: the odds of an ε-private output stay within e^{mε}, and a Gaussian sum
    that one label moves by D moves by at most mD. Other events have no such simple rule and are refused.

    >>> of_group(PureDP(0.5), 3)
    PureDP(epsilon=1.5)
    """
    if labels == 1:
        return event
    if isinstance(event, PureDP):
        return PureDP(_multiple(labels, event.epsilon))
    if isinstance(event, Gaussian):
        return Gaussian(event.noise_std, _multiple(labels, event.diameter))
    raise ValueError(
        f"a {type(event).__name__} query has no stated cost for somebody with {labels} of its rows; ask about one row "
        "of each, or seal the labels by user and use a mechanism made for users (UserResponse, UserGradientSum)"
    )


def _multiple(count: int, value: float) -> float:
    return value if math.isinf(value) else rounded_up(count * Fraction(value))


def rounded_up(exact: Fraction) -> float:
    """Return the smallest float that is not below this number."""
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def event_to_json(event: Event) -> dict[str, Any]:
    """Return the event as plain values, exact when written with ``json``; an infinite ε becomes the text "inf".

    >>> event_to_json(PureDP(0.5))
    {'kind': 'PureDP', 'epsilon': 0.5}
    """
    record: dict[str, Any] = {"kind": type(event).__name__}
    for each in fields(event):
        value = getattr(event, each.name)
        if isinstance(value, tuple):
            value = list(cast("tuple[int, ...]", value))
        record[each.metadata.get("stored", each.name)] = "inf" if value == math.inf else value
    return record


def event_from_json(record: dict[str, Any]) -> Event:
    """Return the event a record of :func:`event_to_json` describes; refuse unknown, missing or ill-typed fields."""
    if not isinstance(cast("Any", record), dict) or str(record.get("kind")) not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, got the record {record!r}.")
    kind = _KINDS[str(record["kind"])]
    names = {each.metadata.get("stored", each.name): each.name for each in fields(kind)}
    if set(record) != {"kind", *names}:
        found = sorted(str(key) for key in record if key != "kind")
        raise ValueError(f"{kind.__name__} has the fields {sorted(names)}, got {found}.")
    given = {names[key]: value for key, value in record.items() if key != "kind"}
    if isinstance(given.get("moves"), list):
        given["moves"] = tuple(given["moves"])
    if kind is PureDP and given["epsilon"] == "inf":
        given["epsilon"] = math.inf
    return kind(**given)
