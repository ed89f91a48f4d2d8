"""Release noisy gradient sums: one step of DP-SGD, its batch drawn in secret by the vault or named by the caller."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Real
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from labeldp.core.events import Event, Gaussian, PoissonGaussian
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelArray
from labeldp.mechanisms.common import checked_classes, checked_integer, same_classes
from labeldp.mechanisms.gradients.layers import Loss, cross_entropy, own_generator
from labeldp.mechanisms.gradients.noise import grid_step, rounded_on, with_noise
from labeldp.mechanisms.gradients.per_example import (
    SMALLEST,
    Inputs,
    bounded_sum,
    columns_of,
    device_of,
    gradients,
    kind_of,
    norm_factors,
    num_parameters,
    refuse_batch_norm,
    refusing_state,
)
from labeldp.mechanisms.gradients.replay import ReplayedSum
from labeldp.mechanisms.gradients.terms import summation_error
from labeldp.releases import NoisyGradient

# -- bounds on what one row can add --------------------------------------------------------------------------


_SHORTEST, _LONGEST = 1e-10, 1e10


@dataclass(frozen=True)
class NormBound:
    """Clip each row's gradient to norm C: g ↦ g · min(1, C/|g|) (Abadi et al. 2016). R = C, D = 2C.

    Proof. |v| ≤ C by construction; two such vectors are at most 2C apart.

    >>> NormBound(0.5).diameter
    1.0
    """

    clip: float
    # The gradient under the row's own label is enough.
    needs_candidates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", _checked_length("clip", self.clip))

    @property
    def radius(self) -> float:
        """Return the largest norm of a row's contribution, C."""
        return self.clip

    @property
    def diameter(self) -> float:
        """Return how far a contribution moves at most when its label is replaced, 2C."""
        return 2 * self.clip

    def factors(self, gram: Tensor, errors: Tensor) -> Tensor:
        """Return min(1, C/|g|), from the squared norm (b, 1, 1) and what rounding may change in it (b, 1)."""
        return norm_factors(self.clip, gram, errors)


@dataclass(frozen=True)
class DiameterBound:
    """Clip the gradient under *every* label to norm C, then scale so that they are at most D apart. R = C.

    h_k = g_k · min(1, C/|g_k|), v_k = h_k · min(1, D / max_{jl} |h_j − h_l|). A row adds v_y. Features and weights are
    public, so all K candidates are, and so is the second factor: it is the same for all labels of a row. Norm clipping
    leaves candidates that are rarely 2C apart; the noise then pays for a distance that never occurs. D between C and
    1.5·C is a good start; with two classes nothing is gained.

    Proof. The second factor is at most 1, so |v_k| ≤ |h_k| ≤ C. It multiplies all candidates of the row alike, so
    |v_j − v_l| ≤ D for all pairs, and the label picks one of them.

    Costs K gradients per row in place of one. A row with a candidate that is not finite adds nothing under any label.

    >>> DiameterBound(clip=1.0, diameter=1.2).radius
    1.0
    """

    clip: float
    diameter: float
    needs_candidates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", _checked_length("clip", self.clip))
        object.__setattr__(self, "diameter", _checked_length("diameter", self.diameter))
        if self.diameter > 2 * self.clip:
            raise ValueError(
                f"diameter is {self.diameter!r}, more than twice the clip {self.clip!r}, which clipping alone gives; "
                "give a smaller one, or NormBound(clip)"
            )

    @property
    def radius(self) -> float:
        """Return the largest norm of a contribution, C: candidates need not surround 0, so half of D is not enough."""
        return self.clip

    def factors(self, gram: Tensor, errors: Tensor) -> Tensor:
        """Return what each candidate is multiplied by, (b, K), from inner products (b, K, K) and their rounding."""
        clipped = norm_factors(self.clip, gram, errors)
        apart = distances(gram * clipped[:, :, None] * clipped[:, None, :], errors.sqrt() * clipped)
        scale = (self.diameter * (1 - 2.0**-20) / apart.amax((1, 2))).clamp(max=1.0)
        factors = clipped * scale[:, None]
        # All candidates or none: one that is dropped alone could end up further than D from the others.
        usable = gram.isfinite().all(2) & errors.isfinite() & (factors >= SMALLEST)
        return torch.where(usable.all(1, keepdim=True), factors, 0.0)


