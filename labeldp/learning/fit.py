"""The training loop: data on the device, no per-row Python, no waiting for the device inside an epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor, nn

from labeldp.learning.ahead import Ahead, in_batches
from labeldp.learning.augment import Augment
from labeldp.learning.checkpoint import load_checkpoint, save_checkpoint
from labeldp.learning.layout import channels_first, channels_last
from labeldp.learning.objectives import Objective
from labeldp.learning.schedules import Schedule, constant

# One tensor, or one per argument of the model; the first dimension counts rows.
Inputs = Tensor | tuple[Tensor, ...]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Progress:
    """What `report` is told after every epoch. `loss` is the mean training loss on private targets."""

    epoch: int
    epochs: int
    loss: float
    seconds: float


Report = Callable[[Progress], None]


def sgd(
    learning_rate: float, momentum: float = 0.9, weight_decay: float = 1e-4, nesterov: bool = True
) -> MakeOptimizer:
    """Stochastic gradient descent; the weight decay is on all parameters."""
    return lambda parameters: torch.optim.SGD(
        parameters, learning_rate, momentum, weight_decay=weight_decay, nesterov=nesterov and momentum > 0
    )


def adam(learning_rate: float, weight_decay: float = 0.0) -> MakeOptimizer:
    """Adam with decoupled weight decay."""
    return lambda parameters: torch.optim.AdamW(parameters, learning_rate, weight_decay=weight_decay)


def fit(
    model: nn.Module,
    inputs: Inputs,
    objective: Objective,
    *,
    epochs: int,
    rows: Tensor | None = None,
    batch_size: int = 512,
    optimizer: MakeOptimizer | None = None,
    schedule: Schedule | None = None,
    augment: Augment | None = None,
    mixup: float = 0.0,
    average: float = 0.0,
    bf16: bool | None = None,
    compiled: bool = False,
    seed: int = 0,
    report: Report | None = None,
    checkpoint: Path | None = None,
) -> nn.Module:
    """Minimise the mean objective over the rows; returns the model, trained in place and in eval mode.

    Args:
        inputs: features of all rows, already on the model's device.
        objective: (logits, row numbers) → loss per row.
        rows: the rows to train on (all when None), on the same device.
        batch_size: the last, smaller batch of an epoch is dropped unless it is the only one.
        optimizer, schedule: the optimiser's own rate is the peak; the schedule multiplies it.
        augment: changes images, each on its own; on a GPU it is given those of several batches at once.
        mixup: Beta parameter of convex combinations of the batch with its reverse (Zhang et al. 2018); 0 is off.
        average: decay of an exponential moving average of the weights, which is then returned; 0 is off.
        bf16: mixed precision with bfloat16; on when None and the device is a GPU.
        compiled: run through torch.compile.
        seed: of order, augmentation and mixup. The same seed on the same device gives the same model.
        report: called after every epoch.
        checkpoint: a file written after every epoch and resumed from when it exists.
    """
    device = next(model.parameters()).device
    count = len(rows) if rows is not None else len(_first(inputs))
    _check(inputs, epochs, batch_size, count)
    batches = max(1, count // batch_size)
    run = _Run(model, optimizer or sgd(0.1), schedule or constant(), epochs * batches, average, device, seed)
    lambdas = _mixup_weights(mixup, epochs * batches, seed, device)
    start = run.resume(checkpoint)
    forward = torch.compile(model) if compiled else model
    precision = _precision(device, bf16)
    given = Ahead(_views(inputs, augment, batch_size), batch_size, _first(inputs))
    model.train()
    for epoch in range(start, epochs):
        begun, total = time.perf_counter(), torch.zeros((), device=device)
        order = _order(rows, count, run.generator, device)[: batches * batch_size]
        for b in range(batches):
            given.ready(b, order, run.generator)
            chosen = order[b * batch_size : (b + 1) * batch_size]
            step = epoch * batches + b
            with precision(), _repeatable():
                loss = _loss(forward, given.now, chosen, objective, None if lambdas is None else lambdas[step])
            run.step(loss, step)
            total += loss.detach()
        run.save(checkpoint, epoch + 1)
        if report is not None:
            report(Progress(epoch + 1, epochs, total.item() / batches, time.perf_counter() - begun))
    return run.finish()


class _Run:
    """Model, optimiser, average and random state of one training."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: MakeOptimizer,
        schedule: Schedule,
        steps: int,
        average: float,
        device: torch.device,
        seed: int,
    ) -> None:
        channels_last(model)
        self.model = model
        self.optimizer = optimizer(model.parameters())
        self.peaks = [group["lr"] for group in self.optimizer.param_groups]
        self.schedule = schedule
        self.steps = steps
        self.decay = average
        self.average = [p.detach().clone() for p in model.parameters()] if average else []
        self.generator = Generator(device).manual_seed(seed)

    def step(self, loss: Tensor, step: int) -> None:
        factor = self.schedule(step / self.steps)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor
        self.optimizer.zero_grad(set_to_none=True)
        with _repeatable():
            loss.backward()
        self.optimizer.step()
        if self.average:
            parameters = [p.detach() for p in self.model.parameters()]
            torch._foreach_lerp_(self.average, parameters, 1.0 - self.decay)  # pyright: ignore[reportPrivateImportUsage]

    def finish(self) -> nn.Module:
        with torch.no_grad():
            for parameter, mean in zip(self.model.parameters(), self.average, strict=False):
                parameter.copy_(mean)
        channels_first(self.model)
        return self.model.eval()

    def save(self, path: Path | None, epoch: int) -> None:
        if path is not None:
            save_checkpoint(path, self.model, self.optimizer, self.average, self.generator, epoch)

    def resume(self, path: Path | None) -> int:
        if path is None or not path.exists():
            return 0
        return load_checkpoint(path, self.model, self.optimizer, self.average, self.generator)


