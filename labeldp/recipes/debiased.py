"""Train on randomized response with a loss whose mean is the loss on true labels (Ghazi et al. 2021, Algorithm 5).

    ℓ̃(ỹ) = (ℓ(ỹ) − p Σ_c ℓ(c)) / (1 − k p),   p = 1 / (e^ε + k − 1),   sums over the k allowed answers

Unbiased for all K classes; within a smaller answer set it is unbiased for labels inside the set only.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy.typing as npt
import torch
from torch import Tensor, nn

from labeldp.core.vault import LabelVault
from labeldp.learning.evidence import Objective, debiased
from labeldp.learning.train import Inputs
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.recipes.common import Fit, ask, check_rows, device_of, response, train_once


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
    """Ask every label once at `epsilon` (within the likely classes of a public `prior`, if any), train debiased."""
    return train_once(response(epsilon, vault, prior), debiased, model, inputs, vault, fit, folder)


def lp_rr_sgd(
    model: nn.Module,
    inputs: Inputs,
    vault: LabelVault,
    *,
    epsilon: float,
    diameter: float,
    lipschitz: float,
    batch_size: int = 1,
    seed: int = 0,
) -> nn.Module:
    """LP-RR-SGD: one pass of projected SGD on unbiased gradients, with the step of its theorem.

    w ← Π(w − η_t ĝ_t),  η_t = D ε √b / (6 K L √t),  Π onto the ball of diameter D around the start. For a convex
    loss with Lipschitz constant L. With b rows to a step the gradient spreads less by √b, so the step is larger by it.
    """
    check_rows(model, inputs, vault, vault.num_classes)
    private = ask(vault, RandomizedResponse(epsilon, vault.num_classes))
    objective = debiased(private, device_of(model))
    step = diameter * min(epsilon, 1.0) * math.sqrt(batch_size) / (6 * vault.num_classes * lipschitz)
    start = [p.detach().clone() for p in model.parameters()]
    order = torch.randperm(len(vault), generator=torch.Generator().manual_seed(seed)).to(device_of(model))
    for t, rows in enumerate(order.split(batch_size), start=1):
        _descend(model, inputs, objective, rows, step / math.sqrt(t))
        _project(list(model.parameters()), start, diameter / 2)
    return model.eval()


def _descend(model: nn.Module, inputs: Inputs, objective: Objective, rows: Tensor, rate: float) -> None:
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    loss = objective(model(*(x[rows] for x in tensors)), rows).mean()
    parameters = list(model.parameters())
    with torch.no_grad():
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.sub_(gradient, alpha=rate)


@torch.no_grad()
def _project(parameters: list[nn.Parameter], centre: list[Tensor], radius: float) -> None:
    moved = [p - c for p, c in zip(parameters, centre, strict=True)]
    norm = torch.sqrt(torch.stack([(m * m).sum() for m in moved]).sum())
    shrink = (radius / norm.clamp_min(radius)).clamp_max(1.0)
    for parameter, from_centre, away in zip(parameters, centre, moved, strict=True):
        parameter.copy_(from_centre + shrink * away)
