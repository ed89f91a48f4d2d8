"""Features to zero mean and like variance, and to fewer dimensions by principal components. Fitted on public rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from labeldp.models.shared import checked_count


@dataclass(frozen=True, eq=False)
class Scaling:
    """x ↦ Bᵀ ((x − mean) · inverse): standardised coordinates, then principal components when there is a basis.

    Args:
        mean: (d,).
        inverse: (d,) one over the standard deviation.
        basis: (d, r), orthonormal columns, or None to keep all coordinates.
    """

    mean: Tensor
    inverse: Tensor
    basis: Tensor | None = None

    @property
    def dim(self) -> int:
        """Number of coordinates that come out."""
        return len(self.mean) if self.basis is None else self.basis.shape[1]

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, d) → (n, r)."""
        standard = (rows - self.mean).mul_(self.inverse)
        return standard if self.basis is None else standard @ self.basis


def fit_scaling(sample: Tensor, *, dims: int | None = None, floor: float = 0.01, seed: int = 0) -> Scaling:
    """Standardise by the sample's mean and √(variance + floor · mean variance), then keep `dims` components.

    The floor keeps coordinates that hardly vary from being blown up (Coates and Ng 2011); one that never varies
    becomes zero. Components are eigenvectors of the sample's covariance, largest first, and at most d.

    >>> scaling = fit_scaling(torch.tensor([[0.0, 5.0], [2.0, 5.0]]), floor=0.0)
    >>> scaling(torch.tensor([[2.0, 5.0]])).tolist()
    [[1.0, 0.0]]
    """
    if not bool(torch.isfinite(sample.sum(dtype=torch.float64))):
        raise ValueError("inputs have values that are not finite; fill in or drop missing features")
    variance, mean = torch.var_mean(sample.double(), dim=0, correction=0)
    spread = (variance + floor * variance.mean()).sqrt()
    # A constant column has a variance of rounding errors only.
    varies = variance > 1e-12 * (mean.square() + variance.max())
    inverse = torch.where(varies, 1 / spread.clamp(min=torch.finfo(torch.float32).tiny), 0.0)
    scaling = Scaling(mean.float(), inverse.float())
    if dims is None:
        return scaling
    return Scaling(scaling.mean, scaling.inverse, principal_components(scaling(sample), dims, seed=seed))


def principal_components(sample: Tensor, dims: int, *, seed: int = 0) -> Tensor:
    """Orthonormal directions (d, r) of most variance of the rows about zero, largest first; r = min(dims, d).

    Exact (eigenvectors of XᵀX) unless few of many are wanted; then by subspace iteration from random directions with
    oversampling (Halko, Martinsson and Tropp 2011, Algorithm 4.4), whose cost grows with r and not with d².

    >>> principal_components(torch.tensor([[3.0, 0.0], [-3.0, 0.1]]), 1).abs().round().flatten().tolist()
    [1.0, 0.0]
    """
    d, dims = sample.shape[1], min(checked_count("dims", dims), sample.shape[1])
    wide = dims + max(16, dims // 8)
    if 4 * wide < d and d > 2048:
        return _subspace(sample, dims, wide, seed)
    # Double: eigenvectors of small eigenvalues need the digits.
    vectors = torch.linalg.eigh(_second_moment(sample)).eigenvectors
    return vectors[:, -dims:].flip(1).float().contiguous()


def _subspace(sample: Tensor, dims: int, wide: int, seed: int, passes: int = 6) -> Tensor:
    generator = Generator(sample.device).manual_seed(seed)
    basis = torch.randn(sample.shape[1], wide, device=sample.device, generator=generator)
    for _ in range(passes):
        basis = torch.linalg.qr(sample.T @ (sample @ torch.linalg.qr(basis).Q)).Q
    # Turn within the subspace, so that columns are components, largest first.
    turned = torch.linalg.eigh(_second_moment(sample @ basis)).eigenvectors
    return (basis @ turned[:, -dims:].flip(1).float()).contiguous()


def _second_moment(rows: Tensor, chunk: int = 4096) -> Tensor:
    """XᵀX in double precision from float32 products of chunks."""
    total = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64, device=rows.device)
    for part in rows.split(chunk):
        total += part.T @ part
    return total
