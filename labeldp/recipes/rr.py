"""LP-1ST: train on randomized response (Ghazi et al. 2021).

    ỹ = y with probability e^ε / (e^ε + K − 1), any other class otherwise; then ordinary training on ỹ.

Mixup and early decay of the learning rate are what keeps the network from learning the noise.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from labeldp.learning.fit import Inputs
from labeldp.learning.objectives import on_answers
from labeldp.private.randomizers import RandomizedResponse
from labeldp.private.vault import LabelVault
from labeldp.recipes.common import Fit, ask, check_rows, in_folder, train_on


def train(
    model: nn.Module, inputs: Inputs, vault: LabelVault, *, epsilon: float, fit: Fit, folder: Path | None = None
) -> nn.Module:
    """Ask every label once at `epsilon` and train on the answers. With a folder, a killed run can be resumed."""
    check_rows(inputs, vault)
    private = ask(vault, RandomizedResponse(epsilon, vault.num_classes), kept=in_folder(folder, "answers.npz"))
    return train_on(on_answers, private, model, inputs, fit, folder)
