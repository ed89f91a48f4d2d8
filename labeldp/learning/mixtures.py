"""Two Gaussians on a line, fitted to many numbers on their device: which losses are those of right labels?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from labeldp.models.shared import checked_count

# Losses of labels, (m,) → how likely each label is right, (m,).
Judge = Callable[[Tensor], Tensor]


def by_mixture(iterations: int = 20) -> Judge:
    """Of two Gaussians fitted to the losses, the lower one is of right labels (Arazo et al. 2019; Li et al. 2020)."""

    def judge(losses: Tensor) -> Tensor:
        values = (losses - losses.amin()) / (losses.amax() - losses.amin()).clamp_min(1e-12)
        return two_gaussians(values, iterations).lower(values)

    return judge


def by_response(epsilon: float) -> Judge:
    """Bayes' rule where labels are randomized response at ε, with p the network's probability of the answer.

        P(answer is right | x, answer) = e^ε·p / (e^ε·p + 1 − p)

    In place of a mixture that has to guess the noise; here the noise is known, and p = e^{−loss}.

    >>> by_response(math.log(3))(torch.tensor([math.log(2)]))
    tensor([0.7500])
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon={epsilon} must be at least 0")

    def judge(losses: Tensor) -> Tensor:
        losses = losses.clamp_min(1e-7)
        return torch.sigmoid(epsilon - losses - torch.log(-torch.expm1(-losses)))

    return judge


@dataclass(frozen=True, eq=False)
class TwoGaussians:
    """w₀·N(m₀, v₀) + w₁·N(m₁, v₁) with m₀ ≤ m₁; each a tensor (2,), double, on the device of the numbers."""

    weights: Tensor
    means: Tensor
    variances: Tensor

    def log_joint(self, values: Tensor) -> Tensor:
        """log of weight times density of both parts, (n, 2)."""
        distance = (values.double()[:, None] - self.means).square() / self.variances
        return self.weights.log() - 0.5 * (distance + self.variances.log() + math.log(2 * math.pi))

    def lower(self, values: Tensor) -> Tensor:
        """The probability of being of the part with the lower mean, (n,), in the numbers' own type."""
        return torch.softmax(self.log_joint(values), dim=1)[:, 0].to(values.dtype)


def two_gaussians(values: Tensor, iterations: int = 20, floor: float = 5e-4) -> TwoGaussians:
    """Fit by expectation and maximisation from the best split into two (Dempster, Laird and Rubin 1977).

        r_ic ∝ w_c·N(x_i; m_c, v_c)
        w_c = Σ_i r_ic / n,   m_c = Σ_i r_ic x_i / Σ_i r_ic,   v_c = Σ_i r_ic (x_i − m_c)² / Σ_i r_ic + floor

    Nothing is read back from the device: the number of rounds is fixed and not by convergence.

    Args:
        values: (n,), n ≥ 2, finite.
        iterations: rounds.
        floor: added to every variance, so that no part shrinks to a point.

    >>> found = two_gaussians(torch.tensor([0.0, 0.1, 0.2, 2.0, 2.1, 2.2]), floor=1e-6)
    >>> found.means.round(decimals=3).tolist(), found.lower(torch.tensor([0.3, 1.9])).round().tolist()
    ([0.1, 2.1], [1.0, 0.0])
    """
    if values.ndim != 1 or len(values) < 2 or not floor > 0:
        raise ValueError(
            f"values has shape {tuple(values.shape)}, floor={floor}; give at least two numbers and floor > 0"
        )
    numbers = values.double()
    found = _from_shares(numbers, best_split(numbers), floor)
    for _ in range(checked_count("iterations", iterations)):
        found = _from_shares(numbers, torch.softmax(found.log_joint(numbers), dim=1), floor)
    order = found.means.argsort()
    return TwoGaussians(found.weights[order], found.means[order], found.variances[order])


def best_split(values: Tensor) -> Tensor:
    """Two-means on a line, exactly: 1 and 0, or 0 and 1, for each value, (n, 2), the least squares within the parts.

    The best parts are a prefix and a suffix of the sorted values; with prefix sums all n − 1 are compared at once.
    """
    ordered = values.sort().values
    sizes = torch.arange(1, len(values), device=values.device, dtype=values.dtype)
    below = ordered.cumsum(0)
    # Σ(x − m)² within = Σx² − (Σ below)²/k − (Σ above)²/(n − k): the last two are to be large. Centred, for the digits.
    centred = below[:-1] - sizes * (below[-1] / len(values))
    gain = centred.square() * (1 / sizes + 1 / (len(values) - sizes))
    # The boundary is halfway between two sorted neighbours; gather keeps the place on the device.
    place = gain.argmax(keepdim=True)
    border = (ordered.gather(0, place) + ordered.gather(0, place + 1)) / 2
    low = (values <= border).to(values.dtype)
    return torch.stack((low, 1 - low), dim=1)


def _from_shares(values: Tensor, shares: Tensor, floor: float) -> TwoGaussians:
    # A part without members keeps a trace of weight, not a division by nothing.
    sizes = shares.sum(dim=0) + 10 * torch.finfo(values.dtype).eps
    means = (shares * values[:, None]).sum(dim=0) / sizes
    variances = (shares * (values[:, None] - means).square()).sum(dim=0) / sizes + floor
    return TwoGaussians(sizes / len(values), means, variances)
