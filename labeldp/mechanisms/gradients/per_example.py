"""Per-example gradients: their table, and sums of bounded ones that never hold it.

Parameters are the trainable ones, in the order of `model.parameters()`, flattened into one vector (P,). No row's
gradient depends on which other rows are in the batch (see `layer_gradients`).

Bounded gradient sums recorded once as a CUDA graph and replayed: one launch in place of hundreds.

A small network keeps a GPU busy for a tenth of the time that its host needs to launch the kernels of one step. Batches
drawn in secret have another size each time; they are filled up with rows of weight zero to one of a few sizes, each of
which is recorded when it is met for the second time. (A fixed set of sizes also hides how large a batch was from
whoever measures time.)
"""

# torch's own types are partly unknown; all else is checked strictly.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm  # pyright: ignore[reportPrivateUsage]

from labeldp.mechanisms.gradients.layers import (
    DIRECT,
    Columns,
    Loss,
    Parameters,
    Piece,
    Plan,
    Table,
    cross_entropy,
    full_precision,
    own_generator,
    pieces,
    plan_for,
    rows_at_once,
    table,
)

__all__ = [
    "Factors",
    "Inputs",
    "Loss",
    "bounded",
    "bounded_sum",
    "candidates_of",
    "clip_factors",
    "clipped_sum",
    "columns_of",
    "cross_entropy",
    "device_of",
    "gradients",
    "load_parameter_vector",
    "norm_factors",
    "own_generator",
    "parameter_vector",
    "refuse_batch_norm",
    "refusing_state",
    "trainable",
]

# One tensor, or one per argument of the model; the first dimension counts rows.
Inputs = Tensor | tuple[Tensor, ...]
# Inner products (b, k, k) of each row's candidate gradients, and what rounding may change in the squared norms (b, k)
# → what to multiply each candidate by, (b, k).
Factors = Callable[[Tensor, Tensor], Tensor]

_BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
# What rounding may take from a norm that comes without its error: 4096 squares added up in float32, and twice that.
ROUNDING = 2.0**-11
# A smaller factor is no longer a normal number of float32 in the end.
SMALLEST = 2.0**-120


def parameter_vector(model: nn.Module) -> Tensor:
    """A copy of the trainable parameters as one vector (P,).

    >>> parameter_vector(nn.Linear(2, 3)).shape
    torch.Size([9])
    """
    values = list(trainable(model).values())
    return torch.cat([value.reshape(-1) for value in values]) if values else torch.zeros(0)


@torch.no_grad()
def load_parameter_vector(model: nn.Module, vector: Tensor) -> None:
    """Overwrite the trainable parameters in place with a vector (P,); the inverse of `parameter_vector`."""
    values = [value for value in model.parameters() if value.requires_grad]
    total = sum(value.numel() for value in values)
    if vector.shape != (total,):
        raise ValueError(f"vector has shape {tuple(vector.shape)}; the model has {total} trainable parameters")
    for value, part in zip(values, vector.split([value.numel() for value in values]), strict=True):
        value.copy_(part.view_as(value))


def refuse_batch_norm(model: nn.Module) -> None:
    """Raise ValueError where a layer normalises over the batch, or keeps statistics of it.

    The features of a row then move the gradients of the others, without bound, so clipping each row bounds nothing.
    """
    for name, layer in model.named_modules():
        batch = isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None)
        kept = isinstance(layer, _InstanceNorm) and layer.training and layer.track_running_stats
        if batch or kept:
            raise ValueError(
                f"{name or 'model'} is a {type(layer).__name__} in training mode, which mixes the rows of a batch: no "
                "row has a gradient of its own. Replace it with labeldp.models.zoo.group_norm(model), or freeze its "
                "statistics with .eval() (features are public, so statistics of all rows may be computed first)"
            )


@contextmanager
def refusing_state(*modules: nn.Module) -> Generator[None]:
    """Run the modules on public rows in this block; raise ValueError if any of them has changed when it ends.

    What a module keeps of a forward pass (running statistics, the last input, a counter, renormalised embeddings) would
    be there for everybody to read after a pass over a secret batch, and would mix its rows into later ones.
    """
    for module in modules:
        for name, layer in module.named_modules():
            # It need not show on these rows: only entries that are longer than the norm are written to.
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
                raise ValueError(
                    f"{name or 'model'} has max_norm={layer.max_norm}, which rewrites the embeddings that a batch "
                    "looks up: its rows could be read off the weights. Leave max_norm out; gradients are clipped anyway"
                )
    before = [_state_of(module) for module in modules]
    yield
    for module, state in zip(modules, before, strict=True):
        after = _state_of(module)
        changed = sorted(name for name in state | after if not _alike(state.get(name), after.get(name)))
        if changed:
            raise ValueError(
                f"{type(module).__name__} changed its own state in a forward pass: {', '.join(changed[:4])}. What it "
                "keeps would show which rows are in a secret batch. Take that layer or attribute out, or freeze it: "
                ".eval() for running statistics and spectral norms, computed first if at all (features are public)"
            )


