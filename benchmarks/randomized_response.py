"""Randomized response, 10^7 labels of 10 classes at ε = 1 on one thread: ours against plain numpy.

Ours draws secure bits and is exact on the integers; the reference is the usual three lines with floats and
numpy's generator. Run: python benchmarks/randomized_response.py [--json]
"""

from __future__ import annotations

import math
import sys

import numpy as np

from benchmarks.timing import rates, show_rates
from labeldp.core.random import SecureRandom
from labeldp.mechanisms.responses import RandomizedResponse

ROWS, CLASSES, EPSILON, REPEATS = 10**7, 10, 1.0, 7


def reference(labels, rng):
    """The label with probability e^ε/(e^ε + K − 1), else one of the others."""
    keep = rng.random(len(labels)) < math.exp(EPSILON) / (math.exp(EPSILON) + CLASSES - 1)
    other = rng.integers(0, CLASSES - 1, len(labels), dtype=np.uint8)
    return np.where(keep, labels, other + (other >= labels))


def ours(labels, rng):
    """The library, from labels to answers."""
    return RandomizedResponse(EPSILON, CLASSES).sample(labels, rng).responses


def main():
    """Time both in turn and print labels per second."""
    labels = np.random.default_rng(0).integers(0, CLASSES, ROWS).astype(np.uint8)
    secure, plain = SecureRandom(), np.random.default_rng(1)
    contestants = {"ours": lambda: ours(labels, secure), "numpy": lambda: reference(labels, plain)}
    found = rates(contestants, amount=ROWS, repeats=REPEATS)
    settings = {"rows": ROWS, "classes": CLASSES, "epsilon": EPSILON}
    show_rates(found, "labels/s", "--json" in sys.argv[1:], benchmark="randomized_response", **settings)


if __name__ == "__main__":
    main()
