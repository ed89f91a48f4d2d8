"""A head from one look as the prior of randomized response, then any model on the answers.

    1. one look at (ε₁, δ): `one_shot`, whose head gives every row honest class probabilities p_i
    2. ỹ_i = RRWithPrior(y_i; p_i), at ε₂
    3. train on what both say of y_i: the posterior ∝ p_i(c)·P(ỹ_i | c), then the likelihood of the answers

Each of the two does what it is good at: a moment of all rows is nearly free at small ε, where single answers say
nothing; a single answer under a good prior has to tell two or three classes apart and not ten (Ghazi et al. 2021).

Both looks are at every row, the second chosen after the first: adaptive composition of a Gaussian look and a pure one.
ε₁ is the largest for which the two together cost (ε, δ) by their privacy loss distributions, a little more than ε − ε₂.
How to split is rehearsed on clusters before the first look (`rehearse_split`). Where answers would be no better than
the head, all of ε goes into the first look, and the model is a student of the head.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from labeldp.accounting.accountant import calibrate, gaussian_epsilon, gaussian_mu
from labeldp.accounting.events import GridGaussian, Look, PureDP
from labeldp.learning.fit import Inputs
from labeldp.learning.heads import Head, ridge_head
from labeldp.learning.rehearsal import Stage, rehearse
from labeldp.learning.targets import evidence
from labeldp.private.randomizers import PriorResponse
from labeldp.private.vault import LabelVault
from labeldp.recipes import lp_mst, one_shot
from labeldp.recipes.common import Fit, ask, check_rows, checkpoint_of, device_of, in_folder
from labeldp.recipes.groups import check_affordable
from labeldp.recipes.look_noise import event_of, noise_by_width, noise_for
from labeldp.recipes.lp_mst import Known, Learn
from labeldp.recipes.one_shot import OneShot, Rehearse, Report
from labeldp.releases import NoisyLabels

# Shares of ε that the rehearsal of the split tries for the first look; 1 leaves nothing for the answers.
SHARES = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
_ROOT2 = math.sqrt(2.0)


@dataclass(frozen=True)
class Split:
    """A budget in two parts, (ε₁, δ) and ε₂, and the share of pseudo-labels that the answers would have right."""

    first: float
    second: float
    expected: float


@dataclass(frozen=True, eq=False)
class OneShotPrior:
    """The model, and all it was taught. Holds no label.

    Args:
        model: trained.
        shot: the first look and its head.
        answers: the second look; None where all of ε went into the first.
        split: of the budget.
    """

    model: nn.Module
    shot: OneShot
    answers: NoisyLabels | None
    split: Split


def train(
    model: nn.Module,
    inputs: Inputs,
    features: Tensor,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    fit: Fit | Sequence[Fit],
    learn: Learn | Sequence[Learn] = (lp_mst.posterior_of_model, lp_mst.likelihood),
    split: Split | None = None,
    rehearse: Rehearse = rehearse,
    folder: Path | None = None,
    report: Report | None = None,
) -> OneShotPrior:
    """Look, answer, train: two looks, at (`epsilon`, `delta`) in all.

    Args:
        model: any; maps inputs to K scores.
        inputs: public, on the model's device, in the vault's order.
        features: public, (n, p), of the same rows: what the head sees.
        fit: the training algorithm, one for all of `learn` or one for each.
        learn: what to minimise, in turn, each going on from the last: `lp_mst.posterior_of_model` uses answers and
            prior (first the head's, then the model's own), `lp_mst.likelihood` the answers alone. The posterior keeps
            the head's errors where answers are weak; the likelihood forgets the head. One after the other has both.
        split: of the budget; `rehearse_split` when None.
        rehearse: of the head, as in `one_shot.train`.
        folder: keeps both looks and checkpoints, so that a killed run goes on and does not ask again.
        report: as in `one_shot.train`.
    """
    check_rows(model, inputs, vault, vault.num_classes)
    learns = list(learn) if isinstance(learn, Sequence) else [learn]
    fits = list(fit) if isinstance(fit, Sequence) else [fit] * len(learns)
    if len(fits) != len(learns) or not fits:
        raise ValueError(f"fit has {len(fits)} entries for {len(learns)} of learn; give one, or one for each")
    if split is None:
        one_shot.check_features(features, vault)
        split = rehearse_split(features, vault.num_classes, epsilon, delta)
    _check_split(split, epsilon, delta)
    first, second = in_folder(folder, "moment.npz"), in_folder(folder, "answers.npz")
    looks = [(_look(split.first, delta).event, first), (PureDP(split.second), second)]
    check_affordable(vault, looks if split.second > 0 else looks[:1])
    shot = one_shot.train(
        features, vault, epsilon=split.first, delta=delta, rehearse=rehearse, folder=folder, report=report
    )
    scores = shot.logits(features)
    private = None
    if split.second > 0:
        private = ask(vault, PriorResponse(split.second, scores.softmax(dim=1).cpu().double().numpy()), kept=second)
    model = _taught(model, inputs, scores, private, learns, fits, folder)
    return OneShotPrior(model, shot, private, split)


def rehearse_split(
    features: Tensor,
    num_classes: int,
    epsilon: float,
    delta: float,
    *,
    shares: Sequence[float] = SHARES,
    head: Head = ridge_head,
    clusterings: int = 3,
    seed: int = 0,
) -> Split:
    """The split for which most answers would be right, were clusters the labels. No true label is touched.

    For each share of ε: a head from pseudo-labels at the noise of ε₁, honest probabilities of held-out rows from it,
    and the chance that RRWithPrior under these, at ε₂, answers with the pseudo-label:

        P(ỹ = y) = e^ε₂/(e^ε₂ + |S| − 1) if y is in the row's set S, else 0.

    Two clusters make a pseudo-class: so few that heads do about as well on them as on real classes.
    """
    stage = Stage(features, num_classes, clusterings=clusterings, per_class=2, seed=seed)
    splits = [(share, *split_budget(epsilon, delta, share)) for share in shares]
    found = [Split(first, second, _expected(stage, head, first, second, delta)) for _, first, second in splits]
    return max(found, key=lambda split: split.expected)


def split_budget(epsilon: float, delta: float, share: float) -> tuple[float, float]:
    """(ε₁, ε₂) with ε₂ = (1 − share)·ε, and the largest ε₁ for which both together cost (ε, δ), exactly.

    >>> first, second = split_budget(2.0, 1e-5, 0.25)
    >>> round(first, 4), second
    (0.5074, 1.5)
    """
    if not 0 < share <= 1:
        raise ValueError(f"share={share} of the budget for the first look; give a number above 0 and at most 1")
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise ValueError(f"epsilon={epsilon}, delta={delta}: a Gaussian look needs finite ε > 0 and 0 < δ < 1")
    second = (1 - share) * epsilon
    if second == 0:
        return epsilon, 0.0
    return _largest_first(epsilon, delta, second), second


@functools.lru_cache(maxsize=256)
def _largest_first(epsilon: float, delta: float, second: float) -> float:
    """ε₁ whose noise, as `one_shot` will draw it, leaves ε₂ to the answers."""
    guess = _ROOT2 / gaussian_mu(epsilon - second, delta)
    # A little over: the noise of ε₁ is found from ε₁ again, and must not be less.
    std = 1.0001 * calibrate(
        lambda noise: (Look(GridGaussian(noise, _ROOT2)), Look(PureDP(second))), epsilon, delta, guess=guess, rtol=1e-5
    )
    return gaussian_epsilon(_ROOT2 / std, delta)


def _expected(stage: Stage, head: Head, first: float, second: float, delta: float) -> float:
    noise = noise_by_width(noise_for(first, delta))
    found = rehearse(stage.features, stage.num_classes, noise, heads=[head], draws=1, stage=stage)
    right: list[float] = []
    for scores, labels in stage.play(found.plan, head, noise, 1):
        law = PriorResponse(second, torch.softmax(found.scales[0].value * scores, dim=1).cpu().double().numpy())
        inside = law.members()[np.arange(len(labels)), labels.cpu().numpy()]
        right.append(float(np.mean(inside / (1.0 + (law.set_sizes() - 1.0) * math.exp(-second)))))
    return float(np.mean(right))


def _taught(
    model: nn.Module,
    inputs: Inputs,
    scores: Tensor,
    private: NoisyLabels | None,
    learns: Sequence[Learn],
    fits: Sequence[Fit],
    folder: Path | None,
) -> nn.Module:
    device = device_of(model)
    scores = scores.to(device)
    if private is None:
        # Without answers the posterior is the prior; there is no likelihood to go on with.
        known = Known(scores.argmax(dim=1), torch.zeros_like(scores), scores)
        settings = checkpoint_of(folder, scores.cpu().numpy())
        return fits[0](model, inputs, lp_mst.posterior_of_model(known), **settings)
    answers, seen = torch.from_numpy(private.hard()).to(device), evidence(private, device)
    for number, (learn, fit) in enumerate(zip(learns, fits, strict=True)):
        if number > 0:
            scores = lp_mst.predict(model, inputs)
        settings = checkpoint_of(folder, private.answers, np.array(number))
        model = fit(model, inputs, learn(Known(answers, seen, scores)), **settings)
    return model


def _look(first: float, delta: float) -> Look:
    noise = noise_for(first, delta)
    return Look(event_of(noise))


def _check_split(split: Split, epsilon: float, delta: float) -> None:
    from labeldp.accounting.accountant import epsilon as epsilon_of

    looks = (_look(split.first, delta), Look(PureDP(split.second)))
    cost = epsilon_of(looks if split.second > 0 else looks[:1], delta)
    if not cost <= epsilon * (1 + 1e-12):
        raise ValueError(f"split costs ε = {cost:.6g}, more than epsilon={epsilon}; see split_budget")
