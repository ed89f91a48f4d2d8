"""DenoiseSSL: keep a private label only where an independent guess agrees with it (Tang et al. 2022, Algorithm 7).

    1. ỹ_i = randomized response at ε
    2. a guess ŷ_i for every row: the majority of the *private* labels in its cluster, or the head of one moment
    3. rows with ỹ_i = ŷ_i keep their label; FixMatch on all rows, with these labels only

Majorities of private labels are post-processing: step 2 by clusters costs nothing. How right the kept labels are:
with a guess that is right with probability a, whichever way it errs, and does not depend on the response's noise,

    kept and right   a·p,          p = e^ε / (e^ε + K − 1)
    kept and wrong   (1 − a)·q,    q = 1 / (e^ε + K − 1)
    share of kept labels that are right = e^ε / (e^ε + (1 − a)/a)

of which a itself is seen without a true label: the share of rows kept is q + a·(p − q) (`Denoised.guesses_right`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from labeldp.core.events import PureDP
from labeldp.core.vault import LabelVault
from labeldp.learning.evidence import Labels, as_labels
from labeldp.learning.train import Inputs
from labeldp.learning.tuning import tune
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.recipes import one_shot, per_row
from labeldp.recipes.arguments import Fit, checked, device_of
from labeldp.recipes.budget import split_budget
from labeldp.recipes.cluster_votes import Grouping, group_numbers
from labeldp.recipes.kept import in_folder, planned, release_labels
from labeldp.recipes.one_shot import OneShot, Tune, event_of, noise_for
from labeldp.releases import NoisyLabels

Classes = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Denoised:
    """Private labels less those that the guess contradicts.

    Args:
        labels: of all rows; only kept ones have a weight.
        guesses: (n,) the class that each row was compared with.
        share: of the labels that were kept.
        guesses_right: share of the guesses that are right, estimated from `share`; nan where the noise is not known.
        expected: share of the kept labels that are right, by the closed form; nan likewise.
    """

    labels: Labels
    guesses: Classes
    share: float
    guesses_right: float
    expected: float


@checked
def train(
    model: nn.Module,
    inputs: Inputs,
    vault: LabelVault,
    *,
    epsilon: float,
    fit: Fit,
    clusters: Grouping,
    others_only: bool = True,
    folder: Path | None = None,
) -> nn.Module:
    """Release one response per label at `epsilon`, keep those that agree with their cluster's majority, and train.

    Args:
        fit: `labeldp.learning.fixmatch.fixmatch` with its settings bound.
        clusters: what `kmeans` returns, or each row's cluster number; found without labels.
        others_only: a row's own label has no vote on its guess, unlike as published; see `majority`.
        folder: keeps responses and checkpoints, so that a killed run goes on and draws nothing twice.
    """
    groups, _ = group_numbers(clusters, vault)
    private = release_labels(
        vault, RandomizedResponse(epsilon, vault.num_classes), kept=in_folder(folder, "responses.npz")
    )
    guesses = majority(private.hard(), groups, vault.num_classes, others_only=others_only)
    return learn(model, inputs, private, guesses, fit=fit, folder=folder)


@checked
def train_with_head(
    model: nn.Module,
    inputs: Inputs,
    features: Tensor,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    fit: Fit,
    share: float = 0.3,
    tune: Tune = tune,
    folder: Path | None = None,
) -> nn.Module:
    """Train with the head of one moment in place of the clusters, at (`epsilon`, `delta`) in all.

    Args:
        features: public, (n, p), of the same rows: what the head sees.
        share: of ε for the head; the responses get the rest. The two together cost exactly (ε, δ): `split_budget`.
        tune: as in `one_shot.train`.
    """
    one_shot.check_features(features, vault)
    if not 0 < share < 1:
        raise ValueError(f"share={share} leaves nothing for the head or the responses; give a number between 0 and 1")
    first, second = split_budget(epsilon, delta, (share, 1 - share), last_pure=True)
    kept = in_folder(folder, "responses.npz")
    moment = (event_of(noise_for(first, delta)), None, in_folder(folder, "moment.npz"))
    vault = planned(vault, moment, (PureDP(second), None, kept))
    shot = one_shot.train(features, vault, epsilon=first, delta=delta, tune=tune, folder=folder)
    private = release_labels(vault, RandomizedResponse(second, vault.num_classes), kept=kept)
    return learn(model, inputs, private, head_guesses(shot, features), fit=fit, folder=folder)


def learn(
    model: nn.Module,
    inputs: Inputs,
    private: NoisyLabels | Labels,
    guesses: npt.ArrayLike,
    *,
    fit: Fit,
    folder: Path | None = None,
) -> nn.Module:
    """Train on labels and guesses that were paid for before (step 3): post-processing, at no cost.

    Args:
        private: responses, or `Labels` made of other releases (teachers' votes: Tang et al. 2022, pipeline 2).
        guesses: a class for every row, (n,), from releases or public.
    """
    found = denoise(private, guesses, device_of(model))
    return per_row.learn(model, inputs, found.labels, fit=fit, folder=folder)


def denoise(private: NoisyLabels | Labels, guesses: npt.ArrayLike, device: torch.device | str = "cpu") -> Denoised:
    """Keep the labels that agree with the guesses, and estimate how right they are.

    >>> vault = LabelVault([0, 1] * 5000, num_classes=2)
    >>> found = denoise(vault.release(RandomizedResponse(1.0, 2)), [0, 1] * 5000)
    >>> abs(found.guesses_right - 1) < 0.1, found.expected > 0.95
    (True, True)
    """
    guessed = np.asarray(guesses)
    labels = as_labels(private, len(guessed), device)
    agrees = labels.targets.argmax(dim=1) == torch.as_tensor(guessed, device=labels.targets.device)
    known = labels.weights > 0
    share = float((agrees & known).sum() / known.sum().clamp_min(1))
    if share == 0:
        raise ValueError(
            "no private label agrees with its guess, so none would be kept; check that rows are in one order"
        )
    right, expected = _estimates(private, share)
    return Denoised(labels.only(agrees), guessed.astype(np.int64), share, right, expected)


def majority(
    responses: npt.ArrayLike, groups: npt.ArrayLike, num_classes: int, *, others_only: bool = False
) -> Classes:
    """Return for each row the most frequent private label of its group, (n,); ties go to the lower class.

    Args:
        responses: private labels, (n,).
        groups: each row's group, (n,), found without labels.
        others_only: leave the row's own label out. With it a label tends to agree with itself where votes are close:
            more are kept, fewer of them right, and the closed form does not hold.

    >>> majority([0, 0, 1, 1], [0, 0, 0, 1], 2)
    array([0, 0, 0, 1])
    """
    given, where = np.asarray(responses, dtype=np.int64), np.asarray(groups, dtype=np.int64)
    counts = np.bincount(where * num_classes + given, minlength=(where.max(initial=0) + 1) * num_classes)
    votes = counts.reshape(-1, num_classes)
    if not others_only:
        return votes.argmax(axis=1)[where]
    others = votes[where]
    others[np.arange(len(given)), given] -= 1
    return others.argmax(axis=1)


def head_guesses(shot: OneShot, features: Tensor) -> Classes:
    """Return the head's class for every row, (n,)."""
    return shot.predict(features).cpu().numpy()


def kept_accuracy(epsilon: float, guesses_right: float) -> float:
    """Return e^ε / (e^ε + (1 − a)/a): the share of kept labels that are right (Tang et al. 2022, section 4.3.2).

    >>> round(kept_accuracy(1.0, 0.883), 4), kept_accuracy(0.0, 0.4)
    (0.9535, 0.4)
    """
    if not 0 <= guesses_right <= 1:
        raise ValueError(f"guesses_right={guesses_right} is not a share; give a number from 0 to 1")
    # a·e^ε / (a·e^ε + 1 − a), with e^{−ε} so that a large ε does not overflow.
    return guesses_right / (guesses_right + (1 - guesses_right) * math.exp(-epsilon)) if guesses_right else 0.0


def _estimates(private: NoisyLabels | Labels, share: float) -> tuple[float, float]:
    """Return the share of guesses that are right, by the share of labels kept, and that of the kept labels."""
    if not isinstance(private, NoisyLabels) or not isinstance(private.channel, RandomizedResponse):
        return math.nan, math.nan
    epsilon, classes = private.channel.epsilon, private.channel.num_classes
    # The share kept is q + a·(p − q); solved for a: (share·(e^ε + K − 1) − 1) / (e^ε − 1), in e^{−ε}.
    gain = -math.expm1(-epsilon)
    if gain == 0:
        return math.nan, math.nan
    right = (share * (1 + (classes - 1) * math.exp(-epsilon)) - math.exp(-epsilon)) / gain
    right = min(1.0, max(0.0, right))
    return right, kept_accuracy(epsilon, right)
