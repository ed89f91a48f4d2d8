"""The gradients that public rows would have under every class: products with them, and the matrix where it fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from labeldp.models.jacobians import LogitJacobian, candidate_gradients, fits_memory, logit_gradients
from labeldp.models.per_example import Inputs, Loss, cross_entropy, gradients, norm_factors

# Inner products (b, K, K) of each row's candidates and their rounding (b, K) → what to multiply candidates by, (b, K).
Factors = Callable[[Tensor, Tensor], Tensor]


class PublicGradients:
    """g_ik = ∇_θ ℓ(z_i, k): what row i would contribute to the gradient if its class were k, for all n rows, K classes.

    No label is needed for them. They are those at the model's present weights, which must stay as they are while this
    object is in use. The matrix G of all of them, n·K × P, is kept where it takes at most `memory` bytes (half of what
    is free on a GPU, 8 GiB elsewhere, when None); else products with it are forward and reverse differentiation.

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
    def shape(self) -> tuple[int, int]:
        """(n, K)."""
        rows, classes = self.jacobian.logits.shape
        return rows, classes

    @property
    def num_parameters(self) -> int:
        """P."""
        return self.jacobian.num_parameters

    @property
    def dtype(self) -> torch.dtype:
        """Of all numbers in and out: float32, or float64 for a model in float64."""
        return torch.promote_types(self.jacobian.logits.dtype, torch.float32)

    def combine(self, alpha: Tensor) -> Tensor:
        """Σ α_ik g_ik (P,) for α (n, K)."""
        if self.matrix is not None:
            return alpha.flatten() @ self.matrix
        return self.jacobian.vjp(torch.einsum("ik,ikj->ij", alpha, self._slopes))

    def correlate(self, vector: Tensor) -> Tensor:
        """⟨g_ik, v⟩ (n, K) for v (P,)."""
        if self.matrix is not None:
            return (self.matrix @ vector).view(self.shape)
        return torch.einsum("ikj,ij->ik", self._slopes, self.jacobian.jvp(vector))

    def columns(self, chosen: Tensor) -> Tensor:
        """The candidates with these numbers i·K + k, (m, P)."""
        if self.matrix is not None:
            return self.matrix[chosen]
        rows, classes = chosen // self.shape[1], chosen % self.shape[1]
        inputs = self._inputs
        part = inputs[rows] if isinstance(inputs, Tensor) else tuple(column[rows] for column in inputs)
        found = gradients(self._model, self._loss, part, classes)
        return found if self._scales is None else _scaled(found, self._scales.view(-1)[chosen])

    def coordinates(self, basis: Tensor) -> Tensor:
        """⟨g_ik, v_j⟩ (n·K, r) for a basis (r, P)."""
        if self.matrix is not None:
            return self.matrix @ basis.mT
        return torch.cat([(block @ basis.mT).flatten(0, 1) for _, block in self._blocks()])

    @cached_property
    def squared_norms(self) -> Tensor:
        """|g_ik|² (n·K,)."""
        return torch.cat([block.square().sum(-1).flatten() for _, block in self._blocks()])

    @cached_property
    def matrix(self) -> Tensor | None:
        """G (n·K, P), or None where it does not fit."""
        logits = self.jacobian.logits
        if not fits_memory(logits, self.num_parameters, self._memory):
            return None
        matrix = logits.new_empty(*logits.shape, self.num_parameters, dtype=self.dtype)
        for part, block in self._computed_blocks():
            matrix[part] = block if self._factors is None else _scaled(block, self._factors_of(block))
        return matrix.flatten(0, 1)

    @cached_property
    def _scales(self) -> Tensor | None:
        if self._factors is None:
            return None
        return torch.cat([self._factors_of(block) for _, block in self._computed_blocks()])

    @cached_property
    def _slopes(self) -> Tensor:
        slopes = logit_gradients(self._loss, self.jacobian.logits)
        return slopes if self._scales is None else slopes * self._scales[..., None]

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Candidates of consecutive rows, (b, K, P)."""
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
    """Zero where the factor is: a candidate that is not finite counts as nothing, as in the mechanism."""
    return torch.where(factors[..., None] > 0, candidates * factors[..., None], 0.0)
