"""Train on the likelihood of randomized response: forward correction with the exact law (Patrini et al. 2017).

    loss = −log Σ_c p_model(c) P(ỹ | c)

Bounded, and consistent: its minimiser over all models is the true conditional class probability.
"""

from __future__ import annotations

from pathlib import Path

import numpy.typing as npt
from torch import nn

from labeldp.core.vault import LabelVault
from labeldp.learning.evidence import forward_corrected
from labeldp.learning.train import Inputs
from labeldp.recipes.common import Fit, response, train_once


def train(
    model: nn.Module,
    inputs: Inputs,
    vault: LabelVault,
    *,
    epsilon: float,
    fit: Fit,
    prior: npt.ArrayLike | None = None,
    folder: Path | None = None,
) -> nn.Module:
    """Ask every label once at `epsilon`, within the likely classes of a public `prior` if any; maximise likelihood."""
    return train_once(response(epsilon, vault, prior), forward_corrected, model, inputs, vault, fit, folder)
