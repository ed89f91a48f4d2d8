"""Per-example gradients layer by layer: one forward and one backward pass, weight gradients only where they are needed.

At linear layers, convolutions and embeddings only the gradient of the layer's *output* is asked for; with the layer's
input it gives norms and sums (see `layer_terms`). All other parameters are differentiated directly, row by row.

No row may touch another. A chain of layers that torch itself applies row by row is run on the whole batch; any other
model runs each row as a batch of its own under `torch.func.vmap`. Which way is taken, `layer_plans` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad, vjp, vmap  # pyright: ignore[reportPrivateImportUsage]
from torch.nn.functional import cross_entropy as _cross_entropy
from torch.nn.functional import one_hot

from labeldp.models.layer_terms import Lookup, Product, Table, Term, patches

# (logits (b, K), labels (b,)) → one loss per row, (b,).
Loss = Callable[[Tensor, Tensor], Tensor]
Columns = tuple[Tensor, ...]
Parameters = dict[str, Tensor]

cross_entropy: Loss = partial(_cross_entropy, reduction="none")


@dataclass(frozen=True)
class Plan:
    """How to differentiate a model.

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
    """The term of one parameter; `inner` is the shape of its entries where they are not in the parameter's order."""

    name: str
    term: Term
    inner: tuple[int, ...] | None = None

    def arranged(self, values: Tensor) -> Tensor:
        """Entries (..., p) in the parameter's order: (out, high, wide, in) → (out, in, high, wide)."""
        if self.inner is None:
            return values
        return values.unflatten(-1, self.inner).movedim(-1, -3).flatten(-4)


def pieces(
    plan: Plan, model: nn.Module, loss: Loss, columns: Columns, labels: Tensor, parameters: Parameters
) -> list[Piece]:
    """The terms of all trainable parameters for these rows and candidate labels (b, k)."""
    run = _run_chain if plan.chain else _run_alone if plan.alone else _run_rows
    seen, right, direct = run(plan, model, loss, columns, labels, parameters)
    with full_precision():
        found = [Piece(name, Table(_float(value).flatten(2))) for name, value in direct.items()]
        for name, values in right.items():
            found += _layer_pieces(name, model.get_submodule(name), seen[name], _float(values), parameters)
    return found


def own_names(name: str, layer: nn.Module) -> list[str]:
    """The layer's own parameters as the model names them; a model that is one layer has no name to put before."""
    return [f"{name}.{own}".lstrip(".") for own, _ in layer.named_parameters(recurse=False)]


# -- one backward pass ---------------------------------------------------------------------------------------


