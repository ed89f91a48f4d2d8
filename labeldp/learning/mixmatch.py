"""Targets and loss of MixMatch (Berthelot et al. 2019) as DivideMix uses them (Li et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax


def refined(labels: Tensor, right: Tensor, guesses: Tensor, temperature: float) -> Tensor:
    """sharpen(w·label + (1 − w)·guess), rows (n, K), w (n,)."""
    return sharpened(torch.lerp(guesses, labels, right[:, None]), temperature)


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    """p^{1/T}, made to sum to 1.

    >>> sharpened(torch.tensor([[0.6, 0.4]]), 0.5).round(decimals=4)
    tensor([[0.6923, 0.3077]])
    """
    # In logarithms: small probabilities to a high power would vanish together.
    return torch.softmax(probabilities.clamp_min(1e-30).log() / temperature, dim=1)


def mixed_loss(logits: Tensor, targets: Tensor, labelled: int, strength: float | Tensor, prior: Tensor) -> Tensor:
    """Cross-entropy of the first `labelled` rows, λ_u · mean squared error of the others, and the penalty on classes.

    The penalty Σ_c prior_c·log(prior_c / mean prediction_c) keeps the networks from giving all rows to one class.
    """
    logs = log_softmax(logits, dim=1)
    likelihood = -(targets[:labelled] * logs[:labelled]).sum(dim=1).mean()
    distance = (logs[labelled:].exp() - targets[labelled:]).square().mean()
    mean = logs.exp().mean(dim=0).clamp_min(1e-12)
    penalty = (torch.xlogy(prior, prior) - prior * mean.log()).sum()
    return likelihood + strength * distance + penalty
