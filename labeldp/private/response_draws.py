"""Drawing the answers of randomized response: from words to members of sets, piece by piece."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.private.discrete import response_thresholds
from labeldp.private.mechanism import LabelArray
from labeldp.private.randomness import SecureRandom
from labeldp.releases import BoolArray

WordArray = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Thresholds:
    """Where a word belongs: gap and width per set size, twice (label outside, label inside the set).

    A uniform answer has gap 0 and width ⌊2^64/k⌋; its few left-over words are replaced by an exact draw.
    """

    honest: bool
    gaps: WordArray
    widths: WordArray

    @classmethod
    def of(cls, epsilon: float, sizes: npt.NDArray[np.int64]) -> Thresholds:
        """The thresholds of every set size that occurs."""
        present = np.flatnonzero(np.bincount(sizes.ravel()))
        gaps = np.zeros(2 * (int(present.max(initial=0)) + 1), dtype=np.uint64)
        widths = np.ones_like(gaps)
        for k in present.tolist():
            uniform = (0, min(2**64 // k, 2**64 - 1))
            inside = None if epsilon == math.inf else response_thresholds(epsilon, k)
            gaps[2 * k], widths[2 * k] = uniform
            gaps[2 * k + 1], widths[2 * k + 1] = inside or uniform
        return cls(epsilon == math.inf, gaps, widths)

    def answer(self, labels: LabelArray, sets: BoolArray | None, rng: SecureRandom) -> npt.NDArray[Any]:
        """One answer per label. Only this function and `_inside` look at the labels."""
        sizes, inside = _inside(labels, sets, (len(self.gaps) - 2) // 2)
        keep, position = self._draw(sizes, inside, len(labels), rng)
        if self.honest:
            keep = np.broadcast_to(inside, labels.shape)
        return np.where(keep, labels, _member(sets, sizes, np.where(keep, 0, position)).astype(labels.dtype))

    def _draw(
        self, sizes: Any, inside: Any, num_rows: int, rng: SecureRandom
    ) -> tuple[BoolArray, npt.NDArray[np.int64]]:
        words = rng.words(num_rows)
        cell = 2 * sizes + inside
        gaps, widths = self.gaps[cell], self.widths[cell]
        keep = words < gaps
        position = ((words - gaps) // widths).view(np.int64)
        spilled = np.flatnonzero(~keep & (position >= sizes))
        if spilled.size:
            position[spilled] = rng.below(np.broadcast_to(sizes, num_rows)[spilled], spilled.size)
        return keep, position


def _inside(labels: LabelArray, sets: BoolArray | None, num_classes: int) -> tuple[Any, Any]:
    """Size of each row's set and whether it holds the label: one number where one serves all rows."""
    if sets is None:
        return num_classes, 1
    if sets.ndim == 1:
        return np.count_nonzero(sets), sets[labels].view(np.uint8)
    return np.count_nonzero(sets, axis=1), sets[np.arange(len(labels)), labels].view(np.uint8)


def _member(sets: BoolArray | None, sizes: Any, position: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The class at this position of each row's set."""
    if sets is None:
        return position
    classes = np.flatnonzero(sets)
    if sets.ndim == 1:
        return classes[position]
    first = np.cumsum(sizes) - sizes
    return classes[first + position] % sets.shape[1]
