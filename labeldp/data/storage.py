"""Releases on disk: arrays and a JSON description in one .npz file, without pickle."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labeldp.private.randomizers import TopKResponse, law_from_description
from labeldp.private.responses import SetResponse
from labeldp.releases import NoisyLabels


def save_labels(path: Path, private: NoisyLabels, note: Mapping[str, Any] | None = None) -> None:
    """Write answers, law and a note of plain JSON values; an older file stays until the new one is whole."""
    sets = private.law.sets if isinstance(private.law, SetResponse) else None
    described = json.dumps({"law": dict(private.law.describe()), "note": dict(note or {})})
    arrays = {"answers": private.answers, "description": np.array(described)}
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
        law_fields = json.loads(str(arrays["description"]))["law"]
        sets = arrays.get("sets")
        law = law_from_description(law_fields) if sets is None else TopKResponse(float(law_fields["epsilon"]), sets)
        return NoisyLabels(law, arrays["answers"])


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
