"""Differentiate a model row by row in one forward and one backward pass, weight gradients only where they are needed.

At linear layers, convolutions and embeddings only the gradient of the layer's *output* is asked for; with the layer's
input it gives norms and sums (`terms`). All other parameters are differentiated directly, row by row.

No row may touch another. A chain of layers that torch itself applies row by row is run on the whole batch; any other
model runs each row as a batch of its own under `torch.func.vmap`. Which way is taken, `plans` decides.
"""

# torch's own types are partly unknown; all else is checked strictly.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad, vjp, vmap
from torch.nn.functional import cross_entropy as _cross_entropy
from torch.nn.functional import one_hot, pad

from labeldp.mechanisms.gradients.terms import Lookup, Product, Table, Term

# (logits (b, K), labels (b,)) → one loss per row, (b,).
Loss = Callable[[Tensor, Tensor], Tensor]
Columns = tuple[Tensor, ...]
Parameters = dict[str, Tensor]

cross_entropy: Loss = partial(_cross_entropy, reduction="none")

# Held while torch's own generators run on a seed; the same thread may take it again.
_ONE_THREAD = RLock()


@dataclass(frozen=True)
class Plan:
    """Say how to differentiate a model.

    `outputs` names the layers that are read at input and output, with the shape of one row's output. `chain` names all
    layers in order where they may run on the whole batch. `floats` estimates the numbers per row that are alive at
    once: whatever the candidates, and for each of them.
    """

    outputs: Mapping[str, tuple[int, ...]]
    chain: tuple[str, ...] = ()
    floats: tuple[int, int] = (0, 0)
    alone: bool = False


# Every parameter row by row; and without `vmap`, for models it cannot follow (decisions that depend on the data).
DIRECT, ALONE = Plan({}), Plan({}, alone=True)


@dataclass(frozen=True, eq=False)
class Piece:
    """Hold the term of one parameter; `inner` is the shape of its entries if they are not in the parameter's order."""

    name: str
    term: Term
    inner: tuple[int, ...] | None = None

    def arranged(self, values: Tensor) -> Tensor:
        """Return entries (..., p) in the parameter's order: (out, high, wide, in) → (out, in, high, wide)."""
        if self.inner is None:
            return values
        return values.unflatten(-1, self.inner).movedim(-1, -3).flatten(-4)


def pieces(
    plan: Plan, model: nn.Module, loss: Loss, columns: Columns, labels: Tensor, parameters: Parameters
) -> list[Piece]:
    """Return the terms of all trainable parameters for these rows and candidate labels (b, k)."""
    run = _run_chain if plan.chain else _run_alone if plan.alone else _run_rows
    seen, right, direct = run(plan, model, loss, columns, labels, parameters)
    with full_precision():
        found = [Piece(name, Table(_float(value).flatten(2))) for name, value in direct.items()]
        for name, values in right.items():
            found += _layer_pieces(name, model.get_submodule(name), seen[name], _float(values), parameters)
    return found


def table(found: list[Piece], parameters: Parameters) -> Tensor:
    """Return the gradients of all parameters, (b, k, P), in their order."""
    by_name = {piece.name: piece.arranged(piece.term.table()) for piece in found}
    return torch.cat([by_name[name] for name in parameters], dim=2)


@contextmanager
def full_precision() -> Generator[None]:
    """Multiply matrices with all 24 bits, whatever speed the caller has set: bounds are checked on these numbers."""
    backends: list[Any] = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    # Another name before torch 2.9.
    switches = [
        (backend, "fp32_precision", "ieee") if hasattr(backend, "fp32_precision") else (backend, "allow_tf32", False)
        for backend in backends
        if backend is not None
    ]
    before = [getattr(backend, name) for backend, name, _ in switches]
    try:
        for backend, name, value in switches:
            setattr(backend, name, value)
        with torch.no_grad(), torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        for (backend, name, _), value in zip(switches, before, strict=True):
            setattr(backend, name, value)


@contextmanager
def own_generator(seed: int, device: torch.device) -> Generator[None]:
    """Let torch's generators for this device start from the seed, and put them back as they were afterwards.

    Dropout takes no generator of its own. One thread at a time: two that overlap would put back each other's seed.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        # torch's types say that an index is an int; it is None for plain "cuda".
        index = cast("int | None", device.index)
        generators.append(torch.cuda.default_generators[torch.cuda.current_device() if index is None else index])
    with _ONE_THREAD:
        states = [generator.get_state() for generator in generators]
        try:
            for generator in generators:
                generator.manual_seed(seed)
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)


def own_names(name: str, layer: nn.Module) -> list[str]:
    """Return the layer's own parameters as the model names them; a model that is one layer has no name before them."""
    return [f"{name}.{own}".lstrip(".") for own, _ in layer.named_parameters(recurse=False)]


