"""Clusters by a network: near rows in the same cluster, all clusters in use (SCAN, Van Gansbeke et al. 2020).

W. Van Gansbeke, S. Vandenhende, S. Georgoulis, M. Proesmans and L. Van Gool, "SCAN: Learning to Classify Images
without Labels", 2020. In three steps: features from self-supervision, `cluster_by_neighbours`, `self_label`. Inputs may
be features with a small head, or images with an encoder and its head, and then views make the clusters better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, one_hot

from labeldp.learning import schedules
from labeldp.learning.augment import Augment
from labeldp.learning.clusters import nearest_neighbours
from labeldp.learning.features import checked_rows
from labeldp.learning.fit import Progress, adam, predict
from labeldp.learning.loop import LoopSettings, minimise
from labeldp.learning.patches import as_float
from labeldp.models.shared import checked_count


@dataclass(frozen=True, eq=False)
class SoftClusters:
    """A partition of rows with its degrees of belief.

    Args:
        model: inputs ↦ one logit per cluster.
        members: (n,) the likeliest cluster of each row.
        confidence: (n,) its probability.
        loss: of the last epoch of training.
    """

    model: nn.Module
    members: Tensor
    confidence: Tensor
    loss: float


def scan(
    features: Tensor | np.ndarray,
    k: int,
    *,
    neighbours: int = 20,
    epochs: int = 30,
    entropy: float = 5.0,
    hidden: int = 256,
    restarts: int = 3,
    seed: int = 0,
    **loop: Unpack[LoopSettings],
) -> SoftClusters:
    """Clusters of ready-made features by a head of one hidden layer; of several heads the one of the least loss.

    Args:
        features: (n, d), standardised, on the device where the work is to be done.
        neighbours: each row is pulled towards this many nearest ones by cosine.
        entropy: weight of using all clusters; see `scan_loss`.
        hidden: width of the hidden layer; 0 for a linear head.
        restarts: heads trained, from different first weights.
        loop: see `minimise`. Batches of 512 and Adam of rate 1e-3 unless given.

    >>> spread = torch.linspace(-1, 1, 50)[:, None] * torch.ones(2)
    >>> apart = torch.cat((spread + torch.tensor([6.0, 0.0]), spread - torch.tensor([6.0, 0.0])))
    >>> members = scan(apart, k=2, neighbours=5, epochs=100, restarts=1).members
    >>> members[:50].unique().numel(), members[50:].unique().numel()
    (1, 1)
    """
    rows = torch.as_tensor(features).float()
    near = nearest_neighbours(rows, neighbours, cosine=True)
    settings: Any = {"optimizer": adam(1e-3), "batch_size": 512, **loop}

    def trained(number: int) -> SoftClusters:
        head = _head(rows.shape[1], hidden, k, seed + number).to(rows.device)
        return cluster_by_neighbours(head, rows, near, epochs=epochs, entropy=entropy, seed=seed + number, **settings)

    return min((trained(number) for number in range(checked_count("restarts", restarts))), key=lambda found: found.loss)


def cluster_by_neighbours(
    model: nn.Module,
    inputs: Tensor,
    neighbours: Tensor,
    *,
    epochs: int,
    entropy: float = 5.0,
    view: Augment | None = None,
    seed: int = 0,
    **loop: Unpack[LoopSettings],
) -> SoftClusters:
    """Train the model, in place, by `scan_loss` on rows and one random neighbour of each.

    Args:
        model: inputs ↦ logits (n, k), such as an encoder's body and a linear head.
        inputs: (n, …) on the model's device; whole numbers are bytes, and 255 becomes 1.
        neighbours: (n, m) row numbers, as from `nearest_neighbours` of self-supervised features.
        view: random changes of both rows, for images.
        loop: see `minimise`. Batches of 128 and Adam of rate 1e-4 unless given, as in the paper.
    """
    rows = checked_rows(inputs)
    if neighbours.ndim != 2 or len(neighbours) != len(rows):
        raise ValueError(f"neighbours has shape {tuple(neighbours.shape)} for {len(rows)} rows; give (n, m)")

    def loss(batch: Tensor, generator: Generator) -> Tensor:
        pick = torch.randint(neighbours.shape[1], (len(batch), 1), device=batch.device, generator=generator)
        near = neighbours[batch].gather(1, pick).squeeze(1)
        changed = _changed(rows, torch.cat((batch, near)), view, generator)
        own, other = model(changed).float().chunk(2)
        return scan_loss(own, other, entropy)

    return _train(model, rows, loss, epochs, seed, loop)


def self_label(
    model: nn.Module,
    inputs: Tensor,
    *,
    epochs: int,
    threshold: float = 0.99,
    weak: Augment | None = None,
    strong: Augment | None = None,
    seed: int = 0,
    **loop: Unpack[LoopSettings],
) -> SoftClusters:
    """Learn from what the model is sure of: its answer on a weak view is the target for a strong one.

    Only rows of confidence above `threshold` count, weighted so that every cluster counts alike, or large clusters
    would swallow small ones. The loop's settings are as for `cluster_by_neighbours`.
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold={threshold} is not a probability below 1; 0.99 is usual")
    rows = checked_rows(inputs)

    def loss(batch: Tensor, generator: Generator) -> Tensor:
        with torch.no_grad():
            sure = model(_changed(rows, batch, weak, generator)).float().softmax(dim=1)
        return self_label_loss(model(_changed(rows, batch, strong, generator)).float(), sure, threshold)

    return _train(model, rows, loss, epochs, seed, loop)


