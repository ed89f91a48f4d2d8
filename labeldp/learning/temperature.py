"""Honest probabilities from a head, without a true label: its temperature from the noisy moment itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Generator, Tensor

from labeldp.learning.heads import Head
from labeldp.learning.moments import Axes, as_tensor
from labeldp.releases import NoisyMoments

_LARGEST_SCALE = 1e4
# Halvings of the interval: its length is then a rounding error.
_HALVINGS = 50


def honest_scale(
    head: Head,
    noisy: NoisyMoments,
    rows: Tensor,
    axes: Axes,
    *,
    constant: int | None = None,
    draws: int = 2,
    part: float = 0.5,
    seed: int = 0,
) -> float:
    """The factor t ≥ 0 for which softmax(t·Wφ) is likeliest, given the labels that are only known through the moment.

    The log-likelihood of all labels, Σ_i log softmax(t·Wφ_i)_{y_i} = t⟨W, S⟩ − Σ_i lse(t·Wφ_i), needs no more of them
    than S. With S̃ for S it would praise a W that fits the noise. So the noise, whose law is known, is split: for
    η of the same law as the noise,

        S₁ = S̃ + a·η   and   S₂ = S̃ − η/a

    have uncorrelated errors (independent ones, if Gaussian). W is fitted to S₁ and judged by S₂, which is as if S₂
    were another look (coupled bootstrap; Oliveira, Lei and Tibshirani 2021). S₁ is noisier than S̃ by √(1 + a²), so the
    factor errs to the side of doubt. The likelihood is concave in t.

    Args:
        head: how W is found from a moment.
        noisy: the moment.
        rows: the features it was made of, (n, d).
        axes: the eigenbasis of their Gram matrix.
        constant: as in `ridge`.
        draws: splits of the noise; their likelihoods are added up.
        part: a.
        seed: of η; public, for nothing is protected by it.
    """
    gains, scores = [], []
    for draw in range(draws if noisy.noise_std > 0 else 1):
        fitted, judge = split_noise(noisy, part, seed + draw)
        weight = head(fitted, rows, axes, constant=constant).to(rows)
        gains.append((weight * as_tensor(judge.value, weight)).sum(dtype=torch.float64))
        scores.append(rows @ weight.T)
    return likeliest_scale(torch.cat(scores), torch.stack(gains).sum())


def split_noise(noisy: NoisyMoments, part: float, seed: int) -> tuple[NoisyMoments, NoisyMoments]:
    """Two moments with uncorrelated noise, of √(1 + a²) and √(1 + 1/a²) times the deviation."""
    drawn = torch.randn(noisy.value.shape, generator=Generator().manual_seed(seed), dtype=torch.float64).numpy()
    noise = (drawn - drawn.mean(axis=0)) * noisy.noise_std
    return (
        replace(noisy, value=noisy.value + part * noise, noise_std=noisy.noise_std * float(np.hypot(1, part))),
        replace(noisy, value=noisy.value - noise / part, noise_std=noisy.noise_std * float(np.hypot(1, 1 / part))),
    )


def likeliest_scale(scores: Tensor, gain: Tensor) -> float:
    """The t in [0, 10⁴] that maximises t·gain − Σ_i lse(t·s_i), for scores s (n, K): its slope's zero, by halving.

    >>> likeliest_scale(torch.tensor([[1.0, 0.0]]), torch.tensor(0.0))
    0.0
    """
    low, high = torch.zeros_like(gain), torch.full_like(gain, _LARGEST_SCALE)
    for step in range(_HALVINGS):
        # First by the size: the answer may be 3 or 3000.
        middle = (low + high) / 2 if step > 20 else ((low + 1e-3) * (high + 1e-3)).sqrt()
        middle = torch.minimum(torch.maximum(middle, low), high)
        rising = _slope(scores, gain, middle) > 0
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    return float(low)


def _slope(scores: Tensor, gain: Tensor, scale: Tensor) -> Tensor:
    weights = torch.softmax(scores * scale.to(scores.dtype), dim=1)
    return gain - (weights * scores).sum(dtype=torch.float64)
