"""Draw the pictures of results: docs/accuracy.svg for images, docs/tables.svg for tables.

`python scripts/picture.py` reads experiments/results/*.jsonl and experiments/papers.csv. Ours is the best mean of at
least three runs with equal settings, or, as an open point, one run of `PLANNED`; the papers' is the best figure they
print, at the ε they print. What holds at one ε holds at every larger one, so both are running maxima over ε. For tables
it reads benchmarks/tabular.jsonl, and draws the mean accuracy over all tables and seeds, as they are.
"""

import csv
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[1]
# Title, the names of the data in our lines and in the papers' tables, the lowest accuracy shown.
PANELS = (
    ("MNIST", ("mnist",), 60),
    ("Fashion-MNIST", ("fashion_mnist",), 60),
    ("CIFAR-10, features learnt without labels", ("cifar10", "cifar10 simclr features", "cifar10 byol features"), 60),
)
# Text as outlines: it looks alike with any font, or none.
STYLE = {"svg.fonttype": "path", "svg.hashsalt": "labeldp", "font.size": 11}
OURS, PAPERS, OPEN = "#0b6e99", "#9a6a1b", "#555555"
# Of the contest on tables: method, name, and how it is drawn.
COMPARED = (
    ("auto", "labeldp, auto", OURS, "-", "o"),
    ("rr, then boosting", "randomized response, then boosting", PAPERS, "--", "s"),
    ("rr, then logistic", "randomized response, then logistic regression", "#b0894f", "--", "^"),
)
RUNS, LARGEST = 3, 4.0
# Of these one run of half an hour counts: what is shown of it was fixed before it began.
PLANNED = ("one-shot-linear-consensus", "one-shot-part-consensus")
# ε → accuracy.
Points = dict[float, float]


def ours() -> tuple[dict[str, Points], dict[str, Points]]:
    """Return the best mean accuracy by data set and ε: over settings with enough runs, and of planned single ones."""
    runs: dict[tuple[str, float, str, bool], dict[int, float]] = defaultdict(dict)
    for path in sorted((ROOT / "experiments/results").glob("*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            if line["metric"] == "accuracy" and line["epsilon"] != "inf" and not line["settings"].get("quick"):
                settings, planned = json.dumps(line["settings"], sort_keys=True), line["method"] in PLANNED
                runs[line["dataset"], round(line["epsilon"], 3), settings, planned][line["seed"]] = line["value"]
    often: dict[str, Points] = defaultdict(dict)
    once: dict[str, Points] = defaultdict(dict)
    for (dataset, epsilon, _, planned), values in runs.items():
        best = often if len(values) >= RUNS else once if planned else None
        if best is not None:
            best[dataset][epsilon] = max(best[dataset].get(epsilon, 0.0), mean(values.values()))
    return often, once


def papers() -> dict[str, Points]:
    """Return the best printed accuracy by data set and ε."""
    best: dict[str, Points] = defaultdict(dict)
    with (ROOT / "experiments/papers.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            # The report's claims are not valid: its ε = 0.1 is 28.8.
            if row["metric"] == "accuracy" and row["epsilon"] != "inf" and not row["table"].startswith("paswan"):
                found, epsilon = best[row["dataset"]], float(row["epsilon"])
                found[epsilon] = max(found.get(epsilon, 0.0), float(row["value"]))
    return best


def curve(best: dict[str, Points], datasets: tuple[str, ...]) -> tuple[list[float], list[float]]:
    """Return the points at which the running maximum over ε rises, and the last one."""
    values: dict[float, float] = {}
    for dataset in datasets:
        for epsilon, value in best[dataset].items():
            if epsilon <= LARGEST:
                values[epsilon] = max(values.get(epsilon, 0.0), value)
    x, y = [], []
    for epsilon in sorted(values):
        highest = max([values[epsilon], *y[-1:]])
        if not y or values[epsilon] == highest or epsilon == max(values):
            x.append(epsilon)
            y.append(highest)
    return x, y


def tables() -> dict[str, Points]:
    """Return the mean accuracy over the tables of the contest, by method and ε; no privacy is at infinity."""
    text = (ROOT / "benchmarks/tabular.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    compared = {(line["dataset"], float(line["epsilon"]), line["seed"]) for line in lines if line["method"] == "auto"}
    runs: dict[tuple[str, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        epsilon = float(line["epsilon"])
        # Means are compared, so all are of the same tables and seeds.
        if epsilon == float("inf") or (line["dataset"], epsilon, line["seed"]) in compared:
            runs[line["method"], epsilon][line["dataset"]].append(line["value"])
    found: dict[str, Points] = defaultdict(dict)
    for (method, epsilon), values in runs.items():
        found[method][epsilon] = mean(map(mean, values.values()))
    return found


def draw_tables(target: Path) -> None:
    """Write the picture of tables: `auto`, and what one would do without it."""
    plt.switch_backend("svg")
    plt.rcParams.update(STYLE)
    figure, axis = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    found = tables()
    for method, name, colour, style, marker in COMPARED:
        points = sorted((epsilon, value) for epsilon, value in found[method].items() if epsilon < float("inf"))
        axis.plot(*zip(*points, strict=True), style, color=colour, marker=marker, markersize=4.5, label=name)
    axis.axhline(found["open boosting"][float("inf")], color=OPEN, linestyle=":", label="no privacy, boosting")
    ticks = sorted(epsilon for epsilon in found["auto"] if epsilon < float("inf"))
    axis.set(xscale="log", xlabel="ε", ylabel="accuracy, %, mean over tables", ylim=(22, 92))
    axis.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower right")
    figure.savefig(target, metadata={"Date": None, "Title": "Mean accuracy on tables against ε"})
    plt.close(figure)


def draw(target: Path) -> None:
    """Write the picture of images."""
    plt.switch_backend("svg")
    plt.rcParams.update(STYLE)
    figure, axes = plt.subplots(1, len(PANELS), figsize=(11.5, 3.5), sharey=True, layout="constrained")
    (mine, once), theirs = ours(), papers()
    for axis, (title, datasets, lowest) in zip(axes, PANELS, strict=True):
        for best, colour, style, marker in ((mine, OURS, "-", "o"), (theirs, PAPERS, "--", "s")):
            axis.plot(*curve(best, datasets), style, color=colour, marker=marker, markersize=4.5, linewidth=1.8)
        singles = [point for dataset in datasets for point in sorted(once[dataset].items())]
        if singles:
            axis.plot(*zip(*singles, strict=True), "o", color=OURS, markersize=9, markeredgewidth=1.4, fillstyle="none")
        axis.set(title=title, xscale="log", xlim=(0.008, 5), ylim=(lowest, 101), xlabel="ε")
        axis.set_xticks([0.01, 0.1, 1, 4], labels=["0.01", "0.1", "1", "4"])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.title.set_fontsize(11.5)
    axes[0].set_ylabel("test accuracy, %")
    axes[0].text(0.0105, 94.6, "labeldp", color=OURS, fontweight="bold")
    axes[0].text(0.16, 88.2, "best published", color=PAPERS, fontweight="bold")
    axes[2].text(4.6, 97.4, "open points: one run", color=OURS, fontsize=9, ha="right")
    figure.savefig(target, metadata={"Date": None, "Title": "Test accuracy against ε"})
    plt.close(figure)


if __name__ == "__main__":
    draw(ROOT / "docs" / "accuracy.svg")
    draw_tables(ROOT / "docs" / "tables.svg")
