"""Tiny pictures for the semi-supervised tests: a bright stroke in one of three directions, somewhere, and noise."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from labeldp.features.augment import compose, random_crop
from labeldp.learning.train import Batch

K, SIDE = 3, 8
_STROKES = np.stack([np.eye(4), np.fliplr(np.eye(4)), np.tile([0.0, 1, 0, 1], (4, 1))])


@functools.cache
def pictures(n: int = 600, seed: int = 0, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """Images in [0, 1], (n, 1, 8, 8), and their classes."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, K, size=n)
    images = 0.3 + noise * generator.normal(size=(n, 1, SIDE, SIDE))
    places = generator.integers(0, SIDE - 3, size=(n, 2))
    for image, label, (top, left) in zip(images, labels, places, strict=True):
        image[0, top : top + 4, left : left + 4] += 0.6 * _STROKES[label]
    return torch.from_numpy(images.clip(0, 1)).float(), torch.from_numpy(labels)


def network(seed: int = 0, norm: bool = True) -> nn.Module:
    """A small convolution with batch norm, so that buffers are tested too."""
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 12, 4), nn.BatchNorm2d(12) if norm else nn.Identity(), nn.ReLU(), nn.AdaptiveMaxPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12, K))


def noisier(images: Tensor, generator: Generator) -> Tensor:
    """A strong view that keeps the class of a stroke."""
    factor = 0.6 + 0.8 * torch.rand(len(images), 1, 1, 1, generator=generator)
    return (images * factor + 0.1 * torch.randn(images.shape, generator=generator)).clamp(0, 1)


WEAK = random_crop(1, mode="reflect")
STRONG = compose(WEAK, noisier)


def probed(model: nn.Module) -> tuple[nn.Module, list[bool]]:
    """The model, computing in full precision whatever it is told, and whether it was told to use mixed precision.

    Some processors say that they can multiply bfloat16 and cannot.
    """
    seen: list[bool] = []

    class Probed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, images: Tensor) -> Tensor:
            seen.append(torch.is_autocast_enabled("cpu"))
            with torch.autocast("cpu", enabled=False):
                return self.inner(images)

    return Probed(), seen


def one_batch(rows: Tensor, step: int = 0, steps: int = 1) -> Batch:
    """A batch that is all of its epoch."""
    return Batch(rows, rows, 0, step, steps, Generator().manual_seed(5))


def loss_of(seen: dict[str, Any], rows: Tensor, **place: int) -> Tensor:
    """The loss of one batch, by what `minimise` was given."""
    return seen["loss"](*seen["arguments"](one_batch(rows, **place)))
