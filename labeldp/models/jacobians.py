"""How the logits of given rows move with the weights: the Jacobian as an operator, and as a matrix where it fits.

The gradient of any loss of (logits, class) is a product with it: ∇_θ ℓ(z_i, k) = J_iᵀ ∇_z ℓ(z_i, k), so one Jacobian
serves every class of every row.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache, cached_property, partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, jvp, vjp, vmap  # pyright: ignore[reportPrivateImportUsage]

from labeldp.models.layer_gradients import full_precision, pieces, table
from labeldp.models.layer_plans import plan_for, rows_at_once
from labeldp.models.per_example import Inputs, Loss, refuse_batch_norm

Parameters = dict[str, Tensor]

# Rows that go through the model together in a product, and bytes of a matrix that is worth keeping.
_ROWS, _CPU_BYTES, _BLOCK_BYTES = 4096, 4 << 30, 256 << 20


class LogitJacobian:
    """J_i = ∂z_i/∂θ (K, P) of the logits of every row, at the weights the model has now.

    θ are the trainable parameters in the order of `model.parameters()`, flattened. The products are forward and reverse
    differentiation (`torch.func`); `dense` is the matrix itself, or None where it would take more than `memory` bytes
    (half of what is free on a GPU, 4 GiB elsewhere, unless given).

    >>> layer = nn.Linear(2, 3, bias=False)
    >>> jacobian = LogitJacobian(layer, torch.tensor([[1.0, 2.0]]))
    >>> jacobian.jvp(torch.ones(6))
    tensor([[3., 3., 3.]])
    >>> jacobian.vjp(torch.tensor([[1.0, 0.0, 0.0]]))
    tensor([1., 2., 0., 0., 0., 0.])
    """

    def __init__(self, model: nn.Module, inputs: Inputs, *, memory: int | None = None) -> None:
        refuse_batch_norm(model)
        self._model = model
        self._columns = inputs if isinstance(inputs, tuple) else (inputs,)
        # A copy: the weights may move on while the Jacobian is in use.
        self._parameters = {name: value.clone() for name, value in _trainable(model).items()}
        if not self._parameters:
            raise ValueError("the model has no trainable parameter; set requires_grad on those to differentiate by")
        if len(self._columns[0]) == 0:
            raise ValueError("inputs has no rows; give at least one")
        self._memory = memory

    @property
    def num_parameters(self) -> int:
        """P."""
        return sum(value.numel() for value in self._parameters.values())

    @cached_property
    def logits(self) -> Tensor:
        """z (n, K)."""
        with torch.no_grad():
            return torch.cat([self._forward(part, self._parameters) for part in self._row_slices(_ROWS)])

    def jvp(self, vector: Tensor) -> Tensor:
        """J v (n, K) for v (P,)."""
        _load_forward_rules()
        moved = self._shaped(vector)
        parts = [jvp(partial(self._forward, part), (self._parameters,), (moved,)) for part in self._row_slices(_ROWS)]
        return torch.cat([part[1] for part in parts])

    def vjp(self, weights: Tensor) -> Tensor:
        """Jᵀ u = Σ_i J_iᵀ u_i (P,) for u (n, K)."""
        total = None
        for part in self._row_slices(_ROWS):
            pull = vjp(partial(self._forward, part), self._parameters)[1]
            found = _flat(pull(weights[part].contiguous())[0])
            total = found if total is None else total + found
        assert total is not None
        return total

    def dense(self) -> Tensor | None:
        """J (n, K, P), or None where it does not fit."""
        return self._matrix

    @cached_property
    def _matrix(self) -> Tensor | None:
        size = self.logits.numel() * self.num_parameters * self.logits.element_size()
        if size > self._free_bytes():
            return None
        matrix = self.logits.new_empty(*self.logits.shape, self.num_parameters)
        for part, block in self.blocks():
            matrix[part] = block
        return matrix

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """J of consecutive rows, (b, K, P), never all of it in memory."""
        row_bytes = self.logits.shape[1] * self.num_parameters * self.logits.element_size()
        each = vmap(jacrev(self._one_row), in_dims=(None, 0))
        for part in self._row_slices(max(1, min(128, _BLOCK_BYTES // row_bytes))):
            yield part, _flat(each(self._parameters, tuple(column[part] for column in self._columns)), lead=2)

    def _one_row(self, parameters: Parameters, row: tuple[Tensor, ...]) -> Tensor:
        return functional_call(self._model, parameters, tuple(column.unsqueeze(0) for column in row))[0]

    def _forward(self, part: slice, parameters: Parameters) -> Tensor:
        return functional_call(self._model, parameters, tuple(column[part] for column in self._columns))

    def _row_slices(self, step: int) -> Iterator[slice]:
        rows = len(self._columns[0])
        return (slice(start, min(start + step, rows)) for start in range(0, rows, step))

    def _shaped(self, vector: Tensor) -> Parameters:
        values = self._parameters
        if vector.shape != (self.num_parameters,):
            raise ValueError(f"vector has shape {tuple(vector.shape)}; the model has {self.num_parameters} parameters")
        parts = vector.split([value.numel() for value in values.values()])
        return {name: part.view_as(value) for (name, value), part in zip(values.items(), parts, strict=True)}

    def _free_bytes(self) -> int:
        if self._memory is not None:
            return self._memory
        device = self.logits.device
        return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else _CPU_BYTES


def _trainable(model: nn.Module) -> Parameters:
    return {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}


def logit_gradients(loss: Loss, logits: Tensor) -> Tensor:
    """∂ℓ(z_i, k)/∂z for every row and class, (n, K, K): [i, k] is the gradient if the class were k.

    For the cross-entropy softmax(z_i) − e_k.

    >>> from labeldp.models.per_example import cross_entropy
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
    """∇_θ ℓ(z_i, k) for all classes k of consecutive rows, (b, K, P), with the rows they belong to."""
    refuse_batch_norm(model)
    columns = inputs if isinstance(inputs, tuple) else (inputs,)
    parameters = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    plan = plan_for(model, loss, columns, parameters)
    step = rows_at_once(plan, parameters, num_classes)
    for start in range(0, len(columns[0]), step):
        part = slice(start, min(start + step, len(columns[0])))
        rows = tuple(column[part] for column in columns)
        every = torch.arange(num_classes, device=rows[0].device).expand(len(rows[0]), num_classes)
        found = pieces(plan, model, loss, rows, every, parameters)
        with full_precision():
            yield part, table(found, parameters)


@cache
def _load_forward_rules() -> None:
    """The first use of forward differentiation loads torch's rules for it, which warn about torch's own internals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        jvp(torch.sin, (torch.zeros(1),), (torch.ones(1),))


def _flat(parts: Parameters, lead: int = 0) -> Tensor:
    return torch.cat([value.flatten(lead) for value in parts.values()], dim=-1)
