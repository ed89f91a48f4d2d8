"""Boost trees on a few noisy histograms: numbers of labels of each class in public bins, and nothing else of them.

    round 0:  a histogram of every column's bins, (classes × bins)                  →  trees of one level
    round r:  depth − 1 splits, the same for all nodes of a level, and for a few columns a histogram in each node
              →  a tree of `depth` levels for each of those columns;  all trees so far are boosted again

Features are public, so splits, bins, counts, predictions and curvatures are, too; the labels are asked for nothing but
Σ onehot(y) over the rows of a bin. Whatever a round wants to know of residuals follows from that sum and from public
predictions (`labeldp.learning.boosting`), so that no histogram is asked for twice, and a histogram is a tree.

Cost. A row is in one bin of each of F columns that are asked at once: a replaced label takes 1 from F cells and adds 1
to F others, and moves the histograms by √(2F). They are one moment of 0/1 features, of length √F (`Moments`): noise of
σ·√F on each count is a Gaussian query with μ = √2/σ. All queries are one plan: their number and their σ are fixed in
advance, and μ² = Σ μ_r². Which columns and splits a round takes is drawn at random, by how much the trees so far have
gained from a column; that is post-processing.

When it helps: between what one moment and what responses are good for, which is not often; docs/recipes.md has figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from labeldp.core.inverse import gaussian_mu
from labeldp.core.vault import LabelVault
from labeldp.learning.boosting import Column, Histogram, boost, columns, cut, forest_of
from labeldp.learning.progress import Report
from labeldp.learning.trees import Forest
from labeldp.mechanisms.counts import GaussianNoise
from labeldp.mechanisms.moments import Moments, RowChunks
from labeldp.recipes.arguments import checked
from labeldp.recipes.kept import digest, in_folder, planned, query_note, release_once
from labeldp.recipes.one_shot import Clock, check_features
from labeldp.releases import FloatArray

IntArray = npt.NDArray[np.int64]
_ROWS_AT_ONCE = 4096
# The part of a column's chance to be drawn that does not depend on what it has gained.
_UNIFORM = 0.3
# Passes over all trees after a round and after the last.
_PASSES, _LAST_PASSES = 1, 4
# What rounding may lose when μ is taken apart and put together again, with room.
_SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Boosted:
    """Hold trees that were boosted on noisy histograms, and no label; may be kept and published.

    Args:
        forest: scores of rows of features, (n, K).
        histograms: the trees one by one, with the releases behind them.
    """

    forest: Forest
    histograms: tuple[Histogram, ...]

    def logits(self, features: Tensor) -> Tensor:
        """Return scores of features, old or new, (m, K)."""
        return torch.from_numpy(self.forest.scores(features.detach().cpu().numpy()))

    def probabilities(self, features: Tensor) -> Tensor:
        """Return class probabilities of features, old or new, (m, K)."""
        return self.logits(features).softmax(dim=1)


@checked
def train(
    features: Tensor,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    rounds: int = 4,
    depth: int = 3,
    bins: int = 16,
    coarse_bins: int = 4,
    features_per_round: int = 4,
    first_share: float = 0.7,
    learning_rate: float = 0.5,
    seed: int = 0,
    folder: Path | None = None,
    report: Report | None = None,
) -> Boosted:
    """Release `rounds` + 1 noisy histograms and boost trees on them: (`epsilon`, `delta`) in all.

    Args:
        features: public, (n, p), in the vault's order; `labeldp.learning.boosting` finds the table's columns in them.
        rounds: queries after the first, which is about all columns by themselves; with 0 the model is additive.
        depth: levels of their trees.
        bins, coarse_bins: of a number, at most, in the first query and in the others.
        features_per_round: columns that each of the others asks about.
        first_share: the part of the budget, in squares of μ, of the first query.
        learning_rate: how far a tree's values go towards their new ones in one update.
        seed: of the splits and columns that rounds take.
        folder: keeps every release, so that a killed run goes on and draws nothing twice.
        report: gets every round.

    >>> x = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0))
    >>> vault = LabelVault((x[:, 0].abs() > 0.7).long(), num_classes=2)
    >>> found = train(x, vault, epsilon=1.0, delta=1e-6)
    >>> right = found.logits(x).argmax(dim=1) == (x[:, 0].abs() > 0.7)
    >>> bool(right.float().mean() > 0.8), vault.certificate(1e-6).epsilon <= 1.0
    (True, True)
    """
    check_features(features, vault)
    if not 0 < epsilon < math.inf or not 0 < delta < 1:
        raise ValueError(f"epsilon={epsilon}, delta={delta}: Gaussian noise needs finite ε > 0 and 0 < δ < 1")
    _check_ranges(rounds=(rounds, 0, 1000), depth=(depth, 1, 12), bins=(bins, 2, 4096))
    _check_ranges(coarse_bins=(coarse_bins, 2, 4096), features_per_round=(features_per_round, 1, 1 << 20))
    if not 0 < first_share < 1 or not 0 < learning_rate <= 1:
        raise ValueError(f"first_share={first_share}, learning_rate={learning_rate}: give shares, above 0 and below 1")
    rows, rng, clock = features.detach().cpu().numpy(), np.random.default_rng(seed), Clock(report)
    found = columns(rows)
    if not found or vault.num_classes < 2:
        raise ValueError(
            f"features has {len(found)} columns that vary, the vault {vault.num_classes} classes; give at least one "
            "column and two classes"
        )
    fine, coarse = ([cut(rows, column, size) for column in found] for size in (bins, coarse_bins))
    # No column is left to ask about once a round has split on all.
    levels = min(depth - 1, len(found) - 1)
    shares = [1.0] if rounds == 0 else [first_share, *[(1 - first_share) / rounds] * rounds]
    mu = gaussian_mu(epsilon, delta) * (1 - _SLACK)
    noises = [GaussianNoise(math.sqrt(2.0 / share) / mu) for share in shares]
    files = [in_folder(folder, f"histogram-{number}.npz") for number in range(len(shares))]
    events = [Moments(np.zeros((1, 1)), 1, noise, 1.0).event() for noise in noises]
    vault = planned(vault, *((event, None, file) for event, file in zip(events, files, strict=True)))

    trees: list[Histogram] = []
    scores = np.zeros((len(rows), vault.num_classes))
    for number, (noise, file) in enumerate(zip(noises, files, strict=True)):
        chances = _chances(trees, found)
        splits: list[tuple[int, float]] = []
        asked, table = np.arange(len(found)), fine
        if number > 0:
            order = rng.choice(len(found), len(found), replace=False, p=chances)
            cuts = [coarse[column].cuts for column in order[:levels]]
            splits, table = [one[rng.integers(len(one))] for one in cuts], coarse
            asked = order[levels : levels + features_per_round]
        trees += _released(rows, splits, [table[column] for column in asked], vault, noise, file)
        if number == 0:
            scores += _log_shares(trees)
        boost(trees, scores, _PASSES if number < rounds else _LAST_PASSES, learning_rate)
        noise_std = math.sqrt(trees[-1].variance)
        clock("histogram", f"{number + 1} of {len(shares)}: {len(asked)} columns, noise {noise_std:.3g}")
    return Boosted(forest_of(trees, _log_shares(trees[: len(found)])), tuple(trees))


def _check_ranges(**given: tuple[int, int, int]) -> None:
    """Raise ValueError for a number that is not between the other two."""
    for name, (value, low, high) in given.items():
        if not low <= value <= high:
            raise ValueError(f"{name}={value} is out of range; give a whole number from {low} to {high}")


def _chances(trees: Sequence[Histogram], found: Sequence[tuple[int, ...]]) -> FloatArray:
    """Return the chance of every column to be drawn: by the gain of the trees that ask about it, and a part for all."""
    gains = np.zeros(len(found))
    for tree in trees:
        asked = {tree.column.features[0], *(feature for feature, _ in tree.splits)}
        gains += tree.gain * np.array([not asked.isdisjoint(column) for column in found])
    return _UNIFORM / len(found) + (1 - _UNIFORM) * (gains + 1e-9) / (gains + 1e-9).sum()


def _released(
    rows: npt.NDArray[np.floating], splits: Sequence[tuple[int, float]], asked: Sequence[Column], vault: LabelVault,
    noise: GaussianNoise, kept: Path | None,
) -> list[Histogram]:  # fmt: skip
    """Release the histograms of these columns in the nodes of these splits, or read those that are kept."""
    node = np.zeros(len(rows), dtype=np.int64)
    for feature, threshold in splits:
        node = 2 * node + (rows[:, feature] > threshold)
    leaves = [node * column.size + column.bins(rows) for column in asked]
    starts = np.cumsum([0, *(column.size << len(splits) for column in asked)])
    cells = np.stack(leaves, axis=1) + starts[:-1]
    radius = math.sqrt(len(asked)) * (1 + 1e-6)
    chunks = RowChunks(len(rows), int(starts[-1]), lambda: _flags(cells, int(starts[-1])))
    mechanism = Moments(chunks, vault.num_classes, noise, radius)
    note = {**query_note(vault, mechanism), "cells": digest(cells)}
    noisy = release_once(vault, mechanism, kept, note, numbers=(vault.num_classes + 1) * int(starts[-1]))
    # Sums over classes are public, and what noise had added to them is taken off.
    variance = noisy.noise_std**2 * (1 - 1 / vault.num_classes)
    parts = np.split(noisy.value, starts[1:-1], axis=1)
    return [Histogram(splits, *each, variance) for each in zip(asked, leaves, parts, strict=True)]


def _flags(cells: IntArray, width: int) -> Iterator[npt.NDArray[np.float32]]:
    """Yield 1 where a row is in a cell, else 0, some rows at a time."""
    for start in range(0, len(cells), _ROWS_AT_ONCE):
        part = cells[start : start + _ROWS_AT_ONCE]
        block = np.zeros((len(part), width), dtype=np.float32)
        block[np.arange(len(part))[:, None], part] = 1.0
        yield block


def _log_shares(trees: Sequence[Histogram]) -> FloatArray:
    """Return logarithms of the classes' shares, as all histograms of the first query show them together."""
    totals = np.mean([tree.sums.sum(axis=1) for tree in trees], axis=0)
    return np.log(np.maximum(totals, 1.0) / np.maximum(totals, 1.0).sum())
