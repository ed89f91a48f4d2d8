"""Releases on disk: arrays and a JSON description in one .npz file, without pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from labeldp.private.randomizers import TopKResponse, law_from_description
from labeldp.private.responses import SetResponse
from labeldp.releases import NoisyLabels


def save_labels(path: Path, private: NoisyLabels) -> None:
    """Write answers and law; an older file stays until the new one is whole."""
    sets = private.law.sets if isinstance(private.law, SetResponse) else None
    arrays = {"answers": private.answers, "description": np.array(json.dumps(dict(private.law.describe())))}
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
        description = json.loads(str(arrays["description"]))
        sets = arrays.get("sets")
        law = law_from_description(description) if sets is None else TopKResponse(float(description["epsilon"]), sets)
        return NoisyLabels(law, arrays["answers"])
