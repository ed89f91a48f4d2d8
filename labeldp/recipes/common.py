"""What the recipes share: the training algorithm as an argument, and answers kept so they are not asked twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from labeldp.core.events import event_to_json
from labeldp.core.vault import LabelVault, Mechanism
from labeldp.data.storage import digest, load_labels, load_note, save_labels
from labeldp.learning.evidence import Objective
from labeldp.learning.train import Inputs, predict
from labeldp.mechanisms.responses import PriorResponse, RandomizedResponse
from labeldp.releases import NoisyLabels

Out = TypeVar("Out")


class Fit(Protocol):
    """`labeldp.learning.train.fit` with epochs, optimiser and so on already bound."""

    def __call__(self, model: nn.Module, inputs: Inputs, objective: Objective, /, **settings: Any) -> nn.Module:
        """Train and return the model."""
        ...


def device_of(model: nn.Module) -> torch.device:
    """Where the model lives."""
    return next(model.parameters()).device


def check_rows(model: nn.Module, inputs: Inputs, vault: LabelVault, outputs: int) -> None:
    """Raise ValueError unless there is one finite input per label and the model maps them to `outputs` numbers.

    Runs the model on one row before anything is asked: a mistake here must not cost privacy.
    """
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    for number, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"inputs[{number}] is a {type(tensor).__name__}; give a torch tensor")
        if len(tensor) != len(vault):
            raise ValueError(f"inputs[{number}] has {len(tensor)} rows and the vault {len(vault)}; give one per label")
    if len(vault):
        shape = tuple(predict(model, tuple(x[:1] for x in tensors)).shape)
        if shape != (1, outputs):
            raise ValueError(f"the model maps one row to shape {shape}; it must be (1, {outputs}) for this vault")


def ask(
    vault: LabelVault,
    mechanism: Mechanism[NoisyLabels],
    rows: npt.NDArray[np.intp] | None = None,
    kept: Path | None = None,
) -> NoisyLabels:
    """One release, or the one kept in this file from an earlier run: a resumed recipe must not draw twice.

    The file is written before the answers are used; it holds answers and their public law, no label. It must be of
    the same question about the same rows. Kept answers of another vault (an earlier process) are paid for again here,
    so that this vault's certificate covers them too.
    """
    return ask_once(vault, mechanism, kept, _note(vault, mechanism, rows), save_labels, load_labels, rows)


def ask_once(
    vault: LabelVault,
    mechanism: Mechanism[Out],
    kept: Path | None,
    note: dict[str, Any],
    save: Callable[[Path, Out, dict[str, Any]], None],
    load: Callable[[Path], Out],
    rows: npt.NDArray[np.intp] | None = None,
) -> Out:
    """Release and keep, or find what was kept for the same note; `ask` for any kind of release."""
    if kept is None or not kept.exists():
        released = vault.release(mechanism, rows)
        if kept is not None:
            save(kept, released, note)
        return released
    earlier = load_note(kept)
    odd = sorted(key for key in note if key != "vault" and note[key] != earlier.get(key))
    if odd:
        raise ValueError(f"{kept} holds the answers to another question ({', '.join(odd)} differ); use a new folder")
    if earlier["vault"] != note["vault"]:
        vault.record(mechanism, rows)
    return load(kept)


def _note(vault: LabelVault, mechanism: Mechanism[NoisyLabels], rows: npt.NDArray[np.intp] | None) -> dict[str, Any]:
    return {**question_note(vault, mechanism), "rows asked": "all" if rows is None else digest(rows)}


def question_note(vault: LabelVault, mechanism: Mechanism[Any]) -> dict[str, Any]:
    """What every kept answer is bound to, as plain JSON values; "vault" says whose it was."""
    return {
        "vault": vault.id,
        "mechanism": type(mechanism).__name__,
        "event": event_to_json(mechanism.event()),
        "rows of the vault": len(vault),
        "classes": vault.num_classes,
    }


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
    check_rows(model, inputs, vault, vault.num_classes)
    private = ask(vault, question, kept=in_folder(folder, "answers.npz"))
    settings = checkpoint_of(folder, private.responses)
    return fit(model, inputs, objective(private, device_of(model)), **settings)


def checkpoint_of(folder: Path | None, *responses: np.ndarray) -> dict[str, Path]:
    """The checkpoint setting of a fit: a file named after the answers, so that no other answers' model is resumed."""
    return {} if folder is None else {"checkpoint": folder / f"model-{digest(*responses)}.pt"}


def response(epsilon: float, vault: LabelVault, prior: npt.ArrayLike | None) -> Mechanism[NoisyLabels]:
    """Randomized response, within the likely classes of a public prior if there is one."""
    return RandomizedResponse(epsilon, vault.num_classes) if prior is None else PriorResponse(epsilon, prior)


def in_folder(folder: Path | None, name: str) -> Path | None:
    """A file in the run's folder, which is made when it is missing; None without a folder."""
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name
