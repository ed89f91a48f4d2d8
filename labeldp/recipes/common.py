"""What the recipes share: the training algorithm as an argument, and answers kept so they are not asked twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch import nn

from labeldp.data.storage import load_labels, save_labels
from labeldp.learning.fit import Inputs
from labeldp.learning.objectives import Objective
from labeldp.private.mechanism import Mechanism
from labeldp.private.randomizers import PriorResponse, RandomizedResponse
from labeldp.private.vault import LabelVault
from labeldp.releases import NoisyLabels


class Fit(Protocol):
    """`labeldp.learning.fit.fit` with epochs, optimiser and so on already bound."""

    def __call__(self, model: nn.Module, inputs: Inputs, objective: Objective, /, **settings: Any) -> nn.Module:
        """Train and return the model."""
        ...


def device_of(model: nn.Module) -> torch.device:
    """Where the model lives."""
    return next(model.parameters()).device


def check_rows(inputs: Inputs, vault: LabelVault) -> None:
    """Raise ValueError unless there is one input per label."""
    for number, tensor in enumerate(inputs if isinstance(inputs, tuple) else (inputs,)):
        if len(tensor) != len(vault):
            raise ValueError(f"inputs[{number}] has {len(tensor)} rows and the vault {len(vault)}; give one per label")


def ask(
    vault: LabelVault, mechanism: Mechanism[NoisyLabels], rows: Any = None, kept: Path | None = None
) -> NoisyLabels:
    """One release, or the one kept in this file from an earlier run: a resumed recipe must not pay twice.

    The file is written before the answers are used. It holds answers and their public law, no label.
    """
    if kept is not None and kept.exists():
        return load_labels(kept)
    private = vault.release(mechanism, rows)
    if kept is not None:
        save_labels(kept, private)
    return private


def train_once(
    question: Mechanism[NoisyLabels],
    objective: Callable[[NoisyLabels, torch.device], Objective],
    model: nn.Module,
    inputs: Inputs,
    vault: LabelVault,
    fit: Fit,
    folder: Path | None,
) -> nn.Module:
    """Ask every label once and fit the model to the answers. With a folder, a killed run can be resumed."""
    check_rows(inputs, vault)
    private = ask(vault, question, kept=in_folder(folder, "answers.npz"))
    settings = {} if folder is None else {"checkpoint": folder / "model.pt"}
    return fit(model, inputs, objective(private, device_of(model)), **settings)


def response(epsilon: float, vault: LabelVault, prior: npt.ArrayLike | None) -> Mechanism[NoisyLabels]:
    """Randomized response, within the likely classes of a public prior if there is one."""
    return RandomizedResponse(epsilon, vault.num_classes) if prior is None else PriorResponse(epsilon, prior)


def in_folder(folder: Path | None, name: str) -> Path | None:
    """A file in the run's folder, which is made when it is missing; None without a folder."""
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name
