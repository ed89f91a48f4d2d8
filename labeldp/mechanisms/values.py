"""Seal real-valued labels and answer queries about them: rounded to a public grid, a value is a class like any other.

Range and grid are declared, never read off the data. Clipping and rounding look at one label at a time and use
nothing else, so that replacing a label still replaces one class, and every mechanism keeps its guarantee.

Randomized response on bins: a public function maps the label to one of k bins; randomized response among them follows:

    P(j | y) = e^ε/(e^ε + k − 1) if j = bin(y), else 1/(e^ε + k − 1).

Proof of ε-privacy. Replacing one label replaces one bin, or none. Randomized response on bins is ε-private under
the replacement of one bin (`responses`), so its responses' odds move by at most e^ε. A function of one label ahead
of a mechanism never costs anything; it is the same as sealing the bins instead of the labels. Which value
stands for a bin is public, so that values are post-processing of bins.

Ghazi, Kamath, Kumar, Leeman, Manurangsi, Varadarajan & Zhang 2023, Regression with Label Differential Privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from labeldp.core.events import Event, PureDP
from labeldp.core.ledger import Budget
from labeldp.core.protocols import LedgerStore
from labeldp.core.random import SecureRandom
from labeldp.core.sealing import refuse_masked
from labeldp.core.vault import LabelArray, LabelVault, Mechanism
from labeldp.mechanisms.common import checked_epsilon, checked_integer, described, pieces, same_classes
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.releases import BoolArray, FloatArray, IntArray, NoisyLabels

_MOST_LEVELS = 1 << 16
_ROUNDED_AT_ONCE = 1 << 18
Out = TypeVar("Out")

_KINDS = {"U": "text", "S": "bytes", "M": "dates", "m": "durations", "c": "complex numbers"}


@dataclass(frozen=True)
class Grid:
    """Space `levels` values equally from `low` to `high`; a single level is the middle of the range.

    >>> Grid(0.0, 1.0, levels=5).values()
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """

    low: float
    high: float
    levels: int = 256

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
                raise ValueError(f"{name} is {value!r}; declare the range of the labels with two finite numbers")
            object.__setattr__(self, name, float(value))
        object.__setattr__(self, "levels", checked_integer("levels", self.levels, 1, _MOST_LEVELS))
        if not self.low < self.high:
            raise ValueError(f"low is {self.low!r} and high is {self.high!r}; declare a range with low < high")
        if not math.isfinite(self.high - self.low) or not (np.diff(self.values()) > 0).all():
            raise ValueError(
                f"{self.levels} levels from {self.low!r} to {self.high!r} cannot be told apart as floats; "
                "rescale the labels or take fewer levels"
            )

    def values(self) -> FloatArray:
        """Return the value of every level, (levels,)."""
        if self.levels == 1:
            return np.array([self.low + (self.high - self.low) / 2])
        return np.linspace(self.low, self.high, self.levels)

    def nearest(self, numbers: FloatArray) -> npt.NDArray[np.int64]:
        """Return the level nearest to every number, those outside the range first clipped to it; halfway goes up."""
        share = (np.clip(numbers, self.low, self.high) - self.low) / (self.high - self.low)
        return np.floor(share * (self.levels - 1) + 0.5).astype(np.int64)


class ValueVault(LabelVault):
    """Keep real-valued labels in a vault: class c stands for `grid.values()[c]`. Made by `seal_values`."""

    def __init__(
        self,
        values: npt.ArrayLike,
        grid: Grid,
        budget: Budget | None = None,
        *,
        store: LedgerStore | None = None,
        rng: SecureRandom | None = None,
    ) -> None:
        super().__init__(grid.nearest(_sealed_numbers(values)), grid.levels, budget, store=store, rng=rng)
        self.grid = grid

    def __repr__(self) -> str:
        return f"ValueVault({len(self)} labels, {self.grid}, budget={self.budget})"


def seal_values(
    values: npt.ArrayLike,
    low: float,
    high: float,
    *,
    levels: int = 256,
    budget: Budget | None = None,
    store: LedgerStore | None = None,
    rng: SecureRandom | None = None,
) -> ValueVault:
    """Put real-valued labels into a vault, clipped to [low, high] and rounded to `levels` equally spaced values.

    The range must come from what is known of the quantity (an age, a price cap), not from min and max of the
    labels: those would be the labels of two rows. How many labels were clipped is private and not told; missing
    ones are an error that gives their number.

    >>> vault = seal_values([0.2, 3.9, 250.0], low=0.0, high=10.0, levels=101)
    >>> vault
    ValueVault(3 labels, Grid(low=0.0, high=10.0, levels=101), budget=None)
    """
    return ValueVault(values, Grid(low, high, levels), budget, store=store, rng=rng)


def _sealed_numbers(values: npt.ArrayLike) -> FloatArray:
    """Return the labels as finite float64, or raise ValueError with counts only."""
    refuse_masked(values)
    raw = np.asarray(values)
    if raw.ndim != 1:
        raise ValueError(f"values have shape {raw.shape}; give one label per row, shape (n,)")
    if raw.dtype.kind not in "biufO":
        raise ValueError(f"values are {_KINDS.get(raw.dtype.kind, 'not numbers')}; give one number per row")
    with np.errstate(over="ignore"):
        numbers = np.array([_number(value) for value in raw] if raw.dtype.kind == "O" else raw, dtype=np.float64)
    unusable = int(np.count_nonzero(~np.isfinite(numbers)))
    if unusable:
        raise ValueError(
            f"values cannot be sealed: of {raw.size}, {unusable} are missing, infinite or not numbers. Which ones is "
            "not shown because it is private; drop or fill them by a rule fixed in advance"
        )
    return numbers


def _number(value: object) -> float:
    """Return a float, or NaN for whatever is none: float() must not speak for itself here, it quotes the value."""
    if not isinstance(value, (Real, Decimal)):
        return math.nan
    try:
        return float(value)
    except (OverflowError, ValueError):
        return math.nan


# -- randomized response on bins, and any mechanism about bins or rounded levels ----------------------------


@dataclass(frozen=True, eq=False)
class NoisyValues(NoisyLabels):
    """Hold one private bin per row, the value that stands for each bin, and the channel over the levels of the grid.

    `levels` are the values the labels could have, (m,), and `prior` is the public or privately estimated
    distribution that the bins were made for, (m,), if there was one.
    """

    outputs: FloatArray
    levels: FloatArray | None = None
    prior: FloatArray | None = None

    def values(self) -> FloatArray:
        """Return the value of the answered bin, (n,)."""
        return self.outputs[self.responses]

    def hard(self) -> npt.NDArray[np.int64]:
        """Return the lowest level of the answered bin, (n,)."""
        bins = NoisyLabels(self.channel, np.arange(len(self.outputs)))
        return bins.log_likelihood().argmax(axis=1)[self.responses]

    def take(self, rows: npt.ArrayLike) -> NoisyValues:
        """Return the responses of these rows (indices or a mask), in this order."""
        index = np.arange(len(self))[np.asarray(rows)]
        return NoisyValues(self.channel.take(index), self.responses[index], self.outputs, self.levels, self.prior)


@dataclass(frozen=True, eq=False, init=False)
class BinnedResponse:
    """Answer the label's bin with probability e^ε/(e^ε + k − 1), else one of the others, all alike.

    `bins` gives the bin of every level, (levels,): 0, …, 0, 1, …, k − 1. `outputs`, (k,), is the value that stands for
    each bin; the bin's own number when None. Both are public. `learning.bins.optimal_bins` makes the best ones.

    >>> channel = BinnedResponse(1.0, bins=[0, 0, 0, 1, 1], outputs=[2.5, 40.0])
    >>> channel.probabilities(4).round(3)
    array([[0.269, 0.731, 0.   , 0.   , 0.   ]])
    >>> release = channel.sample(np.array([0, 4, 2], dtype=np.uint8), SecureRandom(seed=4))
    >>> release.responses, release.values()
    (array([0, 1, 0], dtype=uint8), array([ 2.5, 40. ,  2.5]))
    """

    epsilon: float
    bins: npt.NDArray[np.unsignedinteger[Any]] = field(repr=False)
    outputs: FloatArray

    def __init__(self, epsilon: float, bins: npt.ArrayLike, outputs: npt.ArrayLike | None = None) -> None:
        object.__setattr__(self, "epsilon", checked_epsilon(epsilon))
        object.__setattr__(self, "bins", _checked_bins(bins))
        values = np.arange(self.num_bins) if outputs is None else outputs
        checked = np.array(values, dtype=np.float64)
        if checked.shape != (self.num_bins,) or not np.isfinite(checked).all():
            raise ValueError(
                f"outputs has shape {checked.shape}; give one finite number for each of {self.num_bins} bins"
            )
        checked.setflags(write=False)
        object.__setattr__(self, "outputs", checked)

    @property
    def num_classes(self) -> int:
        """Return the number of levels a label can have."""
        return len(self.bins)

    @property
    def num_bins(self) -> int:
        """Return the number k of responses."""
        return int(self.bins[-1]) + 1

    @property
    def _response(self) -> RandomizedResponse:
        return RandomizedResponse(self.epsilon, self.num_bins)

    # -- mechanism ------------------------------------------------------------------------------------------

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless there is a bin for every level of the data."""
        same_classes(self.num_classes, num_classes)

    def event(self) -> Event:
        """Return ε-privacy with δ = 0."""
        return PureDP(self.epsilon)

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> NoisyValues:
        """Draw one bin per label."""
        return NoisyValues(self, self._response.sample(self.bins[labels], rng).responses, self.outputs)

    # -- channel ------------------------------------------------------------------------------------------------

    def probabilities(self, label: int, row: int = 0) -> FloatArray:
        """Return P(response | level), (1, levels): zero beyond the last bin."""
        chances = np.zeros((1, self.num_classes))
        chances[:, : self.num_bins] = self._response.probabilities(int(self.bins[label]))
        return chances

    def log_likelihood(self, responses: IntArray) -> FloatArray:
        """Return log P(response | level), (n, levels), alike for all levels of a bin; −∞ for a response beyond them."""
        possible = responses < self.num_bins
        result = np.full((len(responses), self.num_classes), -np.inf)
        result[possible] = self._response.log_likelihood(responses[possible])[:, self.bins]
        return result

    def unbiased(self, responses: IntArray) -> FloatArray:
        """Return an estimate with the mean 1/|bin| on the levels of the label's bin and 0 elsewhere, (n, levels).

        Levels of one bin have the same channel, so that no estimate can tell them apart.
        """
        sizes = np.bincount(self.bins, minlength=self.num_bins)
        return (self._response.unbiased(responses) / sizes)[:, self.bins]

    def informative(self, num_rows: int) -> BoolArray:
        """Return all rows, or none where ε = 0 or there is one bin, (n,)."""
        return self._response.informative(num_rows)

    def take(self, rows: IntArray) -> Self:
        """Return the same channel: it is one for all rows."""
        return self

    def describe(self) -> Mapping[str, Any]:
        """Return the public parameters: the first level and the output of every bin."""
        starts = np.searchsorted(self.bins, np.arange(self.num_bins))
        shown = described("binned-response", self.epsilon, self.num_classes)
        return {**shown, "starts": starts.tolist(), "outputs": self.outputs.tolist()}


