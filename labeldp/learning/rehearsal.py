"""Rehearsal: every choice that must be made before the look, made on pseudo-labels at the real noise.

Clusters of the public features play the labels. The whole mechanism is run on them, with noise as large as it will be,
for each candidate; the one that recovers the pseudo-labels of held-out rows best is taken. No function here has an
argument that could hold a label, so the choice costs no privacy.

A class is seldom one cluster: many small clusters are merged at random into as many pseudo-classes as there are
classes. Then each has several modes, as real classes do, and just as many rows to stand against the noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Generator, Tensor, nn

from labeldp.learning.clusters import kmeans
from labeldp.learning.heads import Head, ridge_head, softmax_head
from labeldp.learning.moments import Axes, eigenbasis
from labeldp.learning.plans import Basis, Plan, Spectrum, gram_of, prepare, spectrum
from labeldp.models.shared import checked_count
from labeldp.releases import NoisyMoments

_HELD_OUT = 0.2
_POWERS = (0.5, 0.75)
# Ranks are tried upwards until this many in a row were no better.
_PATIENCE = 3
# By how much another head must beat the first. Pseudo-classes overlap more than real ones do, which is kind to heads
# that take noise badly; measured on Fashion-MNIST.
_MARGIN = 0.01


@dataclass(frozen=True)
class Scored:
    """A plan and the share of held-out pseudo-labels it recovered, mean over clusterings and noises."""

    plan: Plan
    score: float


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """The best plan, its basis for all rows, and what every plan tried was worth.

    Args:
        plan: the winner.
        basis: its map from features to rows of length at most 1, ready for the moment (radius 1).
        head: the best of the heads compared on it.
        tried: all plans with their scores, in the order they were tried.
        heads: the score of each head on the winning plan.
    """

    plan: Plan
    basis: Basis
    head: Head
    tried: tuple[Scored, ...]
    heads: tuple[float, ...]

    def fit(self, noisy: NoisyMoments, rows: Tensor) -> nn.Linear:
        """The head from the real moment of `rows`, the basis' features of all rows; a layer on the plain features."""
        weight = self.head(noisy, rows, gram_of(rows), constant=self.basis.constant_column)
        return self.basis.linear(weight)


def rehearse(
    features: Tensor,
    num_classes: int,
    noise: float,
    *,
    plans: Sequence[Plan] | None = None,
    heads: Sequence[Head] = (ridge_head, softmax_head),
    num_rows: int | None = None,
    rows: int = 20_000,
    clusterings: int = 6,
    draws: int = 4,
    seed: int = 0,
) -> Rehearsal:
    """The plan that recovers pseudo-labels best when the moment has noise of deviation `noise` · radius.

    Args:
        features: public, (n, p), on the device where the work is to be done.
        num_classes: K.
        noise: the noise multiplier σ, `GaussianNoise.for_budget(ε, δ).std`: noise per entry over the longest row.
        plans: candidates. None: ranks 8, 12, 16, 24, … at powers ½ and ¾, upwards at each power while it pays.
        heads: compared on the winning plan; the first plays on all plans, and another has to beat it by a point.
        num_rows: how many rows the real moment will have; as many as `features` when None.
        rows: rows the rehearsal is run on. Noise is scaled down with them, so that each row counts as much as it will.
        clusterings: how many sets of pseudo-labels.
        draws: noises per set and plan.
        seed: of everything random here; public.

    >>> x = torch.randn(400, 20, generator=Generator().manual_seed(0)) * torch.linspace(3, 0.1, 20)
    >>> small, large = (rehearse(x, 3, noise, num_rows=10_000).plan.rank for noise in (500.0, 5.0))
    >>> small <= large
    True
    """
    if not noise >= 0 or not heads:
        raise ValueError(f"noise={noise} must be a noise multiplier, at least 0, and heads={heads!r} not be empty")
    found = spectrum(features, seed=seed)
    stage = _Stage(features, found, checked_count("num_classes", num_classes), num_rows, rows, clusterings, draws, seed)
    tried: list[Scored] = []
    for _, same in groupby(_candidates(found, features, plans), key=lambda plan: plan.power):
        best, waited = -1.0, 0
        for plan in same:
            tried.append(Scored(plan, stage.scores(plan, noise, heads[:1])[0]))
            waited = 0 if tried[-1].score > best else waited + 1
            best = max(best, tried[-1].score)
            if plans is None and waited == _PATIENCE:
                break
    # The first of equals: candidates are in order of rank, and less noise is better than more.
    winner = max(tried, key=lambda scored: scored.score)
    scores = (winner.score, *stage.scores(winner.plan, noise, heads[1:]))
    head = max(range(len(heads)), key=lambda number: scores[number] - (_MARGIN if number else 0.0))
    return Rehearsal(winner.plan, prepare(winner.plan, found, features), heads[head], tuple(tried), scores)


