"""LabelDP-Pro: DP-SGD whose noisy gradients are projected onto what public features allow (Ghazi et al. 2024).

    g̃_t = (Σ_{i ∈ B_t} clip(∇ℓ(θ_t; x_i, y_i)) + N(0, s²I)) / E|B_t|,    ĝ_t = Π_A(g̃_t),    θ_{t+1} = θ_t − η_t ĝ_t

A is made of the gradients that public rows would have under each of the K classes. The denoiser says who picks the
batch B_t and what A is (`labeldp.recipes.denoisers`): `no_op` is DP-SGD; `alt_conv`, `self_span` and `self_conv` are
their namesakes in the paper; `alt_rows` is ours.

What it costs. A replaced label moves a clipped sum by up to 2C, so at small ε the noise is about twice what accounting
for added or removed rows gives. A secret Poisson batch is amplified by its rate (`PoissonGaussian`). The self-denoisers
show their batch: they pass E times over a fixed partition, and every row meets E Gaussian looks. Projection, optimiser
and schedule are post-processing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path

import torch
from torch import Tensor, nn

from labeldp.budgets.calibrate import meter, most_queries
from labeldp.core.accountant import epsilon as epsilon_of
from labeldp.core.events import Event, Query
from labeldp.core.vault import LabelVault
from labeldp.learning.descend import descend
from labeldp.learning.train import Inputs, MakeOptimizer, Schedule, constant, sgd
from labeldp.mechanisms.gradients.layers import Loss, cross_entropy
from labeldp.mechanisms.gradients.per_example import refuse_batch_norm
from labeldp.mechanisms.gradients.sums import DiameterBound, GradientSum, NormBound
from labeldp.recipes.common import check_rows, device_of
from labeldp.recipes.denoisers import (
    Batches,
    Denoiser,
    Projector,
    alt_conv,
    alt_rows,
    batches_for,
    no_op,
    self_conv,
    self_span,
)
from labeldp.recipes.prepaid import Run, check_inputs, check_target, described, least_noise, optimizer_in_words

__all__ = ["DiameterBound", "NormBound", "Progress", "alt_conv", "alt_rows", "no_op", "self_conv", "self_span", "train"]

Bound = NormBound | DiameterBound


@dataclass(frozen=True)
class Progress:
    """What `report` is told. `epsilon` is what the looks so far cost, never too small; `gap` the projection's."""

    step: int
    steps: int
    passes: float
    epsilon: float
    gap: float | None
    seconds: float


Report = Callable[[Progress], None]


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
    loss: Loss = cross_entropy,
    optimizer: MakeOptimizer | None = None,
    schedule: Schedule | None = None,
    average: float = 0.0,
    radius: float | None = None,
    seed: int = 0,
    precision: torch.dtype | None = None,
    folder: Path | None = None,
    every: int | None = None,
    report: Report | None = None,
) -> nn.Module:
    """Train on noisy gradient sums; the vault pays for all of them before the first is drawn.

    Give two of ε, noise and length, and the third follows: the least noise that meets ε; the most looks that ε pays
    for with this noise ("run until ε is used up"); or whatever ε this noise and this length come to.

    Args:
        delta: δ of the guarantee, say 1e-5.
        epsilon: ε of the guarantee. The certificate says no more than this, and less by rounding only.
        noise_multiplier: standard deviation of the noise on a sum, in units of the clipping norm C.
        epochs, steps: the length, in passes over the data or in looks.
        batch_size: rows in a batch, on average if it is secret; what the sum is divided by.
        bound: `NormBound(C)`, or `DiameterBound` for public-diameter clipping; `NormBound(1.0)` when None.
        denoiser: `alt_conv()` when None.
        loss: (logits (b, K), labels (b,)) → losses (b,).
        optimizer, schedule, average, radius: of `labeldp.learning.descend.descend`; plain SGD at 0.1 when None.
        seed: of the partition, the order and the other rows; never of noise or secret batches.
        precision: of the forward pass in the look, say torch.bfloat16; sum and noise stay in float32 or wider.
        folder: keeps the run. Killed at any moment, it goes on in a new process with a new vault of the same labels,
            whose certificate covers the whole run, and never draws a look twice.
        every: looks between two reports; an epoch when None.

    >>> from labeldp import LabelVault
    >>> x = torch.randn(200, 5)
    >>> vault = LabelVault((x[:, 0] > 0).long(), num_classes=2)
    >>> model = train(nn.Linear(5, 2), x, vault, epsilon=1.0, delta=1e-5, epochs=2, batch_size=50)
    >>> round(vault.certificate(delta=1e-5).epsilon, 4)
    1.0
    """
    denoiser, bound = denoiser or alt_conv(), bound or NormBound(1.0)
    optimizer, schedule = optimizer or sgd(0.1, momentum=0.0, weight_decay=0.0), schedule or constant()
    _check(model, inputs, vault, batch_size)
    batches = batches_for(denoiser, inputs, len(vault), batch_size, seed)
    goal = Goal(delta, epsilon, noise_multiplier, _queries_per_row(batches, len(vault) / batch_size, epochs, steps))
    settings = {
        "recipe": "labeldp_pro", "goal": goal, "batch_size": batch_size, "bound": bound, "denoiser": denoiser,
        "loss": loss, "optimizer": optimizer_in_words(optimizer, schedule), "average": average, "radius": radius,
        "seed": seed,
    }  # fmt: skip
    ask = partial(GradientSum, model, bound=bound, rate=batches.rate, loss=loss, precision=precision)
    with Run(folder, {} if folder is None else described(model, inputs, vault, **settings)) as run:
        example = partial(ask, batches.parts[0], num_classes=vault.num_classes)
        noise, times = goal.terms(lambda noise: example(noise_std=noise).event(), bound, batches.rate, run.terms)
        asks = [ask(part, noise_std=noise, num_classes=vault.num_classes) for part in batches.parts]
        leases = batches.lease(vault, asks, times, run.counter)
        project = Projector(model, inputs, batches, denoiser, batch_size, loss, bound.radius)
        tell = None if report is None else _reporter(report, asks[0].event(), times, delta, batches, project)

        def gradient(step: int) -> Tensor | None:
            noisy = run.query(step, leases[batches.number(step)])
            return None if noisy is None else project(noisy.to(device_of(model)), step)

        return descend(
            model, gradient, steps=times * len(batches), optimizer=optimizer, schedule=schedule, average=average,
            radius=radius, kept=run.kept, every=every or batches.per_epoch, report=tell,
        )  # fmt: skip


