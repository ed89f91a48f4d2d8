"""Add up bounded gradients over ranks: each samples and sums its own rows in secret, and the noise is that of one sum.

The release is that of `GradientSum` or `UserGradientSum`, and so is its event, number by number.

Proof. The rows (users) are cut into W blocks, and rank w draws each of its own rows on its own with probability at most
q: over all ranks a row is in the batch as in one process. Rank w adds up its block in float64 and rounds the sum to the
grid, T_w = round(S_w/g). A replaced label changes one block, so one of the T_w, by at most D + 2β + g√d and, against
the sum without the row, R + 2β + g√d: what the event of one process has, with β over all rows. Integers are added
without error, so ΣT_w does not depend on the order in which ranks are added up. Then

- noise "once": the first rank adds N = round(Z/g), Z ~ N(0, s²I), to ΣT_w, as one process does to T.
- noise "each": rank w sends T_w + round(Z_w/g), Z_w ~ N(0, (s²/W)I). By Poisson summation the characteristic function
  of round(Z_w/g) on [−π, π] is that of Z_w/g + U_w, U_w uniform on [−½, ½], up to e^(−π²s²/(2Wg²)). So the sum of all
  has the distribution of ΣT_w + round(Z/g + U_2 + … + U_W) up to W times that, for each of some 2^60 values: nothing,
  10^(−10^5), where s/(g√W) ≥ 2^8, which `fits` demands. It is a function of gΣT_w + Z, and of noise without labels.

A partial sum that a rank sends in the first case has no noise: ranks and the links between them are trusted with it. In
the second it has noise of deviation s/√W or more. `assumptions` says which.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from labeldp.core.events import Event
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelArray
from labeldp.mechanisms.gradients.noise import rounded_on
from labeldp.mechanisms.gradients.per_example import device_of, kind_of, load_parameter_vector, parameter_vector
from labeldp.mechanisms.gradients.sums import GradientSum, isolated, poisson_batch
from labeldp.mechanisms.gradients.users import UserGradientSum
from labeldp.mechanisms.users import Charge, Users
from labeldp.ranks import Message, Ranks
from labeldp.releases import NoisyGradient

TRUSTED = (
    "Several processes added up gradients of rows that are their own: all of them, and the links between them, are "
    "trusted with sums that have no noise yet."
)
NOISE_IN_PARTS = (
    "Several processes added up gradients of rows that are their own, and each added its part of the noise: whoever "
    "reads a link between them, or all but one of the processes, sees sums with less noise than is stated here, its "
    "deviation divided by the square root of the number of processes."
)
# In steps of the grid: a rank's part of the noise must be wide, or rounding it apart would show.
_WIDEST_STEP = 2.0**8


@dataclass(frozen=True, eq=False)
class RankedSum:
    """Release a gradient sum whose rows are shared by ranks; every rank draws it at the same time, for one release.

    The first rank's release is the sum; the others get None. A rank without a row in the batch adds zeros.

    Args:
        whole: the sum over all rows, the same on all ranks.
        ranks: who shares it.
        number: of the batch, which the first rank tells the others.
    """

    whole: GradientSum
    ranks: Ranks = field(repr=False)
    number: int = 0

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Return what the certificate says besides the ledger."""
        return (*self.whole.assumptions, NOISE_IN_PARTS if self.ranks.noise == "each" else TRUSTED)

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError where the sum of one process would, or where noise cannot be added in parts."""
        self.whole.fits(num_rows, num_classes)
        if self.ranks.noise == "each" and self._std() < _WIDEST_STEP:
            raise ValueError(
                f"noise='each' needs noise that is wide against the grid's step, and {self.whole.noise_std!r} is not "
                f"for {self.ranks.size} ranks; give noise='once'"
            )

    def event(self) -> Event:
        """Return what one release costs: what it costs in one process."""
        return self.whole.event()

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> NoisyGradient | None:
        """Draw this rank's rows, add them up on the grid, and add all ranks' sums and the noise.

        The first rank is called when the query is paid for and counted on the disk. Only then do the others hear of it.
        """
        whole, ranks = self.whole, self.ranks
        if ranks.first:
            ranks.say(Message.DRAW, self.number)
        weights = ranks.share(parameter_vector(whole.model))
        if not ranks.first:
            load_parameter_vector(whole.model, weights)
        rows = self._rows(self._count(labels), rng)
        with isolated(whole.model, whole.precision, rng):
            adds = ranks.noise == "each" or ranks.first
            noise = rounded_on(device_of(whole.model), whole.size, self._std(), rng) if adds else None
            total = self._total(labels, rows).div_(whole.step).round_().to(torch.int64)
        if noise is None:
            summed = ranks.add(total)()
        elif ranks.noise == "each":
            summed = ranks.add(total.add_(noise().to(torch.int64)))()
        else:
            finish = ranks.add(total)
            # While sums travel.
            drawn = noise().to(torch.int64)
            summed = finish().add_(drawn)
        if not ranks.first:
            if rng.seed is not None and noise is None:
                # A seed is for tests, and draws the same batches on ranks as in one process.
                rng.rounded_gaussian(self._std(), whole.size)
            return None
        value = summed.double().mul_(whole.step).div_(whole.expected_batch).to(kind_of(whole.model))
        return NoisyGradient(value, whole.noise_std / whole.expected_batch, whole.expected_batch)

    def _std(self) -> float:
        """Return the deviation, in steps of the grid, of the noise that one rank adds."""
        parts = self.ranks.size if self.ranks.noise == "each" else 1
        return self.whole.noise_std / (math.sqrt(parts) * self.whole.step)

    def _count(self, labels: LabelArray) -> int:
        return len(labels)

    def _rows(self, count: int, rng: SecureRandom) -> npt.NDArray[np.intp]:
        """Draw this rank's rows: of its block, each on its own."""
        block = self.ranks.block(count)
        if rng.seed is not None:
            every = poisson_batch(count, self.whole.rate, rng)
            every = np.arange(count) if every is None else every
            return every[(every >= block.start) & (every < block.stop)]
        first, many = int(block.start), int(block.stop) - int(block.start)
        chosen = poisson_batch(many, self.whole.rate, rng)
        return first + (np.arange(many) if chosen is None else chosen)

    def _total(self, labels: LabelArray, rows: npt.NDArray[np.intp]) -> Tensor:
        return self.whole.total(labels, rows)()


@dataclass(frozen=True, eq=False)
class RankedUserSum(RankedSum):
    """Release a sum over users that are shared by ranks: all rows of a user are on one rank."""

    whole: UserGradientSum  # pyright: ignore[reportIncompatibleVariableOverride]

    def charges(self, users: Users) -> Sequence[Charge]:
        """Return one query for every user."""
        return self.whole.charges(users)

    def _count(self, labels: LabelArray) -> int:
        return len(self.whole.users)

    def _total(self, labels: LabelArray, rows: npt.NDArray[np.intp]) -> Tensor:
        return self.whole.total(labels, rows)


def over_ranks(whole: GradientSum | UserGradientSum, ranks: Ranks, number: int = 0) -> RankedSum:
    """Return a sum as ranks release it together."""
    if isinstance(whole, UserGradientSum):
        return RankedUserSum(whole, ranks, number)  # pyright: ignore[reportArgumentType]
    return RankedSum(whole, ranks, number)
