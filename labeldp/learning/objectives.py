"""What to minimise: functions from logits and row numbers to one loss per row.

Each is built once from a release, keeps its tensors on the device, and is called with the rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from labeldp.learning.targets import debiased_loss, evidence, forward_loss, posterior, unbiased_labels
from labeldp.releases import NoisyLabels

# Logits (b, K) of the rows numbered (b,) → losses (b,).
Objective = Callable[[Tensor, Tensor], Tensor]


def on_classes(classes: Tensor) -> Objective:
    """Cross-entropy with one class per row, (n,): private answers taken at their word."""
    return lambda logits, rows: cross_entropy(logits, classes[rows], reduction="none")


def on_answers(noisy: NoisyLabels, device: torch.device | str = "cpu") -> Objective:
    """Cross-entropy with the private answers taken at their word (rely on mixup or few epochs against the noise)."""
    return on_classes(torch.from_numpy(noisy.hard()).to(device))


def on_values(values: Tensor, loss: str = "squared") -> Objective:
    """Squared or absolute error of one number per row, (n,)."""
    if loss not in {"squared", "absolute"}:
        raise ValueError(f"loss={loss!r} is not known; give 'squared' or 'absolute'")
    power = 2 if loss == "squared" else 1
    return lambda outputs, rows: (outputs.squeeze(-1) - values[rows]).abs() ** power


def forward_corrected(noisy: NoisyLabels, device: torch.device | str = "cpu") -> Objective:
    """The likelihood of the private answers; see `targets.forward_loss`."""
    seen = evidence(noisy, device)
    return lambda logits, rows: forward_loss(logits, seen[rows])


def debiased(noisy: NoisyLabels, device: torch.device | str = "cpu") -> Objective:
    """Unbiased for the loss on true labels; see `targets.debiased_loss`."""
    weights = unbiased_labels(noisy, device)
    return lambda logits, rows: debiased_loss(logits, weights[rows])


def self_posterior(noisy: NoisyLabels, device: torch.device | str = "cpu") -> Objective:
    """Cross-entropy with the posterior of the answers under the model's own current prediction as prior.

    ALIBI's step (Malek et al. 2021): t = softmax(log P(answer | ·) + log p_model), held fixed for the gradient.
    """
    seen = evidence(noisy, device)

    def loss(logits: Tensor, rows: Tensor) -> Tensor:
        predicted = log_softmax(logits, dim=-1)
        targets = posterior(seen[rows], predicted.detach())
        return -(targets * predicted).sum(dim=-1)

    return loss
