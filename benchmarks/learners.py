"""Compare learners on randomized responses: plain boosting, and what is chosen on held-out responses.

    python benchmarks/learners.py [--tables xor,rings] [--epsilons 0.5,1,2,4] [--seeds 2]

Test accuracy in per cent, a quarter of the rows held out (Adult: its own test part). "plain" is scikit-learn's
HistGradientBoosting with its defaults on responses; "linear", "kernel" and "trees" are the built-in learners fitted to
all responses, the best of the trees by hindsight; "chosen" is what `rr+learner` takes. Seconds are of one core.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import make_classification, make_gaussian_quantiles, make_moons
from sklearn.ensemble import HistGradientBoostingClassifier

from labeldp import LabelVault
from labeldp.data.columns import Layout, read_frame
from labeldp.data.files import ADULT_CLASSES, adult_path
from labeldp.features.tables import Table
from labeldp.learning.learners import Task, choose
from labeldp.mechanisms.responses import RandomizedResponse

ROWS = 30_000


def xor(seed):
    """Whether two of six columns have one sign, 5% flipped."""
    chance = np.random.default_rng(seed)
    x = chance.normal(size=(ROWS, 6))
    return x, ((x[:, 0] > 0) ^ (x[:, 1] > 0) ^ (chance.random(ROWS) < 0.05)).astype(int)


def rings(seed):
    """Ten Gaussian columns; the label is how far out a row lies."""
    return make_gaussian_quantiles(n_samples=ROWS, n_features=10, n_classes=2, random_state=seed)


def clusters(seed):
    """Four classes of four clusters each, ten of twenty columns idle."""
    return make_classification(
        ROWS, 20, n_informative=10, n_redundant=0, n_classes=4, n_clusters_per_class=4, random_state=seed
    )


def moons(seed):
    """Two moons with eight idle columns."""
    x, y = make_moons(ROWS, noise=0.3, random_state=seed)
    return np.c_[x, np.random.default_rng(seed).normal(size=(ROWS, 8))], y


def many(seed):
    """26 classes of two clusters each."""
    return make_classification(
        20_000, 16, n_informative=12, n_redundant=0, n_classes=26, n_clusters_per_class=2, class_sep=2.0,
        random_state=seed,
    )  # fmt: skip


TABLES = {"xor": xor, "rings": rings, "clusters": clusters, "moons": moons, "many": many}


def split(name, seed):
    """Training and test rows as the learners and as plain boosting see them, and their labels."""
    if name != "adult":
        x, y = TABLES[name](seed)
        order = np.random.default_rng(seed).permutation(len(x))
        (train, test), cut = (x[order], y[order]), 3 * len(x) // 4
        x = (train - train[:cut].mean(axis=0)) / train[:cut].std(axis=0)
        return x[:cut], x[cut:], x[:cut], x[cut:], test[:cut], test[cut:]
    frames = [pd.read_parquet(adult_path(part)) for part in ("train", "test")]
    y = [frame.pop("income").map({name: k for k, name in enumerate(ADULT_CLASSES)}).to_numpy() for frame in frames]
    layout = Layout.of(read_frame(frames[0]))
    tables = [layout.split(read_frame(frame)) for frame in frames]
    found = Table(clip=4.0).fit(tables[0])
    texts = frames[0].select_dtypes(exclude="number").columns
    kinds = {column: pd.CategoricalDtype(frames[0][column].dropna().unique()) for column in texts}
    return *(found.features(t).numpy() for t in tables), *(frame.astype(kinds) for frame in frames), *y


def measured(name, epsilon, seed):
    """Accuracy by learner, and seconds."""
    seen, shown, plain, plain_test, y, y_test = split(name, seed)
    classes = int(y.max()) + 1
    private = LabelVault(y, classes).release(RandomizedResponse(epsilon, classes))
    usual = HistGradientBoostingClassifier(random_state=seed, categorical_features="from_dtype")
    found = {"plain": (usual.fit(plain, private.hard()).predict(plain_test) == y_test).mean()}
    begun, best, test = time.process_time(), None, torch.from_numpy(shown).float()
    seconds = 0.0
    for candidate in choose(Task.split(torch.from_numpy(seen).float(), private, seed), seed):
        seconds += time.process_time() - begun
        begun = time.process_time()
        learnt = candidate.refit()
        took, right = time.process_time() - begun, (learnt.logits(test).argmax(dim=1).numpy() == y_test).mean()
        family = "trees" if "trees" in candidate.name else candidate.name.split()[0].strip(",")
        found[family] = max(right, found.get(family, 0.0))
        if best is None or candidate.likelihood > best[0]:
            best = candidate.likelihood, right, took
        begun = time.process_time()
    return {**{key: 100 * value for key, value in found.items()}, "chosen": 100 * best[1], "s": seconds + best[2]}


def main() -> None:
    """Print a line for each table and ε."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", default=",".join([*TABLES, "adult"]))
    parser.add_argument("--epsilons", default="0.5,1,2,4")
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    names = ("plain", "linear", "kernel", "trees", "chosen", "s")
    print(f"{'table':<10}{'ε':>5}" + "".join(f"{name:>9}" for name in names))
    for table in given.tables.split(","):
        for epsilon in map(float, given.epsilons.split(",")):
            runs = pd.DataFrame([measured(table, epsilon, seed) for seed in range(given.seeds)]).reindex(columns=names)
            print(f"{table:<10}{epsilon:>5g}" + "".join(f"{mean:>9.1f}" for mean in runs.mean()), flush=True)


if __name__ == "__main__":
    main()