def _state_of(module: nn.Module) -> dict[str, Any]:
    """Return copies of parameters and buffers, and all other attributes of the module and those in it, by name."""
    state: dict[str, Any] = {}
    for path, layer in module.named_modules():
        own = {**vars(layer), **layer._parameters, **layer._buffers}  # pyright: ignore[reportPrivateUsage]
        for name, value in own.items():
            if name in {"_parameters", "_buffers", "_modules"}:
                continue
            copied = value.detach().clone() if isinstance(value, Tensor) else value
            if isinstance(value, list | tuple | set | deque):
                copied = list(value)
            state[f"{path}.{name}".lstrip(".")] = dict(value) if isinstance(value, dict) else copied
    return state


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same = one.shape == other.shape and one.dtype == other.dtype
        return same and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    # Not every object can be compared; numbers and text can.
    return one is other or (isinstance(one, str | float | int | complex | bytes) and bool(one == other))


def gradients(model: nn.Module, loss: Loss, inputs: Inputs, labels: Tensor, *, chunk: int | None = None) -> Tensor:
    """Every row's gradient of the loss, (b, P), in float32 or wider.

    >>> model = nn.Linear(1, 2, bias=False)
    >>> gradients(model, lambda logits, labels: logits[:, 0], torch.tensor([[3.0], [5.0]]), torch.tensor([0, 1]))
    tensor([[3., 0.],
            [5., 0.]])
    """
    found = [_zeros(model)[None, :][:0].to(kind_of(model))]
    for _, part in _chunks(model, loss, inputs, labels[:, None], chunk):
        with full_precision():
            found.append(table(part, trainable(model))[:, 0])
    return torch.cat(found)


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    inputs: Inputs,
    labels: Tensor,
    *,
    clip: float,
    chunk: int | None = None,
) -> Tensor:
    """Return Σ_i g_i · min(1, clip / |g_i|) over the rows, (P,) in float64; no table of all rows is kept.

    A row whose gradient is not finite counts as zero: it keeps the bound, and no error says that it happened.

    >>> model = nn.Linear(1, 2, bias=False)
    >>> two = torch.tensor([[3.0], [0.25]]), torch.tensor([0, 1])
    >>> clipped_sum(model, lambda logits, labels: logits[:, 0], *two, clip=1.0).round(decimals=2)
    tensor([1.2500, 0.0000], dtype=torch.float64)
    """
    return bounded_sum(model, loss, inputs, labels, partial(norm_factors, clip), chunk=chunk)


