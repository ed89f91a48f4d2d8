"""One look at a table of so many rows that its features do not fit in memory: they are made chunk by chunk.

    1. m random rows, public, with all their features: the rehearsal and the head see these
    2. S̃ = Σ_i onehot(y_i) ⊗ φ_i + noise over all n rows, once
    3. a head from S̃, brought to m rows, and the φ_i of the m rows

Only the moment needs all rows, and it is a sum. A head needs the moment of the very rows that it sees; an unbiased
estimate of that, whose sum over the classes is right, is

    S̃_m = (m/n)·(S̃ − T_n/K) + T_m/K,    T the public totals Σ_i φ_i (difference estimator; Särndal et al. 1992).

So the noise is that of one look at n labels, and what is lost is that of any model of d weights and m rows instead of
n, some d/m in likelihood. All of it is post-processing of the one look.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Generator, Tensor

from labeldp.core.vault import LabelVault
from labeldp.features.tables import Coded
from labeldp.learning.heads import Head
from labeldp.learning.tuning import Basis, tune
from labeldp.mechanisms.counts import GaussianNoise
from labeldp.mechanisms.moments import Moments, RowChunks
from labeldp.recipes.groups import check_affordable
from labeldp.recipes.moment_noise import check_count, event_of, noise_for
from labeldp.recipes.one_shot import HEADS, Clock, OneShot, Report, Tune, fitted, tuned
from labeldp.releases import NoisyMoments

# Features held at once: 1 GiB of them.
MOST_CELLS = 1 << 28


def train(
    rows: Coded,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    tune: Tune = tune,
    heads: Sequence[Head] = HEADS,
    most: int | None = None,
    seed: int = 0,
    report: Report | None = None,
) -> OneShot:
    """`labeldp.recipes.one_shot.train` in little memory: (`epsilon`, `delta`) in all.

    Args:
        rows: public, in the vault's order; see `labeldp.features.tables`.
        most: m; as many rows as have a gibibyte of features when None.
        rehearse: with the number of rows of the look bound, `num_rows`.
        seed: of the m rows; public.

    The other arguments are those of `one_shot.train`. With m = n it gives what `one_shot.train` gives.
    """
    tell, noise = Clock(report), noise_for(epsilon, delta)
    check_count(len(rows), "rows", vault)
    check_affordable(vault, [(event_of(noise), None)])
    held = _held(rows, most, seed)
    found = tuned(held.features(), vault.num_classes, noise, tune, heads, None, tell)
    basis, some = found.basis, _all_turned(held, found.basis)
    order = 2 if isinstance(noise, GaussianNoise) else 1
    # Public: the longest of the rows held; what is longer is scaled down to it.
    radius = float(torch.linalg.vector_norm(some, ord=order, dim=1).amax()) * (1 + 1e-6)
    chunks = RowChunks(len(rows), basis.width, lambda: (part.cpu().numpy() for part in _turned(rows, basis)))
    noisy = vault.release(Moments(chunks, vault.num_classes, noise, radius))
    tell("look", f"{noisy.num_classes} × {basis.width} numbers, noise {noisy.noise_std:.3g}")
    return replace(fitted(found, heads, _moment_of(some, noisy), some, tell), noisy=noisy)


def _held(rows: Coded, most: int | None, seed: int) -> Coded:
    count = max(1, MOST_CELLS // rows.shape[1]) if most is None else most
    if count >= len(rows):
        return rows
    return rows.take(torch.randperm(len(rows), generator=Generator().manual_seed(seed))[:count].sort().values)


def _turned(rows: Coded, basis: Basis) -> Iterator[Tensor]:
    """φ of all rows, chunk by chunk."""
    return (basis.from_turned(part) for _, part in rows.mapped(basis.matrix))


def _all_turned(rows: Coded, basis: Basis) -> Tensor:
    """φ of all rows, (m, d); not by joining chunks, which would hold them twice."""
    found, done = torch.empty(len(rows), basis.width, device=rows.device), 0
    for part in _turned(rows, basis):
        found[done : done + len(part)] = part
        done += len(part)
    return found


def _moment_of(some: Tensor, noisy: NoisyMoments) -> NoisyMoments:
    """The moment of some rows, estimated from that of all."""
    share, classes = len(some) / noisy.num_rows, noisy.num_classes
    total = some.sum(dim=0, dtype=torch.float64).cpu().numpy()
    value = share * (noisy.value - noisy.total / classes) + total / classes
    return replace(noisy, value=value, total=total, num_rows=len(some), noise_std=share * noisy.noise_std)
