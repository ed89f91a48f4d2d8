"""What one look at a moment needs before it is paid: its noise, what it will cost, features that fit."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from labeldp.core.events import Event
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.counts import GaussianNoise, LaplaceNoise
from labeldp.mechanisms.moments import Moments
from labeldp.mechanisms.users import UserVault

Noise = GaussianNoise | LaplaceNoise


def noise_for(epsilon: float, delta: float) -> Noise:
    """The least noise for one look at (ε, δ): Gaussian, or Laplace where δ is 0."""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon={epsilon} is not a budget for a noisy moment; give a finite number above 0")
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta} is not a probability below 1; give 0 or, say, 1e-5")
    return GaussianNoise.for_budget(epsilon, delta) if delta > 0 else LaplaceNoise(epsilon)


def noise_by_width(noise: Noise) -> Callable[[int], float]:
    """Number of directions d → deviation of the noise on rows of length 1, for the rehearsal.

    Gaussian noise is σ whatever d. Laplace noise hides the norm of order 1, at most √d: its scale is 2√d/ε.
    """
    if isinstance(noise, GaussianNoise):
        return lambda width: noise.std
    return lambda width: math.sqrt(2.0) * 2.0 * math.sqrt(width) / noise.epsilon


def event_of(noise: Noise) -> Event:
    """What the look will cost, whatever the features."""
    return Moments(np.zeros((1, 1)), 1, noise, 1.0).event()


def check_features(features: Tensor, vault: LabelVault) -> None:
    """Raise ValueError unless there is one row of finite floats per label, and labels are protected one by one."""
    if isinstance(vault, UserVault):
        raise ValueError(
            "vault protects all labels of a user, and one look here one label; ask Moments(..., users=...)"
        )
    if not isinstance(features, Tensor) or features.ndim != 2 or not features.is_floating_point():
        kind = f"{features.dtype} {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"features is {kind}; give a tensor of floats, (n, p)")
    check_count(len(features), "features", vault)
    if not math.isfinite(float(features.sum(dtype=torch.float64))):
        raise ValueError("features has values that are not finite; fill in or drop missing ones")


def check_count(count: int, name: str, vault: LabelVault) -> None:
    """Raise ValueError unless there are as many as labels."""
    if count != len(vault):
        raise ValueError(f"{name} has {count} rows and the vault {len(vault)}; give one per label")
