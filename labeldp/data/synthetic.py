"""A made-up image problem, so that tests of learning need no data set. Never report a number on it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from labeldp.accounting.ledger import Budget
from labeldp.data.splits import Benchmark, Images, seal
from labeldp.private.randomness import SecureRandom

NAME = "synthetic stand-in (tests only)"
_CELL = 4
_SHIFT = 2
_NOISE = 40.0


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
    """Noisy, shifted copies of one random blocky picture per class: easy to learn, and true of nothing.

    `seed` makes pictures and labels, so whoever knows it knows the labels; `rng` is the vault's noise.

    >>> made_up = synthetic_stand_in(100, 20, num_classes=3)
    >>> made_up.name, made_up.train.shape, len(made_up.vault)
    ('synthetic stand-in (tests only)', (100, 1, 28, 28), 100)
    """
    for argument, value in {"num_train": num_train, "num_test": num_test, "num_classes": num_classes}.items():
        if value < 1:
            raise ValueError(f"{argument}={value} must be at least 1")
    draw = np.random.default_rng(seed)
    pictures = _pictures(draw, num_classes, shape)
    train, test = (_part(draw, pictures, count) for count in (num_train, num_test))
    classes = tuple(f"made-up class {number}" for number in range(num_classes))
    return seal(NAME, classes, train, test, rng=rng, budget=budget)


def _pictures(draw: np.random.Generator, num_classes: int, shape: tuple[int, int, int]) -> npt.NDArray[np.float64]:
    channels, height, width = shape
    cells = draw.uniform(40, 215, (num_classes, channels, -(-height // _CELL), -(-width // _CELL)))
    return cells.repeat(_CELL, axis=2).repeat(_CELL, axis=3)[:, :, :height, :width]


def _part(
    draw: np.random.Generator, pictures: npt.NDArray[np.float64], count: int
) -> tuple[Images, npt.NDArray[np.int64]]:
    labels = draw.integers(len(pictures), size=count)
    images = np.empty((count, *pictures.shape[1:]), dtype=np.uint8)
    for row, label in enumerate(labels):
        moved = np.roll(pictures[label], draw.integers(-_SHIFT, _SHIFT + 1, 2), axis=(1, 2))
        images[row] = np.clip(moved + draw.normal(0, _NOISE, moved.shape), 0, 255)
    return images, labels
