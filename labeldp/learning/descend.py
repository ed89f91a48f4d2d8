"""Descend on released gradients: one flat gradient in, one step of any torch optimiser. Knows no vault.

    θ_{t+1} = optimiser(θ_t, ĝ_t),   ĝ_t = gradient(t) ∈ R^P,   P = number of trainable parameters

A gradient is the trainable parameters' in `model.parameters()` order, end to end. It may be missing (None): a query
that was lost when a process died is not made again, and its step is skipped.

`Kept` holds released gradients and a checkpoint in a folder, so that a run killed at any moment goes on where it was. A
gradient is written and flushed before it is used. The checkpoint is replaced in one step; after it, older gradients are
dropped. Going on is: load the checkpoint, repeat the steps whose gradients are kept, request the next. What is kept are
releases and weights made from them: nothing that queries a vault.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labeldp.learning.optimisers import MakeOptimizer, Schedule, constant, sgd
from labeldp.learning.train import load_checkpoint, load_optimizer, save_checkpoint

Gradient = Callable[[int], Tensor | None]

# How many steps at most have to be repeated after a kill; more often would be slow for large models.
_STEPS_BETWEEN_CHECKPOINTS = 20
_SECONDS_BETWEEN_REPORTS = 2.0
# Step, number of values, bytes per value, check sum of the values.
_HEAD = struct.Struct("<qqII")


def descend(
    model: nn.Module,
    gradient: Gradient,
    *,
    steps: int,
    optimizer: MakeOptimizer | None = None,
    schedule: Schedule | None = None,
    average: float = 0.0,
    radius: float | None = None,
    kept: Kept | None = None,
    every: int = 0,
    report: Callable[[int], None] | None = None,
) -> nn.Module:
    """Take `steps` steps down the given gradients; return the model, changed in place and in eval mode.

    The model stays in the mode it came in while it descends: dropout works in training mode, and a frozen batch norm
    (eval mode) stays frozen.

    Args:
        gradient: step number → gradient at the model's present weights, (P,), or None for a lost one. It may raise
            `EndDescent`.
        optimizer, schedule: the optimiser's own rate is the peak (plain SGD at 0.1 when None); the schedule
            multiplies it.
        average: decay of an exponential moving average of the weights, which is then returned; 0 is off, and
            `usual_decay` is for noisy gradients.
        radius: keep the weights within this distance of the first ones; None is no bound.
        kept: a folder to go on from after a kill; `gradient` must then keep what it returns there before it returns.
        every: steps between two reports, or two seconds where steps take long; 0 reports at the end only.
        report: called with the number of steps done.

    >>> line = nn.Linear(1, 1, bias=False)
    >>> pull = lambda step: line.weight.detach().flatten() - 3.0
    >>> round(descend(line, pull, steps=200).weight.item(), 4)
    3.0
    """
    if steps < 0:
        raise ValueError(f"steps={steps} is not a number of steps; give at least 0")
    optimizer = optimizer or sgd(0.1, momentum=0.0, weight_decay=0.0)
    run = _Run(model, optimizer, schedule or constant(), steps, average, radius)
    start = done = run.restore(kept)
    told = time.monotonic()
    for step in range(start, steps):
        # Not at the first: that is where the checkpoint is, and a new one would drop the gradients kept since.
        if kept is not None and step > start and step % _STEPS_BETWEEN_CHECKPOINTS == 0:
            kept.save(step, run.state())
        try:
            found = gradient(step)
        except EndDescent:
            break
        if found is not None:
            run.step(found, step)
        done = step + 1
        due = (step + 1) % every == 0 or time.monotonic() - told > _SECONDS_BETWEEN_REPORTS if every else False
        if report is not None and due and step + 1 < steps:
            report(step + 1)
            told = time.monotonic()
    if kept is not None:
        kept.save(done, run.state())
    if report is not None:
        report(done)
    return run.finish()


def usual_decay(steps: int, schedule: Schedule | None = None) -> float:
    """Return 1 − 4/steps: weights averaged over about the last quarter of the steps; 0 where there are four or fewer.

    Noise moves the weights about in every step, and their average forgets most of it (Polyak & Juditsky 1992). Only the
    end is averaged, so that weights from before the model had learnt count little (Rakhlin et al. 2012): those it began
    with count e⁻⁴. A rule by the number of steps alone leaves nothing to tune.

    A schedule that ends with steps of next to nothing (4/steps of the peak) has averaged by itself: then it is 0, too.

    >>> from labeldp.learning.optimisers import linear
    >>> usual_decay(400), usual_decay(4), usual_decay(400, linear())
    (0.99, 0.0, 0.0)
    """
    part = 4.0 / max(steps, 1)
    settled = schedule is not None and schedule(1 - 1 / max(steps, 1)) <= part
    return 0.0 if settled else max(0.0, 1.0 - part)


class EndDescent(Exception):  # noqa: N818 - nothing is wrong
    """Raised by a gradient function to end a descent early; the weights so far are what it returns."""


class _Run:
    """Model, optimiser and average of one descent."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: MakeOptimizer,
        schedule: Schedule,
        steps: int,
        average: float,
        radius: float | None,
    ) -> None:
        self.model = model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.sizes = [p.numel() for p in self.parameters]
        self.optimizer = optimizer(self.parameters)
        self.peaks = [group["lr"] for group in self.optimizer.param_groups]
        self.schedule = schedule
        self.steps = steps
        self.decay = average
        self.average = [p.detach().clone() for p in self.parameters] if average else []
        self.radius = radius
        self.centre = [p.detach().clone() for p in self.parameters] if radius is not None else []

    def step(self, gradient: Tensor, step: int) -> None:
        if gradient.shape != (sum(self.sizes),):
            raise ValueError(f"the gradient has shape {tuple(gradient.shape)}; it must be ({sum(self.sizes)},)")
        factor = self.schedule(step / self.steps)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor
        for parameter, part in zip(self.parameters, gradient.split(self.sizes), strict=True):
            parameter.grad = part.view_as(parameter).to(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.radius is not None:
            self._back_into_ball(self.radius)
        if self.average:
            present = [p.detach() for p in self.parameters]
            torch._foreach_lerp_(self.average, present, 1.0 - self.decay)  # pyright: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def _back_into_ball(self, radius: float) -> None:
        away = [p - c for p, c in zip(self.parameters, self.centre, strict=True)]
        norm = torch.sqrt(torch.stack([(part * part).sum() for part in away]).sum())
        for parameter, centre, part in zip(self.parameters, self.centre, away, strict=True):
            parameter.copy_(centre + part * (radius / norm.clamp_min(radius)))

    def finish(self) -> nn.Module:
        with torch.no_grad():
            for parameter, mean in zip(self.parameters, self.average, strict=False):
                parameter.copy_(mean)
        return self.model.eval()

    def state(self) -> dict[str, object]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average,
            "centre": self.centre,
        }

    def restore(self, kept: Kept | None) -> int:
        """Load the checkpoint, or write the first one; returns the step to go on with."""
        if kept is None:
            return 0
        found = kept.load()
        if found is None:
            kept.save(0, self.state())
            return 0
        step, state = found
        self.model.load_state_dict(state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        for own, saved in zip(self.average + self.centre, state["average"] + state["centre"], strict=True):
            own.copy_(saved)
        return step


class Kept:
    """The gradients and the checkpoint of one run.

    Args:
        folder: where they are; made when there is none.
        run: the public name of the run. Another run's checkpoint is refused.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with Kept(folder, "demo") as kept:
    ...     kept.add(0, torch.tensor([1.0, 2.0]))
    >>> with Kept(folder, "demo") as kept:
    ...     kept.gradient(0), kept.gradient(1)
    (tensor([1., 2.]), None)
    """

    def __init__(self, folder: Path, run: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._run = folder, run
        self._log = os.open(folder / "gradients.log", os.O_RDWR | os.O_CREAT, 0o600)
        self._gradients, self._end = _read(self._log)
        os.ftruncate(self._log, self._end)

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._log)

    def gradient(self, step: int) -> Tensor | None:
        """Return the gradient that was released for this step, if it is kept."""
        return self._gradients.get(step)

    def add(self, step: int, gradient: Tensor) -> None:
        """Keep the gradient of a step; return when it is on the disk."""
        exact = gradient.dtype == torch.float64
        values = gradient.detach().to("cpu", torch.float64 if exact else torch.float32).numpy()
        content = values.tobytes()
        record = _HEAD.pack(step, values.size, values.itemsize, zlib.crc32(content)) + content
        rest, place = memoryview(record), self._end
        while rest:
            done = os.pwrite(self._log, rest, place)
            rest, place = rest[done:], place + done
        os.fsync(self._log)
        self._end = place

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Replace the checkpoint by the state before `step`, then forget the gradients of earlier steps."""
        save_checkpoint(self._folder / "checkpoint.safetensors", self._run, step, state)
        (self._folder / "checkpoint.pt").unlink(missing_ok=True)
        os.ftruncate(self._log, 0)
        self._gradients, self._end = {}, 0

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """Return step and state of the checkpoint, or None when there is none yet."""
        found = load_checkpoint(self._folder / "checkpoint.safetensors", self._run)
        if found is not None:
            return found.done, found.state
        # Runs that were paid for and begun by an earlier version. weights_only: it is data, it cannot run code.
        older = self._folder / "checkpoint.pt"
        if not older.exists():
            return None
        content = torch.load(older, map_location="cpu", weights_only=True)
        if content["run"] != self._run:
            raise ValueError(f"{older} is the checkpoint of another run; use a new folder")
        return int(content["step"]), content["state"]


def _read(log: int) -> tuple[dict[int, Tensor], int]:
    """Return the gradients that were written whole, and where they end: a kill may have cut the next one short."""
    gradients: dict[int, Tensor] = {}
    end = 0
    with os.fdopen(os.dup(log), "rb") as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            step, size, width, check = _HEAD.unpack(head)
            content = file.read(width * size) if size >= 0 and width in (4, 8) else b""
            if len(content) != width * size or zlib.crc32(content) != check:
                break
            gradients[step] = torch.from_numpy(np.frombuffer(content, dtype=f"<f{width}").copy())
            end += len(head) + len(content)
    return gradients, end
