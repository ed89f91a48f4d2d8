"""Made-up images, and made-up clicks like Criteo's, so that tests need no data set. Never report a number on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.core.ledger import Budget
from labeldp.core.random import SecureRandom
from labeldp.data.benchmarks import Benchmark, Images, UserBenchmark, seal, seal_by_user
from labeldp.data.table_files import AttributionColumns, IntArray, Raw, coded

NAME = "synthetic stand-in (tests only)"
_CELL = 4
_SHIFT = 2
_NOISE = 40.0

ATTRIBUTION_NAME = "synthetic stand-in for Criteo attribution (tests only)"
CLASSES = ("not credited", "credited")
# How many values campaign and cat1 … cat9 take here: fewer than in the real table, and as unequal.
CARDINALITIES = (60, 9, 30, 120, 20, 40, 25, 400, 11, 25)
_SHARE = 0.12
_STRENGTH = 0.7


def synthetic_stand_in(
    num_train: int,
    num_test: int,
    num_classes: int,
    shape: tuple[int, int, int] = (1, 28, 28),
    seed: int = 0,
    *,
    rng: SecureRandom | None = None,
    budget: Budget | None = None,
) -> Benchmark[Images]:
    """Return noisy, shifted copies of one random blocky image per class: easy to learn, and true of nothing.

    `seed` makes images and labels, so whoever knows it knows the labels; `rng` is the vault's noise.

    >>> made_up = synthetic_stand_in(100, 20, num_classes=3)
    >>> made_up.name, made_up.train.shape, len(made_up.vault)
    ('synthetic stand-in (tests only)', (100, 1, 28, 28), 100)
    """
    for argument, value in {"num_train": num_train, "num_test": num_test, "num_classes": num_classes}.items():
        if value < 1:
            raise ValueError(f"{argument}={value} must be at least 1")
    draw = np.random.default_rng(seed)
    patterns = _patterns(draw, num_classes, shape)
    train, test = (_part(draw, patterns, count) for count in (num_train, num_test))
    classes = tuple(f"made-up class {number}" for number in range(num_classes))
    return seal(NAME, classes, train, test, rng=rng, budget=budget)


def synthetic_attribution_stand_in(
    train_users: int,
    test_users: int,
    seed: int = 0,
    *,
    rng: SecureRandom | None = None,
    budget: Budget | None = None,
) -> UserBenchmark:
    """Return clicks of made-up users, each with a cost and ten categorical columns; a few users have many clicks.

    The label follows a logistic model of the columns, so there is something to learn, and it is true of nothing. `seed`
    makes clicks and labels, so whoever knows it knows the labels; `rng` is the vault's noise.

    >>> made_up = synthetic_attribution_stand_in(100, 20)
    >>> made_up.vault
    UserVault(213 labels of 100 users, num_classes=2, budget=None)
    """
    for argument, value in {"train_users": train_users, "test_users": test_users}.items():
        if value < 1:
            raise ValueError(f"{argument}={value} must be at least 1")
    chance = np.random.default_rng(seed)
    weights = [chance.normal(0, _STRENGTH, size) for size in CARDINALITIES]
    users = _clicks(chance, train_users + test_users)
    numeric, categorical = _features(chance, len(users))
    labels = _labels(chance, numeric, categorical, weights)
    train = users < train_users
    parts = _parts((numeric, categorical), users, labels, train)
    return seal_by_user(ATTRIBUTION_NAME, CLASSES, *parts, rng=rng, budget=budget)


def _patterns(draw: np.random.Generator, num_classes: int, shape: tuple[int, int, int]) -> npt.NDArray[np.float64]:
    channels, height, width = shape
    cells = draw.uniform(40, 215, (num_classes, channels, -(-height // _CELL), -(-width // _CELL)))
    return cells.repeat(_CELL, axis=2).repeat(_CELL, axis=3)[:, :, :height, :width]


def _part(
    draw: np.random.Generator, patterns: npt.NDArray[np.float64], count: int
) -> tuple[Images, npt.NDArray[np.int64]]:
    labels = draw.integers(len(patterns), size=count)
    images = np.empty((count, *patterns.shape[1:]), dtype=np.uint8)
    for row, label in enumerate(labels):
        moved = np.roll(patterns[label], draw.integers(-_SHIFT, _SHIFT + 1, 2), axis=(1, 2))
        images[row] = np.clip(moved + draw.normal(0, _NOISE, moved.shape), 0, 255)
    return images, labels


def _clicks(chance: np.random.Generator, num_users: int) -> IntArray:
    """The user of every click, mixed: a geometric number of clicks each, with a mean that differs by user."""
    clicks = chance.geometric(1 / (1 + chance.exponential(1.0, num_users)))
    users = np.repeat(np.arange(num_users), clicks)
    return users[chance.permutation(len(users))]


def _features(chance: np.random.Generator, num_rows: int) -> Raw:
    cost = chance.lognormal(-8.0, 1.0, (num_rows, 1))
    # Few values are common and most are rare.
    columns = [(size * chance.random(num_rows) ** 2.5).astype(np.int64) for size in CARDINALITIES]
    return cost, np.stack(columns, axis=1)


def _labels(
    chance: np.random.Generator,
    numeric: npt.NDArray[Any],
    categorical: npt.NDArray[Any],
    weights: list[npt.NDArray[np.float64]],
) -> npt.NDArray[np.uint8]:
    score = sum((weight[categorical[:, column]] for column, weight in enumerate(weights)), np.log(numeric[:, 0]) + 8.0)
    threshold = np.quantile(score + chance.logistic(size=len(score)), 1 - _SHARE)
    return (score + chance.logistic(size=len(score)) > threshold).astype(np.uint8)


def _parts(
    features: Raw, users: IntArray, labels: npt.NDArray[np.uint8], train: npt.NDArray[np.bool_]
) -> tuple[AttributionColumns, AttributionColumns]:
    numeric, categorical = features
    first, second = coded(
        (numeric[train], categorical[train]), (numeric[~train], categorical[~train]), (users[train], users[~train])
    )
    return (first, labels[train]), (second, labels[~train])
