"""Give a head honest probabilities where a class is rare: one slope, and a level of every class, from the moment.

A head for accuracy has one factor on all its scores (`labeldp.learning.heads.honest_scale`). Where a class has one row
in two hundred, that factor is settled by the frequent class, and the probabilities of the rare one hardly vary from row
to row: they rank rows well, and whoever weighs the classes differently still finds all rows on one side.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from labeldp.learning.heads import Axes, Head, as_tensor, split_noise
from labeldp.releases import NoisyMoments

# Scores whose softmax is evaluated at every step.
_CELLS = 1 << 17
_STEPS = 50
# Of a slope that nothing else would hold, where there is no noise.
_KAPPA = 1e-6
# How far a logit may go in one of Newton's steps.
_FURTHEST = 4.0


def levelled(
    head: Head,
    noisy: NoisyMoments,
    rows: Tensor,
    axes: Axes,
    constant: int,
    *,
    draws: int = 4,
    part: float = 0.5,
    seed: int = 0,
) -> tuple[Tensor, float]:
    """Return weights (K, d) with the constant's column fitted anew, and the slope a of the others.

    With scores s = Wφ of a head W without its constant, and φ_c the constant's feature, the likelihood of the labels
    under logits a·s_k + b_k·φ_c is

        a·⟨W, S⟩ + Σ_k b_k·S_kc − Σ_i lse_k(a·s_ik + b_k·φ_ic),

    in which the labels appear through their moment S alone, so that maximising it over a and b is post-processing. As
    in `honest_scale`, a W is fitted to S̃ + part·η and judged by S̃ − η/part, η distributed as the noise: judged by the
    S̃ it came from, it would be praised for fitting the noise. A class whose sum is lost in the noise counts as one
    deviation of it. The sum over i is estimated from some rows, and their mean score, by the classes' shares, is
    corrected to that of all rows (difference estimator).

    Where a head separates the classes, noise may ask for more than any slope reaches, and slope and levels would grow
    until all rows are of one class. So a slope costs ½κa² per row, κ the variance of the gain: then it stays of the
    order of one over the gain's deviation.

    Args:
        head: how W is found from a moment.
        noisy: the moment.
        rows: the features it was made of, (n, d).
        axes: the eigenbasis of their Gram matrix.
        constant: the column of the constant.
        draws, part, seed: as in `honest_scale`.
    """
    order = torch.randperm(len(rows), generator=Generator().manual_seed(seed))
    some = rows[order[: max(256, _CELLS // (draws * noisy.num_classes))].to(rows.device)]

    def bare(moment: NoisyMoments) -> Tensor:
        weight = head(moment, rows, axes, constant=constant).double()
        weight[:, constant] = 0.0
        return weight - weight.mean(dim=0)

    sums = as_tensor(noisy.value, some.double())[:, constant].clamp_min(max(noisy.noise_std, 1e-9))
    shares = sums / sums.sum()
    # Means over all rows of what all have in common: the rows sampled differ in it by more than a rare class adds.
    usual = as_tensor(noisy.total, shares) / noisy.num_rows - some.double().mean(dim=0)
    gains, sizes, scores = [], [], []
    for draw in range(draws if noisy.noise_std > 0 else 1):
        fitted, judge = split_noise(noisy, part, seed + draw)
        weight = bare(fitted)
        gains.append((weight * as_tensor(judge.value, weight)).sum() / noisy.num_rows - shares @ weight @ usual)
        sizes.append(weight.square().sum())
        scores.append(some.double() @ weight.T)
    together, gain, level = torch.cat(scores), torch.stack(gains).mean(), some[:, constant].double().repeat(len(scores))
    # In units in which a slope of 1 is neither much nor little.
    unit = together.std().clamp_min(1e-12)
    error = noisy.noise_std * math.sqrt((1 + 1 / part**2 / len(gains)) * float(torch.stack(sizes).mean()))
    kappa = max(_KAPPA, (error / noisy.num_rows / float(unit)) ** 2)
    slope, levels = _likeliest(together / unit, level, gain / unit, shares * level.mean(), kappa)
    # A slope below zero would say that the head is wrong throughout: its rows are then all alike.
    found = max(slope / float(unit), 0.0)
    weight = found * bare(noisy)
    weight[:, constant] = levels
    return weight.to(rows), found


def _likeliest(scores: Tensor, level: Tensor, gain: Tensor, sums: Tensor, kappa: float) -> tuple[float, Tensor]:
    """Maximise a·gain + Σ_k b_k·sums_k − mean_i lse_k(a·s_ik + b_k·c_i) − ½κa² by Newton's steps, halved as needed."""

    def loss(slope: Tensor, levels: Tensor) -> Tensor:
        lse = (slope * scores + levels * level[:, None]).logsumexp(dim=1).mean()
        return lse - slope * gain - levels @ sums + 0.5 * kappa * slope**2

    # From where all rows are alike, with the right sums.
    slope, levels = torch.zeros_like(gain), (sums / sums.sum()).log() / level.mean()
    now = loss(slope, levels)
    for _ in range(_STEPS):
        likely = torch.softmax(slope * scores + levels * level[:, None], dim=1)
        mean = (likely * scores).sum(dim=1)
        pull = torch.cat([(mean.mean() - gain + kappa * slope)[None], (likely * level[:, None]).mean(dim=0) - sums])
        along = (likely * scores.square()).sum(dim=1) - mean.square()
        across = (likely * (scores - mean[:, None]) * level[:, None]).mean(dim=0)
        weighted = likely * level[:, None]
        curved = torch.diag((weighted * level[:, None]).mean(dim=0)) - weighted.T @ weighted / len(level)
        top = torch.cat([(along.mean() + kappa)[None], across])
        curvature = torch.cat([top[None], torch.cat([across[:, None], curved], dim=1)])
        # Levels that all rise together change nothing: the smallest step that does what is needed.
        step = torch.linalg.pinv(curvature, hermitian=True, rtol=1e-12) @ pull
        # Where rows are sure of their class nothing curves, and a whole step would leave for good.
        moved = (step[0] * scores + step[1:] * level[:, None]).abs().amax()
        size = min(1.0, _FURTHEST / max(float(moved), 1e-300))
        while size > 1e-6 and not loss(slope - size * step[0], levels - size * step[1:]) <= now:
            size /= 2
        slope, levels = slope - size * step[0], levels - size * step[1:]
        before, now = now, loss(slope, levels)
        if size <= 1e-6 or before - now < 1e-12:
            break
    return float(slope), levels
