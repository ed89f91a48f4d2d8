"""Which way to differentiate a model: found once, tried on a public row, kept until the model changes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from labeldp.models.layer_gradients import ALONE, DIRECT, Columns, Loss, Parameters, Plan, own_names, pieces, table

# Layers of torch that treat the rows of a batch one by one, whatever their settings.
_ROW_BY_ROW = {
    nn.Linear, nn.Conv2d, nn.Embedding, nn.Identity, nn.Dropout, nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus,
    nn.Hardtanh, nn.ReLU6,
}  # fmt: skip
# Numbers in memory at once: what the caches of a processor still bear, and what keeps a device busy.
_CPU_FLOATS, _DEVICE_FLOATS = 1 << 24, 1 << 29
_CPU_ROWS, _DEVICE_ROWS = 128, 1 << 14

_plans: WeakKeyDictionary[nn.Module, tuple[Any, Plan]] = WeakKeyDictionary()


def plan_for(model: nn.Module, loss: Loss, columns: Columns, parameters: Parameters) -> Plan:
    """The fastest way that gives this model's gradients.

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
        # A warning that the caller has made an error (torch warns of its own first steps on a GPU) must not decide.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with own_generator(0, first[0].device):
                plan = _probed(model, first, parameters)
            kept = (key, _checked(plan, model, loss, first, parameters))
        _plans[model] = kept
    return kept[1]


def rows_at_once(plan: Plan, parameters: Parameters, candidates: int) -> int:
    """How many rows fit comfortably into memory. About speed only."""
    every, each = plan.floats if plan.outputs else (0, sum(value.numel() for value in parameters.values()))
    floats, rows = (_CPU_FLOATS, _CPU_ROWS) if _on_cpu(parameters) else (_DEVICE_FLOATS, _DEVICE_ROWS)
    return max(1, min(rows, floats // max(1, every + candidates * each)))


@contextmanager
def own_generator(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's generators for this device start from the seed and are put back as they were afterwards."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[_index(device)])
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _on_cpu(parameters: Parameters) -> bool:
    return all(value.device.type == "cpu" for value in parameters.values())


def _readable(model: nn.Module, parameters: Parameters) -> dict[str, nn.Module]:
    """Layers with trainable weights of their own, whose gradients follow from input and output alone."""
    uses = [id(value) for layer in model.modules() for value in layer._parameters.values() if value is not None]
    found: dict[str, nn.Module] = {}
    for name, layer in model.named_modules():
        own = [value for value in layer._parameters.values() if value is not None]
        trained = any(own_name in parameters for own_name in own_names(name, layer))
        if trained and _is_plain(layer) and all(uses.count(id(value)) == 1 for value in own):
            found[name] = layer
    return found


def _is_plain(layer: nn.Module) -> bool:
    """A layer of torch itself, without hooks or options that change what its weights' gradients are."""
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


@torch.no_grad()
def _probed(model: nn.Module, first: Columns, parameters: Parameters) -> Plan:
    """Run one row: which layers are called once, with what shapes?"""
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda _, inputs, output: calls.setdefault(name, []).append((inputs[0], output))

    readable = _readable(model, parameters)
    handles = [layer.register_forward_hook(hook(name)) for name, layer in readable.items()]
    try:
        model(*(column[:1] for column in first))
    finally:
        for handle in handles:
            handle.remove()
    once = {name: call[0] for name, call in calls.items() if len(call) == 1 and _is_row(readable[name], *call[0])}
    outputs = {name: tuple(output.shape) for name, (_, output) in once.items()}
    return Plan(outputs, _chain(model, first, outputs), _floats(model, once, parameters))


def _is_row(layer: nn.Module, seen: Tensor, output: Tensor) -> bool:
    return len(seen) == 1 and (seen.dim() == 4 if isinstance(layer, nn.Conv2d) else output.dim() >= 2)


def _chain(model: nn.Module, first: Columns, outputs: dict[str, tuple[int, ...]]) -> tuple[str, ...]:
    """The names of the layers if the model is nothing but row-by-row layers one after the other, else nothing."""
    names, seen = [], set[int]()
    for name, layer in model.named_modules(remove_duplicate=False):
        if _has_hooks(layer) or id(layer) in seen:
            return ()
        seen.add(id(layer))
        if type(layer) is not nn.Sequential:
            flat = type(layer) is nn.Flatten and layer.start_dim >= 1
            weights = any(value.requires_grad for value in layer.parameters())
            if not (flat or type(layer) in _ROW_BY_ROW) or getattr(layer, "inplace", False):
                return ()
            if weights and name not in outputs:
                return ()
            names.append(name)
    return tuple(names) if len(first) == 1 else ()


def _floats(model: nn.Module, once: dict[str, tuple[Tensor, Tensor]], parameters: Parameters) -> tuple[int, int]:
    """Numbers per row: activations (kept, pooled and differentiated: three times) and patches; gradients."""
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


def _checked(plan: Plan, model: nn.Module, loss: Loss, first: Columns, parameters: Parameters) -> Plan:
    """The plan, if it gives the direct gradients on the first rows, at weights moved a little off any special point."""
    try:
        if plan.chain:
            _moved_gradients(plan, model, loss, first, parameters)
            return plan
        expected = _moved_gradients(DIRECT, model, loss, first, parameters)
        found = _moved_gradients(plan, model, loss, first, parameters)
    except Exception:
        # Not for `vmap`, or not at all: then the loop over rows says so.
        return ALONE
    # Low precision may differ by percents, a missing part of the gradient by more. One wait for the device, kept after.
    return plan if bool((found - expected).norm() <= 0.05 * expected.norm()) else DIRECT


def _moved_gradients(plan: Plan, model: nn.Module, loss: Loss, first: Columns, parameters: Parameters) -> Tensor:
    device = first[0].device
    with own_generator(0, device):
        moved = {name: value + 0.1 * torch.randn_like(value) for name, value in parameters.items()}
        labels = torch.zeros(len(first[0]), 1, dtype=torch.long, device=device)
        return table(pieces(plan, model, loss, first, labels, moved), moved).double()
