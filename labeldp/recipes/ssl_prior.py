"""Priors from clusters of public features, then randomized response under them (Ghazi et al. 2021, Algorithm 4).

    1. cluster the rows by public features, of a self-supervised model for example: no label is used
    2. h_g = class counts of cluster g + discrete Laplace noise, for ε_p;  p_g = max(h_g, 0) / Σ max(h_g, 0)
    3. every row of cluster g: ỹ = RRWithPrior(y; p_g), for ε − ε_p
    4. train on ỹ

Both queries are over every row, and the second is chosen after the first, so they add up: ε_p + (ε − ε_p) = ε, without
a rounding error (adaptive composition). The prior comes from the same labels; its cost is that of the first query.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from labeldp.core.events import PureDP
from labeldp.core.vault import LabelVault
from labeldp.learning.evidence import evidence
from labeldp.learning.train import Inputs
from labeldp.mechanisms.common import checked_epsilon
from labeldp.mechanisms.counts import GroupCounts, LaplaceNoise
from labeldp.mechanisms.responses import PriorResponse
from labeldp.recipes.arguments import Fit, checked, device_of
from labeldp.recipes.budget import checked_part, split_pure
from labeldp.recipes.cluster_votes import Grouping, group_numbers, release_groups
from labeldp.recipes.kept import check_affordable, checkpoint_of, in_folder, release_labels
from labeldp.recipes.lp_mst import Known, Learn, check_learn, hard_responses
from labeldp.releases import NoisyCounts

# Below this, noisy counts say nothing and their sampler refuses.
_LEAST_EPSILON = 1e-9


@checked
def train(
    model: nn.Module,
    inputs: Inputs,
    vault: LabelVault,
    *,
    epsilon: float,
    fit: Fit,
    clusters: Grouping,
    prior_epsilon: float | None = None,
    learn: Learn = hard_responses,
    folder: Path | None = None,
) -> nn.Module:
    """Count classes by cluster, release responses under the counts, and train: at `epsilon` in all.

    Args:
        clusters: what `kmeans(features, k=100)` returns, or each row's cluster number; found without labels.
        prior_epsilon: ε_p, say of `fitted_part`; `published_part` when None.
        learn: what to minimise: `lp_mst.hard_responses` (published) or `lp_mst.posterior_of_model`, here with the
            clusters in the place of the model. `lp_mst.likelihood` takes no account of the prior: where a cluster
            leaves one class only, it learns nothing from its rows.
        folder: keeps counts, responses and a checkpoint, so that a killed run goes on and draws nothing twice.
    """
    check_learn(learn, vault.num_classes)
    groups, num_groups = group_numbers(clusters, vault)
    first, second = split_of(epsilon, len(vault), num_groups, prior_epsilon)
    counts_file, responses_file = in_folder(folder, "counts.npz"), in_folder(folder, "responses.npz")
    check_affordable(vault, (PureDP(first), None, counts_file), (PureDP(second), None, responses_file))
    histograms = _histograms(groups, num_groups, vault, first, counts_file, epsilon)
    private = release_labels(vault, PriorResponse(second, histograms.probabilities()[groups]), kept=responses_file)
    device = device_of(model)
    # One row more of every class: what noise and clipping hid stays possible.
    belief = torch.from_numpy(np.log1p(np.clip(histograms.counts, 0, None))).float()
    known = Known(
        torch.from_numpy(private.hard()).to(device),
        evidence(private, device),
        belief.to(device)[torch.from_numpy(groups).to(device)],
    )
    return fit(model, inputs, learn(known), **checkpoint_of(folder, private.responses))


def published_part(epsilon: float, num_rows: int, num_clusters: int) -> float:
    """Return ε_p = min(ε/2, 25·C/n): noise of mean size 2/ε_p, 8% of a mean cluster, on every count.

    For 50,000 rows this is what Ghazi et al. 2021 took, 0.05 for 100 clusters and 0.025 for 50. Ghazi et al. 2024
    (LabelDP-Pro, Table 9; clusters not stated, 100 assumed) have the same at ε = 0.01, 0.02, 0.18 and 0.29, a little
    less at 0.05 (0.02), and 0.1, twice as much, at 0.5 and 1.6.

    >>> published_part(1.0, num_rows=50_000, num_clusters=100)
    0.05
    """
    return min(epsilon / 2, 25.0 * num_clusters / max(num_rows, 1))


def fitted_part(epsilon: float, num_rows: int, num_clusters: int, num_classes: int) -> float:
    """Return ε_p = min(ε, 30·√K·C/n): more than published, and all of ε where ε is small.

    Each row's response is then its cluster's likeliest class; `cluster_votes` does that with less noise. The constant
    was chosen for the most right responses on count tables of the true training labels of Fashion-MNIST and CIFAR-10
    and on made-up tables of 2 to 100 classes. So what it gains on those two data sets is no evidence for it.

    >>> fitted_part(2.0, num_rows=60_000, num_clusters=100, num_classes=9)
    0.15
    """
    return min(epsilon, 30.0 * math.sqrt(num_classes) * num_clusters / max(num_rows, 1))


def split_of(
    epsilon: float, num_rows: int, num_clusters: int, prior_epsilon: float | None = None
) -> tuple[float, float]:
    """Return (ε_p, ε − ε_p), from public numbers only: ε_p as given, else `published_part`.

    >>> split_of(1.0, num_rows=50_000, num_clusters=100)
    (0.050000000000000044, 0.95)
    """
    epsilon = checked_epsilon(epsilon)
    if prior_epsilon is None:
        prior_epsilon = published_part(epsilon, num_rows, num_clusters)
    first = checked_part("prior_epsilon", prior_epsilon, epsilon)
    if epsilon == math.inf or first < _LEAST_EPSILON:
        return 0.0, epsilon
    return split_pure(epsilon, first)


def _histograms(
    groups: npt.NDArray[np.int64], num_groups: int, vault: LabelVault, epsilon: float, kept: Path | None, in_all: float
) -> NoisyCounts:
    """Return the counts; none at all, which is a uniform prior, where nothing is spent on them."""
    if epsilon == 0:
        empty = np.zeros((num_groups, vault.num_classes), dtype=np.int64)
        return NoisyCounts(empty, np.bincount(groups, minlength=num_groups), "none", 0.0)
    mechanism = GroupCounts(groups, num_groups, vault.num_classes, LaplaceNoise(epsilon))
    return release_groups(vault, mechanism, kept, {"epsilon of both queries": in_all})
