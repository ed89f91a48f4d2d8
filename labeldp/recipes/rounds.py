"""Several looks: a head, a student, features learnt from the student, and a look at the labels again.

    round 1:  one look at the public features x_i  →  head  →  probabilities p_i  →  student 1
    round r:  one look at (x_i, penultimate layer of student r − 1)  →  head
              guess = ½ p_i + ½ student r − 1, corrected by the new moment;  p_i ← ½ guess + ½ head  →  student r

A student has learnt from paid answers only, so its layers are as public as the x_i, and later looks may use them
(adaptive composition). All looks are Gaussian, and their squares add up, μ² = Σ μ_r²: the one μ of the whole budget is
found from (ε, δ), look r gets μ·√share_r, and the certificate says (ε, δ), not more.

So a later look is used twice. Its head is good because the student's features are; the correction
(`students.corrected`) keeps what earlier looks taught, and needs the new one only to show where that is wrong, with
noise that the guess has not seen. They err differently, and their mean is better than either.

When it helps: where a student is better than its head or errs elsewhere, so images or other raw inputs that a network
learns from, and an ε at which a part of the budget makes a teacher that is mostly right. With features of a good
encoder there is little left to learn: one look, at all of the budget, is better. In small trials (Fashion-MNIST, ε of
0.1 and 0.5, small networks) two rounds were ahead of one look's head, and no surer to be ahead of its student: compare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from labeldp.core.events import Gaussian
from labeldp.core.gaussian import gaussian_epsilon, gaussian_mu
from labeldp.core.vault import LabelVault
from labeldp.features.encoders import Encoder
from labeldp.learning.train import Inputs, predict
from labeldp.mechanisms.counts import GaussianNoise
from labeldp.recipes import one_shot, students
from labeldp.recipes.common import check_rows, device_of, in_folder
from labeldp.recipes.groups import check_affordable
from labeldp.recipes.one_shot import OneShot

# What rounding may lose when μ is taken apart and put together again, with room.
_SLACK = 1e-9


class Teach(Protocol):
    """`students.train` with its settings bound."""

    def __call__(self, model: nn.Module, inputs: Inputs, probabilities: Tensor, /, *, folder: Path | None) -> nn.Module:
        """Train and return the model."""
        ...


class QueryOnce(Protocol):
    """`one_shot.train` with its settings bound."""

    def __call__(
        self, features: Tensor, vault: LabelVault, /, *, epsilon: float, delta: float, folder: Path | None
    ) -> OneShot:
        """Rehearse, look, fit."""
        ...


@dataclass(frozen=True, eq=False)
class Rounds:
    """The last student and the looks behind it. Holds no label; may be kept and published.

    Args:
        model: the last student, trained.
        shots: the look of each round and the head it alone would give, on that round's features.
        probabilities: what the last student was taught, (n, K), on the model's device.
    """

    model: nn.Module
    shots: tuple[OneShot, ...]
    probabilities: Tensor


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
    teach: Teach = students.train,
    folder: Path | None = None,
) -> Rounds:
    """`len(shares)` looks, at (`epsilon`, `delta`) in all; every student starts from the model's first weights.

    Args:
        model: maps inputs to K scores and keeps all but its last layer in `model.body`, as those of the zoo do.
        inputs: public, on the model's device, in the vault's order: what the students see.
        features: public, (n, p): what the heads see in all rounds, and nothing else in the first.
        shares: the part of the budget, in squares of μ, of each look; they add up to 1. Alike, as a rule: a head gains
            little from twice the μ², so half of it makes a first teacher nearly as good as all of it would.
        look: `one_shot.train`, or that with settings bound.
        teach: `students.train`, or that with settings bound: `functools.partial(students.train, fit=…)`.
        folder: keeps looks and students, so that a killed run goes on and does not ask again.
    """
    check_rows(model, inputs, vault, vault.num_classes)
    _body(model)  # refused before anything is spent
    parts = split_budget(epsilon, delta, shares)
    folders = [None if folder is None else folder / f"round-{number}" for number in range(1, len(parts) + 1)]
    events = [Gaussian(GaussianNoise.for_budget(part, delta).std, math.sqrt(2.0)) for part in parts]
    check_affordable(vault, [(event, in_folder(f, "moment.npz")) for event, f in zip(events, folders, strict=True)])
    first = {name: value.clone() for name, value in model.state_dict().items()}
    shots: list[OneShot] = []
    guess, seen = torch.empty(0), features
    for part, place in zip(parts, folders, strict=True):
        if shots:
            seen = joined(features, _learnt(_body(model), inputs))
            guess = students.mixed()(guess, predict(model, inputs).softmax(dim=1))
            model.load_state_dict(first)
        shots.append(query(seen, vault, epsilon=part, delta=delta, folder=place))
        guess = _taught(guess, shots, seen).to(device_of(model))
        model = teach(model, inputs, guess, folder=in_folder(place, "student"))
    return Rounds(model, tuple(shots), guess)


def split_budget(epsilon: float, delta: float, shares: Sequence[float]) -> tuple[float, ...]:
    """ε_r of each look, were it the only one, at the same δ: μ(ε_r, δ)² = share_r · μ(ε, δ)².

    They add up to more than ε, and the looks together still cost ε: squares of μ add up, not ε (Dong, Roth & Su 2022).

    >>> [round(part, 4) for part in split_budget(1.0, 1e-5, (0.5, 0.5))]
    [0.6841, 0.6841]
    """
    if not shares or not min(shares) > 0 or abs(sum(shares) - 1) > 1e-9:
        raise ValueError(f"shares={tuple(shares)} do not split the budget; give positive numbers that add up to 1")
    if not 0 < delta < 1 or not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon={epsilon}, delta={delta}: Gaussian looks need finite ε > 0 and 0 < δ < 1")
    mu = gaussian_mu(epsilon, delta) * (1 - _SLACK)
    parts = tuple(gaussian_epsilon(mu * math.sqrt(share / sum(shares)), delta) for share in shares)
    if min(parts) <= 0:
        raise ValueError(f"epsilon={epsilon} is too small for {len(parts)} looks at delta={delta}; use one look")
    return parts


def joined(public: Tensor, learnt: Tensor) -> Tensor:
    """Both side by side, (n, p + q), each centred and scaled to a total variance of 1: neither drowns the other."""
    return torch.cat([_scaled(public.float()), _scaled(learnt.to(public.device, torch.float32))], dim=1)


def _learnt(body: nn.Module, inputs: Tensor) -> Tensor:
    return Encoder(body, standardise=False).fit(inputs).features(inputs)


def _scaled(block: Tensor) -> Tensor:
    centred = block - block.mean(dim=0)
    return centred / centred.square().sum(dim=1).mean().sqrt().clamp_min(1e-12)


def _taught(guess: Tensor, shots: Sequence[OneShot], seen: Tensor) -> Tensor:
    """The targets of a round: the head's, after the first mixed with the guess as the new moment corrects it."""
    shot = shots[-1]
    head = shot.probabilities(seen)
    if len(shots) == 1:
        return head
    corrected = students.corrected(guess.to(head.device), shot.noisy, shot.tuning.basis(seen))
    return torch.lerp(head, corrected, 0.5)


def _body(model: nn.Module) -> nn.Module:
    body = getattr(model, "body", None)
    if not isinstance(body, nn.Module):
        raise ValueError(f"the model, a {type(model).__name__}, has no layer named body; put all but the last there")
    return body
