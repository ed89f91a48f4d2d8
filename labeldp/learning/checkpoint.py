"""Training interrupted and continued. A checkpoint holds weights and random state: nothing that asks a vault."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Generator, Tensor, nn


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: list[Tensor],
    generator: Generator,
    epoch: int,
) -> None:
    """Write everything needed to go on after `epoch`, in one step: an older file stays until the new one is whole."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "average": average,
        "generator": generator.get_state(),
        "epoch": epoch,
    }
    draft = path.with_name(path.name + ".part")
    torch.save(state, draft)
    os.replace(draft, path)


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, average: list[Tensor], generator: Generator
) -> int:
    """Restore in place; returns the number of epochs already done."""
    # weights_only: a checkpoint is data, it cannot run code.
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    for mean, saved in zip(average, state["average"], strict=True):
        mean.copy_(saved)
    generator.set_state(state["generator"])
    return int(state["epoch"])
