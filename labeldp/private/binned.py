"""Randomized response on bins: private answers for real-valued labels.

A public function maps the label to one of k bins; randomized response among the k bins follows:

    P(j | y) = e^ε/(e^ε + k − 1) if j = bin(y), else 1/(e^ε + k − 1).

Proof of ε-privacy. Replacing one label replaces one bin, or none. Randomized response on bins is ε-private under
the replacement of one bin (`responses`), so its answers' odds move by at most e^ε. A function of one label ahead
of a mechanism never costs anything; it is the same as sealing the bins instead of the labels. Which value
stands for a bin is public, so that values are post-processing of bins.

Ghazi, Kamath, Kumar, Leeman, Manurangsi, Varadarajan & Zhang 2023, Regression with Label Differential Privacy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from labeldp.accounting.events import Event, PureDP
from labeldp.private.mechanism import LabelArray, Mechanism
from labeldp.private.randomness import SecureRandom
from labeldp.private.responses import RandomizedResponse
from labeldp.private.shared import checked_epsilon, described, same_classes
from labeldp.releases import BoolArray, FloatArray, IntArray, NoisyLabels

Out = TypeVar("Out")


@dataclass(frozen=True, eq=False)
class NoisyValues(NoisyLabels):
    """One private bin per row, the value that stands for each bin, and the law over the levels of the grid.

    `levels` are the values the labels could have, (m,), and `prior` is the public or privately estimated
    distribution that the bins were made for, (m,), if there was one.
    """

    outputs: FloatArray
    levels: FloatArray | None = None
    prior: FloatArray | None = None

    def values(self) -> FloatArray:
        """The value of the answered bin, (n,)."""
        return self.outputs[self.answers]

    def hard(self) -> npt.NDArray[np.int64]:
        """The lowest level of the answered bin, (n,)."""
        bins = NoisyLabels(self.law, np.arange(len(self.outputs)))
        return bins.log_likelihood().argmax(axis=1)[self.answers]

    def take(self, rows: npt.ArrayLike) -> NoisyValues:
        """The answers of these rows (indices or a mask), in this order."""
        index = np.arange(len(self))[np.asarray(rows)]
        return NoisyValues(self.law.take(index), self.answers[index], self.outputs, self.levels, self.prior)


@dataclass(frozen=True, eq=False, init=False)
class BinnedResponse:
    """The label's bin with probability e^ε/(e^ε + k − 1), else one of the others, all alike.

    `bins` gives the bin of every level, (levels,): 0, …, 0, 1, …, k − 1. `outputs`, (k,), is the value each bin
    answers; the bin's own number when None. Both are public. `learning.bins.optimal_bins` makes the best ones.

    >>> law = BinnedResponse(1.0, bins=[0, 0, 0, 1, 1], outputs=[2.5, 40.0])
    >>> law.probabilities(4).round(3)
    array([[0.269, 0.731, 0.   , 0.   , 0.   ]])
    >>> release = law.sample(np.array([0, 4, 2], dtype=np.uint8), SecureRandom(seed=4))
    >>> release.answers, release.values()
    (array([0, 1, 0], dtype=uint8), array([ 2.5, 40. ,  2.5]))
    """

    epsilon: float
    bins: npt.NDArray[np.unsignedinteger[Any]] = field(repr=False)
    outputs: FloatArray

    def __init__(self, epsilon: float, bins: npt.ArrayLike, outputs: npt.ArrayLike | None = None) -> None:
        object.__setattr__(self, "epsilon", checked_epsilon(epsilon))
        object.__setattr__(self, "bins", _checked_bins(bins))
        object.__setattr__(self, "outputs", _checked_outputs(outputs, self.num_bins))

    @property
    def num_classes(self) -> int:
        """The number of levels a label can have."""
        return len(self.bins)

    @property
    def num_bins(self) -> int:
        """The number k of answers."""
        return int(self.bins[-1]) + 1

    @property
    def _response(self) -> RandomizedResponse:
        return RandomizedResponse(self.epsilon, self.num_bins)

    # -- mechanism ------------------------------------------------------------------------------------------

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless there is a bin for every level of the data."""
        same_classes(self.num_classes, num_classes)

    def event(self) -> Event:
        """ε-privacy with δ = 0."""
        return PureDP(self.epsilon)

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> NoisyValues:
        """One bin per label."""
        return NoisyValues(self, self._response.sample(self.bins[labels], rng).answers, self.outputs)

    # -- law ------------------------------------------------------------------------------------------------

    def probabilities(self, label: int, row: int = 0) -> FloatArray:
        """P(answer | level), (1, levels): zero beyond the last bin."""
        chances = np.zeros((1, self.num_classes))
        chances[:, : self.num_bins] = self._response.probabilities(int(self.bins[label]))
        return chances

    def log_likelihood(self, answers: IntArray) -> FloatArray:
        """log P(answer | level), (n, levels): the same for all levels of a bin, −∞ for an answer beyond the bins."""
        possible = answers < self.num_bins
        result = np.full((len(answers), self.num_classes), -np.inf)
        result[possible] = self._response.log_likelihood(answers[possible])[:, self.bins]
        return result

    def unbiased(self, answers: IntArray) -> FloatArray:
        """An estimate with the mean 1/|bin| on the levels of the label's bin and 0 elsewhere, (n, levels).

        Levels of one bin have the same law, so that no estimate can tell them apart.
        """
        sizes = np.bincount(self.bins, minlength=self.num_bins)
        return (self._response.unbiased(answers) / sizes)[:, self.bins]

    def informative(self, num_rows: int) -> BoolArray:
        """All rows, or none where ε = 0 or there is one bin, (n,)."""
        return self._response.informative(num_rows)

    def take(self, rows: IntArray) -> Self:
        """The same law: it is one for all rows."""
        return self

    def describe(self) -> Mapping[str, Any]:
        """The public parameters: the first level and the output of every bin."""
        starts = np.searchsorted(self.bins, np.arange(self.num_bins))
        shown = described("binned-response", self.epsilon, self.num_classes)
        return {**shown, "starts": starts.tolist(), "outputs": self.outputs.tolist()}


