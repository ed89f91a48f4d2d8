"""NoiseCluster: one noisy majority label for each cluster of public features (Tang et al. 2022).

    n_gc = rows of class c in cluster g;   label of cluster g = argmax_c n_gc, with noise;   its rows get that label

A row is in one cluster, so all clusters together cost as much as one, and no noise is added to single rows: where
clusters are pure this works at an ε of a few thousandths. It cannot get better than the clusters are.

How to vote, at equal ε (`vote`): `permute_and_flip` releases the winners and nothing else, with the least noise;
`laplace_counts` releases the counts too, for δ = 0; `gaussian_counts` is as published and needs δ > 0.

`group_numbers` and `release_groups` serve every recipe on clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from labeldp.core.certificate import Certificate
from labeldp.core.vault import LabelVault
from labeldp.features.clusters import Clusters, SoftClusters
from labeldp.learning.evidence import on_classes
from labeldp.learning.train import Inputs
from labeldp.mechanisms.counts import GaussianNoise, GroupCounts, LaplaceNoise
from labeldp.mechanisms.selection import GroupVotes, Winners
from labeldp.recipes.arguments import Fit, checked, device_of
from labeldp.recipes.kept import checkpoint_of, digest, in_folder, query_note, release_once
from labeldp.releases import NoisyCounts

# The cluster of each row, 0 … C − 1, found without a label: what `kmeans` returns, or plain numbers.
Grouping = Clusters | SoftClusters | Tensor | npt.ArrayLike
# (groups, num_groups, num_classes, epsilon, delta) → the mechanism.
Vote = Callable[[npt.NDArray[np.int64], int, int, float, float], GroupVotes | GroupCounts]


def permute_and_flip(
    groups: npt.NDArray[np.int64], num_groups: int, num_classes: int, epsilon: float, delta: float
) -> GroupVotes:
    """Release the winners alone, ε-private; see `GroupVotes`."""
    return GroupVotes(groups, num_groups, num_classes, epsilon)


def laplace_counts(
    groups: npt.NDArray[np.int64], num_groups: int, num_classes: int, epsilon: float, delta: float
) -> GroupCounts:
    """Release counts with discrete Laplace noise, ε-private; the largest of a cluster wins."""
    return GroupCounts(groups, num_groups, num_classes, LaplaceNoise(epsilon))


def gaussian_counts(
    groups: npt.NDArray[np.int64], num_groups: int, num_classes: int, epsilon: float, delta: float
) -> GroupCounts:
    """Release counts with Gaussian noise (discrete, here), (ε, δ)-private, as published; the largest wins."""
    return GroupCounts(groups, num_groups, num_classes, GaussianNoise.for_budget(epsilon, delta))


@dataclass(frozen=True, eq=False)
class ClusterLabels:
    """A private label for every cluster, and so for every row, old or new.

    Args:
        winners: the label of each cluster, (C,); that of a cluster without rows is noise.
        labels: the label of each row's cluster, (n,).
        certificate: what the vault has spent, these labels included.
        counts: the noisy counts behind the winners, where they were released.
    """

    winners: Winners
    labels: npt.NDArray[np.int64]
    certificate: Certificate
    counts: NoisyCounts | None = None

    def predict(self, clusters: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the labels of rows of these clusters (for new rows, `Clusters.assign`), (m,)."""
        return self.winners[np.asarray(clusters)]


def label(
    clusters: Grouping,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float = 0.0,
    vote: Vote = permute_and_flip,
    folder: Path | None = None,
) -> ClusterLabels:
    """Make one query, at (ε, δ) in all: the majority label of each cluster.

    Args:
        clusters: what `kmeans` or `scan` returns, or each row's cluster number; found without labels.
        delta: for `gaussian_counts` only; the others spend none.
        vote: how the winner is found.
        folder: keeps the release, so that it is not paid for twice.

    >>> vault = LabelVault([0, 0, 0, 1, 1, 1] * 50, num_classes=2)
    >>> found = label([0, 0, 0, 1, 1, 1] * 50, vault, epsilon=1.0)
    >>> found.winners, found.certificate.epsilon
    (array([0, 1]), 1.0)
    """
    groups, num_groups = group_numbers(clusters, vault)
    mechanism = vote(groups, num_groups, vault.num_classes, epsilon, delta)
    released = release_groups(vault, mechanism, in_folder(folder, "votes.npz"))
    counts = released if isinstance(released, NoisyCounts) else None
    winners = released.winners() if isinstance(released, NoisyCounts) else released
    return ClusterLabels(winners, winners[groups], vault.certificate(delta), counts)


@checked
def train(
    model: nn.Module,
    inputs: Inputs,
    vault: LabelVault,
    *,
    epsilon: float,
    fit: Fit,
    clusters: Grouping,
    delta: float = 0.0,
    vote: Vote = permute_and_flip,
    folder: Path | None = None,
) -> nn.Module:
    """Label every row by its cluster (`label`) and train on those labels. With a folder, a killed run can be resumed.

    A model may do better than the clusters it learnt from, where it finds the classes simpler than they are.
    """
    found = label(clusters, vault, epsilon=epsilon, delta=delta, vote=vote, folder=folder)
    classes = torch.from_numpy(found.labels).to(device_of(model))
    return fit(model, inputs, on_classes(classes), **checkpoint_of(folder, found.labels))


# --- clusters ----------------------------------------------------------------------------------------------------


def group_numbers(clusters: Grouping, vault: LabelVault) -> tuple[npt.NDArray[np.int64], int]:
    """Return each row's cluster, (n,), and how many there are, which an array says by its largest number."""
    found = isinstance(clusters, Clusters | SoftClusters)
    members = clusters.members if found else clusters
    numbers = members.detach().cpu().numpy() if isinstance(members, Tensor) else np.asarray(members)
    if numbers.ndim != 1 or len(numbers) != len(vault) or (numbers.size and numbers.dtype.kind not in "iu"):
        raise ValueError(
            f"clusters has type {numbers.dtype} and shape {numbers.shape}; give a whole number for each of "
            f"{len(vault)} rows, or what kmeans or scan of labeldp.features.clusters returns"
        )
    known = clusters.count if found else int(numbers.max(initial=0)) + 1
    return numbers.astype(np.int64), known


@overload
def release_groups(
    vault: LabelVault, mechanism: GroupCounts, kept: Path | None = None, purpose: Mapping[str, Any] | None = None
) -> NoisyCounts: ...
@overload
def release_groups(
    vault: LabelVault, mechanism: GroupVotes, kept: Path | None = None, purpose: Mapping[str, Any] | None = None
) -> Winners: ...
def release_groups(
    vault: LabelVault,
    mechanism: GroupCounts | GroupVotes,
    kept: Path | None = None,
    purpose: Mapping[str, Any] | None = None,
) -> NoisyCounts | Winners:
    """Release something about groups once, or return what is kept of it in this file by an earlier run.

    The file is bound to the mechanism, the groups and the purpose (plain JSON values: what the run is about).
    """
    groups = f"{mechanism.num_groups} {digest(mechanism.groups)}"
    note = {**query_note(vault, mechanism), "groups": groups, **(purpose or {})}
    numbers = mechanism.num_groups * (vault.num_classes + 1)
    return release_once(vault, mechanism, kept, note, numbers=numbers)
