"""Noisy moments on disk. The same kind of file as `storage`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labeldp.releases import NoisyMoments


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
