"""A linear student of one look: it knows all features where the head could ask about few. Closed form, free.

    1. the head of `one_shot` gives every row class probabilities p_i; they were paid for
    2. W = argmin Σ_i |p_i − p̄ − W(x_i − x̄)|² + λ|W|², over all features x
    3. q_i = softmax(t·(p̄ + W(x_i − x̄))), with t such that q is nearest to p in cross-entropy
    4. targets ← (p + q)/2, brought to what the moment says (`students.matched`), squared and normed; again from 2
    5. the answer is the mean of head and student, in which the head counts by the square of the share of the features'
       directions that it asked about

Only public features and released probabilities come in: post-processing, which costs nothing.

Why it is better than its teacher: noise leaves the head some tens of directions, and its weights in those are off by
noise. A regression of its probabilities on all features keeps what many rows say together, and finds directions that
nobody asked about, because in public rows they go along with those that were (self-training; Wei, Shen, Chen and Ma
2021 on why it works). A head that asked about nearly all directions knows more than its student: hence step 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labeldp.core.vault import LabelVault
from labeldp.learning.heads import likeliest_scale
from labeldp.learning.tuning import gram_of
from labeldp.models.zoo import checked_count
from labeldp.recipes import one_shot
from labeldp.recipes.moment_noise import check_features
from labeldp.recipes.one_shot import Clock, OneShot, Report
from labeldp.recipes.students import matched

GENERATIONS, RIDGE = 4, 1e-3
_ROWS_AT_ONCE = 8192


@dataclass(frozen=True, eq=False)
class LinearStudent:
    """A head and its student. Holds no label; may be kept and published.

    Args:
        shot: the look and its head.
        layer: the student on plain features; softmax of its outputs are its probabilities.
        share: how much the head counts, from 0 to 1.
    """

    shot: OneShot
    layer: nn.Linear
    share: float

    def probabilities(self, features: Tensor) -> Tensor:
        """(m, K) of plain features, old or new: the mean of both."""
        rows = features.to(self.layer.weight)
        student = _softmax(self.layer, rows)
        # A head that looked at other features than these has no share.
        return student if self.share == 0 else torch.lerp(student, self.shot.probabilities(rows), self.share)

    def predict(self, features: Tensor) -> Tensor:
        """The likeliest class of each row, (m,)."""
        return self.probabilities(features).argmax(dim=1)


def train(
    features: Tensor,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    seen: Tensor | None = None,
    generations: int = GENERATIONS,
    ridge: float = RIDGE,
    report: Report | None = None,
    **query: Any,
) -> LinearStudent:
    """One look and its linear student: (`epsilon`, `delta`) in all.

    Args:
        features: public, (n, p), in the vault's order, on the device where the work is to be done.
        epsilon, delta: as for `one_shot.train`.
        seen: features (n, r) to look at instead, such as a graph's (`labeldp.features.graph`): the student learns
            from their head on the plain ones, which alone are then needed for new rows.
        generations, ridge: as for `train_after`.
        report: told of every step.
        look: any other of `one_shot.train`.

    >>> x = torch.randn(3000, 8, generator=torch.Generator().manual_seed(0))
    >>> vault = LabelVault((x[:, 0] > 0).long(), num_classes=2)
    >>> student = train(x, vault, epsilon=0.5, delta=1e-6)
    >>> bool((student.predict(x) == (x[:, 0] > 0)).float().mean() > 0.8), vault.certificate(1e-6).epsilon <= 0.5
    (True, True)
    """
    check_settings(generations, ridge)
    # All of this before the look: what is asked is paid for, whatever comes after.
    check_features(features, vault)
    looked = features if seen is None else seen
    shot = one_shot.train(looked, vault, epsilon=epsilon, delta=delta, report=report, **query)
    return train_after(shot, features, seen=seen, generations=generations, ridge=ridge, report=report)


def train_after(
    shot: OneShot,
    features: Tensor,
    *,
    seen: Tensor | None = None,
    generations: int = GENERATIONS,
    ridge: float = RIDGE,
    report: Report | None = None,
) -> LinearStudent:
    """The student of a look that was paid for; asks nothing.

    Args:
        shot: what `one_shot.train` returned.
        features: all there are of the same rows, (n, p).
        seen: the features it was trained on, where those are others.
        generations: how often the student is fitted.
        ridge: λ, as a multiple of the features' mean variance times n.
        report: told of every generation.
    """
    check_settings(generations, ridge)
    looked = features if seen is None else _check_rows(features, seen)
    tell = Clock(report)
    teacher = shot.probabilities(looked)
    relabel = matched(shot.noisy, shot.tuning.basis(looked))
    regression = _Regression(features.to(teacher), ridge)
    layer = regression.fitted(teacher, teacher)
    for generation in range(1, generations):
        student = _softmax(layer, features)
        agree = float((student.argmax(dim=1) == teacher.argmax(dim=1)).float().mean())
        tell("student", f"{generation} of {generations}, {100 * agree:.1f}% of first choices are the head's")
        layer = regression.fitted(_squared(relabel(teacher, student)), teacher)
    tell("student", f"{generations} of {generations}")
    asked = shot.tuning.basis.matrix.shape[1] / max(regression.directions, 1)
    return LinearStudent(shot, layer, 0.0 if seen is not None else min(1.0, asked) ** 2)


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
        """The layer whose softmax is nearest to the teacher's probabilities, in the direction of these targets."""
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


def _squared(probabilities: Tensor) -> Tensor:
    """Surer, in the same order."""
    squares = probabilities.square()
    return squares / squares.sum(dim=1, keepdim=True).clamp_min(1e-30)


def check_settings(generations: int = GENERATIONS, ridge: float = RIDGE) -> None:
    """ValueError for what `train_after` would refuse: for callers that look first."""
    checked_count("generations", generations)
    if not 0 < ridge < float("inf"):
        raise ValueError(f"ridge={ridge} must be above 0 and finite; {RIDGE:g} is usual")


def _check_rows(features: Tensor, seen: Tensor) -> Tensor:
    if len(features) != len(seen):
        raise ValueError(f"seen has {len(seen)} rows and features {len(features)}; give both for the same rows")
    return seen
