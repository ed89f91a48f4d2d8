"""Distillation: a network, or a linear layer, taught by the head of one moment. Better, at no further cost.

A network (`train`, `train_after`):

    1. a teacher, such as the head of `one_shot`, gives every row class probabilities p_i; they were paid for
    2. the student minimises Σ_i w_i · CE(p_i, student(x_i)) over changed copies of the rows; w_i grows with how
       likely the teacher's first choice is right
    3. for each further generation: p_i ← a mix of the teacher's and the student's probabilities, and again from the
       first weights (noisy student, Xie et al. 2020; born-again networks, Furlanello et al. 2018)

Why the student can be better: a head on fixed features errs in ways that depend on those features and on the moment's
noise. A network that sees the pixels under changes (crops, mirrors) learns first what holds for many rows, and such
errors late or never (early learning, Liu et al. 2020). It helps where a network trained on true labels would be clearly
better than the head, and the teacher is right on most rows: at ε of about 0.1 and more for tens of thousands of small
images. It does not where features of a good encoder leave nothing to learn from the pixels, nor with a network that is
no better than the head on true labels. Weights made little difference in our trials; generations do when they are
`matched` to the moment, and the mean of head and student is often better than either.

A linear layer on all features (`linear`, `linear_after`), in closed form:

    1. W = argmin Σ_i |p_i − p̄ − W(x_i − x̄)|² + λ|W|², over all features x
    2. q_i = softmax(t·(p̄ + W(x_i − x̄))), with t such that q is nearest to p in cross-entropy
    3. targets ← (p + q)/2, brought to what the moment says (`matched`), squared and normed; again from 1
    4. the prediction is the mean of head and student, in which the head counts by the square of the share of the
       features' directions that are in the moment

Why it is better than its teacher: noise leaves the head some tens of directions, and its weights in those are off by
noise. A regression of its probabilities on all features keeps what many rows say together, and finds directions that
are not in the moment, because in public rows they go along with those that are (self-training; Wei, Shen, Chen and Ma
2021 on why it works). A head with nearly all directions knows more than its student: hence step 4.

Only public inputs and released probabilities come in: post-processing, which costs nothing. `one_shot_student` and
`linear` release the moment first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from labeldp.core.vault import LabelVault
from labeldp.features.augment import Augment, compose, random_crop, random_flip
from labeldp.features.coded import Coded
from labeldp.features.extract import gram_of
from labeldp.learning import optimisers as schedules
from labeldp.learning.evidence import Objective, project_to_simplex
from labeldp.learning.evidence import most_confident as most_confident_labels
from labeldp.learning.heads import Axes, Head, as_tensor, eigenbasis, likeliest_scale, power_law
from labeldp.learning.optimisers import adam
from labeldp.learning.train import Inputs, predict
from labeldp.learning.train import fit as fit_model
from labeldp.learning.tuning import tune
from labeldp.models.zoo import checked_count
from labeldp.recipes import one_shot
from labeldp.recipes.arguments import Fit, checked, device_of
from labeldp.recipes.kept import checkpoint_of, in_folder
from labeldp.recipes.one_shot import HEADS, Clock, OneShot, Report, Tune, check_features
from labeldp.recipes.per_row import learn
from labeldp.releases import NoisyMoments

GENERATIONS, RIDGE = 4, 1e-3
_ROWS_AT_ONCE = 8192
# Class probabilities (n, K) → how much each row counts, (n,).
Weigh = Callable[[Tensor], Tensor]
# The teacher's and the last student's probabilities, (n, K) → the next targets.
Relabel = Callable[[Tensor, Tensor], Tensor]


def by_confidence(power: float = 1.0) -> Weigh:
    """Weigh rows by ((K·p_max − 1)/(K − 1))^power: 1 where the teacher is certain, 0 where it knows nothing.

    >>> by_confidence()(torch.tensor([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]]))
    tensor([0.0000, 0.5000, 1.0000])
    """
    if not power >= 0:
        raise ValueError(f"power={power} must be at least 0; 0 counts all rows alike")

    def weigh(probabilities: Tensor) -> Tensor:
        classes = probabilities.shape[1]
        confidence = (classes * probabilities.amax(dim=1) - 1) / max(classes - 1, 1)
        return confidence.clamp(0, 1).pow(power)

    return weigh


def most_confident(share: float = 0.5) -> Weigh:
    """Weigh the most confident rows of every predicted class by 1, this share of each class's, and the others by 0.

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
    """Return (1 − share)·teacher + share·student: the student's errors and the teacher's are not the same.

    >>> mixed(0.5)(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]]))
    tensor([[0.7500, 0.2500]])
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share={share} is not a weight; give a number from 0 to 1")
    return lambda teacher, student: torch.lerp(teacher, student, share)


def matched(noisy: NoisyMoments, rows: Tensor, share: float = 0.5) -> Relabel:
    """Return `mixed`, then `corrected` by the teacher's own moment, so that later generations cannot drift from it.

    Args:
        noisy, rows: a moment and the features (n, d) it is of: `shot.noisy` and `shot.tuning.basis(features)`.
    """
    axes, mix = eigenbasis(gram_of(rows)), mixed(share)
    return lambda teacher, student: corrected(mix(teacher, student).to(rows.device), noisy, rows, axes)


def corrected(probabilities: Tensor, noisy: NoisyMoments, rows: Tensor, axes: Axes | None = None) -> Tensor:
    """Take back the errors of a guess p that a noisy moment shows, (n, K).

        R = S̃ − Σ_i p_i ⊗ φ_i,   p_i ← the nearest distribution to p_i + Σ_j f_j·(R u_j)(u_jᵀφ_i)/λ_j

    R is the moment of what the guess gets wrong, with the noise of S̃, which is known: least squares on it, shrunk in
    each eigen-direction (λ_j, u_j) of Φ'Φ by its own signal-to-noise ratio f_j, as in `learning.heads`. Where
    nothing but noise is left, f is near 0 and the guess stays. It is the honest way to use a moment whose noise the
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
    """Return the loss w_i · CE(p_i, softmax(logits)), the weights brought to mean 1 over the rows."""
    if weights is None:
        return lambda logits, rows: -(targets[rows] * log_softmax(logits, dim=-1)).sum(dim=-1)
    scaled = weights / weights.mean().clamp_min(1e-12)
    return lambda logits, rows: -(scaled[rows] * (targets[rows] * log_softmax(logits, dim=-1)).sum(dim=-1))