# -- one backward pass ---------------------------------------------------------------------------------------


def _slopes(loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
    """Return gradients of the loss by the logits, (b, k, K), each from its own row alone."""
    if loss is cross_entropy:
        return logits.softmax(1)[:, None] - one_hot(labels, logits.shape[1])
    one = grad(lambda row, label: loss(row.unsqueeze(0), label.unsqueeze(0)).sum())
    return vmap(vmap(one, in_dims=(None, 0)))(logits, labels)


def _run_chain(
    plan: Plan, model: nn.Module, loss: Loss, columns: Columns, labels: Tensor, _: Parameters
) -> tuple[Parameters, Parameters, Parameters]:
    """Return what went into the layers, (b, 1, …), and the gradients of what came out, (b, k, 1, …)."""
    seen: Parameters = {}
    # Places in the graph, not the outputs themselves: most layers after them do not need those any more.
    outputs: dict[str, GradientEdge] = {}
    (values,) = columns
    with torch.enable_grad():
        for name in plan.chain:
            layer, before = model.get_submodule(name), values
            values = layer(before)
            if isinstance(layer, nn.Conv2d) and values.device.type == "cpu":
                # On a processor pooling is several times as fast so.
                values = values.contiguous(memory_format=torch.channels_last)
            if name in plan.outputs:
                seen[name], outputs[name] = before.detach()[:, None], get_gradient_edge(values)
        slopes = _slopes(loss, _float(values.detach()), labels).to(values.dtype)
        if labels.shape[1] == 1:
            found = torch.autograd.grad(values, list(outputs.values()), slopes[:, 0])
            right = [value[:, None, None] for value in found]
        else:
            every = slopes.movedim(1, 0).contiguous()
            found = torch.autograd.grad(values, list(outputs.values()), every, is_grads_batched=True)
            right = [value.movedim(0, 1).unsqueeze(2) for value in found]
    return seen, dict(zip(outputs, right, strict=True)), {}


def _run_rows(
    plan: Plan, model: nn.Module, loss: Loss, columns: Columns, labels: Tensor, parameters: Parameters
) -> tuple[Parameters, Parameters, Parameters]:
    """Return the same, and the gradients (b, k, …) of all other parameters, with every row a batch of its own."""
    layers = {name: model.get_submodule(name) for name in plan.outputs}
    inside = {own for name, layer in layers.items() for own in own_names(name, layer)}
    fixed = copied(model, parameters)
    direct = {name: fixed[name] for name in parameters if name not in inside}
    zero = next(iter(parameters.values())).new_zeros
    taps = {name: zero(shape) for name, shape in plan.outputs.items()}

    def row_logits(row: Columns, taps: Parameters, direct: Parameters) -> tuple[Tensor, Parameters]:
        seen: Parameters = {}
        with _tapped(layers, taps, seen):
            logits = functional_call(model, fixed | direct, tuple(column.unsqueeze(0) for column in row))
        return logits, seen

    def row_gradients(row: Columns, candidates: Tensor) -> Any:
        # The forward pass does not depend on the candidate: it is run once, with one dropout mask for all of them.
        once: Any = vjp(partial(row_logits, row), taps, direct, has_aux=True)
        logits, pull, seen = once
        slopes = _slopes(loss, _float(logits), candidates.unsqueeze(0)).to(logits.dtype)
        return vmap(pull)(slopes.movedim(1, 0)), seen

    (right, found), seen = vmap(row_gradients, randomness="different")(columns, labels)
    return seen, right, found


@contextmanager
def _tapped(layers: Mapping[str, nn.Module], taps: Parameters, seen: Parameters) -> Generator[None]:
    """Note what goes into each layer, and add a zero to what comes out: its gradient is the output's."""

    def hook(name: str) -> Callable[[nn.Module, Any, Any], Tensor]:
        def read(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            seen[name] = inputs[0]
            return output + taps[name].to(output.dtype)

        return read

    handles = [layer.register_forward_hook(hook(name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _run_alone(
    _: Plan, model: nn.Module, loss: Loss, columns: Columns, labels: Tensor, parameters: Parameters
) -> tuple[Parameters, Parameters, Parameters]:
    """Return the gradients (b, k, …) of all parameters by a loop over rows: slow, and for any model."""
    found: list[list[Tensor]] = []
    for row, candidates in enumerate(labels):
        copies = copied(model, parameters)
        own = [copies[name].requires_grad_() for name in parameters]
        with torch.enable_grad():
            logits = functional_call(model, copies, tuple(column[row : row + 1] for column in columns))
            losses = [loss(_float(logits), label.reshape(1)).sum() for label in candidates]
            each = [torch.autograd.grad(value, own, retain_graph=True, materialize_grads=True) for value in losses]
        found.append([torch.stack(values) for values in zip(*each, strict=True)])
    every = zip(parameters, zip(*found, strict=True), strict=True)
    return {}, {}, {name: torch.stack(values) for name, values in every}


def copied(model: nn.Module, parameters: Parameters) -> Parameters:
    """Return copies of all parameters, these values in place of the model's own, and of all buffers.

    A layer that writes to its weights or statistics while it holds a secret batch writes to the copies.
    """
    state = {name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())} | parameters
    return {name: value.clone() for name, value in state.items()}


# -- from inputs and output gradients to terms ---------------------------------------------------------------


def _layer_pieces(name: str, layer: nn.Module, seen: Tensor, right: Tensor, trained: Parameters) -> list[Piece]:
    """Return weight and bias of one layer, from its input (b, 1, …) and output gradients (b, k, 1, …)."""
    inner = None
    if isinstance(layer, nn.Embedding):
        index, places = seen.flatten(1), right.flatten(2, -2)
        if layer.padding_idx is not None:
            places = places * (index != layer.padding_idx)[:, None, :, None]
        weight: Term = Lookup(index, places, layer.num_embeddings)
    else:
        if isinstance(layer, nn.Conv2d):
            left, last = patches(_float(seen.flatten(0, 1)), layer)
            inner = (layer.out_channels, *layer.kernel_size, layer.in_channels) if last else None
            places = right.movedim(3, -1).flatten(2, -2)
        else:
            left, places = _float(seen).flatten(1, -2), right.flatten(2, -2)
        product = Product(left, places)
        weight = Table(product.table()) if _table_is_cheaper(product) else product
    found = {"weight": Piece(f"{name}.weight".lstrip("."), weight, inner)}
    if getattr(layer, "bias", None) is not None:
        found["bias"] = Piece(f"{name}.bias".lstrip("."), Table(places.sum(2)))
    return [piece for piece in found.values() if piece.name in trained]


def _table_is_cheaper(product: Product) -> bool:
    """Compare multiplications with the table (each of its entries is also written and read) and without it."""
    (_, places, before), (candidates, after) = product.left.shape, product.right.shape[1::2]
    with_table = candidates * before * after * (places + 16)
    without = places**2 * (before + candidates**2 * (after + 8)) + places * before * after
    return with_table < without


def patches(images: Tensor, layer: nn.Conv2d) -> tuple[Tensor, bool]:
    """Return what each place of a convolution sees, (b, L, in), and whether channels come last in it.

    A strided view is copied in the order that leaves the longest runs together, 4 to 10 times as fast as `unfold`.
    """
    (high, wide), (down, right) = layer.kernel_size, layer.stride
    (over, beside) = layer.padding if not isinstance(layer.padding, str) else (0, 0)
    (tall, broad) = layer.dilation
    padded = pad(images, (beside, beside, over, over)) if over or beside else images
    rows = (padded.shape[2] - tall * (high - 1) - 1) // down + 1
    columns = (padded.shape[3] - broad * (wide - 1) - 1) // right + 1
    last = padded.stride(1) == 1 and padded.shape[1] * wide >= columns
    padded = padded if last else padded.contiguous()
    batch, channel, row, column = padded.stride()
    shape = (len(padded), padded.shape[1], high, wide, rows, columns)
    seen = padded.as_strided(shape, (batch, channel, tall * row, broad * column, down * row, right * column))
    if last:
        return seen.permute(0, 4, 5, 2, 3, 1).reshape(len(padded), rows * columns, -1), True
    return seen.reshape(len(padded), -1, rows * columns).mT, False


def _float(values: Tensor) -> Tensor:
    """Return at least float32."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
