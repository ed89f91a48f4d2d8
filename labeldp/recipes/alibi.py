"""ALIBI: Laplace noise on the one-hot label, then Bayes with the model's own prediction as prior (Malek et al. 2021).

    o = onehot(y) + Laplace(2/ε) per coordinate;   target ∝ p_model(c) · P(o | c), recomputed at every step

The noise is drawn once, so ε is paid once. The model enters only as a prior over answers already released.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from labeldp.core.vault import LabelVault
from labeldp.learning.evidence import self_posterior
from labeldp.learning.train import Inputs
from labeldp.mechanisms.vectors import LaplaceOneHot
from labeldp.recipes.common import Fit, train_once


def train(
    model: nn.Module, inputs: Inputs, vault: LabelVault, *, epsilon: float, fit: Fit, folder: Path | None = None
) -> nn.Module:
    """Ask every label once at `epsilon` and train on the posterior. With a folder, a killed run can be resumed."""
    question = LaplaceOneHot(epsilon, vault.num_classes)
    return train_once(question, self_posterior, model, inputs, vault, fit, folder)
