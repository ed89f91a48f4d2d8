"""A small network for clicks: many categorical columns, some with very many values, and few parameters.

Noise on a gradient falls on every parameter, used or not. So that a column with tens of thousands of values does not
bring millions of them, its values share a limited number of rows (feature hashing, Weinberger et al. 2009).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from labeldp.models.shared import checked_count, checked_counts, head_layer, hidden_layers


class _AttributionNetwork(nn.Module):
    def __init__(
        self, num_numeric: int, sizes: tuple[int, ...], num_classes: int, dim: int, hidden: tuple[int, ...]
    ) -> None:
        super().__init__()
        # One table for all columns: one lookup instead of one per column. Entries are buffers, not parameters.
        starts = [sum(sizes[:column]) for column in range(len(sizes))]
        self.register_buffer("starts", torch.tensor(starts, dtype=torch.long), persistent=False)
        self.register_buffer("sizes", torch.tensor(sizes, dtype=torch.long), persistent=False)
        self.table = nn.Embedding(sum(sizes), dim)
        nn.init.normal_(self.table.weight, std=dim**-0.5)
        features = num_numeric + dim * len(sizes)
        self.layers = hidden_layers(features, hidden)
        self.head = head_layer(hidden[-1] if hidden else features, num_classes)

    starts: Tensor
    sizes: Tensor

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        embedded = self.table(categorical % self.sizes + self.starts).flatten(-2)
        return self.head(self.layers(torch.cat((numeric, embedded), dim=-1)))


def attribution_network(
    num_numeric: int,
    cardinalities: Sequence[int],
    num_classes: int = 2,
    buckets: int = 1000,
    dim: int = 8,
    hidden: Sequence[int] = (64, 32),
) -> nn.Module:
    """Embeddings of the categorical columns beside the numeric ones, into ReLU layers; at most `buckets` rows a column.

    `model(numeric, categorical)` takes floats (n, num_numeric), standardised beforehand, and codes
    (n, len(cardinalities)) ≥ 0; codes that are equal modulo the column's rows share one. The paper that made this a
    benchmark of user-level label privacy (Ghazi et al. 2024) names the features, not the network: this one is ours.

    >>> model = attribution_network(1, cardinalities=(675, 57_196))
    >>> model(torch.zeros(4, 1), torch.tensor([[0, 0], [674, 57_195], [1, 2], [3, 4]])).shape
    torch.Size([4, 2])
    """
    rows = tuple(
        min(size, checked_count("buckets", buckets)) for size in checked_counts("cardinalities", cardinalities)
    )
    if not rows:
        raise ValueError("cardinalities is empty; give at least one categorical column")
    return _AttributionNetwork(
        checked_count("num_numeric", num_numeric, low=0),
        rows,
        checked_count("num_classes", num_classes),
        checked_count("dim", dim),
        checked_counts("hidden", hidden),
    )