def _slopes(loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
    """Gradients of the loss by the logits, (b, k, K), each from its own row alone."""
    if loss is cross_entropy:
        return logits.softmax(1)[:, None] - one_hot(labels, logits.shape[1])
    one = grad(lambda row, label: loss(row.unsqueeze(0), label.unsqueeze(0)).sum())
    return vmap(vmap(one, in_dims=(None, 0)))(logits, labels)


def _run_chain(
    plan: Plan, model: nn.Module, loss: Loss, columns: Columns, labels: Tensor, _: Parameters
) -> tuple[Parameters, Parameters, Parameters]:
    """What went into the layers, (b, 1, …), and the gradients of what came out, (b, k, 1, …)."""
    seen: Parameters = {}
    # Places in the graph, not the outputs themselves: most layers after them do not need those any more.
    outputs: dict[str, GradientEdge] = {}
    (values,) = columns
    with torch.enable_grad():
        for name in plan.chain:
            layer, before = model.get_submodule(name), values
            values = _channels_last(layer(before)) if isinstance(layer, nn.Conv2d) else layer(before)
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


def _channels_last(values: Tensor) -> Tensor:
    # On a processor pooling is several times as fast so.
    return values.contiguous(memory_format=torch.channels_last) if values.device.type == "cpu" else values


def _run_rows(
    plan: Plan, model: nn.Module, loss: Loss, columns: Columns, labels: Tensor, parameters: Parameters
) -> tuple[Parameters, Parameters, Parameters]:
    """The same, and the gradients (b, k, …) of all other parameters, with every row a batch of its own."""
    layers = {name: model.get_submodule(name) for name in plan.outputs}
    inside = {own for name, layer in layers.items() for own in own_names(name, layer)}
    direct = {name: value for name, value in parameters.items() if name not in inside}
    fixed = {name: value.detach() for name, value in model.named_parameters()} | parameters
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


def _run_alone(
    _: Plan, model: nn.Module, loss: Loss, columns: Columns, labels: Tensor, parameters: Parameters
) -> tuple[Parameters, Parameters, Parameters]:
    """The gradients (b, k, …) of all parameters by a loop over rows: slow, and for any model."""
    found: list[list[Tensor]] = []
    for row, candidates in enumerate(labels):
        own = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        with torch.enable_grad():
            logits = functional_call(model, own, tuple(column[row : row + 1] for column in columns))
            losses = [loss(_float(logits), label.reshape(1)).sum() for label in candidates]
            each = [
                torch.autograd.grad(value, list(own.values()), retain_graph=True, materialize_grads=True)
                for value in losses
            ]
        found.append([torch.stack(values) for values in zip(*each, strict=True)])
    return (
        {},
        {},
        {name: torch.stack(values) for name, values in zip(parameters, zip(*found, strict=True), strict=True)},
    )


@contextmanager
def _tapped(layers: Mapping[str, nn.Module], taps: Parameters, seen: Parameters) -> Iterator[None]:
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


# -- from inputs and output gradients to terms ---------------------------------------------------------------


def _layer_pieces(name: str, layer: nn.Module, seen: Tensor, right: Tensor, trained: Parameters) -> list[Piece]:
    """Weight and bias of one layer, from its input (b, 1, …) and output gradients (b, k, 1, …)."""
    inner = None
    if isinstance(layer, nn.Embedding):
        places = _without_padding(right.flatten(2, -2), seen.flatten(1), layer.padding_idx)
        weight: Term = Lookup(seen.flatten(1), places, layer.num_embeddings)
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


def _without_padding(right: Tensor, index: Tensor, padding: int | None) -> Tensor:
    return right if padding is None else right * (index != padding)[:, None, :, None]


def _table_is_cheaper(product: Product) -> bool:
    """Multiplications of the table (each of its entries is also written and read) against those without it."""
    (_, places, before), (candidates, after) = product.left.shape, product.right.shape[1::2]
    with_table = candidates * before * after * (places + 16)
    without = places**2 * (before + candidates**2 * (after + 8)) + places * before * after
    return with_table < without


def _float(values: Tensor) -> Tensor:
    """At least float32."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def _switch(backend: Any) -> tuple[Any, str, Any]:
    """Who decides about precision, under which name, and the value for all bits; another name before torch 2.9."""
    return (backend, "fp32_precision", "ieee") if hasattr(backend, "fp32_precision") else (backend, "allow_tf32", False)


@contextmanager
def full_precision() -> Iterator[None]:
    """Matrix products with all 24 bits, whatever speed the caller has set: bounds are checked on these numbers."""
    backends: list[Any] = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    switches = [_switch(backend) for backend in backends if backend is not None]
    before = [getattr(backend, name) for backend, name, _ in switches]
    try:
        for backend, name, value in switches:
            setattr(backend, name, value)
        with torch.no_grad(), torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        for (backend, name, _), value in zip(switches, before, strict=True):
            setattr(backend, name, value)


def table(found: list[Piece], parameters: Parameters) -> Tensor:
    """The gradients of all parameters, (b, k, P), in their order."""
    by_name = {piece.name: piece.arranged(piece.term.table()) for piece in found}
    return torch.cat([by_name[name] for name in parameters], dim=2)
