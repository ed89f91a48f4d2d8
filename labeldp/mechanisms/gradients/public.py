"""Multiply with the gradients that public rows would have under every class; keep their matrix where it fits.

No label enters. They stand here, beside the gradients of true labels, because they share their code: the gradient of a
loss of (logits, class) is a product with the Jacobian of the logits, ∇_θ ℓ(z_i, k) = J_iᵀ ∇_z ℓ(z_i, k), so one
Jacobian serves every class of every row.
"""

# torch's own types are partly unknown; all else is checked strictly.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache, cached_property, partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp, vmap
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from labeldp.mechanisms.gradients.layers import (
    Loss,
    Parameters,
    cross_entropy,
    full_precision,
    pieces,
    table,
)
from labeldp.mechanisms.gradients.per_example import (
    Factors,
    Inputs,
    columns_of,
    gradients,
    norm_factors,
    refuse_batch_norm,
    trainable,
)
from labeldp.mechanisms.gradients.plans import plan_for, rows_at_once

# Rows that go through the model together in a product; bytes of a matrix that is worth keeping without a GPU.
_ROWS, _CPU_BYTES = 4096, 8 << 30


class PublicGradients:
    """Hold all g_ik = ∇_θ ℓ(z_i, k): what row i of n would contribute to the gradient if its class were k of K.

    No label is needed for them. They are those at the model's present weights, which must stay as they are while this
    object is in use. The matrix G of all of them, n·K × P, is kept where it takes at most `memory` bytes (half of what
    is free on a GPU, 8 GiB elsewhere, when None); else products with it are forward and reverse differentiation.
    Products are in full precision, whatever speed the caller has set.

    Args:
        clip: scale each candidate to this norm at most, as a mechanism with `NormBound(clip)` does.
        factors: scale candidates as any other mechanism does, from their inner products (`bound.factors`).

    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> public = PublicGradients(model, torch.tensor([[4.0, 0.0]]))
    >>> public.combine(torch.tensor([[1.0, 0.0]]))
    tensor([-2.,  0.,  2.,  0.])
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        *,
        loss: Loss = cross_entropy,
        clip: float | None = None,
        factors: Factors | None = None,
        memory: int | None = None,
    ) -> None:
        if clip is not None and not clip > 0:
            raise ValueError(f"clip={clip} is not a norm to clip at; give a number > 0, or None")
        if clip is not None and factors is not None:
            raise ValueError(f"clip={clip} and factors are two ways to scale the candidates; give one of them")
        self.jacobian = LogitJacobian(model, inputs)
        self._model, self._inputs, self._loss = model, inputs, loss
        self._factors = factors if clip is None else partial(norm_factors, clip)
        self._memory = memory

    @property
    @full_precision()
    def logits(self) -> Tensor:
        """Return z (n, K) at the model's present weights."""
        return self.jacobian.logits

    @property
    def shape(self) -> tuple[int, int]:
        """Return (n, K)."""
        rows, classes = self.logits.shape
        return rows, classes

    @property
    def num_parameters(self) -> int:
        """Return P."""
        return self.jacobian.num_parameters

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of all numbers in and out: float32, or float64 for a model in float64."""
        return torch.promote_types(self.logits.dtype, torch.float32)

    @full_precision()
    def combine(self, alpha: Tensor) -> Tensor:
        """Return Σ α_ik g_ik (P,) for α (n, K)."""
        if self.matrix is not None:
            return alpha.flatten() @ self.matrix
        return self.jacobian.vjp(torch.einsum("ik,ikj->ij", alpha, self._slopes))

    @full_precision()
    def correlate(self, vector: Tensor) -> Tensor:
        """Return ⟨g_ik, v⟩ (n, K) for v (P,)."""
        if self.matrix is not None:
            return (self.matrix @ vector).view(self.shape)
        return torch.einsum("ikj,ij->ik", self._slopes, self.jacobian.jvp(vector))

    @full_precision()
    def columns(self, chosen: Tensor) -> Tensor:
        """Return the candidates with these numbers i·K + k, (m, P)."""
        if self.matrix is not None:
            return self.matrix[chosen]
        rows, classes = chosen // self.shape[1], chosen % self.shape[1]
        inputs = self._inputs
        part = inputs[rows] if isinstance(inputs, Tensor) else tuple(column[rows] for column in inputs)
        found = gradients(self._model, self._loss, part, classes)
        return found if self._scales is None else _scaled(found, self._scales.view(-1)[chosen])

    @full_precision()
    def coordinates(self, basis: Tensor) -> Tensor:
        """Return ⟨g_ik, v_j⟩ (n·K, r) for a basis (r, P)."""
        if self.matrix is not None:
            return self.matrix @ basis.mT
        return torch.cat([(block @ basis.mT).flatten(0, 1) for _, block in self._blocks()])

    @full_precision()
    def squared_norms(self) -> Tensor:
        """Return |g_ik|² (n·K,)."""
        return torch.cat([block.square().sum(-1).flatten() for _, block in self._blocks()])

    @cached_property
    @full_precision()
    def matrix(self) -> Tensor | None:
        """Return G (n·K, P), or None where it does not fit."""
        logits = self.logits
        if not fits_memory(logits, self.num_parameters, self._memory):
            return None
        matrix = logits.new_empty(*logits.shape, self.num_parameters, dtype=self.dtype)
        for part, block in self._computed_blocks():
            matrix[part] = block if self._factors is None else _scaled(block, self._factors_of(block))
        return matrix.flatten(0, 1)

    @cached_property
    @full_precision()
    def _scales(self) -> Tensor | None:
        if self._factors is None:
            return None
        return torch.cat([self._factors_of(block) for _, block in self._computed_blocks()])

    @cached_property
    def _slopes(self) -> Tensor:
        slopes = logit_gradients(self._loss, self.logits)
        return slopes if self._scales is None else slopes * self._scales[..., None]

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield candidates of consecutive rows, (b, K, P)."""
        if self.matrix is not None:
            yield slice(0, self.shape[0]), self.matrix.view(*self.shape, -1)
            return
        for part, block in self._computed_blocks():
            yield part, block if self._scales is None else _scaled(block, self._scales[part])

    def _computed_blocks(self) -> Iterator[tuple[slice, Tensor]]:
        return candidate_gradients(self._model, self._loss, self._inputs, self.shape[1])

    def _factors_of(self, block: Tensor) -> Tensor:
        assert self._factors is not None
        gram = (block @ block.mT).double()
        return self._factors(gram, torch.zeros_like(gram[:, 0])).to(block.dtype)


