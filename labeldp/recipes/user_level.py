"""User-level privacy: all labels of one user are protected together (Ghazi et al. 2024, LabelDP-Pro, section 6).

    keep at most k rows of every user, not looking at labels; count rows of users with fewer repeatedly, up to k
    randomized response:  each kept label answered once, at ε/m for a user with m of them (published: ε/k)
    gradients:            v_u = clip(mean gradient of the user's k rows);  g̃ = (Σ_{u ∈ B} v_u + N(0, s²I)) / E|B|

The vault must be a `UserVault`; its certificate then speaks of all labels of one user.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labeldp.budgets.calibrate import meter
from labeldp.core.events import Event
from labeldp.data.storage import digest, load_note, save_labels
from labeldp.learning.descend import descend
from labeldp.learning.evidence import Objective, on_responses
from labeldp.learning.train import Inputs, MakeOptimizer, Schedule, constant, sgd
from labeldp.mechanisms.gradients.layers import Loss, cross_entropy
from labeldp.mechanisms.gradients.per_example import refuse_batch_norm
from labeldp.mechanisms.gradients.sums import NormBound
from labeldp.mechanisms.gradients.users import UserGradientSum
from labeldp.mechanisms.users import KeptRows, UserResponse, UserVault, cap_rows
from labeldp.recipes.common import Fit, check_rows, checkpoint_of, device_of, in_folder
from labeldp.recipes.denoisers import Batches, Projector, Secret, alt_conv
from labeldp.recipes.labeldp_pro import Goal, Progress, Report
from labeldp.recipes.prepaid import Run, check_inputs, described, optimizer_in_words
from labeldp.releases import NoisyLabels


def train_on_responses(
    model: nn.Module,
    inputs: Inputs,
    vault: UserVault,
    *,
    epsilon: float,
    fit: Fit,
    cap: int,
    alike: bool = False,
    delta: float = 0.0,
    objective: Callable[[NoisyLabels, torch.device], Objective] = on_responses,
    seed: int = 0,
    folder: Path | None = None,
) -> nn.Module:
    """Ask at most `cap` labels of every user once, at `epsilon` for all of them together, and train on the answers.

    Args:
        cap: how many rows of a user are used; users with fewer count theirs repeatedly, each with its one answer.
        alike: answer every label at ε/cap, as published, instead of ε/m for a user with m rows.
        delta: above 0, exact composition allows a user's many labels more than ε/m each; see `UserResponse`.
        objective: what the answers teach: `on_responses` (published), `forward_corrected` or `debiased`.
        seed: of the choice of rows, which is public.
        folder: keeps answers and checkpoint, so that a killed run resumes without asking again.
    """
    check_rows(model, inputs, vault, vault.num_classes)
    kept = cap_rows(vault.users, cap, seed=seed)
    users = vault.users.take(kept.rows)
    question = UserResponse(epsilon, vault.num_classes, users, cap=cap if alike else None, delta=delta)
    private = ask_users(vault, question, kept, in_folder(folder, "answers.npz"))
    device = device_of(model)
    settings: dict[str, Any] = {**checkpoint_of(folder, private.responses)}
    listed = torch.from_numpy(kept.listed()).to(device)
    return fit(model, rows_of(inputs, kept.rows), objective(private, device), rows=listed, **settings)


def train_on_gradients(
    model: nn.Module,
    inputs: Inputs,
    vault: UserVault,
    *,
    delta: float,
    cap: int,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    batch_users: int = 1024,
    bound: NormBound | None = None,
    denoiser: Secret | None = None,
    loss: Loss = cross_entropy,
    optimizer: MakeOptimizer | None = None,
    schedule: Schedule | None = None,
    average: float = 0.0,
    seed: int = 0,
    precision: torch.dtype | None = None,
    folder: Path | None = None,
    every: int | None = None,
    report: Report | None = None,
) -> nn.Module:
    """LabelDP-Pro with users in place of rows; `denoiser=no_op()` is DP-SGD. Settings as in `labeldp_pro.train`.

    Every step the vault draws a secret batch of users, each with probability batch_users/U. The projection's public
    rows are drawn from the resampled rows, where every user counts `cap` times, as in the mean that is estimated.

    Args:
        cap: how many rows of a user are used; see `cap_rows`.
        epochs: passes over the users.
        batch_users: users in a batch, on average; the sum is divided by it.
        bound: of one user's vector, the gradient of its mean loss; `NormBound(1.0)` when None.
        denoiser: `alt_conv()` when None. Only secret batches: named ones would not be amplified.
    """
    denoiser, bound = denoiser or alt_conv(), bound or NormBound(1.0)
    optimizer, schedule = optimizer or sgd(0.1, momentum=0.0, weight_decay=0.0), schedule or constant()
    _check(model, inputs, vault, batch_users, denoiser)
    kept = cap_rows(vault.users, cap, seed=seed)
    rows, users, rate = rows_of(inputs, kept.rows), vault.users.take(kept.rows), batch_users / len(vault.users)
    batches = Batches(None, (rows_of(rows, kept.listed()),), rate, seed)
    goal = Goal(delta, epsilon, noise_multiplier, _length(rate, epochs, steps))
    settings = {
        "recipe": "user_level", "goal": goal, "users": vault.users.digest(), "cap": cap, "batch_users": batch_users,
        "bound": bound, "denoiser": denoiser, "loss": loss, "optimizer": optimizer_in_words(optimizer, schedule),
        "average": average, "seed": seed,
    }  # fmt: skip
    ask = partial(
        UserGradientSum, model, rows, users, bound, rate=rate, weights=kept.repeats / cap, loss=loss,
        precision=precision,
    )  # fmt: skip
    with Run(folder, {} if folder is None else described(model, inputs, vault, **settings)) as run:
        noise, times = goal.terms(lambda noise: ask(noise_std=noise).event(), bound, rate, run.terms)
        question = ask(noise_std=noise)
        lease = vault.lease(question, times, kept.rows, counter=run.counter)
        project = Projector(model, batches.parts[0], batches, denoiser, batch_users, loss, bound.radius)
        tell = None if report is None else _reporter(report, question.event(), times, delta, batches, project)

        def gradient(step: int) -> Tensor | None:
            noisy = run.query(step, lease)
            return None if noisy is None else project(noisy.to(device_of(model)), step)

        return descend(
            model, gradient, steps=times, optimizer=optimizer, schedule=schedule, average=average, kept=run.kept,
            every=every or batches.per_epoch, report=tell,
        )  # fmt: skip


def _check(model: nn.Module, inputs: Inputs, vault: UserVault, batch_users: int, denoiser: Secret) -> None:
    """Refuse what cannot be trained, before anything is spent."""
    refuse_batch_norm(model)
    check_rows(model, inputs, vault, vault.num_classes)
    check_inputs(inputs, vault)
    if not isinstance(denoiser, Secret):
        raise ValueError(f"denoiser is {denoiser!r}, which names its batches; users take no_op, alt_conv or alt_rows")
    if type(batch_users) is not int or not 1 <= batch_users <= len(vault.users):
        raise ValueError(
            f"batch_users={batch_users} does not fit {len(vault.users)} users; give a number from 1 to that"
        )


def _length(rate: float, epochs: float | None, steps: int | None) -> int | None:
    """The number of steps: given, or so many passes over the users; None where ε and noise decide."""
    if epochs is not None and steps is not None:
        raise ValueError(f"epochs={epochs} and steps={steps} are two lengths; give one of them")
    length = steps
    if epochs is not None:
        length = math.ceil(epochs / rate - 1e-9) if 0 < epochs < math.inf else 0
    if length is not None and (type(length) is not int or length < 1):
        raise ValueError(f"epochs={epochs}, steps={steps} is not a length; give at least one step")
    return length


def _reporter(
    report: Report, event: Event, times: int, delta: float, batches: Batches, project: Projector
) -> Callable[[int], None]:
    begun, spent = time.perf_counter(), meter(event, times, delta)

    def tell(step: int) -> None:
        gap = None if project.gap is None else float(project.gap)
        report(Progress(step, times, batches.passes(step), spent(step), gap, time.perf_counter() - begun))

    return tell


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
