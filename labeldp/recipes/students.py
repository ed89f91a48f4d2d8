"""A deep network taught by a private teacher's soft labels: better than the teacher, at no further cost in privacy.

    1. a teacher, such as the head of `one_shot`, gives every row class probabilities p_i; they were paid for
    2. the student minimises Σ_i w_i · CE(p_i, student(x_i)) over changed copies of the rows; w_i grows with how
       likely the teacher's first choice is right
    3. for each further generation: p_i ← a mix of the teacher's and the student's probabilities, and again from the
       first weights (noisy student, Xie et al. 2020; born-again networks, Furlanello et al. 2018)

Only public inputs and released probabilities come in, no vault: this is post-processing, and costs nothing.

Why the student can be better: a head on fixed features errs in ways that depend on those features and on the moment's
noise. A network that sees the pixels under changes (crops, mirrors) learns first what holds for many rows, and such
errors late or never (early learning, Liu et al. 2020). When it helps: where a network trained on true labels would be
clearly better than the head, and the teacher is right on most rows, so at ε of about 0.1 and more for tens of
thousands of small images. It does not help where features of a good encoder leave nothing to learn from the pixels, nor
with a network that is no better than the head on true labels. Weights made little difference in our trials; generations
do when they are `matched` to the moment (`train_after`), and the mean of head and student is often better than either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from labeldp.features.augment import Augment, compose, random_crop, random_flip
from labeldp.learning import train as schedules
from labeldp.learning.evidence import Objective
from labeldp.learning.heads import Axes, as_tensor, eigenbasis, power_law
from labeldp.learning.projections import project_to_simplex
from labeldp.learning.train import Inputs, adam, predict
from labeldp.learning.train import fit as fit_model
from labeldp.learning.tuning import gram_of
from labeldp.models.zoo import checked_count
from labeldp.recipes.common import Fit, checkpoint_of, device_of, in_folder
from labeldp.releases import NoisyMoments

if TYPE_CHECKING:
    from labeldp.recipes.one_shot import OneShot


# Class probabilities (n, K) → how much each row counts, (n,).
Weigh = Callable[[Tensor], Tensor]
# The teacher's and the last student's probabilities, (n, K) → the next targets.
Relabel = Callable[[Tensor, Tensor], Tensor]


def by_confidence(power: float = 1.0) -> Weigh:
    """((K·p_max − 1)/(K − 1))^power: 1 where the teacher is sure, 0 where it knows nothing.

    >>> by_confidence()(torch.tensor([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]]))
    tensor([0.0000, 0.5000, 1.0000])
    """
    if not power >= 0:
        raise ValueError(f"power={power} must be at least 0; 0 counts all rows alike")

    def weigh(probabilities: Tensor) -> Tensor:
        classes = probabilities.shape[1]
        sure = (classes * probabilities.amax(dim=1) - 1) / max(classes - 1, 1)
        return sure.clamp(0, 1).pow(power)

    return weigh


def most_confident(share: float = 0.5) -> Weigh:
    """1 for the surest rows of every predicted class, this share of each class's, and 0 for the others.

    Class by class, or the easy classes would crowd out the rest.

    >>> most_confident(0.5)(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.45, 0.55]]))
    tensor([1., 0., 1., 0.])
    """
    if not 0 < share <= 1:
        raise ValueError(f"share={share} is not a share of the rows; give a number above 0 and at most 1")

    def weigh(probabilities: Tensor) -> Tensor:
        confidence, chosen = probabilities.max(dim=1)
        counts = torch.zeros(probabilities.shape[1], device=chosen.device)
        counts = counts.scatter_add_(0, chosen, torch.ones_like(confidence))
        # By class, then by falling confidence: a row's place less its class's first place is its rank in the class.
        order = confidence.argsort(descending=True)
        order = order[chosen[order].argsort(stable=True)]
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        rank = place - (counts.cumsum(0) - counts)[chosen]
        return (rank < (share * counts[chosen]).ceil()).to(probabilities.dtype)

    return weigh


def mixed(share: float = 0.5) -> Relabel:
    """(1 − share)·teacher + share·student: the student's errors and the teacher's are not the same.

    >>> mixed(0.5)(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]]))
    tensor([[0.7500, 0.2500]])
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share={share} is not a weight; give a number from 0 to 1")
    return lambda teacher, student: torch.lerp(teacher, student, share)


