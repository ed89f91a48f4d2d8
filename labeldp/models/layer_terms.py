"""What a layer contributes to per-example gradients: inner products and weighted sums, with or without their table.

A term holds the gradients t_{ik} of one parameter for rows i and candidate labels k. `measured` gives inner products
⟨t_{ik}, t_{ij}⟩, (b, k, k) in float64, and numbers e_{ik} such that the true value, of what `weighted` adds up in
float32, is at most √(e_{ik} e_{ij}) away. `weighted` gives Σ_i f_i t_i once one candidate per row was picked.

Errors are bounded for any order of summation: n terms lose at most n · 2^-24 of the sum of their sizes (Higham 2002,
section 4.2); twice that is allowed for here. With more than one candidate inner products are float64, and what is left
is the rounding of the float32 numbers that are added up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

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
        """Σ_i factors[i] · t_i of a term with one candidate, (p,)."""
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
        """One matrix-vector product."""
        return factors.to(self.values.dtype) @ self.values[:, 0]

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
        """Scale `right`, then one matrix product over rows and places."""
        scaled = self.right[:, 0] * factors.to(self.right.dtype)[:, None, None]
        return (scaled.flatten(0, 1).mT @ self.left.flatten(0, 1)).reshape(-1)

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
        """Add the scaled gradients to the entries."""
        scaled = self.right[:, 0] * factors.to(self.right.dtype)[:, None, None]
        total = scaled.new_zeros(self.entries, scaled.shape[-1])
        return total.index_add_(0, self.index.flatten(), scaled.flatten(0, 1)).reshape(-1)

    def table(self) -> Tensor:
        """Almost all zeros, (b, k, entries·dim)."""
        rows, candidates, _, dim = self.right.shape
        total = self.right.new_zeros(rows, candidates, self.entries, dim)
        index = self.index[:, None, :, None].expand_as(self.right)
        return total.scatter_add_(2, index, self.right).flatten(2)


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
