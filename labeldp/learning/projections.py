"""Noisy gradient → the nearest one that public features allow (Ghazi et al. 2024, LabelDP-Pro).

The mean gradient of a batch is a combination of what its rows would contribute under each class, and those candidates
need no label: g_ik = ∇_θ ℓ(z_i, k). Noise has no reason to lie among them, so projecting takes most of it away.

===========  =================================================  =============================================
name         projection onto                                    reference
===========  =================================================  =============================================
none         everything                                         DP-SGD
span         {Σ α_ik g_ik}                                      SelfSpan; LP-Normal-SGD (Ghazi et al. 2021)
hull         {Σ α_ik g_ik : α ≥ 0, Σ_ik α_ik = 1}               SelfConv, AltConv
row_simplex  {(1/n) Σ α_ik g_ik : α ≥ 0, Σ_k α_ik = 1 ∀ i}      ours: a subset of the hull that has the mean too
===========  =================================================  =============================================

Two ways to finish what an accelerated method begins: exactly on few candidates, or on a low-rank model of all of them.

Which one? The nearest point of the hull has a few hundred candidates in it: `by_columns`. That of the per-row simplex
has at least one per row, but most of what they say fits into a few hundred directions: `by_low_rank`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from labeldp.learning.evidence import project_to_simplex


class Candidates(Protocol):
    """Candidate gradients g_ik of n rows under K classes, as products with the matrix G of all of them (n·K, P).

    `labeldp.mechanisms.gradients.public.PublicGradients` makes them from a model and public rows.
    """

    @property
    def logits(self) -> Tensor:
        """Logits of the rows, (n, K)."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """(n, K)."""
        ...

    @property
    def num_parameters(self) -> int:
        """P."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Type of all numbers in and out."""
        ...

    def squared_norms(self) -> Tensor:
        """Return |g_ik|² (n·K,)."""
        ...

    def combine(self, alpha: Tensor) -> Tensor:
        """Return Σ α_ik g_ik (P,) for α (n, K)."""
        ...

    def correlate(self, vector: Tensor) -> Tensor:
        """Return ⟨g_ik, v⟩ (n, K) for v (P,)."""
        ...

    def columns(self, chosen: Tensor) -> Tensor:
        """Return the candidates with these numbers i·K + k, (m, P)."""
        ...

    def coordinates(self, basis: Tensor) -> Tensor:
        """Return ⟨g_ik, v_j⟩ (n·K, r) for a basis (r, P)."""
        ...


# -- least squares over simplices ----------------------------------------------------------------------------


# Steps between two checks of the gap; each check waits for the device.
_BETWEEN_QUERIES = 8


@dataclass(frozen=True, eq=False)
class Point:
    """Weights α (n, K), their image Gα (P,), the slope Gᵀ(Gα − g̃) (n, K); objective and duality gap, on the device."""

    alpha: Tensor
    image: Tensor
    slope: Tensor
    objective: Tensor
    gap: Tensor


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """min f(α) = ½|Gα − g̃|² over α ≥ 0 (n, K) in `groups` equal parts that sum to 1/groups each.

    One group is the simplex over all candidates, n groups are one simplex per row. The duality gap at α,

        max_s ⟨∇f(α), α − s⟩ = ⟨∇f(α), α⟩ − (1/groups) Σ_parts min ∇f(α)        (Frank and Wolfe 1956; Jaggi 2013),

    is never less than f(α) − min f, nor than |Gα − Gα*|². Its unit is the smaller one of f and |Gα|²: a gap of 0.01 is
    an objective at most 1% too large and a gradient at most 10% of its length away from the projection. The unit is at
    least 10⁻⁴ · ½|g̃|², for noisy gradients that are in the set themselves, or project to nothing.
    """

    combine: Callable[[Tensor], Tensor]
    correlate: Callable[[Tensor], Tensor]
    noisy: Tensor
    groups: int

    def at(self, alpha: Tensor, image: Tensor | None = None) -> Point:
        """Everything that is known about these weights."""
        image = self.combine(alpha) if image is None else image
        residual = image - self.noisy
        slope = self.correlate(residual)
        least = slope.reshape(self.groups, -1).amin(1).mean()
        gap = ((slope * alpha).sum() - least).clamp_min(0)
        return Point(alpha, image, slope, 0.5 * residual @ residual, gap)

    def unit(self, point: Point) -> Tensor:
        """What gaps are measured in."""
        smaller = torch.minimum(point.objective, point.image @ point.image)
        return torch.maximum(smaller, 0.5e-4 * self.noisy @ self.noisy)

    def relative_gap(self, point: Point, steep: Tensor) -> Tensor:
        """The gap, less what rounding makes of zero, in its unit; `steep` is the largest eigenvalue of GᵀG."""
        rounding = 0.3 * torch.finfo(point.slope.dtype).eps * steep / point.alpha.numel()
        return (point.gap - rounding).clamp_min(0) / _positive(self.unit(point))

    def is_near(self, point: Point, steep: Tensor, tolerance: float) -> bool:
        """Is the relative gap within the tolerance? Waits for the device."""
        return bool(self.relative_gap(point, steep) <= tolerance)

    def nearest_weights(self, values: Tensor) -> Tensor:
        """The nearest allowed weights to any numbers (n, K)."""
        return project_to_simplex(values.reshape(self.groups, -1), 1 / self.groups).view_as(values)

    def steepness(self, like: Tensor, steps: int = 6) -> Tensor:
        """The largest eigenvalue of GᵀG, from below, by the power method."""
        generator = torch.Generator(like.device).manual_seed(0)
        probe = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
        for _ in range(steps):
            probe = self.correlate(self.combine(probe / _positive(probe.norm())))
        return probe.norm()


