"""Tune without labels: every choice that must be made before the query, made on pseudo-labels at the real noise.

Clusters of the public features play the labels. The whole mechanism is run on them, with noise as large as it will be,
for each candidate; the one that recovers the pseudo-labels of held-out rows best is taken. No function here has an
argument that could hold a label, so the choice costs no privacy.

A class is seldom one cluster: many small clusters are merged at random into as many pseudo-classes as there are
classes. Then each has several modes, as real classes do, and just as many rows to stand against the noise.

What is chosen is a `Plan`: which directions of the public features enter the moment, and how they are scaled. The
moment's noise is as large as the longest row allows, so features are turned into rows of length at most 1 that spend it
well: principal components φ = A(x − x̄), partly whitened, with a constant for the class shares, scaled to a bound.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from labeldp.atomic import replacing
from labeldp.features.clusters import kmeans
from labeldp.features.extract import gram_of
from labeldp.learning.heads import Head, Scale, eigenbasis, likeliest_scale, pooled_scale, ridge_head
from labeldp.learning.progress import tell
from labeldp.models.zoo import checked_count
from labeldp.releases import NoisyMoments

_ROWS_AT_ONCE = 8192
# Of the subspace iteration. Components that are nearly alike stay mixed, which costs nothing.
_PASSES = 6
_HELD_OUT = 0.2
_POWERS = (0.5, 0.75)
# Ranks are tried upwards until this many in a row were no better.
_PATIENCE = 3
# Clusters of more directions are no better pseudo-classes, and take longer.
_CLUSTERED_DIRECTIONS = 256


@dataclass(frozen=True)
class Plan:
    """Settings of a `Basis`; `labeldp.learning.tuning` finds good ones without a label.

    Args:
        rank: principal components kept.
        power: of whitening: component j is divided by its deviation to this power; 0 leaves them, 1 makes them alike.
        quantile: rows longer than this quantile of the lengths are scaled down to it; 0 scales all to one length.
        constant: length of the constant feature, as a share of the root mean square length of the others; 0 is none.
    """

    rank: int
    power: float = 0.5
    quantile: float = 0.0
    constant: float = 0.3

    def __post_init__(self) -> None:
        checked_count("rank", self.rank)
        if not 0 <= self.quantile <= 1:
            raise ValueError(f"quantile={self.quantile} is not a share of the rows; give a number from 0 to 1")
        if not (0 <= self.power <= 2 and 0 <= self.constant < math.inf):
            raise ValueError(f"power={self.power} must be 0 to 2 and constant={self.constant} at least 0")


@dataclass(frozen=True)
class Scored:
    """A plan and the share of held-out pseudo-labels it recovered, mean over clusterings and noises."""

    plan: Plan
    score: float
    # About how much of the tuning is done with it; for progress only.
    share: float | None = field(default=None, compare=False)


@dataclass(frozen=True, eq=False)
class Tuning:
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
        """Return the head from the moment of `rows`, the basis' features of all rows, as a layer on plain features."""
        weight = head(noisy, rows, gram_of(rows), constant=self.basis.constant_column)
        return self.basis.linear(weight)