@checked
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
    """Train on the head's probabilities of a moment that was paid for, in generations `matched` to the moment.

    Args:
        shot: what `one_shot.train` returned.
        features: the features it was trained on, (n, p).
        generations: how often a student is trained.
        settings: any other of `train`.
    """
    relabel = matched(shot.noisy, shot.tuning.basis(features)) if generations > 1 else None
    given = {"relabel": relabel, "generations": generations, **settings}
    return train(model, inputs, shot.probabilities(features), **given)


@checked
def one_shot_student(
    model: nn.Module,
    inputs: Inputs,
    features: Tensor,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    fit: Fit | None = None,
    tune: Tune = tune,
    weigh: Weigh | None = None,
    generations: int = 1,
    relabel: Relabel | None = None,
    folder: Path | None = None,
    report: Report | None = None,
) -> nn.Module:
    """Release one moment, then train the model on its head's probabilities: (`epsilon`, `delta`) in all.

    Args:
        features: public, (n, p): what the head sees.
        tune: as for `one_shot.train`.
        report: gets the steps of the head.

    The other arguments are those of `train`.
    """
    checked_count("generations", generations)
    shot = one_shot.train(features, vault, epsilon=epsilon, delta=delta, tune=tune, folder=folder, report=report)
    given: dict[str, Any] = {"fit": fit, "weigh": weigh, "generations": generations, "relabel": relabel}
    return train(model, inputs, shot.probabilities(features), **given, folder=folder)


def train_on_most_confident(
    shot: OneShot | LinearStudent,
    features: Tensor,
    model: nn.Module,
    inputs: Inputs,
    *,
    per_class: int,
    fit: Fit,
    student: Fit | None = None,
    folder: Path | None = None,
) -> nn.Module:
    """Train on the head's most confident labels of every class, and on all other rows without one.

    A head's confident labels are nearly always right at a small fraction of the ε that responses per row would need.
    They are of easy rows, though. A student of all the head's probabilities has learnt from the others too: its most
    confident labels are better, and FixMatch goes on from its weights.

    Args:
        shot: what `one_shot.train` returned, or `linear`; it was paid for.
        features: the features it was trained on, (n, p).
        per_class: how many labels of each predicted class are kept.
        fit: `fixmatch`, as in `per_row.learn`.
        student: how the model first learns the head's probabilities, such as `learning.train.fit` with its settings
            bound; the labels are then the model's own. None takes the head's.
    """
    probabilities = shot.probabilities(features)
    if student is not None:
        model = train(model, inputs, probabilities, fit=student, folder=folder)
        probabilities = predict(model, inputs).softmax(dim=1)
    return learn(model, inputs, most_confident_labels(probabilities, per_class), fit=fit, folder=folder)


