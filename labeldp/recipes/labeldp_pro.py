"""LabelDP-Pro: DP-SGD whose noisy gradients are projected onto what public features allow (Ghazi et al. 2024).

    g̃_t = (Σ_{i ∈ B_t} clip(∇ℓ(θ_t; x_i, y_i)) + N(0, s²I)) / E|B_t|,    ĝ_t = Π_A(g̃_t),    θ_{t+1} = θ_t − η_t ĝ_t

A is made of the gradients that public rows would have under each of the K classes. The denoiser says who picks the
batch B_t and what A is (`labeldp.recipes.denoisers`): `no_op` is DP-SGD; `alt_conv`, `self_span` and `self_conv` are
their namesakes in the paper; `alt_rows` is ours. `lp_normal_sgd` is a special case: one pass, and SelfSpan.

What it costs. A replaced label moves a clipped sum by up to 2C, so at small ε the noise is about twice what accounting
for added or removed rows gives. A secret Poisson batch is amplified by its rate (`PoissonGaussian`). The self-denoisers
show their batch: they pass E times over a fixed partition, and every row is in E Gaussian sums. Projection, optimiser
and schedule are post-processing.

With a `UserVault` all labels of one user are protected together (section 6): a secret batch is of users, each with the
clipped gradient of its mean loss over at most `cap` rows, and the projection's public rows count every user `cap`
times, as the mean that is estimated does.
"""

from __future__ import annotations

import json
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
from labeldp.core.events import Gaussian
from labeldp.core.vault import LabelVault
from labeldp.learning.descend import descend, usual_decay
from labeldp.learning.optimisers import MakeOptimizer, Schedule, constant, sgd
from labeldp.learning.progress import Progress, Report
from labeldp.learning.train import Inputs
from labeldp.mechanisms.gradients.layers import Loss, cross_entropy
from labeldp.mechanisms.gradients.per_example import columns_of, refuse_batch_norm
from labeldp.mechanisms.gradients.ranks import over_ranks
from labeldp.mechanisms.gradients.sums import DiameterBound, GradientSum, NormBound
from labeldp.mechanisms.gradients.users import UserGradientSum
from labeldp.mechanisms.users import UserVault, cap_rows
from labeldp.ranks import Message, RankError, Ranks, current, explained
from labeldp.recipes.arguments import check_inputs, checked, device_of, take_rows
from labeldp.recipes.budget import Bound, Goal, least_noise, multiplier_of
from labeldp.recipes.denoisers import (
    Batches,
    Denoiser,
    Projector,
    Secret,
    alt_conv,
    alt_rows,
    batches_for,
    no_op,
    self_conv,
    self_span,
)
from labeldp.recipes.kept import digest
from labeldp.recipes.prepaid import Run, described, optimizer_in_words

__all__ = [
    "DiameterBound", "NormBound", "alt_conv", "alt_rows", "lp_normal_sgd", "no_op", "self_conv",
    "self_span", "train",
]  # fmt: skip

# The noise of a sum → the mechanism that releases it, of rows or of users.
Sum = Callable[..., Any]


