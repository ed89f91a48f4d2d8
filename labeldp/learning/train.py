"""Train networks by batches: one loop for everything that has a loss, with its views, schedules and checkpoints.

`fit` is for losses of single rows, `minimise` for any loss of a batch (FixMatch, SimCLR, …), and `loop` for an epoch of
any shape (co-refinement). Data lie on the device, nothing is done row by row, and the host waits for the device once an
epoch.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar

import numpy as np
import torch
from torch import Generator, Tensor, nn

from labeldp.features.augment import Augment
from labeldp.features.cache import content_key, read_metadata, read_tensors, write_tensors
from labeldp.learning.evidence import Objective
from labeldp.learning.optimisers import MakeOptimizer, Schedule, constant, sgd
from labeldp.learning.progress import Progress, Report
from labeldp.learning.recorded import repeated
from labeldp.models.memory import keep_freed_memory
from labeldp.models.zoo import checked_count
from labeldp.ranks import begin_together, current, part_of, step_together

# One tensor, or one per argument of the model; the first dimension counts rows.
Inputs = Tensor | tuple[Tensor, ...]
Made = TypeVar("Made")


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
    recorded: bool = False,
    seed: int = 0,
    report: Report | None = None,
    checkpoint: Path | None = None,
    every: int = 1,
) -> nn.Module:
    """Minimise the mean objective over the rows; return the model, trained in place and in eval mode.

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
        recorded: see `minimise`.
        seed: of order, augmentation and mixup. The same seed on the same device gives the same model.
        report: called after every epoch.
        checkpoint, every: a file written every so many epochs and at the end, and resumed from when it exists.
    """
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    for number, tensor in enumerate(tensors):
        if tensor.is_floating_point() and not math.isfinite(tensor.sum(dtype=torch.float64).item()):
            bad = int((~torch.isfinite(tensor)).flatten(1).any(dim=1).sum()) if tensor.ndim > 1 else 0
            raise ValueError(f"inputs[{number}] has {bad} rows that are not finite; fill in or drop missing features")
    device = next(model.parameters()).device
    count = len(rows) if rows is not None else len(tensors[0])
    size = min(checked_count("batch_size", batch_size), max(1, count))
    network = Averaged(model, average)
    # All batches have one shape: kernels for any shape would be slower.
    forward: Callable[..., Tensor] = torch.compile(model, dynamic=False) if compiled else model
    # Drawn ahead, one weight per step: a draw inside the loop would have to wait for the host.
    steps = checked_count("epochs", epochs) * max(1, count // size)
    drawn = np.random.default_rng(seed).beta(mixup, mixup, size=steps) if mixup > 0 else None
    weights = None if drawn is None else torch.from_numpy(drawn).float().to(device)

    def views(places: Tensor, generator: Generator) -> list[tuple[Tensor, ...]]:
        chosen = [tensor[places if rows is None else rows[places]] for tensor in tensors]
        if augment is not None:
            chosen[0] = augment(chosen[0], generator)
        return in_batches(chosen, [part_of(size)] * len(chosen))

    ahead = Ahead(views, size, tensors[0])

    def arguments(batch: Batch) -> tuple[Tensor, ...]:
        numbers = batch.rows if rows is None else rows[batch.rows]
        return numbers, *([] if weights is None else [weights[batch.step]]), *ahead(batch)

    def loss(numbers: Tensor, *seen: Tensor) -> Tensor:
        if weights is None:
            return objective(forward(*seen).float(), numbers).mean()
        mix, *images = seen
        mixed = (x * mix.to(x.dtype) + x.flip(0) * (1 - mix).to(x.dtype) for x in images)
        logits = forward(*mixed).float()
        return (mix * objective(logits, numbers) + (1 - mix) * objective(logits, numbers.flip(0))).mean()

    run = content_key("fit", str((batch_size, mixup, average, seed)), count if rows is None else rows)
    minimise(
        network, loss, count, arguments=arguments, epochs=epochs, batch_size=size, optimizer=optimizer or sgd(0.1),
        schedule=schedule or constant(), after=network.follow, bf16=bf16, recorded=recorded, seed=seed, report=report,
        checkpoint=checkpoint, every=every, run=run,
    )  # fmt: skip
    return network.finish()


def predict(model: nn.Module, inputs: Inputs, *, batch_size: int = 4096, bf16: bool | None = None) -> Tensor:
    """Return the logits of all rows, float32, on the model's device; the model is left as it was."""
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    device, was_training = tensors[0].device, model.training
    model.eval()
    mixed = torch.autocast(device.type, torch.bfloat16) if _mixed(device, bf16) else nullcontext()
    with torch.no_grad(), mixed:
        starts = range(0, len(tensors[0]), batch_size)
        parts = [model(*(x[i : i + batch_size] for x in tensors)).float() for i in starts]
    model.train(was_training)
    return torch.cat(parts) if parts else torch.empty(0, device=device)