def tune(
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
    drawn: Sequence[Tensor] | None = None,
    stage: Stage | None = None,
    report: Callable[[Scored], None] | None = None,
) -> Tuning:
    """Find the plan that recovers pseudo-labels best when the moment has noise of deviation `noise` · radius.

    Args:
        features: public, (n, p), on the device where the work is to be done.
        num_classes: K.
        noise: the noise multiplier σ, `GaussianNoise.for_budget(ε, δ).std`: noise per entry over the longest row. Or a
            function that gives it for a number of directions.
        plans: candidates. None: ranks 8, 12, 16, 24, … at power ½, upwards while it pays, and the ranks about the best
            of them at power ¾.
        heads: the first plays on all plans; on the winning plan all of them do, for their scales. Which of them to use
            is better decided after the release (`compare_heads`): clusters overlap more than classes do.
        num_rows: how many rows the real moment will have; as many as `features` when None.
        rows: rows to tune on. Noise is scaled down with them, so that each row counts as much as it will.
        clusterings: how many sets of pseudo-labels.
        draws: noises per set and plan; one per set for the scales.
        most: the largest rank; 1,024 on a CPU and 4,096 on a GPU when None.
        seed: of everything random here; public.
        drawn: sets of pseudo-labels, (n,) each, in place of clusters: drawn from a model that was released before.
        stage: rows and pseudo-labels from earlier tuning on the same features, which saves most of the time.
        report: called with every plan tried.

    >>> x = torch.randn(400, 20, generator=Generator().manual_seed(0)) * torch.linspace(3, 0.1, 20)
    >>> small, large = (tune(x, 3, noise, num_rows=10_000).plan.rank for noise in (500.0, 5.0))
    >>> small <= large
    True
    """
    by_width = noise if callable(noise) else lambda width: noise
    if not by_width(1) >= 0 or not heads:
        raise ValueError(f"noise={noise} must be a noise multiplier, at least 0, and heads={heads!r} not be empty")
    if stage is None:
        stage = Stage(
            features, num_classes, num_rows=num_rows, rows=rows, clusterings=clusterings, most=most, seed=seed,
            drawn=drawn,
        )  # fmt: skip
    tried: list[Scored] = []
    # Ranks are tried while it pays, and about the best of them four at every further power.
    expected = len(plans) if plans else len(stage.ranks()) + 4 * (len(_POWERS) - 1)

    def score(plan: Plan) -> float:
        score, done = stage.score(plan, heads[0], by_width, draws), (len(tried) + 1) / expected
        tried.append(Scored(plan, score, min(done, 0.99)))
        if report is not None:
            report(tried[-1])
        return tried[-1].score

    _try_all(score, plans, stage.ranks())
    # The first of equals: candidates are in order of rank, and less noise is better than more.
    winner = max(tried, key=lambda scored: scored.score).plan
    tell("tuning", f"how confident heads may be at rank {winner.rank}", 0.99)
    scales = tuple(stage.scale(winner, head, by_width) for head in heads)
    return Tuning(winner, prepare(winner, stage.found, features), tuple(tried), scales)


def _try_all(score: Callable[[Plan], float], plans: Sequence[Plan] | None, ranks: list[int]) -> None:
    """Try the plans given, or ranks upwards at the first power while it pays, then those about the best at others."""
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


