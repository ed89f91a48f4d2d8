"""Rehearsal: every choice that must be made before the look, made on pseudo-labels at the real noise.

Clusters of the public features play the labels. The whole mechanism is run on them, with noise as large as it will be,
for each candidate; the one that recovers the pseudo-labels of held-out rows best is taken. No function here has an
argument that could hold a label, so the choice costs no privacy.

A class is seldom one cluster: many small clusters are merged at random into as many pseudo-classes as there are
classes. Then each has several modes, as real classes do, and just as many rows to stand against the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from labeldp.learning.clusters import kmeans
from labeldp.learning.heads import Head, ridge_head
from labeldp.learning.moments import eigenbasis
from labeldp.learning.plans import Basis, Plan, Spectrum, gram_of, prepare, spectrum
from labeldp.learning.temperature import Scale, likeliest_scale, pooled_scale
from labeldp.models.shared import checked_count
from labeldp.releases import NoisyMoments

_HELD_OUT = 0.2
_POWERS = (0.5, 0.75)
# Ranks are tried upwards until this many in a row were no better.
_PATIENCE = 3
# Clusters of more directions are no better pseudo-classes, and take longer.
_CLUSTERED_DIRECTIONS = 256


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
        tried: all plans with their scores, in the order they were tried.
        scales: for each head, the factor that made its scores on held-out rows honest logits of the pseudo-labels.
    """

    plan: Plan
    basis: Basis
    tried: tuple[Scored, ...]
    scales: tuple[Scale, ...]

    def fit(self, noisy: NoisyMoments, rows: Tensor, head: Head = ridge_head) -> nn.Linear:
        """The head from the real moment of `rows`, the basis' features of all rows; a layer on the plain features."""
        weight = head(noisy, rows, gram_of(rows), constant=self.basis.constant_column)
        return self.basis.linear(weight)


def rehearse(
    features: Tensor,
    num_classes: int,
    noise: float | Callable[[int], float],
    *,
    plans: Sequence[Plan] | None = None,
    heads: Sequence[Head] = (ridge_head,),
    num_rows: int | None = None,
    rows: int = 20_000,
    clusterings: int = 6,
    draws: int = 4,
    most: int | None = None,
    seed: int = 0,
    stage: Stage | None = None,
    report: Callable[[Scored], None] | None = None,
) -> Rehearsal:
    """The plan that recovers pseudo-labels best when the moment has noise of deviation `noise` · radius.

    Args:
        features: public, (n, p), on the device where the work is to be done.
        num_classes: K.
        noise: the noise multiplier σ, `GaussianNoise.for_budget(ε, δ).std`: noise per entry over the longest row. Or a
            function that gives it for a number of directions.
        plans: candidates. None: ranks 8, 12, 16, 24, … at power ½, upwards while it pays, and the ranks about the best
            of them at power ¾.
        heads: the first plays on all plans; on the winning plan all of them do, for their scales. Which of them to use
            is better told after the look (`drawn.compare_heads`): clusters overlap more than classes do.
        num_rows: how many rows the real moment will have; as many as `features` when None.
        rows: rows the rehearsal is run on. Noise is scaled down with them, so that each row counts as much as it will.
        clusterings: how many sets of pseudo-labels.
        draws: noises per set and plan; one per set for the scales.
        most: the largest rank; 1,024 on a CPU and 4,096 on a GPU when None.
        seed: of everything random here; public.
        stage: rows and pseudo-labels from an earlier rehearsal of the same features, which saves most of the time.
        report: told of every plan tried.

    >>> x = torch.randn(400, 20, generator=Generator().manual_seed(0)) * torch.linspace(3, 0.1, 20)
    >>> small, large = (rehearse(x, 3, noise, num_rows=10_000).plan.rank for noise in (500.0, 5.0))
    >>> small <= large
    True
    """
    by_width = noise if callable(noise) else lambda width: noise
    if not by_width(1) >= 0 or not heads:
        raise ValueError(f"noise={noise} must be a noise multiplier, at least 0, and heads={heads!r} not be empty")
    if stage is None:
        stage = Stage(
            features, num_classes, num_rows=num_rows, rows=rows, clusterings=clusterings, most=most, seed=seed
        )
    tried: list[Scored] = []

    def score(plan: Plan) -> float:
        tried.append(Scored(plan, stage.score(plan, heads[0], by_width, draws)))
        if report is not None:
            report(tried[-1])
        return tried[-1].score

    _try_all(score, plans, stage.ranks())
    # The first of equals: candidates are in order of rank, and less noise is better than more.
    winner = max(tried, key=lambda scored: scored.score).plan
    scales = tuple(stage.scale(winner, head, by_width) for head in heads)
    return Rehearsal(winner, prepare(winner, stage.found, features), tuple(tried), scales)


