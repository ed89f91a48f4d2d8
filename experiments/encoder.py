"""Train an encoder on a data set's public images, measure it, and keep it with its settings, log and hash.

    python -m experiments.encoder cifar10 --method simclr --epochs 400 --out FOLDER/simclr_cifar10
    python -m experiments.encoder cifar10 --method byol --epochs 850 --batch-size 512 --optimizer lars --rate 1.0 \\
        --weight-decay 1e-5 --asymmetric --hidden 4096 --compiled --out experiments/artifacts/byol_cifar10
    python -m experiments.encoder mnist --method byol --epochs 600 --batch-size 512 --optimizer lars --rate 1.0 \\
        --weight-decay 1e-5 --asymmetric --smallest 0.3 --upright --hidden 4096 --compiled \\
        --out experiments/artifacts/byol_mnist

Writes OUT.safetensors (half precision) and OUT.json: settings, seconds and loss of every epoch, SHA-256 of the file,
and the linear probe, an accuracy of ridge regression on the open training labels. The probe is *not private*: it says
how good the features are, and chooses nothing. Killed, or out of time (`--minutes`), the same command goes on from
OUT.checkpoint. Data sets are found through LABELDP_DATA.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.run import checked_device, commit
from labeldp.data import benchmarks
from labeldp.features.augment import byol_views
from labeldp.features.contrastive import byol, simclr
from labeldp.features.encoders import Encoder, load_encoder, save_encoder
from labeldp.features.extract import extract, gram_of
from labeldp.learning.optimisers import MakeOptimizer, lars, sgd
from labeldp.learning.progress import Progress
from labeldp.learning.train import PausedError
from labeldp.models.zoo import resnet18_v2

METHODS: dict[str, Callable[..., Encoder]] = {"simclr": simclr, "byol": byol}
OPTIMIZERS: dict[str, Callable[..., MakeOptimizer]] = {"sgd": sgd, "lars": lars}
# Settings of BYOL alone, kept with the others where they are given.
BYOL = {"decay": float, "hidden": int, "outputs": int, "predictor_hidden": int}
_OF_BYOL = ("asymmetric", "smallest", "upright", *BYOL)
# The ridge of the probe, as a share of the features' mean squared length: far from where it would matter.
_RIDGE = 1e-3


def network(channels: int) -> nn.Module:
    """Images to features: the body of a ResNet-18."""
    return resnet18_v2(10, channels=channels).get_submodule("body")


def train(images: Tensor, settings: dict[str, Any], out: Path, minutes: float | None) -> tuple[Encoder, list[Any]]:
    """The encoder, and one entry per epoch since the beginning; the log of a paused training is kept beside it."""
    torch.manual_seed(settings["seed"])
    body = network(images.shape[1]).to(images.device)
    kept = out.with_suffix(".log.json")
    log: list[Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else []

    before = 0.0

    def report(progress: Progress) -> None:
        nonlocal before
        assert progress.epoch is not None
        assert progress.loss is not None
        del log[progress.epoch - 1 :]  # epochs after the last checkpoint are trained again
        took, before = progress.seconds - before, progress.seconds
        log.append({"epoch": progress.epoch, "loss": round(progress.loss, 4), "seconds": round(took, 3)})
        kept.write_text(json.dumps(log), encoding="utf-8")
        if progress.epoch % 10 == 0:
            print(f"{progress.detail}, {took:.2f} s", flush=True)

    more = {name: settings[name] for name in BYOL if name in settings}
    if settings.get("asymmetric"):
        more["view"] = byol_views((settings.get("smallest", 0.08), 1.0), flip=not settings.get("upright", False))
    encoder = METHODS[settings["method"]](
        body, images, epochs=settings["epochs"], seed=settings["seed"], compiled=settings["compiled"],
        batch_size=settings["batch_size"], checkpoint=out.with_suffix(".checkpoint"),
        optimizer=OPTIMIZERS[settings.get("optimizer", "sgd")](settings["rate"], weight_decay=settings["weight_decay"]),
        seconds=None if minutes is None else 60 * minutes, report=report, **more,
    )  # fmt: skip
    return encoder, log


def probe(encoder: Encoder, train_set: benchmarks.Benchmark, device: str) -> float:
    """Test accuracy in percent of ridge regression to one-hot labels, with the open labels of a public data set."""
    train, test = (torch.as_tensor(images).to(device) for images in (train_set.train, train_set.test))
    rows, held = (torch.nn.functional.pad(part, (0, 1), value=1.0) for part in extract(encoder, train, test))
    labels = torch.from_numpy(train_set.vault.reveal("how good public features are, for the record")).long().to(device)
    gram = gram_of(rows)
    gram.diagonal().add_(_RIDGE * gram.diagonal().mean())
    moment = (torch.nn.functional.one_hot(labels).to(rows.dtype).T @ rows).double()
    weights = torch.linalg.solve(gram, moment.T).to(rows.dtype)
    right = (held @ weights).argmax(1).cpu() == torch.as_tensor(train_set.test_labels.values)
    return 100 * right.double().mean().item()


def main() -> None:
    """One encoder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--method", choices=METHODS, default="simclr")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, help="default: sgd")
    parser.add_argument("--rate", type=float, default=0.6, help="peak rate of the optimiser")
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="run the network through torch.compile")
    parser.add_argument("--asymmetric", action="store_true", default=None, help="byol: solarise one side of a pair")
    parser.add_argument("--smallest", type=float, help="byol, asymmetric: the smallest crop's share of the area")
    parser.add_argument("--upright", action="store_true", default=None, help="byol, asymmetric: mirror no image")
    for name, kind in BYOL.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=f"byol: {name}")
    parser.add_argument("--minutes", type=float, help="stop after this long; the same command goes on")
    parser.add_argument("--device", help="default: cuda where there is one")
    parser.add_argument("--out", type=Path, required=True, help="path without suffix")
    chosen = parser.parse_args()
    device = checked_device(chosen.device)
    names = ("dataset", "method", "epochs", "batch_size", "rate", "weight_decay", "seed", "compiled")
    settings = {name: getattr(chosen, name) for name in names}
    # Only where they are given, so that records of settings stay comparable.
    given = {name: getattr(chosen, name) for name in ("optimizer", *_OF_BYOL)}
    settings |= {name: value for name, value in given.items() if value is not None}
    if chosen.method != "byol" and (odd := set(_OF_BYOL) & settings.keys()):
        parser.error(f"{', '.join(sorted(odd))}: for --method byol only")
    if (odd := {"smallest", "upright"} & settings.keys()) and "asymmetric" not in settings:
        parser.error(f"{', '.join(sorted(odd))}: of the views of --asymmetric only")
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    found = benchmarks.load(chosen.dataset)
    images = torch.from_numpy(found.train).to(device)
    try:
        encoder, log = train(images, settings, chosen.out, chosen.minutes)
    except PausedError as pause:
        print(pause)
        return
    path = chosen.out.with_suffix(".safetensors")
    save_encoder(path, encoder, notes={"settings": json.dumps(settings)})
    # Of what was kept, not of what was trained: half precision is part of the result.
    accuracy = probe(load_encoder(path, network(images.shape[1])), found, device)
    record = {
        "settings": settings, "linear_probe": round(accuracy, 2),
        # Of every part: a training may have been stopped and gone on.
        "seconds": round(sum(epoch["seconds"] for epoch in log), 1),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size, "commit": commit(),
        "device": torch.cuda.get_device_name(device) if images.is_cuda else "CPU", "torch": torch.__version__,
        "log": log,
    }  # fmt: skip
    chosen.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"linear probe {accuracy:.2f}%, {path.stat().st_size / 1e6:.1f} MB: {path}")


if __name__ == "__main__":
    main()
