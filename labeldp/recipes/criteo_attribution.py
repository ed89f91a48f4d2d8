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
from labeldp.core.random import SecureRandom
from labeldp.data.splits import Columns
from labeldp.data.table_files import UserBenchmark
from labeldp.learning.descend import rmsprop
from labeldp.learning.evidence import forward_corrected
from labeldp.learning.train import adam, fit, predict
from labeldp.mechanisms.gradients.sums import NormBound
from labeldp.mechanisms.users import UserVault
from labeldp.models.zoo import attribution_network
from labeldp.recipes.denoisers import alt_conv, alt_rows, no_op
from labeldp.recipes.user_level import train_on_gradients, train_on_responses
from labeldp.results.measure import auc

# (model, inputs, vault, *, epsilon, cap, seed) → model: a recipe of `user_level` with its other settings bound.
Method = Callable[..., nn.Module]


@dataclass(frozen=True)
class Outcome:
    """One training. `epsilon` and `delta` are the certificate's, for all labels of one user."""

    method: str
    cap: int
    epsilon: float
    delta: float
    auc: float


def methods(delta: float = 1e-5, epochs: int = 10, batch_users: int = 1024, clip: float = 1.0) -> dict[str, Method]:
    """The methods of Table 7 with settings inside its grids; and, ours, corrected answers and one simplex per row."""
    learn: Any = partial(fit, epochs=epochs, batch_size=1024, optimizer=adam(1e-3))
    responses = partial(train_on_responses, fit=learn)
    gradients = partial(
        train_on_gradients, delta=delta, epochs=epochs, batch_users=batch_users, bound=NormBound(clip),
        optimizer=rmsprop(1e-3),
    )  # fmt: skip
    return {
        "randomized response": partial(responses, alike=True),
        "randomized response, corrected": partial(responses, objective=forward_corrected),
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
    rng: SecureRandom | None = None,
) -> Iterator[Outcome]:
    """Train every method at every ε and cap, each with a vault of its own, as if it were the only release.

    The labels are taken out of `data.vault`, which then says so: comparing methods on one data set spends on every one.
    """
    labels = data.vault.reveal("a published benchmark: every training gets a vault of its own")
    inputs = features(data.train, device)
    for cap in caps:
        for epsilon in epsilons:
            for name, train in tried.items():
                torch.manual_seed(seed)
                vault = UserVault(labels, data.vault.users, data.num_classes, Budget(epsilon, delta), rng=rng)
                model = (make or network)(data).to(device)
                trained = train(model, inputs, vault, epsilon=epsilon, cap=cap, seed=seed)
                spent = vault.certificate()
                yield Outcome(name, cap, spent.epsilon, spent.delta, score(trained, data))


def network(data: UserBenchmark) -> nn.Module:
    """The small network for this table."""
    return attribution_network(data.train.numeric.shape[1], data.train.cardinalities, data.num_classes)


def features(columns: Columns, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Prices and codes as tensors on the device."""
    return torch.from_numpy(columns.numeric).to(device), torch.from_numpy(columns.categorical).to(device)


def score(model: nn.Module, data: UserBenchmark) -> float:
    """AUC on the open test labels."""
    device = next(model.parameters()).device
    logits = predict(model, features(data.test, device))
    return auc(logits[:, 1] - logits[:, 0], data.test_labels)
