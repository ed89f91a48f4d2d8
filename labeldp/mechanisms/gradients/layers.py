"""Per-example gradients layer by layer: one forward and one backward pass, weight gradients only where they are needed.

At linear layers, convolutions and embeddings only the gradient of the layer's *output* is asked for; with the layer's
input it gives norms and sums (see `layer_terms`). All other parameters are differentiated directly, row by row.

No row may touch another. A chain of layers that torch itself applies row by row is run on the whole batch; any other
model runs each row as a batch of its own under `torch.func.vmap`. Which way is taken, `layer_plans` decides.

What a layer contributes to per-example gradients: inner products and weighted sums, with or without their table.

A term holds the gradients t_{ik} of one parameter for rows i and candidate labels k. `measured` gives inner products
⟨t_{ik}, t_{ij}⟩, (b, k, k) in float64, and numbers e_{ik} such that the true value, of the float32 numbers that
`weighted` adds up, is at most √(e_{ik} e_{ij}) away. `weighted` gives Σ_i f_i t_i, in float64, once one candidate per
row was picked; `summation_error` says how far that is from the exact sum.

Errors are bounded for any order of summation: n terms lose at most n · 2^-24 of the sum of their sizes (Higham 2002,
section 4.2); twice that is allowed for here. With more than one candidate inner products are float64, and what is left
is the rounding of the float32 numbers that are added up.
"""

# torch's own types are partly unknown; all else is checked strictly.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from threading import RLock
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad, vjp, vmap
from torch.nn.functional import cross_entropy as _cross_entropy
from torch.nn.functional import one_hot, pad

# -- what a layer contributes --------------------------------------------------------------------------------


# Sums of squares in float32 are cut into pieces of this many terms.
_PIECE = 4096
# What float32 can lose in the sum of a row's contribution, where the inner products themselves are float64.
_EXACT = 2.0**-20


class Term(Protocol):
    """Per-example gradients of one parameter with p entries: rows × candidates."""

    def measured(self) -> tuple[Tensor, Tensor]:
        """Inner products of each row's candidates, (b, k, k), and what rounding may change in the squares, (b, k)."""
        ...

    def pick(self, choice: Tensor) -> Term:
        """The term with candidate choice[i] of each row only."""
        ...

    def weighted(self, factors: Tensor) -> Tensor:
        """Σ_i factors[i] · t_i of a term with one candidate, (p,) in float64."""
        ...

    def table(self) -> Tensor:
        """All gradients, (b, k, p)."""
        ...


