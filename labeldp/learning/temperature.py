"""Honest probabilities from a head, without a true label: its temperature from the rehearsal and the noisy moment."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Generator, Tensor

from labeldp.learning.heads import Head
from labeldp.learning.moments import Axes, as_tensor
from labeldp.releases import NoisyMoments

_SMALLEST_SCALE, _LARGEST_SCALE = 1e-3, 1e4
# Halvings of the interval of its logarithm: what is left is a millionth.
_HALVINGS = 24
# How far the scale of clusters may be from that of real classes at the least, and where one clustering is all there is.
_LEAST_SPREAD, _UNKNOWN_SPREAD = 0.2, 0.5
# Scores whose softmax is looked at: the sum over all rows is needed to a per cent only.
_CELLS = 1 << 16
_GRID = 97
# Between which `scale_by_answers` looks, a step of it being six per cent.
_SOFTEST, _SHARPEST = 0.05, 20.0


@dataclass(frozen=True)
class Scale:
    """A factor t for softmax(t·scores), and the standard deviation of its logarithm."""

    value: float
    spread: float


def pooled_scale(values: Iterable[float]) -> Scale:
    """Their geometric mean, and how far apart they are.

    >>> pooled_scale([1.0, 1.0, 1.0])
    Scale(value=1.0, spread=0.2)
    """
    logs = np.log(np.fromiter(values, dtype=np.float64))
    spread = max(_LEAST_SPREAD, float(logs.std(ddof=1))) if len(logs) > 1 else _UNKNOWN_SPREAD
    return Scale(math.exp(float(logs.mean())), spread)


def likeliest_scale(scores: Tensor, gain: Tensor) -> float:
    """The t in [10⁻³, 10⁴] that maximises t·gain − Σ_i lse(t·s_i), for scores s (n, K): the log-likelihood of labels
    whose own scores add up to `gain`. Concave in t; the zero of its slope, by halving.

    >>> round(likeliest_scale(torch.tensor([[1.0, 0.0]]), torch.tensor(0.75)), 3)
    1.099
    """
    low, high = math.log(_SMALLEST_SCALE), math.log(_LARGEST_SCALE)
    lowest, highest = (torch.full_like(gain, edge, dtype=torch.float64) for edge in (low, high))
    for _ in range(_HALVINGS):
        middle = (lowest + highest) / 2
        rising = gain > _expected_gain(scores, middle.exp())
        lowest, highest = torch.where(rising, middle, lowest), torch.where(rising, highest, middle)
    return math.exp(float(lowest + highest) / 2)


def softened(scores: Tensor, confidence: float) -> Tensor:
    """t·scores, t ≤ 1 such that the mean largest probability is `confidence`, or less where it was less before.

    For networks that were trained to be sure of their own guesses, and are surer than they are right.

    >>> softened(torch.tensor([[4.0, 0.0]]), 0.75).softmax(dim=1)
    tensor([[0.7500, 0.2500]])
    """
    if not 0 < confidence <= 1:
        raise ValueError(f"confidence={confidence} is no share of rows; give a number above 0 and at most 1")
    low, high = 0.0, 1.0
    if float(torch.softmax(scores, dim=1).amax(dim=1).mean()) <= confidence:
        return scores
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        sure = float(torch.softmax(middle * scores, dim=1).amax(dim=1).mean()) > confidence
        low, high = (low, middle) if sure else (middle, high)
    return (low + high) / 2 * scores


def scale_by_answers(scores: Tensor, evidence: Tensor) -> float:
    """The t for which private answers are likeliest if softmax(t·scores) were the rows' class probabilities.

        t = argmax Σ_i log Σ_c softmax(t·s_i)_c · P(answer_i | c)

    One number from all answers, which were paid for. It is honest where the scores have not seen these rows' answers.

    Args:
        scores: (n, K), not made with these answers.
        evidence: log P(answer | c) of each row, (n, K), up to a constant of the row (`learning.targets.evidence`).
    """
    steps = torch.linspace(math.log(_SOFTEST), math.log(_SHARPEST), _GRID, dtype=torch.float64).exp()
    likely = [
        torch.logsumexp(torch.log_softmax(float(t) * scores.float(), dim=1) + evidence.float(), dim=1).sum()
        for t in steps
    ]
    return float(steps[int(torch.stack(likely).argmax())])


def honest_scale(
    head: Head,
    noisy: NoisyMoments,
    rows: Tensor,
    axes: Axes,
    rehearsed: Scale,
    *,
    constant: int | None = None,
    draws: int = 4,
    part: float = 0.5,
    seed: int = 0,
) -> float:
    """The factor t for which softmax(t·Wφ) are honest probabilities, from the rehearsal and the look together.

    Honest means Σ_i Σ_k p_ik·s_ik = Σ_i s_{i,y_i} for the scores s = Wφ (t maximises the likelihood of the labels), and
    the right side is ⟨W, S⟩: it needs no more of the labels than the moment. With S̃ for S it would praise a W that fits
    the noise. So the noise, whose law is known, is split: for η of the same law as the noise,

        S₁ = S̃ + a·η   and   S₂ = S̃ − η/a

    have uncorrelated errors (independent ones, if Gaussian). W is fitted to S₁ and judged by S₂, as if S₂ were another
    look (coupled bootstrap; Oliveira, Lei and Tibshirani 2021). ⟨W, S₂⟩ has an error of known deviation, which is large
    where ε is small; the rehearsal's t, with its spread, is the prior it is weighed against: the returned t is the
    likeliest under both.

    Args:
        head: how W is found from a moment.
        noisy: the moment.
        rows: the features it was made of, (n, d).
        axes: the eigenbasis of their Gram matrix.
        rehearsed: the scale of the rehearsal.
        constant: as in `ridge`.
        draws: splits of the noise.
        part: a.
        seed: of η and of the rows looked at; public, for nothing is protected by it.
    """
    some = rows[_some(len(rows), max(256, _CELLS // noisy.num_classes), seed).to(rows.device)]
    gains, sizes, scores = [], [], []
    for draw in range(draws if noisy.noise_std > 0 else 1):
        fitted, judge = split_noise(noisy, part, seed + draw)
        weight = head(fitted, rows, axes, constant=constant).to(rows)
        gains.append((weight * as_tensor(judge.value, weight)).sum(dtype=torch.float64))
        sizes.append((weight - weight.mean(dim=0)).double().square().sum())
        scores.append(some @ weight.T)
    gain, error = torch.stack(gains).mean(), torch.stack(sizes).mean().sqrt()
    error = error * noisy.noise_std * math.sqrt(1 + 1 / (part**2 * len(gains)))
    steps = torch.linspace(-6, 6, _GRID, dtype=torch.float64, device=gain.device)
    together, share = torch.cat(scores), len(rows) / (len(some) * len(scores))
    found = torch.stack(
        [_expected_gain(together, t) * share for t in rehearsed.value * (rehearsed.spread * steps).exp()]
    )
    # The rows looked at are some of all: an error of a per cent or so in itself.
    doubt = error.square() + (0.01 * gain).square() + 1e-30
    best = ((found - gain).square() / doubt + steps.square()).argmin()
    return rehearsed.value * math.exp(rehearsed.spread * float(steps[best]))


def split_noise(noisy: NoisyMoments, part: float, seed: int) -> tuple[NoisyMoments, NoisyMoments]:
    """Two moments with uncorrelated noise, of √(1 + a²) and √(1 + 1/a²) times the deviation."""
    drawn = torch.randn(noisy.value.shape, generator=Generator().manual_seed(seed), dtype=torch.float64).numpy()
    noise = (drawn - drawn.mean(axis=0)) * noisy.noise_std
    return (
        replace(noisy, value=noisy.value + part * noise, noise_std=noisy.noise_std * math.hypot(1, part)),
        replace(noisy, value=noisy.value - noise / part, noise_std=noisy.noise_std * math.hypot(1, 1 / part)),
    )


def _expected_gain(scores: Tensor, scale: Tensor) -> Tensor:
    """Σ_i Σ_k p_ik·s_ik with p = softmax(t·s)."""
    weights = torch.softmax(scores * scale.to(scores), dim=1)
    return (weights * scores).sum(dtype=torch.float64)


def _some(count: int, most: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=Generator().manual_seed(seed))[:most]
