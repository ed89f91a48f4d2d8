"""What must be fixed before the look: which directions of the public features enter the moment, how they are scaled.

The moment's noise is as large as the longest row allows, so features are turned into rows of length at most 1 that
spend it well: principal components φ = A(x − x̄), partly whitened, with a constant for the class shares, scaled to a
bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from labeldp.models.shared import checked_count

_ROWS_AT_ONCE = 8192
# Of the subspace iteration. Components that are nearly alike stay mixed, which costs nothing.
_PASSES = 6


@dataclass(frozen=True)
class Plan:
    """Settings of a `Basis`; `labeldp.learning.rehearsal` finds good ones without a label.

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


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Mean (p,), principal components (p, p) and the variances along them (p,), falling, of public features."""

    mean: Tensor
    variances: Tensor
    components: Tensor


def spectrum(features: Tensor, *, rows: int = 20_000, most: int | None = None, seed: int = 0) -> Spectrum:
    """Principal components from at most `rows` random rows. Any public basis is private; a rough one is good enough.

    Args:
        features: public, (n, p).
        rows: how many of them to look at; all that matters is that they are many times as many as components.
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
    covariance = gram_of(sample - mean.float()) / len(sample)
    variances, components = _eigen(covariance, min(most or sample.shape[1], sample.shape[1]), seed)
    return Spectrum(mean.float(), variances.clamp_min(0.0).float(), components.float())


def _eigen(matrix: Tensor, most: int, seed: int) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues, falling, and their vectors."""
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
        """Number of features that come out."""
        return self.matrix.shape[1] + (self.constant > 0)

    @property
    def constant_column(self) -> int | None:
        """Which column comes from the constant, for `ridge` and `softmax_head`."""
        return self.width - 1 if self.constant > 0 else None

    def __call__(self, features: Tensor) -> Tensor:
        """(n, p) → (n, width) in float32, chunk by chunk."""
        return torch.cat([self._bounded(self._plain(part)) for part in features.split(_ROWS_AT_ONCE)])

    def from_turned(self, turned: Tensor) -> Tensor:
        """The same for rows of which x·matrix is known, (n, r)."""
        return self._bounded(self._with_constant(turned - self.mean @ self.matrix))

    def linear(self, weight: Tensor) -> nn.Linear:
        """The head Wφ as a layer on x itself; a row's bound scales its scores alike and keeps their order."""
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
        return self._with_constant((features.float() - self.mean) @ self.matrix)

    def _with_constant(self, turned: Tensor) -> Tensor:
        return turned if self.constant == 0 else torch.nn.functional.pad(turned, (0, 1), value=self.constant)

    def _bounded(self, rows: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        return rows / length.clamp_min(self.bound if self.bound > 0 else torch.finfo(rows.dtype).tiny)


def prepare(plan: Plan, found: Spectrum, features: Tensor) -> Basis:
    """The basis of a plan. `features` are asked only for the lengths of their rows, when the plan has a quantile.

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
    bound = _quantile(torch.cat(parts), plan.quantile)
    return Basis(free.mean, free.matrix, free.constant, bound)


def gram_of(rows: Tensor, chunk: int = _ROWS_AT_ONCE) -> Tensor:
    """Φ'Φ in float64 from float32 products of chunks, (d, d)."""
    total = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64, device=rows.device)
    for part in rows.split(chunk):
        total += part.T @ part
    return total


def _quantile(values: Tensor, share: float) -> float:
    """The smallest value that at least this share does not exceed; torch.quantile refuses many values."""
    place = min(len(values) - 1, max(0, math.ceil(share * len(values)) - 1))
    return float(values.sort().values[place])
