"""One step of DP-SGD in this checkout against another one, in turns: what a change of the mechanism costs.

Each checkout runs in a process of its own; the other one's folder is on its path. A step is a prepaid query of a vault
(all rows, norm clipping), noise included. Target: at most 1.15 times the seconds of the other checkout.

Run: python benchmarks/gradient_versions.py --against ../other [--device cuda] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

TARGET = 1.15


def measured(device: torch.device, repeats: int) -> dict[str, float]:
    """Return seconds of a step by model and batch; on a processor its own time, whatever else is running."""
    from labeldp.core.vault import LabelVault
    from labeldp.mechanisms.gradients.sums import GradientSum, NormBound
    from labeldp.models.zoo import cifar_cnn, mnist_cnn

    def mlp() -> nn.Module:
        return nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))

    torch.set_num_threads(1)
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    found: dict[str, float] = {}
    for name, make, shape in (
        ("mnist_cnn", mnist_cnn, (1, 28, 28)),
        ("cifar_cnn", cifar_cnn, (3, 32, 32)),
        ("mlp", mlp, (512,)),
    ):
        for batch in (256, 1024):
            torch.manual_seed(0)
            images = torch.randn(batch, *shape, device=device)
            labels = np.random.default_rng(0).integers(10, size=batch).astype(np.uint8)
            draw = LabelVault(labels, 10).lease(GradientSum(make().to(device), images, NormBound(1.0), 1.0), 1_000_000)
            seconds: list[float] = []
            for _ in range(repeats + 3):
                begun = clock()
                draw().value.sum().item()
                seconds.append(clock() - begun)
            found[f"{name}, {batch} rows"] = statistics.median(seconds[3:])
    return found


def main() -> None:
    """Measure both checkouts in turns and print the ratios of their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout; without it only this one is measured")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inner:
        print(json.dumps(measured(torch.device(options.device), options.repeats)))
        return
    here = Path(__file__).resolve().parents[1]
    folders = {"here": here} | ({"there": options.against.resolve()} if options.against else {})
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in folders}
    command = [sys.executable, str(Path(__file__).resolve()), "--inner", "--device", options.device]
    for _ in range(options.rounds):
        for name, folder in folders.items():
            path = {**os.environ, "PYTHONPATH": str(folder)}
            told = subprocess.run(
                [*command, "--repeats", str(options.repeats)], env=path, cwd=folder, capture_output=True, check=True
            )
            seen[name].append(json.loads(told.stdout))
    best = {name: {key: min(run[key] for run in runs) for key in runs[0]} for name, runs in seen.items()}
    for key, seconds in best["here"].items():
        other = best.get("there", {}).get(key)
        ratio = "" if other is None else f"  {1e3 * other:8.1f} ms there: {seconds / other:.2f} (target ≤ {TARGET})"
        print(f"{key:>22}: {1e3 * seconds:8.1f} ms{ratio}")
    if options.json:
        print(json.dumps({"benchmark": "gradient_versions", "device": options.device, "seconds": best}))


if __name__ == "__main__":
    main()
