"""Optimisers as arguments, and schedules: functions from the share of training done to a factor on the peak rate.

A schedule counts from the start of training, warm-up included, so that a drop "at 30%" happens at 30%: step t of T uses
the factor at t / T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
# From the share of training done, in [0, 1), to a factor on the peak rate.
Schedule = Callable[[float], float]
# Operations on lists of tensors: a few launches in place of hundreds. torch has no public names for them.
foreach: Any = torch


def sgd(
    learning_rate: float, momentum: float = 0.9, weight_decay: float = 1e-4, nesterov: bool = True
) -> MakeOptimizer:
    """Make stochastic gradient descent; the weight decay is on all parameters."""
    return lambda parameters: torch.optim.SGD(
        parameters, learning_rate, momentum, weight_decay=weight_decay, nesterov=nesterov and momentum > 0
    )


def adam(learning_rate: float, weight_decay: float = 0.0) -> MakeOptimizer:
    """Make Adam with decoupled weight decay."""
    return lambda parameters: torch.optim.AdamW(parameters, learning_rate, weight_decay=weight_decay)


def weights_sgd(learning_rate: float, momentum: float = 0.9, weight_decay: float = 5e-4) -> MakeOptimizer:
    """Make Nesterov SGD with weight decay on weights, not on biases and norms (parameters of one dimension)."""

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        every = list(parameters)
        wide, thin = ([p for p in every if (p.ndim > 1) == large] for large in (True, False))
        groups = [{"params": wide, "weight_decay": weight_decay}, {"params": thin, "weight_decay": 0.0}]
        kept = [group for group in groups if group["params"]]
        return torch.optim.SGD(kept, learning_rate, momentum, nesterov=momentum > 0)

    return make


def rmsprop(learning_rate: float, decay: float = 0.99, momentum: float = 0.0) -> MakeOptimizer:
    """Make RMSprop (Tieleman and Hinton 2012): steps scaled by the root of a running mean of squared gradients."""
    return lambda parameters: torch.optim.RMSprop(parameters, learning_rate, alpha=decay, momentum=momentum)


def lars(learning_rate: float, momentum: float = 0.9, weight_decay: float = 1e-5, trust: float = 0.02) -> MakeOptimizer:
    """Make `Lars`, for the large batches of self-supervision; no scale and no weight decay on biases and norms."""
    return lambda parameters: Lars(parameters, learning_rate, momentum, weight_decay, trust)


class Lars(torch.optim.Optimizer):
    """SGD with momentum whose steps are bounded by the size of what they change (You, Gitman and Ginsburg 2017).

    A weight w of two dimensions or more with gradient g moves along d = g + decay · w, scaled by

        min(1, trust · |w| / (|g| + decay · |w|) / rate),

    so that it moves at the smaller one of `rate` and trust · |w| / (|g| + decay · |w|). Biases and the parameters of
    norms (one dimension) are neither scaled nor decayed. Nothing waits for the device.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 1e-5,
        trust: float = 0.02,
    ) -> None:
        if not trust > 0:
            raise ValueError(f"trust={trust} is not a share of a weight's length; 0.02 is usual")
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            for wide in (True, False):
                if parts := [parameter for parameter in moved if (parameter.ndim > 1) == wide]:
                    self._move(parts, group, adapted=wide)

    def _move(self, parameters: list[Tensor], group: dict[str, Any], *, adapted: bool) -> None:
        directions = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if adapted:
            lengths, steepness = (torch.stack(foreach._foreach_norm(each)) for each in (parameters, directions))
            trusted = group["trust"] * lengths / (steepness + group["weight_decay"] * lengths + 1e-8)
            scales = torch.where((lengths > 0) & (steepness > 0), (trusted / group["lr"]).clamp(max=1), 1.0)
            directions = foreach._foreach_add(directions, parameters, alpha=group["weight_decay"])
            foreach._foreach_mul_(directions, list(scales.unbind()))
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        speeds = [self.state[parameter]["momentum"] for parameter in parameters]
        foreach._foreach_mul_(speeds, group["momentum"])
        foreach._foreach_add_(speeds, directions)
        foreach._foreach_add_(parameters, speeds, alpha=-group["lr"])


# -- schedules --------------------------------------------------------------------------------------------------------


def constant() -> Schedule:
    """Keep the peak rate throughout."""
    return lambda done: 1.0


def piecewise(drops: tuple[float, ...] = (0.3, 0.6, 0.9), factor: float = 0.1, warmup: float = 0.15) -> Schedule:
    """Rise linearly from 0 to the peak during `warmup`, then multiply by `factor` at each of `drops`.

    >>> rate = piecewise()
    >>> [round(rate(done), 3) for done in (0.0, 0.075, 0.15, 0.299, 0.3, 0.6, 0.9)]
    [0.0, 0.5, 1.0, 1.0, 0.1, 0.01, 0.001]
    """
    _check_warmup(warmup)
    return lambda done: _ramp(done, warmup) * factor ** sum(done >= drop for drop in drops)


def linear(warmup: float = 0.15) -> Schedule:
    """Rise linearly from 0 to the peak during `warmup`, then fall linearly to 0 at the end.

    >>> rate = linear(warmup=0.2)
    >>> [round(rate(done), 3) for done in (0.0, 0.1, 0.2, 0.6, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    _check_warmup(warmup)
    return lambda done: _ramp(done, warmup) * min(1.0, (1.0 - done) / (1.0 - warmup))


def one_cycle(warmup: float = 0.3, start: float = 0.04, end: float = 1e-4) -> Schedule:
    """Rise by a cosine from `start` to the peak during `warmup`, fall by one to `end` (Smith and Topin 2019)."""
    _check_warmup(warmup)

    def rate(done: float) -> float:
        if done < warmup:
            return _cosine(start, 1.0, done / warmup)
        return _cosine(1.0, end, (done - warmup) / (1.0 - warmup))

    return rate


def cosine(warmup: float = 0.0) -> Schedule:
    """Rise linearly from 0 during `warmup`, then fall by half a cosine from the peak to 0."""
    _check_warmup(warmup)
    return lambda done: _ramp(done, warmup) * _cosine(1.0, 0.0, max(0.0, done - warmup) / (1.0 - warmup))


def seven_sixteenths() -> Schedule:
    """Fall as cos(7π/16 · share of training done), from 1 to about 0.195 (Sohn et al. 2020).

    >>> round(seven_sixteenths()(1.0), 3)
    0.195
    """
    return lambda done: math.cos(7 * math.pi / 16 * done)


def _ramp(done: float, warmup: float) -> float:
    return min(1.0, done / warmup) if warmup else 1.0


def _cosine(first: float, last: float, share: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * min(share, 1.0))) / 2


def _check_warmup(warmup: float) -> None:
    if not 0 <= warmup < 1:
        raise ValueError(f"warmup={warmup} is not a share of training; give a number in [0, 1)")
