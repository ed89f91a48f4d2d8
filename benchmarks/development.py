"""Tables on which what decides in `auto` was settled, so that those of `tabular.py` could test it.

None of them is in `tabular.py`: other made-up ones, other seeds, and other real tables of the R package modeldata, the
export of which is described there. `tabular.py --tables development` runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import make_blobs, make_classification, make_friedman1

# Made-up tables are of other seeds than those that tests are drawn by; a table is its rows and labels.
_SEED = 1000
Made = Any


def linear(seed: int) -> Made:
    """Two classes by the sign of a sum of thirty columns and some noise."""
    chance = np.random.default_rng(_SEED + seed)
    x = chance.normal(size=(12_000, 30))
    return x, (x @ chance.normal(size=30) + 2 * chance.normal(size=len(x)) > 0).astype(int)


def softmax(seed: int) -> Made:
    """Six classes, drawn from a softmax of eighteen columns."""
    chance = np.random.default_rng(_SEED + seed)
    x = chance.normal(size=(6000, 18))
    return x, (x @ chance.normal(size=(18, 6)) + chance.gumbel(size=(len(x), 6))).argmax(axis=1)


def squares(seed: int) -> Made:
    """A board of three by three squares over two of five columns, a tenth flipped."""
    chance = np.random.default_rng(_SEED + seed)
    x = chance.uniform(-1.5, 1.5, size=(12_000, 5))
    board = np.floor(x[:, 0] + 1.5) + np.floor(x[:, 1] + 1.5)
    return x, ((board % 2 == 0) ^ (chance.random(len(x)) < 0.1)).astype(int)


def product(seed: int) -> Made:
    """The sign of a product of two columns, smoothed, and of a third column; eight idle ones."""
    chance = np.random.default_rng(_SEED + seed)
    x = chance.normal(size=(8000, 11))
    return x, (2 * x[:, 0] * x[:, 1] + x[:, 2] + chance.logistic(size=len(x)) * 0.5 > 0).astype(int)


def friedman(seed: int) -> Made:
    """Friedman's first function of ten columns, in three classes of equal size."""
    x, value = make_friedman1(9000, n_features=10, noise=2.0, random_state=_SEED + seed)
    return x, np.searchsorted(np.quantile(value, (1 / 3, 2 / 3)), value)


def spirals(seed: int) -> Made:
    """Three arms of a spiral, four idle columns."""
    chance = np.random.default_rng(_SEED + seed)
    y, t = chance.integers(0, 3, 9000), np.sqrt(chance.random(9000))
    turn = 5 * t + y * 2 * np.pi / 3
    arms = np.c_[t * np.cos(turn), t * np.sin(turn)] + chance.normal(0, 0.06, size=(9000, 2))
    return np.c_[3 * arms, chance.normal(size=(9000, 4))], y


def modes(seed: int) -> Made:
    """Three classes of three clusters each, eight of twelve columns informative."""
    return make_classification(
        7000, 12, n_informative=8, n_redundant=2, n_classes=3, n_clusters_per_class=3, class_sep=1.3,
        random_state=_SEED + seed,
    )  # fmt: skip


def pairs(seed: int) -> Made:
    """Two classes of six clusters each, six of eight columns informative."""
    return make_classification(
        12_000, 8, n_informative=6, n_redundant=0, n_classes=2, n_clusters_per_class=6, random_state=_SEED + seed
    )


def twelve(seed: int) -> Made:
    """Twelve classes of one cluster each, ten of fourteen columns informative."""
    return make_classification(
        10_000, 14, n_informative=10, n_redundant=0, n_classes=12, n_clusters_per_class=1, random_state=_SEED + seed
    )


def forty(seed: int) -> Made:
    """Twenty classes of two blobs each in eight columns."""
    x, y, *_ = make_blobs(12_000, 8, centers=40, cluster_std=2.5, random_state=_SEED + seed)
    return x, np.asarray(y) % 20


def leaves(seed: int) -> Made:
    """Five classes by a random tree of depth six over numbers and categories, a tenth drawn at random."""
    chance = np.random.default_rng(_SEED + seed)
    numbers, texts = chance.normal(size=(12_000, 6)), chance.integers(0, 5, size=(12_000, 4))
    x: Any = pd.DataFrame(numbers).add_prefix("x").join(pd.DataFrame(texts).add_prefix("c").astype(str))
    node = np.zeros(len(x), dtype=int)
    for level in range(6):
        for place in range(2**level):
            here = node == 2**level - 1 + place
            column = chance.integers(10)
            right = numbers[:, column] > 0.3 * chance.normal() if column < 6 else texts[:, column - 6] < 2
            node[here] = 2 * node[here] + 1 + right[here]
    y = chance.integers(0, 5, 2**7)[node]
    return x, np.where(chance.random(len(x)) < 0.1, chance.integers(0, 5, len(x)), y)


MADE_UP: dict[str, Callable[[int], Made]] = {
    made.__name__: made
    for made in (linear, softmax, squares, product, friedman, spirals, modes, pairs, twelve, forty, leaves)
}
# File, label, and in how many classes of equal size the label, a number, is cut; 0 where it is a class.
MODELDATA = {
    "attrition": ("attrition", "Attrition", 0), "cells": ("cells", "class", 0), "mlc_churn": ("mlc_churn", "churn", 0),
    "remote": ("stackoverflow", "Remote", 0), "lending": ("lending_club", "Class", 0),
    "ames": ("ames", "Sale_Price", 3), "checks": ("check_times", "check_time", 4),
}  # fmt: skip
TABLES = (*MADE_UP, *MODELDATA)


def real(name: str, folder: str | Path) -> tuple[pd.DataFrame, pd.Series]:
    """Return features and labels of a table of modeldata."""
    file, label, classes = MODELDATA[name]
    whole: Any = pd.read_csv(Path(folder) / f"{file}.csv").drop(columns=["case", "package"], errors="ignore")
    labels: Any = pd.qcut(whole[label], classes, labels=False) if classes else whole[label]
    return whole.drop(columns=label), labels
