"""How right the labels are that DenoiseSSL keeps, beside the closed form e^ε / (e^ε + (1 − a)/a).

    python -m experiments.kept_labels --dataset fashion_mnist --clusters 100 --repeats 8

a is the share of rows whose cluster's majority of private labels is their label; means over repeats with fresh noise.
True labels of the benchmark are looked at to measure, as for any test accuracy; nothing is trained. Data sets are found
through LABELDP_DATA.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments import synthetic
from experiments.public_features import encoder, extractor
from labeldp.core.vault import LabelVault
from labeldp.data import benchmarks
from labeldp.data.benchmarks import Benchmark
from labeldp.features.clusters import kmeans
from labeldp.features.extract import Raw, extract
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.recipes.denoise_ssl import Classes, denoise, kept_accuracy, majority


def measured(truth: Classes, groups: Classes, num_classes: int, epsilon: float, others_only: bool) -> dict[str, float]:
    """Shares: labels kept, guesses right as estimated and in truth, kept labels right by the formula and in truth."""
    private = LabelVault(truth, num_classes).release(RandomizedResponse(epsilon, num_classes))
    guesses = majority(private.hard(), groups, num_classes, others_only=others_only)
    found = denoise(private, guesses)
    kept, guessed = (found.labels.weights > 0).cpu().numpy(), float((guesses == truth).mean())
    return {
        "epsilon": epsilon, "answers right": float((private.hard() == truth).mean()), "kept": found.share,
        "guesses right": guessed, "estimated": found.guesses_right, "formula": kept_accuracy(epsilon, guessed),
        "kept right": float((private.hard() == truth)[kept].mean()),
    }  # fmt: skip


# -- shared with private_labels -----------------------------------------------------------------------------------


def options(about: str | None) -> argparse.ArgumentParser:
    """A data set, its features, the ε and how often to ask."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="fashion_mnist")
    parser.add_argument("--filters", type=int, default=0, help="patch features with so many filters; 0: pixels")
    parser.add_argument("--encoder", help="features of a kept encoder, such as experiments/artifacts/….safetensors")
    parser.add_argument("--dims", type=int, default=64, help="principal components of the features; 0: all of them")
    parser.add_argument("--cache", type=Path, help="a folder to keep features in, which take minutes on a processor")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1, 2, 4])
    parser.add_argument("--repeats", type=int, default=8)
    return parser


def measured_on(given: argparse.Namespace) -> tuple[Tensor, Classes, int]:
    """Public features of the training rows, their true labels to measure with, and the number of classes."""
    made_up = given.dataset == synthetic.NAME
    found: Benchmark[Any] = synthetic.synthetic_stand_in(400, 1, 4) if made_up else benchmarks.load(given.dataset)
    truth = np.asarray(found.vault.reveal("a public benchmark data set, to measure"))
    return features(given, found.train), truth, found.vault.num_classes


def features(given: argparse.Namespace, images: Any) -> Tensor:
    """(n, dims). An encoder's outputs are kept before they are scaled: they do not depend on `dims`."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if given.encoder:
        plain = replace(encoder(given.encoder, images.shape[1]), standardise=False)
        images = extract(plain, images, device=device, cache=given.cache)[0]
        return extract(Raw(dims=given.dims or None), images)[0]
    kind = {"patches": given.filters} if given.filters else {"raw": True}
    found = extractor({**kind, "dims": given.dims or None}, images.shape[1], 0)
    return extract(found, images, device=device, cache=given.cache)[0]


def show(repeated: Sequence[dict[str, float]], *, names: bool, spread: str = "") -> None:
    """Means over the repeats as a line of a table, below the columns' names where they are wanted.

    With the standard deviation, over the repeats, of the column named by `spread`.
    """
    columns = {name: [each[name] for each in repeated] for name in repeated[0]}
    line = {name: float(np.nanmean(values)) for name, values in columns.items()}
    if spread in columns:
        line[f"± of {spread}"] = float(np.nanstd(columns[spread], ddof=1)) if len(repeated) > 1 else np.nan
    if names:
        print("  ".join(f"{name:>13}" for name in line))
    print("  ".join(f"{line[name]:{max(13, len(name))}.4f}" for name in line), flush=True)


def main() -> None:
    """Cluster once, ask at each ε, print a table."""
    parser = options(__doc__)
    parser.add_argument("--clusters", type=int, default=100)
    parser.add_argument("--own", action="store_true", help="a row's own label votes too, as published")
    given = parser.parse_args()
    rows, truth, num_classes = measured_on(given)
    groups = kmeans(rows, given.clusters).members.cpu().numpy()
    for number, epsilon in enumerate(given.epsilon):
        settings = (truth, groups, num_classes, epsilon, not given.own)
        show([measured(*settings) for _ in range(given.repeats)], names=number == 0, spread="kept right")


if __name__ == "__main__":
    main()
