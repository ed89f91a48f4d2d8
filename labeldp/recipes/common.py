"""What recipes share: the training loop as they know it, and how ε is split between queries of the same rows."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from labeldp.budgets.calibrate import calibrate
from labeldp.core.events import Event, GridGaussian, PureDP, Query
from labeldp.core.gaussian import gaussian_epsilon, gaussian_mu
from labeldp.core.ledger import check_budget
from labeldp.core.vault import LabelVault
from labeldp.data.storage import load_note
from labeldp.learning.evidence import Objective
from labeldp.learning.train import Inputs
from labeldp.mechanisms.common import checked_epsilon

_ROOT2 = math.sqrt(2.0)
# What rounding may lose when μ is taken apart and put together again, with room.
_SLACK = 1e-9


class Fit(Protocol):
    """`labeldp.learning.train.fit` with epochs, optimiser and so on already bound."""

    def __call__(self, model: nn.Module, inputs: Inputs, objective: Objective, /, **settings: Any) -> nn.Module:
        """Train and return the model."""
        ...


# --- inputs -----------------------------------------------------------------------------------------------------


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's parameters."""
    return next(model.parameters()).device


def take_rows(inputs: Inputs, rows: np.ndarray) -> Inputs:
    """Return these rows of every input, in this order."""
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    index = torch.from_numpy(np.ascontiguousarray(rows)).to(tensors[0].device)
    chosen: tuple[Tensor, ...] = tuple(tensor[index] for tensor in tensors)
    return chosen if isinstance(inputs, tuple) else chosen[0]


# --- the budget -------------------------------------------------------------------------------------------------


def split_budget(
    epsilon: float, delta: float, shares: Sequence[float], *, last_pure: bool = False
) -> tuple[float, ...]:
    """Return the ε of each query, so that all of them on the same rows cost (ε, δ) together and not more.

    All are Gaussian, each at the same δ, and μ(ε_r, δ)² = share_r · μ(ε, δ)²: the ε_r add up to more than ε, and the
    queries still cost ε, because squares of μ add up (Dong, Roth & Su 2022). With `last_pure` there is one Gaussian
    query and one pure response per row, ε₂ = share₂ · ε, and ε₁ is the largest for which both cost (ε, δ) by their
    privacy loss distributions. Two pure queries are split by `split_pure`.

    >>> [round(part, 4) for part in split_budget(1.0, 1e-5, (0.5, 0.5))]
    [0.6841, 0.6841]
    >>> [round(part, 4) for part in split_budget(2.0, 1e-5, (0.25, 0.75), last_pure=True)]
    [0.5074, 1.5]
    """
    # Nothing may be left for a pure query: then there is none.
    least = min(shares) >= 0 and shares[0] > 0 if shares and last_pure else bool(shares) and min(shares) > 0
    if not least or not abs(sum(shares) - 1) <= 1e-9:
        raise ValueError(f"shares={tuple(shares)} do not split the budget; give positive numbers that add up to 1")
    if not 0 < epsilon < math.inf or not 0 < delta < 1:
        raise ValueError(f"epsilon={epsilon}, delta={delta}: Gaussian noise needs finite ε > 0 and 0 < δ < 1")
    if last_pure:
        second = shares[-1] * epsilon
        return (_largest_first(epsilon, delta, second), second) if second > 0 else (epsilon, 0.0)
    mu = gaussian_mu(epsilon, delta) * (1 - _SLACK)
    parts = [gaussian_epsilon(mu * math.sqrt(share / sum(shares)), delta) for share in shares]
    if min(parts) <= 0:
        raise ValueError(f"epsilon={epsilon} is too small for {len(parts)} queries at delta={delta}; use one query")
    return tuple(parts)


def split_pure(epsilon: float, first: float) -> tuple[float, float]:
    """Return `first` and the rest of ε, for two pure queries: they add up to ε without a rounding error.

    For that `first` may differ from the one given in its last digits.

    >>> split_pure(1.0, 0.25)
    (0.25, 0.75)
    """
    rest = epsilon - first
    # Exact both ways: what is subtracted last, or first, is at least ε/2 (Sterbenz 1974).
    return (epsilon - rest if rest < math.inf else first), rest


@functools.lru_cache(maxsize=256)
def _largest_first(epsilon: float, delta: float, second: float) -> float:
    """Return the ε₁ whose Gaussian noise leaves ε₂ = `second` to a pure query."""
    # A little over: the noise of ε₁ is found from ε₁ again, and must not be less.
    std = 1.0001 * calibrate(
        lambda noise: (Query(GridGaussian(noise, _ROOT2)), Query(PureDP(second))),
        epsilon, delta, guess=_ROOT2 / gaussian_mu(epsilon - second, delta), rtol=1e-5,
    )  # fmt: skip
    return gaussian_epsilon(_ROOT2 / std, delta)


def check_affordable(vault: LabelVault, queries: Iterable[tuple[Event, Path | None]]) -> None:
    """Raise BudgetExceededError before the first query when the budget does not allow all of them.

    A release that this very vault gave before, and which is kept in the file, is paid for.
    """
    ledger = vault.ledger
    for event, kept in queries:
        if kept is None or not kept.exists() or load_note(kept)["vault"] != vault.id:
            ledger = ledger.charge(event)
    check_budget(ledger.groups(), vault.budget)


def checked_part(name: str, part: float, epsilon: float) -> float:
    """Return ε's part, or raise ValueError when it is not between 0 and ε."""
    if not 0 <= checked_epsilon(part) <= epsilon:
        raise ValueError(f"{name}={part} is not a part of epsilon={epsilon}; give 0 to {epsilon}")
    return part


def least_noise(
    event_of: Callable[[float], Event], times: int, epsilon: float, delta: float, diameter: float, rate: float = 1.0
) -> float:
    """Return the smallest noise with which `times` queries cost at most `epsilon` at `delta`."""
    check_target(epsilon, delta)
    # What the central limit says; right when the noise is large.
    guess = diameter * rate * math.sqrt(times) / gaussian_mu(epsilon, delta)
    return calibrate(lambda noise: (Query(event_of(noise), times),), epsilon, delta, guess=guess)


def check_target(epsilon: float, delta: float) -> None:
    """Raise ValueError unless Gaussian noise can reach this target."""
    if not 0 < epsilon < math.inf:
        raise ValueError(
            f"epsilon={epsilon} cannot be reached with Gaussian noise; give a finite number greater than 0. To train "
            "without privacy, reveal the labels and use labeldp.learning.train"
        )
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta} cannot be reached with Gaussian noise; give, say, 1e-5")
