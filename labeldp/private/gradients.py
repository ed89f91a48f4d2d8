"""Noisy gradient sums: one step of DP-SGD, with the batch drawn in secret by the vault or named by the caller."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from labeldp.accounting.events import Event, Gaussian, PoissonGaussian
from labeldp.models.per_example import Inputs, Loss, clipped_sum, cross_entropy, parameter_vector, refuse_batch_norm
from labeldp.private.mechanism import LabelArray
from labeldp.private.randomness import SecureRandom
from labeldp.releases import NoisyGradient

_SMALLEST_CLIP, _LARGEST_CLIP = 1e-10, 1e10


@dataclass(frozen=True)
class NormBound:
    """Clip each row's gradient to norm C: g ↦ g · min(1, C/|g|) (Abadi et al. 2016). R = C, D = 2C.

    Proof. |v| ≤ C by construction; two such vectors are at most 2C apart.

    >>> NormBound(0.5).diameter
    1.0
    """

    clip: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", _checked_length("clip", self.clip))

    @property
    def radius(self) -> float:
        """Largest norm of a row's contribution, C."""
        return self.clip

    @property
    def diameter(self) -> float:
        """Furthest a contribution moves when its label is replaced, 2C."""
        return 2 * self.clip


@dataclass(frozen=True, eq=False)
class GradientSum:
    """(Σ_{i ∈ batch} v_i + N(0, s²I)) / (q·n), v_i the bounded gradient of row i at the model's current weights.

    DP-SGD's step (Abadi et al. 2016) under label replacement. With `rate` q < 1 the vault draws the batch, each row
    on its own with probability at most q, and shows it to nobody. With q = 1 all rows given take part: a batch that
    the caller names is `vault.lease(GradientSum(model, inputs[batch], ...), times, rows=batch)`.

    `noise_std` s is per coordinate of the sum. `loss` maps (logits (b, K), labels (b,)) to losses (b,); it is called
    with true labels and must keep nothing.
    `chunk` (rows at once) and `precision` (say torch.bfloat16, of the forward pass) are about speed and cannot change
    the guarantee.
    """

    model: nn.Module = field(repr=False)
    inputs: Inputs = field(repr=False)
    bound: NormBound
    noise_std: float
    rate: float = 1.0
    loss: Loss = field(default=cross_entropy, repr=False)
    num_classes: int | None = None
    chunk: int | None = None
    precision: torch.dtype | None = None

    def event(self) -> Event:
        """What one step costs."""
        if self.rate == 1.0:
            return Gaussian(self.noise_std, self.bound.diameter)
        return PoissonGaussian(self.noise_std, self.bound.radius, self.bound.diameter, self.rate)

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless there is a row of inputs for every label and every row has its own gradient."""
        if num_rows == 0 or self.num_rows != num_rows:
            raise ValueError(
                f"inputs has {self.num_rows} rows, the data {num_rows}; give one row per label, at least 1"
            )
        refuse_batch_norm(self.model)

    @property
    def num_rows(self) -> int:
        """How many rows there are to draw from, n."""
        return len(_columns(self.inputs)[0])

    @property
    def expected_batch(self) -> float:
        """q·n: what the sum is divided by, whatever the batch."""
        return self.rate * self.num_rows

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> NoisyGradient:
        """Draw the batch, add up its bounded gradients, add the noise."""
        rows = poisson_batch(self.num_rows, self.rate, rng)
        with self._precision():
            total = self._total(labels, rows)
        noise = _tensor(rng.gaussian(total.numel(), self.noise_std)).to(total.device)
        value = ((total.double() + noise) / self.expected_batch).to(torch.float32)
        return NoisyGradient(value, self.noise_std / self.expected_batch, self.expected_batch)

    def _total(self, labels: LabelArray, rows: npt.NDArray[np.intp] | None) -> Tensor:
        device = parameter_vector(self.model).device
        chosen = labels if rows is None else labels[rows]
        answers = _tensor(chosen.astype(np.int64)).to(device)
        columns = _columns(self.inputs)
        if rows is not None:
            index = _tensor(rows)
            columns = tuple(column[index.to(column.device)] for column in columns)
        batch = tuple(column.to(device) for column in columns)
        return clipped_sum(self.model, self.loss, batch, answers, clip=self.bound.clip, chunk=self.chunk)

    def _precision(self) -> AbstractContextManager[Any]:
        if self.precision is None:
            return nullcontext()
        return torch.autocast(parameter_vector(self.model).device.type, dtype=self.precision)


def _tensor(array: npt.NDArray[Any]) -> Tensor:
    return torch.as_tensor(array)


def poisson_batch(num_rows: int, rate: float, rng: SecureRandom) -> npt.NDArray[np.intp] | None:
    """Rows drawn each on its own with probability ⌊q·2^64⌋/2^64 ≤ q, or None for all rows when q = 1."""
    if rate == 1.0:
        return None
    threshold = math.floor(Fraction(rate) * 2**64)
    return np.flatnonzero(rng.words(num_rows) < np.uint64(threshold))


def _columns(inputs: Inputs) -> tuple[Tensor, ...]:
    return inputs if isinstance(inputs, tuple) else (inputs,)


def _checked_length(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not _SMALLEST_CLIP <= float(value) <= _LARGEST_CLIP:
        raise ValueError(f"{name} is {value!r}; give a number from {_SMALLEST_CLIP:g} to {_LARGEST_CLIP:g}")
    return float(value)
