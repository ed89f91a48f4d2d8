"""Noisy gradient → the nearest one that public features allow (Ghazi et al. 2024, LabelDP-Pro).

The mean gradient of a batch is a combination of what its rows would contribute under each class, and those candidates
need no label: g_ik = ∇_θ ℓ(z_i, k). Noise has no reason to lie among them, so projecting takes most of it away.

=========  =================================================  =============================================
name       projection onto                                    reference
=========  =================================================  =============================================
none       everything                                         DP-SGD
span       {Σ α_ik g_ik}                                      SelfSpan; LP-Normal-SGD (Ghazi et al. 2021)
hull       {Σ α_ik g_ik : α ≥ 0, Σ_ik α_ik = 1}               SelfConv, AltConv
row_hull   {(1/n) Σ α_ik g_ik : α ≥ 0, Σ_k α_ik = 1 ∀ i}      ours: a subset of the hull that has the mean too
=========  =================================================  =============================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from labeldp.learning.nearest import by_columns, by_sketch
from labeldp.learning.public_gradients import PublicGradients
from labeldp.learning.simplex import LeastSquares, accelerated
from labeldp.models.layer_gradients import full_precision

__all__ = ["Projected", "Projection", "PublicGradients", "hull", "none", "row_hull", "span"]


@dataclass(frozen=True, eq=False)
class Projected:
    """A projected gradient (P,), and how near it is to the nearest point of all.

    `gap` is the duality gap in units of the objective f = ½|ĝ − g̃|² or of |ĝ|², whichever is less: f is at most gap · f
    above its least value, and ĝ at most √gap · |ĝ| away from the true projection (`simplex.LeastSquares` has the exact
    words). For `span`, where no gap is finite, it is |Gᵀr| / (|G| |r|), r being what is left. `iterations` counts
    accelerated steps and rounds, or conjugate-gradient steps.
    """

    gradient: Tensor
    gap: float = 0.0
    iterations: int = 0
    objective: float = 0.0


Projection = Callable[[Tensor, PublicGradients], Projected]


def none(noisy: Tensor, public: PublicGradients | None = None) -> Projected:
    """The noisy gradient as it is: DP-SGD."""
    return Projected(noisy)


def span(noisy: Tensor, public: PublicGradients, *, tolerance: float = 0.01, steps: int = 500) -> Projected:
    """The nearest combination Σ α_ik g_ik, whatever the α: least squares by conjugate gradients.

    Björck's CGLS, with Paige and Saunders' (1982) rule to stop: |Gᵀr| ≤ tolerance · |G| |r|, or `steps`. Directions in
    which candidates differ most come first, so stopping early leaves out noise before gradient.
    """
    _check(noisy, public, tolerance)
    with full_precision():
        return _conjugate_gradients(noisy.to(public.dtype), public, tolerance, steps)


def _conjugate_gradients(noisy: Tensor, public: PublicGradients, tolerance: float, steps: int) -> Projected:
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
    public: PublicGradients,
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
    >>> public = PublicGradients(nn.Linear(2, 2, bias=False), torch.tensor([[1.0, 0.0]]))
    >>> hull(torch.ones(4), public, tolerance=1e-6).gradient.abs().amax() < 1e-3
    tensor(True)
    """
    return _nearest(noisy, public, 1, smoothing, tolerance, steps, rounds)


def row_hull(
    noisy: Tensor,
    public: PublicGradients,
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
    public: PublicGradients,
    groups: int,
    smoothing: float,
    tolerance: float,
    steps: int,
    rounds: int,
) -> Projected:
    _check(noisy, public, tolerance)
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing={smoothing} is not a weight; give a number from 0 to 1, 1 for none")
    with full_precision():
        problem = LeastSquares(public.combine, public.correlate, noisy.to(public.dtype), groups)
        # The model's own prediction: for the cross-entropy its image is zero, the best guess before any look.
        start = public.jacobian.logits.to(public.dtype).softmax(1) / public.shape[0]
        point, steep, taken = accelerated(problem, start, problem.steepness(start), tolerance, steps)
        finish = by_columns if groups == 1 else by_sketch
        point, more = finish(problem, public, point, steep, tolerance, rounds)
        gap = problem.relative_gap(point, steep).item()
        if not math.isfinite(gap):
            raise ValueError("candidate gradients are not finite; are the inputs, and has training diverged?")
        gradient = point.image
        if smoothing < 1:
            even = torch.full_like(point.alpha, 1 / point.alpha.numel())
            gradient = smoothing * gradient + (1 - smoothing) * public.combine(even)
    return Projected(gradient, gap, taken + more, point.objective.item())


def _check(noisy: Tensor, public: PublicGradients, tolerance: float) -> None:
    if noisy.shape != (public.num_parameters,):
        raise ValueError(f"noisy has shape {tuple(noisy.shape)}; the model has {public.num_parameters} parameters")
    if not math.isfinite(noisy.sum(dtype=torch.float64).item()):
        raise ValueError("noisy has entries that are not finite; a noisy gradient must be a vector of numbers")
    if not tolerance > 0:
        raise ValueError(f"tolerance={tolerance} is never reached; give a number > 0, say 0.01")
