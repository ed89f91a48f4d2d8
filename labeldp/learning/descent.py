"""The descent loop on released gradients: one flat gradient in, one step of any torch optimiser. Knows no vault.

    θ_{t+1} = optimiser(θ_t, ĝ_t),   ĝ_t = gradient(t) ∈ R^P,   P = number of trainable parameters

A gradient is the trainable parameters' in `model.parameters()` order, end to end. It may be missing (None): a look
that was lost when a process died is not asked again, and its step is skipped.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from labeldp.learning.fit import MakeOptimizer, sgd
from labeldp.learning.kept import Kept
from labeldp.learning.schedules import Schedule, constant

Gradient = Callable[[int], Tensor | None]

# How many steps at most have to be repeated after a kill; more often would be slow for large models.
_STEPS_BETWEEN_CHECKPOINTS = 20


def rmsprop(learning_rate: float, decay: float = 0.99, momentum: float = 0.0) -> MakeOptimizer:
    """RMSprop (Tieleman and Hinton 2012): steps scaled by the root of a running mean of squared gradients."""
    return lambda parameters: torch.optim.RMSprop(parameters, learning_rate, alpha=decay, momentum=momentum)


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
    """Take `steps` steps down the given gradients; returns the model, changed in place and in eval mode.

    The model stays in the mode it came in while it descends: dropout works in training mode, and a frozen batch norm
    (eval mode) stays frozen.

    Args:
        gradient: step number → gradient at the model's present weights, (P,), or None for a lost one.
        optimizer, schedule: the optimiser's own rate is the peak (plain SGD at 0.1 when None); the schedule
            multiplies it.
        average: decay of an exponential moving average of the weights, which is then returned; 0 is off.
        radius: keep the weights within this distance of the first ones; None is no bound.
        kept: a folder to go on from after a kill; `gradient` must then keep what it returns there before it returns.
        every: steps between two reports; 0 reports at the end only.
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
    start = run.restore(kept)
    for step in range(start, steps):
        # Not at the first: that is where the checkpoint is, and a new one would drop the gradients kept since.
        if kept is not None and step > start and step % _STEPS_BETWEEN_CHECKPOINTS == 0:
            kept.save(step, run.state())
        found = gradient(step)
        if found is not None:
            run.step(found, step)
        if report is not None and every and (step + 1) % every == 0 and step + 1 < steps:
            report(step + 1)
    if kept is not None:
        kept.save(steps, run.state())
    if report is not None:
        report(steps)
    return run.finish()


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
        self.optimizer.load_state_dict(state["optimizer"])
        for own, saved in zip(self.average + self.centre, state["average"] + state["centre"], strict=True):
            own.copy_(saved)
        return step