def _candidates(found: Spectrum, features: Tensor, plans: Sequence[Plan] | None) -> Iterator[Plan]:
    if plans is not None:
        if not plans:
            raise ValueError("plans is empty; give at least one, or None for the usual ones")
        yield from plans
        return
    most = min(len(found.variances), max(1, len(features) // 4))
    # Finer steps where a rehearsal is cheap and noise large.
    wanted = [8, 12, 16, 24, 32, 48, 64, 96, *(128 << step for step in range(10))]
    ranks = sorted({min(most, rank) for rank in wanted})
    yield from (Plan(rank, power) for power in _POWERS for rank in ranks)


class _Stage:
    """Some rows, several sets of pseudo-labels for them, and scores."""

    def __init__(
        self,
        features: Tensor,
        found: Spectrum,
        num_classes: int,
        num_rows: int | None,
        rows: int,
        clusterings: int,
        draws: int,
        seed: int,
    ) -> None:
        order = torch.randperm(len(features), generator=Generator().manual_seed(seed))[:rows]
        self.features = features[order.to(features.device)].float()
        self.found = found
        self.num_classes = num_classes
        self.trained = max(1, round(len(order) * (1 - _HELD_OUT)))
        if self.trained == len(order):
            raise ValueError(f"features has {len(features)} rows; a rehearsal holds some out: give at least 3")
        self.share = self.trained / (num_rows or len(features))
        self.draws = draws
        self.seed = seed
        count = checked_count("clusterings", clusterings)
        # Every other one is of half-whitened features, in which lesser directions count, too.
        self.pseudo = [self._pseudo_labels(0.5 * (number % 2), seed + number) for number in range(count)]

    def _pseudo_labels(self, power: float, seed: int) -> Tensor:
        """Rows' classes (m,): ten clusters to a class, fewer where rows are few, merged at random."""
        # Components with hardly any variance cost time and decide nothing.
        energy = self.found.variances.pow(1 - power).cumsum(0)
        rank = int((energy < 0.95 * energy[-1]).sum()) + 1
        matrix = self.found.components[:, :rank] * self.found.variances[:rank].clamp_min(1e-30).pow(-power / 2)
        points = (self.features - self.found.mean) @ matrix
        clusters = min(len(points), max(self.num_classes, min(10 * self.num_classes, len(points) // 10)))
        members = kmeans(points, clusters, iterations=20, tolerance=1e-3, seed=seed).members
        classes = torch.arange(clusters) % self.num_classes
        merged = classes[torch.randperm(clusters, generator=Generator().manual_seed(seed))]
        return merged.to(members.device)[members]

    def scores(self, plan: Plan, noise: float, heads: Sequence[Head]) -> tuple[float, ...]:
        """Share of held-out pseudo-labels that each head recovers."""
        basis = prepare(plan, self.found, self.features)
        rows = basis(self.features)
        axes = eigenbasis(gram_of(rows[: self.trained]))
        return tuple(self._score(head, basis, axes, rows, noise) for head in heads)

    def _score(self, head: Head, basis: Basis, axes: Axes, rows: Tensor, noise: float) -> float:
        trained, held = rows[: self.trained], rows[self.trained :]
        hits: list[Tensor] = []
        for labels in self.pseudo:
            moment = class_sums(trained, labels[: self.trained], self.num_classes)
            for draw in range(self.draws):
                noisy = rehearsed(moment, noise * self.share, self.trained, self.seed + draw)
                weight = head(noisy, trained, axes, constant=basis.constant_column)
                hits.append(((held @ weight.T).argmax(dim=1) == labels[self.trained :]).double().mean())
        return float(torch.stack(hits).mean())


def class_sums(rows: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Σ_i onehot(label_i) ⊗ φ_i for public pseudo-labels, (K, d) in float64."""
    onehot = torch.nn.functional.one_hot(labels, num_classes).to(rows.dtype)
    return (onehot.T @ rows).double()


def rehearsed(moment: Tensor, noise_std: float, num_rows: int, seed: int) -> NoisyMoments:
    """What the mechanism would release of this moment (radius 1), with noise from a public seed: protects nobody."""
    # Feature by feature: plans of different rank meet the same noise on features they share, and differ less by luck.
    drawn = torch.randn(moment.shape[::-1], generator=Generator().manual_seed(seed), dtype=torch.float64)
    noise = drawn.T.to(moment.device)
    noise = (noise - noise.mean(dim=0)) * noise_std
    return NoisyMoments(
        value=(moment + noise).cpu().numpy(),
        total=moment.sum(dim=0).cpu().numpy(),
        num_rows=num_rows,
        noise="rehearsed Gaussian",
        noise_std=noise_std,
        radius=1.0,
    )
