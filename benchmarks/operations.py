"""Count the operations of a step of training, with views of one batch at a time and of 32 at once.

A GPU's host launches operations one by one, and a small network waits for it. This counts them, of ResNet-18's layers
at a width of 4 on tiny images, on the CPU. Optimiser steps count more here than there, where one operation updates many
weights.

    python benchmarks/operations.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from labeldp.features.augment import byol_views, learned_view, scaled, strong_view, weak_view
from labeldp.features.contrastive import byol, simclr
from labeldp.learning import train as ahead
from labeldp.learning.evidence import on_classes
from labeldp.learning.fixmatch import fixmatch
from labeldp.learning.mean_teacher import mean_teacher
from labeldp.learning.optimisers import lars
from labeldp.learning.train import fit
from labeldp.models.zoo import resnet18_v2

STEPS, BATCH, SIDE = 64, 8, 8
HALF, SPREAD = (0.5,) * 3, (0.25,) * 3


class Counted(TorchDispatchMode):
    """Counts what reaches a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def body() -> nn.Module:
    """Images to features."""
    return resnet18_v2(10, width=4).get_submodule("body")


def trainings() -> dict[str, Callable[[], nn.Module]]:
    """An epoch of STEPS steps of each."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(STEPS * BATCH, 3, SIDE, SIDE, generator=generator)
    objective = on_classes(torch.randint(10, (len(images),), generator=generator))
    weak, strong, learned = (
        scaled(view, HALF, SPREAD) for view in (weak_view(1), strong_view(1, cut=2), learned_view(1))
    )

    def trained(train: Callable[..., nn.Module], **settings: Any) -> Callable[[], nn.Module]:
        return lambda: train(resnet18_v2(10, width=4), images, objective, epochs=1, **settings)

    return {
        "FixMatch": trained(fixmatch, batch_size=1, ratio=BATCH, apart=True, weak=weak, strong=strong),
        "mean teacher": trained(mean_teacher, batch_size=BATCH, weak=weak, strong=learned),
        "fit, AutoAugment": trained(fit, batch_size=BATCH, augment=learned),
        "SimCLR": lambda: simclr(body(), images, epochs=1, batch_size=BATCH).model,
        "BYOL with LARS": lambda: (
            byol(body(), images, epochs=1, batch_size=BATCH, view=byol_views(), optimizer=lars(0.1)).model
        ),
    }


def operations(train: Callable[[], nn.Module], batches: int) -> float:
    """Operations in a step, with views of so many batches at once."""
    with mock.patch.dict(ahead._BATCHES, cpu=batches), Counted() as counted:
        train()
    return counted.count / STEPS


def main() -> None:
    """One line for each."""
    for name, train in trainings().items():
        one, many = (operations(train, batches) for batches in (1, 32))
        print(f"{name:>16}: {one:,.0f} operations in a step; with views of 32 batches at once {many:,.0f}")


if __name__ == "__main__":
    main()