def bounded_sum(
    model: nn.Module,
    loss: Loss,
    inputs: Inputs,
    labels: Tensor,
    factors: Factors,
    *,
    num_classes: int | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Return Σ_i f_i g_i over the rows, (P,) in float64, the factors f_i being a function of inner products.

    Without `num_classes` each row has one candidate, its own label: `factors` sees its squared norm, (b, 1, 1). With it
    the candidates are the gradients under each of the labels 0 … num_classes − 1; `factors` sees their inner products,
    and of its responses that of the row's label is used.
    """
    every, choice = candidates_of(labels, num_classes)
    total = _zeros(model)
    for rows, found in _chunks(model, loss, inputs, every, chunk):
        bounded(total, found, factors, choice[rows], model)
    # A gradient that is not finite has the factor zero, but zero times infinity is not a number. Rare, and found by
    # one query at the sum (the only wait for the device); then everything is done again with such entries removed.
    if not bool(total.isfinite().all()):
        total = _zeros(model)
        for rows, found in _chunks(model, loss, inputs, every, chunk, direct=True):
            bounded(total, found, factors, choice[rows], model, clean=True)
    return total


def candidates_of(labels: Tensor, num_classes: int | None) -> tuple[Tensor, Tensor]:
    """The candidate labels of every row, (b, k), and which of them is its own, (b,): one candidate, or every class."""
    if num_classes is None:
        return labels[:, None], torch.zeros_like(labels)
    return torch.arange(num_classes, device=labels.device).expand(len(labels), num_classes), labels


def bounded(
    total: Tensor,
    found: list[Piece],
    factors: Factors,
    choice: Tensor,
    model: nn.Module,
    clean: bool = False,
    weights: Tensor | None = None,
) -> Tensor:
    """Add Σ_i f_i g_i to a total, (P,) in float64, from rows' candidates; `weights` (0 or 1) leave rows out."""
    with full_precision():
        every = [piece.term.measured() for piece in found]
        gram, errors = (reduce(torch.add, each) for each in zip(*every, strict=True))
        scale = factors(gram, errors).gather(1, choice[:, None])[:, 0]
        scale = scale if weights is None else scale * weights
        parameters = trainable(model)
        places = dict(zip(parameters, total.split([value.numel() for value in parameters.values()]), strict=True))
        for piece in found:
            term = piece.term if gram.shape[1] == 1 else piece.term.pick(choice)
            term = Table(term.table().nan_to_num(0.0, 0.0, 0.0)) if clean else term
            places[piece.name].add_(piece.arranged(term.weighted(scale)))
        return total


def norm_factors(clip: float, gram: Tensor, errors: Tensor) -> Tensor:
    """min(1, clip / norm) of each row's candidates, (b, k), never above it for what is added up.

    Zero where the norm is not finite, or so large that the factor would lose its digits in float32.
    """
    upper = (gram.diagonal(dim1=1, dim2=2).clamp(min=0.0) + errors).sqrt()
    # The factor itself is rounded to float32 before it is used.
    factors = (clip * (1 - 2.0**-20) / upper).clamp(max=1.0)
    return torch.where(upper.isfinite() & (factors >= SMALLEST), factors, 0.0)


def clip_factors(norms: Tensor, clip: float) -> Tensor:
    """min(1, clip / norm) for norms that were summed in float32, a little below; 0 where the norm is not finite."""
    factors = (clip * (1 - ROUNDING) / norms).clamp(max=1.0)
    return torch.where(norms.isfinite() & (factors >= SMALLEST), factors, 0.0)


def _chunks(
    model: nn.Module, loss: Loss, inputs: Inputs, labels: Tensor, chunk: int | None, direct: bool = False
) -> Iterator[tuple[slice, list[Piece]]]:
    """The gradients of consecutive rows under the labels (b, k), as terms, with the rows they belong to."""
    refuse_batch_norm(model)
    parameters, columns = trainable(model), columns_of(inputs)
    if len(labels) == 0 or not parameters:
        return
    plan = plan_for(model, loss, columns, parameters)
    plan = DIRECT if direct and not plan.alone else plan
    # Equal chunks of at most as many rows as fit.
    most = rows_at_once(plan, parameters, labels.shape[1])
    step = chunk or math.ceil(len(labels) / math.ceil(len(labels) / most))
    for start in range(0, len(labels), step):
        rows = slice(start, start + step)
        yield rows, pieces(plan, model, loss, _laid_out(columns, rows), labels[rows], parameters)


def _laid_out(columns: Columns, rows: slice) -> Columns:
    """The rows, images with their channels last: on a processor convolution and pooling are faster so."""
    return tuple(
        _channels_last(column[rows]) if column.dim() == 4 and column.device.type == "cpu" else column[rows]
        for column in columns
    )


def _channels_last(images: Tensor) -> Tensor:
    """With strides that say so even where there is one channel, or layers would not notice."""
    _, channels, _, width = images.shape
    laid = images.contiguous(memory_format=torch.channels_last)
    return laid.as_strided(laid.shape, (laid[0].numel(), 1, width * channels, channels))


def _zeros(model: nn.Module) -> Tensor:
    """Return float64 zeros, (P,), where the parameters are."""
    return torch.zeros(num_parameters(model), dtype=torch.float64, device=device_of(model))


def num_parameters(model: nn.Module) -> int:
    """Return the number P of trainable parameters."""
    return sum(value.numel() for value in model.parameters() if value.requires_grad)


def kind_of(model: nn.Module) -> torch.dtype:
    """Return the widest type of the trainable parameters, at least float32."""
    return reduce(torch.promote_types, (value.dtype for value in trainable(model).values()), torch.float32)


def device_of(model: nn.Module) -> torch.device:
    """Where the model's parameters are; the processor for a model without any."""
    return next((value.device for value in model.parameters()), torch.device("cpu"))


def trainable(model: nn.Module) -> Parameters:
    """The trainable parameters by name, without their history."""
    return {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}


def columns_of(inputs: Inputs) -> Columns:
    """Return the inputs as one tensor per argument of the model."""
    return inputs if isinstance(inputs, tuple) else (inputs,)


# -- sums recorded once as a CUDA graph and replayed ---------------------------------------------------------


# Runs before a recording: libraries choose their algorithms and take their workspace then.
_WARM_UP = 3
# Sizes are eighths of a power of two, and never finer than this.
_FINEST = 32


class ReplayedSum:
    """`bounded_sum` of one model on a GPU. Call it with (columns, labels); None where it cannot be recorded.

    What is recorded belongs to these weights in this memory, this loss and these factors; it is recorded anew where the
    weights have moved. Which rows a batch had, and their labels, are wiped from its memory as soon as the sum is there.
    """

    def __init__(self, model: nn.Module, loss: Loss, factors: Factors, num_classes: int | None) -> None:
        self._model, self._loss, self._factors, self._num_classes = model, loss, factors, num_classes
        self._recorded: dict[int, _Recording] = {}
        self._met: set[int] = set()
        self._key: object = None

    def __call__(self, columns: Columns, labels: Tensor) -> Tensor | None:
        """Σ_i f_i g_i, (P,), not looked at: an entry may not be finite."""
        size = padded(len(labels))
        parameters = trainable(self._model)
        if not self._is_possible(columns, labels, size, parameters):
            return None
        if size not in self._met:
            self._met.add(size)
            return None
        if size not in self._recorded:
            self._recorded[size] = _Recording(self, size, columns, parameters)
        return self._recorded[size].replay(columns, labels)

    def _is_possible(self, columns: Columns, labels: Tensor, size: int, parameters: Parameters) -> bool:
        on_device = all(value.is_cuda for value in (*columns, labels, *parameters.values()))
        if not (on_device and parameters and len(labels)) or torch.is_autocast_enabled("cuda"):
            return False
        refuse_batch_norm(self._model)
        self.plan = plan_for(self._model, self._loss, columns, parameters)
        # Recordings are of addresses. A changed plan is another computation.
        key = (self.plan, *(value.data_ptr() for value in parameters.values()))
        if key != self._key:
            self._recorded, self._met, self._key = {}, set(), key
        return bool(self.plan.chain) and size <= rows_at_once(self.plan, parameters, self._num_classes or 1)

    def compute(self, columns: Columns, labels: Tensor, weights: Tensor, plan: Plan, parameters: Parameters) -> Tensor:
        """What is recorded."""
        every, choice = candidates_of(labels, self._num_classes)
        found = pieces(plan, self._model, self._loss, columns, every, parameters)
        return bounded(_zeros(self._model), found, self._factors, choice, self._model, weights=weights)


class _Recording:
    """A graph for batches of up to `size` rows, and the memory that it reads and writes."""

    def __init__(self, owner: ReplayedSum, size: int, columns: Columns, parameters: Parameters) -> None:
        device = columns[0].device
        self._columns = tuple(column.new_zeros(size, *column.shape[1:]) for column in columns)
        self._labels = torch.zeros(size, dtype=torch.int64, device=device)
        self._weights = torch.zeros(size, dtype=torch.float64, device=device)

        def compute() -> Tensor:
            return owner.compute(self._columns, self._labels, self._weights, owner.plan, parameters)

        beside = torch.cuda.Stream(device)
        beside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(beside):
            for _ in range(_WARM_UP):
                compute()
        torch.cuda.current_stream(device).wait_stream(beside)
        self._graph = torch.cuda.CUDAGraph()
        # thread_local: noise is drawn beside this in another thread.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._total = compute()

    def replay(self, columns: Columns, labels: Tensor) -> Tensor:
        rows = len(labels)
        for own, column in zip(self._columns, columns, strict=True):
            own[:rows].copy_(column)
        self._labels[:rows].copy_(labels)
        self._weights[:rows].fill_(1.0)
        self._graph.replay()
        for own in (*self._columns, self._labels, self._weights):
            own.zero_()
        return self._total.clone()


def padded(rows: int) -> int:
    """The size that a batch is filled up to: the next eighth of a power of two, at least a multiple of 32.

    >>> [padded(rows) for rows in (1, 100, 1000, 1030)]
    [32, 128, 1024, 1152]
    """
    step = max(_FINEST, 1 << max(0, rows.bit_length() - 4))
    return -(-rows // step) * step
