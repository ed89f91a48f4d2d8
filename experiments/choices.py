"""The measured table behind `labeldp.choose`, and how its choices do:  python -m experiments.choices [--check]

Without arguments, writes labeldp/choosing/measured.csv from every result line and the papers' figures. With --check,
prints for each measured (data set, device, ε) the best recipe, the chosen one, and what the choice costs in points.

A new method is one line in `METHODS`, a new data set one line in `CASES`.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import records

FOLDER = Path(__file__).parent
TARGET = FOLDER.parent / "labeldp" / "choosing" / "measured.csv"
COLUMNS = (
    "dataset", "rows", "classes", "features", "modality", "device", "recipe", "epsilon", "delta", "accuracy", "runs",
    "seconds", "origin",
)  # fmt: skip
# Public numbers of the data sets: modality, rows, classes, numbers per row.
CASES = {
    "mnist": ("images", 60_000, 10, 784),
    "fashion_mnist": ("images", 60_000, 10, 784),
    "kmnist": ("images", 60_000, 10, 784),
    "cifar10": ("images", 50_000, 10, 3072),
    "cifar100": ("images", 50_000, 100, 3072),
    "cinic10": ("images", 90_000, 10, 3072),
    "fashion_mnist embeddings": ("embeddings", 60_000, 10, 512),
    "cifar10 embeddings": ("embeddings", 50_000, 10, 512),
    "cifar10 byol embeddings": ("embeddings", 50_000, 10, 512),
    "cifar100 embeddings": ("embeddings", 50_000, 100, 512),
    "cinic10 embeddings": ("embeddings", 90_000, 10, 512),
    "adult": ("table", 32_561, 2, 108),
}
ALIASES = {
    "cifar10 small cnn": "cifar10",
    "cifar10 simclr features": "cifar10 embeddings",
    "cifar10 byol features": "cifar10 byol embeddings",
}
# Settings that name features learnt beforehand make a data set of embeddings out of one of images.
_LEARNT = re.compile(r"simclr|byol|dino|encoder")
# What a method's name (else its recipe in the settings) says it is; the first that matches.
METHODS = (
    (r"pretrain|pate", None),
    # Semi-supervised networks: `choose` does not offer them. On Fashion-MNIST they were behind what it offers.
    (r"ldp-ssl|denoise-ssl|aug-descent|mean-teacher|fixmatch|shot-answers|studied", None),
    # With two numbers of clusters, of which `choose` cannot know the better one.
    (r"^noise-cluster", None),
    # Convex algorithms of one pass, which `choose` does not offer.
    (r"^lp-(rr|normal)-sgd", None),
    # Of these recipes `choose` offers networks, which take longer and learn more.
    (r"^linear-", None),
    # A graph of nearest rows makes better heads at small ε, where images get one unasked; elsewhere they do not, nor an
    # encoder over crops.
    (r"graph|crops", None),
    (r"linear-student", "one_shot+linear"),
    (r"one[ _-]?(shot|look).*prior", "one_shot_prior"),
    (r"rounds|looks\b", "rounds"),
    (r"student", "one_shot+student"),
    (r"one[ _-]?(shot|look)", "one_shot"),
    (r"ssl[ _-]prior|rr-with-prior", "ssl_prior"),
    (r"cluster[ _-]votes|noise-?cluster", "cluster_votes"),
    (r"lp-1st|randomized-response|debiased|forward|^rr$", "forward"),
    (r"lp-\d+st|lp[ _-]mst", "lp_mst"),
    (r"alibi", "alibi"),
    (r"dp-sgd", "dp_sgd"),
    (r"labeldp[ _-]pro|row-hull|altconv|selfspan|selfconv", "labeldp_pro"),
)
# A noise that adding or removing a row would make this ε really has the second under label substitution: 5 epochs at
# batch 1024 of 60,000 rows, δ = 1e-5, by our accountant. So the papers' gradient methods move to the right.
TRUE_EPSILON = ((0.01, 0.0218), (0.1, 0.2103), (0.2, 0.4122), (0.5, 0.9628), (1.0, 1.7016), (2.0, 2.8089))
GRADIENTS = ("dp_sgd", "labeldp_pro")


@dataclass(frozen=True)
class Mean:
    """One recipe at one ε on one data set: the mean of its best settings with the most runs (three are enough)."""

    dataset: str
    device: str
    recipe: str
    epsilon: float
    delta: float
    accuracy: float
    runs: int
    seconds: float | None
    origin: str = "ours"

    def row(self) -> dict[str, Any]:
        """As `labeldp.choosing.predict` reads it."""
        modality, rows, classes, features = CASES[self.dataset]
        seconds = "" if self.seconds is None else f"{self.seconds:.0f}"
        known = {"rows": rows, "classes": classes, "features": features, "modality": modality, "seconds": seconds}
        plain = {name: getattr(self, name) for name in ("dataset", "device", "recipe", "runs", "origin")}
        numbers = {"epsilon": f"{self.epsilon:g}", "delta": f"{self.delta:g}", "accuracy": f"{self.accuracy:.2f}"}
        return {**known, **plain, **numbers}


def recipe_of(method: str, recipe: str = "") -> str | None:
    """Which recipe of `labeldp.choose` a line is about; None when it is about none of them."""
    for name in (method.lower(), recipe.lower()):
        for pattern, found in METHODS:
            if name and re.search(pattern, name):
                return found
    return None


def dataset_of(line: records.Record) -> str:
    """The data set as `CASES` has it."""
    name = str(ALIASES.get(line["dataset"], line["dataset"]))
    settings = {key: value for key, value in line["settings"].items() if key != "dataset"}
    learnt = name in CASES and CASES[name][0] == "images" and _LEARNT.search(json.dumps(settings).lower())
    return f"{name} embeddings" if learnt else name


def means(lines: Iterable[records.Record]) -> list[Mean]:
    """Every (data set, device, recipe, ε) of accuracy lines at a finite ε, mean over seeds; quick lines left out."""
    groups: dict[tuple[str, str, str, float], dict[str, list[records.Record]]] = {}
    for line in lines:
        recipe, dataset = recipe_of(line["method"], line["settings"].get("recipe", "")), dataset_of(line)
        counts = line["metric"] == "accuracy" and line["epsilon"] != "inf" and not line["settings"].get("quick")
        # A network that begins with an encoder's weights has images and embeddings both: no such case is chosen for.
        if recipe is None or not counts or dataset not in CASES or "start" in line["settings"]:
            continue
        # Noise found from above leaves ε a hair below what was asked for; they are compared as the same.
        epsilon = float(f"{records.epsilon_of(line):.3g}")
        key = (dataset, "cpu" if "cpu" in line["device"].lower() else "cuda", recipe, epsilon)
        settings = json.dumps([line["method"], line["settings"]], sort_keys=True)
        groups.setdefault(key, {}).setdefault(settings, []).append(line)
    return [_mean(key, found) for key, found in sorted(groups.items())]


def _mean(key: tuple[str, str, str, float], found: dict[str, list[records.Record]]) -> Mean:
    def rank(lines: list[records.Record]) -> tuple[int, float]:
        return min(len(lines), 3), statistics.mean(line["value"] for line in lines)

    best = max(found.values(), key=rank)
    seconds = statistics.median(line["seconds"] for line in best)
    dataset, device, recipe, epsilon = key
    # Pure queries have δ = 0; where a recipe with Gaussian noise is compared with them, δ = 1e-5 is the usual one.
    delta = max(line["delta"] for line in best) or 1e-5
    return Mean(dataset, device, recipe, epsilon, delta, rank(best)[1], len(best), seconds)


def skipped(lines: Iterable[records.Record]) -> list[str]:
    """Methods and data sets of accuracy lines that no table here knows, to be reported."""
    strange = set()
    for line in lines:
        if line["metric"] != "accuracy":
            continue
        known = any(re.search(pattern, line["method"]) for pattern, _ in METHODS)
        if not known and recipe_of(line["method"], line["settings"].get("recipe", "")) is None:
            strange.add(f"method {line['method']!r} (recipe {line['settings'].get('recipe')!r}) is not in METHODS")
        if dataset_of(line) not in CASES:
            strange.add(f"data set {dataset_of(line)!r} is not in CASES")
    return sorted(strange)


def papers(measured: Iterable[Mean]) -> Iterator[Mean]:
    """The papers' best figure for every recipe that has no result of ours on a data set."""
    ours = {(mean.dataset, mean.recipe) for mean in measured}
    best: dict[tuple[str, str, float], tuple[float, str]] = {}
    with (FOLDER / "papers.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            recipe, dataset = recipe_of(row["method"]), ALIASES.get(row["dataset"], row["dataset"])
            listed = row["metric"] == "accuracy" and row["epsilon"] != "inf" and dataset in CASES
            if listed and recipe is not None and (dataset, recipe) not in ours:
                key = (dataset, recipe, true_epsilon(recipe, float(row["epsilon"])))
                best[key] = max(best.get(key, (-1.0, "")), (float(row["value"]), row["paper"]))
    for (dataset, recipe, epsilon), (value, paper) in sorted(best.items()):
        yield Mean(dataset, "cuda", recipe, epsilon, 1e-5, value, 1, None, paper)


def true_epsilon(recipe: str, epsilon: float) -> float:
    """The ε that a paper's noise has when one label is replaced.

    >>> round(true_epsilon("dp_sgd", 0.05), 3), true_epsilon("lp_mst", 0.05)
    (0.106, 0.05)
    """
    if recipe not in GRADIENTS:
        return epsilon
    claimed, true = zip(*TRUE_EPSILON, strict=True)
    ratios = [after / before for before, after in TRUE_EPSILON]
    if not claimed[0] < epsilon < claimed[-1]:
        return float(f"{epsilon * (ratios[0] if epsilon <= claimed[0] else ratios[-1]):.4g}")
    right = next(i for i, value in enumerate(claimed) if value >= epsilon)
    part = (epsilon - claimed[right - 1]) / (claimed[right] - claimed[right - 1])
    return float(f"{true[right - 1] + part * (true[right] - true[right - 1]):.4g}")


def result_lines(folder: Path = FOLDER / "results") -> list[records.Record]:
    """All result lines of a checkout."""
    return [line for path in sorted(folder.glob("*.jsonl")) for line in records.read(path)]


def table(lines: list[records.Record]) -> str:
    """The text of measured.csv."""
    ours = means(lines)
    rows = [mean.row() for mean in (*ours, *papers(ours))]
    out = [",".join(COLUMNS), *(",".join(str(row[name]) for name in COLUMNS) for row in rows)]
    return "\n".join(out) + "\n"


# --- the check ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What the choice costs at one measured (data set, device, ε).

    `taken` is the first of the predicted ranking that was measured there: the choice itself, where it was.
    """

    dataset: str
    device: str
    epsilon: float
    best: str
    chosen: str
    taken: str
    cost: float


def verdicts(measured: Iterable[Mean]) -> list[Verdict]:
    """One for every (data set, device, ε) with at least two measured recipes."""
    places: dict[tuple[str, str, float], dict[str, float]] = {}
    for mean in measured:
        places.setdefault((mean.dataset, mean.device, mean.epsilon), {})[mean.recipe] = mean.accuracy
    return [_verdict(place, found) for place, found in places.items() if len(found) > 1]


def _verdict(place: tuple[str, str, float], found: dict[str, float]) -> Verdict:
    from labeldp.choosing.choice import choose

    dataset, device, epsilon = place
    modality, rows, classes, features = CASES[dataset]
    choice = choose(rows, classes, epsilon, feature_dim=features, modality=modality, device=device)
    taken = next(one.recipe for one in choice.ranking if one.recipe in found)
    best = max(found, key=lambda name: found[name])
    return Verdict(dataset, device, epsilon, best, choice.recipe, taken, found[best] - found[taken])


def main(arguments: list[str]) -> None:
    """Write the table, or print the check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="print what `choose` says at measured points")
    checking = parser.parse_args(arguments).check
    lines = result_lines()
    for sentence in skipped(lines):
        print(f"left out: {sentence}", file=sys.stderr)
    if not checking:
        TARGET.write_text(table(lines), encoding="utf-8")
        print(f"{TARGET}: {len(TARGET.read_text(encoding='utf-8').splitlines()) - 1} rows")
        return
    for verdict in verdicts(means(lines)):
        print(
            f"{verdict.dataset:<20} {verdict.device:<5} ε={verdict.epsilon:<5g} best {verdict.best:<18} chosen "
            f"{verdict.chosen:<18} costs {verdict.cost:.2f}"
            + ("" if verdict.taken == verdict.chosen else f" (not measured here; next measured: {verdict.taken})")
        )


if __name__ == "__main__":
    main(sys.argv[1:])
