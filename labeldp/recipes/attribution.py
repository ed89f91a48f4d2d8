"""Criteo attribution: which click gets the credit, all of a user's labels protected together.

The benchmark of user-level label privacy of Ghazi et al. 2024 (LabelDP-Pro, section 6 and Table 7). Clicked
advertisements of 200,000 people, those of 50,000 others to measure on; label: the purchase was credited to this click;
features: price, campaign and nine categories; at most k rows of a person, resampled to k; measured by AUC.

    data = attribution_by_user()                       # the real file, found through LABELDP_DATA
    for outcome in outcomes(data, methods(), epsilons=(0.1, 1.0), caps=(2, 5, 10)):
        print(outcome)

Two things differ from the paper. Its ε is very probably that of adding or removing a user; here it is that of replacing
all labels of one, which needs up to twice the noise. And the network is ours: the paper does not give one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labeldp.core.ledger import Budget
from labeldp.data.benchmarks import Columns, UserBenchmark
from labeldp.learning.optimisers import adam, rmsprop
from labeldp.learning.train import fit, predict
from labeldp.mechanisms.gradients.sums import NormBound
from labeldp.models.zoo import attribution_network
from labeldp.recipes import labeldp_pro
from labeldp.recipes.denoisers import alt_conv, alt_rows, no_op
from labeldp.recipes.per_row import forward, rr
from labeldp.results.measure import auc

# (model, inputs, vault, *, epsilon, cap, seed) → model: a recipe for users with its other settings bound.
Method = Callable[..., nn.Module]


@dataclass(frozen=True)
class Outcome:
    """One training. `epsilon` and `delta` are the certificate's, for all labels of one user."""

    method: str
    cap: int
    epsilon: float
    delta: float
    auc: float


def methods(delta: float = 1e-5, epochs: int = 10, batch_size: int = 1024, clip: float = 1.0) -> dict[str, Method]:
    """Return the methods of Table 7 with settings inside its grids; and, ours, corrected responses and alt_rows."""
    learn: Any = partial(fit, epochs=epochs, batch_size=1024, optimizer=adam(1e-3))
    gradients = partial(
        labeldp_pro.train, delta=delta, epochs=epochs, batch_size=batch_size, bound=NormBound(clip),
        optimizer=rmsprop(1e-3),
    )  # fmt: skip
    return {
        "randomized response": partial(rr, fit=learn, alike=True),
        "randomized response, corrected": partial(forward, fit=learn),
        "DP-SGD": partial(gradients, denoiser=no_op()),
        "LabelDP-Pro": partial(gradients, denoiser=alt_conv()),
        "LabelDP-Pro, row by row": partial(gradients, denoiser=alt_rows()),
    }


def outcomes(
    data: UserBenchmark,
    tried: Mapping[str, Method],
    *,
    epsilons: Sequence[float],
    caps: Sequence[int] = (2, 5, 10),
    delta: float = 1e-5,
    seed: int = 0,
    device: torch.device | str = "cpu",
    make: Callable[[UserBenchmark], nn.Module] | None = None,
) -> Iterator[Outcome]:
    """Train every method at every ε and cap, each with a part of the vault, as if it were the only release.

    The ledger of `data.vault` counts them all: comparing methods on one data set spends on every one.
    """
    inputs = features(data.train, device)
    for cap in caps:
        for epsilon in epsilons:
            for name, train in tried.items():
                torch.manual_seed(seed)
                vault = data.vault.part(budget=Budget(epsilon, delta))
                model = (make or network)(data).to(device)
                trained = train(model, inputs, vault, epsilon=epsilon, cap=cap, seed=seed)
                spent = vault.certificate()
                yield Outcome(name, cap, spent.epsilon, spent.delta, score(trained, data))


def network(data: UserBenchmark) -> nn.Module:
    """Return the small network for this table."""
    return attribution_network(data.train.numeric.shape[1], data.train.cardinalities, data.num_classes)


def features(columns: Columns, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Return prices and codes as tensors on the device."""
    return torch.from_numpy(columns.numeric).to(device), torch.from_numpy(columns.categorical).to(device)


def score(model: nn.Module, data: UserBenchmark) -> float:
    """Return the AUC on the open test labels."""
    device = next(model.parameters()).device
    logits = predict(model, features(data.test, device))
    return auc(logits[:, 1] - logits[:, 0], data.test_labels.values)
