"""The training loop of methods without targets: a loss of row numbers, data on the device, no waiting inside an epoch.

`labeldp.learning.fit` is for targets of single rows; here a loss may look at pairs, or at a whole batch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypedDict

import torch
from torch import Generator, Tensor, nn

from labeldp.learning.fit import MakeOptimizer, Progress, Report
from labeldp.learning.schedules import Schedule
from labeldp.models.shared import checked_count

# Row numbers of a batch and the generator of all randomness → the loss to be lowered.
BatchLoss = Callable[[Tensor, Generator], Tensor]
# Number of a batch in its epoch, the rows of all of the epoch's batches in their order, and the same generator.
Before = Callable[[int, Tensor, Generator], None]


class LoopSettings(TypedDict, total=False):
    """Settings of `minimise` that methods pass on as they are."""

    batch_size: int
    optimizer: MakeOptimizer
    schedule: Schedule
    bf16: bool | None
    report: Report | None
    checkpoint: Path | None
    every: int
    seconds: float | None


class PausedError(Exception):
    """Training stopped where its time was up; the same call with the same checkpoint goes on."""


def minimise(
    network: nn.Module,
    loss: BatchLoss,
    count: int,
    *,
    epochs: int,
    batch_size: int,
    optimizer: MakeOptimizer,
    schedule: Schedule,
    before: Before | None = None,
    after: Callable[[float], None] | None = None,
    bf16: bool | None = None,
    seed: int = 0,
    report: Report | None = None,
    checkpoint: Path | None = None,
    every: int = 10,
    seconds: float | None = None,
    run: str = "",
) -> None:
    """Lower the loss over batches of the rows 0 … count − 1; the network is trained in place.

    Args:
        batch_size: the last, smaller batch of an epoch is dropped unless it is the only one.
        optimizer: of the parameters that require gradients; its own rate is the peak, which the schedule multiplies.
        before: called before every batch, outside mixed precision, for what several share (`labeldp.learning.ahead`).
        after: called after every step with the share of training done, for moving averages.
        bf16: mixed precision with bfloat16; on when None and the device is a GPU.
        seed: of order and views. The same seed on the same device gives the same network.
        checkpoint, every: a file written every so many epochs and at the end, and resumed from when it exists.
        seconds: after so long, at the end of an epoch, write the checkpoint and raise `PausedError`.
        run: what the checkpoint belongs to; that of another run is refused.
    """
    device = next(network.parameters()).device
    batches = _batches(count, checked_count("epochs", epochs), checked_count("batch_size", batch_size))
    if seconds is not None and checkpoint is None:
        raise ValueError(f"seconds={seconds} but checkpoint is None; name a file to go on from")
    state = _State(network, optimizer, Generator(device).manual_seed(seed), run)
    begun, done = time.perf_counter(), state.resume(checkpoint)
    network.train()
    for epoch in range(done, epochs):
        started, total = time.perf_counter(), torch.zeros((), device=device)
        order = torch.randperm(count, device=device, generator=state.generator)
        order = order[: batches * batch_size]
        for b in range(batches):
            if before is not None:
                before(b, order, state.generator)
            share = (epoch * batches + b) / (epochs * batches)
            with _precision(device, bf16), _repeatable():
                value = loss(order[b * batch_size : (b + 1) * batch_size], state.generator)
            state.step(value, schedule(share))
            if after is not None:
                after(share)
            total += value.detach()
        late = seconds is not None and time.perf_counter() - begun > seconds and epoch + 1 < epochs
        if late or epoch + 1 == epochs or (epoch + 1) % checked_count("every", every) == 0:
            state.save(checkpoint, epoch + 1)
        if report is not None:
            report(Progress(epoch + 1, epochs, total.item() / batches, time.perf_counter() - started))
        if late:
            raise PausedError(f"paused after epoch {epoch + 1} of {epochs}; call again to go on from {checkpoint}")


class _State:
    """Network, optimiser and random state of one training."""

    def __init__(self, network: nn.Module, optimizer: MakeOptimizer, generator: Generator, run: str) -> None:
        self.network, self.generator, self.run = network, generator, run
        self.optimizer = optimizer(parameter for parameter in network.parameters() if parameter.requires_grad)
        self.peaks = [group["lr"] for group in self.optimizer.param_groups]

    def step(self, loss: Tensor, factor: float) -> None:
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor
        self.optimizer.zero_grad(set_to_none=True)
        with _repeatable():
            loss.backward()
        self.optimizer.step()

    def save(self, path: Path | None, epoch: int) -> None:
        """In one step: an older file stays until the new one is whole."""
        if path is None:
            return
        parts = {"network": self.network, "optimizer": self.optimizer}
        state = {name: part.state_dict() for name, part in parts.items()}
        draft = path.with_name(path.name + ".part")
        torch.save({**state, "generator": self.generator.get_state(), "epoch": epoch, "run": self.run}, draft)
        os.replace(draft, path)

    def resume(self, path: Path | None) -> int:
        if path is None or not path.exists():
            return 0
        # weights_only: a checkpoint is data, it cannot run code.
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state["run"] != self.run:
            raise ValueError(f"checkpoint {path.name} belongs to a run with other data or settings; name another file")
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        return int(state["epoch"])


def _batches(count: int, epochs: int, batch_size: int) -> int:
    if count < 2:
        raise ValueError(f"{count} rows are too few to train {epochs} epochs on; give at least two")
    return max(1, count // batch_size)


def _precision(device: torch.device, bf16: bool | None) -> AbstractContextManager[object]:
    if bf16 if bf16 is not None else device.type == "cuda":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def _repeatable() -> AbstractContextManager[object]:
    """Convolutions on a GPU by the same algorithm each time, so that a seed decides the result."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=True)
