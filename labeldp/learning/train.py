"""The training loop: data on the device, no per-row Python, no waiting for the device inside an epoch."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypedDict, TypeVar

import numpy as np
import torch
from torch import Generator, Tensor, nn

from labeldp.features.augment import Augment
from labeldp.learning.evidence import Objective
from labeldp.models.zoo import checked_count

# --- checkpoint --------------------
#
# Training interrupted and continued. A checkpoint holds weights and random state: nothing that asks a vault.


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


# --- schedules --------------------
#
# Learning-rate schedules: functions from the share of training done, in [0, 1), to a factor on the peak rate.
#
# A schedule counts from the start of training, warm-up included, so a drop "at 30%" happens at 30%: step t of T
# uses the factor at t / T.


Schedule = Callable[[float], float]


def constant() -> Schedule:
    """The peak rate throughout."""
    return lambda done: 1.0


def piecewise(drops: tuple[float, ...] = (0.3, 0.6, 0.9), factor: float = 0.1, warmup: float = 0.15) -> Schedule:
    """Linear from 0 to the peak during `warmup`, then multiplied by `factor` at each of `drops`.

    >>> rate = piecewise()
    >>> [round(rate(done), 3) for done in (0.0, 0.075, 0.15, 0.299, 0.3, 0.6, 0.9)]
    [0.0, 0.5, 1.0, 1.0, 0.1, 0.01, 0.001]
    """
    _check_share("warmup", warmup)
    return lambda done: _ramp(done, warmup) * factor ** sum(done >= drop for drop in drops)


def linear(warmup: float = 0.15) -> Schedule:
    """Linear from 0 to the peak during `warmup`, then linear to 0 at the end.

    >>> rate = linear(warmup=0.2)
    >>> [round(rate(done), 3) for done in (0.0, 0.1, 0.2, 0.6, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    _check_share("warmup", warmup)
    return lambda done: _ramp(done, warmup) * min(1.0, (1.0 - done) / (1.0 - warmup))


def one_cycle(warmup: float = 0.3, start: float = 0.04, end: float = 1e-4) -> Schedule:
    """Cosine from `start` to the peak during `warmup`, cosine down to `end` after it (Smith and Topin 2019)."""
    _check_share("warmup", warmup)

    def rate(done: float) -> float:
        if done < warmup:
            return _cosine(start, 1.0, done / warmup)
        return _cosine(1.0, end, (done - warmup) / (1.0 - warmup))

    return rate


def cosine(warmup: float = 0.0) -> Schedule:
    """Linear from 0 during `warmup`, then half a cosine from the peak to 0."""
    _check_share("warmup", warmup)
    return lambda done: _ramp(done, warmup) * _cosine(1.0, 0.0, max(0.0, done - warmup) / (1.0 - warmup))


def _ramp(done: float, warmup: float) -> float:
    return min(1.0, done / warmup) if warmup else 1.0


def _cosine(first: float, last: float, share: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * min(share, 1.0))) / 2


def _check_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name}={value} is not a share of training; give a number in [0, 1)")


# --- layout --------------------
#
# How a network's weights lie in memory while it is trained.
#
# A GPU convolves fastest with the channels of a pixel side by side. The input of a convolution follows its weights, and
# what comes out stays so, so the weights alone decide. On other devices, and without convolutions, nothing changes.


# Devices whose convolutions gain by it.
_FASTER_ON = frozenset({"cuda"})


def channels_last(network: nn.Module) -> None:
    """Lay the weights of convolutions out for a GPU, in place; call it before anything refers to their memory."""
    _lay(network, torch.channels_last)


def channels_first(network: nn.Module) -> None:
    """Lay them out as usual again: what reads or saves weights expects that."""
    _lay(network, torch.contiguous_format)


def _lay(network: nn.Module, layout: torch.memory_format) -> None:
    for parameter in network.parameters():
        if parameter.device.type in _FASTER_ON and parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout)


# --- ahead --------------------
#
# Views of several batches made at once, and handed out batch by batch.
#
# A strong view is some five hundred small operations whatever the number of images, twice what a step of ResNet-18 has:
# on a GPU the host may take longer to ask for them than the device to do them. Eight batches at once are asked for once.
# On a CPU, where the images themselves take the time, every batch is made on its own.


Made = TypeVar("Made")

# Batches at once, by kind of device; one on others. Of large images fewer: a view needs many times their memory.
_BATCHES = {"cuda": 8}
_VALUES = 2**24


