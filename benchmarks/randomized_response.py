"""Randomized response, 10^7 labels of 10 classes at ε = 1 on one thread: ours against plain numpy.

Ours draws secure bits and is exact on the integers; the reference is the usual three lines with floats and
numpy's generator. Run: python benchmarks/randomized_response.py [--json]
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time

import numpy as np

from labeldp.private.randomizers import RandomizedResponse
from labeldp.private.randomness import SecureRandom

ROWS, CLASSES, EPSILON, REPEATS = 10**7, 10, 1.0, 7


def reference(labels, rng):
    """The label with probability e^ε/(e^ε + K − 1), else one of the others."""
    keep = rng.random(len(labels)) < math.exp(EPSILON) / (math.exp(EPSILON) + CLASSES - 1)
    other = rng.integers(0, CLASSES - 1, len(labels), dtype=np.uint8)
    return np.where(keep, labels, other + (other >= labels))


def ours(labels, rng):
    """The library, from labels to answers."""
    return RandomizedResponse(EPSILON, CLASSES).sample(labels, rng).answers


def main():
    """Time both in turn and print labels per second."""
    labels = np.random.default_rng(0).integers(0, CLASSES, ROWS).astype(np.uint8)
    contestants = {"ours": (ours, SecureRandom()), "numpy": (reference, np.random.default_rng(1))}
    speeds = {name: [] for name in contestants}
    for _ in range(REPEATS):
        for name, (function, rng) in contestants.items():
            start = time.perf_counter()
            function(labels, rng)
            speeds[name].append(ROWS / (time.perf_counter() - start))
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    for name, values in speeds.items():
        low, high = min(values) / 1e6, max(values) / 1e6
        print(f"{name:>6}: {medians[name] / 1e6:7.1f} M labels/s  ({low:.1f} – {high:.1f}, {REPEATS} runs)")
    ratio = medians["ours"] / medians["numpy"]
    print(f"ours / numpy: {ratio:.2f}")
    if "--json" in sys.argv[1:]:
        settings = {"rows": ROWS, "classes": CLASSES, "epsilon": EPSILON, "repeats": REPEATS}
        spread = {name: [min(values), max(values)] for name, values in speeds.items()}
        result = {"benchmark": "randomized_response", "unit": "labels/s", **settings}
        print(json.dumps({**result, "median": medians, "spread": spread, "ratio": ratio}))


if __name__ == "__main__":
    main()
