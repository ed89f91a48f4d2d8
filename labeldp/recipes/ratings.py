"""Ratings as private labels: learnt as classes, predicted as numbers (MovieLens; Ghazi et al. 2021, Table 3).

    LP-MST on the K classes 1 … K;   predicted rating = Σ_c softmax(logits)_c · c;   measured by its RMSE

Who rated what is public, the rating is the label. A model with a score per class knows more than one number, and its
mean rating has a smaller squared error than its likeliest class.

    data = movielens_1m()                                # the real file, found through LABELDP_DATA
    model = train(network(data), pairs(data.train), data.vault, epsilon=2.0, fit=fit)
    root_mean_square_error(expected_rating(predict(model, pairs(data.test))), 1 + data.test_labels.values)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labeldp.core.vault import LabelVault
from labeldp.learning.train import Inputs
from labeldp.models.zoo import collaborative_filter
from labeldp.recipes import lp_mst
from labeldp.recipes.arguments import Fit, checked


@checked
def train(
    model: nn.Module,
    inputs: Inputs,
    vault: LabelVault,
    *,
    epsilon: float,
    fit: Fit | Sequence[Fit],
    shares: Sequence[float] = (1.0,),
    temperature: float = 0.5,
    seed: int = 0,
    folder: Path | None = None,
) -> nn.Module:
    """Train a model with one score per rating at `epsilon` in all: LP-1ST, or LP-MST with several `shares`.

    The arguments are those of `lp_mst.train`; responses are taken at their word, as published.
    """
    settings: dict[str, Any] = {"shares": shares, "temperature": temperature, "seed": seed, "folder": folder}
    return lp_mst.train(model, inputs, vault, epsilon=epsilon, fit=fit, **settings)


def network(data: Any) -> nn.Module:
    """Return the collaborative filter for these pairs of user and item."""
    return collaborative_filter(data.train.num_users, data.train.num_items, data.num_classes)


def pairs(given: Any, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Return users and items as tensors on the device."""
    return torch.from_numpy(given.users).to(device), torch.from_numpy(given.items).to(device)


def expected_rating(logits: Tensor, ratings: Tensor | None = None) -> Tensor:
    """Return the mean rating under the model, Σ_c softmax(logits)_c · rating_c, (n,). Ratings are 1 … K when None.

    >>> expected_rating(torch.zeros(1, 5)).round(decimals=3)
    tensor([3.])
    """
    if ratings is None:
        ratings = torch.arange(1, logits.shape[-1] + 1)
    return torch.softmax(logits.float(), dim=-1) @ ratings.to(logits.device, torch.float32)


def root_mean_square_error(predicted: Tensor, truth: Tensor) -> float:
    """Return √ of the mean squared difference."""
    return (predicted - truth.to(predicted.device, predicted.dtype)).square().mean().sqrt().item()
