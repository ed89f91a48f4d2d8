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
from functools import cached_property

import torch
from torch import Tensor, nn

from labeldp.learning.simplex import project_to_simplex
from labeldp.models.jacobians import LogitJacobian, logit_gradients
from labeldp.models.per_example import Inputs, Loss, clip_factors, cross_entropy


@dataclass(frozen=True, eq=False)
class Projected:
    """A projected gradient (P,), and how near to the nearest point it surely is.

    `gap` is the duality gap max_s ⟨∇f(α), α − s⟩ over the allowed s, in units of the objective f = ½|Gα − g̃|²:
    f is at most (1 + gap) … above the least possible. 0 where the projection is exact.
    """

    gradient: Tensor
    gap: float = 0.0
    iterations: int = 0
    objective: float = 0.0


Projection = Callable[..., Projected]


class PublicGradients:
    """The gradients g_ik that public rows would have under every class, at the weights the model has now.

    `combine` and `correlate` are products with the matrix G of all of them, through the Jacobian of the logits; the
    matrix is kept only where it fits. With `clip` each candidate is clipped to that norm, as the mechanism does.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        *,
        loss: Loss = cross_entropy,
        clip: float | None = None,
        dense: bool = True,
        memory: int | None = None,
    ) -> None:
        self.jacobian = LogitJacobian(model, inputs, memory=memory)
        self.slopes = logit_gradients(loss, self.jacobian.logits)
        if clip is not None:
            self.slopes = self.slopes * clip_factors(self._norms(), clip)[..., None]
        self._dense = dense

    @property
    def shape(self) -> tuple[int, int]:
        """(n, K)."""
        return self.slopes.shape[0], self.slopes.shape[1]

    def combine(self, alpha: Tensor) -> Tensor:
        """Σ α_ik g_ik (P,) for α (n, K)."""
        weights = torch.einsum("ik,ikj->ij", alpha, self.slopes)
        return self.jacobian.vjp(weights) if self._matrix is None else weights.flatten() @ self._matrix

    def correlate(self, vector: Tensor) -> Tensor:
        """⟨g_ik, v⟩ (n, K) for v (P,)."""
        moved = self.jacobian.jvp(vector) if self._matrix is None else self._matrix @ vector
        return torch.einsum("ikj,ij->ik", self.slopes, moved.view(self.shape))

    @cached_property
    def _matrix(self) -> Tensor | None:
        matrix = self.jacobian.dense() if self._dense else None
        return None if matrix is None else matrix.flatten(0, 1)

    def _norms(self) -> Tensor:
        parts = [torch.linalg.vector_norm(self.slopes[part] @ block, dim=-1) for part, block in self.jacobian.blocks()]
        return torch.cat(parts)


def none(noisy: Tensor, public: PublicGradients | None = None) -> Projected:
    """The noisy gradient as it is: DP-SGD."""
    return Projected(noisy)


def span(noisy: Tensor, public: PublicGradients, *, tolerance: float = 1e-3, most: int = 500) -> Projected:
    """The nearest combination Σ α_ik g_ik, any α: least squares by conjugate gradients (CGLS).

    Stops when the residual's correlation with the candidates, |Gᵀr|, is `tolerance` of what it was at the start.
    """
    _check(noisy, public)
    residual = noisy
    slope = public.correlate(residual)
    direction, power = slope, (slope * slope).sum()
    first = float(power)
    step = 0
    while step < most and float(power) > tolerance**2 * first > 0:
        image = public.combine(direction)
        length = power / (image @ image)
        residual = residual - length * image
        slope = public.correlate(residual)
        before, power = power, (slope * slope).sum()
        direction = slope + (power / before) * direction
        step += 1
    return Projected(noisy - residual, math.sqrt(float(power) / first) if first else 0.0, step, _half_square(residual))


def hull(
    noisy: Tensor,
    public: PublicGradients,
    *,
    smoothing: float = 1.0,
    tolerance: float = 0.01,
    most: int = 5000,
) -> Projected:
    """The nearest point of the convex hull of all candidates."""
    return _nearest(noisy, public, 1, smoothing, tolerance, most)


def row_hull(
    noisy: Tensor,
    public: PublicGradients,
    *,
    smoothing: float = 1.0,
    tolerance: float = 0.01,
    most: int = 5000,
) -> Projected:
    """The nearest mean of one point from each row's hull."""
    return _nearest(noisy, public, public.shape[0], smoothing, tolerance, most)


def _nearest(
    noisy: Tensor, public: PublicGradients, groups: int, smoothing: float, tolerance: float, most: int
) -> Projected:
    _check(noisy, public)
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing={smoothing} is not a weight; give a number from 0 to 1, 1 for none")
    alpha, gap, step, objective = _accelerated(noisy, public, groups, tolerance, most)
    alpha = smoothing * alpha + (1 - smoothing) / alpha.numel()
    return Projected(public.combine(alpha), gap, step, objective)


def _accelerated(
    noisy: Tensor, public: PublicGradients, groups: int, tolerance: float, most: int
) -> tuple[Tensor, float, int, float]:
    """FISTA with restarts."""
    mass, shape = 1 / groups, public.shape

    def nearest(values: Tensor) -> Tensor:
        return project_to_simplex(values.view(groups, -1), mass).view(shape)

    probe = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(noisy)
    for _ in range(20):
        probe = public.correlate(public.combine(probe / probe.norm()))
    bound = 1.05 * float(probe.norm())
    alpha = nearest(torch.softmax(public.jacobian.logits, dim=1).to(noisy) / shape[0])
    ahead, momentum = alpha, 1.0
    gap, objective, step = math.inf, math.inf, 0
    for step in range(1, most + 1):
        slope = public.correlate(public.combine(ahead) - noisy)
        moved = nearest(ahead - slope / max(bound, 1e-30))
        if float(((ahead - moved) * (moved - alpha)).sum()) > 0:
            momentum = 1.0
        after = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead, alpha = moved + (momentum - 1) / after * (moved - alpha), moved
        momentum = after
        if step % 10 == 0:
            residual = public.combine(alpha) - noisy
            slope = public.correlate(residual)
            least = slope.view(groups, -1).amin(1).mean()
            objective = _half_square(residual)
            gap = max(0.0, float((slope * alpha).sum() - least))
            if gap <= tolerance * objective + 1e-12:
                break
    return alpha, gap / objective if objective else 0.0, step, objective


def _half_square(vector: Tensor) -> float:
    return 0.5 * float(vector @ vector)


def _check(noisy: Tensor, public: PublicGradients) -> None:
    if noisy.shape != (public.jacobian.num_parameters,):
        raise ValueError(
            f"noisy has shape {tuple(noisy.shape)}; the model has {public.jacobian.num_parameters} parameters"
        )
    if not math.isfinite(float(noisy.sum())):
        raise ValueError("noisy has entries that are not finite; the noisy gradient must be a vector of numbers")
