"""RR-on-Bins: private real-valued labels for regression (Ghazi et al. 2023, Regression with Label DP).

    1. h = noisy histogram of the labels, for ε_h                              (`split_of`)
    2. bins, outputs = the best ones for h at ε' = ε − ε_h                     (`learning.bins`)
    3. every row: the output of its bin with probability e^{ε'}/(e^{ε'} + k − 1), else of another

Both queries are over the same rows, the second chosen after the first, so they add up to ε (adaptive composition).

`moment` is the other recipe for numbers: the one-shot moment Σ v(y_i)·φ_i, v from −1 to 1, as that of two classes. A
number between two bounds is rounded at random, without bias, to −1, 0 or 1, and the moment of these three classes is
released. Its noise on Σ v·φ is the same as two classes would have, at a quarter of their rounding error. Everything
after the release is then that of two classes, low and high: P(high | x) is the mean of the number, brought to [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from labeldp.core.events import PureDP
from labeldp.core.ledger import Budget, Ledger
from labeldp.core.vault import LabelVault
from labeldp.features.coded import Coded
from labeldp.learning.bins import Loss, expected_loss, nearest_distribution, optimal_bins
from labeldp.learning.evidence import on_values
from labeldp.learning.heads import Head
from labeldp.learning.train import Inputs
from labeldp.learning.tuning import tune
from labeldp.mechanisms.common import checked_epsilon, checked_integer
from labeldp.mechanisms.counts import GroupCounts, LaplaceNoise
from labeldp.mechanisms.moments import Moments
from labeldp.mechanisms.values import Binned, BinnedResponse, NoisyValues, Rounded, ValueVault
from labeldp.recipes import one_shot
from labeldp.recipes.arguments import Fit, checked, device_of
from labeldp.recipes.budget import split_pure
from labeldp.recipes.kept import check_affordable, checkpoint_of, in_folder, query_note, release_once
from labeldp.recipes.one_shot import HEADS, OneShot, Report, Tune
from labeldp.releases import FloatArray, NoisyCounts, NoisyLabels, NoisyMoments

# Below this, noisy counts say nothing and their sampler refuses.
_LEAST_EPSILON = 1e-9
_FEWEST_CELLS = 8
# −1, 0 and 1.
_SIDES = 3


@checked
def privatize_values(
    vault: ValueVault,
    *,
    epsilon: float,
    loss: Loss = "squared",
    histogram_share: float = 0.2,
    cells: int = 32,
    histogram: npt.ArrayLike | None = None,
    folder: Path | None = None,
) -> NoisyValues:
    """Release one private value per row, at `epsilon` in all, of least expected loss to the true one.

    `histogram` is the distribution over the vault's levels where it is public knowledge, and then nothing is
    spent on it. Otherwise it is counted in at most `cells` equal intervals, for at most `histogram_share` of ε. A
    folder keeps counts and responses, so that none is drawn twice.

    >>> from labeldp.mechanisms.values import seal_values
    >>> vault = seal_values(np.random.default_rng(0).exponential(size=5000), low=0, high=10)
    >>> noisy = privatize_values(vault, epsilon=1.0)
    >>> noisy.values().shape, vault.certificate().epsilon
    ((5000,), 1.0)
    """
    most = min(checked_integer("cells", cells, 1, 1 << 16), vault.num_classes)
    share = 0.0 if histogram is not None else histogram_share
    cells, first, second = split_of(epsilon, len(vault), share, most)
    levels = vault.grid.values()
    # A loss that fails must fail before anything is spent.
    expected_loss(np.ones_like(levels), levels, second, np.arange(len(levels)), levels, loss)
    if histogram is None:
        files = in_folder(folder, "counts.npz"), in_folder(folder, "responses.npz")
        check_affordable(vault, (PureDP(first), None, files[0]), (PureDP(second), None, files[1]))
        histogram = noisy_histogram(vault, first, cells, folder)
    mechanism = BinnedResponse(second, *optimal_bins(histogram, levels, second, loss))
    release = release_once(
        vault, mechanism, in_folder(folder, "responses.npz"), query_note(vault, mechanism),
        numbers=len(vault) + 2 * len(levels),
    )  # fmt: skip
    return replace(release, levels=levels, prior=np.asarray(histogram, dtype=np.float64))


@checked
def train(
    model: nn.Module,
    inputs: Inputs,
    vault: ValueVault,
    *,
    epsilon: float,
    fit: Fit,
    loss: Loss = "squared",
    histogram: npt.ArrayLike | None = None,
    folder: Path | None = None,
) -> nn.Module:
    """Release one response per value, at `epsilon` in all, and regress on them; the model has one output per row.

    A model trained on these responses shrinks towards the mean, as the responses do: at small ε that is the price of
    the least loss. With a folder, a killed run goes on and draws nothing twice.
    """
    noisy = privatize_values(vault, epsilon=epsilon, loss=loss, histogram=histogram, folder=folder)
    values = torch.from_numpy(posterior_values(noisy)).float().to(device_of(model))
    objective = on_values(values, "absolute" if loss == "absolute" else "squared")
    return fit(model, inputs, objective, **checkpoint_of(folder, noisy.responses, noisy.outputs))


def noisy_histogram(vault: ValueVault, epsilon: float, cells: int = 32, folder: Path | None = None) -> FloatArray:
    """Return the labels' distribution over the levels, (m,), counted with noise in `cells` equal intervals.

    Uniform, and free, where epsilon is too small to learn anything.
    """
    if epsilon < _LEAST_EPSILON:
        return np.full(vault.num_classes, 1.0 / vault.num_classes)
    cells = min(cells, vault.num_classes)
    cell_of_level = np.arange(vault.num_classes) * cells // vault.num_classes
    counts = GroupCounts(np.zeros(len(vault), dtype=np.int64), 1, cells, LaplaceNoise(epsilon))
    binned = Binned(cell_of_level, counts)
    note = {**query_note(vault, binned), "cells": cells}
    kept = in_folder(folder, "counts.npz")
    noisy = release_once(vault, binned, kept, note, numbers=cells + 1)
    assert isinstance(noisy, NoisyCounts)
    return (nearest_distribution(noisy.counts[0], len(vault)) / np.bincount(cell_of_level))[cell_of_level]


def split_of(epsilon: float, num_rows: int, share: float, most: int = 32) -> tuple[int, float, float]:
    """Return (cells, ε_h, ε − ε_h) of the histogram: a fixed rule of public numbers.

    The histogram only steers the bins. Noise of a tenth of the rows does: it is 2/ε_h per cell in the mean, so
    ε_h = 20·cells/n, and more is better spent on the responses. Where that exceeds share·ε there are fewer cells,
    down to 8. Together the two are ε, exactly.

    >>> split_of(1.0, num_rows=64_000, share=0.2)
    (32, 0.010000000000000009, 0.99)
    >>> split_of(1.0, num_rows=800, share=0.25)
    (10, 0.25, 0.75)
    """
    if not 0 <= share < 1:
        raise ValueError(f"histogram_share is {share!r}; give a share of the budget from 0 to less than 1")
    epsilon = checked_epsilon(epsilon)
    allowed = share * epsilon if share else 0.0
    cells = min(most, max(_FEWEST_CELLS, int(min(allowed, 1e6) * num_rows / 20)))
    first = min(allowed, 20.0 * cells / max(num_rows, 1))
    if first < _LEAST_EPSILON:
        return cells, 0.0, epsilon
    return (cells, *split_pure(epsilon, first))


def posterior_values(noisy: NoisyValues, histogram: npt.ArrayLike | None = None) -> FloatArray:
    """Return E[y | response] under the histogram (the release's own when None), (n,): each row's best guess.

        E[y | j] = (Σ_y p_y y + (e^ε − 1) Σ_{y in bin j} p_y y) / (1 + (e^ε − 1) P(bin j))

    For the squared loss these are the outputs themselves. They shrink towards the overall mean, and so does a
    model trained on them.
    """
    given, levels = noisy.prior if histogram is None else np.asarray(histogram, dtype=np.float64), noisy.levels
    if levels is None or given is None:
        raise ValueError("the release lacks the grid's values or a histogram; make it with privatize_values")
    if given.shape != levels.shape:
        raise ValueError(f"histogram has shape {given.shape}; give one weight for each of {len(levels)} levels")
    # A label the noisy histogram excludes may still be the response: then its bin is all that is known.
    prior = given + 1e-12 * (given.mean() or 1.0)
    # One row for every possible response, on which alone the channel depends.
    every = NoisyLabels(noisy.channel, np.arange(len(noisy.outputs)))
    return (every.posterior(prior) @ levels)[noisy.responses]


# --- one moment -------------------------------------------------------------------------------------------------


@checked
def moment(
    features: Tensor | Coded,
    vault: ValueVault,
    *,
    epsilon: float,
    delta: float,
    tune: Tune = tune,
    heads: Sequence[Head] = HEADS,
    most: int | None = None,
    seed: int = 0,
    folder: Path | None = None,
    report: Report | None = None,
) -> OneShot:
    """Release one moment of the numbers and solve its head for low and high: (`epsilon`, `delta`) in all.

    `probabilities(x)[:, 1]` is the mean of the number, brought to [0, 1]. The arguments are those of `one_shot.train`.
    """
    two = cast("LabelVault", TwoSided(vault))
    settings: dict[str, Any] = {"tune": tune, "heads": heads, "folder": folder, "report": report}
    settings |= {"most": most, "seed": seed}
    return one_shot.train(features, two, epsilon=epsilon, delta=delta, **settings)


class TwoSided:
    """A vault of numbers that releases moments as if its labels were two classes, low and high."""

    num_classes = 2

    def __init__(self, vault: ValueVault) -> None:
        self._vault = vault

    def __len__(self) -> int:
        return len(self._vault)

    @property
    def id(self) -> str:
        """Return the vault's."""
        return self._vault.id

    @property
    def place(self) -> str:
        """Return the vault's."""
        return self._vault.place

    @property
    def ledger(self) -> Ledger:
        """Return the vault's."""
        return self._vault.ledger

    @property
    def budget(self) -> Budget | None:
        """Return the vault's."""
        return self._vault.budget

    @property
    def seeded(self) -> bool:
        """Return the vault's."""
        return self._vault.seeded

    def release(self, mechanism: Any, rows: Any = None) -> NoisyMoments:
        """Release the moment of three rounded classes, folded into two."""
        return folded(self._vault.release(self._rounded(mechanism), rows))

    def lease(self, mechanism: Any, times: int, rows: Any = None, *, counter: Any = None) -> Callable[[], NoisyMoments]:
        """Pay for `times` such moments, as `LabelVault.lease` does."""
        lease = self._vault.lease(self._rounded(mechanism), times, rows, counter=counter)
        return lambda: folded(lease())

    def record(self, mechanism: Any, rows: Any = None, **marks: Any) -> None:
        """Pay for one that an earlier vault drew, as `LabelVault.record` does."""
        self._vault.record(self._rounded(mechanism), rows, **marks)

    def _rounded(self, mechanism: Any) -> Rounded[NoisyMoments]:
        if not isinstance(mechanism, Moments):
            raise ValueError(f"{mechanism!r} is not a moment; numbers release moments only")
        sides = Moments(mechanism.chunks, _SIDES, mechanism.noise, mechanism.radius)
        return Rounded(sides, self._vault.num_classes, _SIDES)


def folded(noisy: NoisyMoments) -> NoisyMoments:
    """Return the moment of two sides, (2, d), from that of three, (3, d).

    With S = Σ v·φ = S₂ − S₀ and the public total T the rows are (T − S)/2 and (T + S)/2. S has noise of deviation
    √2·s, as the difference of two classes has: the deviation per entry stays s.

    >>> three = NoisyMoments(np.array([[1.0], [2.0], [4.0]]), np.array([7.0]), 7, "none", 0.0, 1.0)
    >>> folded(three).value.ravel()
    array([2., 5.])
    """
    difference = noisy.value[2] - noisy.value[0]
    return replace(noisy, value=np.stack([noisy.total - difference, noisy.total + difference]) / 2)
