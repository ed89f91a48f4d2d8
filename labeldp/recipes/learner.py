"""Any learner on randomized responses, chosen on held-out responses: trees, kernels, or a classifier of the user's.

    ỹ = RR(y; ε), once per row  →  some rows held out  →  every learner fitted to the others and judged on those
    →  the best fitted to all rows

One query of every row is all that is paid for; what comes after the first arrow is post-processing
(`labeldp.learning.learners`), so that learners, settings and stopping are chosen for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from labeldp.core.vault import LabelVault
from labeldp.features.extract import standardiser
from labeldp.learning.learners import Learnt, Task, choose, own, taught
from labeldp.learning.progress import Progress, Report
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.recipes.arguments import check_inputs, checked
from labeldp.recipes.kept import in_folder, release_labels
from labeldp.releases import NoisyLabels

# Rows on which a learner is tried before anything is spent: enough for most leaves and neighbourhoods.
_TRIAL_ROWS = 200


class View(NamedTuple):
    """Which features learners see, (c,), and the factor on each, (c,)."""

    columns: Tensor
    scale: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Return what they see, (n, c)."""
        return features.to(self.scale)[:, self.columns] * self.scale


def seen_by_learners(features: Tensor, columns: npt.ArrayLike | None) -> View:
    """Return a view of these columns, all when None; those that are not zeros and ones are scaled to variance 1."""
    chosen = torch.arange(features.shape[1]) if columns is None else torch.from_numpy(np.array(columns, dtype=np.int64))
    place = chosen.to(features.device)
    return View(place, standardiser(features[:, place].float()))


@dataclass(frozen=True, eq=False)
class Taught:
    """What a learner learnt from responses.

    Args:
        columns: numbers of the features that it sees, (c,).
        scale: the factor on each, (c,).
        learnt: what predicts.
        name: of the learner, with its settings.
        judged: every learner that was tried, with its mean log-likelihood of held-out responses; empty for a single
            learner of the user's.
    """

    columns: Tensor
    scale: Tensor
    learnt: Learnt
    name: str
    judged: tuple[tuple[str, float], ...]

    def logits(self, features: Tensor) -> Tensor:
        """Return log P(class | row) up to a constant of the row, (n, K)."""
        return self.learnt.logits(View(self.columns, self.scale)(features))

    def probabilities(self, features: Tensor) -> Tensor:
        """Return P(class | row), (n, K)."""
        return self.logits(features).softmax(dim=1)


@checked
def train(
    features: Tensor,
    vault: LabelVault,
    *,
    epsilon: float,
    learner: Any = None,
    columns: npt.ArrayLike | None = None,
    seed: int = 0,
    folder: Path | None = None,
    report: Report | None = None,
) -> Taught:
    """Release one response per label at `epsilon` and teach the learner that predicts held-out responses best.

    Args:
        features: public, (n, p).
        learner: a classifier with `fit` and `predict_proba`, or a list of them to choose from; None for linear, kernel
            and tree learners of this library. A copy is fitted, to class numbers 0 … K − 1.
        columns: numbers of the features to learn from; all when None. Those that are not zeros and ones are scaled to
            variance 1.
        seed: of the split and of random cosines, which are public.
        folder: keeps the responses, so that a killed run goes on and draws nothing twice.
        report: gets progress.

    >>> x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    >>> found = train(x, LabelVault(x[:, 0] * x[:, 1] > 0, 2), epsilon=6.0)
    >>> found.probabilities(torch.tensor([[1.0, 1.0], [-1.0, 1.0]])).argmax(dim=1)
    tensor([1, 0])
    """
    check_inputs(features, vault)
    view = seen_by_learners(features, columns)
    given = learner if isinstance(learner, list | tuple) else () if learner is None else (learner,)
    if learner is not None and not given:
        raise ValueError(f"learner={learner!r} is empty; give a classifier, a list of them, or None")
    for one in given:
        check_learner(one, view(features), vault.num_classes)
    mechanism = RandomizedResponse(epsilon, vault.num_classes)
    private = release_labels(vault, mechanism, kept=in_folder(folder, "responses.npz"))
    if not isinstance(private.channel, RandomizedResponse):
        # Only responses that were released before can be of another kind, and they cost nothing here.
        raise ValueError(
            f"the responses are of the kind {type(private.channel).__name__}, and learners take those of plain "
            "randomized response, which treats all rows and classes alike; choose another method"
        )
    if len(given) == 1:
        return Taught(*view, taught(given[0], view(features), private), repr(given[0]), ())
    return teach(features, private, view, given, seed, report)


def teach(
    features: Tensor, private: NoisyLabels, view: View, given: Sequence[Any], seed: int, report: Report | None
) -> Taught:
    """Return what the learner that predicts held-out responses best learns from all.

    Args:
        features: public, (n, p), of the rows that responded.
        given: the learners; those built in when empty.
    """
    begun, found = time.perf_counter(), []
    task = Task.split(view(features), private, seed)
    for candidate in (own(task, one) for one in given) if given else choose(task, seed):
        found.append(candidate)
        if report is not None:
            told = f"{candidate.name}: held-out log-likelihood {candidate.likelihood:.5f}"
            report(Progress("learner", told, time.perf_counter() - begun))
    best = max(found, key=lambda candidate: candidate.likelihood)
    return Taught(*view, best.refit(), best.name, tuple((one.name, one.likelihood) for one in found))


def check_learner(learner: Any, rows: Tensor, classes: int) -> None:
    """Raise ValueError unless a copy of the learner can be fitted to a few rows and made-up classes, and predicts."""
    name = type(learner).__name__
    missing = [method for method in ("fit", "predict_proba") if not callable(getattr(learner, method, None))]
    if missing or isinstance(learner, type):
        raise ValueError(
            f"learner={learner!r} has no {' and no '.join(missing) or 'settings: it is a class'}; give a classifier as "
            "scikit-learn has them, made with its settings, or a list of such"
        )
    count = max(_TRIAL_ROWS, 4 * classes)
    few, made_up = rows[torch.arange(count, device=rows.device) % len(rows)], np.arange(count) % classes
    try:
        found = taught(learner, few, NoisyLabels(RandomizedResponse(1.0, classes), made_up)).logits(few)
    except Exception as error:
        raise ValueError(
            f"the learner {name} cannot be fitted to {count} rows and made-up classes 0 … {classes - 1}, so nothing "
            f"was spent: {type(error).__name__}: {error}"
        ) from error
    if len(found) != count or not found.isfinite().all():
        raise ValueError(f"the learner {name} predicts no probabilities of {classes} classes for {count} rows")
