"""Numbers rounded at random to a few classes, without bias, in front of any mechanism for classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from labeldp.accounting.events import Event
from labeldp.private.mechanism import LabelArray, Mechanism
from labeldp.private.randomness import SecureRandom
from labeldp.private.shared import checked_integer, pieces, same_classes

Out = TypeVar("Out")

_ROWS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Rounded(Generic[Out]):
    """Each level 0 … m − 1 becomes one of k classes, unbiased, and `inner` is asked about the classes: its price.

        level l sits at l·(k − 1)/(m − 1) = q + r/(m − 1);   class q + 1 with probability r/(m − 1), else q

    so that the class, taken as a number, has the level's place as its mean. Coins are exact: r of m − 1 integers.

    Proof. Fix all coins. Then the classes are a function of the levels, row by row: replacing one level replaces one
    class, or none, and `inner` keeps its promise about that. The coins do not depend on the levels, and a mixture, with
    the same weights, of pairs that keep a promise keeps it too (the curves δ(ε) are convex in the pair of laws).

    Args:
        inner: a mechanism about k classes.
        num_classes: m, the levels of the vault; `classes` is k.

    >>> from labeldp.private.counts import GroupCounts, LaplaceNoise
    >>> ask = Rounded(GroupCounts([0, 0, 0], 1, 2, LaplaceNoise(float("inf"))), num_classes=5, classes=2)
    >>> ask.sample(np.array([0, 4, 4], dtype=np.uint8), SecureRandom()).counts
    array([[1, 2]])
    """

    inner: Mechanism[Out]
    num_classes: int
    classes: int

    def __post_init__(self) -> None:
        checked_integer("num_classes", self.num_classes, 2, 1 << 16)
        checked_integer("classes", self.classes, 2, 1 << 16)

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless the levels are those of the data and the inner mechanism fits the classes."""
        same_classes(self.num_classes, num_classes)
        self.inner.fits(num_rows, self.classes)

    def event(self) -> Event:
        """The inner mechanism's."""
        return self.inner.event()

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> Out:
        """Round, then ask."""
        rounded = np.empty(len(labels), dtype=np.min_scalar_type(self.classes - 1))
        for part in pieces(len(labels), _ROWS_AT_ONCE):
            below, rest = np.divmod(labels[part].astype(np.int64) * (self.classes - 1), self.num_classes - 1)
            rounded[part] = below + (rng.below(self.num_classes - 1, len(rest)).astype(np.int64) < rest)
        rounded.setflags(write=False)
        return self.inner.sample(rounded, rng)
