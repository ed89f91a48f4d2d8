"""Per-example gradients: their table, and the sum of the clipped ones without it.

Each row is run through the model as a batch of its own (`torch.func.vmap`), so no row's gradient can depend on which
other rows were in the batch. Parameters are the trainable ones, in the order of `model.parameters()`, flattened into
one vector (P,).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap  # pyright: ignore[reportPrivateImportUsage]
from torch.nn.functional import cross_entropy as _cross_entropy
from torch.nn.modules.instancenorm import _InstanceNorm

# One tensor, or one per argument of the model; the first dimension counts rows.
Inputs = Tensor | tuple[Tensor, ...]
# (logits (b, K), labels (b,)) → one loss per row, (b,).
Loss = Callable[[Tensor, Tensor], Tensor]
Parameters = dict[str, Tensor]

cross_entropy: Loss = partial(_cross_entropy, reduction="none")

_BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
# Clipping aims this much lower than asked, so that rounding in norm and product cannot lift a row above it.
ROUNDING = 2.0**-12
# Rows whose gradients are in memory at once: what a cache likes, and what a device needs to be busy.
_CPU_ROWS, _DEVICE_ROWS, _TABLE_BYTES = 64, 1024, 1 << 30


def trainable(model: nn.Module) -> Parameters:
    """The trainable parameters by name, detached; they share memory with the model."""
    return {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}


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


def gradients(model: nn.Module, loss: Loss, inputs: Inputs, labels: Tensor, *, chunk: int | None = None) -> Tensor:
    """Every row's gradient of the loss, (b, P).

    >>> model = nn.Linear(1, 2, bias=False)
    >>> gradients(model, lambda logits, labels: logits[:, 0], torch.tensor([[3.0], [5.0]]), torch.tensor([0, 1]))
    tensor([[3., 0.],
            [5., 0.]])
    """
    refuse_batch_norm(model)
    tables = [
        torch.cat([part.flatten(1) for part in parts], dim=1) for parts in _parts(model, loss, inputs, labels, chunk)
    ]
    return torch.cat(tables) if tables else parameter_vector(model).new_zeros(0, len(parameter_vector(model)))


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    inputs: Inputs,
    labels: Tensor,
    *,
    clip: float,
    groups: Tensor | None = None,
    num_groups: int | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Σ_i g_i · min(1, clip / |g_i|) over the rows, (P,), in float32 or wider; no table of all rows is kept.

    With `groups` (a number 0 … num_groups − 1 per row, say of a user) the gradients of a group are added up first and
    the sum of each group is clipped. A row or group whose gradient is not finite counts as zero: it keeps the bound,
    and no error tells that it happened.
    """
    refuse_batch_norm(model)
    total = torch.zeros_like(parameter_vector(model), dtype=torch.float32)
    if groups is not None:
        return total + _clipped_groups(model, loss, inputs, labels, clip, groups, num_groups or 0, chunk)
    for parts in _parts(model, loss, inputs, labels, chunk):
        total += _weighted(parts, clip_factors(_norms(parts), clip))
    return total


def clip_factors(norms: Tensor, clip: float) -> Tensor:
    """min(1, clip / norm), a little below; 0 where the norm is not finite."""
    factors = (clip * (1 - ROUNDING) / norms).clamp(max=1.0)
    return torch.where(norms.isfinite(), factors, 0.0)


def _clipped_groups(
    model: nn.Module,
    loss: Loss,
    inputs: Inputs,
    labels: Tensor,
    clip: float,
    groups: Tensor,
    num_groups: int,
    chunk: int | None,
) -> Tensor:
    sums = parameter_vector(model).new_zeros(num_groups, len(parameter_vector(model)))
    start = 0
    for parts in _parts(model, loss, inputs, labels, chunk):
        table = torch.cat([part.flatten(1) for part in parts], dim=1)
        sums.index_add_(0, groups[start : start + len(table)], table)
        start += len(table)
    return _weighted([sums], clip_factors(_norms([sums]), clip))


def _parts(model: nn.Module, loss: Loss, inputs: Inputs, labels: Tensor, chunk: int | None) -> Iterator[list[Tensor]]:
    """Per-example gradients of consecutive rows, one tensor (rows, …) per parameter."""
    parameters = trainable(model)
    each = vmap(grad(partial(_one_loss, model, loss)), in_dims=(None, 0, 0), randomness="different")
    columns = inputs if isinstance(inputs, tuple) else (inputs,)
    step = chunk or _rows_at_once(parameters)
    for start in range(0, len(labels), step):
        part = slice(start, start + step)
        yield list(each(parameters, tuple(column[part] for column in columns), labels[part]).values())


def _one_loss(model: nn.Module, loss: Loss, parameters: Parameters, row: tuple[Tensor, ...], label: Tensor) -> Tensor:
    logits = functional_call(model, parameters, tuple(column.unsqueeze(0) for column in row))
    return loss(logits.float(), label.unsqueeze(0)).sum()


def _rows_at_once(parameters: Parameters) -> int:
    size = max(1, sum(value.numel() for value in parameters.values()))
    on_cpu = all(value.device.type == "cpu" for value in parameters.values())
    return max(1, min(_CPU_ROWS if on_cpu else _DEVICE_ROWS, _TABLE_BYTES // (4 * size)))


def _norms(parts: list[Tensor]) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(part.flatten(1), dim=1) for part in parts]).norm(dim=0)


def _weighted(parts: list[Tensor], factors: Tensor) -> Tensor:
    # A factor of zero does not remove a NaN; only where one is found is the table cleaned.
    return torch.cat([(part.flatten(1).nan_to_num(0.0, 0.0, 0.0) * factors[:, None]).sum(0) for part in parts])