class Ahead(Generic[Made]):
    """What `make` makes of the rows of several batches, one batch at a time.

    Args:
        make: row numbers of some whole batches and the generator of all randomness → one thing for each batch.
        batch_size: rows in a batch.
        inputs: the rows, on their device.
    """

    def __init__(self, make: Callable[[Tensor, Generator], Sequence[Made]], batch_size: int, inputs: Tensor) -> None:
        self._make, self._size = make, batch_size
        most = _VALUES // max(1, batch_size * math.prod(inputs.shape[1:]))
        self._batches = max(1, min(most, _BATCHES.get(inputs.device.type, 1)))
        self._made: Sequence[Made] = ()
        self._place = 0

    def ready(self, batch: int, order: Tensor, generator: Generator) -> None:
        """To be called before every batch of an epoch, one after the other, with the epoch's order of rows."""
        self._place = batch % self._batches
        if self._place == 0:
            first = batch * self._size
            with torch.no_grad():
                self._made = self._make(order[first : first + self._batches * self._size], generator)

    @property
    def now(self) -> Made:
        """The batch that was made ready.

        >>> images = torch.arange(4.0)
        >>> pairs = Ahead(lambda rows, generator: images[rows].split(2), 2, images)
        >>> pairs.ready(1, torch.tensor([0, 2, 3, 1]), Generator())
        >>> pairs.now
        tensor([3., 1.])
        """
        return self._made[self._place]


def in_batches(parts: Sequence[Tensor], sizes: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """Of each batch its piece of every part, so many rows of the first, of the second, …

    >>> in_batches((torch.arange(2), torch.arange(4)), (1, 2))
    [(tensor([0]), tensor([0, 1])), (tensor([1]), tensor([2, 3]))]
    """
    pieces = [part.split(size) for part, size in zip(parts, sizes, strict=True)]
    return list(zip(*pieces, strict=True))


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


# --- loop --------------------
#
# The training loop of methods without targets: a loss of row numbers, data on the device, no waiting inside an epoch.
#
# `labeldp.learning.train` is for targets of single rows; here a loss may look at pairs, or at a whole batch.


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
        before: called before every batch, outside mixed precision, for what several share (`labeldp.learning.train`).
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
            with _loop_precision(device, bf16), _repeatable():
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


def _loop_precision(device: torch.device, bf16: bool | None) -> AbstractContextManager[object]:
    if bf16 if bf16 is not None else device.type == "cuda":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


# --- averaged --------------------
#
# A network beside its moving average, with the running mean of its guesses: what semi-supervised training keeps.


class Averaged(nn.Module):
    """The model, its moving average `slow`, and the running mean of its guesses: what a checkpoint must hold.

    Args:
        model: trained in place.
        prior: class shares, (K,), to which guesses are held; None leaves them.
    """

    mean: Tensor

    def __init__(self, model: nn.Module, prior: Tensor | None) -> None:
        super().__init__()
        channels_last(model)
        self.model = model
        self.slow = copy.deepcopy(model).requires_grad_(False)
        self.prior = prior
        self.register_buffer("mean", None if prior is None else prior.clone())

    def aligned(self, beliefs: Tensor) -> Tensor:
        """Guesses (b, K) times prior over their running mean, made to sum to 1 (Berthelot et al. 2020)."""
        if self.prior is None:
            return beliefs
        self.mean.lerp_(beliefs.mean(dim=0), 0.01)
        shifted = beliefs * (self.prior / self.mean.clamp_min(1e-6))
        return shifted / shifted.sum(dim=1, keepdim=True)

    def follow(self, decay: float) -> Callable[[float], None] | None:
        """One step of the average after every step of training; running means of norms are copied."""
        if not decay:
            return None
        slow, fast = ([p.detach() for p in part.parameters()] for part in (self.slow, self.model))
        kept, new = (list(part.buffers()) for part in (self.slow, self.model))

        def after(share: float) -> None:
            torch._foreach_lerp_(slow, fast, 1.0 - decay)  # pyright: ignore[reportPrivateImportUsage]
            if kept:
                torch._foreach_copy_(kept, new)  # pyright: ignore[reportPrivateImportUsage]

        return after

    def finish(self, decay: float) -> nn.Module:
        """The model in eval mode, with the averaged weights where there is an average."""
        if decay:
            self.model.load_state_dict(self.slow.state_dict())
        channels_first(self.model)
        return self.model.eval()
