"""Ratings learnt as classes and predicted as numbers (Ghazi et al. 2021, Table 3)."""

from __future__ import annotations

import torch
from torch import Tensor


def expected_rating(logits: Tensor, ratings: Tensor | None = None) -> Tensor:
    """Σ_c softmax(logits)_c · rating_c, (n,): the mean rating under the model. Ratings are 1 … K when None.

    >>> expected_rating(torch.zeros(1, 5)).round(decimals=3)
    tensor([3.])
    """
    if ratings is None:
        ratings = torch.arange(1, logits.shape[-1] + 1)
    return torch.softmax(logits.float(), dim=-1) @ ratings.to(logits.device, torch.float32)


def root_mean_square_error(predicted: Tensor, truth: Tensor) -> float:
    """√ of the mean squared difference."""
    return (predicted - truth.to(predicted.device, predicted.dtype)).square().mean().sqrt().item()
