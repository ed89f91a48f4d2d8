"""Bring wide sparse rows to few numbers: a projection on the directions of which public rows have most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labeldp.features.extract import Device, sample_rows
from labeldp.models.zoo import checked_count

# Rows that directions are found on, rows projected at once, and numbers of a projection that is kept with a model.
_SAMPLE, _CHUNK, _MOST_NUMBERS = 50_000, 16_384, 1 << 24


@dataclass(frozen=True)
class Projected:
    """How to project sparse rows (n, p), scipy's, to the leading right singular vectors of public rows.

    Args:
        dims: directions kept; fewer where rows or columns are fewer, or p is so large that a model would not fit.
        scale: the root mean square length of a row that comes out.
        seed: of the directions' start (Halko, Martinsson and Tropp 2011) and of the rows, when there are very many.

    >>> from scipy.sparse import csr_array
    >>> rows = csr_array(np.repeat(np.eye(4), 5, axis=0))
    >>> Projected(dims=2).fit(rows).features(rows).shape
    torch.Size([20, 2])
    """

    dims: int = 512
    scale: float = 2.0
    seed: int = 0

    def fit(self, inputs: Any, device: Device = None) -> ProjectedMap:
        """Find directions, and the mean and length of rows along them."""
        from sklearn.decomposition import TruncatedSVD

        rows = inputs.tocsr()[sample_rows(inputs.shape[0], _SAMPLE, self.seed).numpy()]
        most = min(checked_count("dims", self.dims), *rows.shape, max(16, _MOST_NUMBERS // rows.shape[1]))
        if rows.nnz:
            found = np.asarray(TruncatedSVD(most, random_state=self.seed).fit(rows).components_).T
        else:
            found = np.zeros((rows.shape[1], 1))
        directions = np.ascontiguousarray(found, dtype=np.float32)
        turned = rows @ directions
        mean = turned.mean(axis=0)
        length = float(np.sqrt(np.square(turned - mean).sum(axis=1).mean()))
        return ProjectedMap(directions, mean, self.scale / length if length > 0 else 0.0, torch.device(device or "cpu"))


@dataclass(frozen=True, eq=False)
class ProjectedMap:
    """x ↦ (x V − mean) · factor, V (p, r)."""

    directions: np.ndarray
    mean: np.ndarray
    factor: float
    device: torch.device
    scaling: None = None

    @property
    def dim(self) -> int:
        """Number of features."""
        return self.directions.shape[1]

    def features(self, inputs: Any) -> Tensor:
        """Return (n, dim)."""
        rows = inputs.tocsr()
        if rows.shape[1] != len(self.directions):
            raise ValueError(f"inputs have {rows.shape[1]} columns; those fitted had {len(self.directions)}")
        result = torch.empty(rows.shape[0], self.dim, device=self.device)
        for start in range(0, rows.shape[0], _CHUNK):
            part = (rows[start : start + _CHUNK] @ self.directions - self.mean) * self.factor
            result[start : start + _CHUNK] = torch.from_numpy(np.asarray(part, dtype=np.float32)).to(self.device)
        return result
