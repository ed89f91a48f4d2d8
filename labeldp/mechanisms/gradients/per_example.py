"""Compute per-example gradients: their table, and sums of bounded ones that never hold it.

Parameters are the trainable ones, in the order of `model.parameters()`, flattened into one vector (P,). No row's
gradient depends on which other rows are in the batch (see `layers`).
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
    Columns,
    Loss,
    Parameters,
    Piece,
    full_precision,
    pieces,
    table,
)
from labeldp.mechanisms.gradients.plans import plan_for, rows_at_once

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
    """Return a copy of the trainable parameters as one vector (P,).

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
    """Return every row's gradient of the loss, (b, P), in float32 or wider.

    >>> model = nn.Linear(1, 2, bias=False)
    >>> gradients(model, lambda logits, labels: logits[:, 0], torch.tensor([[3.0], [5.0]]), torch.tensor([0, 1]))
    tensor([[3., 0.],
            [5., 0.]])
    """
    found = [zeros(model)[None, :][:0].to(kind_of(model))]
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
    total = zeros(model)
    for rows, found in _chunks(model, loss, inputs, every, chunk):
        bounded(total, found, factors, choice[rows], model)
    return total


def candidates_of(labels: Tensor, num_classes: int | None) -> tuple[Tensor, Tensor]:
    """Return the candidate labels of every row, (b, k), one or every class, and which of them is its own, (b,)."""
    if num_classes is None:
        return labels[:, None], torch.zeros_like(labels)
    return torch.arange(num_classes, device=labels.device).expand(len(labels), num_classes), labels


def bounded(
    total: Tensor,
    found: list[Piece],
    factors: Factors,
    choice: Tensor,
    model: nn.Module,
    weights: Tensor | None = None,
) -> Tensor:
    """Add Σ_i f_i g_i to a total, (P,) in float64, from rows' candidates; `weights` (0 or 1) leave rows out.

    A row that is not finite has the factor 0, and adds nothing.
    """
    with full_precision():
        every = [piece.term.measured() for piece in found]
        gram, errors = (reduce(torch.add, each) for each in zip(*every, strict=True))
        scale = factors(gram, errors).gather(1, choice[:, None])[:, 0]
        scale = scale if weights is None else scale * weights
        parameters = trainable(model)
        places = dict(zip(parameters, total.split([value.numel() for value in parameters.values()]), strict=True))
        for piece in found:
            term = piece.term if gram.shape[1] == 1 else piece.term.pick(choice)
            places[piece.name].add_(piece.arranged(term.weighted(scale)))
        return total


def norm_factors(clip: float, gram: Tensor, errors: Tensor) -> Tensor:
    """Return min(1, clip / norm) of each row's candidates, (b, k), never above it for what is added up.

    Zero where the norm is not finite, or so large that the factor would lose its digits in float32.
    """
    upper = (gram.diagonal(dim1=1, dim2=2).clamp(min=0.0) + errors).sqrt()
    # The factor itself is rounded to float32 before it is used.
    factors = (clip * (1 - 2.0**-20) / upper).clamp(max=1.0)
    return torch.where(upper.isfinite() & (factors >= SMALLEST), factors, 0.0)


def clip_factors(norms: Tensor, clip: float) -> Tensor:
    """Return min(1, clip / norm) for norms summed in float32, a little below; 0 where the norm is not finite."""
    factors = (clip * (1 - ROUNDING) / norms).clamp(max=1.0)
    return torch.where(norms.isfinite() & (factors >= SMALLEST), factors, 0.0)


def _chunks(
    model: nn.Module, loss: Loss, inputs: Inputs, labels: Tensor, chunk: int | None
) -> Iterator[tuple[slice, list[Piece]]]:
    """Yield the gradients of consecutive rows under the labels (b, k), as terms, with the rows they belong to."""
    refuse_batch_norm(model)
    parameters, columns = trainable(model), columns_of(inputs)
    if len(labels) == 0 or not parameters:
        return
    plan = plan_for(model, loss, columns, parameters)
    # Equal chunks of at most as many rows as fit.
    most = rows_at_once(plan, parameters, labels.shape[1])
    step = chunk or math.ceil(len(labels) / math.ceil(len(labels) / most))
    for start in range(0, len(labels), step):
        rows = slice(start, start + step)
        part = tuple(_laid_out(column[rows]) for column in columns)
        yield rows, pieces(plan, model, loss, part, labels[rows], parameters)


def _laid_out(part: Tensor) -> Tensor:
    """Return images with their channels last: on a processor convolution and pooling are faster so."""
    if part.dim() != 4 or part.device.type != "cpu":
        return part
    # Strides that say so even where there is one channel, or layers would not notice.
    _, channels, _, width = part.shape
    laid = part.contiguous(memory_format=torch.channels_last)
    return laid.as_strided(laid.shape, (laid[0].numel(), 1, width * channels, channels))


def zeros(model: nn.Module) -> Tensor:
    """Return float64 zeros, (P,), where the parameters are."""
    return torch.zeros(num_parameters(model), dtype=torch.float64, device=device_of(model))


def num_parameters(model: nn.Module) -> int:
    """Return the number P of trainable parameters."""
    return sum(value.numel() for value in model.parameters() if value.requires_grad)


def kind_of(model: nn.Module) -> torch.dtype:
    """Return the widest type of the trainable parameters, at least float32."""
    return reduce(torch.promote_types, (value.dtype for value in trainable(model).values()), torch.float32)


def device_of(model: nn.Module) -> torch.device:
    """Return where the model's parameters are; the processor for a model without any."""
    return next((value.device for value in model.parameters()), torch.device("cpu"))


def trainable(model: nn.Module) -> Parameters:
    """Return the trainable parameters by name, without their history."""
    return {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}


def columns_of(inputs: Inputs) -> Columns:
    """Return the inputs as one tensor per argument of the model."""
    return inputs if isinstance(inputs, tuple) else (inputs,)
