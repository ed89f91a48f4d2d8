"""Answers about groups on disk: noisy counts, or the winning classes alone. The same kind of file as `storage`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labeldp.private.votes import Winners
from labeldp.releases import NoisyCounts

GroupRelease = NoisyCounts | Winners


def save_groups(path: Path, release: GroupRelease, note: Mapping[str, Any] | None = None) -> None:
    """Write a release and a note of plain JSON values; an older file stays until the new one is whole."""
    arrays, fields = _parts(release)
    described = json.dumps({**fields, "note": dict(note or {})})
    draft = path.with_name(path.name + ".part.npz")
    np.savez_compressed(draft, allow_pickle=False, description=np.array(described), **arrays)
    os.replace(draft, path)


def load_groups(path: Path) -> GroupRelease:
    """Read what `save_groups` wrote; `storage.load_note` reads the note."""
    with np.load(path, allow_pickle=False) as arrays:
        if "winners" in arrays:
            return arrays["winners"]
        fields = json.loads(str(arrays["description"]))
        return NoisyCounts(arrays["counts"], arrays["group_sizes"], fields["noise"], float(fields["noise_std"]))


def _parts(release: GroupRelease) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    if isinstance(release, NoisyCounts):
        fields = {"noise": release.noise, "noise_std": release.noise_std}
        return {"counts": release.counts, "group_sizes": release.group_sizes}, fields
    return {"winners": release}, {}
