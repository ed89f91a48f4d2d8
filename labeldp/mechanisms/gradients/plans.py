"""Find the fastest way to differentiate a model row by row, once, by trying it on public rows."""

# torch's own types are partly unknown; all else is checked strictly.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from labeldp.mechanisms.gradients.layers import (
    ALONE,
    DIRECT,
    Columns,
    Loss,
    Parameters,
    Plan,
    copied,
    own_generator,
    own_names,
    pieces,
    table,
)
from labeldp.models.memory import keep_freed_memory

# Layers of torch that treat the rows of a batch one by one, whatever their settings.
_ROW_BY_ROW = {
    nn.Linear, nn.Conv2d, nn.Embedding, nn.Identity, nn.Dropout, nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus,
    nn.Hardtanh, nn.ReLU6,
}  # fmt: skip
# Numbers in memory at once: what keeps a device busy; on a processor 32 MiB, since an allocator hands more back to the
# system after every chunk and takes it again page by page.
_CPU_FLOATS, _DEVICE_FLOATS = 1 << 23, 1 << 29
_CPU_ROWS, _DEVICE_ROWS = 128, 1 << 14
_CACHED_FLOATS = 1 << 21

_plans: WeakKeyDictionary[nn.Module, tuple[Any, Plan]] = WeakKeyDictionary()


def plan_for(model: nn.Module, loss: Loss, columns: Columns, parameters: Parameters) -> Plan:
    """Return the fastest way that gives this model's gradients.

    Layers used twice, shared weights and layers that are not plainly torch's own are differentiated directly. Then both
    ways are compared on the first rows; where they differ (a weight used outside its layer), everything is direct, and
    where `vmap` cannot follow the model, each row runs alone.
    """
    key = (
        id(loss),
        tuple((name, id(value), value.requires_grad, value.device) for name, value in model.named_parameters()),
        tuple((id(layer), layer.training) for layer in model.modules()),
        tuple((column.shape[1:], column.dtype) for column in columns),
    )
    kept = _plans.get(model)
    if kept is None or kept[0] != key:
        first = tuple(column[:4] for column in columns)
        if first[0].device.type == "cpu":
            keep_freed_memory()
        # A warning that the caller has made an error (torch warns of its own first steps on a GPU) must not decide.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with own_generator(0, first[0].device):
                plan = _probed(model, first, parameters)
            kept = (key, _checked(plan, model, loss, first, parameters))
        _plans[model] = kept
    return kept[1]


