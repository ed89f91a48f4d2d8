"""The one-shot moment on features that see interactions: random cosines of the columns beside the columns.

As `one_shot`, but for the features: `labeldp.features.kernels` puts D random cosines beside them, so that a linear head
on one noisy moment learns what columns say together. From the same release `labeldp.learning.weighed` then learns which
columns matter, where that is likelier than not.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy.typing as npt
import torch
from torch import Tensor

from labeldp.core.vault import LabelVault
from labeldp.features.coded import Coded
from labeldp.features.extract import gram_of, sample_rows
from labeldp.features.kernels import Cosines, LiftedRows, random_cosines
from labeldp.learning.heads import eigenbasis
from labeldp.learning.progress import Report
from labeldp.learning.tuning import tune
from labeldp.learning.weighed import Weighed, weighed
from labeldp.recipes import one_shot
from labeldp.recipes.arguments import checked
from labeldp.recipes.learner import seen_by_learners
from labeldp.recipes.one_shot import Clock, OneShot, Tune, check_count, check_features

COSINES, WIDTH = 1000, 0.6
_ROWS_AT_ONCE = 8192
# Rows of which the bandwidth is found, where features are made as they are needed.
_FEW_ROWS = 20_000


@dataclass(frozen=True, eq=False)
class Lifted:
    """A head on features and their cosines. Holds no label; may be kept and published.

    Args:
        lift: from features to what the moment is of.
        shot: the linear head on that.
        weighed: what the same moment says once columns are weighed; None where it says no more than the head.
    """

    lift: Cosines
    shot: OneShot
    weighed: Weighed | None = None

    def logits(self, features: Tensor) -> Tensor:
        """Return scores whose softmax are honest probabilities, (n, K)."""
        if self.weighed is None:
            return self.shot.logits(self.lift(features))
        parts = features.to(self.lift.turn).split(_ROWS_AT_ONCE)
        return torch.cat([self.weighed.logits(part, self.shot.tuning.basis(self.lift(part))) for part in parts])

    def probabilities(self, features: Tensor) -> Tensor:
        """Return honest class probabilities, (n, K)."""
        return self.logits(features).softmax(dim=1)


@checked
def train(
    features: Tensor | Coded,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    tune: Tune = tune,
    columns: npt.ArrayLike | None = None,
    cosines: int = COSINES,
    width: float = WIDTH,
    weighted: bool = False,
    seed: int = 0,
    folder: Path | None = None,
    report: Report | None = None,
) -> Lifted:
    """Draw cosines, then tune, release one moment and solve the head: (`epsilon`, `delta`) in all.

    Args:
        features, epsilon, delta, tune, weighted, folder, report: as for `one_shot.train`.
        columns: numbers of the features in the kernel, which say everything once; all when None.
        cosines: how many.
        width: of the kernel, in median distances of two rows.
        seed: of the cosines; public.

    >>> import torch
    >>> x = torch.randn(6000, 3, generator=torch.Generator().manual_seed(0))
    >>> label = (x[:, 0] * x[:, 1] > 0).long()
    >>> found = train(x, LabelVault(label, num_classes=2), epsilon=1.0, delta=1e-6)
    >>> bool((found.logits(x).argmax(dim=1) == label).float().mean() > 0.8)
    True
    """
    given: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "weighted": weighted, "folder": folder}
    if isinstance(features, Coded):
        check_count(len(features), "features", vault)
        some = features.take(sample_rows(len(features), _FEW_ROWS, seed)).features()
        lift = random_cosines(some, cosines, columns=columns, width=width, seed=seed)
        # Whatever plans were bound are of the plain features.
        given |= {"tune": functools.partial(cast("Any", tune), plans=None), "seed": seed, "report": report}
        return Lifted(lift, one_shot.train(LiftedRows(features, lift), vault, **given))
    check_features(features, vault)
    lift = random_cosines(features, cosines, columns=columns, width=width, seed=seed)
    shot = one_shot.train(lift(features), vault, tune=tune, report=report, **given)
    return Lifted(lift, shot) if weighted else columns_weighed(features, lift, shot, columns, seed, report)


def columns_weighed(
    features: Tensor, lift: Cosines, shot: OneShot, columns: npt.ArrayLike | None, seed: int, report: Report | None
) -> Lifted:
    """Return a head on features and cosines, and what its moment says of these columns; no query.

    Arguments as for `train`; `shot` is the head on `lift(features)`.
    """
    clock, basis, view = Clock(report), shot.tuning.basis, seen_by_learners(features, columns)
    clock("head", "columns are weighed by what the moment says of them")
    turned = basis(lift(features))
    # The first of the heads that were tuned is ridge regression.
    found = weighed(
        shot.noisy, turned, features, view(features), *view, eigenbasis(gram_of(turned)), shot.tuning.scales[0],
        constant=basis.constant_column, seed=seed,
    )  # fmt: skip
    clock("head", "no columns stand out, and the head stays linear" if found is None else "by columns that are weighed")
    return Lifted(lift, shot, found)
