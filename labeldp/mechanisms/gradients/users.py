"""Release noisy gradient sums for users: one bounded vector per user, batches drawn in secret by the vault."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from labeldp.core.events import Event
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelArray
from labeldp.mechanisms.gradients.layers import Loss, cross_entropy
from labeldp.mechanisms.gradients.noise import grid_step, rounded_on, with_noise
from labeldp.mechanisms.gradients.per_example import (
    Inputs,
    clip_factors,
    columns_of,
    device_of,
    gradients,
    kind_of,
    num_parameters,
)
from labeldp.mechanisms.gradients.sums import (
    ROWS_ALONE,
    GradientSum,
    NormBound,
    isolated,
    poisson_batch,
    sampled_gaussian,
)
from labeldp.mechanisms.gradients.terms import norms
from labeldp.mechanisms.users import Charge, Users
from labeldp.releases import FloatArray, NoisyGradient

# The table of user sums that is in memory at once, in bytes.
_TABLE_BYTES = 1 << 30


@dataclass(frozen=True, eq=False)
class UserGradientSum:
    """Release (Σ_{u ∈ batch} v_u + N(0, s²I)) / (q·U), v_u = clip_C(Σ_{rows j of u} w_j g_j), at the model's weights.

    DP-SGD's step with the user in place of the row (McMahan et al. 2018; Ghazi et al. 2024, LabelDP-Pro, section 6),
    for label privacy. `rate` q is the probability that a user is in the batch, each on its own; the vault draws the
    batch and shows it to nobody. The sum is divided by the expected number of users, never by the realised one.

    Proof. Replacing all labels of user u changes v_u and no other vector. |v_u| ≤ C whatever its labels, so v_u moves
    by at most 2C. The user is in the batch with probability q, independently of the others and of all labels. That is
    the distribution of one clipped row among rows sampled at q (`PoissonGaussian`: radius C, diameter 2C), with users
    for rows; q = 1 is a Gaussian sum moved by at most 2C.

    Rounding. Every v_u is rounded to a grid of step g before it is added (`grid_step`, with the proof for the noise):
    sums are then sums of integers, the same in any order. Rounding moves a vector by at most g√d/2, so the event has
    R⁺ = C + g√d/2 and D⁺ = 2C + g√d. The assumption of `GradientSum` holds here for a user's rows.

    Args:
        model: its trainable weights are read at every draw. They are public: made from earlier releases.
        inputs: public features of the rows, in the vault's order (of the rows asked).
        users: whose each row is.
        bound: `NormBound(C)`.
        noise_std: s, per coordinate of the sum.
        rate: q; 1 takes all users.
        weights: how much each row counts, (n,), public; 1 when None. `repeats / k` of `cap_rows` makes v_u the gradient
            of the mean loss over the user's k resampled rows.
        loss: (logits (b, K), labels (b,)) → (b,). Called with true labels; it must keep nothing.
        chunk, precision: rows at once, and the forward pass's type; about speed, and cannot change the guarantee.

    >>> from labeldp.mechanisms.users import UserVault
    >>> vault = UserVault([0, 1, 1], users=["ann", "bob", "ann"], num_classes=2)
    >>> ask = UserGradientSum(nn.Linear(4, 2), torch.ones(3, 4), vault.users, NormBound(1.0), noise_std=3.0, rate=0.5)
    >>> vault.release(ask).value.shape, vault.certificate(1e-5).unit.protects
    (torch.Size([10]), 'all labels of one user')
    """

    model: nn.Module = field(repr=False)
    inputs: Inputs = field(repr=False)
    users: Users
    bound: NormBound
    noise_std: float
    rate: float = 1.0
    weights: FloatArray | None = field(default=None, repr=False)
    loss: Loss = field(default=cross_entropy, repr=False)
    chunk: int | None = None
    precision: torch.dtype | None = None
    # Weights that the noise was charged for.
    size: int = field(init=False, repr=False)
    assumptions: ClassVar[tuple[str, ...]] = (ROWS_ALONE,)

    def __post_init__(self) -> None:
        # A bound on the candidate gradients of one row says nothing about the sum of several.
        if type(self.bound) is not NormBound:
            raise ValueError(f"bound is {self.bound!r}; users' sums are clipped by their norm: give NormBound(clip)")
        object.__setattr__(self, "size", num_parameters(self.model))
        sampled_gaussian(self.noise_std, self.bound.radius, self.bound.diameter, self.rate)
        if self.rate == 0:
            raise ValueError("rate is 0, so no user would ever take part; give a probability greater than 0")
        if self.weights is not None:
            checked, num_rows = np.array(self.weights, dtype=np.float64), len(self.users.owner)
            if checked.shape != (num_rows,) or not np.isfinite(checked).all():
                raise ValueError(
                    f"weights has shape {checked.shape}; give one finite number for each of {num_rows} rows"
                )
            checked.setflags(write=False)
            object.__setattr__(self, "weights", checked)

    # -- mechanism ------------------------------------------------------------------------------------------

    def event(self) -> Event:
        """Return what one step costs a user; a single label of it costs no more."""
        moved = self.step * math.sqrt(self.size)
        return sampled_gaussian(self.noise_std, self.bound.radius + moved / 2, self.bound.diameter + moved, self.rate)

    @property
    def step(self) -> float:
        """Return the step of the grid that users' vectors are rounded to."""
        longest = self.bound.radius * max(1, len(self.users))
        return grid_step(self.noise_std, self.bound.diameter, self.size, longest)

    def charges(self, users: Users) -> Sequence[Charge]:
        """Return one query for every user, however many rows it has."""
        self.users.check_asked(users)
        return [Charge(self.event(), 1, None)]

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless there are inputs and a user for every label; the rest as `GradientSum.fits`."""
        if len(self.users.owner) != num_rows:
            raise ValueError(f"users has {len(self.users.owner)} rows, the data {num_rows}; give one user per label")
        row_by_row = GradientSum(self.model, self.inputs, self.bound, self.noise_std, loss=self.loss)
        row_by_row.fits(num_rows, num_classes)

    @property
    def expected_batch(self) -> float:
        """Return q·U: what the sum is divided by, whatever the batch."""
        return self.rate * len(self.users)

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> NoisyGradient:
        """Draw the users, add up their bounded vectors, add the noise."""
        chosen = poisson_batch(len(self.users), self.rate, rng)
        with isolated(self.model, self.precision, rng):
            total = self.total(labels, np.arange(len(self.users)) if chosen is None else chosen)
        noise = rounded_on(total.device, self.size, self.noise_std / self.step, rng)
        value = with_noise(total, self.step, noise()).div_(self.expected_batch).to(kind_of(self.model))
        return NoisyGradient(value, self.noise_std / self.expected_batch, self.expected_batch)

    # -- the sum --------------------------------------------------------------------------------------------

    def total(self, labels: LabelArray, chosen: npt.NDArray[np.intp]) -> Tensor:
        """Return Σ v_u over these users without noise, (P,) in float64, on the grid. Only `sample` calls it."""
        total = torch.zeros(self.size, dtype=torch.float64, device=device_of(self.model))
        at_once = max(1, _TABLE_BYTES // (12 * max(1, self.size)))
        for start in range(0, len(chosen), at_once):
            sums = self._user_sums(labels, chosen[start : start + at_once])
            # What is not finite is nothing: it keeps the bound, and no error tells that it happened.
            factors = clip_factors(norms(sums), self.bound.clip) / self.step
            total += (sums.nan_to_num_(0.0, 0.0, 0.0) * factors[:, None]).round_().sum(dim=0)
        return total * self.step

    def _user_sums(self, labels: LabelArray, chosen: npt.NDArray[np.intp]) -> Tensor:
        """Return Σ_j w_j g_j of each of these users, (users, P)."""
        device, size = device_of(self.model), self.size
        place = np.full(len(self.users), -1, dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        rows = np.flatnonzero(place[self.users.owner] >= 0)
        sums = torch.zeros(len(chosen), size, dtype=torch.float32, device=device)
        step = self.chunk or max(1, min(1 << 14, _TABLE_BYTES // (4 * max(1, size))))
        for part in (rows[start : start + step] for start in range(0, len(rows), step)):
            index = torch.as_tensor(part)
            batch = tuple(column[index.to(column.device)].to(device) for column in columns_of(self.inputs))
            truth = torch.as_tensor(labels[part].astype(np.int64)).to(device)
            table = gradients(self.model, self.loss, batch, truth, chunk=self.chunk).float()
            if self.weights is not None:
                table = table * torch.as_tensor(self.weights[part], dtype=torch.float32).to(device)[:, None]
            sums.index_add_(0, torch.as_tensor(place[self.users.owner[part]]).to(device), table)
        return sums
