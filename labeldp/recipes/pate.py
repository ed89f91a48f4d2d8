"""PATE-FM: teachers on disjoint label shards vote on a few public rows, a student learns from the winners.

    1. cut the labels into disjoint shards; train one teacher on each, with the features of all rows
    2. let the teachers vote on random rows; a noisy majority above a noisy threshold is released (`TeacherVotes`)
    3. train a student on the labelled rows, semi-supervised: `fit` gets all inputs and the labelled `rows`

Malek et al. 2021; Tang et al. 2022, Algorithms 4 and 5. Published teachers are trained by FixMatch, 800 of them in
thousands of GPU hours. Here they are what `teachers` makes of the queried rows: linear heads on shared features
(`learning.teachers`, 800 in one solve), or any training at all, one after the other (`teacher_votes.one_by_one`).

Published accounting leaves out queries without a winner and depends on the votes, which are secret. Here every
comparison and every winner that there can be is charged, by Gaussian composition: tighter than Rényi bounds for the
same noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from labeldp.budgets.calibrate import PUBLISHED_RATIO, voting_for_budget
from labeldp.core.certificate import Certificate
from labeldp.core.vault import LabelVault
from labeldp.learning.evidence import on_classes
from labeldp.learning.train import Inputs, predict
from labeldp.mechanisms.teachers import Responses, Rows, Teach, TeacherVotes, check_separate
from labeldp.recipes.arguments import Fit, checked, device_of
from labeldp.recipes.kept import checkpoint_of, digest, in_folder, query_note, release_once

# Numbers of the queried rows, (q,) → how teachers vote on them.
Teachers = Callable[[Rows], Teach]


@dataclass(frozen=True)
class Ballot:
    """How many teachers vote on how much; all of it public and fixed before anything is spent.

    Args:
        teachers: shards of n // teachers labels. Published are 500 and 800. Noise depends on queries and winners alone,
            so more teachers drown it better, until single ones are too weak. With a threshold, linear heads on 30,000
            rows of Fashion-MNIST gave most right winners at ε ≤ 0.5 with the smallest shards tried, of ten labels;
            without one, from ε = 0.25 on, larger shards did as well or better (settings compared by true labels).
        queries: how many random rows they vote on.
        responses: the most winners that are released.
        threshold: share of the teachers that should agree; None releases every winner (then responses = queries).
        ratio: noise of the threshold over noise of the winners; 1.6 as published.
        seed: of shards and queried rows.
        at_once: how many teachers are trained together; changes speed and memory, not the guarantee.
    """

    teachers: int = 800
    queries: int = 1000
    responses: int = 250
    threshold: float | None = 0.5
    ratio: float = PUBLISHED_RATIO
    seed: int = 0
    at_once: int = 100

    def mechanism(self, teach: Teach, num_classes: int, epsilon: float, delta: float) -> TeacherVotes:
        """Return the mechanism with the least noise at (ε, δ)."""
        ratio = None if self.threshold is None else self.ratio
        event = voting_for_budget(epsilon, delta, self.queries, self.responses, ratio)
        return TeacherVotes(
            teach, num_classes, self.teachers, self.queries, self.responses, event.noise_std,
            threshold=None if self.threshold is None else self.threshold * self.teachers,
            threshold_std=event.threshold_std, seed=self.seed, at_once=self.at_once,
        )  # fmt: skip

    def rows(self, num_rows: int) -> Rows:
        """Return the queried rows, (queries,): random, without repeats. Sees no label."""
        if self.queries > num_rows:
            raise ValueError(f"queries={self.queries} of {num_rows} rows; query each at most once")
        # Another stream than that of the shards, which start from the same seed.
        return np.random.default_rng((self.seed, 1)).permutation(num_rows)[: self.queries].astype(np.int64)


@dataclass(frozen=True, eq=False)
class TeacherLabels:
    """The labels that the teachers agreed on.

    Args:
        rows: the rows with a winner, (a,).
        classes: their private labels, (a,).
        noise_std: of the noise on every count of votes.
        certificate: what the vault has spent, these labels included.
    """

    rows: Rows
    classes: Responses
    noise_std: float
    certificate: Certificate


@checked
def label(
    teachers: Teachers,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    ballot: Ballot | None = None,
    folder: Path | None = None,
) -> TeacherLabels:
    """Return private labels of some random rows, at (ε, δ) in all: steps 1 and 2.

    Args:
        teachers: the queried rows → a `teach`, for example
            `lambda rows: one_shot_teachers(features, features[rows], num_classes)`.
        ballot: how many teachers, queries and winners; `Ballot()` when None.
        folder: keeps the winners, so that none is drawn twice. One folder for one kind of teachers.

    >>> from labeldp.learning.teachers import ridge_teachers
    >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).repeat(1000, 1)
    >>> vault = LabelVault([0, 1] * 1000, num_classes=2)
    >>> few = Ballot(teachers=200, queries=40, responses=10)
    >>> found = label(lambda rows: ridge_teachers(x, x[rows], 2), vault, epsilon=1.0, delta=1e-5, ballot=few)
    >>> len(found.rows), bool((found.classes == found.rows % 2).mean() > 0.8)
    (10, True)
    """
    ballot = ballot or Ballot()
    queried = ballot.rows(len(vault))
    mechanism = ballot.mechanism(teachers(queried), vault.num_classes, epsilon, delta)
    found = winners(mechanism, vault, folder, queried)
    agreed = np.flatnonzero(found >= 0)
    return TeacherLabels(queried[agreed], found[agreed], mechanism.noise_std, vault.certificate(delta))


def winners(mechanism: TeacherVotes, vault: LabelVault, folder: Path | None, queried: Rows | None = None) -> Responses:
    """Return the class that teachers agree on for every query, −1 for none; drawn once in a folder.

    Args:
        queried: the rows that are voted on, where they are rows of the vault: what was kept for others is refused.
    """
    mechanism.fits(len(vault), vault.num_classes)
    kept = in_folder(folder, "votes.npz")
    if kept is None or not kept.exists():
        # One teacher on made-up labels: a mistake in it must not cost privacy.
        check_separate(mechanism, len(vault), teachers=1)
    note = {**query_note(vault, mechanism), **mechanism.describe()}
    if queried is not None:
        note["rows queried"] = digest(queried)
    return release_once(vault, mechanism, kept, note, numbers=mechanism.queries)


@checked
def train(
    model: nn.Module,
    inputs: Inputs,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    fit: Fit,
    teachers: Teachers,
    ballot: Ballot | None = None,
    folder: Path | None = None,
) -> nn.Module:
    """Train teachers, release their winners, train the student. With a folder, a killed run goes on.

    Args:
        fit: trains the student on the labelled `rows` of all inputs. `learning.fixmatch.fixmatch` learns from the
            others too and is what was published; `learning.train.fit` leaves them out.
    """
    found = label(teachers, vault, epsilon=epsilon, delta=delta, ballot=ballot, folder=folder)
    if not len(found.rows):
        raise ValueError("no query has a winner: the threshold is too high for these teachers and this noise")
    device = device_of(model)
    classes = torch.full((len(vault),), -1, dtype=torch.int64)
    classes[torch.from_numpy(found.rows)] = torch.from_numpy(found.classes.copy())
    rows = torch.from_numpy(found.rows).to(device)
    return fit(
        model, inputs, on_classes(classes.to(device)), rows=rows, **checkpoint_of(folder, found.rows, found.classes)
    )


def relabel(student: nn.Module, inputs: Inputs) -> Tensor:
    """Return the student's class for every row, (n,): private labels for another method, at no further cost.

    Tang et al. 2022, pipeline 2; AugDescent takes them in place of randomized response.
    """
    return predict(student, inputs).argmax(dim=1)
