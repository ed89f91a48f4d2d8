"""The network that recipes train where the user brings none, and how it is trained."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from labeldp.estimators.progress import Tell
from labeldp.learning import schedules
from labeldp.learning.fit import adam
from labeldp.learning.fit import fit as fit_model
from labeldp.models.shared import checked_count
from labeldp.models.tables import linear_head
from labeldp.recipes.common import Fit

# Rows that pass the network in all, and the fewest and most passes over the data.
_PASSED, _LEAST_EPOCHS, _MOST_EPOCHS = 600_000, 6, 40


class FeatureNet(nn.Module):
    """One hidden layer beside a linear one, on features (n, p): starts as the zero function.

    `body` holds all but the last layer, as `labeldp.recipes.rounds` wants it.
    """

    def __init__(self, inputs: int, outputs: int, hidden: int = 64) -> None:
        super().__init__()
        self.sizes = {"inputs": inputs, "outputs": outputs, "hidden": hidden}
        self.body = _Beside(checked_count("inputs", inputs), checked_count("hidden", hidden))
        self.head = linear_head(inputs + hidden, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """(n, p) → (n, outputs)."""
        return self.head(self.body(rows))


class _Beside(nn.Module):
    """x ↦ (x, relu(Wx + b))."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.cat((rows, torch.relu(self.hidden(rows))), dim=1)


def usual_fit(rows: int, settings: Mapping[str, Any], seed: int, report: Tell | None = None) -> Fit:
    """`labeldp.learning.fit.fit` with settings for tables; those given go first."""
    epochs = max(_LEAST_EPOCHS, min(_MOST_EPOCHS, round(_PASSED / max(rows, 1))))
    usual: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": min(512, max(16, rows // 40)),
        "optimizer": adam(3e-3, weight_decay=0.05),
        "schedule": schedules.one_cycle(),
        "average": 0.99,
        "seed": seed,
        "report": report,
    }
    return functools.partial(fit_model, **{**usual, **settings})