def usual_fit(inputs: Inputs, *, epochs: int | None = None, flip: bool | None = None, **settings: Any) -> Fit:
    """Bind settings for students to `labeldp.learning.train.fit`, by the kind and size of the inputs.

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
    """Return crops that move by up to a fourteenth of the side (an eighth in colour), and mirrors if wanted."""
    colour, side = images.shape[1] > 1, min(images.shape[2:])
    crop = random_crop(max(1, side // (8 if colour else 14)))
    return compose(crop, random_flip()) if (colour if flip is None else flip) else crop


def _checked(model: nn.Module, inputs: Inputs, probabilities: Tensor | np.ndarray) -> Tensor:
    """Return the probabilities on the model's device, or raise ValueError if rows, classes or values do not fit."""
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


# --- a linear student -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LinearStudent:
    """A head and its student. Holds no label; may be kept and published.

    Args:
        shot: the moment and its head.
        layer: the student on plain features; softmax of its outputs are its probabilities.
        share: how much the head counts, from 0 to 1.
    """

    shot: OneShot
    layer: nn.Linear
    share: float

    def probabilities(self, features: Tensor) -> Tensor:
        """Return the mean of both, (m, K), of plain features, old or new."""
        rows = features.to(self.layer.weight)
        student = _softmax(self.layer, rows)
        # A head on other features than these has no share.
        return student if self.share == 0 else torch.lerp(student, self.shot.probabilities(rows), self.share)

    def predict(self, features: Tensor) -> Tensor:
        """Return the likeliest class of each row, (m,)."""
        return self.probabilities(features).argmax(dim=1)


@checked
def linear(
    features: Tensor | Coded,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    tune: Tune = tune,
    heads: Sequence[Head] = HEADS,
    seen: Tensor | None = None,
    generations: int = GENERATIONS,
    ridge: float = RIDGE,
    seed: int = 0,
    folder: Path | None = None,
    report: Report | None = None,
) -> LinearStudent:
    """Release one moment and solve the head and its linear student: (`epsilon`, `delta`) in all.

    Args:
        features: public, (n, p), in the vault's order, on the device where the work is to be done.
        epsilon, delta, tune, heads, folder: as for `one_shot.train`.
        seen: features (n, r) for the moment instead, such as a graph's (`labeldp.features.graph`): the student learns
            from their head on the plain ones, which alone are then needed for new rows.
        generations, ridge: as for `linear_after`.
        report: gets every step.

    >>> x = torch.randn(3000, 8, generator=torch.Generator().manual_seed(0))
    >>> vault = LabelVault((x[:, 0] > 0).long(), num_classes=2)
    >>> student = linear(x, vault, epsilon=0.5, delta=1e-6)
    >>> bool((student.predict(x) == (x[:, 0] > 0)).float().mean() > 0.8), vault.certificate(1e-6).epsilon <= 0.5
    (True, True)
    """
    check_linear(generations, ridge)
    given: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "tune": tune, "heads": heads, "folder": folder}
    if isinstance(features, Coded):
        shot = one_shot.train(features, vault, seed=seed, report=report, **given)
        # The student learns what the head knows from the rows that the head was solved on, and their moment.
        some = one_shot.rows_held(features, None, seed)
        rows = some.features()
        own = replace(shot, noisy=one_shot.moment_of(shot.tuning.basis(rows), shot.noisy))
        student = linear_after(own, rows, generations=generations, ridge=ridge, report=report)
        return replace(student, shot=shot)
    # All of this before the query: it is paid for, whatever comes after.
    check_features(features, vault)
    shot = one_shot.train(features if seen is None else seen, vault, report=report, **given)
    return linear_after(shot, features, seen=seen, generations=generations, ridge=ridge, report=report)


