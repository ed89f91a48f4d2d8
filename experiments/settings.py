"""From a TOML file to the list of runs it names."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Run:
    """One training: a group's settings, one epsilon, one seed."""

    group: str
    label: str
    epsilon: float
    seed: int
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        """Short and unique within a file."""
        return f"{self.group} / {self.label} / epsilon {self.epsilon:g} / seed {self.seed}"


def runs(path: Path, groups: list[str], seeds: list[int] | None = None) -> list[Run]:
    """All runs of the file, or of these groups, in the file's order."""
    file = tomllib.loads(path.read_text())
    return [run for group in file["group"] if not groups or group["name"] in groups for run in _expand(group, seeds)]


def _expand(group: dict[str, Any], seeds: list[int] | None) -> Iterator[Run]:
    common = {key: value for key, value in group.items() if key not in {"name", "run", "seeds"}}
    for entry in group["run"]:
        own = {key: value for key, value in entry.items() if key not in {"epsilon", "by_epsilon", "label"}}
        for epsilon in entry["epsilon"]:
            special = entry.get("by_epsilon", {}).get(str(epsilon), {})
            for seed in seeds or group["seeds"]:
                yield Run(
                    group["name"], entry.get("label", entry["recipe"]), float(epsilon), seed,
                    {**common, **own, **special},
                )  # fmt: skip
