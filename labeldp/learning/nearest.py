"""Two ways to finish what an accelerated method begins: exactly on few candidates, or on a sketch of all of them.

Which one? The nearest point of the hull has a few hundred candidates in it: `by_columns`. That of the row hull has at
least one per row, but most of what they say fits into a few hundred directions: `by_sketch`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labeldp.learning.interior import Quadratic, interior_point
from labeldp.learning.public_gradients import PublicGradients
from labeldp.learning.simplex import LeastSquares, Point

# Candidates in a restricted program, and how many of them change from round to round.
_COLUMNS, _CHANGED = 1024, 384
# Candidates that span the sketch.
_SKETCH = 512
# A program is solved to this part of the gap that is asked for in the end.
_INNER = 0.2


def by_columns(
    problem: LeastSquares, public: PublicGradients, point: Point, steep: Tensor, tolerance: float, rounds: int
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
    def begin(cls, public: PublicGradients, point: Point) -> _Restricted:
        many = min(_COLUMNS, point.alpha.numel())
        kept = point.alpha.flatten().topk(many - min(many, _CHANGED)).indices
        chosen = torch.cat((kept, _steepest(point, kept, many - len(kept))))
        # Weights of 1 on vectors much longer than their mean: float32 would leave nothing of the small differences.
        columns = public.columns(chosen).double()
        return cls(chosen, columns, columns @ columns.mT)

    def renewed(self, public: PublicGradients, point: Point, weights: Tensor) -> _Restricted:
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


def by_sketch(
    problem: LeastSquares, public: PublicGradients, point: Point, steep: Tensor, tolerance: float, rounds: int
) -> tuple[Point, int]:
    """The row hull's nearest point by Newton steps on a model of low rank plus a diagonal.

    With G = B V + T, V an orthonormal basis of the span of a few hundred candidates and T what they miss, each round
    minimises ½|Bᵀα − V g̃|² + ⟨Tᵀ(Gα₀ − g̃), α⟩ + ½ c Σ_j |T_j|² (α_j − α₀_j)² by an interior-point method and goes to
    the best point on the way there. What is missed is in the slope exactly and in the curvature roughly, so rounds
    converge to the true optimum, and fast, the candidates' spectrum falling steeply. Returns the point and the rounds.
    """
    sketch, caution = _Sketch.of(public, point), 1.5
    for taken in range(rounds):
        if problem.is_near(point, steep, tolerance):
            return point, taken
        enough = _INNER * tolerance * problem.unit(point).item()
        alpha = sketch.solve(problem, point, enough, caution).to(point.alpha.dtype)
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
class _Sketch:
    """V (r, P); B (n·K, r), |T_j|² (n·K,) and a point away from all edges (n, K) in float64."""

    basis: Tensor
    factor: Tensor
    missed: Tensor
    middle: Tensor

    @classmethod
    def of(cls, public: PublicGradients, point: Point) -> _Sketch:
        generator = torch.Generator(point.alpha.device).manual_seed(0)
        order = torch.randperm(point.alpha.numel(), generator=generator, device=point.alpha.device)
        spanning = public.columns(order[:_SKETCH])
        gram = spanning.double() @ spanning.double().mT
        # Where candidates depend on each other V shrinks instead of failing; any |V| ≤ 1 gives a valid model.
        gram.diagonal().add_(1e-10 * gram.diagonal().mean())
        root = torch.linalg.cholesky_ex(gram)[0]
        basis = torch.linalg.solve_triangular(root, spanning.double(), upper=False).to(spanning.dtype)
        factor = public.coordinates(basis).double()
        missed = public.squared_norms.double() - factor.square().sum(1)
        middle = 0.99 * public.jacobian.logits.double().softmax(1) + 0.01 / public.shape[1]
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
