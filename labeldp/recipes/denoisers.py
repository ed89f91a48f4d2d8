"""Who picks the batch, and onto what the noisy gradient is projected: the two halves of a denoiser, decided together.

==================  ==================================  ====================================================
denoiser            batch                               projection onto the candidate gradients of
==================  ==================================  ====================================================
`no_op`             drawn in secret: amplified          nothing: DP-SGD
`alt_conv`          drawn in secret: amplified          other rows, drawn apart: their hull (AltConv)
`alt_rows`          drawn in secret: amplified          other rows, drawn apart: one simplex per row (ours)
`self_span`         named in advance: nothing hidden    the batch's own rows: their span (SelfSpan)
`self_conv`         named in advance: nothing hidden    the batch's own rows: their hull (SelfConv)
==================  ==================================  ====================================================

A candidate gradient is what a public row would contribute under one of the K classes; no label is needed for it.
Projecting onto those of the batch itself shows which rows were in it. So `Named` denoisers, and only they, see the
batch's rows; their batches are a fixed partition of all rows, charged plainly, one Gaussian sum per pass. `Secret`
ones see other rows only, and are charged as secret Poisson batches. Nothing can be written that has both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from labeldp.budgets.counter import QueryCounter
from labeldp.core.vault import LabelVault, Lease, Mechanism
from labeldp.learning.projections import Projection, hull, row_simplex, span
from labeldp.learning.train import Inputs
from labeldp.mechanisms.gradients.layers import Loss
from labeldp.mechanisms.gradients.public import PublicGradients
from labeldp.recipes.arguments import take_rows
from labeldp.releases import NoisyGradient

RowNumbers = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Secret:
    """The vault draws every batch and shows it to nobody; the projection, if any, sees `rows` other rows.

    Those are drawn apart from the batch, with the learning seed, anew for every step; as many as the batch when None.
    `clipped` clips their candidate gradients as those of the sum are clipped; the paper does not.
    """

    projection: Projection | None = None
    rows: int | None = None
    clipped: bool = False

    def __post_init__(self) -> None:
        if self.rows is not None and (type(self.rows) is not int or self.rows < 1):
            raise ValueError(f"rows={self.rows!r} is not a number of rows to project on; give at least 1")


@dataclass(frozen=True)
class Named:
    """The batches are named in advance, and each gradient is projected onto what its own batch allows."""

    projection: Projection
    clipped: bool = False


Denoiser = Secret | Named


def no_op() -> Secret:
    """Project nothing: DP-SGD (Abadi et al. 2016) under label replacement."""
    return Secret()


def alt_conv(rows: int | None = None, smoothing: float = 0.75, *, clipped: bool = False, **settings: Any) -> Secret:
    """Project as AltConv (Ghazi et al. 2024): onto the hull of `rows` other rows' candidates; `smoothing` is λ."""
    return Secret(partial(hull, smoothing=smoothing, **settings), rows, clipped)


def alt_rows(rows: int | None = None, smoothing: float = 1.0, *, clipped: bool = False, **settings: Any) -> Secret:
    """Project onto one simplex per row, not one for all rows: a smaller set that still holds their mean gradient."""
    return Secret(partial(row_simplex, smoothing=smoothing, **settings), rows, clipped)


def self_span(**settings: Any) -> Named:
    """Project as SelfSpan (Ghazi et al. 2024): onto the span of the batch's own candidate gradients."""
    return Named(partial(span, **settings))