def accuracy(model: nn.Module, inputs: Inputs, labels: Tensor | np.ndarray) -> float:
    """Return the share of rows whose likeliest class is the given one. For open test labels, never for a vault's."""
    found = predict(model, inputs).argmax(dim=1)
    return (found == torch.as_tensor(labels, device=found.device)).float().mean().item()


# -- the loop ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Batch:
    """What the loss of one step is a function of.

    Args:
        rows: the numbers of the batch's rows; of ranks that work together, those of this rank's part of it.
        order: the rows of all batches of the epoch, in their order; of this rank's parts of them.
        number: of the batch in its epoch, from 0.
        step, steps: of the whole training, from 0.
        generator: of all randomness.
    """

    rows: Tensor
    order: Tensor
    number: int
    step: int
    steps: int
    generator: Generator


class PausedError(Exception):
    """Training stopped where its time was up; the same call with the same checkpoint goes on."""


class LoopOptions(TypedDict, total=False):
    """Settings of `minimise` that methods pass on as they are."""

    optimizer: MakeOptimizer
    schedule: Schedule
    bf16: bool | None
    recorded: bool
    report: Report | None
    checkpoint: Path | None
    every: int
    seconds: float | None


class LoopSettings(LoopOptions, total=False):
    """Those, and the size of a batch."""

    batch_size: int