def accelerated(
    problem: LeastSquares, start: Tensor, steep: Tensor, tolerance: float, steps: int
) -> tuple[Point, Tensor, int]:
    """Accelerated projected gradient with restarts (Beck and Teboulle 2009; O'Donoghue and Candès 2015).

    The step is 1/L; L starts at `steep` and grows where the curvature met is larger, so there is nothing to tune.
    Returns the point, L, and how many steps were taken until the gap was within the tolerance.
    """
    point, taken = problem.at(start), 0
    alpha, image = point.alpha, point.image
    ahead, ahead_image, slope = alpha, image, point.slope
    momentum = torch.ones((), dtype=start.dtype, device=start.device)
    while taken < steps and not problem.is_near(point, steep, tolerance):
        for _ in range(min(_BETWEEN_QUERIES, steps - taken)):
            moved = problem.nearest_weights(ahead - slope / _positive(steep))
            moved_image = problem.combine(moved)
            met = (moved_image - ahead_image).square().sum() / _positive((moved - ahead).square().sum())
            steep = torch.maximum(steep, met)
            # Momentum that points uphill is dropped, without asking the device whether it does.
            uphill = ((ahead - moved) * (moved - alpha)).sum() > 0
            momentum = torch.where(uphill, 1.0, momentum)
            after = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
            share = (momentum - 1) / after
            ahead = moved + share * (moved - alpha)
            ahead_image = moved_image + share * (moved_image - image)
            alpha, image, momentum = moved, moved_image, after
            slope = problem.correlate(ahead_image - problem.noisy)
            taken += 1
        point = problem.at(alpha, image)
    return point, steep, taken


def _positive(value: Tensor) -> Tensor:
    return value.clamp_min(torch.finfo(value.dtype).tiny)


# -- quadratic programs over simplices by an interior-point method -------------------------------------------


# How far towards the nearest edge a step goes.
_ALMOST = 0.995


@dataclass(frozen=True, eq=False)
class Quadratic:
    """q(α) = ½|Bᵀα|² + ⟨d, α⟩ + ½ Σ_j t_j α_j²: `factor` B (m, r), `linear` d (m,), `diagonal` t (m,), all float64."""

    factor: Tensor
    linear: Tensor
    diagonal: Tensor

    def slope(self, alpha: Tensor) -> Tensor:
        """∇q(α), (m,)."""
        return self.factor @ (self.factor.mT @ alpha) + self.linear + self.diagonal * alpha


