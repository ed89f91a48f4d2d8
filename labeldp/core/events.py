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

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from labeldp.core import gaussian as discrete
from labeldp.core.gaussian import call_price, expit, gaussian_mu, gaussian_profile, ndtr

# --- base --------------------
#
# What every event shares: the interface, its symmetry, and the checks of its numbers.


Array = NDArray[np.float64]


class BaseEvent(ABC):
    """What all events share: symmetry, so that only ε ≥ 0 has to be written down."""

    __slots__ = ()

    @property
    @abstractmethod
    def free(self) -> bool:
        """Whether the answer does not depend on the label at all."""

    @property
    def lattice(self) -> float:
        """Spacing of which every loss is a multiple; 0 when the losses are continuous."""
        return 0.0

    @abstractmethod
    def tail(self, eps: Array) -> tuple[Array, Array]:
        """(P(L > ε), Q(L > ε)) for ε ≥ 0, accurate in relative terms."""

    @abstractmethod
    def _profile(self, eps: Array) -> Array:
        """δ(ε) for ε ≥ 0."""

    def profile(self, eps: Array | float) -> Array:
        """δ(ε) of one look; below zero through H_a = 1 − a + a H_{1/a}, the symmetry of replacement."""
        values = np.atleast_1d(np.asarray(eps, dtype=np.float64))
        positive = self._profile(np.abs(values))
        mirrored = -np.expm1(np.minimum(values, 0.0)) + np.exp(np.minimum(values, 0.0)) * positive
        return np.where(values >= 0, positive, mirrored)


class _HasNoise(Protocol):
    @property
    def noise_std(self) -> float: ...


class _HasGeometry(Protocol):
    @property
    def radius(self) -> float: ...
    @property
    def diameter(self) -> float: ...


def set_real(event: object, name: str, *, low: float = 0.0, high: float = math.inf, finite: bool = True) -> None:
    """Store the field as a float, or say what is wrong with it."""
    value: Any = getattr(event, name)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        raise ValueError(f"{name} must be a number, got {value!r}.")
    number = float(cast("float", value))
    if not 0 <= number <= high or (finite and math.isinf(number)):
        bound = f"between 0 and {high:g}" if math.isfinite(high) else "at least 0"
        finite_word = "finite and " if finite else ""
        raise ValueError(f"{name} must be {finite_word}{bound}, got {value!r}.")
    object.__setattr__(event, name, number)


def set_noise(event: _HasNoise) -> None:
    """Validate ``noise_std``."""
    set_real(event, "noise_std")
    if event.noise_std <= 0:
        raise ValueError("noise_std must be greater than 0, got 0. A noiseless answer is a NonPrivate event.")


def set_geometry(event: _HasGeometry) -> None:
    """Validate ``radius`` and ``diameter`` together."""
    set_real(event, "radius")
    set_real(event, "diameter")
    if event.diameter > 2 * event.radius * (1 + 1e-12):
        raise ValueError(
            f"diameter must be at most twice the radius, got diameter {event.diameter!r} and radius "
            f"{event.radius!r}. With norm clipping alone it is exactly twice the clipping norm."
        )


def check_ratio(noise_std: float, diameter: float) -> None:
    """Refuse noise so large or small beside the diameter that their ratio leaves the range of floats when squared."""
    ratio = diameter / noise_std
    if diameter > 0 and not 1e-100 <= ratio <= 1e100:
        raise ValueError(
            f"noise_std {noise_std!r} and diameter {diameter!r} are too far apart to account for. Without noise to "
            "speak of it is a NonPrivate event."
        )


# --- mixture --------------------
#
# A shift that happens only sometimes: the worst pair of a secretly sampled Gaussian sum.


