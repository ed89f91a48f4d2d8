"""Randomized response with a prior per row, 2·10^6 rows of 10 classes at ε = 1 on one thread: ours against numpy.

Timed from prior and labels to answers: choosing every row's set, thresholds and draws. The reference sorts,
sums and draws with floats and numpy's generator. Run: python benchmarks/prior_response.py [--json]
"""

from __future__ import annotations

import math
import sys

import numpy as np

from benchmarks.timing import rates, show_rates
from labeldp.core.random import SecureRandom
from labeldp.mechanisms.responses import PriorResponse

ROWS, CLASSES, EPSILON, REPEATS = 2 * 10**6, 10, 1.0, 5


def reference(prior, labels, rng):
    """RRWithPrior with argsort, cumsum, argmax and float draws."""
    order = np.argsort(-prior, axis=1)
    sums = np.cumsum(np.take_along_axis(prior, order, axis=1), axis=1)
    growth = math.exp(EPSILON)
    size = 1 + np.argmax(sums / (growth + np.arange(CLASSES)), axis=1)
    rank = np.argmax(order == labels[:, None], axis=1)
    keep = (rank < size) & (rng.random(len(labels)) < (growth - 1) / (growth + size - 1))
    position = (rng.random(len(labels)) * size).astype(np.int64)
    drawn = np.take_along_axis(order, position[:, None], axis=1)[:, 0]
    return np.where(keep, labels, drawn).astype(np.uint8)


def ours(prior, labels, rng):
    """The library, from prior and labels to answers."""
    return PriorResponse(EPSILON, prior).sample(labels, rng).responses


def main():
    """Time both in turn and print labels per second."""
    data = np.random.default_rng(0)
    prior = data.dirichlet(np.ones(CLASSES), ROWS)
    labels = data.integers(0, CLASSES, ROWS).astype(np.uint8)
    secure, plain = SecureRandom(), np.random.default_rng(1)
    contestants = {"ours": lambda: ours(prior, labels, secure), "numpy": lambda: reference(prior, labels, plain)}
    found = rates(contestants, amount=ROWS, repeats=REPEATS)
    settings = {"rows": ROWS, "classes": CLASSES, "epsilon": EPSILON}
    show_rates(found, "labels/s", "--json" in sys.argv[1:], benchmark="prior_response", **settings)


if __name__ == "__main__":
    main()