def self_conv(smoothing: float = 0.75, *, clipped: bool = False, **settings: Any) -> Named:
    """Project as SelfConv (Ghazi et al. 2024): onto the hull of the batch's own candidates; `smoothing` is λ."""
    return Named(partial(hull, smoothing=smoothing, **settings), clipped)


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches of a run.

    Args:
        rows: of each named batch; None for secret ones.
        parts: the inputs of each named batch, or all that secret ones are drawn from.
        rate: probability of a row, or user, to be in a secret batch; 1 for named ones.
        seed: of the order, and of other rows.
        covered: the vault's rows that secret batches are drawn from; all when None.
    """

    rows: tuple[RowNumbers, ...] | None
    parts: tuple[Inputs, ...]
    rate: float
    seed: int
    covered: RowNumbers | None = None

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def per_epoch(self) -> int:
        """Return how many steps are one pass over the data, on average if batches are secret."""
        return math.ceil(1 / self.rate - 1e-9) if self.rows is None else len(self.rows)

    def passes(self, step: int) -> float:
        """Return how many passes over the data so many steps are."""
        return step * self.rate if self.rows is None else step / len(self)

    def queries_per_row(self, epochs: float | None, steps: int | None) -> int | None:
        """Return how often a row may be summed: once per step if batches are secret, once per pass if they are named.

        None where neither length is given.
        """
        if epochs is None and steps is None:
            return None
        if epochs is not None and steps is not None:
            raise ValueError(f"epochs={epochs} and steps={steps} are two lengths; give one of them")
        secret = self.rows is None
        if steps is not None:
            length = steps if secret else steps / len(self)
        else:
            length = epochs if epochs is not None and math.isfinite(epochs) else 0
            length = math.ceil(length / self.rate - 1e-9) if secret else length
        if not length >= 1 or length != int(length):
            raise ValueError(
                f"epochs={epochs}, steps={steps} is not a length; give at least one step, and whole passes "
                f"({len(self)} steps each) for batches that are named"
            )
        return int(length)

    def number(self, step: int) -> int:
        """Return the batch of a step. The order changes from pass to pass."""
        passed, place = divmod(step, len(self))
        return int(_order(self.seed, passed, len(self))[place])

    def lease(
        self, vault: LabelVault, sums: Sequence[Mechanism[NoisyGradient]], times: int, counter: QueryCounter | None
    ) -> tuple[Lease[NoisyGradient], ...]:
        """Pay for `times` sums over every batch, one mechanism to a batch."""
        if self.rows is None:
            return (vault.lease(sums[0], times, self.covered, counter=counter),)
        return vault.lease_batches(sums, times, self.rows, counter=counter)


def batches_for(denoiser: Denoiser, inputs: Inputs, num_rows: int, batch_size: int, seed: int) -> Batches:
    """Return secret batches of `batch_size` rows on average, or a partition into named ones of at most so many."""
    if isinstance(denoiser, Secret):
        return Batches(None, (inputs,), batch_size / num_rows, seed)
    order = np.random.default_rng(seed).permutation(num_rows)
    rows = tuple(np.sort(part) for part in np.array_split(order, math.ceil(num_rows / batch_size)))
    return Batches(rows, tuple(take_rows(inputs, part) for part in rows), 1.0, seed)


class Projector:
    """Cleans noisy gradients at the model's present weights. `gap` is that of the last projection, if it had one."""

    def __init__(
        self, model: nn.Module, batches: Batches, denoiser: Denoiser, rows: int, loss: Loss, clip: float
    ) -> None:
        self.gap: Tensor | float | None = None
        self._public: Callable[[int], Inputs]
        if isinstance(denoiser, Named):
            self._public = lambda step: batches.parts[batches.number(step)]
        else:
            self._public = _OtherRows(batches.parts[0], denoiser.rows or rows, batches.seed)
        self._projection = denoiser.projection
        clip_at = clip if denoiser.clipped else None
        # The span asks for products only, and those of a linear layer cost a K-th of those with its candidates' matrix.
        made = self._projection
        memory = 0 if isinstance(model, nn.Linear) and isinstance(made, partial) and made.func is span else None
        self._candidates = lambda rows: PublicGradients(model, rows, loss=loss, clip=clip_at, memory=memory)

    def __call__(self, noisy: Tensor, step: int) -> Tensor:
        """Return the projected gradient of this step."""
        if self._projection is None:
            return noisy
        found = self._projection(noisy, self._candidates(self._public(step)))
        self.gap = found.gap
        return found.gradient


class _OtherRows:
    """Rows drawn with the learning seed, without repeats, anew for every step and the same if a step is repeated."""

    def __init__(self, inputs: Inputs, rows: int, seed: int) -> None:
        self._inputs, self._rows, self._seed = inputs, rows, seed
        self._device = (inputs if isinstance(inputs, Tensor) else inputs[0]).device
        self._generator = torch.Generator(self._device)

    def __call__(self, step: int) -> Inputs:
        many = len(self._inputs if isinstance(self._inputs, Tensor) else self._inputs[0])
        self._generator.manual_seed(int(np.random.SeedSequence((self._seed, step)).generate_state(1)[0]))
        order = torch.randperm(many, generator=self._generator, device=self._device)
        chosen = order[: self._rows]
        inputs = self._inputs
        return inputs[chosen] if isinstance(inputs, Tensor) else tuple(x[chosen.to(x.device)] for x in inputs)


@lru_cache(maxsize=4)
def _order(seed: int, passed: int, many: int) -> RowNumbers:
    return np.random.default_rng((seed, passed)).permutation(many)
