"""From a TOML file to the list of runs it names.

Each [[group]] has `name`, `seeds`, `provenance` (where its settings come from, and what was chosen by looking at what)
and settings shared by its [[group.run]]s. A run has `method` (the name in the papers' tables), `epsilon` (a list),
settings of its own, and `by_epsilon` for those that differ between values.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

QUICK_EPOCHS = 2
_OF_GROUP = {"name", "run", "seeds", "provenance"}
_OF_RUN = {"method", "epsilon", "by_epsilon"}


@dataclass(frozen=True)
class Run:
    """One training: a group's settings, one epsilon, one seed."""

    group: str
    method: str
    epsilon: float
    seed: int
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        """Short and unique among the runs of a file."""
        return f"{self.group} / {self.method} / epsilon {self.epsilon:g} / seed {self.seed}"

    @property
    def dataset(self) -> str:
        """As papers list it: some name the network or the features along with the data."""
        return self.settings.get("listed_as", self.settings["dataset"])

    @property
    def metric(self) -> str:
        """What is measured on the test set."""
        return self.settings.get("metric", "accuracy")

    @property
    def epochs(self) -> int:
        """All epochs of all stages."""
        return self.settings["epochs"] * len(self.settings.get("shares", [1]))


def groups(path: Path) -> dict[str, dict[str, Any]]:
    """The file's groups by name, in its order."""
    return {group["name"]: group for group in tomllib.loads(path.read_text(encoding="utf-8"))["group"]}


def runs(path: Path, names: list[str], seeds: list[int] | None = None) -> list[Run]:
    """All runs of the file, or of these groups, in the file's order; with these seeds instead of each group's own."""
    found = chosen(path, names)
    return [run for group in found for run in expanded(group, seeds or group["seeds"])]


def chosen(path: Path, names: list[str]) -> list[dict[str, Any]]:
    """The groups of these names (all when there are none), in the file's order."""
    found = groups(path)
    strange = [name for name in names if name not in found]
    if strange:
        raise ValueError(f"{path} has no group {strange[0]!r}; it has {', '.join(map(repr, found))}")
    return [group for name, group in found.items() if not names or name in names]


def expanded(group: dict[str, Any], seeds: list[int]) -> Iterator[Run]:
    """The runs of one group."""
    common = {key: value for key, value in group.items() if key not in _OF_GROUP}
    for entry in group["run"]:
        if "method" not in entry:
            raise ValueError(f"group {group['name']!r} has a run without a method; name it as the papers' tables do")
        own = {key: value for key, value in entry.items() if key not in _OF_RUN}
        for epsilon in entry["epsilon"]:
            special = entry.get("by_epsilon", {}).get(str(epsilon), {})
            for seed in seeds:
                yield Run(group["name"], entry["method"], float(epsilon), seed, {**common, **own, **special})


def first_seeds(group: dict[str, Any], count: int) -> list[int]:
    """The group's seeds, cut to `count` or continued with the numbers after the largest."""
    seeds = list(group["seeds"])
    return (seeds + list(range(max(seeds) + 1, max(seeds) + 1 + count)))[:count]


def quickened(run: Run) -> Run:
    """The same run with few epochs, and marked: its line never counts for the table."""
    return replace(run, settings={**run.settings, "epochs": min(run.settings["epochs"], QUICK_EPOCHS), "quick": True})


def named(setting: str, name: str, known: Mapping[str, Any]) -> Any:
    """What a setting's name stands for; ValueError if it stands for nothing."""
    if name not in known:
        raise ValueError(f"{setting}={name!r} is not known here; give one of {', '.join(known)}")
    return known[name]
