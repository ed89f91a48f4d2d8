"""The history of a budget store as a file: what was spent on a data set, for those who have no access to the store.

A certificate cannot show that its ledger is all that was asked of the labels; a store can, as far as every query went
through it. Signed by whoever runs the store, its history is what a certificate is held against.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from labeldp.atomic import replacing
from labeldp.results.folder import ArtifactError

FORMAT = "labeldp-history/1"
_MOST_BYTES = 64 << 20


def write_history(path: Path, history: Mapping[str, Any]) -> None:
    """Write a history, whole or not at all; nothing is overwritten.

    Args:
        path: the file.
        history: "store", "dataset" and "charges", as `labeldp budget` prints them.
    """
    if os.path.lexists(path) or not path.parent.is_dir():
        raise ArtifactError(f"{str(path)!r} is there already, or its folder is not; choose another --out")
    with replacing(path) as draft:
        draft.write_text(json.dumps({"format": FORMAT, **history}, indent=2) + "\n", encoding="utf-8")


def read_history(path: Path) -> dict[str, Any] | None:
    """Return the history in a file, or None where it holds something else."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("format") == FORMAT else None


def history_problems(history: Mapping[str, Any]) -> Iterator[str]:
    """Yield what contradicts itself in a history: charges that are missing, or more than the budget."""
    try:
        spent = [_number(charge["epsilon"]) for charge in history["charges"]]
        numbers = [charge["number"] for charge in history["charges"]]
        budget, total = _number(history["dataset"]["epsilon"]), _number(history["dataset"]["spent"])
    except (LookupError, TypeError, ValueError):
        yield "the history is incomplete; export it again"
        return
    if numbers != list(range(1, len(numbers) + 1)) or len(numbers) != history["dataset"].get("charges"):
        yield "charges are missing from the history, or out of order"
    if spent != sorted(spent) or not math.isclose(total, spent[-1] if spent else 0.0, rel_tol=1e-9, abs_tol=1e-12):
        yield "epsilon falls in the course of the history, or does not end at what was spent"
    if not total <= budget * (1 + 1e-9):
        yield f"epsilon {total:.6g} was spent of a budget of {budget:.6g}"


def spent_in(history: Mapping[str, Any]) -> tuple[float, float]:
    """Return ε spent, and the δ of the budget."""
    return _number(history["dataset"]["spent"]), _number(history["dataset"]["delta"])


def _number(value: object) -> float:
    if value == "infinity":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise ValueError("not a number ≥ 0")
    return float(value)