def _loss(
    model: Callable[..., Tensor], batch: tuple[Tensor, ...], rows: Tensor, objective: Objective, mix: Tensor | None
) -> Tensor:
    if mix is None:
        return objective(model(*batch).float(), rows).mean()
    mixed = tuple(x * mix.to(x.dtype) + x.flip(0) * (1 - mix).to(x.dtype) for x in batch)
    logits = model(*mixed).float()
    return (mix * objective(logits, rows) + (1 - mix) * objective(logits, rows.flip(0))).mean()


def _views(
    inputs: Inputs, augment: Augment | None, batch_size: int
) -> Callable[[Tensor, Generator], list[tuple[Tensor, ...]]]:
    """Row numbers of some batches → the inputs of each, the first of them changed."""
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)

    def make(rows: Tensor, generator: Generator) -> list[tuple[Tensor, ...]]:
        chosen = [x[rows] for x in tensors]
        if augment is not None:
            chosen[0] = augment(chosen[0], generator)
        return in_batches(chosen, [batch_size] * len(chosen))

    return make


def _order(rows: Tensor | None, count: int, generator: Generator, device: torch.device) -> Tensor:
    order = torch.randperm(count, device=device, generator=generator)
    return order if rows is None else rows[order]


def _mixup_weights(alpha: float, steps: int, seed: int, device: torch.device) -> Tensor | None:
    """One weight per step, drawn ahead: a draw inside the loop would have to wait for the host."""
    if alpha <= 0:
        return None
    weights = np.random.default_rng(seed).beta(alpha, alpha, size=steps)
    return torch.from_numpy(weights).float().to(device)


def _precision(device: torch.device, bf16: bool | None) -> Callable[[], AbstractContextManager[object]]:
    if bf16 if bf16 is not None else device.type == "cuda":
        return lambda: torch.autocast(device.type, torch.bfloat16)
    return nullcontext


def _repeatable() -> AbstractContextManager[object]:
    """Convolutions on a GPU by the same algorithm each time, so that a seed decides the result."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=True)


def predict(model: nn.Module, inputs: Inputs, *, batch_size: int = 4096, bf16: bool | None = None) -> Tensor:
    """Logits of all rows, float32, on the model's device; the model is left as it was."""
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    device = tensors[0].device
    was_training, precision = model.training, _precision(device, bf16)
    model.eval()
    with torch.no_grad(), precision():
        starts = range(0, len(tensors[0]), batch_size)
        parts = [model(*(x[i : i + batch_size] for x in tensors)).float() for i in starts]
    model.train(was_training)
    return torch.cat(parts) if parts else torch.empty(0, device=device)


def accuracy(model: nn.Module, inputs: Inputs, labels: Tensor | np.ndarray) -> float:
    """Share of rows whose likeliest class is the given one. For open test labels, never for a vault's."""
    truth = torch.as_tensor(labels, device=_first(inputs).device)
    return (predict(model, inputs).argmax(dim=1) == truth).float().mean().item()


def _first(inputs: Inputs) -> Tensor:
    return inputs[0] if isinstance(inputs, tuple) else inputs


def _check(inputs: Inputs, epochs: int, batch_size: int, count: int) -> None:
    if epochs < 1:
        raise ValueError(f"epochs={epochs} trains nothing; give at least 1")
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} is not a number of rows; give at least 1")
    if count < 1:
        raise ValueError("there are no rows to train on; give at least one")
    for number, tensor in enumerate(inputs if isinstance(inputs, tuple) else (inputs,)):
        if tensor.is_floating_point() and not math.isfinite(tensor.sum(dtype=torch.float64).item()):
            bad = int((~torch.isfinite(tensor)).flatten(1).any(dim=1).sum()) if tensor.ndim > 1 else 0
            raise ValueError(f"inputs[{number}] has {bad} rows that are not finite; fill in or drop missing features")
