"""The papers' tables as data: which settings to run (tables.toml) and what the paper reports (papers.csv)."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.settings import Run, chosen, expanded, first_seeds, quickened

FOLDER = Path(__file__).parent

# (data set, method, epsilon, metric) → the paper's value
Figures = dict[tuple[str, str, float, str], float]


@dataclass(frozen=True)
class Table:
    """One table of one paper: the groups of a settings file that train it, and its figures."""

    name: str
    title: str
    settings: Path
    groups: tuple[str, ...]
    figures: Figures
    note: str = ""
    # Data sets of runs here → the paper's, whose figures they have, too.
    beside: Mapping[str, str] = field(default_factory=dict)

    def runs(self, *, seeds: int | None = None, quick: bool = False) -> list[Run]:
        """Its runs, with this many seeds instead of each group's own; quick ones have one seed and few epochs."""
        seeds = 1 if quick else seeds
        found = [
            run
            for group in chosen(self.settings, list(self.groups))
            for run in expanded(group, group["seeds"] if seeds is None else first_seeds(group, seeds))
        ]
        return [quickened(run) for run in found] if quick else found

    def results(self, quick: bool) -> Path:
        """The file its lines go to. Quick lines have one of their own."""
        return self.settings.parent / "results" / ("quick.jsonl" if quick else f"{self.settings.stem}.jsonl")

    def paper(self, run: Run) -> float | None:
        """The paper's value for such a run, if it has one."""
        return self.figures.get((run.dataset, run.method, run.epsilon, run.metric))

    def provenance(self) -> dict[str, str]:
        """Where each group's settings come from."""
        return {group["name"]: group.get("provenance", "") for group in chosen(self.settings, list(self.groups))}

    def without_settings(self) -> dict[tuple[str, str], list[float]]:
        """The paper's figures that no run here is about: (data set, method) → epsilons."""
        runs = self.runs(seeds=1)
        ours = {(self.beside.get(run.dataset, run.dataset), run.method, run.epsilon, run.metric) for run in runs}
        left: dict[tuple[str, str], list[float]] = {}
        for dataset, method, epsilon, metric in self.figures:
            if dataset not in self.beside and (dataset, method, epsilon, metric) not in ours:
                left.setdefault((dataset, method), []).append(epsilon)
        return left


def tables(folder: Path | None = None) -> dict[str, Table]:
    """Every table that has settings, by name."""
    folder = folder or FOLDER
    entries = tomllib.loads((folder / "tables.toml").read_text(encoding="utf-8"))["table"]
    with (folder / "papers.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {entry["name"]: _table(entry, rows, folder) for entry in entries}


def _table(entry: dict[str, Any], rows: list[dict[str, str]], folder: Path) -> Table:
    printed = {
        (row["dataset"], row["method"], float(row["epsilon"]), row["metric"]): float(row["value"])
        for row in rows
        if row["table"] == entry["name"]
    }
    beside: dict[str, str] = entry.get("beside", {})
    figures = printed | {
        (ours, method, epsilon, metric): value
        for (dataset, method, epsilon, metric), value in printed.items()
        for ours, theirs in beside.items()
        if dataset == theirs
    }
    settings, groups = folder / entry["settings"], tuple(entry["groups"])
    return Table(entry["name"], entry["title"], settings, groups, figures, entry.get("note", ""), beside)


def select(runs: list[Run], epsilons: tuple[float, ...], methods: tuple[str, ...]) -> list[Run]:
    """The runs with these epsilons and methods (all where none are given); a value that no run has is an error."""
    _check_known("method", list(methods), [run.method for run in runs])
    _check_known(
        "epsilon", [f"{epsilon:g}" for epsilon in epsilons], [f"{e:g}" for e in sorted(r.epsilon for r in runs)]
    )
    found = [r for r in runs if (not epsilons or r.epsilon in epsilons) and (not methods or r.method in methods)]
    if not found:
        raise ValueError(f"this table has no {' or '.join(methods)} at epsilon {', '.join(map(str, epsilons))}")
    return found


def _check_known(what: str, given: list[str], known: list[str]) -> None:
    strange = [value for value in given if value not in known]
    if strange:
        raise ValueError(f"{what}={strange[0]} is not in this table's settings; give {', '.join(dict.fromkeys(known))}")
