"""Rounds of moments: a head, a student, features learnt from the student, and a moment of those.

    round 1:  moment of the public features x_i  →  head  →  probabilities p_i  →  student 1
    round r:  moment of (x_i, penultimate layer of student r − 1)  →  head
              guess = ½ p_i + ½ student r − 1, corrected by the new moment;  p_i ← ½ guess + ½ head  →  student r

A student has learnt from releases only, so its layers are as public as the x_i, and later moments may use them
(adaptive composition). All queries are Gaussian, and their squares add up, μ² = Σ μ_r²: the one μ of the whole budget
is found from (ε, δ), query r gets μ·√share_r (`budget.split_budget`), and the certificate states (ε, δ), not more.

So a later moment is used twice. Its head is good because the student's features are; the correction
(`distil.corrected`) keeps what earlier moments taught, and needs the new one only to show where that is wrong, with
noise that the guess has not seen. They err differently, and their mean is better than either.

When it helps: where a student is better than its head or errs elsewhere, so images or other raw inputs that a network
learns from, and an ε at which a part of the budget makes a teacher that is mostly right. With features of a good
encoder there is little left to learn: one moment, at all of the budget, is better. In small trials (Fashion-MNIST, ε
of 0.1 and 0.5, small networks) two rounds were ahead of one head, and no surer to be ahead of its student: compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from labeldp.core.vault import LabelVault
from labeldp.features.encoders import Encoder
from labeldp.learning.train import Inputs, predict
from labeldp.recipes import distil, one_shot
from labeldp.recipes.arguments import checked, device_of
from labeldp.recipes.budget import split_budget
from labeldp.recipes.kept import in_folder, planned
from labeldp.recipes.one_shot import OneShot


class Teach(Protocol):
    """`distil.train` with its settings bound."""

    def __call__(self, model: nn.Module, inputs: Inputs, probabilities: Tensor, /, *, folder: Path | None) -> nn.Module:
        """Train and return the model."""
        ...


class QueryOnce(Protocol):
    """`one_shot.train` with its settings bound."""

    def __call__(
        self, features: Tensor, vault: LabelVault, /, *, epsilon: float, delta: float, folder: Path | None
    ) -> OneShot:
        """Tune, release, fit."""
        ...


@dataclass(frozen=True, eq=False)
class Rounds:
    """The last student and the moments behind it. Holds no label; may be kept and published.

    Args:
        model: the last student, trained.
        shots: the moment of each round and the head it alone would give, on that round's features.
        probabilities: what the last student was taught, (n, K), on the model's device.
    """

    model: nn.Module
    shots: tuple[OneShot, ...]
    probabilities: Tensor


@checked
def train(
    model: nn.Module,
    inputs: Tensor,
    features: Tensor,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    shares: Sequence[float] = (0.5, 0.5),
    query: QueryOnce = one_shot.train,
    teach: Teach = distil.train,
    folder: Path | None = None,
) -> Rounds:
    """Train in `len(shares)` rounds, at (`epsilon`, `delta`) in all; every student starts from the first weights.

    Args:
        model: maps inputs to K scores and keeps all but its last layer in `model.body`, as those of the zoo do.
        inputs: public, on the model's device, in the vault's order: what the students see.
        features: public, (n, p): what the heads see in all rounds, and nothing else in the first.
        shares: the part of the budget, in squares of μ, of each moment; they add up to 1. Alike, as a rule: a head
            gains little from twice the μ², so half of it makes a first teacher nearly as good as all of it would.
        query: `one_shot.train`, or that with settings bound.
        teach: `distil.train`, or that with settings bound: `functools.partial(distil.train, fit=…)`.
        folder: keeps moments and students, so that a killed run goes on and draws nothing twice.
    """
    _body(model)  # refused before anything is spent
    parts = split_budget(epsilon, delta, shares)
    folders = [None if folder is None else folder / f"round-{number}" for number in range(1, len(parts) + 1)]
    events = [one_shot.event_of(one_shot.noise_for(part, delta)) for part in parts]
    moments = [(event, None, in_folder(f, "moment.npz")) for event, f in zip(events, folders, strict=True)]
    vault = planned(vault, *moments)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    shots: list[OneShot] = []
    guess, seen = torch.empty(0), features
    for part, place in zip(parts, folders, strict=True):
        if shots:
            learnt = Encoder(_body(model), standardise=False).fit(inputs).features(inputs)
            seen = joined(features, learnt)
            guess = distil.mixed()(guess, predict(model, inputs).softmax(dim=1))
            model.load_state_dict(first)
        shot = query(seen, vault, epsilon=part, delta=delta, folder=place)
        targets = shot.probabilities(seen)
        if shots:
            # The guess as the new moment corrects it is half of what is learnt.
            corrected = distil.corrected(guess.to(targets.device), shot.noisy, shot.tuning.basis(seen))
            targets = torch.lerp(targets, corrected, 0.5)
        shots.append(shot)
        guess = targets.to(device_of(model))
        model = teach(model, inputs, guess, folder=in_folder(place, "student"))
    return Rounds(model, tuple(shots), guess)


def joined(public: Tensor, learnt: Tensor) -> Tensor:
    """Return both side by side, (n, p + q), each centred and of total variance 1: neither drowns the other."""
    return torch.cat([_scaled(public.float()), _scaled(learnt.to(public.device, torch.float32))], dim=1)


def _scaled(block: Tensor) -> Tensor:
    centred = block - block.mean(dim=0)
    return centred / centred.square().sum(dim=1).mean().sqrt().clamp_min(1e-12)


def _body(model: nn.Module) -> nn.Module:
    body = getattr(model, "body", None)
    if not isinstance(body, nn.Module):
        raise ValueError(f"the model, a {type(model).__name__}, has no layer named body; put all but the last there")
    return body
