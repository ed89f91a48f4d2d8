"""LP-1ST: train on randomized response (Ghazi et al. 2021).

    ỹ = y with probability e^ε / (e^ε + K − 1), any other class otherwise; then ordinary training on ỹ.

Mixup and early decay of the learning rate are what keeps the network from learning the noise.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from labeldp.core.vault import LabelVault
from labeldp.learning.evidence import on_responses
from labeldp.learning.train import Inputs
from labeldp.recipes.common import Fit, response, train_once


def train(
    model: nn.Module, inputs: Inputs, vault: LabelVault, *, epsilon: float, fit: Fit, folder: Path | None = None
) -> nn.Module:
    """Ask every label once at `epsilon` and train on the answers. With a folder, a killed run can be resumed."""
    return train_once(response(epsilon, vault, None), on_responses, model, inputs, vault, fit, folder)