def interior_point(program: Quadratic, start: Tensor, enough: float, steps: int = 40) -> Tensor:
    """The least q(α) over α ≥ 0 in parts (R, C) whose sums stay those of `start`, which must be positive.

    Primal-dual path following with predictor and corrector (Mehrotra 1992). With slacks s = ∇q(α) − y ≥ 0 and weights
    w = 1/(s/α + t), a Newton step takes one system of r equations, I + Bᵀ W B, where W v = w (v − v̄) and v̄ is the
    weighted mean of v within its part. Stops at a duality gap of `enough`, at the latest after `steps` steps.

    >>> nearest = Quadratic(torch.eye(3).double(), -torch.tensor([0.5, 1.1, -3.0]).double(), torch.zeros(3).double())
    >>> interior_point(nearest, torch.full((1, 3), 1 / 3).double(), enough=1e-9).round(decimals=4)
    tensor([[0.2000, 0.8000, 0.0000]], dtype=torch.float64)
    """
    alpha, mass, shape = start.flatten(), start.sum(1), start.shape
    slope = program.slope(alpha)
    least = slope.view(shape).amin(1)
    gap = alpha @ slope - mass @ least
    level = least - 0.5 * gap / mass.sum()
    for _ in range(steps):
        # The one wait for the device in a step: are we there?
        if not gap.item() > enough:
            break
        slack = (slope.view(shape) - level[:, None]).flatten()
        alpha_move, level_move = _Newton(program, alpha, slack, shape).step()
        alpha, level = (alpha + alpha_move).view(shape), level + level_move
        # Near the edges rounding would wear off the sums.
        alpha = (alpha * (mass / alpha.sum(1))[:, None]).flatten()
        slope = program.slope(alpha)
        least = slope.view(shape).amin(1)
        gap = alpha @ slope - mass @ least
        # Rounding must not make a slack zero.
        level = torch.minimum(level, least - 1e-14 * slope.abs().amax())
    return alpha.view(shape)


