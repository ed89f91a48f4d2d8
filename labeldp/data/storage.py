"""Releases on disk: arrays and a JSON description in one .npz file, without pickle.

Every file has a note of plain JSON values beside the release, which `load_note` reads. An older file stays until the
new one is whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from labeldp.atomic import replacing
from labeldp.mechanisms.counts import Winners
from labeldp.mechanisms.responses import SetResponse, TopKResponse, channel_from_description
from labeldp.mechanisms.values import BinnedResponse, NoisyValues
from labeldp.releases import NoisyCounts, NoisyLabels, NoisyMoments

GroupRelease = NoisyCounts | Winners
Note = Mapping[str, Any] | None


def save_labels(path: Path | IO[bytes], private: NoisyLabels, note: Note = None) -> None:
    """Write private responses and their channel."""
    arrays: dict[str, Any] = {"answers": private.responses}
    if isinstance(private.channel, SetResponse) and private.channel.sets is not None:
        arrays["sets"] = private.channel.sets
    _write(path, {"law": dict(private.channel.describe())}, note, arrays)


def load_labels(path: Path) -> NoisyLabels:
    """Read what `save_labels` wrote.

    A set-valued channel comes back as `TopKResponse` on the same sets: given the sets, the prior that chose them no
    longer matters.
    """
    with np.load(path, allow_pickle=False) as arrays:
        described = json.loads(str(arrays["description"]))["law"]
        sets = arrays.get("sets")
        channel = (
            channel_from_description(described) if sets is None else TopKResponse(float(described["epsilon"]), sets)
        )
        return NoisyLabels(channel, arrays["answers"])


def save_values(path: Path | IO[bytes], noisy: NoisyValues, note: Note = None) -> None:
    """Write private responses for numbers, and the bins that they are of."""
    channel = noisy.channel
    assert isinstance(channel, BinnedResponse)
    arrays = {"answers": noisy.responses, "bins": channel.bins, "outputs": channel.outputs}
    _write(path, {"epsilon": channel.epsilon}, note, arrays)


def load_values(path: Path) -> NoisyValues:
    """Read what `save_values` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        epsilon = float(json.loads(str(arrays["description"]))["epsilon"])
        channel = BinnedResponse(epsilon, arrays["bins"], arrays["outputs"])
        return NoisyValues(channel, arrays["answers"], channel.outputs)


def save_groups(path: Path | IO[bytes], release: GroupRelease, note: Note = None) -> None:
    """Write what was released about groups: noisy counts, or the winning classes alone."""
    if isinstance(release, NoisyCounts):
        fields = {"noise": release.noise, "noise_std": release.noise_std}
        _write(path, fields, note, {"counts": release.counts, "group_sizes": release.group_sizes})
    else:
        _write(path, {}, note, {"winners": release})


def load_groups(path: Path) -> GroupRelease:
    """Read what `save_groups` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        if "winners" in arrays:
            return arrays["winners"]
        fields = json.loads(str(arrays["description"]))
        return NoisyCounts(arrays["counts"], arrays["group_sizes"], fields["noise"], float(fields["noise_std"]))


def save_moments(path: Path | IO[bytes], noisy: NoisyMoments, note: Note = None) -> None:
    """Write a noisy label-feature moment."""
    fields = {name: getattr(noisy, name) for name in noisy.__dataclass_fields__ if name not in {"value", "total"}}
    # Noise does not compress.
    _write(path, {"fields": fields}, note, {"value": noisy.value, "total": noisy.total}, compress=False)


def load_moments(path: Path) -> NoisyMoments:
    """Read what `save_moments` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        fields = json.loads(str(arrays["description"]))["fields"]
        return NoisyMoments(arrays["value"], arrays["total"], **fields)


def load_note(path: Path) -> dict[str, Any]:
    """Read the note that was saved with a release."""
    with np.load(path, allow_pickle=False) as arrays:
        return dict(json.loads(str(arrays["description"]))["note"])


def digest(*arrays: np.ndarray) -> str:
    """Return a short name for the content of arrays."""
    content = hashlib.sha256()
    for array in arrays:
        content.update(f"{array.dtype}{array.shape}".encode())
        content.update(np.ascontiguousarray(array).tobytes())
    return content.hexdigest()[:16]


def _write(
    target: Path | IO[bytes],
    fields: Mapping[str, Any],
    note: Note,
    arrays: Mapping[str, np.ndarray],
    compress: bool = True,
) -> None:
    described = np.array(json.dumps({**fields, "note": dict(note or {})}))
    save: Any = np.savez_compressed if compress else np.savez
    if not isinstance(target, Path):
        save(target, allow_pickle=False, description=described, **arrays)
        return
    with replacing(target) as draft, draft.open("wb") as file:
        save(file, allow_pickle=False, description=described, **arrays)