@dataclass(frozen=True, slots=True)
class Mixture:
    """The pair (1−q)N(0) + qN(v), (1−q)N(0) + qN(v′) at its worst: v = r, v′ = r − d in noise units.

    For a = e^ε ≥ 1 and c = (a−1)(1−q)/q the divergence is q E(1 − S)₊ under N(v), where S = c L₀ + a L₁ and
    L₀, L₁ are lognormals of mean 1 and log-spread |v|, |v − v′|. Splitting the strike, E(S−1)₊ is at most a
    sum of two calls, each growing with its spread; L₀ and L₁ monotone in one variable reach that bound, and 0
    and v′ on one side of v, at distances r and d, make them so. (Compare Choquette-Choo et al. 2024.)
    Being worst at every a, the pair dominates and composes adaptively (Zhu, Dong & Wang 2022).

    S crosses 1 at z = d/2 − (v+ε)/d, where v ≥ 0 solves 1 − e^{−v} = C e^{−(r/d)v} and
    C = c e^{r(d−r)/2 − (r/d)ε}.
    """

    r: float
    d: float
    rate: float

    def tail(self, eps: Array) -> tuple[Array, Array]:
        """qΦ(z) + (1−q)Φ(z−r) and qΦ(z−d) + (1−q)Φ(z−r): the divergence and its slope in a."""
        z = self._threshold(eps)[1]
        rest = (1 - self.rate) * ndtr(z - self.r)
        return self.rate * ndtr(z) + rest, self.rate * ndtr(z - self.d) + rest

    def profile(self, eps: Array) -> Array:
        """q[(1 − e^{−v}) call(z, r) + e^{−v} call(z, d)]: a sum of positive terms."""
        v, z = self._threshold(eps)
        return self.rate * (-np.expm1(-v) * call_price(z, self.r) + np.exp(-v) * call_price(z, self.d))

    def _threshold(self, eps: Array) -> tuple[Array, Array]:
        slope = self.r / self.d
        with np.errstate(divide="ignore"):
            log_expm1 = np.maximum(eps, 0.0) + np.log(-np.expm1(-eps))
        odds = math.log1p(-self.rate) - math.log(self.rate) if self.rate < 1 else -math.inf
        log_c = log_expm1 + odds + self.r * (self.d - self.r) / 2 - slope * eps
        v = _solve_saturation(log_c, slope)
        return v, self.d / 2 - (v + eps) / self.d


def _solve_saturation(log_c: Array, slope: float) -> Array:
    """The root v ≥ 0 of 1 − e^{−v} = C e^{−slope·v}, relatively accurate from C = 0 to C = ∞."""
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


# --- sampled --------------------
#
# Events of a batch drawn at random: shown afterwards, or kept secret. Part of :mod:`labeldp.core.events`.


@dataclass(frozen=True, slots=True)
class PublicBatchGaussian(BaseEvent):
    """A batch drawn at random and then shown: with probability q a Gaussian look, else nothing.

    P and Q agree on the batch, so the loss is a Gaussian's with probability q and 0 otherwise.
    """

    noise_std: float
    diameter: float
    rate: float

    def __post_init__(self) -> None:
        set_noise(self)
        set_real(self, "diameter")
        check_ratio(self.noise_std, self.diameter)
        set_real(self, "rate", high=1.0)

    @property
    def free(self) -> bool:
        """True when nothing moves, or nobody is drawn."""
        return self.diameter / self.noise_std == 0 or self.rate == 0

    def tail(self, eps: Array) -> tuple[Array, Array]:
        """q times the Gaussian tails."""
        mu = self.diameter / self.noise_std
        z = mu / 2 - eps / mu
        return self.rate * ndtr(z), self.rate * ndtr(z - mu)

    def _profile(self, eps: Array) -> Array:
        return self.rate * gaussian_profile(self.diameter / self.noise_std, eps)


