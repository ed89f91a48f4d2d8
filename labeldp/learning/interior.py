"""Quadratic programs over simplices, small or of low rank, by an interior-point method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
