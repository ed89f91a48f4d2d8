"""Points with non-negative coordinates of a given sum."""

from __future__ import annotations

import torch
from torch import Tensor


def project_to_simplex(values: Tensor, mass: float = 1.0) -> Tensor:
    """The nearest point of {x ≥ 0, Σ_k x_k = mass} to each row, (..., K).

    x = max(y − τ, 0) with the one τ that gives the sum: sort, then take the longest prefix whose entries all stay
    above its τ (Held, Wolfe and Crowder 1974; Wang and Carreira-Perpiñán 2013).

    >>> project_to_simplex(torch.tensor([0.5, 1.1, -3.0]))
    tensor([0.2000, 0.8000, 0.0000])
    """
    falling = values.sort(dim=-1, descending=True).values
    counts = torch.arange(1, values.shape[-1] + 1, device=values.device, dtype=values.dtype)
    thresholds = (falling.cumsum(dim=-1) - mass) / counts
    kept = (falling > thresholds).sum(dim=-1, keepdim=True).clamp_min(1)
    return (values - thresholds.gather(-1, kept - 1)).clamp_min(0)