def _scaled(candidates: Tensor, factors: Tensor) -> Tensor:
    """Scale candidates; one with the factor zero, which may not be finite, counts as nothing, as in the mechanism."""
    return torch.where(factors[..., None] > 0, candidates * factors[..., None], 0.0)


class LogitJacobian:
    """Multiply with J_i = ∂z_i/∂θ (K, P), the logits' Jacobian of every row, at weights that must stay meanwhile.

    θ are the trainable parameters in the order of `model.parameters()`, flattened. The products are forward and reverse
    differentiation (`torch.func`).

    >>> layer = nn.Linear(2, 3, bias=False)
    >>> jacobian = LogitJacobian(layer, torch.tensor([[1.0, 2.0]]))
    >>> jacobian.jvp(torch.ones(6))
    tensor([[3., 3., 3.]])
    >>> jacobian.vjp(torch.tensor([[1.0, 0.0, 0.0]]))
    tensor([1., 2., 0., 0., 0., 0.])
    """

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        refuse_batch_norm(model)
        self._model, self._columns = model, columns_of(inputs)
        self._parameters = trainable(model)
        if not self._parameters:
            raise ValueError("the model has no trainable parameter; set requires_grad on those to differentiate by")
        if len(self._columns[0]) == 0:
            raise ValueError("inputs has no rows; give at least one")

    @property
    def num_parameters(self) -> int:
        """Return P."""
        return sum(value.numel() for value in self._parameters.values())

    @cached_property
    def logits(self) -> Tensor:
        """Return z (n, K)."""
        with torch.no_grad():
            return torch.cat([self._forward(part, self._parameters) for part in self._parts()])

    def jvp(self, vector: Tensor) -> Tensor:
        """Return J v (n, K) for v (P,)."""
        _refuse_dropout(self._model)
        _load_forward_rules()
        values = self._parameters
        if vector.shape != (self.num_parameters,):
            raise ValueError(f"vector has shape {tuple(vector.shape)}; the model has {self.num_parameters} parameters")
        parts = vector.split([value.numel() for value in values.values()])
        moved = {name: part.view_as(value) for (name, value), part in zip(values.items(), parts, strict=True)}
        found = [jvp(partial(self._forward, part), (values,), (moved,)) for part in self._parts()]
        return torch.cat([part[1] for part in found])

    def vjp(self, weights: Tensor) -> Tensor:
        """Return Jᵀ u = Σ_i J_iᵀ u_i (P,) for u (n, K)."""
        _refuse_dropout(self._model)
        total = weights.new_zeros(self.num_parameters)
        for part in self._parts():
            pull = vjp(partial(self._forward, part), self._parameters)[1]
            total += torch.cat([value.flatten() for value in pull(weights[part].contiguous())[0].values()])
        return total

    def _forward(self, part: slice, parameters: Parameters) -> Tensor:
        return functional_call(self._model, parameters, tuple(column[part] for column in self._columns))

    def _parts(self) -> Iterator[slice]:
        rows = len(self._columns[0])
        return (slice(start, min(start + _ROWS, rows)) for start in range(0, rows, _ROWS))