@dataclass(frozen=True, eq=False, init=False)
class Binned(Generic[Out]):
    """Ask any mechanism about the bins of the labels: the same cost, fewer classes.

    >>> from labeldp.mechanisms.counts import GroupCounts, LaplaceNoise
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
        """Return what the mechanism costs: replacing a label replaces one bin or none."""
        return self.mechanism.event()

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> Out:
        """Draw the mechanism's response about the bins."""
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


@dataclass(frozen=True)
class Rounded(Generic[Out]):
    """Round each level 0 … m − 1 at random to one of k classes, unbiased, and ask `inner` about the classes: its price.

        level l sits at l·(k − 1)/(m − 1) = q + r/(m − 1);   class q + 1 with probability r/(m − 1), else q

    so that the class, taken as a number, has the level's place as its mean. Coins are exact: r of m − 1 integers.

    Proof. Fix all coins. Then the classes are a function of the levels, row by row: replacing one level replaces one
    class, or none, and `inner` keeps its promise about that. The coins do not depend on the levels, and a mixture, with
    the same weights, of pairs that keep a promise keeps it too (the curves δ(ε) are convex in the pair of channels).

    Args:
        inner: a mechanism about k classes.
        num_classes: m, the levels of the vault; `classes` is k.

    >>> from labeldp.mechanisms.counts import GroupCounts, LaplaceNoise
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
        """Return the inner mechanism's."""
        return self.inner.event()

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> Out:
        """Round, then ask."""
        rounded = np.empty(len(labels), dtype=np.min_scalar_type(self.classes - 1))
        for part in pieces(len(labels), _ROUNDED_AT_ONCE):
            below, rest = np.divmod(labels[part].astype(np.int64) * (self.classes - 1), self.num_classes - 1)
            rounded[part] = below + (rng.below(self.num_classes - 1, len(rest)).astype(np.int64) < rest)
        rounded.setflags(write=False)
        return self.inner.sample(rounded, rng)
