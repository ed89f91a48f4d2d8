"""Bounds on what one row can add to a gradient sum, as values: radius R, diameter D, and how they are kept."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from labeldp.models.per_example import SMALLEST, norm_factors

_SHORTEST, _LONGEST = 1e-10, 1e10


@dataclass(frozen=True)
class NormBound:
    """Clip each row's gradient to norm C: g ↦ g · min(1, C/|g|) (Abadi et al. 2016). R = C, D = 2C.

    Proof. |v| ≤ C by construction; two such vectors are at most 2C apart.

    >>> NormBound(0.5).diameter
    1.0
    """

    clip: float
    # The gradient under the row's own label is enough.
    needs_candidates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", _checked_length("clip", self.clip))

    @property
    def radius(self) -> float:
        """Largest norm of a row's contribution, C."""
        return self.clip

    @property
    def diameter(self) -> float:
        """Furthest a contribution moves when its label is replaced, 2C."""
        return 2 * self.clip

    def factors(self, gram: Tensor, errors: Tensor) -> Tensor:
        """min(1, C/|g|), from the squared norm (b, 1, 1) and what rounding may change in it (b, 1)."""
        return norm_factors(self.clip, gram, errors)


@dataclass(frozen=True)
class DiameterBound:
    """Clip the gradient under *every* label to norm C, then scale so that they are at most D apart. R = C.

    h_k = g_k · min(1, C/|g_k|), v_k = h_k · min(1, D / max_{jl} |h_j − h_l|). A row adds v_y. Features and weights are
    public, so all K candidates are, and so is the second factor: it is the same for all labels of a row. Norm clipping
    leaves candidates that are rarely 2C apart; the noise then pays for a distance that never occurs. D between C and
    1.5·C is a good start; with two classes nothing is gained.

    Proof. The second factor is at most 1, so |v_k| ≤ |h_k| ≤ C. It multiplies all candidates of the row alike, so
    |v_j − v_l| ≤ D for all pairs, and the label picks one of them.

    Costs K gradients per row in place of one. A row with a candidate that is not finite adds nothing under any label.

    >>> DiameterBound(clip=1.0, diameter=1.2).radius
    1.0
    """

    clip: float
    diameter: float
    needs_candidates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", _checked_length("clip", self.clip))
        object.__setattr__(self, "diameter", _checked_length("diameter", self.diameter))
        if self.diameter > 2 * self.clip:
            raise ValueError(
                f"diameter is {self.diameter!r}, more than twice the clip {self.clip!r}, which clipping alone gives; "
                "give a smaller one, or NormBound(clip)"
            )

    @property
    def radius(self) -> float:
        """Largest norm of a row's contribution, C (half the diameter is not enough: candidates need not surround 0)."""
        return self.clip

    def factors(self, gram: Tensor, errors: Tensor) -> Tensor:
        """What each candidate is multiplied by, (b, K), from inner products (b, K, K) and what rounding may change."""
        clipped = norm_factors(self.clip, gram, errors)
        apart = _distances(gram * clipped[:, :, None] * clipped[:, None, :], errors.sqrt() * clipped)
        scale = (self.diameter * (1 - 2.0**-20) / apart.amax((1, 2))).clamp(max=1.0)
        factors = clipped * scale[:, None]
        # All candidates or none: one that is dropped alone could end up further than D from the others.
        usable = gram.isfinite().all(2) & errors.isfinite() & (factors >= SMALLEST)
        return torch.where(usable.all(1, keepdim=True), factors, 0.0)


def _distances(gram: Tensor, errors: Tensor) -> Tensor:
    """|h_j − h_l| of each row's candidates, (b, K, K), never below the truth.

    ⟨h_j, h_l⟩ may be off by e_j·e_l, so the square of a distance by (e_j + e_l)².
    """
    squares = gram.diagonal(dim1=1, dim2=2)
    apart = (squares[:, :, None] + squares[:, None, :] - 2 * gram).clamp(min=0.0)
    return (apart + (errors[:, :, None] + errors[:, None, :]).square()).sqrt()


def _checked_length(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not _SHORTEST <= float(value) <= _LONGEST:
        raise ValueError(f"{name} is {value!r}; give a number from {_SHORTEST:g} to {_LONGEST:g}")
    return float(value)
