"""Networks for ratings, tables and ready-made features. Those with two inputs take them as `model(*inputs)`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from labeldp.models.shared import checked_count, checked_counts, checked_dropout, head_layer, hidden_layers


def _unit_embedding(rows: int, dim: int) -> nn.Embedding:
    """Rows of length about 1, whatever the dimension, so that products of two tables start at a learnable size."""
    table = nn.Embedding(rows, dim)
    nn.init.normal_(table.weight, std=dim**-0.5)
    return table


class _CollaborativeFilter(nn.Module):
    def __init__(self, num_users: int, num_items: int, num_outputs: int, dim: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.product_users, self.product_items = _unit_embedding(num_users, dim), _unit_embedding(num_items, dim)
        self.joined_users, self.joined_items = _unit_embedding(num_users, dim), _unit_embedding(num_items, dim)
        self.layers = hidden_layers(2 * dim, hidden)
        self.head = head_layer(dim + (hidden[-1] if hidden else 2 * dim), num_outputs)

    def forward(self, users: Tensor, items: Tensor | None = None) -> Tensor:
        if items is None:
            if users.shape[-1] != 2:
                raise ValueError(f"users is {tuple(users.shape)} and items is missing; give both, or pairs (n, 2)")
            users, items = users.unbind(-1)
        product = self.product_users(users) * self.product_items(items)
        joined = self.layers(torch.cat((self.joined_users(users), self.joined_items(items)), dim=-1))
        return self.head(torch.cat((product, joined), dim=-1))


def collaborative_filter(
    num_users: int, num_items: int, num_outputs: int = 5, dim: int = 64, hidden: Sequence[int] = (128, 64)
) -> nn.Module:
    """Two-branch neural collaborative filtering, NeuMF (He et al. 2017), with one logit per rating.

    One branch multiplies a user and an item embedding elementwise; the other joins two further embeddings and
    passes them through ReLU layers; a linear head reads both. `model(users, items)` takes two long tensors (n,),
    `model(pairs)` one of (n, 2). 1,272,901 parameters for MovieLens-1M (6,040 users, 3,706 rated movies).

    >>> model = collaborative_filter(num_users=100, num_items=50)
    >>> model(torch.tensor([3, 99]), torch.tensor([0, 49])).shape
    torch.Size([2, 5])
    """
    return _CollaborativeFilter(
        checked_count("num_users", num_users),
        checked_count("num_items", num_items),
        checked_count("num_outputs", num_outputs),
        checked_count("dim", dim),
        checked_counts("hidden", hidden),
    )


def embedding_dim(cardinality: int) -> int:
    """min(50, ⌈1.6 · cardinality^0.56⌉): after the rule of thumb of fastai (Howard and Gugger 2020).

    >>> [embedding_dim(cardinality) for cardinality in (2, 42, 1000)]
    [3, 13, 50]
    """
    return min(50, math.ceil(1.6 * checked_count("cardinality", cardinality) ** 0.56))


class _TabularMLP(nn.Module):
    def __init__(
        self,
        num_numeric: int,
        cardinalities: tuple[int, ...],
        num_classes: int,
        hidden: tuple[int, ...],
        dropout: float,
    ) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(_unit_embedding(size, embedding_dim(size)) for size in cardinalities)
        features = num_numeric + sum(embedding_dim(size) for size in cardinalities)
        self.layers = hidden_layers(features, hidden, dropout)
        self.head = head_layer(hidden[-1] if hidden else features, num_classes)

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        embedded = [table(categorical[..., column]) for column, table in enumerate(self.embeddings)]
        return self.head(self.layers(torch.cat((numeric, *embedded), dim=-1)))


def tabular_mlp(
    num_numeric: int,
    cardinalities: Sequence[int],
    num_classes: int,
    hidden: Sequence[int] = (256, 128),
    dropout: float = 0.0,
) -> nn.Module:
    """Entity embeddings (Guo and Berkhahn 2016) of the categorical columns, beside the numeric ones, into ReLU layers.

    `model(numeric, categorical)` takes floats (n, num_numeric), standardised beforehand, and codes
    (n, len(cardinalities)), column j from 0 to cardinalities[j] − 1: keep one code for values not seen before. Either
    may have no columns. 49,197 parameters for Adult (6 numeric columns, 8 categorical, 2 classes).

    >>> model = tabular_mlp(num_numeric=2, cardinalities=(7, 16), num_classes=2)
    >>> model(torch.zeros(4, 2), torch.tensor([[0, 0], [6, 15], [1, 2], [3, 4]])).shape
    torch.Size([4, 2])
    """
    num_numeric, sizes = (
        checked_count("num_numeric", num_numeric, low=0),
        checked_counts("cardinalities", cardinalities),
    )
    if num_numeric + len(sizes) == 0:
        raise ValueError("num_numeric is 0 and cardinalities is empty; give the table at least one column")
    return _TabularMLP(
        num_numeric,
        sizes,
        checked_count("num_classes", num_classes),
        checked_counts("hidden", hidden),
        checked_dropout(dropout),
    )


def linear_head(dim: int, num_classes: int, bias: bool = True) -> nn.Linear:
    """Multinomial logistic regression on features (n, dim), all weights zero: the loss is convex, so this is the start.

    dim · num_classes parameters, and num_classes more with a bias: 5,130 for 512 features and 10 classes.

    >>> linear_head(512, 10)(torch.ones(1, 512)).abs().sum().item()
    0.0
    """
    head = nn.Linear(checked_count("dim", dim), checked_count("num_classes", num_classes), bias=bool(bias))
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    return head