@dataclass(frozen=True)
class Goal:
    """Two of ε, noise multiplier and looks per row, at this δ."""

    delta: float
    epsilon: float | None
    noise_multiplier: float | None
    times: int | None

    def __post_init__(self) -> None:
        if [self.epsilon, self.noise_multiplier, self.times].count(None) != 1:
            raise ValueError(
                f"epsilon={self.epsilon}, noise_multiplier={self.noise_multiplier} and a length of {self.times} looks: "
                "give two of epsilon, noise_multiplier and length (epochs or steps); the third follows"
            )
        for name in ("delta", "epsilon", "noise_multiplier"):
            value = getattr(self, name)
            if value is None and name != "delta":
                continue
            if isinstance(value, bool) or not isinstance(value, Real):
                raise ValueError(f"{name}={value!r} is not a number")
            object.__setattr__(self, name, float(value))
        check_target(1.0 if self.epsilon is None else self.epsilon, self.delta)
        if self.noise_multiplier is not None and not 0 < self.noise_multiplier < math.inf:
            raise ValueError(f"noise_multiplier={self.noise_multiplier} is not an amount of noise; give a number > 0")

    def terms(
        self, event_of: Callable[[float], Event], bound: Bound, rate: float, paid: tuple[float, int] | None
    ) -> tuple[float, int]:
        """Noise of a sum and looks per row; those paid for in an earlier process, if they keep the promise."""
        if paid is None:
            return self._settled(event_of, bound, rate)
        spent = epsilon_of((Query(event_of(paid[0]), paid[1]),), self.delta)
        # Another machine may round the last digits of ε otherwise.
        if self.epsilon is not None and spent > self.epsilon * (1 + 1e-6):
            raise ValueError(f"the run in this folder was paid for with epsilon={spent:.9g}; use a new folder")
        return paid

    def _settled(self, event_of: Callable[[float], Event], bound: Bound, rate: float) -> tuple[float, int]:
        match self.epsilon, self.noise_multiplier, self.times:
            case float() as epsilon, None, int() as times:
                return least_noise(event_of, times, epsilon, self.delta, bound.diameter, rate), times
            case None, float() as multiplier, int() as times:
                return multiplier * bound.radius, times
            case float() as epsilon, float() as multiplier, None:
                noise = multiplier * bound.radius
                return noise, _used_up(event_of(noise), epsilon, self.delta)
        raise ValueError(f"{self} is not made of numbers")


def _used_up(event: Event, epsilon: float, delta: float) -> int:
    times = most_queries(event, epsilon, delta)
    if times == 0:
        raise ValueError(f"epsilon={epsilon} does not pay for a single {event}; give more noise")
    return times


def _queries_per_row(batches: Batches, per_pass: float, epochs: float | None, steps: int | None) -> int | None:
    """How often a row may be looked at: once per step if batches are secret, once per pass if they are named."""
    if epochs is None and steps is None:
        return None
    if epochs is not None and steps is not None:
        raise ValueError(f"epochs={epochs} and steps={steps} are two lengths; give one of them")
    secret = batches.rows is None
    if steps is not None:
        length = steps if secret else steps / len(batches)
    else:
        length = epochs if epochs is not None and math.isfinite(epochs) else 0
        length = math.ceil(length * per_pass - 1e-9) if secret else length
    if not length >= 1 or length != int(length):
        raise ValueError(
            f"epochs={epochs}, steps={steps} is not a length; give at least one step, and whole passes "
            f"({len(batches)} steps each) for batches that are named"
        )
    return int(length)


def _check(model: nn.Module, inputs: Inputs, vault: LabelVault, batch_size: int) -> None:
    """Refuse what cannot be trained, before anything is spent."""
    refuse_batch_norm(model)
    check_rows(model, inputs, vault, vault.num_classes)
    check_inputs(inputs, vault)
    if type(batch_size) is not int or not 1 <= batch_size <= len(vault):
        raise ValueError(f"batch_size={batch_size} does not fit {len(vault)} rows; give a number from 1 to that")


def _reporter(
    report: Report, event: Event, times: int, delta: float, batches: Batches, project: Projector
) -> Callable[[int], None]:
    begun, spent = time.perf_counter(), meter(event, times, delta)
    total = times * len(batches)

    def tell(step: int) -> None:
        gap = None if project.gap is None else float(project.gap)
        seconds = time.perf_counter() - begun
        report(Progress(step, total, batches.passes(step), spent(-(-step // len(batches))), gap, seconds))

    return tell
