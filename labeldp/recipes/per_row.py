"""One private response per row, then training on the responses: RR, forward, debiased, ALIBI, LDP-SSL, LP-RR-SGD.

Each is one call of `train` with the two arguments that differ, what is drawn and what is minimised:

==========  =====================================  ==============================================================
recipe      response ỹ                             loss
==========  =====================================  ==============================================================
`rr`        randomized response                    CE with ỹ (LP-1ST, Ghazi et al. 2021)
`forward`   randomized response                    −log Σ_c p_model(c) P(ỹ | c) (Patrini et al. 2017)
`debiased`  randomized response                    (ℓ(ỹ) − p Σ_c ℓ(c)) / (1 − k p), p = 1 / (e^ε + k − 1), over the
                                                   k allowed classes (Ghazi et al. 2021, Algorithm 5)
`alibi`     onehot(y) + Laplace(2/ε) per entry     CE with p_model(c) · P(ỹ | c), normed, at every step
                                                   (Malek et al. 2021)
`ldp_ssl`   randomized response                    as `rr`, by FixMatch: every row is an unlabelled row, too
                                                   (Tang et al. 2022, Algorithm 6)
==========  =====================================  ==============================================================

Randomized response gives y with probability e^ε / (e^ε + K − 1), and any other class otherwise. The forward loss is
bounded and consistent: its minimiser over all models is the true conditional class probability. The debiased loss has
the mean of the loss on true labels for all K classes; within a smaller set of classes, for labels inside the set.
Mixup and early decay of the learning rate keep a network from learning the noise of `rr`.

With a `UserVault` all labels of one user are protected together (Ghazi et al. 2024, section 6): at most `cap` rows of
every user respond, once each, at ε/m for a user with m of them, and users with fewer rows count theirs repeatedly.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from labeldp.core.vault import LabelVault, Mechanism
from labeldp.learning.evidence import (
    Labels,
    Objective,
    as_labels,
    forward_corrected,
    on_responses,
    self_posterior,
)
from labeldp.learning.evidence import debiased as debiased_loss
from labeldp.learning.train import Inputs
from labeldp.mechanisms.responses import PriorResponse, RandomizedResponse
from labeldp.mechanisms.user_responses import UserResponse
from labeldp.mechanisms.users import UserVault, cap_rows
from labeldp.mechanisms.vectors import LaplaceOneHot
from labeldp.models.zoo import checked_count
from labeldp.recipes.arguments import Fit, checked, device_of, take_rows
from labeldp.recipes.kept import checkpoint_of, digest, in_folder, release_labels, release_once
from labeldp.releases import NoisyLabels

# (ε, K) → the mechanism.
Randomizer = Callable[[float, int], Mechanism[NoisyLabels]]


@checked
def train(
    model: nn.Module,
    inputs: Inputs,
    vault: LabelVault,
    *,
    epsilon: float,
    fit: Fit,
    randomizer: Randomizer = RandomizedResponse,
    objective: Callable[[NoisyLabels, torch.device], Objective] = on_responses,
    prior: npt.ArrayLike | None = None,
    cap: int | None = None,
    alike: bool = False,
    delta: float = 0.0,
    seed: int = 0,
    folder: Path | None = None,
) -> nn.Module:
    """Release one response per label at `epsilon` and train on the responses.

    Args:
        fit: the training algorithm with its settings bound: `learning.train.fit`, or `learning.fixmatch.fixmatch`.
        randomizer: how a label responds.
        objective: what is minimised, given the responses: `on_responses`, `forward_corrected`, `debiased` or
            `self_posterior` of `learning.evidence`.
        prior: public class probabilities, (K,) or (n, K); labels then respond within their likely classes
            (`PriorResponse`) in place of `randomizer`.
        cap: with a `UserVault`, how many rows of a user are used; all of them when None.
        alike: with a `UserVault`, every label responds at ε/cap, as published, instead of ε/m.
        delta: with a `UserVault`, above 0, exact composition allows a user's labels more than ε/m each.
        seed: of the choice of a user's rows, which is public.
        folder: keeps responses and a checkpoint, so that a killed run goes on and draws nothing twice.
    """
    device, rows, kept = device_of(model), None, in_folder(folder, "responses.npz")
    if isinstance(vault, UserVault):
        if prior is not None or randomizer is not RandomizedResponse:
            raise ValueError("vault protects all labels of a user, which randomized response without a prior can do")
        private, rows, inputs = _of_users(vault, inputs, epsilon, delta, cap, alike, seed, kept)
        rows = rows.to(device)
    else:
        mechanism = randomizer(epsilon, vault.num_classes) if prior is None else PriorResponse(epsilon, prior)
        private = release_labels(vault, mechanism, kept=kept)
    settings: dict[str, Any] = {**checkpoint_of(folder, private.responses), **({} if rows is None else {"rows": rows})}
    return fit(model, inputs, objective(private, device), **settings)


rr = functools.partial(train, objective=on_responses)
forward = functools.partial(train, objective=forward_corrected)
debiased = functools.partial(train, objective=debiased_loss)
alibi = functools.partial(train, randomizer=LaplaceOneHot, objective=self_posterior)
ldp_ssl = functools.partial(train, objective=on_responses)


def _of_users(
    vault: UserVault,
    inputs: Inputs,
    epsilon: float,
    delta: float,
    cap: int | None,
    alike: bool,
    seed: int,
    file: Path | None,
) -> tuple[NoisyLabels, torch.Tensor, Inputs]:
    """Return the responses of every user's kept rows, those rows as often as they count, and their inputs."""
    most = int(vault.users.sizes.max()) if cap is None else cap
    kept = cap_rows(vault.users, most, seed=seed)
    users = vault.users.take(kept.rows)
    mechanism = UserResponse(epsilon, vault.num_classes, users, cap=most if alike else None, delta=delta)
    note = {
        "vault": vault.id,
        "rows queried": digest(kept.rows),
        "users": vault.users.digest(),
        "channel": digest(mechanism.epsilons),
        "epsilon": mechanism.user_epsilon,
        "classes": vault.num_classes,
        # Behind a service, by their ids: who they are.
        **({} if vault.place == "all" else {"rows of the whole": vault.place}),
    }

    def read(path: Path) -> NoisyLabels:
        # The file has the responses alone: the mechanism is their channel.
        with np.load(path, allow_pickle=False) as arrays:
            return NoisyLabels(mechanism, arrays["responses"])

    numbers = len(kept.rows) * (vault.num_classes + 2)
    private = release_once(vault, mechanism, file, note, kept.rows, numbers=numbers, read=read)
    return private, torch.from_numpy(kept.listed()), take_rows(inputs, kept.rows)


