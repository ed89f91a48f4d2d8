"""Views of several batches made at once, and handed out batch by batch.

A strong view is some five hundred small operations whatever the number of images, twice what a step of ResNet-18 has:
on a GPU the host may take longer to ask for them than the device to do them. Eight batches at once are asked for once.
On a CPU, where the images themselves take the time, every batch is made on its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Generator, Tensor

Made = TypeVar("Made")

# Batches at once, by kind of device; one on others. Of large images fewer: a view needs many times their memory.
_BATCHES = {"cuda": 8}
_VALUES = 2**24


class Ahead(Generic[Made]):
    """What `make` makes of the rows of several batches, one batch at a time.

    Args:
        make: row numbers of some whole batches and the generator of all randomness → one thing for each batch.
        batch_size: rows in a batch.
        inputs: the rows, on their device.
    """

    def __init__(self, make: Callable[[Tensor, Generator], Sequence[Made]], batch_size: int, inputs: Tensor) -> None:
        self._make, self._size = make, batch_size
        most = _VALUES // max(1, batch_size * math.prod(inputs.shape[1:]))
        self._batches = max(1, min(most, _BATCHES.get(inputs.device.type, 1)))
        self._made: Sequence[Made] = ()
        self._place = 0

    def ready(self, batch: int, order: Tensor, generator: Generator) -> None:
        """To be called before every batch of an epoch, one after the other, with the epoch's order of rows."""
        self._place = batch % self._batches
        if self._place == 0:
            first = batch * self._size
            with torch.no_grad():
                self._made = self._make(order[first : first + self._batches * self._size], generator)

    @property
    def now(self) -> Made:
        """The batch that was made ready.

        >>> pictures = torch.arange(4.0)
        >>> pairs = Ahead(lambda rows, generator: pictures[rows].split(2), 2, pictures)
        >>> pairs.ready(1, torch.tensor([0, 2, 3, 1]), Generator())
        >>> pairs.now
        tensor([3., 1.])
        """
        return self._made[self._place]


def in_batches(parts: Sequence[Tensor], sizes: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """Of each batch its piece of every part, so many rows of the first, of the second, …

    >>> in_batches((torch.arange(2), torch.arange(4)), (1, 2))
    [(tensor([0]), tensor([0, 1])), (tensor([1]), tensor([2, 3]))]
    """
    pieces = [part.split(size) for part, size in zip(parts, sizes, strict=True)]
    return list(zip(*pieces, strict=True))