@dataclass(frozen=True, eq=False, init=False)
class Binned(Generic[Out]):
    """Any mechanism, asked about the bins of the labels: the same cost, fewer classes.

    >>> from labeldp.private.counts import GroupCounts, LaplaceNoise
    >>> counts = GroupCounts([0, 0, 0], num_groups=1, num_classes=2, noise=LaplaceNoise(float("inf")))
    >>> Binned([0, 0, 1], counts).sample(np.array([0, 1, 2], dtype=np.uint8), SecureRandom()).counts
    array([[2, 1]])
    """

    bins: npt.NDArray[np.unsignedinteger[Any]] = field(repr=False)
    mechanism: Mechanism[Out]

    def __init__(self, bins: npt.ArrayLike, mechanism: Mechanism[Out]) -> None:
        object.__setattr__(self, "bins", _checked_bins(bins))
        object.__setattr__(self, "mechanism", mechanism)

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless there is a bin for every level, and the mechanism fits the bins."""
        same_classes(len(self.bins), num_classes)
        self.mechanism.fits(num_rows, int(self.bins[-1]) + 1)

    def event(self) -> Event:
        """What the mechanism costs: replacing a label replaces one bin or none."""
        return self.mechanism.event()

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> Out:
        """The mechanism's answer about the bins."""
        return self.mechanism.sample(self.bins[labels], rng)


def _checked_bins(bins: npt.ArrayLike) -> npt.NDArray[np.unsignedinteger[Any]]:
    given: npt.NDArray[Any] = np.asarray(bins)
    if given.ndim != 1 or not given.size or given.dtype.kind not in "iu":
        raise ValueError(f"bins has type {given.dtype} and shape {given.shape}; give the bin number of every level")
    steps = np.diff(given.astype(np.int64), prepend=0)
    if steps.min() < 0 or steps.max() > 1 or given[0] != 0:
        raise ValueError("bins must start at 0 and rise by 0 or 1 from level to level, every bin an interval")
    checked = given.astype(np.min_scalar_type(int(given[-1])))
    checked.setflags(write=False)
    return checked


def _checked_outputs(outputs: npt.ArrayLike | None, num_bins: int) -> FloatArray:
    checked = np.arange(num_bins, dtype=np.float64) if outputs is None else np.array(outputs, dtype=np.float64)
    if checked.shape != (num_bins,) or not np.isfinite(checked).all():
        raise ValueError(f"outputs has shape {checked.shape}; give one finite number for each of {num_bins} bins")
    checked.setflags(write=False)
    return checked
