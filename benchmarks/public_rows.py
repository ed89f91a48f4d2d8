"""What a model loses when its features are fitted on some public rows in place of all of them.

    python benchmarks/public_rows.py [--rows 2000000] [--fit 2e3,2e4,2e5,all] [--epsilon 0.1,1] [--seeds 3]

The table is made up to be hard for a sample: numbers with long tails, numbers that are missing in one row of 100,000,
and categories so rare that a sample of 200,000 rows has not seen them, all of which matter for the label. Means,
spreads, bins and categories (`labeldp.features.tables`) come from so many rows; all else is the same for every
contestant: the moment is of all rows, tuning and head see the same 200,000. Printed is the AUC on other rows, its mean
over draws of table and noise and, draw by draw, how far it is from that of features fitted on all rows.
"""

from __future__ import annotations

import argparse
import functools
import statistics

import numpy as np
import torch

from labeldp.core.random import SecureRandom
from labeldp.estimator.reading import TABLE
from labeldp.features.coded import Coder
from labeldp.features.tables import Table
from labeldp.learning.tuning import Plan, tune
from labeldp.mechanisms.moments import Moments, RowChunks
from labeldp.recipes.one_shot import HEADS, Clock, fitted, moment_of, noise_for, tuned
from labeldp.results.measure import auc

DELTA, HEAD_ROWS, AT_ONCE = 1e-9, 200_000, 1 << 14
NUMBERS, TAILS, CATEGORIES, VALUES = 8, 4, 3, 50


def drawn(rows, seed):
    """Return numbers, categories and labels of so many rows."""
    chance, fixed = np.random.default_rng([3, seed]), np.random.default_rng(5)
    numbers = chance.normal(size=(rows, NUMBERS))
    score = np.tanh(numbers) @ fixed.normal(scale=0.7, size=NUMBERS)
    numbers[:, :TAILS] = np.exp(3 * numbers[:, :TAILS])
    gone = chance.random((rows, NUMBERS)) < 1e-5
    score += gone @ fixed.normal(scale=3, size=NUMBERS)
    numbers[gone] = np.nan
    # The k-th value has a share of about k^-3.5: the last of 50 one row in a million.
    shares = np.arange(1, VALUES + 1) ** -3.5
    cells = np.stack([chance.choice(VALUES, rows, p=shares / shares.sum()) for _ in range(CATEGORIES)], axis=1)
    for column in cells.T:
        score += fixed.normal(scale=1.5, size=VALUES)[column]
    names = np.array([f"v{value}" for value in range(VALUES)])
    return numbers, names[cells], (chance.random(rows) < 1 / (1 + np.exp(-score))).astype(np.uint8)


def trained(found, table, labels, some, epsilon, seed):
    """Return a head on these features: the moment is of all rows, the rest sees some."""
    coded, noise = Coder(found).coded([table]), noise_for(epsilon, DELTA)
    held = coded.take(some).features()
    # All directions, as `labeldp.engines.spark.train` takes them at such numbers of rows.
    plan = functools.partial(tune, rows=10_000, clusterings=4, draws=2, seed=seed, plans=[Plan(found.dim)])
    tuning = tuned(held, 2, noise, plan, HEADS, None, Clock(None))
    phi = tuning.basis(held)
    radius = float(torch.linalg.vector_norm(phi, dim=1).amax()) * (1 + 1e-6)
    chunks = RowChunks(len(labels), phi.shape[1], lambda: (tuning.basis(part).numpy() for part in features_of(coded)))
    noisy = Moments(chunks, 2, noise, radius).sample(labels, SecureRandom())
    return fitted(tuning, HEADS, moment_of(phi, noisy), phi, Clock(None))


def features_of(coded):
    """Yield features, some rows at a time."""
    return (coded.take(rows).features() for rows in torch.arange(len(coded)).split(AT_ONCE))


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=2_000_000)
    parser.add_argument("--fit", default="2e3,2e4,2e5,all")
    parser.add_argument("--epsilon", default="0.1,1")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    sizes = {text: given.rows if text == "all" else int(float(text)) for text in (*given.fit.split(","), "all")}
    areas: dict[tuple[float, str], list[float]] = {}
    for seed in range(given.seeds):
        *table, labels = drawn(given.rows, seed)
        *other, truth = drawn(500_000, 1000 + seed)
        order = np.random.default_rng(seed).permutation(given.rows)
        some = torch.from_numpy(np.sort(order[:HEAD_ROWS]))
        for name, size in sizes.items():
            chosen = np.sort(order[:size])
            found = Table(**TABLE, seed=seed).fit((table[0][chosen], table[1][chosen]))
            test = Coder(found).coded([tuple(other)])
            for epsilon in map(float, given.epsilon.split(",")):
                shot = trained(found, tuple(table), labels, some, epsilon, seed)
                likely = torch.cat([shot.probabilities(part)[:, 1] for part in features_of(test)])
                area = auc(likely.numpy(), truth.astype(int))
                areas.setdefault((epsilon, name), []).append(area)
                print(f"  draw {seed}, ε = {epsilon:g}, {name} rows: {found.dim} features, AUC {area:.5f}", flush=True)
    for (epsilon, name), found in areas.items():
        apart = sorted(100 * (one - whole) for one, whole in zip(found, areas[epsilon, "all"], strict=True))
        print(
            f"ε = {epsilon:<4g} fitted on {name:>4} rows: AUC {statistics.mean(found):.4f}, "
            f"{statistics.mean(apart):+.3f} points ({apart[0]:+.3f} to {apart[-1]:+.3f})"
        )


if __name__ == "__main__":
    main()
