"""Make features that follow the data: eigenvectors of the graph of nearest rows.

Rows of one class seldom make one ball, but near rows mostly have one class. Eigenvectors of the graph that joins each
row to its nearest ones vary least between neighbours, so a few of them hold what many plain components do. Where
noise leaves room for few numbers per row, that is worth most: a one-shot moment at the smallest ε.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.functional import normalize

from labeldp.features.clusters import nearest_neighbours
from labeldp.features.extract import Device, Extractor, FeatureMap, fingerprint
from labeldp.models.zoo import checked_count

# Of the subspace iteration: new bases, and products with the graph between two of them.
_BASES, _PRODUCTS = 30, 3
_ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class Neighbours:
    """Spectral features of any other ones (Belkin and Niyogi 2003; diffusion maps, Coifman and Lafon 2006).

    With A the graph of the `near` nearest rows by cosine, made symmetric, and D its degrees, let λ_j < 1 be the largest
    eigenvalues of D⁻¹A and f_j their eigenvectors. A row's features are means over its nearest fitted rows of λ_jᵗ f_j:
    the same for fitted and for new rows, so that a head learnt on the first works on the second. t is set so that the
    last of them counts `fade` times as much as the first, whatever the number of rows has made of λ.

    Args:
        base: gives the features that decide what is near; a few hundred of them are enough and sooner done.
        dims: eigenvectors kept.
        near: neighbours.
        fade: weight of the last eigenvector beside the first, in (0, 1].
        seed: of the start of the iteration.

    >>> from labeldp.features.extract import Raw
    >>> rows = torch.randn(60, 3, generator=Generator().manual_seed(0))
    >>> Neighbours(Raw(), dims=4, near=5).fit(rows).features(rows[:2]).shape
    torch.Size([2, 4])
    """

    base: Extractor
    dims: int = 64
    near: int = 15
    fade: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        checked_count("dims", self.dims)
        checked_count("near", self.near)
        if not 0 < self.fade <= 1:
            raise ValueError(f"fade={self.fade} is no weight; give a number greater than 0 and at most 1")

    def fingerprint(self) -> str:
        """Return text that identifies the settings, the base's included."""
        return f"neighbours {self.dims} {self.near} {self.fade} {self.seed} of {fingerprint(self.base)}"

    def fit(self, inputs: Any, device: Device = None) -> NeighbourMap:
        """Build the graph of all inputs, which the map keeps: n · (width of the base + dims) numbers."""
        base = self.base.fit(inputs, device)
        rows = normalize(base.features(inputs), dim=1)
        if len(rows) < max(self.near, self.dims) + 2:
            raise ValueError(f"inputs has {len(rows)} rows; dims={self.dims} and near={self.near} need more")
        values, vectors = leading(graph_of(rows, self.near), self.dims + 1, self.seed)
        # The first of all is the same for every row, and carries nothing.
        # λᵗ / λ₁ᵗ, with t such that the last is `fade`.
        logs = values[1:].clamp(1e-6, 1 - 1e-6).log()
        fall = (logs - logs[0]) / (logs[-1] - logs[0]).clamp(max=-1e-9)
        weights = torch.as_tensor(self.fade, device=values.device).pow(fall)
        return NeighbourMap(base, rows, vectors[:, 1:] * weights, self.near)


@dataclass(frozen=True, eq=False)
class NeighbourMap:
    """Fitted rows of length 1 (n, p), and the weighed eigenvectors at each (n, dims)."""

    base: FeatureMap
    rows: Tensor
    weighed: Tensor
    near: int

    @property
    def dim(self) -> int:
        """Number of features."""
        return self.weighed.shape[1]

    def features(self, inputs: Any) -> Tensor:
        """Return (n, dim): means over the nearest fitted rows."""
        found = nearest_neighbours(self.rows, self.near, queries=normalize(self.base.features(inputs), dim=1))
        result = self.weighed.new_empty(len(found), self.dim)
        for start in range(0, len(found), _ROWS_AT_ONCE):
            result[start : start + _ROWS_AT_ONCE] = self.weighed[found[start : start + _ROWS_AT_ONCE]].mean(dim=1)
        return result


@dataclass(frozen=True, eq=False)
class Graph:
    """D^−½ A D^−½ as a sparse matrix, and D."""

    matrix: Tensor
    degrees: Tensor


def graph_of(rows: Tensor, near: int) -> Graph:
    """Join each row to its nearest ones; two rows that chose each other are joined twice as strongly."""
    heads = nearest_neighbours(rows, near).flatten()
    tails = torch.arange(len(rows), device=rows.device).repeat_interleave(near)
    ends = torch.stack((torch.cat((heads, tails)), torch.cat((tails, heads))))
    degrees = torch.bincount(ends[0], minlength=len(rows)).float()
    weights = (degrees[ends[0]] * degrees[ends[1]]).rsqrt()
    matrix = torch.sparse_coo_tensor(ends, weights, (len(rows), len(rows)), check_invariants=False)
    return Graph(matrix.coalesce(), degrees)


def leading(graph: Graph, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalues (count,), falling, and eigenvectors (n, count) of D⁻¹A, by subspace iteration.

    Rough is good enough: eigenvectors whose values are nearly alike may stay mixed, which costs nothing.
    """
    size = len(graph.degrees)
    wide = min(size, count + max(16, count // 2))
    basis = torch.randn(size, wide, generator=Generator().manual_seed(seed)).to(graph.degrees.device)
    for _ in range(_BASES):
        basis = torch.linalg.qr(basis)[0]
        for _ in range(_PRODUCTS):
            basis = graph.matrix @ basis
    basis = torch.linalg.qr(basis)[0]
    inner = (basis.mT @ (graph.matrix @ basis)).double()
    values, turn = torch.linalg.eigh((inner + inner.mT) / 2)
    vectors = basis @ turn.flip(1)[:, :count].float()
    # To mean square 1 when every row counts by its degree.
    return values.flip(0)[:count].float(), vectors * (graph.degrees.sum() / graph.degrees[:, None]).sqrt()