@dataclass(frozen=True, slots=True)
class _SampledGaussian(BaseEvent):
    """Shared face of the two secret samplings; a subclass says its mixture."""

    noise_std: float
    radius: float
    diameter: float
    rate: float

    def __post_init__(self) -> None:
        set_noise(self)
        set_geometry(self)
        check_ratio(self.noise_std, self.diameter)
        set_real(self, "rate", high=1.0)

    @property
    @abstractmethod
    def mixture(self) -> Mixture:
        """The two laws, in units of the noise."""

    @property
    def free(self) -> bool:
        """True when nothing moves, or nobody is drawn."""
        return self.mixture.d == 0 or self.mixture.rate == 0

    def tail(self, eps: Array) -> tuple[Array, Array]:
        """Tails of the mixture."""
        return self.mixture.tail(eps)

    def _profile(self, eps: Array) -> Array:
        return np.zeros_like(eps) if self.free else self.mixture.profile(eps)


@dataclass(frozen=True, slots=True)
class PoissonGaussian(_SampledGaussian):
    """A secret Poisson batch, each row drawn with probability q on its own: mixture of (r, d) = (R, D)/s.

    Given the other rows' draws, the sum is shifted by g(x, y) with probability q, by 0 otherwise. Divide it
    by the expected batch size only: the realised size would reveal whether a row was drawn.
    """

    @property
    def mixture(self) -> Mixture:
        """The two laws, in units of the noise."""
        return Mixture(self.radius / self.noise_std, self.diameter / self.noise_std, self.rate)


@dataclass(frozen=True, slots=True)
class FixedSizeGaussian(_SampledGaussian):
    """A secret batch of fixed size without replacement, q = batch / n: mixture of (r, d) = (2R, D)/s.

    A batch with the row and one without it differ by the row it displaces, so relative to that row the
    contribution has norm up to 2R. One profile bounds both directions. An upper bound; whether it is tight
    under composition is open.
    """

    @property
    def mixture(self) -> Mixture:
        """The two laws, in units of the noise."""
        return Mixture(2 * self.radius / self.noise_std, self.diameter / self.noise_std, self.rate)


# --- voting --------------------
#
# The event of teachers that vote, its noise from a budget, and the bound that looks at the votes (a diagnostic only).
#
# Part of :mod:`labeldp.core.events`.


# A replaced label changes one teacher: its vote leaves one class and joins another.
_MOVE = math.sqrt(2.0)
# Confident-GNMax as published has thresholds of 1.6 (Malek et al. 2021: 800, 500) and 1.67 (Tang et al. 2022: 500, 300)
# times the noise of the answers.
PUBLISHED_RATIO = 1.6


@dataclass(frozen=True, slots=True)
class TeacherVoting(BaseEvent):
    """Confident-GNMax on a fixed number of queries, at most so many of them answered: μ² = Q/s₁² + 2A/s².

    Every query, answered or not, compares its largest count plus noise of deviation s₁ with a threshold: one teacher
    moves it by 1. An answer is the largest of all counts, each with noise of deviation s: one teacher moves them by √2.
    `labeldp.mechanisms.teachers` proves that the sum holds although the data decide which queries are answered.
    Without a threshold (None) every query is answered, and only the answers cost.
    """

    noise_std: float
    responses: int
    threshold_std: float | None
    queries: int

    def __post_init__(self) -> None:
        set_noise(self)
        if self.threshold_std is not None:
            set_real(self, "threshold_std")
            if self.threshold_std <= 0:
                raise ValueError("threshold_std must be greater than 0, got 0. For no threshold give None.")
            check_ratio(self.threshold_std, 1.0)
        for name in ("answers", "queries"):
            value: Any = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be an integer ≥ 1, got {value!r}.")
        if self.responses > self.queries or (self.threshold_std is None and self.responses < self.queries):
            raise ValueError(
                f"answers must be at most the {self.queries} queries, and as many without a threshold; got "
                f"{self.responses}."
            )
        check_ratio(self.noise_std, _MOVE)

    @property
    def mu(self) -> float:
        """Distance of the two means in units of the noise, of all queries together."""
        checked = 0.0 if self.threshold_std is None else self.queries * self.threshold_std**-2
        return math.sqrt(math.fsum([checked, 2 * self.responses * self.noise_std**-2]))

    @property
    def free(self) -> bool:
        """Never."""
        return False

    def tail(self, eps: Array) -> tuple[Array, Array]:
        """Φ(z) and Φ(z − μ) with z = μ/2 − ε/μ."""
        z = self.mu / 2 - eps / self.mu
        return ndtr(z), ndtr(z - self.mu)

    def _profile(self, eps: Array) -> Array:
        return gaussian_profile(self.mu, eps)


