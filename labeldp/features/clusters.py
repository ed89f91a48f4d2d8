"""Group rows by their public features: k-means, nearest neighbours, and clusters by a network. Never sees a label.

Everything is chunks of matrix products, so memory stays bounded and a GPU stays busy. A seed decides the result: no
sum depends on the order in which threads finish.

`scan` is W. Van Gansbeke, S. Vandenhende, S. Georgoulis, M. Proesmans and L. Van Gool, "SCAN: Learning to Classify
Images without Labels", 2020, but for its last step, self-labelling: features from self-supervision, then
`cluster_by_neighbours`. Inputs may be features with a small head, or images with an encoder and its head, and then
views make the clusters better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import log_softmax

from labeldp.features.augment import Augment
from labeldp.features.extract import as_float, checked_rows, map_parts, one_thread
from labeldp.learning.optimisers import adam, constant
from labeldp.learning.progress import Progress
from labeldp.learning.train import Batch, LoopSettings, minimise, predict
from labeldp.models.zoo import checked_count

# Distances held at once, in floats: 4 MB fit a CPU's cache, 1 GB keeps a GPU busy.
_CPU_BLOCK, _GPU_BLOCK = 1 << 20, 1 << 28
# Rows that neighbours are searched among at once.
_TILE = 1 << 14


@dataclass(frozen=True)
class Clusters:
    """A partition of rows around centres.

    Args:
        centers: (k, d) float32; unit length when spherical.
        members: (n,) the number of each row's cluster.
        inertia: Σ_i |x_i − centre of its cluster|², of unit-length rows when spherical.
        iterations: how many times the centres moved in the restart that was kept.
        spherical: whether rows are compared by direction only.
    """

    centers: Tensor
    members: Tensor
    inertia: float
    iterations: int
    spherical: bool = False

    @property
    def count(self) -> int:
        """How many clusters there are, those without rows as well."""
        return len(self.centers)

    @property
    def sizes(self) -> Tensor:
        """How many rows each cluster has, (k,). A cluster is empty only when there are fewer than k distinct rows."""
        return torch.bincount(self.members, minlength=self.count)

    def assign(self, points: Tensor | np.ndarray) -> Tensor:
        """Return the number of the nearest centre for each row, old or new, (n,)."""
        return _Search(_checked(points, self.centers.device), self.spherical).nearest(self.centers)[0]


def kmeans(
    points: Tensor | np.ndarray,
    k: int,
    *,
    restarts: int = 1,
    iterations: int = 100,
    tolerance: float = 1e-4,
    spherical: bool = False,
    seed: int = 0,
) -> Clusters:
    """Minimise Σ_i min_c |x_i − c|² over centres, by Lloyd's steps (Lloyd 1982) from k-means++ seeds.

    Seeds are drawn one by one with chance ∝ squared distance to those already drawn (Arthur and Vassilvitskii 2007),
    among max(20·k, 16384) random rows. A centre that loses its last row moves to the row furthest from its own
    centre, which never raises the objective. `spherical` scales rows and centres to unit length (Dhillon and Modha
    2001), so that only directions count.

    Args:
        points: (n, d), on the device where the work is to be done.
        restarts: independent starts, of which the one with the least inertia is returned.
        iterations: at most this many moves of the centres.
        tolerance: stop when a move lowers the inertia by less than this share of it; 0 goes on until nothing moves.

    >>> found = kmeans(torch.tensor([[0.0], [1.0], [10.0], [11.0]]), k=2)
    >>> sorted(found.centers.flatten().tolist()), found.inertia
    ([0.5, 10.5], 1.0)
    """
    points = _checked(points)
    k, restarts = checked_count("k", k), checked_count("restarts", restarts)
    if k > len(points):
        raise ValueError(f"k={k} is more than the {len(points)} rows; give at most one cluster per row")
    if not tolerance >= 0:
        raise ValueError(f"tolerance={tolerance} is not a share of the inertia; give a number of at least 0")
    search = _Search(points, spherical)
    generator = Generator(points.device).manual_seed(seed)
    checked_count("iterations", iterations)
    runs = (_lloyd(search, _seeds(search, k, generator), iterations, tolerance) for _ in range(restarts))
    return min(runs, key=lambda clusters: clusters.inertia)


def nearest_neighbours(
    points: Tensor | np.ndarray, k: int, *, queries: Tensor | np.ndarray | None = None, cosine: bool = False
) -> Tensor:
    """Return the k nearest rows of `points`, nearest first, for each query, (m, k); by brute force in chunks.

    Without `queries`, those of each row among the others: a row is not its own neighbour. `cosine` compares
    directions only. Distances are float32, so rows closer together than rounding come in any order.

    >>> nearest_neighbours(torch.tensor([[0.0], [1.0], [3.0]]), k=1).flatten().tolist()
    [1, 0, 1]
    """
    points = _checked(points)
    itself = queries is None
    sought = points if queries is None else _checked(queries, points.device)
    k, most = checked_count("k", k), len(points) - itself
    if k > most:
        raise ValueError(f"k={k} is more than the {most} rows there are to choose from; give a smaller k")
    search = _Search(sought, cosine, of=points)
    spans = search.chunks(min(_TILE, len(points)))
    parts = map_parts(lambda span: _neighbours(search, points, span, k, itself), spans, points.device)
    return torch.cat(parts) if parts else torch.empty(0, k, dtype=torch.int64, device=points.device)


def _neighbours(search: _Search, points: Tensor, span: tuple[int, int], k: int, itself: bool) -> Tensor:
    """Return the nearest k of `points` for a chunk of the rows searched, which are `points` themselves or not."""
    rows = search.shifted(search.points[slice(*span)])
    best = torch.full((len(rows), k), torch.inf, device=rows.device)
    which = torch.zeros(len(rows), k, dtype=torch.int64, device=rows.device)
    for first in range(0, len(points), _TILE):
        tile = search.shifted(points[first : first + _TILE])
        distances = torch.addmm(tile.square().sum(dim=1), rows, tile.T, alpha=-2.0)
        if itself:
            _exclude(distances, span[0] - first)
        near, numbers = distances.topk(min(k, len(tile)), largest=False)
        best, order = torch.cat((best, near), dim=1).topk(k, largest=False)
        which = torch.cat((which, numbers + first), dim=1).gather(1, order)
    return which


def _exclude(distances: Tensor, offset: int) -> None:
    """Put row i out of its own reach, which is column i + offset where there is such a column."""
    low, high = max(0, -offset), min(len(distances), distances.shape[1] - offset)
    if low < high:
        rows = torch.arange(low, high, device=distances.device)
        distances[rows, rows + offset] = torch.inf


class _Search:
    """Rows, compared with centres a chunk at a time.

    Rows are shifted by their mean: distances do not change, but |x|² − 2x·c + |c|² loses no digits to a common offset.
    """

    def __init__(self, points: Tensor, spherical: bool, of: Tensor | None = None) -> None:
        self.points, self.spherical = points, spherical
        base = points if of is None else of
        # Summed in double, for 10⁸ float32 rows would lose digits.
        mean = base.mean(dim=0, dtype=torch.float64).float() if len(base) else base.new_zeros(base.shape[1])
        self.shift = torch.zeros_like(mean) if spherical else mean

    def shifted(self, rows: Tensor) -> Tensor:
        return _unit(rows) if self.spherical else rows - self.shift

    def chunks(self, k: int) -> list[tuple[int, int]]:
        """Return first and last number of rows to compare with k others at once."""
        block = _GPU_BLOCK if self.points.is_cuda else _CPU_BLOCK
        size = max(1, block // max(k, self.points.shape[1]))
        return [(start, min(start + size, len(self.points))) for start in range(0, len(self.points), size)]

    def nearest(self, centers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the number of the nearest centre and the squared distance to it, for all rows."""
        return self.step(self.shifted(centers), sums=False)[:2]

    def step(self, centers: Tensor, sums: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Pass over the rows once: members, squared distances, and per centre the sum and number of its rows."""
        k, device = len(centers), self.points.device
        members = torch.empty(len(self.points), dtype=torch.int64, device=device)
        distances = torch.empty(len(self.points), device=device)
        lengths = centers.square().sum(dim=1)

        def chunk(span: tuple[int, int]) -> Tensor:
            rows = self.shifted(self.points[slice(*span)])
            least, nearest = torch.addmm(lengths, rows, centers.T, alpha=-2.0).min(dim=1)
            members[slice(*span)] = nearest
            distances[slice(*span)] = (least + rows.square().sum(dim=1)).clamp_(min=0)
            return _sums(rows, nearest, k) if sums else rows[:0]

        parts = map_parts(chunk, self.chunks(k), device)
        total = torch.zeros(k, self.points.shape[1], dtype=torch.float64, device=device)
        for part in parts if sums else ():
            total += part
        # Not bincount: on a GPU it waits for the largest number. Whole numbers add up in any order.
        counts = torch.zeros(k, dtype=torch.int64, device=device)
        counts.index_add_(0, members, torch.ones_like(members))
        return members, distances, total, counts


def _sums(rows: Tensor, nearest: Tensor, k: int) -> Tensor:
    """Return Σ of the rows of each cluster; on a GPU by a matrix product: atomic additions have no fixed order."""
    if not rows.is_cuda:
        return torch.zeros(k, rows.shape[1]).index_add_(0, nearest, rows)
    onehot = torch.zeros(len(rows), k, device=rows.device).scatter_(1, nearest[:, None], 1.0)
    return onehot.T @ rows


def _lloyd(search: _Search, centers: Tensor, iterations: int, tolerance: float) -> Clusters:
    before, moves = float("inf"), 0
    while True:
        members, distances, total, counts = search.step(centers)
        inertia = distances.sum(dtype=torch.float64).item()  # one wait per pass over all rows, to know when to stop
        if moves == iterations or inertia == 0 or before - inertia <= tolerance * inertia:
            return Clusters(centers + search.shift, members, inertia, moves, search.spherical)
        before, moves = inertia, moves + 1
        centers = _moved(search, distances, total, counts)


def _moved(search: _Search, distances: Tensor, total: Tensor, counts: Tensor) -> Tensor:
    """Move each centre to the mean of its rows; those without any to the rows furthest from their own centres."""
    means = (total / counts.clamp(min=1)[:, None]).float()
    empty = counts == 0
    furthest = distances.topk(min(len(counts), len(distances))).indices
    # The first empty centre takes the furthest row, the second the next: no need to read back which are empty.
    turn = (empty.cumsum(0) - 1).clamp(min=0)
    repaired = torch.where(empty[:, None], search.shifted(search.points[furthest[turn]]), means)
    return _unit(repaired) if search.spherical else repaired


@one_thread()
def _seeds(search: _Search, k: int, generator: Generator) -> Tensor:
    """Draw k-means++ seeds from a random sample of the rows."""
    count, device = len(search.points), search.points.device
    sample = min(count, max(20 * k, 16384))
    chosen = torch.randperm(count, device=device, generator=generator)[:sample]
    rows = search.shifted(search.points[chosen])
    lengths, distances = rows.square().sum(dim=1), torch.full((sample,), torch.inf, device=device)
    picked = torch.zeros(k, dtype=torch.int64, device=device)  # the sample is in random order: its first row will do
    for j in range(k):
        if j > 0:
            # argmax D/E with E exponential draws a row with chance ∝ D, without waiting for the device.
            clocks = torch.empty(sample, device=device).exponential_(generator=generator)
            picked[j] = (distances / clocks).argmax()
        center = rows[picked[j : j + 1]].squeeze(0)
        apart = torch.addmv(lengths + center.dot(center), rows, center, alpha=-2.0).clamp_(min=0)
        distances = torch.minimum(distances, apart)
    return rows[picked]


def _unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True).clamp_(min=1e-12)


def _checked(points: Any, device: torch.device | None = None) -> Tensor:
    tensor = torch.as_tensor(points, device=device)
    if tensor.ndim != 2 or tensor.shape[1] == 0:
        raise ValueError(f"points has shape {tuple(tensor.shape)}; give rows of features (n, d)")
    if not bool(torch.isfinite(tensor.sum(dtype=torch.float64))):
        raise ValueError("points has values that are not finite; fill in or drop missing features")
    return tensor.float()


# -- SCAN: near rows in the same cluster, all clusters in use ----------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SoftClusters:
    """A partition of rows with its degrees of belief.

    Args:
        model: inputs ↦ one logit per cluster.
        count: how many clusters there are, those without rows as well.
        members: (n,) the likeliest cluster of each row.
        confidence: (n,) its probability.
        loss: of the last epoch of training.
    """

    model: nn.Module
    count: int
    members: Tensor
    confidence: Tensor
    loss: float

    def assign(self, inputs: Tensor | np.ndarray) -> Tensor:
        """Return the number of the likeliest cluster for each row, old or new, (n,)."""
        device = next(self.model.parameters()).device
        return predict(self.model, as_float(checked_rows(inputs).to(device)), bf16=False).argmax(dim=1)


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
    """Cluster ready-made features by a head of one hidden layer; of several heads take the one of the least loss.

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

    def loss(batch: Batch) -> Tensor:
        own, draw = batch.rows, batch.generator
        pick = torch.randint(neighbours.shape[1], (len(own), 1), device=own.device, generator=draw)
        near = neighbours[own].gather(1, pick).squeeze(1)
        changed = as_float(rows[torch.cat((own, near))])
        if view is not None:
            with torch.autocast(changed.device.type, enabled=False):
                changed = view(changed, draw)
        own, other = model(changed).float().chunk(2)
        return scan_loss(own, other, entropy)

    losses: list[float] = []

    def report(progress: Progress) -> None:
        losses.append(math.nan if progress.loss is None else progress.loss)
        outer = loop.get("report")
        if outer is not None:
            outer(progress)

    usual = {"batch_size": 128, "optimizer": adam(1e-4), "schedule": constant()}
    settings: Any = {**usual, **loop, "report": report}
    minimise(model, loss, len(rows), epochs=epochs, seed=seed, **settings)
    model.eval()
    beliefs = torch.cat([predict(model, as_float(part), bf16=False).softmax(dim=1) for part in rows.split(4096)])
    confidence, members = beliefs.max(dim=1)
    return SoftClusters(model, beliefs.shape[1], members, confidence, losses[-1] if losses else math.nan)


def scan_loss(anchors: Tensor, neighbours: Tensor, entropy: float) -> Tensor:
    """Return − mean log ⟨p_i, p'_i⟩ + entropy · Σ_c p̄_c log p̄_c, from logits of rows and of their neighbours.

    p and p' are softmaxes, p̄ the mean of p over the batch: the first term wants neighbours to be surely in the same
    cluster, the second wants all clusters used alike.
    """
    log_p, log_near = log_softmax(anchors, dim=1), log_softmax(neighbours, dim=1)
    together = (log_p + log_near).logsumexp(dim=1).mean()
    mean = log_p.exp().mean(dim=0)
    return -together + entropy * torch.xlogy(mean, mean.clamp(min=1e-12)).sum()


def _head(dim: int, hidden: int, k: int, seed: int) -> nn.Sequential:
    """First weights by the seed, the global random state as it was."""
    checked_count("k", k, low=2)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed: that reaches the GPUs' state too
        if checked_count("hidden", hidden, low=0) == 0:
            return nn.Sequential(nn.Linear(dim, k))
        return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, k))
