"""Put random cosines beside plain features: what columns say together, a linear head sees in them.

    φ(x) = (a·x, b·cos(xT + u)),    T = diag(s) N / (w·m),  N standard normal,  u uniform on [0, 2π)

Products of the cosines approach a Gaussian kernel of width w·m, m the median distance of two rows (Rahimi and Recht
2007): every smooth function of the columns is nearly linear in them. A label that is x₁ xor x₂ is not in any column by
itself, and it is in the products of them. Both parts have the same mean square length, so that neither drowns the
other: the moment's noise is as large as the longest row. No label comes in.

Noise leaves a moment some tens to hundreds of directions, and those of a wide kernel are the columns themselves, then
their products two by two; a narrow one spends them on telling neighbourhoods apart. A width of 0.6 was better than 1.2
by up to ten points on most tables of benchmarks/development.py, and a point behind where the label is linear.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy.typing as npt
import torch
from torch import Generator, Tensor

from labeldp.features.coded import Coded
from labeldp.features.extract import sample_rows, standardiser
from labeldp.models.zoo import checked_count

_PAIRS, _SAMPLE, _AT_ONCE = 2000, 20_000, 8192


@dataclass(frozen=True, eq=False)
class Cosines:
    """Features beside cosines of some of them, ready for use.

    Args:
        turn: T, (p, D), zero for features that are not in the kernel.
        phases: u, (D,).
        plain, waves: a and b.
    """

    turn: Tensor
    phases: Tensor
    plain: float = 1.0
    waves: float = 1.0

    @property
    def dim(self) -> int:
        """Number of features that come out."""
        return sum(self.turn.shape)

    def __call__(self, rows: Tensor) -> Tensor:
        """Map (n, p) → (n, p + D)."""
        found = torch.empty(len(rows), self.dim, device=self.turn.device)
        for start in range(0, len(rows), _AT_ONCE):
            part = rows[start : start + _AT_ONCE].to(self.turn)
            seen, width = found[start : start + _AT_ONCE], part.shape[1]
            torch.mul(part, self.plain, out=seen[:, :width])
            torch.mul(torch.cos(torch.addmm(self.phases, part, self.turn)), self.waves, out=seen[:, width:])
        return found


@dataclass(frozen=True, eq=False)
class LiftedRows:
    """Rows whose features are made as they are needed, and beside them their cosines; the seam of `Coded`."""

    rows: Coded
    lift: Cosines

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features, as if they were spelt out."""
        return len(self.rows), self.lift.dim

    @property
    def device(self) -> torch.device:
        """Where features are made."""
        return self.rows.device

    def take(self, rows: Tensor) -> LiftedRows:
        """Return some rows."""
        return replace(self, rows=self.rows.take(rows))

    def features(self) -> Tensor:
        """Return all features, (n, p + D)."""
        return self.lift(self.rows.features())

    def mapped(self, matrix: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield chunks of rows' features times a matrix (p + D, r): which rows, and (m, r)."""
        width, count = self.lift.turn.shape
        both, waves = torch.cat([self.lift.turn, self.lift.plain * matrix[:width]], dim=1), matrix[width:]
        for span, part in self.rows.mapped(both):
            cosines = torch.cos(part[:, :count] + self.lift.phases) * self.lift.waves
            yield span, torch.addmm(part[:, count:], cosines, waves)


# Rows whose features are made chunk by chunk.
Streamed = Coded | LiftedRows


def random_cosines(
    features: Tensor, count: int, *, columns: npt.ArrayLike | None = None, width: float = 0.6, seed: int = 0
) -> Cosines:
    """Draw cosines of public features, (n, p).

    Args:
        count: D.
        columns: numbers of the features in the kernel, which say everything once; all when None.
        width: of the kernel, in median distances.
        seed: of the frequencies; public.

    >>> x = torch.randn(200, 3, generator=Generator().manual_seed(0))
    >>> lift = random_cosines(x, 500)
    >>> lift(x).shape, bool((lift(x)[:, 3:].var(dim=0).sum() / lift(x)[:, :3].var(dim=0).sum()).log().abs() < 0.01)
    (torch.Size([200, 503]), True)
    """
    if not 0 < width < math.inf:
        raise ValueError(f"width={width} is not a width in median distances; give a number above 0, say 0.6")
    checked_count("count", count)
    generator, device = Generator().manual_seed(seed), features.device
    some = features[sample_rows(len(features), _SAMPLE, seed).to(device)].float()
    chosen = torch.arange(some.shape[1]) if columns is None else torch.as_tensor(columns, dtype=torch.int64)
    seen = some[:, chosen.to(device)]
    scale = standardiser(seen)
    first, second = torch.randint(len(seen), (2, _PAIRS), generator=generator).to(device)
    median = float(((seen[first] - seen[second]) * scale).norm(dim=1).median().clamp_min(1e-6))
    turn = torch.zeros(some.shape[1], count, device=device)
    drawn = torch.randn(len(chosen), count, generator=generator).to(device)
    turn[chosen.to(device)] = scale[:, None] * drawn / (width * median)
    lift = Cosines(turn, 2 * math.pi * torch.rand(count, generator=generator).to(device))
    lengths = lift(some).var(dim=0, correction=0).split(turn.shape, dim=0)
    plain, waves = (float(part.sum().clamp_min(1e-12)) ** -0.5 for part in lengths)
    return Cosines(lift.turn, lift.phases, plain, waves)
