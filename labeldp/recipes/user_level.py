"""User-level privacy: all labels of one user are protected together (Ghazi et al. 2024, LabelDP-Pro, section 6).

    keep at most k rows of every user, not looking at labels; count rows of users with fewer repeatedly, up to k
    randomized response:  each kept label answered once, at ε/m for a user with m of them (published: ε/k)

The vault must be a `UserVault`; its certificate then speaks of all labels of one user.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labeldp.data.storage import digest, load_note, save_labels
from labeldp.learning.fit import Inputs
from labeldp.learning.objectives import Objective, on_answers
from labeldp.private.user_responses import UserResponse
from labeldp.private.user_rows import KeptRows, cap_rows
from labeldp.private.users import UserVault
from labeldp.recipes.common import Fit, check_rows, checkpoint_of, device_of, in_folder
from labeldp.releases import NoisyLabels


def train_on_answers(
    model: nn.Module,
    inputs: Inputs,
    vault: UserVault,
    *,
    epsilon: float,
    fit: Fit,
    cap: int,
    alike: bool = False,
    delta: float = 0.0,
    objective: Callable[[NoisyLabels, torch.device], Objective] = on_answers,
    seed: int = 0,
    folder: Path | None = None,
) -> nn.Module:
    """Ask at most `cap` labels of every user once, at `epsilon` for all of them together, and train on the answers.

    Args:
        cap: how many rows of a user are used; users with fewer count theirs repeatedly, each with its one answer.
        alike: answer every label at ε/cap, as published, instead of ε/m for a user with m rows.
        delta: above 0, exact composition allows a user's many labels more than ε/m each; see `UserResponse`.
        objective: what the answers teach: `on_answers` (published), `forward_corrected` or `debiased`.
        seed: of the choice of rows, which is public.
        folder: keeps answers and checkpoint, so that a killed run resumes without asking again.
    """
    check_rows(model, inputs, vault, vault.num_classes)
    kept = cap_rows(vault.users, cap, seed=seed)
    users = vault.users.take(kept.rows)
    question = UserResponse(epsilon, vault.num_classes, users, cap=cap if alike else None, delta=delta)
    private = ask_users(vault, question, kept, in_folder(folder, "answers.npz"))
    device = device_of(model)
    settings: dict[str, Any] = {**checkpoint_of(folder, private.answers)}
    listed = torch.from_numpy(kept.listed()).to(device)
    return fit(model, rows_of(inputs, kept.rows), objective(private, device), rows=listed, **settings)


def ask_users(vault: UserVault, question: UserResponse, kept: KeptRows, file: Path | None = None) -> NoisyLabels:
    """One answer for every kept row, or the answers in this file from an earlier run of the same question.

    As `recipes.common.ask`; the file keeps answers only, because the question knows their law.
    """
    note = {
        "vault": vault.id,
        "rows asked": digest(kept.rows),
        "users": vault.users.digest(),
        "law": digest(question.epsilons),
        "epsilon": question.user_epsilon,
        "classes": vault.num_classes,
    }
    if file is None or not file.exists():
        private = vault.release(question, kept.rows)
        if file is not None:
            save_labels(file, private, note)
        return private
    earlier = load_note(file)
    odd = sorted(key for key in note if key != "vault" and note[key] != earlier.get(key))
    if odd:
        raise ValueError(f"{file} holds the answers to another question ({', '.join(odd)} differ); use a new folder")
    if earlier["vault"] != vault.id:
        vault.record(question, kept.rows)
    with np.load(file, allow_pickle=False) as arrays:
        return NoisyLabels(question, arrays["answers"])


def rows_of(inputs: Inputs, rows: np.ndarray) -> Inputs:
    """These rows of every input, in this order."""
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    index = torch.from_numpy(np.ascontiguousarray(rows)).to(tensors[0].device)
    chosen: tuple[Tensor, ...] = tuple(tensor[index] for tensor in tensors)
    return chosen if isinstance(inputs, tuple) else chosen[0]
