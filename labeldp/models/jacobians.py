"""How the logits of given rows move with the weights, and the gradients that the rows would have under every class.

The gradient of a loss of (logits, class) is a product with the Jacobian, ∇_θ ℓ(z_i, k) = J_iᵀ ∇_z ℓ(z_i, k), so one
Jacobian serves every class of every row.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache, cached_property, partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp, vmap
from torch.nn.modules.dropout import _DropoutNd

from labeldp.mechanisms.gradients.layers import Loss, full_precision, pieces, plan_for, rows_at_once, table
from labeldp.mechanisms.gradients.per_example import Inputs, refuse_batch_norm

Parameters = dict[str, Tensor]

# Rows that go through the model together in a product; bytes of a matrix that is worth keeping without a GPU.
_ROWS, _CPU_BYTES = 4096, 8 << 30


class LogitJacobian:
    """J_i = ∂z_i/∂θ (K, P) of the logits of every row, at the model's present weights, which must stay meanwhile.

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
        self._model, self._inputs, self._columns = model, inputs, _columns(inputs)
        self._parameters = _trainable(model)
        if not self._parameters:
            raise ValueError("the model has no trainable parameter; set requires_grad on those to differentiate by")
        if len(self._columns[0]) == 0:
            raise ValueError("inputs has no rows; give at least one")

    @property
    def num_parameters(self) -> int:
        """P."""
        return sum(value.numel() for value in self._parameters.values())

    @cached_property
    def logits(self) -> Tensor:
        """z (n, K)."""
        with torch.no_grad():
            return torch.cat([self._forward(part, self._parameters) for part in self._parts()])

    def jvp(self, vector: Tensor) -> Tensor:
        """J v (n, K) for v (P,)."""
        _refuse_dropout(self._model)
        _load_forward_rules()
        moved = self._shaped(vector)
        found = [jvp(partial(self._forward, part), (self._parameters,), (moved,)) for part in self._parts()]
        return torch.cat([part[1] for part in found])

    def vjp(self, weights: Tensor) -> Tensor:
        """Jᵀ u = Σ_i J_iᵀ u_i (P,) for u (n, K)."""
        _refuse_dropout(self._model)
        total = weights.new_zeros(self.num_parameters)
        for part in self._parts():
            pull = vjp(partial(self._forward, part), self._parameters)[1]
            total += torch.cat([value.flatten() for value in pull(weights[part].contiguous())[0].values()])
        return total

    def dense(self, memory: int | None = None) -> Tensor | None:
        """J (n, K, P), or None where it takes more than `memory` bytes (see `fits_memory`)."""
        if not fits_memory(self.logits, self.num_parameters, memory):
            return None
        found = candidate_gradients(self._model, _one_logit, self._inputs, self.logits.shape[1])
        return torch.cat([block for _, block in found])

    def _forward(self, part: slice, parameters: Parameters) -> Tensor:
        return functional_call(self._model, parameters, tuple(column[part] for column in self._columns))

    def _parts(self) -> Iterator[slice]:
        rows = len(self._columns[0])
        return (slice(start, min(start + _ROWS, rows)) for start in range(0, rows, _ROWS))

    def _shaped(self, vector: Tensor) -> Parameters:
        values = self._parameters
        if vector.shape != (self.num_parameters,):
            raise ValueError(f"vector has shape {tuple(vector.shape)}; the model has {self.num_parameters} parameters")
        parts = vector.split([value.numel() for value in values.values()])
        return {name: part.view_as(value) for (name, value), part in zip(values.items(), parts, strict=True)}


def logit_gradients(loss: Loss, logits: Tensor) -> Tensor:
    """∂ℓ(z_i, k)/∂z for every row and class, (n, K, K): [i, k] is the gradient if the class were k.

    For the cross-entropy softmax(z_i) − e_k.

    >>> from labeldp.mechanisms.gradients.per_example import cross_entropy
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
    """∇_θ ℓ(z_i, k) for all classes k of consecutive rows, (b, K, P), with the rows they belong to.

    >>> blocks = candidate_gradients(nn.Linear(4, 3), _one_logit, torch.zeros(5, 4), num_classes=3)
    >>> sum(block.shape[0] for _, block in blocks)
    5
    """
    refuse_batch_norm(model)
    columns, parameters = _columns(inputs), _trainable(model)
    plan = plan_for(model, loss, columns, parameters)
    step = rows_at_once(plan, parameters, num_classes)
    for start in range(0, len(columns[0]), step):
        part = slice(start, min(start + step, len(columns[0])))
        rows = tuple(column[part] for column in columns)
        every = torch.arange(num_classes, device=rows[0].device).expand(len(rows[0]), num_classes)
        found = pieces(plan, model, loss, rows, every, parameters)
        with full_precision():
            yield part, table(found, parameters)


def fits_memory(logits: Tensor, num_parameters: int, memory: int | None) -> bool:
    """Whether n·K·P numbers take at most so many bytes: half of what is free on a GPU, 8 GiB elsewhere, when None."""
    if memory is None:
        memory = _free_bytes(logits.device) // 2 if logits.is_cuda else _CPU_BYTES
    return logits.numel() * num_parameters * max(4, logits.element_size()) <= memory


def _free_bytes(device: torch.device) -> int:
    """On a GPU; what torch holds without using it is free too."""
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + held


def _one_logit(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.gather(1, labels[:, None])[:, 0]


def _columns(inputs: Inputs) -> tuple[Tensor, ...]:
    return inputs if isinstance(inputs, tuple) else (inputs,)


def _trainable(model: nn.Module) -> Parameters:
    return {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}


def _refuse_dropout(model: nn.Module) -> None:
    """Every product would see another network."""
    for name, layer in model.named_modules():
        if isinstance(layer, _DropoutNd) and layer.training and layer.p > 0:
            raise ValueError(
                f"{name or 'model'} drops units at random, so two products with the Jacobian would not agree; "
                "call model.eval(), or allow memory for the matrix of all candidates, which is drawn once"
            )


@cache
def _load_forward_rules() -> None:
    """The first use of forward differentiation loads torch's rules for it, which warn about torch's own internals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        jvp(torch.sin, (torch.zeros(1),), (torch.ones(1),))