def scan_loss(anchors: Tensor, neighbours: Tensor, entropy: float) -> Tensor:
    """− mean log ⟨p_i, p'_i⟩ + entropy · Σ_c p̄_c log p̄_c, from logits of rows and of their neighbours.

    p and p' are softmaxes, p̄ the mean of p over the batch: the first term wants neighbours to be surely in the same
    cluster, the second wants all clusters used alike.
    """
    log_p, log_near = log_softmax(anchors, dim=1), log_softmax(neighbours, dim=1)
    together = (log_p + log_near).logsumexp(dim=1).mean()
    mean = log_p.exp().mean(dim=0)
    return -together + entropy * torch.xlogy(mean, mean.clamp(min=1e-12)).sum()


def self_label_loss(logits: Tensor, beliefs: Tensor, threshold: float) -> Tensor:
    """Weighted mean of cross-entropies to the likeliest cluster, over rows that believe in it above the threshold.

    A row of cluster c has weight one over the number of such rows of c in the batch. 0 when there are none.
    """
    confidence, targets = beliefs.max(dim=1)
    sure = (confidence > threshold).float()
    counts = one_hot(targets, beliefs.shape[1]).T.float() @ sure
    weights = sure / counts[targets].clamp(min=1)
    return (weights * cross_entropy(logits, targets, reduction="none")).sum() / weights.sum().clamp(min=1e-12)


def _train(
    model: nn.Module, rows: Tensor, loss: Callable[..., Tensor], epochs: int, seed: int, loop: LoopSettings
) -> SoftClusters:
    losses: list[float] = []

    def report(progress: Progress) -> None:
        losses.append(progress.loss)
        tell = loop.get("report")
        if tell is not None:
            tell(progress)

    usual = {"batch_size": 128, "optimizer": adam(1e-4), "schedule": schedules.constant()}
    settings: Any = {**usual, **loop, "report": report}
    minimise(model, loss, len(rows), epochs=epochs, seed=seed, **settings)
    model.eval()
    chunks = [predict(model, as_float(part), bf16=False).softmax(dim=1) for part in rows.split(4096)]
    confidence, members = torch.cat(chunks).max(dim=1)
    return SoftClusters(model, members, confidence, losses[-1] if losses else float("nan"))


def _changed(rows: Tensor, batch: Tensor, view: Augment | None, generator: Generator) -> Tensor:
    chosen = as_float(rows[batch])
    if view is None:
        return chosen
    with torch.autocast(chosen.device.type, enabled=False):
        return view(chosen, generator)


def _head(dim: int, hidden: int, k: int, seed: int) -> nn.Sequential:
    """First weights by the seed, the global random state as it was."""
    checked_count("k", k, low=2)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed: that reaches the GPUs' state too
        if checked_count("hidden", hidden, low=0) == 0:
            return nn.Sequential(nn.Linear(dim, k))
        return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, k))
