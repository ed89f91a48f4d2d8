"""Random changes to batches of images, on the device and for the whole batch at once.

An augmentation maps images (n, C, H, W) and a generator to images of the same shape. All randomness comes from
the generator, so training is repeatable; nothing is copied to the host.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

Augment = Callable[[Tensor, Generator], Tensor]


def compose(*augments: Augment) -> Augment:
    """One after the other."""

    def augment(images: Tensor, generator: Generator) -> Tensor:
        for each in augments:
            images = each(images, generator)
        return images

    return augment


def random_crop(padding: int = 4, mode: str = "constant") -> Augment:
    """Pad every side, then cut out the old size at a random place, another one for each image."""

    def augment(images: Tensor, generator: Generator) -> Tensor:
        n, _, height, width = images.shape
        padded = pad(images, [padding] * 4, mode=mode).permute(0, 2, 3, 1)
        top, left = (_integers(2 * padding + 1, n, generator) for _ in range(2))
        rows = top[:, None] + torch.arange(height, device=images.device)
        columns = left[:, None] + torch.arange(width, device=images.device)
        every = torch.arange(n, device=images.device)
        # One gather in NHWC order: the result seen as NCHW is channels-last already.
        return padded[every[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)

    return augment


def random_flip(chance: float = 0.5) -> Augment:
    """Mirror left and right, each image with this chance."""

    def augment(images: Tensor, generator: Generator) -> Tensor:
        mirrored = torch.rand(len(images), device=images.device, generator=generator) < chance
        return torch.where(mirrored[:, None, None, None], images.flip(-1), images)

    return augment


def cutout(size: int = 8, fill: float = 0.0) -> Augment:
    """Blank a square at a random place of each image; it may lie partly outside (DeVries and Taylor 2017)."""

    def augment(images: Tensor, generator: Generator) -> Tensor:
        n, _, height, width = images.shape
        rows, columns = _band(height, size, n, generator), _band(width, size, n, generator)
        return images.masked_fill(rows[:, None, :, None] & columns[:, None, None, :], fill)

    return augment


def _band(length: int, size: int, n: int, generator: Generator) -> Tensor:
    """A run of `size` places around a random centre, (n, length)."""
    start = _integers(length, n, generator) - size // 2
    places = torch.arange(length, device=generator.device)
    return (places >= start[:, None]) & (places < start[:, None] + size)


def _integers(bound: int, n: int, generator: Generator) -> Tensor:
    return torch.randint(bound, (n,), device=generator.device, generator=generator)