def distances(gram: Tensor, errors: Tensor) -> Tensor:
    """Return |h_j − h_l| of each row's candidates, (b, K, K), never below the truth.

    ⟨h_j, h_l⟩ may be off by e_j·e_l, so the square of a distance by (e_j + e_l)².
    """
    squares = gram.diagonal(dim1=1, dim2=2)
    apart = (squares[:, :, None] + squares[:, None, :] - 2 * gram).clamp(min=0.0)
    return (apart + (errors[:, :, None] + errors[:, None, :]).square()).sqrt()


def _checked_length(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not _SHORTEST <= float(value) <= _LONGEST:
        raise ValueError(f"{name} is {value!r}; give a number from {_SHORTEST:g} to {_LONGEST:g}")
    return float(value)


# -- one noisy sum -------------------------------------------------------------------------------------------


# What the certificate of a gradient sum rests on besides its ledger.
ROWS_ALONE = (
    "A row's gradient, as it was computed, does not depend on which other rows were in its batch: layers treat rows "
    "one by one, and kernels chosen by the size of a batch round it alike."
)

# Beside the mechanisms, not in them: a copy or a pickle of one must not take a recording along.
_replays: WeakKeyDictionary[GradientSum, ReplayedSum] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class GradientSum:
    """Release (Σ_{i ∈ batch} v_i + N(0, s²I)) / (q·n), v_i the bounded gradient of row i at the model's weights.

    DP-SGD's step (Abadi et al. 2016) under the replacement of a label. With `rate` q < 1 the vault draws the batch,
    each row on its own with probability at most q, and shows it to nobody. With q = 1 all rows given take part: a batch
    that the caller names is `vault.lease(GradientSum(model, inputs[batch], ...), times, rows=batch)`, charged plainly.

    Proof. Weights, features and dropout masks do not depend on the labels of this step, and every row's gradient is
    computed from its own features and label alone. So replacing the label of row i changes v_i and nothing else; the
    bound gives |v_i| ≤ R whatever the label and moves it by at most D. q = 1: a Gaussian sum moved by at most D. q < 1:
    given all other rows' draws, the sum is shifted by v_i with probability at most q, by 0 otherwise, which is the pair
    of distributions of `PoissonGaussian(s, R, D, q)`. Neither the batch nor its size leaves this class: the divisor is
    q·n. Weights read at later steps are functions of earlier releases, so steps compose adaptively.

    Rounding. Factors are rounded down so that each v_i, as the float32 numbers it is, keeps its bound. They are added
    up in float64, at most β from the exact sum (`summation_error`, over all n rows), and the sum is rounded to a grid
    of step g before integer noise is added (`grid_step`, with the proof). So the sums with and without the row, or with
    its two labels, are apart by 2β + g√d more than in exact arithmetic, and the event has R⁺ = R + 2β + g√d and
    D⁺ = D + 2β + g√d: some 10^-4 more than R and D for 10^5 rows.

    Assumption. That no row's gradient depends on the others in the batch holds for real numbers; kernels that are
    chosen by the size of a batch may round a row's gradient otherwise in another batch. `assumptions` says so.

    Args:
        model: its trainable weights are read at every draw. They must be public: made from earlier releases.
        inputs: public features, one tensor or one per argument of the model, in the vault's order (of the rows asked).
        bound: `NormBound(C)` or `DiameterBound(C, D)`.
        noise_std: s, per coordinate of the sum (not of the mean).
        rate: q, the probability that a row is in the batch; 1 takes all rows.
        loss: (logits (b, K), labels (b,)) → (b,), one number per row. Called with true labels; it must keep nothing.
        num_classes: labels a row may have; the number of logits when None.
        chunk, precision: rows at once, and the type of the forward pass (torch.bfloat16, say). About speed, and cannot
            change the guarantee.
        most_rows: rows of the largest of several batches that are leased together and must cost the same; None is this.

    >>> from labeldp import LabelVault
    >>> vault = LabelVault([0, 1, 1, 0], num_classes=2)
    >>> step = vault.lease(GradientSum(nn.Linear(3, 2), torch.ones(4, 3), NormBound(1.0), noise_std=4.0, rate=0.5), 10)
    >>> step().value.shape, step.remaining, round(vault.certificate(1e-5).epsilon, 2)
    (torch.Size([8]), 9, 3.31)
    """

    model: nn.Module = field(repr=False)
    inputs: Inputs = field(repr=False)
    bound: NormBound | DiameterBound
    noise_std: float
    rate: float = 1.0
    loss: Loss = field(default=cross_entropy, repr=False)
    num_classes: int | None = None
    chunk: int | None = None
    precision: torch.dtype | None = None
    most_rows: int | None = None
    # Weights that the noise was charged for.
    size: int = field(init=False, repr=False)
    assumptions: ClassVar[tuple[str, ...]] = (ROWS_ALONE,)

    def __post_init__(self) -> None:
        for name in ("noise_std", "rate"):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise ValueError(f"{name} is {value!r}; give a number")
            object.__setattr__(self, name, float(value))
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate is {self.rate!r}; give a probability greater than 0 and at most 1")
        for name in ("chunk", "most_rows"):
            if getattr(self, name) is not None:
                checked_integer(name, getattr(self, name), 1, 1 << 40)
        if self.num_classes is not None:
            checked_classes(self.num_classes)
        object.__setattr__(self, "size", num_parameters(self.model))
        sampled_gaussian(self.noise_std, self.bound.radius, self.bound.diameter, self.rate)

    # -- mechanism ------------------------------------------------------------------------------------------

    def event(self) -> Event:
        """Return what one step costs: radius and diameter, with what rounding adds, beside the noise, at the rate."""
        more = 2 * summation_error(self.bound.radius, self._most()) + self.step * math.sqrt(self.size)
        return sampled_gaussian(self.noise_std, self.bound.radius + more, self.bound.diameter + more, self.rate)

    @property
    def step(self) -> float:
        """Return the step of the grid that the sum is rounded to."""
        longest = self.bound.radius * max(1, self._most())
        return grid_step(self.noise_std, self.bound.diameter, self.size, longest)

    def _most(self) -> int:
        return len(columns_of(self.inputs)[0]) if self.most_rows is None else self.most_rows

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless there is a row of inputs for every label, and the loss takes every label.

        Model and loss are tried on public rows with made-up labels, so that what can fail fails before it is paid for,
        and a model that keeps something of the rows it has seen is refused.
        """
        rows = {len(column) for column in columns_of(self.inputs)}
        if num_rows == 0 or rows != {num_rows}:
            raise ValueError(f"inputs has {sorted(rows)} rows, the data {num_rows}; give one row per label, at least 1")
        if self._most() < num_rows:
            raise ValueError(f"most_rows is {self.most_rows}, the data have {num_rows}; give the most of any batch")
        refuse_batch_norm(self.model)
        if not any(value.requires_grad for value in self.model.parameters()):
            raise ValueError("model has no trainable parameters; set requires_grad on those to be learnt")
        if self.num_classes is not None:
            same_classes(self.num_classes, num_classes)
        self._try_public_rows(num_classes)

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> NoisyGradient:
        """Draw the batch, add up its bounded gradients, add the noise, divide by the expected size."""
        rows = poisson_batch(len(labels), self.rate, rng)
        with isolated(self.model, self.precision, rng):
            noise = rounded_on(device_of(self.model), self.size, self.noise_std / self.step, rng)
            total = self.total(labels, rows)
            # In this order a device makes noise while its host waits for nothing.
            drawn = noise()
            value = with_noise(total(), self.step, drawn).div_(self.expected_batch).to(kind_of(self.model))
        return NoisyGradient(value, self.noise_std / self.expected_batch, self.expected_batch)

    @property
    def expected_batch(self) -> float:
        """Return q·n: what the sum is divided by, whatever the batch."""
        return self.rate * len(columns_of(self.inputs)[0])

    # -- the sum --------------------------------------------------------------------------------------------

    def total(self, labels: LabelArray, rows: npt.NDArray[np.intp] | None) -> Callable[[], Tensor]:
        """Begin to add up v_i over these rows; call the result for Σ v_i without noise, (P,) in float64.

        Only `sample` calls it, here and over ranks (`labeldp.mechanisms.gradients.ranks`).
        """
        device = device_of(self.model)
        chosen = labels if rows is None else labels[rows]
        truth = torch.as_tensor(chosen.astype(np.int64)).to(device)
        columns = columns_of(self.inputs)
        if rows is not None:
            index = torch.as_tensor(rows)
            columns = tuple(column[index.to(column.device)] for column in columns)
        batch = tuple(column.to(device) for column in columns)
        candidates = None
        if self.bound.needs_candidates:
            candidates = self.num_classes or self._logits().shape[1]
        if self not in _replays:
            _replays[self] = ReplayedSum(self.model, self.loss, self.bound.factors, candidates)
        found = _replays[self](batch, truth) if self.chunk is None else None

        def finish() -> Tensor:
            if found is not None:
                return found
            return bounded_sum(
                self.model, self.loss, batch, truth, self.bound.factors, num_classes=candidates, chunk=self.chunk
            )

        return finish

    def _logits(self, row: slice = slice(1)) -> Tensor:
        """Return those of one row, the first, (1, K)."""
        device = device_of(self.model)
        with torch.no_grad():
            return self.model(*(column[row].to(device) for column in columns_of(self.inputs)))

    def _try_public_rows(self, num_classes: int) -> None:
        """Run model and loss on the first row, then on the last: what the first run sets up once is no state."""
        with isolated(self.model, self.precision, SecureRandom()):
            logits = self._logits()
            if logits.dim() != 2 or len(logits) != 1:
                raise ValueError(f"model turns one row into {tuple(logits.shape)}; it must be (1, number of logits)")
            if self.num_classes is None:
                same_classes(logits.shape[1], num_classes)
            every = torch.arange(num_classes, device=logits.device)
            losses = self.loss(logits.float().expand(num_classes, -1), every)
            if losses.shape != (num_classes,):
                shown = tuple(losses.shape)
                raise ValueError(f"loss gives {shown} for {num_classes} rows; it must give one number per row")
            with refusing_state(self.model, *([self.loss] if isinstance(self.loss, nn.Module) else [])):
                self.loss(self._logits(slice(-1, None)).float(), every[-1:])
            first = tuple(column[:1].to(logits.device) for column in columns_of(self.inputs))
            gradients(self.model, self.loss, first, every[:1])


def sampled_gaussian(noise_std: float, radius: float, diameter: float, rate: float) -> Event:
    """Return the event of a sum with Gaussian noise, of all rows or of a secret batch."""
    if rate == 1.0:
        return Gaussian(noise_std, diameter)
    return PoissonGaussian(noise_std, radius, diameter, rate)


def poisson_batch(num_rows: int, rate: float, rng: SecureRandom) -> npt.NDArray[np.intp] | None:
    """Draw rows, each on its own with probability ⌊q·2^64⌋/2^64 ≤ q; return None for all rows when q = 1."""
    if rate == 1.0:
        return None
    threshold = math.floor(Fraction(rate) * 2**64)
    return np.flatnonzero(rng.words(num_rows) < np.uint64(threshold))


@contextmanager
def isolated(model: nn.Module, precision: torch.dtype | None, rng: SecureRandom) -> Generator[None]:
    """Set the forward pass's precision, and draw dropout masks from the vault's own stream.

    Masks drawn from torch's generator would leave it in a state that tells the size of a secret batch to whoever draws
    from it next.
    """
    device = device_of(model)
    cast: Any = torch.autocast(device.type, dtype=precision, enabled=precision is not None)
    with own_generator(int(rng.words(1)[0]) >> 1, device), cast:
        yield