def learn(
    model: nn.Module, inputs: Inputs, private: NoisyLabels | Labels, *, fit: Fit, folder: Path | None = None
) -> nn.Module:
    """Train on private labels that were paid for before: post-processing, at no cost.

    Args:
        inputs: of all rows, labelled or not, on the model's device.
        private: responses, or `Labels` made of other releases: `from_classes`, `on_rows`, `most_confident`.
        fit: `fixmatch`, its settings bound; `learning.train.fit` would leave out the rows without a label.
    """
    count = len(inputs[0] if isinstance(inputs, tuple) else inputs)
    labels = as_labels(private, count, device_of(model))
    in_folder(folder, "")
    settings = checkpoint_of(folder, labels.targets.cpu().numpy(), labels.weights.cpu().numpy())
    return fit(model, inputs, labels.objective(), rows=labels.rows(), **settings)


@checked
def lp_rr_sgd(
    model: nn.Module,
    inputs: Inputs,
    vault: LabelVault,
    *,
    epsilon: float,
    diameter: float,
    lipschitz: float | None = None,
    batch_size: int = 1,
    seed: int = 0,
    folder: Path | None = None,
) -> nn.Module:
    """Train by LP-RR-SGD: one pass of projected SGD on unbiased gradients, with the step of its theorem.

    w ← Π(w − η_t ĝ_t),  η_t = D ε √b / (6 K L √t),  Π onto the ball of diameter D around the start (Ghazi et al. 2021).
    For a convex loss with Lipschitz constant L: a linear model. With b rows to a step the gradient spreads less by √b,
    so the step is larger by it.

    Args:
        diameter: D.
        lipschitz: L; when None that of cross-entropy after a linear layer with bias, √2 · max_i |(x_i, 1)|, of the
            public inputs.
        seed: of the order of the rows.
        folder: keeps the responses, so that none is drawn twice.
    """
    checked_count("batch_size", batch_size)
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    if lipschitz is None:
        longest = sum(x.detach().float().reshape(len(x), -1).square().sum(dim=1) for x in tensors)
        lipschitz = math.sqrt(2 * (1 + float(torch.as_tensor(longest).amax())))
    private = release_labels(
        vault, RandomizedResponse(epsilon, vault.num_classes), kept=in_folder(folder, "responses.npz")
    )
    objective = debiased_loss(private, device_of(model))
    step = diameter * min(epsilon, 1.0) * math.sqrt(batch_size) / (6 * vault.num_classes * lipschitz)
    parameters = list(model.parameters())
    start = [p.detach().clone() for p in parameters]
    order = torch.randperm(len(vault), generator=torch.Generator().manual_seed(seed)).to(device_of(model))
    for t, rows in enumerate(order.split(batch_size), start=1):
        loss = objective(model(*(x[rows] for x in tensors)), rows).mean()
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.sub_(gradient, alpha=step / math.sqrt(t))
            moved = [p - centre for p, centre in zip(parameters, start, strict=True)]
            norm = torch.sqrt(torch.stack([(m * m).sum() for m in moved]).sum())
            shrink = (diameter / 2 / norm.clamp_min(diameter / 2)).clamp_max(1.0)
            for parameter, centre, away in zip(parameters, start, moved, strict=True):
                parameter.copy_(centre + shrink * away)
    return model.eval()
