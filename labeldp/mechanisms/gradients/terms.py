"""Measure and add up per-example gradients of one parameter from a layer's input and output, mostly without a table.

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

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor

# Sums of squares in float32 are cut into pieces of this many terms.
_PIECE = 4096
# What float32 can lose in the sum of a row's contribution, where the inner products themselves are float64.
_EXACT = 2.0**-20
# Terms that are added up in one go: so many rows at once that they have no more places.
_BLOCK_TERMS = 1 << 14


class Term(Protocol):
    """Hold the per-example gradients of one parameter with p entries: rows × candidates."""

    def measured(self) -> tuple[Tensor, Tensor]:
        """Return inner products of each row's candidates, (b, k, k), and what rounding may change in squares."""
        ...

    def pick(self, choice: Tensor) -> Term:
        """Return the term with candidate choice[i] of each row only."""
        ...

    def weighted(self, factors: Tensor) -> Tensor:
        """Return Σ_i factors[i] · t_i of a term with one candidate, (p,) in float64; a factor 0 stands for no row."""
        ...

    def table(self) -> Tensor:
        """Return all gradients, (b, k, p)."""
        ...


@dataclass(frozen=True, eq=False)
class Table:
    """Hold the gradients themselves, (b, k, p)."""

    values: Tensor

    def measured(self) -> tuple[Tensor, Tensor]:
        """Return inner products, and an error that is a share of the squared norms."""
        gram = inner_products(self.values)
        return gram, _lost(self.values, min(self.values.shape[-1], _PIECE)) * _diagonal(gram)

    def pick(self, choice: Tensor) -> Table:
        """Return one candidate per row."""
        return Table(picked(self.values, choice))

    def weighted(self, factors: Tensor) -> Tensor:
        """Multiply by the matrix, block of rows by block of rows."""
        wide = _wide(factors)
        # Copies in float64 that stay in a processor's cache, and in a device's memory.
        step = max(4, (1 << (26 if self.values.is_cuda else 18)) // max(1, self.values.shape[-1]))
        return _added(lambda rows: wide[rows] @ _counted(self.values[rows, 0], wide[rows]), len(wide), step)

    def table(self) -> Tensor:
        """Return it as it is."""
        return self.values


@dataclass(frozen=True, eq=False)
class Product:
    """Hold t_{ik} = Σ_l right_{ikl} ⊗ left_{il}: a linear layer or convolution that is used at L places.

    `left` (b, L, in) holds what went into the layer, `right` (b, k, L, out) the gradients of what came out. The table
    (b, k, in·out) is never made: ⟨t_{ik}, t_{ij}⟩ = Σ_{lm} ⟨left_{il}, left_{im}⟩⟨right_{ikl}, right_{ijm}⟩ (Goodfellow
    2015 for L = 1; Li et al. 2022, "ghost clipping"), and the weighted sum is one matrix product (Bu et al. 2023).
    """

    left: Tensor
    right: Tensor

    def measured(self) -> tuple[Tensor, Tensor]:
        """Return an error that is a share of (Σ_l |left_l| · |right_l|)²: places that cancel cannot lower it."""
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
        """Return one candidate per row."""
        return Product(self.left, picked(self.right, choice))

    def weighted(self, factors: Tensor) -> Tensor:
        """Scale `right`, then multiply matrices over rows and places, block of rows by block of rows."""

        def part(rows: slice) -> Tensor:
            wide = _wide(factors[rows])
            scaled = _counted(self.right[rows, 0], wide) * wide[:, None, None]
            return scaled.flatten(0, 1).mT @ _counted(self.left[rows], wide).flatten(0, 1)

        rows, places, _ = self.left.shape
        return _added(part, rows, _BLOCK_TERMS // places)

    def table(self) -> Tensor:
        """Multiply the matrices of each row and candidate, (b, k, out·in)."""
        return torch.matmul(self.right.mT, self.left[:, None]).flatten(2)


@dataclass(frozen=True, eq=False)
class Lookup:
    """Hold the gradients of an embedding: entry index_{il} of its table receives right_{ikl}.

    Places of a row that look up the same entry add up before anything is squared.
    """

    index: Tensor
    right: Tensor
    entries: int

    def measured(self) -> tuple[Tensor, Tensor]:
        """Return inner products over pairs of places with the same entry; the error is a share of (Σ_l |right_l|)²."""
        lost = _lost(self.right, self.right.shape[-1], self.index.shape[1])
        if self.index.shape[1] == 1:
            gram = inner_products(self.right[:, :, 0])
            return gram, lost * _diagonal(gram)
        same = (self.index[:, :, None] == self.index[:, None, :]).double()
        return _summed(same, self.right), lost * norms(self.right).sum(2).square()

    def pick(self, choice: Tensor) -> Lookup:
        """Return one candidate per row."""
        return Lookup(self.index, picked(self.right, choice), self.entries)

    def weighted(self, factors: Tensor) -> Tensor:
        """Add the scaled gradients to the entries, block of rows by block of rows."""

        def part(rows: slice) -> Tensor:
            wide = _wide(factors[rows])
            scaled = _counted(self.right[rows, 0], wide) * wide[:, None, None]
            empty = scaled.new_zeros(self.entries, scaled.shape[-1])
            return empty.index_add_(0, self.index[rows].flatten(), scaled.flatten(0, 1))

        rows, places = self.index.shape
        return _added(part, rows, _BLOCK_TERMS // places)

    def table(self) -> Tensor:
        """Return almost nothing but zeros, (b, k, entries·dim)."""
        rows, candidates, _, dim = self.right.shape
        total = self.right.new_zeros(rows, candidates, self.entries, dim)
        index = self.index[:, None, :, None].expand_as(self.right)
        return total.scatter_add_(2, index, self.right).flatten(2)


# -- sums over rows, and what they lose ----------------------------------------------------------------------


def _added(part: Callable[[slice], Tensor], rows: int, step: int) -> Tensor:
    """Return the sum of the parts of all rows, `step` rows at a time, flat."""
    starts = range(0, rows, max(1, step))
    return reduce(torch.Tensor.add_, (part(slice(start, start + starts.step)) for start in starts)).reshape(-1)


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
    """Return the share that rounding may take from squares of so many terms, and from a sum over so many places."""
    squares = _EXACT if values.shape[1] > 1 else (terms + 16) * 2.0**-23
    return squares + places * 2.0**-22


def _summed(pairs: Tensor, right: Tensor) -> Tensor:
    """Return Σ_{lm} pairs_{lm} ⟨right_{kl}, right_{jm}⟩, (b, k, k)."""
    rows, candidates, places, _ = right.shape
    flat = _wide(right.flatten(1, 2)) if candidates > 1 else right.flatten(1, 2)
    gram = (flat @ flat.mT).view(rows, candidates, places, candidates, places)
    return torch.einsum("blm,bkljm->bkj", pairs, _wide(gram))


def _diagonal(gram: Tensor) -> Tensor:
    return gram.diagonal(dim1=1, dim2=2)


def inner_products(values: Tensor) -> Tensor:
    """Return ⟨v_k, v_j⟩ of vectors (b, k, p), (b, k, k) in float64; one candidate needs its squared norm only."""
    if values.shape[1] == 1:
        return norms(values).square()[:, :, None]
    # Distances are differences of inner products: with float32 a close pair would drown in rounding.
    wide = _wide(values)
    return wide @ wide.mT


def norms(values: Tensor, exact: bool = False) -> Tensor:
    """Return norms over the last dimension in float64, by sums in float32 of at most 4096 squares, or in float64."""
    if exact:
        return torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64)
    whole = values.shape[-1] // _PIECE * _PIECE
    if whole == 0:
        return _wide(torch.linalg.vector_norm(values, dim=-1))
    parts = [torch.linalg.vector_norm(values[..., whole:], dim=-1, keepdim=True)]
    parts.append(torch.linalg.vector_norm(values[..., :whole].unflatten(-1, (-1, _PIECE)), dim=-1))
    return _wide(torch.cat(parts, dim=-1)).square().sum(-1).sqrt()


def picked(values: Tensor, choice: Tensor) -> Tensor:
    """Return values[i, choice[i]] of every row i, keeping the second dimension."""
    return values[torch.arange(len(choice), device=choice.device), choice].unsqueeze(1)


def _wide(values: Tensor) -> Tensor:
    return values.to(torch.float64)


def _counted(values: Tensor, factors: Tensor) -> Tensor:
    """Return values in float64, zero in rows whose factor is zero: zero times what is not finite would be no number.

    Always, and not only where it is needed: how long a sum takes must not tell whether a row was finite.
    """
    return torch.where((factors != 0).view(-1, *[1] * (values.dim() - 1)), _wide(values), 0.0)
