"""Accuracy on tables at ε = 0.1 to 4: boosting on noisy histograms beside what else one could do with trees.

    boosting        LabelDPClassifier(epsilon, method="boosting")
    public forest   trees with random splits, all leaves in one noisy moment, boosted in the same way: nothing adapts
    RR + boosting   randomized response (ours), then scikit-learn's HistGradientBoostingClassifier on the responses
    one moment      LabelDPClassifier(epsilon, method="one_shot")

Four made-up tables of 40,000 rows, three quarters of which train, and Adult, which is bundled. Test labels are open and
only measured with. Seeds change tables (not Adult's rows), noise and random_state.

Run: python benchmarks/boosting.py [--seeds 3] [--epsilons 0.1,0.5,1,2,4] [--data xor,quantiles,clusters,moons,adult]
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np
import pyarrow.parquet
import torch
from sklearn.datasets import make_classification, make_gaussian_quantiles, make_moons
from sklearn.ensemble import HistGradientBoostingClassifier

from labeldp.core.vault import LabelVault
from labeldp.data.columns import Layout, read_frame
from labeldp.data.files import adult_path
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.estimator.spending import RepeatedFitWarning
from labeldp.features.tables import Table
from labeldp.learning.boosting import Histogram, boost, columns, cut, forest_of
from labeldp.mechanisms.counts import GaussianNoise
from labeldp.mechanisms.moments import Moments
from labeldp.mechanisms.responses import RandomizedResponse

ROWS, TREES, SPLITS = 40_000, 24, 3


@dataclass(frozen=True, eq=False)
class Data:
    """Features as an estimator takes them and as plain numbers, and labels 0 … K − 1; of rows to train and to test."""

    x: Any
    test_x: Any
    plain: np.ndarray
    test_plain: np.ndarray
    y: np.ndarray
    test_y: np.ndarray

    @property
    def classes(self) -> int:
        """K."""
        return int(self.test_y.max()) + 1

    @property
    def delta(self) -> float:
        """A tenth of one over the rows."""
        return 0.1 / len(self.y)


def made_up(name: str, seed: int) -> Data:
    """One of four tables."""
    rng = np.random.default_rng(seed)
    match name:
        case "xor":
            x = rng.normal(size=(ROWS, 6))
            y = ((x[:, 0] > 0) ^ (x[:, 1] > 0) ^ (rng.random(ROWS) < 0.05)).astype(int)
        case "quantiles":
            x, y = make_gaussian_quantiles(n_samples=ROWS, n_features=10, n_classes=2, random_state=seed)
        case "clusters":
            x, y = make_classification(
                ROWS, 20, n_informative=8, n_classes=4, n_clusters_per_class=4, random_state=seed
            )
        case "moons":
            x, y = make_moons(ROWS, noise=0.25, random_state=seed)
            x = np.concatenate([x, rng.normal(size=(ROWS, 8))], axis=1)
        case _:
            raise ValueError(f"data={name!r} is not known")
    order = rng.permutation(ROWS)
    x, y, many = x[order], y[order], 3 * ROWS // 4
    return Data(x[:many], x[many:], x[:many], x[many:], y[:many], y[many:])


def adult() -> Data:
    """The bundled census incomes."""
    tables = [pyarrow.parquet.read_table(adult_path(split)) for split in ("train", "test")]
    y, test_y = (np.array([str(v).strip().startswith(">") for v in t["income"].to_pylist()], dtype=int) for t in tables)
    x, test_x = (table.drop(["income"]) for table in tables)
    layout = Layout.of(read_frame(x))
    both = [layout.split(read_frame(part)) for part in (x, test_x)]
    encoded = Table(one_hot=1000).fit(both[0])
    plain, test_plain = (encoded.features(part).numpy() for part in both)
    return Data(x, test_x, plain, test_plain, y, test_y)


# -- methods: (data, epsilon, seed) → classes of the test rows ---------------------------------------------------------


def estimator(method: str) -> Callable[[Data, float, int], np.ndarray]:
    """An estimator with nothing set but ε and the method."""

    def fitted(data: Data, epsilon: float, seed: int) -> np.ndarray:
        model = LabelDPClassifier(epsilon, data.delta, method, classes=list(range(data.classes)), random_state=seed)
        model.fit(data.x, LabelVault(data.y, data.classes))
        assert model.certificate_.epsilon <= epsilon
        return model.predict(data.test_x)

    return fitted


def public_forest(data: Data, epsilon: float, seed: int) -> np.ndarray:
    """One moment over the leaves of random trees: a row is in one leaf of each, so that it has length √trees."""
    rng, rows, found = np.random.default_rng(seed), data.plain, columns(data.plain)
    table, trees, vault = [cut(rows, column, 4) for column in found], [], LabelVault(data.y, data.classes)
    for _ in range(TREES):
        order = rng.permutation(len(found))[: SPLITS + 1]
        cuts = [table[column].cuts for column in order[1:]]
        splits, node = [one[rng.integers(len(one))] for one in cuts], np.zeros(len(rows), dtype=np.int64)
        for feature, threshold in splits:
            node = 2 * node + (rows[:, feature] > threshold)
        column = table[order[0]]
        trees.append((splits, column, node * column.size + column.bins(rows), column.size << len(splits)))
    leaves = np.concatenate([np.eye(size, dtype=np.float32)[leaf] for _, _, leaf, size in trees], axis=1)
    noise = GaussianNoise.for_budget(epsilon, data.delta)
    noisy = vault.release(Moments(leaves, data.classes, noise, math.sqrt(TREES) * (1 + 1e-6)))
    assert vault.certificate(data.delta).epsilon <= epsilon
    parts = np.split(noisy.value, np.cumsum([size for *_, size in trees])[:-1], axis=1)
    variance = noisy.noise_std**2 * (1 - 1 / data.classes)
    forest = [Histogram(s, c, leaf, part, variance) for (s, c, leaf, _), part in zip(trees, parts, strict=True)]
    totals = np.maximum(np.mean([part.sum(axis=1) for part in parts], axis=0), 1.0)
    baseline = np.log(totals / totals.sum())
    boost(forest, np.tile(baseline, (len(rows), 1)), 6, 0.5)
    return forest_of(forest, baseline).scores(data.test_plain).argmax(axis=1)


def rr_boosting(data: Data, epsilon: float, seed: int) -> np.ndarray:
    """Noisy labels taken at their word."""
    vault = LabelVault(data.y, data.classes)
    responses = vault.release(RandomizedResponse(epsilon, data.classes)).hard()
    return HistGradientBoostingClassifier(random_state=seed).fit(data.plain, responses).predict(data.test_plain)


METHODS = {
    "boosting": estimator("boosting"), "public forest": public_forest, "RR + boosting": rr_boosting,
    "one moment": estimator("one_shot"),
}  # fmt: skip


def main() -> None:
    """Print a line for each table and ε."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", default="0.1,0.5,1,2,4")
    parser.add_argument("--data", default="xor,quantiles,clusters,moons,adult")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    # The same labels are fitted to on purpose.
    warnings.simplefilter("ignore", RepeatedFitWarning)
    print("| table | ε |", " | ".join(METHODS), "|")
    print("|---|--:|" + "--:|" * len(METHODS))
    for name in asked.data.split(","):
        tables = [adult()] * asked.seeds if name == "adult" else [made_up(name, seed) for seed in range(asked.seeds)]
        for epsilon in map(float, asked.epsilons.split(",")):
            cells = []
            for method in METHODS.values():
                found = [100 * np.mean(method(data, epsilon, s) == data.test_y) for s, data in enumerate(tables)]
                cells.append(f"{mean(found):.1f} ± {stdev(found) if len(found) > 1 else 0.0:.1f}")
            print(f"| {name} | {epsilon:g} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
