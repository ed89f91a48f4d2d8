"""Speed as a ratio: ours and a reference taking turns in one run, with medians and spread."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def rates(contestants: Mapping[str, Callable[[], object]], amount: float, repeats: int) -> dict[str, list[float]]:
    """Amount per second of each contestant in each of `repeats` rounds. Within a round they run one after the other.

    >>> sorted(rates({"ours": int, "reference": float}, amount=1, repeats=2))
    ['ours', 'reference']
    """
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            begun = time.perf_counter()
            run()
            found[name].append(amount / (time.perf_counter() - begun))
    return found


def show_rates(found: Mapping[str, list[float]], unit: str, as_json: bool, **settings: Any) -> None:
    """Print median and spread of each, and the first one's ratio to the others; with JSON as the last line."""
    medians = {name: statistics.median(values) for name, values in found.items()}
    first, *others = found
    for name, values in found.items():
        spread = f"{min(values):,.0f} – {max(values):,.0f}"
        print(f"{name:>10}: {medians[name]:13,.0f} {unit}  ({spread}, {len(values)} runs)")
    ratios = {name: statistics.median(a / b for a, b in zip(found[first], found[name], strict=True)) for name in others}
    for name, ratio in ratios.items():
        print(f"{first} / {name}: {ratio:.3f} (median of the rounds)")
    if as_json:
        spreads = {name: [min(values), max(values)] for name, values in found.items()}
        print(json.dumps({"unit": unit, **settings, "median": medians, "spread": spreads, "ratio": ratios}))
