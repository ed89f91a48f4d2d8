"""What the recipes on clusters share: numbering the rows' clusters, and asking about them once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
from torch import Tensor

from labeldp.core.events import Event
from labeldp.core.ledger import check_budget
from labeldp.core.vault import LabelVault
from labeldp.data.storage import GroupRelease, digest, load_groups, load_note, save_groups
from labeldp.features.clusters import Clusters
from labeldp.mechanisms.counts import GroupCounts, GroupVotes, Winners
from labeldp.recipes.common import ask_once, question_note
from labeldp.releases import NoisyCounts

# The cluster of each row, 0 … C − 1, found without a label: what `kmeans` returns, or plain numbers.
Grouping = Clusters | Tensor | npt.ArrayLike


def group_numbers(clusters: Grouping, vault: LabelVault) -> tuple[npt.NDArray[np.int64], int]:
    """Each row's cluster, (n,), and how many clusters there are: those of `Clusters`, else the largest number + 1."""
    members = clusters.members if isinstance(clusters, Clusters) else clusters
    numbers = members.detach().cpu().numpy() if isinstance(members, Tensor) else np.asarray(members)
    if numbers.ndim != 1 or len(numbers) != len(vault) or (numbers.size and numbers.dtype.kind not in "iu"):
        raise ValueError(
            f"clusters has type {numbers.dtype} and shape {numbers.shape}; give a whole number for each of "
            f"{len(vault)} rows, or what labeldp.features.clusters.kmeans returns"
        )
    known = len(clusters.centers) if isinstance(clusters, Clusters) else int(numbers.max(initial=0)) + 1
    return numbers.astype(np.int64), known


@overload
def ask_groups(
    vault: LabelVault, question: GroupCounts, kept: Path | None = None, purpose: Mapping[str, Any] | None = None
) -> NoisyCounts: ...
@overload
def ask_groups(
    vault: LabelVault, question: GroupVotes, kept: Path | None = None, purpose: Mapping[str, Any] | None = None
) -> Winners: ...
def ask_groups(
    vault: LabelVault,
    question: GroupCounts | GroupVotes,
    kept: Path | None = None,
    purpose: Mapping[str, Any] | None = None,
) -> GroupRelease:
    """One answer about groups, or the one kept in this file from an earlier run: `common.ask` for groups.

    The file is bound to the question, the groups and the purpose (plain JSON values: what the run is about). A kept
    answer of another vault is paid for again here, so that this vault's certificate covers it too.
    """
    groups = f"{question.num_groups} {digest(question.groups)}"
    note = {**question_note(vault, question), "groups": groups, **(purpose or {})}
    return ask_once(vault, question, kept, note, save_groups, load_groups)


def check_affordable(vault: LabelVault, queries: Iterable[tuple[Event, Path | None]]) -> None:
    """Raise BudgetExceededError before the first look when the budget does not allow all of them.

    A look whose answer this very vault gave before, and which is kept in the file, is paid for.
    """
    ledger = vault.ledger
    for event, kept in queries:
        if kept is None or not kept.exists() or load_note(kept)["vault"] != vault.id:
            ledger = ledger.charge(event)
    check_budget(ledger.groups(), vault.budget)
