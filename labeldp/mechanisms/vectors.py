"""Answer labels by vectors: the one-hot label with independent noise on every coordinate, on the grid 0 … L.

A coordinate with bit b holds b·L plus noise, clipped to [0, L]. Its channel has one parameter, a = ε/(2L):
P(v | b = 1)/P(v | b = 0) = e^{a(2v − L)}. Two labels differ in two coordinates, so that

    log P(response | class c) − log P(response | class d) = 2a·(v_c − v_d),   at most 2aL = ε in size.

That is the proof of ε-privacy, with δ = 0. One class is a constant and says nothing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from labeldp.core.events import Event, PureDP
from labeldp.core.random import SMALLEST_RATE, SecureRandom
from labeldp.core.vault import LabelArray
from labeldp.mechanisms.common import (
    checked_classes,
    checked_epsilon,
    checked_integer,
    described,
    pieces,
    response_thresholds,
    same_classes,
)
from labeldp.releases import BoolArray, FloatArray, IntArray, NoisyLabels

_CELLS_AT_ONCE = 1 << 16


@dataclass(frozen=True, init=False)
class VectorResponse(ABC):
    """Share what the two vector responses have in common: all but the way to draw the noise."""

    epsilon: float
    num_classes: int
    levels: int

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Return the public parameters as plain JSON values."""

    @abstractmethod
    def _response(self, labels: LabelArray, rng: SecureRandom) -> npt.NDArray[Any]:
        """Draw (m, K) responses to m labels."""

    def _set(self, epsilon: Any, num_classes: Any, levels: Any) -> None:
        object.__setattr__(self, "epsilon", checked_epsilon(epsilon))
        object.__setattr__(self, "num_classes", checked_classes(num_classes))
        object.__setattr__(self, "levels", checked_integer("levels", levels, 1, 65535))

    @property
    def _rate(self) -> Fraction | float:
        # A rate that no sampler can tell from 0 is 0, for the sampler and for the channel: only more private.
        if self.epsilon == math.inf:
            return math.inf
        exact = Fraction(self.epsilon) / (2 * self.levels)
        return exact if exact >= SMALLEST_RATE else 0.0

    # -- mechanism ------------------------------------------------------------------------------------------

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless the number of classes is that of the data."""
        same_classes(self.num_classes, num_classes)

    def event(self) -> Event:
        """Return ε-privacy with δ = 0."""
        return PureDP(self.epsilon)

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> NoisyLabels:
        """Draw one vector per label, (n, K)."""
        kind = np.uint8 if self.levels < 256 else np.uint16
        responses = np.empty((len(labels), self.num_classes), dtype=kind)
        for rows in pieces(len(labels), max(1, _CELLS_AT_ONCE // self.num_classes)):
            responses[rows] = self._response(labels[rows], rng.at(rows))
        return NoisyLabels(self, responses)

    # -- channel ------------------------------------------------------------------------------------------------

    def probabilities(self, label: int, row: int = 0) -> FloatArray:
        """Return P(value | label) of every coordinate, (K, L + 1)."""
        zero = np.exp(self._log_zero())
        chances = np.tile(zero, (self.num_classes, 1))
        chances[label] = zero[::-1]
        return chances

    def log_likelihood(self, responses: IntArray) -> FloatArray:
        """Return log P(response | class), (n, K)."""
        if self.epsilon == math.inf:
            with np.errstate(divide="ignore"):
                return np.log((responses == self.levels).astype(np.float64))
        common = self._log_zero()[responses].sum(axis=1, keepdims=True)
        return common + float(self._rate) * (2.0 * responses.astype(np.float64) - self.levels)

    def unbiased(self, responses: IntArray) -> FloatArray:
        """Return (v − E[v | 0])/(E[v | 1] − E[v | 0]) in every coordinate, (n, K): its mean is onehot(label)."""
        if not self._says_something():
            return np.zeros(responses.shape)
        # E[v | 1] − E[v | 0]. Pairing v with L − v leaves only positive terms: nothing cancels.
        lead = np.arange(self.levels, 0, -2)
        one = np.exp(self._log_zero()[: len(lead)])
        spread = float(np.sum(lead * one * -np.expm1(-float(self._rate) * lead)))
        return (responses.astype(np.float64) - (self.levels - spread) / 2.0) / spread

    def informative(self, num_rows: int) -> BoolArray:
        """Return all rows, or none where ε = 0 or there is one class, (n,)."""
        return np.full(num_rows, self._says_something())

    def take(self, rows: IntArray) -> Self:
        """Return the same channel: it is one for all rows."""
        return self

    def _says_something(self) -> bool:
        return self.num_classes > 1 and self._rate > 0

    def _log_zero(self) -> FloatArray:
        """Return log P(v | b = 0), (L + 1,); with b = 1 it is the same read backwards.

        Discrete Laplace noise X has P(X = v) = tanh(a/2)·e^{-a|v|}. Clipping collects
        P(X ≤ 0) = 1/(1 + e^{-a}) at 0 and P(X ≥ L) = e^{-aL}/(1 + e^{-a}) at L.
        """
        rate, value = float(self._rate), np.arange(self.levels + 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.log(np.tanh(rate / 2.0)) - rate * value
        end = -math.log1p(math.exp(-rate))
        log[0], log[-1] = end, end - rate * self.levels
        return log


class LaplaceOneHot(VectorResponse):
    """Answer by the one-hot label plus discrete Laplace noise on a grid: ALIBI (Malek et al. 2021) in whole numbers.

    v = clip(L·onehot(y) + X, 0, L), P(X = x) ∝ e^{-a|x|}, a = ε/(2L), L = `levels`.

    Clipping loses nothing. Unclipped, the ratio of the channels is e^{a(|o| − |o − L|)} = e^{a(2·clip(o, 0, L) − L)};
    it depends on o through clip(o) alone, which is therefore sufficient (Fisher–Neyman). The noise is exact
    on the integers, where floating-point Laplace noise can be undone (Mironov 2012).

    >>> channel = LaplaceOneHot(epsilon=2.0, num_classes=3, levels=4)
    >>> channel.probabilities(1).round(3)
    array([[0.562, 0.097, 0.075, 0.059, 0.207],
           [0.207, 0.059, 0.075, 0.097, 0.562],
           [0.562, 0.097, 0.075, 0.059, 0.207]])
    """

    def __init__(self, epsilon: float, num_classes: int, levels: int = 256) -> None:
        self._set(epsilon, num_classes, levels)

    def describe(self) -> Mapping[str, Any]:
        """Return the public parameters."""
        return {**described("laplace-one-hot", self.epsilon, self.num_classes), "levels": self.levels}

    def _response(self, labels: LabelArray, rng: SecureRandom) -> npt.NDArray[Any]:
        cells, own = len(labels) * self.num_classes, rng.split(self.num_classes)
        if self._rate > 0:
            noise = own.discrete_laplace(self._rate, cells)
        else:
            # Noise without end, clipped: a fair coin between 0 and L, which the label cannot move.
            noise = np.where(own.below(2, cells) == 1, 2 * self.levels, -2 * self.levels)
        responses = noise.reshape(len(labels), self.num_classes)
        responses[np.arange(len(labels)), labels] += self.levels
        return np.clip(responses, 0, self.levels)


class BitFlip(VectorResponse):
    """Answer by the one-hot label, each bit flipped with probability 1/(1 + e^{ε/2}) on its own.

    Symmetric unary encoding (Erlingsson, Pihur & Korolova 2014, RAPPOR). Its channel is that of `LaplaceOneHot`
    with one level. A bit flips when a 64-bit word is below B of `response_thresholds(ε/2, 2)`, so that the
    odds of one bit are at most e^{ε/2} as integers.

    >>> BitFlip(epsilon=2.0, num_classes=3).probabilities(0).round(4)
    array([[0.2689, 0.7311],
           [0.7311, 0.2689],
           [0.7311, 0.2689]])
    """

    def __init__(self, epsilon: float, num_classes: int) -> None:
        self._set(epsilon, num_classes, 1)

    def describe(self) -> Mapping[str, Any]:
        """Return the public parameters."""
        return described("bit-flip", self.epsilon, self.num_classes)

    def _response(self, labels: LabelArray, rng: SecureRandom) -> npt.NDArray[Any]:
        words = rng.words(len(labels) * self.num_classes).reshape(len(labels), self.num_classes)
        bits = words < self._flips()
        bits[np.arange(len(labels)), labels] ^= True
        return bits

    def _flips(self) -> np.uint64:
        """Return how many of 2^64 words flip a bit."""
        if self._rate == math.inf:
            return np.uint64(0)
        thresholds = response_thresholds(float(self._rate), 2)
        return np.uint64(2**63 if thresholds is None else thresholds[1])