@dataclass(frozen=True, eq=False)
class Table:
    """The gradients themselves, (b, k, p)."""

    values: Tensor

    def measured(self) -> tuple[Tensor, Tensor]:
        """The error is a share of the squared norms."""
        gram = inner_products(self.values)
        return gram, _lost(self.values, min(self.values.shape[-1], _PIECE)) * _diagonal(gram)

    def pick(self, choice: Tensor) -> Table:
        """One candidate per row."""
        return Table(picked(self.values, choice))

    def weighted(self, factors: Tensor) -> Tensor:
        """One matrix-vector product for every block of rows."""
        entries, wide = self.values.shape[-1], _wide(factors)
        # Copies in float64 that stay in a processor's cache, and in a device's memory.
        step = max(4, (1 << (26 if self.values.is_cuda else 18)) // max(1, entries))
        parts = (wide[rows] @ _wide(self.values[rows, 0]) for rows in _blocks(len(wide), step))
        return reduce(torch.Tensor.add_, parts)

    def table(self) -> Tensor:
        """As it is."""
        return self.values


@dataclass(frozen=True, eq=False)
class Product:
    """t_{ik} = Σ_l right_{ikl} ⊗ left_{il}: a linear layer or convolution that is used at L places.

    `left` (b, L, in) holds what went into the layer, `right` (b, k, L, out) the gradients of what came out. The table
    (b, k, in·out) is never made: ⟨t_{ik}, t_{ij}⟩ = Σ_{lm} ⟨left_{il}, left_{im}⟩⟨right_{ikl}, right_{ijm}⟩ (Goodfellow
    2015 for L = 1; Li et al. 2022, "ghost clipping"), and the weighted sum is one matrix product (Bu et al. 2023).
    """

    left: Tensor
    right: Tensor

    def measured(self) -> tuple[Tensor, Tensor]:
        """The error is a share of (Σ_l |left_l| · |right_l|)², which cancellation between places cannot lower."""
        lost = _lost(self.right, self.left.shape[-1] + self.right.shape[-1], self.left.shape[1])
        exact = self.right.shape[1] > 1
        lengths = norms(self.left, exact)
        if self.left.shape[1] == 1:
            gram = lengths[:, :, None].square() * inner_products(self.right[:, :, 0])
            return gram, lost * _diagonal(gram)
        left = _wide(self.left) if exact else self.left
        size = (lengths[:, None] * norms(self.right, exact)).sum(2)
        return _summed(_wide(left @ left.mT), self.right), lost * size.square()

    def pick(self, choice: Tensor) -> Product:
        """One candidate per row."""
        return Product(self.left, picked(self.right, choice))

    def weighted(self, factors: Tensor) -> Tensor:
        """Scale `right`, then one matrix product over rows and places for every block of rows."""

        def part(rows: slice) -> Tensor:
            scaled = _wide(self.right[rows, 0]) * _wide(factors[rows])[:, None, None]
            return scaled.flatten(0, 1).mT @ _wide(self.left[rows]).flatten(0, 1)

        rows, places, _ = self.left.shape
        return reduce(torch.Tensor.add_, map(part, _blocks(rows, _BLOCK_TERMS // places))).reshape(-1)

    def table(self) -> Tensor:
        """A product of matrices per row and candidate, (b, k, out·in)."""
        return torch.matmul(self.right.mT, self.left[:, None]).flatten(2)


@dataclass(frozen=True, eq=False)
class Lookup:
    """An embedding: entry index_{il} of the table receives right_{ikl}; `padding` receives nothing.

    Places of a row that look up the same entry add up before anything is squared.
    """

    index: Tensor
    right: Tensor
    entries: int

    def measured(self) -> tuple[Tensor, Tensor]:
        """Inner products over the pairs of places with the same entry; the error is a share of (Σ_l |right_l|)²."""
        lost = _lost(self.right, self.right.shape[-1], self.index.shape[1])
        if self.index.shape[1] == 1:
            gram = inner_products(self.right[:, :, 0])
            return gram, lost * _diagonal(gram)
        same = (self.index[:, :, None] == self.index[:, None, :]).double()
        return _summed(same, self.right), lost * norms(self.right).sum(2).square()

    def pick(self, choice: Tensor) -> Lookup:
        """One candidate per row."""
        return Lookup(self.index, picked(self.right, choice), self.entries)

    def weighted(self, factors: Tensor) -> Tensor:
        """Add the scaled gradients to the entries, block by block."""

        def part(rows: slice) -> Tensor:
            scaled = _wide(self.right[rows, 0]) * _wide(factors[rows])[:, None, None]
            empty = scaled.new_zeros(self.entries, scaled.shape[-1])
            return empty.index_add_(0, self.index[rows].flatten(), scaled.flatten(0, 1))

        rows, places = self.index.shape
        return reduce(torch.Tensor.add_, map(part, _blocks(rows, _BLOCK_TERMS // places))).reshape(-1)

    def table(self) -> Tensor:
        """Almost all zeros, (b, k, entries·dim)."""
        rows, candidates, _, dim = self.right.shape
        total = self.right.new_zeros(rows, candidates, self.entries, dim)
        index = self.index[:, None, :, None].expand_as(self.right)
        return total.scatter_add_(2, index, self.right).flatten(2)


# -- sums over rows ------------------------------------------------------------------------------------------


# Terms that are added up in one go: so many rows at once that they have no more places.
_BLOCK_TERMS = 1 << 14


def _blocks(rows: int, step: int) -> Iterator[slice]:
    return (slice(start, start + max(1, step)) for start in range(0, rows, max(1, step)))


def summation_error(radius: float, rows: int) -> float:
    """Return how far `weighted` sums of `rows` rows of length `radius` R, added up, may be from the exact sum: β.

    Proof. n float64 numbers added in any order lose at most n·2^-53 of the sum of their sizes (Higham 2002, section
    4.2). (1) Inside a block of at most 2^14 terms, or one row: let a_i = Σ_l |left_il|·|right_il| be the size of what a
    row adds at its L places. If L = 1, f_i·a_i ≤ R. Else `measured` allows for an error of (8 + 2L)·2^-23·a_i² at
    least, and the factor keeps f_i² times that below R², so f_i·a_i ≤ 2^11.5·R/√(8 + 2L) ≤ 837·R, and ≤ 2^11·R/√L. A
    row loses at most max(2^14·837, √L·2^11)·2^-53·R < 2^23.8·2^-53·R for any L below 10^7. Several layers share f_i²
    (their squares add up below R²), so this bounds all of them together. (2) Blocks and chunks are sums of rows, of
    length nR at most, and there are at most n of them: n·2^-53·nR. Factors and products round, too, for which 2^24
    stands in place of 2^23.8.
    """
    return rows * radius * (2.0**24 + rows) * 2.0**-53


def _lost(values: Tensor, terms: int, places: int = 0) -> float:
    """The share that rounding may take from squares of so many terms, and from a sum over so many places."""
    squares = _EXACT if values.shape[1] > 1 else (terms + 16) * 2.0**-23
    return squares + places * 2.0**-22


def _summed(pairs: Tensor, right: Tensor) -> Tensor:
    """Σ_{lm} pairs_{lm} ⟨right_{kl}, right_{jm}⟩, (b, k, k)."""
    rows, candidates, places, _ = right.shape
    flat = _wide(right.flatten(1, 2)) if candidates > 1 else right.flatten(1, 2)
    gram = (flat @ flat.mT).view(rows, candidates, places, candidates, places)
    return torch.einsum("blm,bkljm->bkj", pairs, _wide(gram))


def _diagonal(gram: Tensor) -> Tensor:
    return gram.diagonal(dim1=1, dim2=2)


def inner_products(values: Tensor) -> Tensor:
    """⟨v_k, v_j⟩ of vectors (b, k, p), (b, k, k) in float64; one candidate needs its squared norm only."""
    if values.shape[1] == 1:
        return norms(values).square()[:, :, None]
    # Distances are differences of inner products: with float32 a close pair would drown in rounding.
    wide = _wide(values)
    return wide @ wide.mT


def norms(values: Tensor, exact: bool = False) -> Tensor:
    """Norms over the last dimension in float64, by sums in float32 of at most 4096 squares, or in float64."""
    if exact:
        return torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64)
    whole = values.shape[-1] // _PIECE * _PIECE
    if whole == 0:
        return _wide(torch.linalg.vector_norm(values, dim=-1))
    parts = [torch.linalg.vector_norm(values[..., whole:], dim=-1, keepdim=True)]
    parts.append(torch.linalg.vector_norm(values[..., :whole].unflatten(-1, (-1, _PIECE)), dim=-1))
    return _wide(torch.cat(parts, dim=-1)).square().sum(-1).sqrt()


def picked(values: Tensor, choice: Tensor) -> Tensor:
    """values[i, choice[i]] of every row i, keeping the second dimension."""
    return values[torch.arange(len(choice), device=choice.device), choice].unsqueeze(1)


def _wide(values: Tensor) -> Tensor:
    return values.to(torch.float64)


def patches(images: Tensor, layer: nn.Conv2d) -> tuple[Tensor, bool]:
    """What each place of a convolution sees, (b, L, in), and whether channels come last in it.

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
    fixed = _copied(model, parameters)
    direct = {name: fixed[name] for name in direct}
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
        copied = _copied(model, parameters)
        own = {name: copied[name].requires_grad_() for name in parameters}
        with torch.enable_grad():
            logits = functional_call(model, copied, tuple(column[row : row + 1] for column in columns))
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


def _copied(model: nn.Module, parameters: Parameters) -> Parameters:
    """Return copies of all parameters, these values in place of the model's own, and of all buffers.

    A layer that writes to its weights or statistics while it holds a secret batch writes to the copies.
    """
    state = {name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())} | parameters
    return {name: value.clone() for name, value in state.items()}


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


# -- from inputs and output gradients to terms ---------------------------------------------------------------


def _layer_pieces(name: str, layer: nn.Module, seen: Tensor, right: Tensor, trained: Parameters) -> list[Piece]:
    """Weight and bias of one layer, from its input (b, 1, …) and output gradients (b, k, 1, …)."""
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
def full_precision() -> Generator[None]:
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


# -- which way to differentiate a model: found once, tried on a public row -----------------------------------


# Layers of torch that treat the rows of a batch one by one, whatever their settings.
_ROW_BY_ROW = {
    nn.Linear, nn.Conv2d, nn.Embedding, nn.Identity, nn.Dropout, nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus,
    nn.Hardtanh, nn.ReLU6,
}  # fmt: skip
# Numbers in memory at once: what the caches of a processor still bear, and what keeps a device busy.
_CPU_FLOATS, _DEVICE_FLOATS = 1 << 24, 1 << 29
_CPU_ROWS, _DEVICE_ROWS = 128, 1 << 14
_CACHED_FLOATS = 1 << 21

# Held while torch's own generators run on a seed; the same thread may take it again.
_ONE_THREAD = RLock()

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
    on_cpu = all(value.device.type == "cpu" for value in parameters.values())
    numbers = max(1, every + candidates * each)
    if not on_cpu:
        return max(1, min(_DEVICE_ROWS, _DEVICE_FLOATS // numbers))
    # Rows of few numbers stay in the cache a thousand at a time, and a sum in float64 is the faster the more they are.
    return max(1, min(max(_CPU_ROWS, min(8 * _CPU_ROWS, _CACHED_FLOATS // numbers)), _CPU_FLOATS // numbers))


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


def _readable(model: nn.Module, parameters: Parameters) -> dict[str, nn.Module]:
    """Layers with trainable weights of their own, whose gradients follow from input and output alone."""
    uses = [id(value) for layer in model.modules() for value in _own(layer)]
    found: dict[str, nn.Module] = {}
    for name, layer in model.named_modules():
        own = _own(layer)
        trained = any(own_name in parameters for own_name in own_names(name, layer))
        if trained and _is_plain(layer) and all(uses.count(id(value)) == 1 for value in own):
            found[name] = layer
    return found


def _own(layer: nn.Module) -> list[nn.Parameter]:
    return [value for _, value in layer.named_parameters(recurse=False, remove_duplicate=False)]


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
        functional_call(model, _copied(model, parameters), tuple(column[:1] for column in first))
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
            # An embedding with max_norm writes to its weights.
            writes = getattr(layer, "inplace", False) or getattr(layer, "max_norm", None) is not None
            if writes or not (flat or type(layer) in _ROW_BY_ROW):
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
