"""What the recipes on gradients share: a run paid for in advance that goes on after a kill, and its least noise."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labeldp.budgets.calibrate import calibrate
from labeldp.budgets.counter import QueryCounter
from labeldp.core.events import Event, Query
from labeldp.core.gaussian import gaussian_mu
from labeldp.core.vault import LabelVault, Lease
from labeldp.data.storage import digest
from labeldp.learning.descend import Kept
from labeldp.learning.train import Inputs, MakeOptimizer, Schedule
from labeldp.releases import NoisyGradient


class Run:
    """Prepaid looks, taken in order. With a folder they outlive the process; without one nothing is written.

    Before a look is drawn its number is on the disk, and before its gradient is used, so is the gradient. A killed
    run so loses at most the look it was drawing, and never draws one twice. `vault.lease(..., counter=run.counter)` pays.

    Args:
        folder: where the run is kept.
        question: everything that decides what is asked and done with it, as plain JSON values; a folder with another
            question is refused.
    """

    def __init__(self, folder: Path | None, question: Mapping[str, Any]) -> None:
        self.counter: QueryCounter | None = None
        self.kept: Kept | None = None
        self._begun = 0
        self._open = ExitStack()
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            self.counter = opened.enter_context(QueryCounter(folder / "looks.tally", question))
            self.kept = opened.enter_context(Kept(folder, self.counter.query_id))
            self._begun = self.counter.total
            if self._begun and self.kept.load() is None:
                raise ValueError(f"{folder} has lost its checkpoint; put it back, or use a new folder and pay again")
            self._open = opened.pop_all()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def terms(self) -> tuple[float, int] | None:
        """Noise and number of looks that an earlier process paid for; None for a new run.

        Taken from there rather than calibrated again: another machine may round the last digit otherwise.
        """
        charge = None if self.counter is None else self.counter.charge
        return None if charge is None else (float(charge["event"]["noise_std"]), int(charge["times"]))

    def query(self, step: int, lease: Lease[NoisyGradient]) -> Tensor | None:
        """The gradient of this step: kept from an earlier process, or drawn and kept; None if it was lost."""
        found = None if self.kept is None else self.kept.gradient(step)
        if found is not None or step < self._begun:
            return found
        noisy = lease().value
        if self.kept is not None:
            self.kept.add(step, noisy)
        return noisy


def least_noise(
    event_of: Callable[[float], Event], times: int, epsilon: float, delta: float, diameter: float, rate: float = 1.0
) -> float:
    """The smallest noise with which `times` looks cost at most `epsilon` at `delta`."""
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


def check_inputs(inputs: Inputs, vault: LabelVault) -> None:
    """Raise ValueError for features that are not finite, no rows, or a single class: before anything is asked."""
    if len(vault) == 0 or vault.num_classes < 2:
        raise ValueError(f"{vault!r} has nothing to learn; give at least one label of at least two classes")
    for number, tensor in enumerate(inputs if isinstance(inputs, tuple) else (inputs,)):
        if tensor.is_floating_point() and not math.isfinite(tensor.sum(dtype=torch.float64).item()):
            bad = int((~torch.isfinite(tensor)).reshape(len(tensor), -1).any(dim=1).sum())
            raise ValueError(f"inputs[{number}] has {bad} rows that are not finite; fill in or drop missing features")


def described(model: nn.Module, inputs: Inputs, vault: LabelVault, **settings: Any) -> dict[str, Any]:
    """The question of a run as plain values: shapes, a digest of the data, and the settings in words."""
    shapes = [(name, tuple(p.shape), p.requires_grad) for name, p in model.named_parameters()]
    columns = inputs if isinstance(inputs, tuple) else (inputs,)
    data = [x.detach().contiguous().cpu().view(torch.uint8).numpy() for x in columns]
    return {
        "model": digest(np.array(repr(shapes))),
        "inputs": [f"{tuple(x.shape)} {x.dtype} {digest(raw)}" for x, raw in zip(columns, data, strict=True)],
        "labels": len(vault),
        "classes": vault.num_classes,
        **{name: in_words(value) for name, value in settings.items()},
    }


def in_words(value: Any) -> Any:
    """A setting as a JSON value that is equal for equal settings: functions by name, settings of partials included."""
    if isinstance(value, functools.partial):
        return [in_words(value.func), in_words(list(value.args)), in_words(value.keywords)]
    if dataclasses.is_dataclass(value):
        fields = {field.name: in_words(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return [type(value).__name__, fields]
    if isinstance(value, Mapping):
        return {str(key): in_words(entry) for key, entry in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [in_words(entry) for entry in value]
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return in_words(value.tolist())
    plain = value is None or isinstance(value, bool | int | float | str)
    return value if plain else getattr(value, "__qualname__", type(value).__qualname__)


def optimizer_in_words(optimizer: MakeOptimizer, schedule: Schedule) -> Any:
    """The optimiser's name and settings, and the schedule by its values: both are made by functions without a name."""
    made = optimizer([nn.Parameter(torch.zeros(1))])
    return [type(made).__name__, in_words(made.defaults), [round(schedule(i / 16), 12) for i in range(16)]]
