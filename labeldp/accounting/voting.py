"""The event of teachers that vote, its noise from a budget, and the bound that looks at the votes (a diagnostic only).

Part of :mod:`labeldp.accounting.events`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labeldp.accounting.base import BaseEvent, check_ratio, set_noise, set_real
from labeldp.accounting.gaussian import gaussian_mu, gaussian_profile
from labeldp.accounting.special import ndtr

Array = NDArray[np.float64]

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
    `labeldp.private.teacher_votes` proves that the sum holds although the data decide which queries are answered.
    Without a threshold (None) every query is answered, and only the answers cost.
    """

    noise_std: float
    answers: int
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
        if self.answers > self.queries or (self.threshold_std is None and self.answers < self.queries):
            raise ValueError(
                f"answers must be at most the {self.queries} queries, and as many without a threshold; got "
                f"{self.answers}."
            )
        check_ratio(self.noise_std, _MOVE)

    @property
    def mu(self) -> float:
        """Distance of the two means in units of the noise, of all queries together."""
        checked = 0.0 if self.threshold_std is None else self.queries * self.threshold_std**-2
        return math.sqrt(math.fsum([checked, 2 * self.answers * self.noise_std**-2]))

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
    epsilon: float, delta: float, queries: int, answers: int, ratio: float | None = PUBLISHED_RATIO
) -> TeacherVoting:
    """The least noise for so many queries and answers at (ε, δ), where s₁ = ratio·s.

        s = √(Q/ratio² + 2A)/μ(ε, δ);   without thresholds (ratio None) s = √(2A)/μ

    >>> event = voting_for_budget(1.0, 1e-5, queries=1000, answers=250)
    >>> round(event.noise_std, 2), round(event.threshold_std, 2)
    (111.33, 178.14)
    """
    if ratio is not None and not 0 < ratio < math.inf:
        raise ValueError(f"ratio={ratio} is not a ratio of deviations; give a number above 0, or None for no threshold")
    moved = 2.0 * answers + (0.0 if ratio is None else queries / ratio**2)
    # A relative 1e-13 for the rounding of squares and roots on the way back to μ.
    std = math.sqrt(moved) / gaussian_mu(epsilon, delta) * (1 + 1e-13)
    return TeacherVoting(std, answers, None if ratio is None else ratio * std, queries)


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
