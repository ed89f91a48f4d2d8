"""What a rehearsal found, on disk: arrays and a JSON description in one .npz file, without pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labeldp.learning.plans import Basis, Plan
from labeldp.learning.rehearsal import Rehearsal, Scored
from labeldp.learning.temperature import Scale


def save_plan(path: Path, found: Rehearsal, note: Mapping[str, Any]) -> None:
    """Write a rehearsal and a note of plain JSON values; an older file stays until the new one is whole."""
    tried = [[asdict(scored.plan), scored.score] for scored in found.tried]
    scales = [asdict(scale) for scale in found.scales]
    described = {"plan": asdict(found.plan), "tried": tried, "scales": scales, "note": dict(note)}
    basis = found.basis
    draft = path.with_name(path.name + ".part.npz")
    np.savez(
        draft, allow_pickle=False, description=np.array(json.dumps(described)), mean=basis.mean.cpu().numpy(),
        matrix=basis.matrix.cpu().numpy(), sizes=np.array([basis.constant, basis.bound]),
    )  # fmt: skip
    os.replace(draft, path)


def load_plan(path: Path, note: Mapping[str, Any], device: torch.device) -> Rehearsal:
    """Read what `save_plan` wrote, or ValueError if its note is another one."""
    with np.load(path, allow_pickle=False) as arrays:
        fields = json.loads(str(arrays["description"]))
        mean, matrix = (torch.from_numpy(arrays[name]).to(device) for name in ("mean", "matrix"))
        constant, bound = map(float, arrays["sizes"])
    odd = sorted(key for key in note if note[key] != fields["note"].get(key))
    if odd:
        raise ValueError(f"{path} is the plan of another run ({', '.join(odd)} differ); use a new folder")
    tried = tuple(Scored(Plan(**plan), score) for plan, score in fields["tried"])
    scales = tuple(Scale(**scale) for scale in fields["scales"])
    return Rehearsal(Plan(**fields["plan"]), Basis(mean, matrix, constant, bound), tried, scales)
