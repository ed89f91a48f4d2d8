"""An epoch of LabelDP-Pro, look, projection and step, with DP-SGD of the same run beside it.

Batch 1024 of 60,000 pictures of 28 × 28 (the CNN of 9,066 parameters) and of 50,000 of 32 × 32 × 3 (135,098
parameters), as many other rows to project on, the noise of ε = 1 over five epochs. Pictures and labels are made up:
time does not depend on them except through the rounds a projection needs, so the model is first trained a little on
labels that the pictures do tell. `altconv` takes 24 accelerated steps per projection; `to a gap of 1%` converges.

Targets on one H200: 3 s and 12 s for AltConv (Ghazi et al. 2024 report 59.9 s and 493 s on a P100).
Run: python benchmarks/labeldp_pro_epoch.py [--device cuda] [--batch N] [--steps N] [--repeats N] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labeldp.core.vault import LabelVault
from labeldp.learning.evidence import on_classes
from labeldp.learning.optimisers import sgd
from labeldp.learning.train import fit
from labeldp.models.zoo import cifar_cnn, mnist_cnn
from labeldp.recipes import labeldp_pro
from labeldp.recipes.denoisers import Denoiser

DELTA, NOISE = 1e-5, 2.19
CASES: dict[str, tuple[Callable[[], nn.Module], int, tuple[int, int, int], float]] = {
    "mnist_cnn": (mnist_cnn, 60_000, (1, 28, 28), 3.0),
    "cifar_cnn": (cifar_cnn, 50_000, (3, 32, 32), 12.0),
}
DENOISERS: dict[str, Callable[[], Denoiser]] = {
    "dp-sgd": labeldp_pro.no_op,
    "altconv": partial(labeldp_pro.alt_conv, steps=24, rounds=0),
    "row hull": partial(labeldp_pro.alt_rows, steps=24, rounds=0),
    "altconv to a gap of 1%": labeldp_pro.alt_conv,
    "row hull to a gap of 1%": labeldp_pro.alt_rows,
}


def pictures(rows: int, shape: tuple[int, int, int], device: str) -> tuple[Tensor, Tensor]:
    """Blurred noise, and the class told by ten random directions of it."""
    generator = torch.Generator().manual_seed(0)
    small = torch.randn(rows, shape[0], 7, 7, generator=generator)
    images = nn.functional.interpolate(small, size=shape[1:], mode="bilinear")
    labels = (small.flatten(1) @ torch.randn(shape[0] * 49, 10, generator=generator)).argmax(dim=1)
    return images.to(device), labels


def seconds(model: nn.Module, images: Tensor, labels: Tensor, denoiser: Denoiser, steps: int, batch: int) -> float:
    """Time per epoch of `steps` looks, calibration and payment not counted."""
    ticks: list[float] = []

    def tick() -> float:
        ticks.append(time.perf_counter())
        return 1.0

    vault = LabelVault(labels.numpy(), 10)
    # The schedule is asked once per step, after the look and its projection, and costs nothing itself.
    labeldp_pro.train(
        model, images, vault, noise_multiplier=NOISE, delta=DELTA, steps=steps + 2, batch_size=batch, denoiser=denoiser,
        optimizer=sgd(0.1, momentum=0.0, weight_decay=0.0), schedule=lambda _: tick(),
    )  # fmt: skip
    if images.is_cuda:
        torch.cuda.synchronize()
    # From the second step on: the first also loads kernels. (Before the steps the schedule is asked for its record.)
    return (time.perf_counter() - ticks[-steps - 1]) / steps * (len(images) / batch)


def measure(case: str, device: str, steps: int | None, repeats: int, batch: int, names: list[str]) -> dict[str, Any]:
    """These denoisers in turns, on copies of one model in mid-training."""
    make, rows, shape, target = CASES[case]
    images, labels = pictures(rows, shape, device)
    torch.manual_seed(0)
    start = fit(make().to(device), images, on_classes(labels.to(device)), epochs=1, optimizer=sgd(0.05))
    weights = {name: value.clone() for name, value in start.state_dict().items()}
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            start.load_state_dict(weights)
            found[name].append(seconds(start, images, labels, DENOISERS[name](), steps or rows // batch, batch))
    return {"case": case, "target": target, "seconds": found}


def show(result: dict[str, Any]) -> None:
    """Median and spread per denoiser, and the share of AltConv that is the look itself."""
    plain = statistics.median(result["seconds"]["dp-sgd"])
    for name, values in result["seconds"].items():
        median = statistics.median(values)
        spread = f"{min(values):.2f} – {max(values):.2f}, {len(values)} runs"
        goal = f", target on an H200 {result['target']:g} s" if name == "altconv" else ""
        print(f"{result['case']} {name:>23}: {median:7.2f} s per epoch ({spread}), {median / plain:.2f} × dp-sgd{goal}")


def main() -> None:
    """Both models on one device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, help="looks to time, scaled to an epoch  [default: an epoch; 2 on a CPU]")
    parser.add_argument("--batch", type=int, help="rows per look  [default: 1024; 128 on a CPU, to be done soon]")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--case", choices=CASES, action="append", help="only this model  [default: both; small on CPU]")
    others = [name for name in DENOISERS if name != "dp-sgd"]
    parser.add_argument("--denoiser", choices=others, action="append", help="only this beside DP-SGD  [default: all]")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    small = chosen.device == "cpu"
    steps, batch = chosen.steps or (2 if small else None), chosen.batch or (128 if small else 1024)
    print(f"batches of {batch} on {chosen.device}")
    names = ["dp-sgd", *(chosen.denoiser or others)]
    results: list[dict[str, Any]] = []
    for case in chosen.case or (["mnist_cnn"] if small else CASES):
        results.append(measure(case, chosen.device, steps, chosen.repeats, batch, names))
        show(results[-1])
    if chosen.json:
        print(
            json.dumps({"benchmark": "labeldp_pro_epoch", "device": chosen.device, "batch": batch, "results": results})
        )


if __name__ == "__main__":
    main()