def voting_for_budget(
    epsilon: float, delta: float, queries: int, responses: int, ratio: float | None = PUBLISHED_RATIO
) -> TeacherVoting:
    """The least noise for so many queries and answers at (ε, δ), where s₁ = ratio·s.

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


# -- the bound that looks at the votes ------------------------------------------------------------------------


def vote_dependent_rdp(counts: Sequence[float], noise_std: float, order: float) -> float:
    """Rényi divergence of order λ of one GNMax answer *given these counts* (Papernot et al. 2018, Theorem 6).

    With q ≥ P(the noisy winner is not the largest class), q = Σ_{j≠max} ½·erfc((n_max − n_j)/(2s)),
    μ₂ = s√(ln 1/q), μ₁ = μ₂ + 1, e_i = μ_i/s²:

        ln((1 − q)·A^{λ−1} + q·B^{λ−1})/(λ − 1),
        A = (1 − q)/(1 − (q·e^{e₂})^{(μ₂−1)/μ₂}),   B = e^{e₁}/q^{1/(μ₁−1)}

    where that is allowed and smaller than λ/s², the bound for any counts.

    **Never publish it for secret counts, nor let it decide what is published: it is a function of the labels.**
    Certificates use `TeacherVoting`, which looks at no vote. This is for counts that are no secret, to see what a
    smoothed analysis could gain.

    >>> round(vote_dependent_rdp([200, 30, 20], noise_std=40.0, order=8), 9)
    0.000681036
    """
    if not (noise_std > 0 and order > 1):
        raise ValueError(f"noise_std={noise_std}, order={order}; give a deviation above 0 and an order above 1")
    plain = order / noise_std**2
    log_q = math.log(upset_chance(counts, noise_std) or 5e-324)
    return min(plain, _theorem_6(log_q, noise_std, order))


def upset_chance(counts: Sequence[float], noise_std: float) -> float:
    """A bound on P(the noisy winner is not the largest class), at most 1 − 1/K."""
    ordered = sorted(map(float, counts), reverse=True)
    gaps = [(ordered[0] - n) / (2 * noise_std) for n in ordered[1:]]
    return min(math.fsum(math.erfc(gap) / 2 for gap in gaps), 1 - 1 / max(len(ordered), 1))


def _theorem_6(log_q: float, noise_std: float, order: float) -> float:
    """The bound of the theorem, or ∞ where its conditions fail."""
    if log_q >= 0:
        return math.inf
    mu2 = noise_std * math.sqrt(-log_q)
    mu1, e1, e2 = mu2 + 1, (mu2 + 1) / noise_std**2, mu2 / noise_std**2
    if mu2 <= 1 or order > mu1:
        return math.inf
    allowed = (mu2 - 1) * e2 - mu2 * math.log(mu1 / (mu1 - 1) * mu2 / (mu2 - 1))
    if log_q > allowed or log_q + e2 >= 0:
        return math.inf
    q = math.exp(log_q)
    log_a = math.log1p(-q) - math.log1p(-math.exp((log_q + e2) * (mu2 - 1) / mu2))
    log_b = e1 - log_q / (mu1 - 1)
    # ln(1 + x) with x = (1 − q)(A^{λ−1} − 1) + q(B^{λ−1} − 1): keeps its digits where q is tiny.
    grown = (1 - q) * math.expm1((order - 1) * log_a) + q * math.expm1(min((order - 1) * log_b, 700.0))
    return math.log1p(grown) / (order - 1)


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

    `labeldp.mechanisms.moments` proves it; its own name, so that a certificate tells it from floating-point noise.
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