def matched(noisy: NoisyMoments, rows: Tensor, share: float = 0.5) -> Relabel:
    """`mixed`, then `corrected` by the teacher's own moment: later generations cannot drift away from what was seen.

    Args:
        noisy, rows: a moment and the features (n, d) it is of: `shot.noisy` and `shot.tuning.basis(features)`.
    """
    axes, mix = eigenbasis(gram_of(rows)), mixed(share)
    return lambda teacher, student: corrected(mix(teacher, student).to(rows.device), noisy, rows, axes)


def corrected(probabilities: Tensor, noisy: NoisyMoments, rows: Tensor, axes: Axes | None = None) -> Tensor:
    """Take back the errors of a guess p that a noisy moment shows, (n, K).

        R = S̃ − Σ_i p_i ⊗ φ_i,   p_i ← the nearest distribution to p_i + Σ_j f_j·(R u_j)(u_jᵀφ_i)/λ_j

    R is the moment of what the guess gets wrong, with the noise of S̃, which is known: least squares on it, shrunk in
    each eigen-direction (λ_j, u_j) of Φ'Φ by its own signal-to-noise ratio f_j, as in `learning.moments.ridge`. Where
    nothing but noise is left, f is near 0 and the guess stays. It is the honest way to use a look whose noise the
    guess has not seen; with the moment that the guess was made of, it keeps the two together.

    Args:
        noisy: the moment.
        rows: the same features as it was made of, (n, d), on the probabilities' device.
        axes: `eigenbasis(gram_of(rows))`, if at hand.

    >>> truth = torch.eye(2)[torch.arange(400) % 2]
    >>> sums = (truth.T @ truth).numpy()
    >>> exact = NoisyMoments(sums.astype(float), sums.sum(axis=0), 400, "none", noise_std=0.0, radius=1.0)
    >>> corrected(torch.full((400, 2), 0.5), exact, truth)[:2].round(decimals=2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    axes = eigenbasis(gram_of(rows)) if axes is None else axes
    explained = (probabilities.T @ rows.to(probabilities)).double()
    contrasts = (as_tensor(noisy.value, axes.values) - explained) @ axes.vectors
    freedom = max(noisy.num_classes - 1, 1)
    # What labels scatter about the guess if it is right, besides the noise.
    spread = (probabilities * (1 - probabilities)).sum(dim=1).mean().double() / freedom
    noise = noisy.noise_std**2 + spread * axes.values
    signal, _ = power_law(contrasts.square().sum(dim=0) / freedom, axes.values, noise)
    kept = signal / (signal + noise).clamp_min(1e-300)
    weight = (contrasts * (kept * axes.inverse())) @ axes.vectors.T
    return project_to_simplex(probabilities + rows.to(probabilities) @ weight.to(probabilities).T)


def on_probabilities(targets: Tensor, weights: Tensor | None = None) -> Objective:
    """w_i · CE(p_i, softmax(logits)), the weights brought to mean 1 over the rows."""
    if weights is None:
        return lambda logits, rows: -(targets[rows] * log_softmax(logits, dim=-1)).sum(dim=-1)
    scaled = weights / weights.mean().clamp_min(1e-12)
    return lambda logits, rows: -(scaled[rows] * (targets[rows] * log_softmax(logits, dim=-1)).sum(dim=-1))


def train(
    model: nn.Module,
    inputs: Inputs,
    probabilities: Tensor | np.ndarray,
    *,
    fit: Fit | None = None,
    weigh: Weigh | None = None,
    generations: int = 1,
    relabel: Relabel | None = None,
    folder: Path | None = None,
) -> nn.Module:
    """Train the model on a teacher's probabilities, in place; returns it in eval mode.

    Args:
        inputs: public, on the model's device: floats, already scaled.
        probabilities: the teacher's, (n, K); the better calibrated, the better the weights. Released or public.
        fit: the training algorithm; `usual_fit(inputs)` when None.
        weigh: how much each row counts; `by_confidence()` when None.
        generations: how often a student is trained, each from the model's first weights.
        relabel: the targets of the next generation; `mixed()` when None.
        folder: keeps a checkpoint of every generation, so that a killed run goes on.

    >>> x = torch.linspace(-1, 1, 64)[:, None]
    >>> teacher = torch.cat((torch.sigmoid(4 * x), torch.sigmoid(-4 * x)), dim=1)
    >>> _ = torch.manual_seed(0)
    >>> student = train(nn.Linear(1, 2), x, teacher)
    >>> predict(student, torch.tensor([[-1.0], [1.0]])).argmax(dim=1)
    tensor([1, 0])
    """
    teacher = _checked(model, inputs, probabilities)
    fit, weigh, relabel = fit or usual_fit(inputs), weigh or by_confidence(), relabel or mixed()
    first = {name: value.clone() for name, value in model.state_dict().items()}
    in_folder(folder, "")
    targets = teacher
    for generation in range(checked_count("generations", generations)):
        if generation > 0:
            targets = relabel(teacher, predict(model, inputs).softmax(dim=1)).to(teacher)
            model.load_state_dict(first)
        weights = weigh(targets)
        settings = checkpoint_of(folder, targets.cpu().numpy(), weights.cpu().numpy())
        model = fit(model, inputs, on_probabilities(targets, weights), **settings)
    return model


def train_after(
    shot: OneShot, features: Tensor, model: nn.Module, inputs: Inputs, *, generations: int = 3, **settings: Any
) -> nn.Module:
    """The student of one look in one line: the head's probabilities, and generations `matched` to its moment.

    Args:
        shot: what `one_shot.train` returned; it was paid for.
        features: the features it was trained on, (n, p).
        generations: how often a student is trained.
        settings: any other of `train`.
    """
    relabel = matched(shot.noisy, shot.tuning.basis(features)) if generations > 1 else None
    given = {"relabel": relabel, "generations": generations, **settings}
    return train(model, inputs, shot.probabilities(features), **given)


def usual_fit(inputs: Inputs, *, epochs: int | None = None, flip: bool | None = None, **settings: Any) -> Fit:
    """`labeldp.learning.train.fit` with settings for students, by the kind and size of the inputs.

    Adam with a one-cycle rate, batches of 512 (fewer where rows are few), `image_changes` for images (n, C, H, W) and
    mixup for everything else.

    Args:
        epochs: as many as pass about 900,000 images when None, 12 at least.
        flip: mirror images; whether that keeps the class is public knowledge of the data. When None, only in colour:
            digits are not to be mirrored, and clothes are, but both are grey.
        settings: any of `fit`, instead of those here.
    """
    rows = inputs[0] if isinstance(inputs, tuple) else inputs
    usual: dict[str, Any] = {
        "epochs": epochs or max(12, min(200, round(900_000 / max(len(rows), 1)))),
        "batch_size": min(512, max(32, len(rows) // 48)),
        "optimizer": adam(2e-3, weight_decay=0.01),
        "schedule": schedules.one_cycle(),
    }
    usual |= {"augment": image_changes(rows, flip)} if rows.ndim == 4 else {"mixup": 0.4}
    return functools.partial(fit_model, **{**usual, **settings})


def image_changes(images: Tensor, flip: bool | None = None) -> Augment:
    """Crops that move by up to a fourteenth of the side (an eighth in colour), and mirrors if asked for."""
    colour, side = images.shape[1] > 1, min(images.shape[2:])
    crop = random_crop(max(1, side // (8 if colour else 14)))
    return compose(crop, random_flip()) if (colour if flip is None else flip) else crop


def _checked(model: nn.Module, inputs: Inputs, probabilities: Tensor | np.ndarray) -> Tensor:
    """The probabilities on the model's device, or ValueError if rows, classes or values do not fit."""
    if not isinstance(probabilities, Tensor | np.ndarray):
        raise ValueError(f"probabilities is a {type(probabilities).__name__}; give a tensor or array (n, K)")
    given = torch.as_tensor(probabilities).detach()
    rows = len(inputs[0] if isinstance(inputs, tuple) else inputs)
    if given.ndim != 2 or len(given) != rows or rows == 0:
        raise ValueError(f"probabilities has shape {tuple(given.shape)} for {rows} inputs; give one row (K,) for each")
    given = given.to(device_of(model), torch.float32)
    wrong = int((~((given >= 0).all(dim=1) & ((given.sum(dim=1) - 1).abs() < 1e-3))).sum())
    if wrong:
        raise ValueError(f"probabilities has {wrong} rows that are no distribution; give numbers ≥ 0 that add up to 1")
    some = tuple(x[:1] for x in (inputs if isinstance(inputs, tuple) else (inputs,)))
    outputs = tuple(predict(model, some).shape)
    if outputs != (1, given.shape[1]):
        raise ValueError(f"the model maps one row to shape {outputs}; it must be (1, {given.shape[1]}), as the teacher")
    return given