def linear_after(
    shot: OneShot,
    features: Tensor,
    *,
    seen: Tensor | None = None,
    generations: int = GENERATIONS,
    ridge: float = RIDGE,
    report: Report | None = None,
) -> LinearStudent:
    """Solve the linear student of a moment that was paid for; queries nothing.

    Args:
        shot: what `one_shot.train` returned.
        features: all there are of the same rows, (n, p).
        seen: the features it was trained on, where those are others.
        generations: how often the student is fitted.
        ridge: λ, as a multiple of the features' mean variance times n.
        report: gets every generation.
    """
    check_linear(generations, ridge)
    if seen is not None and len(features) != len(seen):
        raise ValueError(f"seen has {len(seen)} rows and features {len(features)}; give both for the same rows")
    shown = features if seen is None else seen
    clock = Clock(report)
    clock("student", f"1 of {generations}, on {features.shape[1]:,} features", 0.0)
    teacher = shot.probabilities(shown)
    relabel = matched(shot.noisy, shot.tuning.basis(shown))
    regression = _Regression(features.to(teacher), ridge)
    layer = regression.fitted(teacher, teacher)
    for generation in range(1, generations):
        student = _softmax(layer, features)
        agree = float((student.argmax(dim=1) == teacher.argmax(dim=1)).float().mean())
        clock(
            "student",
            f"{generation} of {generations}, {100 * agree:.1f}% as the head",
            generation / generations,
        )
        # Squares, normed: more confident, in the same order.
        sharper = relabel(teacher, student).square()
        layer = regression.fitted(sharper / sharper.sum(dim=1, keepdim=True).clamp_min(1e-30), teacher)
    clock("student", f"{generations} of {generations}")
    covered = shot.tuning.basis.matrix.shape[1] / max(regression.directions, 1)
    return LinearStudent(shot, layer, 0.0 if seen is not None else min(1.0, covered) ** 2)


class _Regression:
    """Ridge regressions of different targets on the same features, of which one factorisation is kept."""

    def __init__(self, features: Tensor, ridge: float) -> None:
        self._features = features
        self._mean = features.mean(dim=0, dtype=torch.float64).to(features)
        gram = torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64, device=features.device)
        for part in features.split(_ROWS_AT_ONCE):
            gram += gram_of(part - self._mean)
        spread = gram.diagonal()
        # Features that are the same for all rows say nothing.
        self.directions = int((spread > 1e-9 * spread.amax()).sum())
        penalty = (ridge * spread.sum() / max(self.directions, 1)).clamp_min(torch.finfo(gram.dtype).tiny)
        gram.diagonal().add_(penalty)
        self._factor = torch.linalg.cholesky(gram)

    def fitted(self, targets: Tensor, teacher: Tensor) -> nn.Linear:
        """Return the layer in the direction of these targets whose softmax is nearest to the teacher's."""
        centre = targets.mean(dim=0)
        moment = torch.zeros(targets.shape[1], len(self._mean), dtype=torch.float64, device=targets.device)
        for rows, wanted in zip(self._features.split(_ROWS_AT_ONCE), targets.split(_ROWS_AT_ONCE), strict=True):
            moment += (wanted - centre).T @ (rows - self._mean)
        weight = torch.cholesky_solve(moment.T, self._factor).T.to(targets)
        layer = _linear(weight, centre - weight @ self._mean)
        scores = torch.cat([layer(part) for part in self._features.split(_ROWS_AT_ONCE)])
        scale = likeliest_scale(scores, (teacher * scores).sum(dtype=torch.float64))
        return _linear(scale * layer.weight, scale * layer.bias)


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], len(weight), device=weight.device)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer.requires_grad_(False)


def _softmax(layer: nn.Linear, features: Tensor) -> Tensor:
    rows = features.to(layer.weight)
    return torch.cat([torch.softmax(layer(part), dim=1) for part in rows.split(_ROWS_AT_ONCE)])


def check_linear(generations: int = GENERATIONS, ridge: float = RIDGE) -> None:
    """Raise ValueError for what `linear_after` would refuse, before anything is spent."""
    checked_count("generations", generations)
    if not 0 < ridge < float("inf"):
        raise ValueError(f"ridge={ridge} must be above 0 and finite; {RIDGE:g} is usual")