class Stage:
    """Some rows in the basis of their components, several sets of pseudo-labels for them, and scores.

    Arguments as for `tune`; `per_class` clusters are merged to make one pseudo-class.
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
        drawn: Sequence[Tensor] | None = None,
    ) -> None:
        tell("tuning", f"directions of {features.shape[1]:,} features")
        found = spectrum(features, most=most or (4096 if features.is_cuda else 1024), seed=seed)
        order = torch.randperm(len(features), generator=Generator().manual_seed(seed))[:rows]
        self.trained = max(1, round(len(order) * (1 - _HELD_OUT)))
        if self.trained == len(order):
            raise ValueError(f"features has {len(features)} rows; tuning holds some out: give at least 3")
        # Once for all plans: they scale these columns.
        self.turned = (features[order.to(features.device)].float() - found.mean) @ found.components
        self.features, self.found, self.variances = features, found, found.variances
        self.num_classes = checked_count("num_classes", num_classes)
        self.share = self.trained / (num_rows or len(features))
        self.per_class, self.seed = checked_count("per_class", per_class), seed
        count = checked_count("clusterings", clusterings)
        self.held = order[self.trained :]
        if drawn is not None:
            self.pseudo = [labels.to(features.device)[order.to(features.device)] for labels in drawn]
            return
        # Every other one is of half-whitened features, in which lesser directions count, too.
        self.pseudo = []
        for number in range(count):
            tell("tuning", f"clusters that stand in for classes, {number + 1} of {count}", number / count)
            self.pseudo.append(self._pseudo_labels(0.5 * (number % 2), seed + number))

    def _pseudo_labels(self, power: float, seed: int) -> Tensor:
        """Return the rows' classes (m,): several clusters to a class, fewer where rows are few, merged at random."""
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
        """Return numbers of directions to try, rising."""
        most = min(len(self.variances), max(1, len(self.features) // 4))
        steps = [size << step for step in range(16) for size in (8, 12)]
        return [*(rank for rank in steps if rank < most), most]

    def score(self, plan: Plan, head: Head, noise: Callable[[int], float], draws: int) -> float:
        """Return the share of held-out pseudo-labels that the head recovers."""
        hits = [
            (scores.argmax(dim=1) == labels).double().mean() for scores, labels in self.play(plan, head, noise, draws)
        ]
        return float(torch.stack(hits).mean())

    def scale(self, plan: Plan, head: Head, noise: Callable[[int], float]) -> Scale:
        """Return the factor that makes the head's scores on held-out rows honest logits, over all pseudo-labels."""
        return pooled_scale(
            likeliest_scale(scores, scores.gather(1, labels[:, None]).sum(dtype=torch.float64))
            for scores, labels in self.play(plan, head, noise, 1)
        )

    def play(
        self, plan: Plan, head: Head, noise: Callable[[int], float], draws: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the head's scores (m, K) of held-out rows and their pseudo-labels (m,), for each set and noise."""
        rank = min(plan.rank, len(self.variances))
        turned = self.turned[:, :rank]
        own = torch.eye(rank, device=turned.device)
        basis = prepare(plan, Spectrum(torch.zeros_like(turned[0]), self.variances[:rank], own), turned)
        rows = basis(turned)
        trained, held = rows[: self.trained], rows[self.trained :]
        axes = eigenbasis(gram_of(trained))
        for labels in self.pseudo:
            moment = class_sums(trained, labels[: self.trained], self.num_classes)
            for draw in range(draws):
                noisy = mock_release(moment, noise(basis.width) * self.share, self.trained, self.seed + draw)
                weight = head(noisy, trained, axes, constant=basis.constant_column).to(held)
                yield held @ weight.T, labels[self.trained :]


def class_sums(rows: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return Σ_i onehot(label_i) ⊗ φ_i for public pseudo-labels, (K, d) in float64."""
    onehot = torch.nn.functional.one_hot(labels, num_classes).to(rows.dtype)
    return (onehot.T @ rows).double()


def mock_release(moment: Tensor, noise_std: float, num_rows: int, seed: int) -> NoisyMoments:
    """Return what the mechanism would release of this moment (radius 1), with noise of a public seed: no privacy."""
    # Feature by feature: plans of different rank meet the same noise on features they share, and differ less by luck.
    drawn = torch.randn(moment.shape[::-1], generator=Generator().manual_seed(seed), dtype=torch.float64)
    noise = drawn.T.to(moment.device)
    noise = (noise - noise.mean(dim=0)) * noise_std
    return NoisyMoments(
        value=(moment + noise).cpu().numpy(),
        total=moment.sum(dim=0).cpu().numpy(),
        num_rows=num_rows,
        noise="public Gaussian",
        noise_std=noise_std,
        radius=1.0,
    )


def compare_heads(
    heads: Sequence[Head],
    noise_std: float,
    rows: Tensor,
    logits: Tensor,
    *,
    constant: int | None = None,
    most: int = 20_000,
    draws: int = 2,
    seed: int = 0,
) -> tuple[float, ...]:
    """Return for each head the share of rows whose label it would recover, were labels drawn from softmax(logits).

    A second tuning, after the release. Clusters overlap more than classes do, which is kind to heads that take noise
    badly. Once there are probabilities, there are better pseudo-labels: drawn from them, they are mixed up just as much
    as the real ones seem to be, and by the same features (parametric bootstrap; Efron 1979). The head is fitted to the
    moment of drawn labels, with noise as large as the real one, and judged by labels of the same rows that are drawn
    anew. All of it is post-processing.

    Args:
        heads: which to compare.
        noise_std: of the real moment, of all rows.
        rows: features of the moment, (n, d).
        logits: of their classes, (n, K).
        constant: as in `ridge`.
        most: rows it is run on; noise is scaled down with them.
        draws: of labels and noise.
        seed: of everything random here; public.
    """
    generator = Generator().manual_seed(seed)
    some = torch.randperm(len(rows), generator=generator)[:most].to(rows.device)
    part, noise = rows[some], noise_std * min(1.0, most / max(len(rows), 1))
    chances, axes = torch.softmax(logits[some], dim=1).cpu(), eigenbasis(gram_of(part))
    hits = torch.zeros(len(heads), dtype=torch.float64)
    for draw in range(draws):
        taught, truth = (torch.multinomial(chances, 1, generator=generator)[:, 0].to(rows.device) for _ in range(2))
        noisy = mock_release(class_sums(part, taught, chances.shape[1]), noise, len(part), seed + draw)
        for number, head in enumerate(heads):
            weight = head(noisy, part, axes, constant=constant).to(part)
            hits[number] += float(((part @ weight.T).argmax(dim=1) == truth).double().mean())
    return tuple(float(share) for share in hits / draws)


# -- plans -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Mean (p,), principal components (p, p) and the variances along them (p,), falling, of public features."""

    mean: Tensor
    variances: Tensor
    components: Tensor


def spectrum(features: Tensor, *, rows: int = 20_000, most: int | None = None, seed: int = 0) -> Spectrum:
    """Find principal components from at most `rows` random rows. Any public basis is private; a rough one is enough.

    Args:
        features: public, (n, p).
        rows: how many of them to read; all that matters is that they are many times as many as components.
        most: components wanted; all p when None. Few of many are found by subspace iteration on the covariance matrix
            (Halko, Martinsson and Tropp 2011), all by one eigendecomposition, (p, p) in float64.
        seed: of the rows.
    """
    if features.ndim != 2 or not features.is_floating_point() or 0 in features.shape:
        raise ValueError(f"features has shape {tuple(features.shape)} and type {features.dtype}; give floats, (n, p)")
    order = torch.randperm(len(features), generator=Generator().manual_seed(seed))[:rows]
    sample = features[order.to(features.device)].float()
    mean = sample.mean(dim=0, dtype=torch.float64)
    if not math.isfinite(float(mean.sum())):
        raise ValueError("features has values that are not finite; fill in or drop missing ones")
    centred, wanted = sample - mean.float(), min(most or sample.shape[1], sample.shape[1])
    if 2 * len(sample) < sample.shape[1]:
        # Of few rows with many features: their products have the same eigenvalues, and there are far fewer of them.
        values, vectors = torch.linalg.eigh(gram_of(centred.T) / len(sample))
        variances, turned = values.flip(0)[:wanted], vectors.flip(1)[:, :wanted]
        components = torch.nn.functional.normalize(centred.T @ turned.float(), dim=0)
    else:
        variances, components = _eigen(gram_of(centred) / len(sample), wanted, seed)
    return Spectrum(mean.float(), variances.clamp_min(0.0).float(), components.float())


def _eigen(matrix: Tensor, most: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalues, falling, and their vectors."""
    wide = most + max(16, most // 8)
    if 2 * wide > len(matrix):
        values, vectors = torch.linalg.eigh(matrix)
        return values.flip(0)[:most], vectors.flip(1)[:, :most]
    rough = matrix.float()
    basis = torch.randn(len(matrix), wide, generator=Generator().manual_seed(seed)).to(rough)
    for _ in range(_PASSES):
        basis = torch.linalg.qr(rough @ basis).Q
    turned = basis.double()
    values, vectors = torch.linalg.eigh(turned.T @ matrix @ turned)
    return values.flip(0)[:most], (turned @ vectors).flip(1)[:, :most]


@dataclass(frozen=True, eq=False)
class Basis:
    """x ↦ φ, rows of length at most 1: centred, turned and scaled, the constant appended, then bounded.

    Args:
        mean: (p,).
        matrix: (p, r).
        constant: what is appended; 0 appends nothing.
        bound: rows longer than this are scaled down to it, and all are divided by it; 0 scales every row to length 1.
    """

    mean: Tensor
    matrix: Tensor
    constant: float
    bound: float

    @property
    def width(self) -> int:
        """How many features come out."""
        return self.matrix.shape[1] + (self.constant > 0)

    @property
    def constant_column(self) -> int | None:
        """Which column comes from the constant, for `ridge` and `softmax_head`."""
        return self.width - 1 if self.constant > 0 else None

    def __call__(self, features: Tensor) -> Tensor:
        """Map (n, p) → (n, width) in float32, chunk by chunk."""
        parts = map(self._plain, features.split(_ROWS_AT_ONCE))
        return torch.cat([part / self._lengths(part) for part in parts])

    def from_turned(self, turned: Tensor) -> Tensor:
        """Do the same for rows of which x·matrix is known, (n, r), at once."""
        found = turned.new_empty(len(turned), self.width)
        torch.sub(turned, self._offset, out=found[:, : turned.shape[1]])
        found[:, turned.shape[1] :] = self.constant
        return found.div_(self._lengths(found))

    def linear(self, weight: Tensor) -> nn.Linear:
        """Return the head Wφ as a layer on x itself; a row's bound scales its scores alike and keeps their order."""
        weight = weight.to(self.matrix)
        plain = weight[:, : self.matrix.shape[1]] @ self.matrix.T
        bias = -plain @ self.mean
        if self.constant > 0:
            bias = bias + self.constant * weight[:, -1]
        layer = nn.Linear(len(self.mean), len(weight), device=self.matrix.device)
        with torch.no_grad():
            layer.weight.copy_(plain)
            layer.bias.copy_(bias)
        return layer.requires_grad_(False)

    def _plain(self, features: Tensor) -> Tensor:
        turned = (features.float() - self.mean) @ self.matrix
        return turned if self.constant == 0 else torch.nn.functional.pad(turned, (0, 1), value=self.constant)

    def _lengths(self, rows: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        return length.clamp_min(self.bound if self.bound > 0 else torch.finfo(rows.dtype).tiny)

    @cached_property
    def _offset(self) -> Tensor:
        return self.mean @ self.matrix


def prepare(plan: Plan, found: Spectrum, features: Tensor) -> Basis:
    """Return the basis of a plan; `features` give the lengths of their rows, where the plan has a quantile.

    >>> x = torch.tensor([[3.0, 0.0], [-3.0, 0.1], [0.0, -0.1]])
    >>> basis = prepare(Plan(rank=1), spectrum(x), x)
    >>> basis(x).norm(dim=1).round(decimals=4)
    tensor([1., 1., 1.])
    """
    rank = min(plan.rank, int((found.variances > 1e-9 * found.variances[0]).sum()))
    if rank == 0:
        raise ValueError("features do not vary at all; there is nothing to learn from")
    scale = found.variances[:rank].pow(-plan.power / 2)
    size = plan.constant * math.sqrt(float((found.variances[:rank] * scale.square()).sum()))
    free = Basis(found.mean, found.components[:, :rank] * scale, size, 0.0)
    if plan.quantile == 0:
        return free
    parts = [torch.linalg.vector_norm(free._plain(part), dim=1) for part in features.split(_ROWS_AT_ONCE)]
    lengths = torch.cat(parts).sort().values  # torch.quantile refuses many values
    place = min(len(lengths) - 1, max(0, math.ceil(plan.quantile * len(lengths)) - 1))
    return Basis(free.mean, free.matrix, free.constant, float(lengths[place]))


# -- on disk -----------------------------------------------------------------------------------------------------------


def save_plan(path: Path, found: Tuning, note: Mapping[str, Any]) -> None:
    """Write what tuning found and a note of plain JSON values; an older file stays until the new one is whole."""
    tried = [[asdict(scored.plan), scored.score] for scored in found.tried]
    scales = [asdict(scale) for scale in found.scales]
    described = {"plan": asdict(found.plan), "tried": tried, "scales": scales, "note": dict(note)}
    basis = found.basis
    with replacing(path) as draft, draft.open("wb") as file:
        np.savez(
            file, allow_pickle=False, description=np.array(json.dumps(described)), mean=basis.mean.cpu().numpy(),
            matrix=basis.matrix.cpu().numpy(), sizes=np.array([basis.constant, basis.bound]),
        )  # fmt: skip


def load_plan(path: Path, note: Mapping[str, Any], device: torch.device) -> Tuning:
    """Read what `save_plan` wrote; raise ValueError if its note is another one."""
    with np.load(path, allow_pickle=False) as arrays:
        fields = json.loads(str(arrays["description"]))
        mean, matrix = (torch.from_numpy(arrays[name]).to(device) for name in ("mean", "matrix"))
        constant, bound = map(float, arrays["sizes"])
    odd = sorted(key for key in note if note[key] != fields["note"].get(key))
    if odd:
        raise ValueError(f"{path} is the plan of another run ({', '.join(odd)} differ); use a new folder")
    tried = tuple(Scored(Plan(**plan), score) for plan, score in fields["tried"])
    scales = tuple(Scale(**scale) for scale in fields["scales"])
    return Tuning(Plan(**fields["plan"]), Basis(mean, matrix, constant, bound), tried, scales)
