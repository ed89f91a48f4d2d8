"""Try the runs of a settings file on a few images before an hour of a GPU is spent on them; no line is written.

    python -m experiments.dry experiments/semisupervised.toml --group "cifar-10, BYOL encoder, pipelines"

Every method is trained once, with all its settings but the sizes: on sixty images, for an epoch, not compiled. Budgets
that differ in nothing else count as one. What is misspelt, missing, or no longer fits the library fails here within
minutes. Data sets are found through LABELDP_DATA.
"""

from __future__ import annotations

import argparse
import functools
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments import adapters, run
from experiments.settings import Run, runs
from labeldp.core.vault import LabelVault
from labeldp.data.benchmarks import Benchmark
from labeldp.data.open_rows import OpenLabels

# What is large in settings, and how large it is here.
SMALL = {
    "epochs": 1, "warmup": 1, "switch": 1, "ramp": 1, "rounds": 1, "steps": 2, "batch_size": 8, "ratio": 2, "rows": 16,
    "per_class": 2, "teachers": 20, "queries": 40, "answers": 20, "at_once": 20, "patches": 16, "dims": 16, "crops": 1,
    "clusters": 4, "graph": 8, "compiled": False,
}  # fmt: skip
ROWS = 60
# The middle of an image, where the network takes any size.
SIDE = 8


def shortened(settings: Any) -> Any:
    """The same settings, at every depth no larger than `SMALL`."""
    if isinstance(settings, dict):
        return {
            name: min(value, SMALL[name]) if name in SMALL and isinstance(value, int | float) else shortened(value)
            for name, value in settings.items()
        }
    return [shortened(value) for value in settings] if isinstance(settings, list) else settings


def few_rows(benchmark: Benchmark[Any], small: bool) -> Benchmark[Any]:
    """The first rows of a public data set of images, their labels in a vault of their own."""
    labels = benchmark.vault.reveal("a public benchmark data set, of which a few rows are tried")[:ROWS]
    middle = slice(12, 12 + SIDE) if small else slice(None)
    train, test = (part[:ROWS, :, middle, middle] for part in (benchmark.train, benchmark.test))
    open_labels = OpenLabels(benchmark.test_labels.values[:ROWS])
    vault = LabelVault(labels, benchmark.num_classes)
    return replace(benchmark, train=train, vault=vault, test=test, test_labels=open_labels)


def tried(wanted: Run, device: str) -> tuple[float, float]:
    """Test accuracy, of no worth, and seconds."""
    begun, small = time.perf_counter(), replace(wanted, settings=shortened(wanted.settings))
    return run.run_one(small, device)["value"], time.perf_counter() - begun


def main() -> None:
    """Everything that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", type=Path)
    parser.add_argument("--group", action="append", default=[], help="try only this group (may be repeated)")
    parser.add_argument("--device", help="default: cuda where there is one")
    chosen = parser.parse_args()
    device, whole = run.checked_device(chosen.device), run.benchmark_of
    different: dict[str, Run] = {}
    for wanted in runs(chosen.settings, chosen.group):
        adapters.check_settings(wanted)
        different.setdefault(f"{wanted.group} {wanted.method} {wanted.settings}", wanted)
    small = all(wanted.settings["model"].startswith("resnet") for wanted in different.values())
    run.benchmark_of = functools.cache(lambda name: few_rows(whole(name), small))
    for wanted in different.values():
        value, seconds = tried(wanted, device)
        print(f"{wanted.name}: trained in {seconds:.1f} s ({value:.0f}%, of no worth)", flush=True)


if __name__ == "__main__":
    main()