def _try_all(score: Callable[[Plan], float], plans: Sequence[Plan] | None, ranks: list[int]) -> None:
    """Every plan given, or ranks upwards at the first power while it pays, then those about the best at the others."""
    if plans is not None:
        if not plans:
            raise ValueError("plans is empty; give at least one, or None for the usual ones")
        for plan in plans:
            score(plan)
        return
    scores: list[float] = []
    for rank in ranks:
        scores.append(score(Plan(rank, _POWERS[0])))
        if len(scores) - scores.index(max(scores)) > _PATIENCE:
            break
    best = scores.index(max(scores))
    for power in _POWERS[1:]:
        # Stronger whitening wants fewer directions, seldom more.
        for rank in ranks[max(0, best - 2) : best + 2]:
            score(Plan(rank, power))


def _most_components(features: Tensor) -> int:
    return 4096 if features.is_cuda else 1024


class Stage:
    """Some rows in the basis of their components, several sets of pseudo-labels for them, and scores.

    Arguments as for `rehearse`; `per_class` clusters are merged to make one pseudo-class.
    """

    def __init__(
        self,
        features: Tensor,
        num_classes: int,
        *,
        num_rows: int | None = None,
        rows: int = 20_000,
        clusterings: int = 6,
        per_class: int = 10,
        most: int | None = None,
        seed: int = 0,
    ) -> None:
        found = spectrum(features, most=most or _most_components(features), seed=seed)
        order = torch.randperm(len(features), generator=Generator().manual_seed(seed))[:rows]
        self.trained = max(1, round(len(order) * (1 - _HELD_OUT)))
        if self.trained == len(order):
            raise ValueError(f"features has {len(features)} rows; a rehearsal holds some out: give at least 3")
        # Once for all plans: they scale these columns.
        self.turned = (features[order.to(features.device)].float() - found.mean) @ found.components
        self.features, self.found, self.variances = features, found, found.variances
        self.num_classes = checked_count("num_classes", num_classes)
        self.share = self.trained / (num_rows or len(features))
        self.per_class, self.seed = checked_count("per_class", per_class), seed
        count = checked_count("clusterings", clusterings)
        # Every other one is of half-whitened features, in which lesser directions count, too.
        self.pseudo = [self._pseudo_labels(0.5 * (number % 2), seed + number) for number in range(count)]

    def _pseudo_labels(self, power: float, seed: int) -> Tensor:
        """Rows' classes (m,): several clusters to a class, fewer where rows are few, merged at random."""
        # Components with hardly any variance cost time and decide nothing.
        energy = self.variances.pow(1 - power).cumsum(0)
        rank = min(_CLUSTERED_DIRECTIONS, int((energy < 0.95 * energy[-1]).sum()) + 1)
        points = self.turned[:, :rank] * self.variances[:rank].clamp_min(1e-30).pow(-power / 2)
        clusters = min(len(points), max(self.num_classes, min(self.per_class * self.num_classes, len(points) // 10)))
        members = kmeans(points, clusters, iterations=20, tolerance=1e-3, seed=seed).members
        classes = torch.arange(clusters) % self.num_classes
        merged = classes[torch.randperm(clusters, generator=Generator().manual_seed(seed))]
        return merged.to(members.device)[members]

    def ranks(self) -> list[int]:
        """Numbers of directions to try, rising."""
        most = min(len(self.variances), max(1, len(self.features) // 4))
        steps = [size << step for step in range(16) for size in (8, 12)]
        return [*(rank for rank in steps if rank < most), most]

    def score(self, plan: Plan, head: Head, noise: Callable[[int], float], draws: int) -> float:
        """Share of held-out pseudo-labels that the head recovers."""
        hits = [
            (scores.argmax(dim=1) == labels).double().mean() for scores, labels in self.play(plan, head, noise, draws)
        ]
        return float(torch.stack(hits).mean())

    def scale(self, plan: Plan, head: Head, noise: Callable[[int], float]) -> Scale:
        """The factor that makes the head's scores on held-out rows honest logits, over all sets of pseudo-labels."""
        return pooled_scale(
            likeliest_scale(scores, scores.gather(1, labels[:, None]).sum(dtype=torch.float64))
            for scores, labels in self.play(plan, head, noise, 1)
        )

    def play(
        self, plan: Plan, head: Head, noise: Callable[[int], float], draws: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The head's scores (m, K) of held-out rows and their pseudo-labels (m,), for each set of these and noise."""
        rank = min(plan.rank, len(self.variances))
        turned = self.turned[:, :rank]
        basis = prepare(plan, Spectrum(torch.zeros_like(turned[0]), self.variances[:rank], _unit(turned)), turned)
        rows = basis(turned)
        trained, held = rows[: self.trained], rows[self.trained :]
        axes = eigenbasis(gram_of(trained))
        for labels in self.pseudo:
            moment = class_sums(trained, labels[: self.trained], self.num_classes)
            for draw in range(draws):
                noisy = rehearsed(moment, noise(basis.width) * self.share, self.trained, self.seed + draw)
                weight = head(noisy, trained, axes, constant=basis.constant_column).to(held)
                yield held @ weight.T, labels[self.trained :]


def _unit(turned: Tensor) -> Tensor:
    return torch.eye(turned.shape[1], device=turned.device)


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