def minimise(
    network: nn.Module,
    loss: Callable[..., Tensor],
    count: int,
    *,
    epochs: int,
    batch_size: int,
    arguments: Callable[[Batch], Sequence[Tensor]] | None = None,
    after: Callable[[float], None] | None = None,
    bf16: bool | None = None,
    recorded: bool = False,
    **settings: Any,
) -> None:
    """Lower the loss over batches of the rows 0 … count − 1 in random order; the network is trained in place.

    Ranks that work together (`labeldp.ranks`) take each its part of every batch, and average their gradients.

    Args:
        loss: of a batch, or of what `arguments` makes of it.
        batch_size: the last, smaller batch of an epoch is dropped unless it is the only one.
        arguments: the tensors that the loss is a function of, of the same shapes for every batch.
        after: called after every step with the share of training done, for moving averages.
        bf16: mixed precision with bfloat16; on when None and the device is a GPU.
        recorded: on a GPU, record loss and gradients of a step as a CUDA graph and replay it (`learning.recorded`): the
            same losses, without the host in the way. Needs `arguments`.
        settings: others of `loop`.
    """
    if count < 1:
        raise ValueError("there are no rows to train on; give at least one")
    if recorded and arguments is None:
        raise ValueError("recorded=True, and this loss is of a whole batch, not of tensors; leave recorded out")
    device = next(network.parameters()).device
    batches = max(1, count // checked_count("batch_size", batch_size))
    of_batch = arguments or (lambda batch: (batch,))

    def value(*given: Any) -> Tensor:
        with computing(device, bf16):
            return loss(*given)

    def gradients(*given: Tensor) -> Tensor:
        network.zero_grad(set_to_none=True)
        found = value(*given)
        with computing(device, bf16=False):
            found.backward()
        return found.detach()

    take = repeated(gradients, device) if recorded else value
    ranks, size = current(), min(batch_size, count)
    # Fewer rows than ranks are done by all of them.
    part = slice(size) if ranks is None or size < ranks.size else ranks.block(size)

    def losses(epoch: int, generator: Generator) -> Iterator[tuple[float, Tensor]]:
        order = torch.randperm(count, device=device, generator=generator)[: batches * batch_size]
        if ranks is not None:
            order = ranks.share(order).view(batches, size)[:, part].flatten()
        for number, rows in enumerate(order.split(part.stop - (part.start or 0))):
            batch = Batch(rows, order, number, epoch * batches + number, epochs * batches, generator)
            yield batch.step / batch.steps, take(*of_batch(batch))
            if after is not None:
                after(batch.step / batch.steps)

    weight = None if ranks is None else part_of(size) / size if size >= ranks.size else 1 / ranks.size
    loop(network, losses, epochs=epochs, differentiated=recorded, weight=weight, **settings)
    if ranks is not None:
        # Running means of norms are those of the first rank's parts.
        ranks.align(network)
    if recorded:  # gradients lie in the recording's memory
        network.zero_grad(set_to_none=True)


def loop(
    network: nn.Module,
    losses: Callable[[int, Generator], Iterator[tuple[float, Tensor]]],
    *,
    epochs: int,
    optimizer: MakeOptimizer,
    schedule: Schedule,
    seed: int = 0,
    report: Report | None = None,
    checkpoint: Path | None = None,
    every: int = 10,
    seconds: float | None = None,
    run: str = "",
    differentiated: bool = False,
    weight: float | None = None,
) -> None:
    """Take one step down every loss that the epochs yield; the network is trained in place.

    Args:
        losses: (number of the epoch, generator of all randomness) → one by one, the share of training done and the next
            loss. The step is taken before the next one is requested.
        optimizer: of the parameters that require gradients; its own rate is the peak, which the schedule multiplies. A
            parameter that a loss does not depend on stays as it is.
        seed: of the generator. The same seed on the same device gives the same network.
        report: called after every epoch.
        checkpoint, every: a file written every so many epochs and at the end, and resumed from when it exists.
        seconds: after so long, at the end of an epoch, write the checkpoint and raise `PausedError`.
        run: what the checkpoint belongs to; that of another run is refused.
        differentiated: losses come with their gradients in the parameters.
        weight: of this rank's losses among those of ranks that work together; None in a process of its own, and where
            every rank does all of the work. The first rank reads and writes the checkpoint, and reports.
    """
    checked_count("epochs", epochs)
    checked_count("every", every)
    if seconds is not None and checkpoint is None:
        raise ValueError(f"seconds={seconds} but checkpoint is None; name a file to go on from")
    ranks = None if weight is None else current()
    if ranks is not None and not ranks.first:
        report = checkpoint = seconds = None
    begun, device = time.perf_counter(), next(network.parameters()).device
    if device.type == "cpu":
        keep_freed_memory()
    # The order of rows is the first rank's; what changes them is drawn apart.
    generator = Generator(device).manual_seed(seed if ranks is None else seed + 1_000_003 * ranks.rank)
    descent = optimizer(parameter for parameter in network.parameters() if parameter.requires_grad)
    peaks = [group["lr"] for group in descent.param_groups]
    found = None if checkpoint is None else load_checkpoint(checkpoint, run)
    if found is not None:
        network.load_state_dict(found.state["network"])
        load_optimizer(descent, found.state["optimizer"])
        generator.set_state(found.state["generator"])
    start = begin_together(ranks, network, 0 if found is None else found.done)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    network.train()
    for epoch in range(start, epochs):
        total, steps = torch.zeros((), device=device), 0
        for share, loss in losses(epoch, generator):
            factor = schedule(share)
            for group, peak in zip(descent.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            if not differentiated:
                descent.zero_grad(set_to_none=True)
                with computing(device, bf16=False):
                    loss.backward()
            total += step_together(ranks, trained, loss.detach(), weight or 1.0, descent.step)
            steps += 1
        done, late = epoch + 1, seconds is not None and time.perf_counter() - begun > seconds and epoch + 1 < epochs
        if checkpoint is not None and (late or done == epochs or done % every == 0):
            state = {"network": network.state_dict(), "optimizer": descent.state_dict()}
            save_checkpoint(checkpoint, run, done, {**state, "generator": generator.get_state()})
        if report is not None:
            mean, since = total.item() / max(1, steps), time.perf_counter() - begun
            shown = f"epoch {done} of {epochs}, loss {mean:.4g}"
            report(Progress("training", shown, since, done / epochs, epoch=done, epochs=epochs, loss=mean))
        if late:
            raise PausedError(f"paused after epoch {done} of {epochs}; call again to go on from {checkpoint}")


@contextmanager
def computing(device: torch.device, bf16: bool | None) -> Iterator[None]:
    """Compute in mixed precision where wanted, and by the same algorithms each time: a seed decides the result."""
    mixed = torch.autocast(device.type, torch.bfloat16) if _mixed(device, bf16) else nullcontext()
    with mixed, torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=True):
        yield


def _mixed(device: torch.device, bf16: bool | None) -> bool:
    return device.type == "cuda" if bf16 is None else bf16


# -- checkpoints ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """How many epochs or steps were done, and the state after them."""

    done: int
    state: dict[str, Any]


def save_checkpoint(path: Path, run: str, done: int, state: Mapping[str, Any]) -> None:
    """Write nested dicts and lists of tensors and plain values, in one step; an older file stays until this is whole.

    The file is safetensors: every tensor under its place in the state, all else as JSON in the header. A checkpoint
    holds weights and random state made of public rows and releases: nothing that queries a vault.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "run.safetensors"
    >>> save_checkpoint(file, "demo", 3, {"weights": [torch.ones(2)], 0: {"rate": 0.1}})
    >>> load_checkpoint(file, "demo").state
    {'weights': [tensor([1., 1.])], 0: {'rate': 0.1}}
    """
    tensors: dict[str, Tensor] = {}

    def packed(value: Any, place: str) -> Any:
        if isinstance(value, Tensor):
            name = place if place not in tensors else f"{place} {len(tensors)}"
            tensors[name] = value
            return {"tensor": name}
        if isinstance(value, Mapping):  # as pairs, since JSON would turn numbers that are keys into strings
            return {"items": [[key, packed(part, f"{place}.{key}")] for key, part in value.items()]}
        if isinstance(value, list | tuple):
            return [packed(part, f"{place}.{number}") for number, part in enumerate(value)]
        return value

    described = {"run": run, "done": done, "state": packed(state, "state")}
    write_tensors(path, tensors, {"checkpoint": json.dumps(described)})


def load_checkpoint(path: Path, run: str) -> Checkpoint | None:
    """Return what `save_checkpoint` wrote, tensors on the CPU, or None when there is no file; refuse another run's."""
    if not path.exists():
        return None
    try:
        described, tensors = json.loads(read_metadata(path)["checkpoint"]), read_tensors(path)
    except (KeyError, ValueError) as error:
        raise ValueError(f"checkpoint {path.name} is damaged or no checkpoint ({error}); name another file") from None
    if described["run"] != run:
        raise ValueError(
            f"checkpoint {path.name} belongs to another run, with other data or settings; name another file"
        )

    def unpacked(value: Any) -> Any:
        if isinstance(value, list):
            return [unpacked(part) for part in value]
        if not isinstance(value, dict):
            return value
        return tensors[value["tensor"]] if "tensor" in value else {key: unpacked(part) for key, part in value["items"]}

    return Checkpoint(int(described["done"]), unpacked(described["state"]))


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Restore an optimiser, what it keeps of each parameter in that parameter's layout."""
    optimizer.load_state_dict(state)
    for parameter, kept in optimizer.state.items():
        for name, value in kept.items():
            if isinstance(value, Tensor) and value.ndim == 4 and value.shape == parameter.shape:
                kept[name] = torch.empty_like(parameter).copy_(value)


# -- moving averages --------------------------------------------------------------------------------------------------


class Averaged(nn.Module):
    """A model, its moving average `slow`, and the running mean of its guesses: what a checkpoint must hold.

    Args:
        model: trained in place; its weights are laid out for the device.
        decay: of the average; 0 is none.
        prior: class shares, (K,), to which guesses are held; None leaves them.
    """

    slow: nn.Module | None
    mean: Tensor | None

    def __init__(self, model: nn.Module, decay: float, prior: Tensor | None = None) -> None:
        super().__init__()
        channels_last(model)
        device = next(model.parameters()).device
        self.model, self.decay = model, decay
        # Running means of norms are not averaged: both share the model's.
        shared = {id(buffer): buffer for buffer in model.buffers()}
        self.slow = copy.deepcopy(model, shared).requires_grad_(False) if decay else None
        self.prior = None if prior is None else torch.as_tensor(prior).to(device, torch.float32)
        self.register_buffer("mean", None if self.prior is None else self.prior.clone())
        parts = () if self.slow is None else (self.slow, model)
        self._pairs = [[parameter.detach() for parameter in part.parameters()] for part in parts]

    def aligned(self, beliefs: Tensor) -> Tensor:
        """Return guesses (b, K) times prior over their running mean, made to sum to 1 (Berthelot et al. 2020)."""
        if self.prior is None or self.mean is None:
            return beliefs
        self.mean.lerp_(beliefs.mean(dim=0), 0.01)
        shifted = beliefs * (self.prior / self.mean.clamp_min(1e-6))
        return shifted / shifted.sum(dim=1, keepdim=True)

    def follow(self, share: float) -> None:
        """Move the average by one step, after every step of training."""
        if self._pairs:
            slow, fast = self._pairs
            torch._foreach_lerp_(slow, fast, 1.0 - self.decay)  # pyright: ignore[reportPrivateImportUsage]

    def finish(self) -> nn.Module:
        """Return the model in eval mode, with the averaged weights where there is an average."""
        if self.slow is not None:
            self.model.load_state_dict(self.slow.state_dict())
        channels_first(self.model)
        return self.model.eval()


# -- views made ahead -------------------------------------------------------------------------------------------------

# Batches at once, by kind of device; one on others. Of large images fewer: a view needs many times their memory.
_BATCHES = {"cuda": 32}
_VALUES = 2**26


class Ahead(Generic[Made]):
    """What `make` makes of the rows of several batches at once, handed out batch by batch.

    A strong view is some five hundred small operations whatever the number of images, twice what a step of ResNet-18
    has, and waits for the device: on a GPU the host may take longer to request them than the device to do them. Many
    batches at once are requested once. On a CPU, where the images themselves take the time, every batch is made on its
    own.

    Args:
        make: row numbers of some whole batches and the generator of all randomness → one thing for each batch.
        batch_size: rows in a batch; of ranks that work together, each makes its part of them.
        inputs: the rows, on their device.
    """

    def __init__(self, make: Callable[[Tensor, Generator], Sequence[Made]], batch_size: int, inputs: Tensor) -> None:
        self._make, self._size, self._device = make, part_of(batch_size), inputs.device.type
        most = _VALUES // max(1, batch_size * math.prod(inputs.shape[1:]))
        self._batches = max(1, min(most, _BATCHES.get(self._device, 1)))
        self._made: Sequence[Made] = ()

    def __call__(self, batch: Batch) -> Made:
        """Return what was made for this batch; to be called for every batch of an epoch, one after the other."""
        place = batch.number % self._batches
        if place == 0:
            first = batch.number * self._size
            # Without mixed precision: pixels need more digits than it has.
            with torch.no_grad(), torch.autocast(self._device, enabled=False):
                self._made = self._make(batch.order[first : first + self._batches * self._size], batch.generator)
        return self._made[place]


def in_batches(parts: Sequence[Tensor], sizes: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """Return for each batch its piece of every part, so many rows of the first, of the second, …

    >>> in_batches((torch.arange(2), torch.arange(4)), (1, 2))
    [(tensor([0]), tensor([0, 1])), (tensor([1]), tensor([2, 3]))]
    """
    pieces = [part.split(size) for part, size in zip(parts, sizes, strict=True)]
    return list(zip(*pieces, strict=True))


# -- how weights lie in memory ----------------------------------------------------------------------------------------

# Devices whose convolutions gain by channels lying side by side. The input of a convolution follows its weights, and
# what comes out stays so, so the weights alone decide.
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
