"""Least squares over simplices: the problem, its duality gap, and an accelerated method for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# Steps between two looks at the gap; each look waits for the device.
_BETWEEN_LOOKS = 8


def project_to_simplex(values: Tensor, mass: float = 1.0) -> Tensor:
    """The nearest point of {x ≥ 0, Σ_k x_k = mass} to each row, (..., K).

    x = max(y − τ, 0) with the one τ that gives the sum: sort, then take the longest prefix whose entries all stay
    above its τ (Held, Wolfe and Crowder 1974; Wang and Carreira-Perpiñán 2013).

    >>> project_to_simplex(torch.tensor([0.5, 1.1, -3.0]))
    tensor([0.2000, 0.8000, 0.0000])
    """
    # Moving a row does not move its nearest point, and numbers far from zero would swallow the mass.
    values = values - values.amax(dim=-1, keepdim=True)
    falling = values.sort(dim=-1, descending=True).values
    counts = torch.arange(1, values.shape[-1] + 1, device=values.device, dtype=values.dtype)
    thresholds = (falling.cumsum(dim=-1) - mass) / counts
    kept = (falling > thresholds).sum(dim=-1, keepdim=True).clamp_min(1)
    return (values - thresholds.gather(-1, kept - 1)).clamp_min(0)


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
        for _ in range(min(_BETWEEN_LOOKS, steps - taken)):
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
