"""Two networks trained side by side: their optimisers, random state, checkpoints, and both as one model."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import log_softmax

from labeldp.learning.fit import MakeOptimizer, Progress
from labeldp.learning.layout import channels_first, channels_last
from labeldp.learning.loop import PausedError
from labeldp.models.shared import checked_count


@dataclass(frozen=True)
class Refined(Progress):
    """`Progress` with the share of labels that were believed in this epoch; nan while warming up."""

    believed: float


# Number of the epoch → its mean loss, on the device, and the share of labels believed.
OneEpoch = Callable[[int], tuple[Tensor, Tensor]]


class Pair(nn.Module):
    """Two networks as one: the logarithm of their mean probabilities."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, …) → (n, K)."""
        both = torch.stack([log_softmax(net(inputs).float(), dim=1) for net in (self.first, self.second)])
        return both.logsumexp(dim=0) - math.log(2)


def another(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy with the entries of every weight in another order: other first weights by the same law, whatever it was.

    Right for entries drawn independently, not for weights that were trained: a plain copy keeps what those know.
    """
    made, generator = copy.deepcopy(model), Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return made


class TwoNetworks:
    """Networks, optimisers, random state and the losses of the last epochs."""

    def __init__(
        self, nets: tuple[nn.Module, nn.Module], optimizer: MakeOptimizer, seed: int, bf16: bool | None, compiled: bool
    ) -> None:
        for net in nets:
            channels_last(net)
        self.nets = nets
        self.forwards: list[Any] = [torch.compile(net) if compiled else net for net in nets]
        self.optimizers = [optimizer(net.parameters()) for net in nets]
        self.peaks = [[group["lr"] for group in each.param_groups] for each in self.optimizers]
        self.device = next(nets[0].parameters()).device
        self.generator = Generator(self.device).manual_seed(seed)
        self.losses: list[Tensor] = []
        self._bf16 = self.device.type == "cuda" if bf16 is None else bf16

    def precision(self) -> AbstractContextManager[object]:
        """Mixed or full."""
        return torch.autocast(self.device.type, torch.bfloat16) if self._bf16 else nullcontext()

    def set_rate(self, factor: float) -> None:
        """The learning rates, as a share of their peaks."""
        for optimizer, peaks in zip(self.optimizers, self.peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor

    def step(self, number: int, loss: Tensor) -> None:
        """One step of one network."""
        self.optimizers[number].zero_grad(set_to_none=True)
        with repeatable():
            loss.backward()
        self.optimizers[number].step()

    def run(
        self,
        one_epoch: OneEpoch,
        epochs: int,
        run: str,
        report: Callable[[Refined], None] | None,
        checkpoint: Path | None,
        every: int,
        seconds: float | None,
    ) -> Pair:
        """All epochs from the checkpoint's on; see `co_refine` for the arguments."""
        begun = time.perf_counter()
        for epoch in range(self._resume(checkpoint, run), epochs):
            started = time.perf_counter()
            loss, believed = one_epoch(epoch)
            late = seconds is not None and time.perf_counter() - begun > seconds and epoch + 1 < epochs
            if late or epoch + 1 == epochs or (epoch + 1) % checked_count("every", every) == 0:
                self._save(checkpoint, run, epoch + 1)
            if report is not None:
                took = time.perf_counter() - started
                report(Refined(epoch + 1, epochs, loss.item(), took, believed.item()))
            if late:
                raise PausedError(f"paused after epoch {epoch + 1} of {epochs}; call again to go on from {checkpoint}")
        both = Pair(*self.nets)
        channels_first(both)
        return both.eval()

    def _save(self, path: Path | None, run: str, epoch: int) -> None:
        """In one step: an older file stays until the new one is whole."""
        if path is None:
            return
        state = {
            "nets": [net.state_dict() for net in self.nets],
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "generator": self.generator.get_state(), "losses": self.losses, "epoch": epoch, "run": run,
        }  # fmt: skip
        draft = path.with_name(path.name + ".part")
        torch.save(state, draft)
        os.replace(draft, path)

    def _resume(self, path: Path | None, run: str) -> int:
        if path is None or not path.exists():
            return 0
        # weights_only: a checkpoint is data, it cannot run code.
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state["run"] != run:
            raise ValueError(f"checkpoint {path.name} belongs to a run with other data or settings; name another file")
        for part, saved in zip((*self.nets, *self.optimizers), (*state["nets"], *state["optimizers"]), strict=True):
            part.load_state_dict(saved)
        self.generator.set_state(state["generator"])
        self.losses = [losses.to(self.device) for losses in state["losses"]]
        return int(state["epoch"])


def repeatable() -> AbstractContextManager[object]:
    """Convolutions on a GPU by the same algorithm each time, so that a seed decides the result."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=True)
