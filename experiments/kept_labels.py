"""How right the labels are that DenoiseSSL keeps, beside the closed form e^ε / (e^ε + (1 − a)/a).

    python -m experiments.kept_labels --dataset fashion_mnist --clusters 100 --repeats 8

a is the share of rows whose cluster's majority of private labels is their label; means over repeats with fresh noise.
True labels of the benchmark are looked at to measure, as for any test accuracy; nothing is trained. Data sets are found
through LABELDP_DATA.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from labeldp.data import benchmarks
from labeldp.learning.clusters import kmeans
from labeldp.learning.features import Extractor, Patches, Raw
from labeldp.private.randomizers import RandomizedResponse
from labeldp.private.vault import LabelVault
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


def main() -> None:
    """Cluster once, ask at each ε, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="fashion_mnist")
    parser.add_argument("--clusters", type=int, default=100)
    parser.add_argument("--filters", type=int, default=0, help="patch features with so many filters; 0: pixels")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1, 2, 4])
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--own", action="store_true", help="a row's own label votes too, as published")
    given = parser.parse_args()
    found = benchmarks.load(given.dataset)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    extractor: Extractor = Patches(given.filters, dims=64) if given.filters else Raw(dims=64)
    features = extractor.fit(found.train, device).features(found.train)
    groups = kmeans(features, given.clusters).members.cpu().numpy()
    truth = np.asarray(found.vault.reveal("a public benchmark data set, to measure"))
    for number, epsilon in enumerate(given.epsilon):
        settings = (truth, groups, found.vault.num_classes, epsilon, not given.own)
        repeated = [measured(*settings) for _ in range(given.repeats)]
        line = {name: float(np.mean([each[name] for each in repeated])) for name in repeated[0]}
        if number == 0:
            print("  ".join(f"{name:>13}" for name in line))
        print("  ".join(f"{value:13.4f}" for value in line.values()), flush=True)


if __name__ == "__main__":
    main()
