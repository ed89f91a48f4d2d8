"""How fast the moment of many rows streams, beside a plain numpy product of the one-hot labels with the same features.

    python benchmarks/moments.py [--rows 10000000] [--features 256] [--classes 10] [--repeats 5] [--json]

Both read the same float32 rows, chunk by chunk through one chunk of memory that is used over and over, so 10 GB of rows
need no 10 GB. The plain product is what a user would write: `onehot.T @ chunk`, added up. It neither bounds rows nor
rounds nor adds noise, and its float32 sums depend on the chunks; ours are exact. GB are of features read.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.timing import rates, show_rates
from labeldp.core.random import SecureRandom
from labeldp.mechanisms.counts import GaussianNoise
from labeldp.mechanisms.moments import Moments, RowChunks

# One core each, unless the environment says otherwise: ours has one thread, and BLAS threads on a busy machine wait.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


CHUNK = 1 << 16


def take_rows(features: int) -> np.ndarray:
    """One chunk of rows of length at most 1, as an encoder gives them."""
    chunk = np.random.default_rng(0).standard_normal((CHUNK, features), dtype=np.float32)
    chunk /= np.linalg.norm(chunk, axis=1, keepdims=True)
    return chunk


def chunks(chunk: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    """The chunk again and again, to this many rows."""
    for start in range(0, rows, CHUNK):
        yield chunk[: min(CHUNK, rows - start)]


def ours(chunk: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """The mechanism as a vault would call it: bounded, rounded, summed exactly, with noise."""
    source = RowChunks(len(labels), chunk.shape[1], partial(chunks, chunk, len(labels)))
    noise = GaussianNoise.for_budget(1.0, 1e-5)
    return Moments(source, classes, noise, radius=1.0).sample(labels, SecureRandom(seed=1)).value


def plain(chunk: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Σ onehot.T @ chunk, without privacy."""
    total, start = np.zeros((classes, chunk.shape[1])), 0
    for part in chunks(chunk, len(labels)):
        onehot = np.zeros((len(part), classes), dtype=np.float32)
        onehot[np.arange(len(part)), labels[start : start + len(part)]] = 1.0
        total += onehot.T @ part
        start += len(part)
    return total


def main() -> None:
    """Run both in turns and print their speeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    options = parser.parse_args()
    chunk = take_rows(options.features)
    kind = np.min_scalar_type(options.classes - 1)
    labels = np.random.default_rng(1).integers(0, options.classes, options.rows).astype(kind)
    contestants = {
        "moment": partial(ours, chunk, labels, options.classes),
        "matmul": partial(plain, chunk, labels, options.classes),
    }
    megabytes = options.rows * options.features * 4 / 1e6
    found = rates(contestants, megabytes, options.repeats)
    show_rates(found, "MB/s", options.json, rows=options.rows, features=options.features, classes=options.classes)


if __name__ == "__main__":
    main()
