"""Releases on disk: arrays and a JSON description in one .npz file, without pickle."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labeldp.mechanisms.counts import Winners
from labeldp.mechanisms.responses import SetResponse, TopKResponse, channel_from_description
from labeldp.releases import NoisyCounts, NoisyLabels, NoisyMoments


def save_labels(path: Path, private: NoisyLabels, note: Mapping[str, Any] | None = None) -> None:
    """Write answers, law and a note of plain JSON values; an older file stays until the new one is whole."""
    sets = private.channel.sets if isinstance(private.channel, SetResponse) else None
    described = json.dumps({"law": dict(private.channel.describe()), "note": dict(note or {})})
    arrays = {"answers": private.responses, "description": np.array(described)}
    if sets is not None:
        arrays["sets"] = sets
    draft = path.with_name(path.name + ".part.npz")
    np.savez_compressed(draft, allow_pickle=False, **arrays)
    os.replace(draft, path)


def load_labels(path: Path) -> NoisyLabels:
    """Read what `save_labels` wrote.

    A set-valued law comes back as `TopKResponse` on the same sets: given the sets, the prior that chose them no
    longer matters.
    """
    with np.load(path, allow_pickle=False) as arrays:
        channel_fields = json.loads(str(arrays["description"]))["law"]
        sets = arrays.get("sets")
        channel = (
            channel_from_description(channel_fields)
            if sets is None
            else TopKResponse(float(channel_fields["epsilon"]), sets)
        )
        return NoisyLabels(channel, arrays["answers"])


def load_note(path: Path) -> dict[str, Any]:
    """The note that was saved with the answers."""
    with np.load(path, allow_pickle=False) as arrays:
        return dict(json.loads(str(arrays["description"]))["note"])


def digest(*arrays: np.ndarray) -> str:
    """A short name for the content of arrays."""
    content = hashlib.sha256()
    for array in arrays:
        content.update(f"{array.dtype}{array.shape}".encode())
        content.update(np.ascontiguousarray(array).tobytes())
    return content.hexdigest()[:16]


# --- group_storage --------------------
#
# Answers about groups on disk: noisy counts, or the winning classes alone. The same kind of file as `storage`.


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


# --- moment_storage --------------------
#
# Noisy moments on disk. The same kind of file as `storage`.


def save_moments(path: Path, noisy: NoisyMoments, note: Mapping[str, Any] | None = None) -> None:
    """Write a release and a note of plain JSON values; an older file stays until the new one is whole."""
    fields = {name: getattr(noisy, name) for name in noisy.__dataclass_fields__ if name not in {"value", "total"}}
    described = json.dumps({"fields": fields, "note": dict(note or {})})
    draft = path.with_name(path.name + ".part.npz")
    np.savez(draft, allow_pickle=False, value=noisy.value, total=noisy.total, description=np.array(described))
    os.replace(draft, path)


def load_moments(path: Path) -> NoisyMoments:
    """Read what `save_moments` wrote; `storage.load_note` reads the note."""
    with np.load(path, allow_pickle=False) as arrays:
        fields = json.loads(str(arrays["description"]))["fields"]
        return NoisyMoments(arrays["value"], arrays["total"], **fields)