def logit_gradients(loss: Loss, logits: Tensor) -> Tensor:
    """Return ∂ℓ(z_i, k)/∂z for every row and class, (n, K, K): [i, k] is the gradient if the class were k.

    For the cross-entropy softmax(z_i) − e_k.

    >>> logit_gradients(cross_entropy, torch.zeros(1, 2))
    tensor([[[-0.5000,  0.5000],
             [ 0.5000, -0.5000]]])
    """
    slope = grad(lambda row, label: loss(row.unsqueeze(0), label.unsqueeze(0)).sum())
    classes = torch.arange(logits.shape[1], device=logits.device)
    return vmap(lambda row: vmap(partial(slope, row))(classes))(logits)


def candidate_gradients(
    model: nn.Module, loss: Loss, inputs: Inputs, num_classes: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield ∇_θ ℓ(z_i, k) for all classes k of consecutive rows, (b, K, P), with the rows they belong to.

    >>> blocks = candidate_gradients(nn.Linear(4, 3), cross_entropy, torch.zeros(5, 4), num_classes=3)
    >>> sum(block.shape[0] for _, block in blocks)
    5
    """
    refuse_batch_norm(model)
    columns, parameters = columns_of(inputs), trainable(model)
    plan = plan_for(model, loss, columns, parameters)
    step = rows_at_once(plan, parameters, num_classes)
    for start in range(0, len(columns[0]), step):
        part = slice(start, min(start + step, len(columns[0])))
        rows = tuple(column[part] for column in columns)
        every = torch.arange(num_classes, device=rows[0].device).expand(len(rows[0]), num_classes)
        found = pieces(plan, model, loss, rows, every, parameters)
        with full_precision():
            block = table(found, parameters)
        yield part, block


def fits_memory(logits: Tensor, num_parameters: int, memory: int | None) -> bool:
    """Say whether n·K·P numbers take at most so many bytes: half of what is free on a GPU, 8 GiB elsewhere, if None."""
    if memory is None and logits.is_cuda:
        # What torch holds without using it is free too.
        held = torch.cuda.memory_reserved(logits.device) - torch.cuda.memory_allocated(logits.device)
        memory = (torch.cuda.mem_get_info(logits.device)[0] + held) // 2
    elif memory is None:
        memory = _CPU_BYTES
    return logits.numel() * num_parameters * max(4, logits.element_size()) <= memory


def _refuse_dropout(model: nn.Module) -> None:
    """Raise ValueError where units are dropped at random: every product would see another network."""
    for name, layer in model.named_modules():
        if isinstance(layer, _DropoutNd) and layer.training and layer.p > 0:
            raise ValueError(
                f"{name or 'model'} drops units at random, so two products with the Jacobian would not agree; "
                "call model.eval(), or allow memory for the matrix of all candidates, which is drawn once"
            )


@cache
def _load_forward_rules() -> None:
    """Differentiate forwards once: that loads torch's rules for it, which warn about torch's own internals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        jvp(torch.sin, (torch.zeros(1),), (torch.ones(1),))
