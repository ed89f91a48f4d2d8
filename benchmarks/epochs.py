"""Seconds of an epoch of the long trainings, launched step by step and recorded as CUDA graphs.

Random images, as many as CIFAR-10 has, scaled and changed as in `experiments`; ResNet-18 and one of twice its width,
all compiled. The first epoch, in which kernels are compiled and steps recorded, is printed apart. Targets, alone on an
H200, views included: FixMatch (64 labelled and 448 other rows in a step, guesses apart) 1.1 s, BYOL 1.6 s.

    python benchmarks/epochs.py [fixmatch fit wide byol] [--ways compiled recorded] [--epochs 4] [--json]

Without a GPU: a small network, few images, nothing compiled.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labeldp.features.augment import byol_views, learned_view, scaled, strong_view, weak_view
from labeldp.features.contrastive import byol
from labeldp.learning.evidence import on_classes
from labeldp.learning.fixmatch import fixmatch
from labeldp.learning.optimisers import lars, one_cycle, sgd
from labeldp.learning.train import fit
from labeldp.models.zoo import resnet18_v2

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
ROWS, WIDTH = (50_000, 64) if CUDA else (256, 4)
MEAN, SPREAD = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)
WAYS = {
    "eager": {},
    "compiled": {"compiled": CUDA},
    "recorded": {"compiled": CUDA, "recorded": True},
}
TARGETS = {"fixmatch": 1.1, "byol": 1.6}


def images() -> Tensor:
    """Scaled, as the runner of experiments hands them out."""
    made = torch.randn(ROWS, 3, 32, 32, device=DEVICE).clamp(-2, 2)
    return made.to(torch.bfloat16 if CUDA else torch.float32).contiguous(memory_format=torch.channels_last)


def network(width: int = WIDTH) -> nn.Module:
    """A fresh one."""
    return resnet18_v2(10, width=width).to(DEVICE, memory_format=torch.channels_last)


def by_fixmatch(rows: Tensor, classes: Tensor, **more: Any) -> None:
    """As the students of CIFAR-10."""
    views = {"weak": scaled(weak_view(), MEAN, SPREAD), "strong": scaled(strong_view(), MEAN, SPREAD)}
    prior = torch.full((10,), 0.1)
    fixmatch(
        network(), rows, on_classes(classes), batch_size=64 if CUDA else 8, apart=True, prior=prior, **views, **more
    )


def by_fit(width: int, mixup: float) -> Callable[..., None]:
    """As the last trainings of CIFAR-10."""

    def run(rows: Tensor, classes: Tensor, **more: Any) -> None:
        view, rate = scaled(learned_view(), MEAN, SPREAD), sgd(0.05, weight_decay=5e-4)
        given: dict[str, Any] = {"augment": view, "optimizer": rate, "schedule": one_cycle(0.2), "average": 0.998}
        fit(network(width), rows, on_classes(classes), batch_size=512 if CUDA else 64, mixup=mixup, **given, **more)

    return run


def by_byol(rows: Tensor, classes: Tensor, **more: Any) -> None:
    """As the kept encoder."""
    pixels = (rows.float() * 64 + 128).byte()
    size, hidden = (512, 4096) if CUDA else (64, 32)
    optimizer = lars(size / 256, weight_decay=1e-5)
    body = network().get_submodule("body")
    byol(body, pixels, batch_size=size, hidden=hidden, view=byol_views(), optimizer=optimizer, **more)


TRAININGS: dict[str, Callable[..., None]] = {
    "fixmatch": by_fixmatch, "fit": by_fit(WIDTH, 0.0), "wide": by_fit(2 * WIDTH, 0.1), "byol": by_byol,
}  # fmt: skip


def seconds(training: Callable[..., None], rows: Tensor, classes: Tensor, epochs: int, way: str) -> list[float]:
    """Of every epoch; the loop waits for the device at the end of each."""
    times = [time.perf_counter()]
    training(rows, classes, epochs=epochs, report=lambda _: times.append(time.perf_counter()), **WAYS[way])
    return [later - sooner for sooner, later in itertools.pairwise(times)]


def main() -> None:
    """Measure each training each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainings", nargs="*", help=f"of {', '.join(TRAININGS)}; all when none")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["compiled", "recorded"])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if strange := set(given.trainings) - set(TRAININGS):
        parser.error(f"{', '.join(sorted(strange))}: give some of {', '.join(TRAININGS)}")
    if not CUDA:
        torch.set_num_threads(1)
    rows, classes = images(), torch.randint(10, (ROWS,), device=DEVICE)
    for name in given.trainings or TRAININGS:
        for way in given.ways:
            first, *others = seconds(TRAININGS[name], rows, classes, max(2, given.epochs), way)
            target = f", target {TARGETS[name]}" if name in TARGETS and CUDA else ""
            spread = f"{min(others):.3f} – {max(others):.3f} s an epoch of {ROWS} images"
            print(f"{name:>9}, {way:>8}: {spread}{target}; the first took {first:.1f} s", flush=True)
            if given.json:
                print(json.dumps({"benchmark": "epochs", "training": name, "way": way, "first": first, "s": others}))


if __name__ == "__main__":
    main()