@checked
def train(
    model: nn.Module,
    inputs: Inputs,
    vault: LabelVault,
    *,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    batch_size: int = 1024,
    bound: Bound | None = None,
    denoiser: Denoiser | None = None,
    cap: int | None = None,
    loss: Loss = cross_entropy,
    optimizer: MakeOptimizer | None = None,
    schedule: Schedule | None = None,
    average: float | None = None,
    radius: float | None = None,
    seed: int = 0,
    precision: torch.dtype | None = None,
    folder: Path | None = None,
    every: int | None = None,
    report: Report | None = None,
) -> nn.Module:
    """Train on noisy gradient sums; the vault pays for all of them before the first is drawn.

    Give two of ε, noise and length, and the third follows: the least noise that meets ε; the most steps that ε pays
    for with this noise ("run until ε is used up"); or whatever ε this noise and this length come to.

    Args:
        delta: δ of the guarantee, say 1e-5.
        epsilon: ε of the guarantee. The certificate states no more than this, and less by rounding only.
        noise_multiplier: standard deviation of the noise on a sum, in units of the clipping norm C.
        epochs, steps: the length, in passes over the data (over the users of a `UserVault`) or in steps.
        batch_size: rows (users) in a batch, on average if it is secret; what the sum is divided by.
        bound: `NormBound(C)`, or `DiameterBound` for public-diameter clipping; `NormBound(1.0)` when None, also where
            `choose` advises this recipe: users take a `NormBound`, of the gradient of a user's mean loss. On a made-up
            table (3,000 rows, 4 classes, ε = 0.5, 3 seeds) `DiameterBound(1, 1)` had 81.1% where it had 79.7%.
        denoiser: `no_op()` when None, which is quick: a projection of every step takes longer than the step, and was no
            better than DP-SGD at a good rate (docs/gradients.md). Users take those with secret batches: `no_op`,
            `alt_conv`, `alt_rows`.
        cap: with a `UserVault`, how many rows of a user are used (`cap_rows`); all of them when None.
        loss: (logits (b, K), labels (b,)) → losses (b,).
        optimizer, schedule, radius: of `labeldp.learning.descend.descend`; plain SGD at 0.1 when None.
        average: decay of the average of the weights that is returned, at least 0 (the last weights) and below 1; by the
            number of steps when None, and 0 where the schedule ends at nothing, which does the same
            (`labeldp.learning.descend.usual_decay`). Post-processing, as all of these are.
        seed: of the partition, the order and the other rows; never of noise or secret batches.
        precision: of the forward pass in the sum, say torch.bfloat16; sum and noise stay in float32 or wider.
        folder: keeps the run. Killed at any moment, it goes on in a new process with a new vault of the same labels,
            whose certificate covers the whole run, and never draws a gradient twice.
        every: steps between two reports; an epoch when None. Slow steps are reported every two seconds in any case.

    >>> from labeldp import LabelVault
    >>> x = torch.randn(200, 5)
    >>> vault = LabelVault((x[:, 0] > 0).long(), num_classes=2)
    >>> model = train(nn.Linear(5, 2), x, vault, epsilon=1.0, delta=1e-5, epochs=2, batch_size=50)
    >>> round(vault.certificate(delta=1e-5).epsilon, 4)
    1.0
    """
    denoiser, bound = denoiser or no_op(), bound or NormBound(1.0)
    optimizer, schedule = optimizer or sgd(0.1, momentum=0.0, weight_decay=0.0), schedule or constant()
    if average is not None and not 0 <= average < 1:
        raise ValueError(f"average={average} is not the decay of an average; give 0 to below 1, or None for the usual")
    refuse_batch_norm(model)
    check_inputs(inputs, vault)
    settings: dict[str, Any] = {
        "batch_size": batch_size, "bound": bound, "denoiser": denoiser, "loss": loss,
        "optimizer": optimizer_in_words(optimizer, schedule), "average": average, "radius": radius, "seed": seed,
    }  # fmt: skip
    how: dict[str, Any] = {"loss": loss, "precision": precision}
    if isinstance(vault, UserVault):
        batches, sums, named = _user_sums(model, inputs, vault, bound, denoiser, batch_size, cap, seed, how)
        settings |= named
    else:
        batches, sums = _row_sums(model, inputs, vault, bound, denoiser, batch_size, seed, how)
        settings |= {"recipe": Path(__file__).stem}
    goal = Goal(delta, epsilon, noise_multiplier, batches.queries_per_row(epochs, steps))
    ranks = current()
    question = {} if folder is ranks is None else described(model, inputs, vault, goal=goal, **settings)
    if ranks is not None:
        _check_ranks(ranks, model, sums, question, vault)
        if not ranks.first:
            return _help(ranks, model, sums, batches, vault)
    width = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    with Run(folder, question, width) as run:
        noise, times = goal.terms(lambda noise: sums[0](noise_std=noise).event(), bound, batches.rate, run.terms)
        if hasattr(vault, "descend"):
            # Labels behind a service (`labeldp.service.RemoteVault`), which takes the steps beside them.
            total, multiplier = times * len(batches), multiplier_of(noise, bound.radius)
            event = sums[0](noise_std=multiplier * bound.radius).event()
            given = {
                "model": model, "inputs": inputs, "delta": delta, "batch_size": batch_size, "bound": bound,
                "denoiser": denoiser, "loss": loss, "optimizer": optimizer, "schedule": schedule, "radius": radius,
                "cap": cap, "average": usual_decay(total, schedule) if average is None else average, "seed": seed,
                "precision": precision,
            }  # fmt: skip
            remote: Any = vault
            return remote.descend(given, multiplier, event, times, total, run, report)
        mechanisms = _mechanisms(ranks, noise, sums)
        # Before anything is paid for: of a run that ranks began, one process may draw the rest.
        run.assume(vault, *(() if ranks is None else mechanisms[0].assumptions))
        leases = batches.lease(vault, mechanisms, times, run.counter)
        if ranks is not None:
            # Paid for, and on the disk where there is one: only now do others know what to draw.
            ranks.say(Message.READY, times)
            ranks.share(torch.tensor(noise, dtype=torch.float64))
        project, total = Projector(model, batches, denoiser, batch_size, loss, bound.radius), times * len(batches)
        begun, spent = time.perf_counter(), None if report is None else meter(mechanisms[0].event(), times, delta)

        def gradient(step: int) -> Tensor | None:
            with explained(ranks):
                noisy = run.query(step, leases[batches.number(step)])
            return None if noisy is None else project(noisy.to(device_of(model)), step)

        def reported(step: int) -> None:
            assert report is not None
            assert spent is not None
            gap = None if project.gap is None else float(project.gap)
            paid, seconds = spent(-(-step // len(batches))), time.perf_counter() - begun
            report(
                Progress(
                    "training", f"step {step} of {total}", seconds, step / total, paid, step=step, steps=total,
                    passes=batches.passes(step), gap=gap,
                )
            )  # fmt: skip

        trained = descend(
            model, gradient, steps=total, optimizer=optimizer, schedule=schedule, radius=radius, kept=run.kept,
            average=usual_decay(total, schedule) if average is None else average, every=every or batches.per_epoch,
            report=None if report is None else reported,
        )  # fmt: skip
        if ranks is not None:
            ranks.say(Message.DONE)
            ranks.align(trained)
        return trained


@checked
def lp_normal_sgd(
    model: nn.Module,
    inputs: Inputs,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    diameter: float,
    bound: Bound | None = None,
    batch_size: int | None = None,
    loss: Loss = cross_entropy,
    average: float | None = None,
    seed: int = 0,
    folder: Path | None = None,
    every: int | None = None,
    report: Report | None = None,
) -> nn.Module:
    """Train by LP-Normal-SGD: one pass of SGD with Gaussian noise in the few directions a label can move.

        w ← Π_W(w − η_t (∇ℓ(w; x_t, y_t) + b_t)),   b_t = Π_span{∇ℓ(w; x_t, k) : k}(N(0, s²I)),
        η_t = D / √((L² + K s²) t)

    Algorithm 6 of Ghazi et al. 2021. Only the span of the K candidate gradients needs noise, so its norm is about s√K
    whatever the number of parameters. (For cross-entropy the span is that of the gradients' differences: K − 1
    dimensions.) With b rows to a step the mean of their gradients is released: |noise|² is then K s²/b on average, and
    the step is η_t = D / √((L² + K s²/b) t).

    Why it is private. The gradient lies in that public span, so noise in the span is isotropic noise on the gradient,
    projected: post-processing of a Gaussian query with diameter 2L, or less with a bound on the public diameter. Each
    row is in one sum. Here s is the analytic Gaussian's (Balle and Wang 2018), exact where the paper has an unnamed
    constant.

    Args:
        diameter: D of the ball around the first weights that the weights are kept in.
        bound: its radius is L; `NormBound(1.0)` when None. Gradients of a loss that is L-Lipschitz are never clipped.
        batch_size: rows to a step. 1 is as published, and takes as many steps as there are rows; when None, 256, or a
            fortieth of fewer than 10,240 rows, for a pass of some hundred steps.
        seed: of the order, which no label decides.
        every: steps between two reports; a twentieth of the pass when None.
        average, folder, report: as in `train`.

    >>> from labeldp import LabelVault
    >>> x = torch.randn(200, 5)
    >>> vault = LabelVault((x[:, 0] > 0).long(), num_classes=2)
    >>> model = lp_normal_sgd(nn.Linear(5, 2), x, vault, epsilon=1.0, delta=1e-5, diameter=10.0, batch_size=20)
    >>> round(vault.certificate(delta=1e-5).epsilon, 6)
    1.0
    """
    if not 0 < diameter < math.inf:
        raise ValueError(f"diameter={diameter} is not the size of a ball; give a finite number greater than 0")
    if isinstance(vault, UserVault):
        raise ValueError("vault protects all labels of a user, and this one label at a time; use train")
    bound = bound or NormBound(1.0)
    # For the steps; what rounding adds to the diameter, and so to the noise that is drawn, is a hundred-thousandth.
    noise = least_noise(lambda s: Gaussian(s, bound.diameter), 1, epsilon, delta, bound.diameter)
    batch_size = max(1, min(256, len(vault) // 40)) if batch_size is None else batch_size
    many = math.ceil(len(vault) / max(1, batch_size))
    peak = diameter / math.sqrt(bound.radius**2 + vault.num_classes * noise**2 / max(1, batch_size))
    return train(
        model, inputs, vault, epsilon=epsilon, delta=delta, epochs=1, batch_size=batch_size,
        bound=bound, denoiser=self_span(), loss=loss, optimizer=sgd(peak, momentum=0.0, weight_decay=0.0),
        schedule=lambda done: 1 / math.sqrt(round(done * many) + 1), average=average, radius=diameter / 2, seed=seed,
        folder=folder, every=every or max(1, many // 20), report=report,
    )  # fmt: skip


# --- over ranks -------------------------------------------------------------------------------------------------


def _mechanisms(ranks: Ranks | None, noise: float, sums: list[Sum]) -> list[Any]:
    """Return the sums over all batches, as one process or as ranks release them."""
    wholes: list[Any] = [one(noise_std=noise) for one in sums]
    return wholes if ranks is None else [over_ranks(one, ranks, number) for number, one in enumerate(wholes)]


def _check_ranks(ranks: Ranks, model: nn.Module, sums: list[Sum], question: dict[str, Any], vault: LabelVault) -> None:
    """Let ranks begin with the same model; raise RankError, on all and unpaid, where they do not fit together."""
    if len(vault) < ranks.size:
        raise RankError(f"there are {ranks.size} ranks for {len(vault)} rows; start at most one for each row")
    ranks.check_same("inputs, model or settings", digest(np.array(json.dumps(question, sort_keys=True))))
    problem = ""
    try:
        # With any noise: what a rank cannot do must not be found out when all is paid for.
        whole = sums[0](noise_std=1.0)
        whole.fits(len(columns_of(whole.inputs)[0]), vault.num_classes)
    except (ValueError, RuntimeError) as error:
        problem = str(error)
    for rank, found in enumerate(ranks.gather(problem)):
        if found:
            raise RankError(f"rank {rank} cannot take part: {found}")
    ranks.align(model)


def _help(ranks: Ranks, model: nn.Module, sums: list[Sum], batches: Batches, vault: LabelVault) -> nn.Module:
    """Do a share of every sum that the first rank draws, until it is done; return the model that it has trained.

    Which steps there are, which gradients an earlier run kept, and what is done with them is the first rank's business.
    """
    _, times = ranks.hear(Message.READY)
    noise = float(ranks.share(torch.zeros((), dtype=torch.float64)))
    # In the ledger of this rank's own vault; the one that counts is the first rank's.
    leases = batches.lease(vault, _mechanisms(ranks, noise, sums), times, None)
    while True:
        message, number = ranks.hear(Message.DRAW, Message.DONE)
        if message == Message.DONE:
            ranks.align(model)
            return model.eval()
        with explained(ranks):
            leases[number]()


# --- what is summed ---------------------------------------------------------------------------------------------


def _row_sums(
    model: nn.Module,
    inputs: Inputs,
    vault: LabelVault,
    bound: Bound,
    denoiser: Denoiser,
    batch_size: int,
    seed: int,
    how: dict[str, Any],
) -> tuple[Batches, list[Sum]]:
    if type(batch_size) is not int or not 1 <= batch_size <= len(vault):
        raise ValueError(f"batch_size={batch_size} does not fit {len(vault)} rows; give a number from 1 to that")
    batches = batches_for(denoiser, inputs, len(vault), batch_size, seed)
    most = max(len(columns_of(part)[0]) for part in batches.parts)
    how = {**how, "rate": batches.rate, "num_classes": vault.num_classes, "most_rows": most}
    sums: list[Sum] = [partial(GradientSum, model, part, bound=bound, **how) for part in batches.parts]
    return batches, sums


def _user_sums(
    model: nn.Module,
    inputs: Inputs,
    vault: UserVault,
    bound: Bound,
    denoiser: Denoiser,
    batch_size: int,
    cap: int | None,
    seed: int,
    how: dict[str, Any],
) -> tuple[Batches, list[Sum], dict[str, Any]]:
    """Return batches of users, the sum over them, and what names them in the run's question."""
    if not isinstance(denoiser, Secret):
        raise ValueError(f"denoiser is {denoiser!r}, which names its batches; users take no_op, alt_conv or alt_rows")
    if not isinstance(bound, NormBound):
        raise ValueError(f"bound={bound!r} is not for users; give a NormBound")
    if type(batch_size) is not int or not 1 <= batch_size <= len(vault.users):
        raise ValueError(f"batch_size={batch_size} does not fit {len(vault.users)} users; give a number from 1 to that")
    most = int(vault.users.sizes.max()) if cap is None else cap
    kept = cap_rows(vault.users, most, seed=seed)
    rows, rate = take_rows(inputs, kept.rows), batch_size / len(vault.users)
    batches = Batches(None, (take_rows(rows, kept.listed()),), rate, seed, kept.rows)
    users, weights = vault.users.take(kept.rows), kept.repeats / most
    one: Sum = partial(UserGradientSum, model, rows, users, bound, rate=rate, weights=weights, **how)
    return batches, [one], {"recipe": "user_level", "users": vault.users.digest(), "cap": most}
