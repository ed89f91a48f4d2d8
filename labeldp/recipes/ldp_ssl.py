"""LDP-SSL: semi-supervised training on private labels of all rows or of some (Tang et al. 2022, Algorithm 6).

    ỹ = randomized response at ε;   every row has ỹ as its label and is an unlabelled row too;   then FixMatch

The private labels may be any others: `learn` takes answers of every randomizer, votes of teachers (`pate_fm`), labels
of clusters, or (`train_after`) the surest labels of a head from one look. All but the look itself is post-processing.

Published, the answers are taken at their word. `objective=forward_corrected` maximises their likelihood instead, which
knows how often they are wrong; the consistency of views comes on top of it either way.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from labeldp.core.vault import LabelVault
from labeldp.learning.evidence import Labels, Objective, as_labels, most_confident, on_responses
from labeldp.learning.train import Inputs, predict
from labeldp.recipes import students
from labeldp.recipes.common import Fit, checkpoint_of, device_of, in_folder, response, train_once
from labeldp.recipes.one_shot import OneShot
from labeldp.releases import NoisyLabels


def train(
    model: nn.Module,
    inputs: Inputs,
    vault: LabelVault,
    *,
    epsilon: float,
    fit: Fit,
    objective: Callable[[NoisyLabels, torch.device], Objective] = on_responses,
    folder: Path | None = None,
) -> nn.Module:
    """Ask every label once at `epsilon` and train on the answers. With a folder, a killed run can be resumed.

    Args:
        fit: `labeldp.learning.fixmatch.fixmatch` with its settings bound.
        objective: what is made of the answers: `on_responses` as published, or `forward_corrected`, `self_posterior`.
    """
    return train_once(response(epsilon, vault, None), objective, model, inputs, vault, fit, folder)


def learn(
    model: nn.Module, inputs: Inputs, private: NoisyLabels | Labels, *, fit: Fit, folder: Path | None = None
) -> nn.Module:
    """Train on private labels that were paid for before: post-processing, at no cost.

    Args:
        inputs: of all rows, labelled or not, on the model's device.
        private: answers, or `Labels` made of other releases: `from_classes`, `on_rows`, `most_confident`.
        fit: `fixmatch`, its settings bound; `learning.fit.fit` would leave out the rows without a label.
    """
    count = len(inputs[0] if isinstance(inputs, tuple) else inputs)
    labels = as_labels(private, count, device_of(model))
    in_folder(folder, "")
    settings = checkpoint_of(folder, labels.targets.cpu().numpy(), labels.weights.cpu().numpy())
    return fit(model, inputs, labels.objective(), rows=labels.rows(), **settings)


def train_after(
    shot: OneShot,
    features: Tensor,
    model: nn.Module,
    inputs: Inputs,
    *,
    per_class: int,
    fit: Fit,
    student: Fit | None = None,
    folder: Path | None = None,
) -> nn.Module:
    """Train on the head's surest labels of every class, and on all other rows without one; the look was paid for.

    A head's confident labels are nearly always right at a small fraction of the ε that answers per row would need. They
    are of easy rows, though. A student of all the head's probabilities (`recipes.students`) has learnt from the others
    too: its surest labels are better, and FixMatch goes on from its weights.

    Args:
        shot: what `one_shot.train` returned.
        features: the features it was trained on, (n, p).
        per_class: how many labels of each predicted class are kept.
        fit: as in `learn`.
        student: how the model first learns the head's probabilities, such as `learning.fit.fit` with its settings
            bound; the labels are then the model's own. None takes the head's.
    """
    probabilities = shot.probabilities(features)
    if student is not None:
        model = students.train(model, inputs, probabilities, fit=student, folder=folder)
        probabilities = predict(model, inputs).softmax(dim=1)
    return learn(model, inputs, most_confident(probabilities, per_class), fit=fit, folder=folder)