def rows_at_once(plan: Plan, parameters: Parameters, candidates: int) -> int:
    """Return how many rows fit comfortably into memory. About speed only."""
    every, each = plan.floats if plan.outputs else (0, sum(value.numel() for value in parameters.values()))
    on_cpu = all(value.device.type == "cpu" for value in parameters.values())
    numbers = max(1, every + candidates * each)
    if not on_cpu:
        return max(1, min(_DEVICE_ROWS, _DEVICE_FLOATS // numbers))
    # Rows of few numbers stay in the cache a thousand at a time, and a sum in float64 is the faster the more they are.
    return max(1, min(max(_CPU_ROWS, min(8 * _CPU_ROWS, _CACHED_FLOATS // numbers)), _CPU_FLOATS // numbers))


# -- a first plan, from one row ------------------------------------------------------------------------------


@torch.no_grad()
def _probed(model: nn.Module, first: Columns, parameters: Parameters) -> Plan:
    """Run one row and see which layers are called once, with what shapes."""
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda _, inputs, output: calls.setdefault(name, []).append((inputs[0], output))

    readable = _readable(model, parameters)
    handles = [layer.register_forward_hook(hook(name)) for name, layer in readable.items()]
    try:
        functional_call(model, copied(model, parameters), tuple(column[:1] for column in first))
    finally:
        for handle in handles:
            handle.remove()
    once: dict[str, tuple[Tensor, Tensor]] = {}
    for name, ((seen, output), *more) in calls.items():
        is_row = seen.dim() == 4 if isinstance(readable[name], nn.Conv2d) else output.dim() >= 2
        if not more and len(seen) == 1 and is_row:
            once[name] = (seen, output)
    outputs = {name: tuple(output.shape) for name, (_, output) in once.items()}
    return Plan(outputs, _chain(model, first, outputs), _floats(model, once, parameters))


def _readable(model: nn.Module, parameters: Parameters) -> dict[str, nn.Module]:
    """Return layers with trainable weights of their own, whose gradients follow from input and output alone."""

    def own(layer: nn.Module) -> list[int]:
        return [id(value) for _, value in layer.named_parameters(recurse=False, remove_duplicate=False)]

    uses = [value for layer in model.modules() for value in own(layer)]
    return {
        name: layer
        for name, layer in model.named_modules()
        if _is_plain(layer)
        and any(own_name in parameters for own_name in own_names(name, layer))
        and all(uses.count(value) == 1 for value in own(layer))
    }


def _is_plain(layer: nn.Module) -> bool:
    """Say whether it is a layer of torch itself, without hooks or options that change its weights' gradients."""
    if _has_hooks(layer):
        return False
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if type(layer) is nn.Embedding:
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    return type(layer) is nn.Linear


def _has_hooks(layer: nn.Module) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(layer, kind, None) for kind in hooks)


def _chain(model: nn.Module, first: Columns, outputs: dict[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Return the names of the layers if the model is nothing but row-by-row layers one after the other, else none."""
    names, seen = [], set[int]()
    for name, layer in model.named_modules(remove_duplicate=False):
        if _has_hooks(layer) or id(layer) in seen:
            return ()
        seen.add(id(layer))
        if type(layer) is not nn.Sequential:
            flat = type(layer) is nn.Flatten and layer.start_dim >= 1
            weights = any(value.requires_grad for value in layer.parameters())
            # An embedding with max_norm writes to its weights.
            writes = getattr(layer, "inplace", False) or getattr(layer, "max_norm", None) is not None
            if writes or not (flat or type(layer) in _ROW_BY_ROW):
                return ()
            if weights and name not in outputs:
                return ()
            names.append(name)
    return tuple(names) if len(first) == 1 else ()


def _floats(model: nn.Module, once: dict[str, tuple[Tensor, Tensor]], parameters: Parameters) -> tuple[int, int]:
    """Count numbers per row: activations (kept, pooled and differentiated: three times) and patches; gradients."""
    every = each = 0
    inside: set[str] = set()
    for name, (seen, output) in once.items():
        layer = model.get_submodule(name)
        inside |= set(own_names(name, layer))
        window = prod(layer.kernel_size) * layer.in_channels if isinstance(layer, nn.Conv2d) else 0
        places = output.numel() // output.shape[1]
        every += 3 * (seen.numel() + output.numel()) + places * window
        each += 2 * output.numel() + window * (output.shape[1] if window and places**2 > window else 0)
    return every, each + sum(value.numel() for name, value in parameters.items() if name not in inside)


# -- the plan, tried -----------------------------------------------------------------------------------------


def _checked(plan: Plan, model: nn.Module, loss: Loss, first: Columns, parameters: Parameters) -> Plan:
    """Return the plan if it gives the direct gradients on the first rows, at weights a little off any special point."""
    device = first[0].device

    def gradients(way: Plan) -> Tensor:
        with own_generator(0, device):
            moved = {name: value + 0.1 * torch.randn_like(value) for name, value in parameters.items()}
            labels = torch.zeros(len(first[0]), 1, dtype=torch.long, device=device)
            return table(pieces(way, model, loss, first, labels, moved), moved).double()

    try:
        found = gradients(plan)
        if plan.chain:
            return plan
        expected = gradients(DIRECT)
    except Exception:
        # Not for `vmap`, or not at all: then the loop over rows says so.
        return ALONE
    # Low precision may differ by percents, a missing part of the gradient by more. One wait for the device, kept after.
    return plan if bool((found - expected).norm() <= 0.05 * expected.norm()) else DIRECT
