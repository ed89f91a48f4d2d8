"""Print results beside the papers' figures:  python -m experiments.report experiments/results/*.jsonl"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

# Ghazi et al. 2021, Table 1 (CIFAR-10) and supplement Table 4 (MNIST, Fashion-MNIST): test accuracy in percent.
PAPER = {
    ("cifar-10", "LP-1ST"): {"1.0": 59.96, "2.0": 82.38, "4.0": 92.58, "inf": 94.96},
    ("cifar-10", "LP-2ST"): {"1.0": 63.67, "2.0": 86.05, "4.0": 93.37},
    ("mnist", "LP-1ST"): {"1.0": 95.34, "2.0": 98.16, "3.0": 98.81, "4.0": 99.08, "inf": 99.33},
    ("mnist", "LP-2ST"): {"1.0": 95.82, "2.0": 98.78, "3.0": 99.14, "4.0": 99.24},
    ("fashion-mnist", "LP-1ST"): {"1.0": 80.78, "2.0": 90.18, "3.0": 92.52, "4.0": 93.50, "inf": 94.28},
    ("fashion-mnist", "LP-2ST"): {"1.0": 83.26, "2.0": 91.24, "3.0": 93.18, "4.0": 94.10},
}


def table(paths: list[Path]) -> str:
    """A Markdown table: mean and spread over seeds, the paper's figure, the difference, seconds per run."""
    found = defaultdict(list)
    for path in paths:
        for line in path.read_text().splitlines():
            result = json.loads(line)
            found[result["group"], result["label"], result["epsilon"]].append(result)
    rows = ["| data | method | ε | ours: mean ± spread (seeds) | paper | difference | s per run |", "|---" * 7 + "|"]
    for (group, label, epsilon), results in found.items():
        scores = [result["test_accuracy"] for result in results]
        mean = statistics.mean(scores)
        spread = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
        seconds = statistics.median(result["seconds"] for result in results)
        paper = PAPER.get((group, label), {}).get(epsilon)
        beside = "– | –" if paper is None else f"{paper:.2f} | {mean - paper:+.2f}"
        ours = f"{mean:.2f}{spread} ({len(scores)})"
        rows.append(f"| {group} | {label} | {epsilon} | {ours} | {beside} | {seconds:.0f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table([Path(name) for name in sys.argv[1:]]))