class _Newton:
    """The linear system of one step."""

    def __init__(self, program: Quadratic, alpha: Tensor, slack: Tensor, shape: torch.Size) -> None:
        self.alpha, self.slack, self.factor = alpha, slack, program.factor
        self.weight = (1 / (slack / alpha + program.diagonal)).view(shape)
        self.share = self.weight / self.weight.sum(1, keepdim=True)
        rows = self.factor.view(*shape, -1)
        centred = rows - torch.einsum("rc,rcj->rj", self.share, rows)[:, None]
        centred = (centred * self.weight.sqrt()[..., None]).flatten(0, 1)
        gram = centred.mT @ centred
        gram.diagonal().add_(1)
        # `_ex` does not wait for the device to say whether it worked; I + CᵀC is positive definite.
        self.root = torch.linalg.cholesky_ex(gram)[0]

    def step(self) -> tuple[Tensor, Tensor]:
        """How weights and levels move."""
        products = self.alpha * self.slack
        mean = products.mean()
        alpha, slack, _ = self._towards(products)
        length = torch.minimum(_longest(self.alpha, alpha), _longest(self.slack, slack))
        after = ((self.alpha + length * alpha) * (self.slack + length * slack)).mean()
        alpha, slack, level = self._towards(products + alpha * slack - (after / mean) ** 3 * mean)
        length = _ALMOST * torch.minimum(_longest(self.alpha, alpha), _longest(self.slack, slack))
        return length * alpha, length * level

    def _towards(self, excess: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The moves of weights, slacks and levels that take this excess off α∘s, to first order."""
        wanted = -excess / self.alpha
        inner = self.factor.mT @ self._spread(wanted)
        wanted = wanted - self.factor @ torch.cholesky_solve(inner[:, None], self.root)[:, 0]
        alpha = self._spread(wanted)
        level = -(self.share * wanted.view(self.share.shape)).sum(1)
        return alpha, -(excess + self.slack * alpha) / self.alpha, level

    def _spread(self, values: Tensor) -> Tensor:
        """W v."""
        values = values.view(self.weight.shape)
        return (self.weight * (values - (self.share * values).sum(1, keepdim=True))).flatten()


def _longest(values: Tensor, moves: Tensor) -> Tensor:
    """The longest step up to 1 that keeps the values positive."""
    return torch.where(moves < 0, -values / moves, 1.0).amin().clamp(max=1.0)


# -- finishing: exactly on few candidates, or on a low-rank model of all -------------------------------------


# Candidates in a restricted program, and how many of them change from round to round.
_COLUMNS, _CHANGED = 1024, 384
# Candidates that span the low-rank model.
_COARSE = 512
# A program is solved to this part of the gap that is asked for in the end.
_INNER = 0.2


def by_columns(
    problem: LeastSquares, public: Candidates, point: Point, steep: Tensor, tolerance: float, rounds: int
) -> tuple[Point, int]:
    """The hull's nearest point by column generation (von Hohenbalken 1977; fully corrective Frank-Wolfe).

    Each round solves the problem exactly on the point found so far and the candidates that matter: those with the most
    weight, and those that the slope says to move towards. Returns the point and how many rounds it took.
    """
    restricted = _Restricted.begin(public, point)
    for taken in range(rounds):
        if problem.is_near(point, steep, tolerance):
            return point, taken
        enough = _INNER * tolerance * problem.unit(point).item()
        weights = restricted.solve(problem, point, enough)
        alpha = weights[0] * point.alpha.flatten().double()
        alpha.index_add_(0, restricted.chosen, weights[1:])
        found = problem.at(alpha.to(point.alpha.dtype).view_as(point.alpha))
        if not _is_better(found, point, enough):
            return point, taken
        point = found
        restricted = restricted.renewed(public, point, weights[1:])
    return point, rounds


@dataclass(frozen=True, eq=False)
class _Restricted:
    """Numbers of the chosen candidates (m,), the candidates (m, P) and their inner products (m, m) in float64."""

    chosen: Tensor
    columns: Tensor
    gram: Tensor

    @classmethod
    def begin(cls, public: Candidates, point: Point) -> _Restricted:
        many = min(_COLUMNS, point.alpha.numel())
        kept = point.alpha.flatten().topk(many - min(many, _CHANGED)).indices
        chosen = torch.cat((kept, _steepest(point, kept, many - len(kept))))
        # Weights of 1 on vectors much longer than their mean: float32 would leave nothing of the small differences.
        columns = public.columns(chosen).double()
        return cls(chosen, columns, columns @ columns.mT)

    def renewed(self, public: Candidates, point: Point, weights: Tensor) -> _Restricted:
        """The candidates with the least weight give way to those of the steepest slope."""
        best = weights.topk(len(weights) - min(len(weights), _CHANGED)).indices
        fresh = _steepest(point, self.chosen[best], len(weights) - len(best))
        new = public.columns(fresh).double()
        columns = torch.cat((self.columns[best], new))
        beside = columns @ new.mT
        gram = torch.cat((torch.cat((self.gram[best][:, best], beside[: len(best)].mT)), beside), dim=1)
        return _Restricted(torch.cat((self.chosen[best], fresh)), columns, gram)

    def solve(self, problem: LeastSquares, point: Point, enough: float) -> Tensor:
        """The best weights of the point itself and of the candidates, (1 + m,)."""
        own, noisy = point.image.double(), problem.noisy.double()
        beside = torch.cat(((own @ own)[None], self.columns @ own))
        gram = torch.cat((beside[None, 1:], self.gram))
        gram = torch.cat((beside[:, None], gram), dim=1)
        # Candidates may be equal; this much is lost in rounding anyway.
        gram.diagonal().add_(1e-12 * gram.diagonal().mean())
        linear = -torch.cat(((own @ noisy)[None], self.columns @ noisy))
        program = Quadratic(torch.linalg.cholesky_ex(gram)[0], linear, torch.zeros_like(linear))
        start = torch.full_like(linear, 0.01 / max(1, len(self.chosen)))
        start[0] = 0.99
        return interior_point(program, start[None], enough)[0]


def _steepest(point: Point, besides: Tensor, many: int) -> Tensor:
    """So many candidates with the lowest slope, other than these."""
    return point.slope.flatten().index_fill(0, besides, torch.inf).topk(many, largest=False).indices


def by_low_rank(
    problem: LeastSquares, public: Candidates, point: Point, steep: Tensor, tolerance: float, rounds: int
) -> tuple[Point, int]:
    """Return the per-row simplex's nearest point by Newton steps on a model of low rank plus a diagonal.

    With G = B V + T, V an orthonormal basis of the span of a few hundred candidates and T what they miss, each round
    minimises ½|Bᵀα − V g̃|² + ⟨Tᵀ(Gα₀ − g̃), α⟩ + ½ c Σ_j |T_j|² (α_j − α₀_j)² by an interior-point method and goes to
    the best point on the way there. What is missed is in the slope exactly and in the curvature roughly, so rounds
    converge to the true optimum, and fast, the candidates' spectrum falling steeply. Returns the point and the rounds.
    """
    model, caution = _LowRank.of(public, point), 1.5
    for taken in range(rounds):
        if problem.is_near(point, steep, tolerance):
            return point, taken
        enough = _INNER * tolerance * problem.unit(point).item()
        alpha = model.solve(problem, point, enough, caution).to(point.alpha.dtype)
        move = public.combine(alpha) - point.image
        square = move @ move
        # Of a move that short rounding would decide how much to take.
        length = torch.where(square > enough, (problem.noisy - point.image) @ move / square, 1.0).clamp(0, 1)
        found = problem.at(point.alpha + length * (alpha - point.alpha))
        if not _is_better(found, point, enough):
            return point, taken
        # A step that had to be shortened was too bold.
        caution = 2 * caution if length.item() < 0.5 else caution
        point = found
    return point, rounds


@dataclass(frozen=True, eq=False)
class _LowRank:
    """V (r, P); B (n·K, r), |T_j|² (n·K,) and a point away from all edges (n, K) in float64."""

    basis: Tensor
    factor: Tensor
    missed: Tensor
    middle: Tensor

    @classmethod
    def of(cls, public: Candidates, point: Point) -> _LowRank:
        generator = torch.Generator(point.alpha.device).manual_seed(0)
        order = torch.randperm(point.alpha.numel(), generator=generator, device=point.alpha.device)
        spanning = public.columns(order[:_COARSE])
        gram = spanning.double() @ spanning.double().mT
        # Where candidates depend on each other V shrinks instead of failing; any |V| ≤ 1 gives a valid model.
        gram.diagonal().add_(1e-10 * gram.diagonal().mean())
        root = torch.linalg.cholesky_ex(gram)[0]
        basis = torch.linalg.solve_triangular(root, spanning.double(), upper=False).to(spanning.dtype)
        factor = public.coordinates(basis).double()
        missed = public.squared_norms().double() - factor.square().sum(1)
        middle = 0.99 * public.logits.double().softmax(1) + 0.01 / public.shape[1]
        return cls(basis, factor, missed.clamp_min(1e-12 * gram.diagonal().mean()), middle / public.shape[0])

    def solve(self, problem: LeastSquares, point: Point, enough: float, caution: float) -> Tensor:
        """The model's minimum, (n, K)."""
        alpha = point.alpha.double()
        known = self.factor @ (self.factor.mT @ alpha.flatten())
        linear = point.slope.double().flatten() - known - caution * self.missed * alpha.flatten()
        program = Quadratic(self.factor, linear, caution * self.missed)
        return interior_point(program, 0.9 * alpha + 0.1 * self.middle, enough)


def _is_better(found: Point, point: Point, enough: float) -> bool:
    """False where rounding has the last word, or a number is not one."""
    return found.objective.item() <= point.objective.item() + enough


__all__ = ["Candidates", "Projected", "Projection", "hull", "row_simplex", "span"]


@dataclass(frozen=True, eq=False)
class Projected:
    """A projected gradient (P,), and how near it is to the nearest point of all.

    `gap` is the duality gap in units of the objective f = ½|ĝ − g̃|² or of |ĝ|², whichever is less: f is at most gap ·
    f above its least value, and ĝ at most √gap · |ĝ| away from the true projection (`simplex.LeastSquares` has the
    exact words). For `span`, where no gap is finite, it is |Gᵀr| / (|G| |r|), r being what is left. `iterations` counts
    accelerated steps and rounds, or conjugate-gradient steps.
    """

    gradient: Tensor
    gap: float = 0.0
    iterations: int = 0
    objective: float = 0.0


Projection = Callable[[Tensor, Candidates], Projected]


def span(noisy: Tensor, public: Candidates, *, tolerance: float = 0.01, steps: int = 500) -> Projected:
    """The nearest combination Σ α_ik g_ik, whatever the α: least squares by conjugate gradients.

    Björck's CGLS, with Paige and Saunders' (1982) rule to stop: |Gᵀr| ≤ tolerance · |G| |r|, or `steps`. Directions in
    which candidates differ most come first, so stopping early leaves out noise before gradient.
    """
    _check(noisy, public, tolerance)
    with torch.no_grad(), torch.autocast(noisy.device.type, enabled=False):
        return _conjugate_gradients(noisy.to(public.dtype), public, tolerance, steps)


def _conjugate_gradients(noisy: Tensor, public: Candidates, tolerance: float, steps: int) -> Projected:
    tiny, eps = torch.finfo(noisy.dtype).tiny, torch.finfo(noisy.dtype).eps
    residual, slope = noisy, public.correlate(noisy)
    direction, power = slope, slope.square().sum()
    steep, error, taken = power.new_zeros(()), power.new_ones(()), 0
    # One wait for the device in eight steps.
    while taken < steps and error.item() > tolerance:
        for _ in range(min(8, steps - taken)):
            image = public.combine(direction)
            square = image.square().sum()
            steep = torch.maximum(steep, square / direction.square().sum().clamp_min(tiny))
            # Where only rounding is left a step would lead anywhere.
            error = (power / (steep * residual.square().sum()).clamp_min(tiny)).sqrt()
            length = torch.where(error > eps, power / square.clamp_min(tiny), 0.0)
            residual = residual - length * image
            slope = public.correlate(residual)
            before, power = power, slope.square().sum()
            direction = slope + power / before.clamp_min(tiny) * direction
            taken += 1
        error = (power / (steep * residual.square().sum()).clamp_min(tiny)).sqrt()
    return Projected(noisy - residual, error.item(), taken, 0.5 * residual.square().sum().item())


def hull(
    noisy: Tensor,
    public: Candidates,
    *,
    smoothing: float = 1.0,
    tolerance: float = 0.01,
    steps: int = 48,
    rounds: int = 30,
) -> Projected:
    """The nearest point of the hull of all candidates, {Σ α_ik g_ik : α ≥ 0, Σ_ik α_ik = 1}.

    Accelerated projected gradient, then column generation, until the relative duality gap is `tolerance`.

    Args:
        smoothing: λ: the weights become λα + (1 − λ)/(n·K), against large gradients of unlikely classes.
        tolerance: the relative duality gap to stop at.
        steps, rounds: the most of each; fewer make it quick and rough, and `Projected.gap` says how rough.

    >>> from torch import nn
    >>> from labeldp.mechanisms.gradients.public import PublicGradients
    >>> public = PublicGradients(nn.Linear(2, 2, bias=False), torch.tensor([[1.0, 0.0]]))
    >>> hull(torch.ones(4), public, tolerance=1e-6).gradient.abs().amax() < 1e-3
    tensor(True)
    """
    return _nearest(noisy, public, 1, smoothing, tolerance, steps, rounds)


def row_simplex(
    noisy: Tensor,
    public: Candidates,
    *,
    smoothing: float = 1.0,
    tolerance: float = 0.01,
    steps: int = 48,
    rounds: int = 30,
) -> Projected:
    """The nearest mean of one point from every row's own hull, {(1/n) Σ α_ik g_ik : α ≥ 0, Σ_k α_ik = 1 for all i}.

    Every row has exactly one class, so the true mean gradient of these rows is in this set, which is smaller than the
    hull: the noise that stays grows with √(log K) in place of √(log nK). Arguments as for `hull`.
    """
    return _nearest(noisy, public, public.shape[0], smoothing, tolerance, steps, rounds)


def _nearest(
    noisy: Tensor,
    public: Candidates,
    groups: int,
    smoothing: float,
    tolerance: float,
    steps: int,
    rounds: int,
) -> Projected:
    _check(noisy, public, tolerance)
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing={smoothing} is not a weight; give a number from 0 to 1, 1 for none")
    with torch.no_grad(), torch.autocast(noisy.device.type, enabled=False):
        problem = LeastSquares(public.combine, public.correlate, noisy.to(public.dtype), groups)
        # The model's own prediction: for the cross-entropy its image is zero, the best guess before any query.
        start = public.logits.to(public.dtype).softmax(1) / public.shape[0]
        point, steep, taken = accelerated(problem, start, problem.steepness(start), tolerance, steps)
        finish = by_columns if groups == 1 else by_low_rank
        point, more = finish(problem, public, point, steep, tolerance, rounds)
        gap = problem.relative_gap(point, steep).item()
        if not math.isfinite(gap):
            raise ValueError("candidate gradients are not finite; are the inputs, and has training diverged?")
        gradient = point.image
        if smoothing < 1:
            even = torch.full_like(point.alpha, 1 / point.alpha.numel())
            gradient = smoothing * gradient + (1 - smoothing) * public.combine(even)
    return Projected(gradient, gap, taken + more, point.objective.item())


def _check(noisy: Tensor, public: Candidates, tolerance: float) -> None:
    if noisy.shape != (public.num_parameters,):
        raise ValueError(f"noisy has shape {tuple(noisy.shape)}; the model has {public.num_parameters} parameters")
    if not math.isfinite(noisy.sum(dtype=torch.float64).item()):
        raise ValueError("noisy has entries that are not finite; a noisy gradient must be a vector of numbers")
    if not tolerance > 0:
        raise ValueError(f"tolerance={tolerance} is never reached; give a number > 0, say 0.01")
