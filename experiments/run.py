"""Run the experiments of a settings file and append one JSON line per training.

    python -m experiments.run experiments/noisy_labels.toml --group fashion-mnist --out experiments/results/x.jsonl

Data sets are found through LABELDP_DATA. A run already in the output file is skipped, so an interrupted sweep goes on
where it stopped. `--jobs` trains several models at once on one GPU.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.settings import Run, runs
from labeldp.data import benchmarks
from labeldp.learning import augment, schedules
from labeldp.learning.fit import accuracy, adam, fit, sgd
from labeldp.models import zoo
from labeldp.private.vault import LabelVault
from labeldp.recipes import alibi, debiased, forward, lp_mst, rr

RECIPES = {
    "rr": rr.train,
    "debiased": debiased.train,
    "forward": forward.train,
    "alibi": alibi.train,
    "lp_mst": lp_mst.train,
}
AUGMENTS = {
    "crop": augment.random_crop(4),
    "small crop": augment.random_crop(2),
    "flip": augment.random_flip(),
    "cutout": augment.cutout(8),
}
OPTIMIZERS = {"sgd": sgd, "adam": adam}
SCHEDULES = {"linear": schedules.linear, "piecewise": schedules.piecewise, "one_cycle": schedules.one_cycle}


@functools.cache
def data(name: str, device: str) -> tuple[Tensor, Tensor, Any, Any]:
    """Scaled images on the device, the loader's vault (never asked here) and the open test labels."""
    benchmark = benchmarks.load(name)
    mean = torch.from_numpy(benchmark.train).float().mean(dim=(0, 2, 3), keepdim=True)
    spread = torch.from_numpy(benchmark.train).float().std(dim=(0, 2, 3), keepdim=True)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32

    def scaled(images: Any) -> Tensor:
        parts = [((torch.from_numpy(part).float() - mean) / spread).to(dtype) for part in _pieces(images)]
        return torch.cat(parts).to(device).contiguous(memory_format=torch.channels_last)

    return scaled(benchmark.train), scaled(benchmark.test), benchmark.vault, benchmark.test_labels


def _pieces(images: Any) -> list[Any]:
    return [images[i : i + 10_000] for i in range(0, len(images), 10_000)]


def trainings(settings: dict[str, Any], seed: int) -> list[Any]:
    """One bound `fit` for every value of mixup: one for all stages, or one per stage."""
    mixups = settings.get("mixup", 0.0)
    mixups = mixups if isinstance(mixups, list) else [mixups]
    chosen = [AUGMENTS[name] for name in settings["augment"]]
    optimizer = OPTIMIZERS[settings["optimizer"]]
    return [
        functools.partial(
            fit,
            epochs=settings["epochs"],
            batch_size=settings["batch_size"],
            optimizer=optimizer(settings["learning_rate"], weight_decay=settings["weight_decay"]),
            schedule=SCHEDULES[settings["schedule"]](),
            augment=augment.compose(*chosen),
            mixup=mixup,
            compiled=settings.get("compiled", False),
            seed=seed,
        )
        for mixup in mixups
    ]


def model(settings: dict[str, Any], images: Tensor, seed: int) -> nn.Module:
    """A fresh model for these images."""
    torch.manual_seed(seed)
    made = getattr(zoo, settings["model"])(num_classes=10, channels=images.shape[1])
    return made.to(images.device, memory_format=torch.channels_last)


def run_one(run: Run, device: str) -> dict[str, Any]:
    """Train, measure on the test set, and say everything about it."""
    settings = run.settings
    images, test_images, sealed, test_labels = data(settings["dataset"], device)
    # A vault of its own for every run: each is one complete, separately certified release.
    vault = fresh_vault(sealed)
    fits = trainings(settings, run.seed)
    more = {key: settings[key] for key in ("shares", "temperature") if key in settings}
    if settings["recipe"] == "lp_mst":
        more |= {"seed": run.seed, "learn": getattr(lp_mst, settings.get("learn", "hard_answers"))}
        more |= {"keep_plausible": settings.get("keep_plausible", True)}
    begun = time.perf_counter()
    more["fit"] = fits if len(fits) > 1 else fits[0]
    start = model(settings, images, run.seed)
    trained = RECIPES[settings["recipe"]](start, images, vault, epsilon=run.epsilon, **more)
    seconds = time.perf_counter() - begun
    return {
        "name": run.name, "group": run.group, "label": run.label, "epsilon": str(run.epsilon), "seed": run.seed,
        "test_accuracy": round(100 * accuracy(trained, test_images, test_labels), 3), "seconds": round(seconds, 2),
        "settings": settings, "device": _device_name(device), "torch": torch.__version__, "commit": _commit(),
        "certificate": vault.certificate().to_json(),
    }  # fmt: skip


def fresh_vault(sealed: LabelVault) -> LabelVault:
    """The same labels in a new vault with an empty ledger and fresh noise.

    Only a benchmark harness may do this: every run is its own imaginary release of a public data set.
    """
    return LabelVault(sealed.reveal("a public benchmark data set, repeated with fresh noise"), sealed.num_classes)


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def _commit() -> str:
    """The checkout's commit; LABELDP_COMMIT where the files run without their history."""
    if "LABELDP_COMMIT" in os.environ:
        return os.environ["LABELDP_COMMIT"]
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        return found.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown (not run from a checkout)"


def _work(queue: Any, out: Path, device: str, lock: Any, until: float) -> None:
    torch.set_num_threads(2 if device == "cuda" else torch.get_num_threads())
    while (run := queue.get()) is not None:
        if time.time() > until:
            continue
        result = run_one(run, device)
        with lock, out.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(f"{run.name}: {result['test_accuracy']:.2f}% in {result['seconds']:.1f} s", flush=True)


def main() -> None:
    """Parse, leave out what is done, train the rest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", type=Path)
    parser.add_argument("--group", action="append", default=[], help="run only this group (may be repeated)")
    parser.add_argument("--seed", action="append", type=int, help="run only this seed (may be repeated)")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once")
    parser.add_argument("--minutes", type=float, default=1e6, help="start no new training after this long")
    arguments = parser.parse_args()
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    done = {json.loads(line)["name"] for line in lines}
    left = [run for run in runs(arguments.settings, arguments.group, arguments.seed) if run.name not in done]
    print(f"{len(left)} runs to do, {len(done)} done before", flush=True)
    until = time.time() + 60 * arguments.minutes
    _train_all(left, arguments.out, arguments.device, min(arguments.jobs, max(1, len(left))), until)


def _train_all(left: list[Run], out: Path, device: str, jobs: int, until: float) -> None:
    context = multiprocessing.get_context("spawn")
    queue, lock = context.Queue(), context.Lock()
    for item in [*left, *[None] * jobs]:
        queue.put(item)
    if jobs == 1:
        _work(queue, out, device, lock, until)
        return
    workers = [context.Process(target=_work, args=(queue, out, device, lock, until)) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
