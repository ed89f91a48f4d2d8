"""What recipes share: checks before anything is spent, releases kept so that none is drawn twice, one split of ε.

A recipe that was killed goes on: what it released is written down before it is used, and what is found in its folder
is not drawn again (`release_once` for single releases, `Run` for gradients paid for in advance).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from labeldp.budgets.calibrate import calibrate
from labeldp.budgets.counter import QueryCounter
from labeldp.core.events import Event, GridGaussian, PureDP, Query, event_to_json
from labeldp.core.gaussian import gaussian_epsilon, gaussian_mu
from labeldp.core.ledger import check_budget
from labeldp.core.vault import LabelVault, Lease, Mechanism
from labeldp.data.storage import digest, load_labels, load_note, save_labels
from labeldp.learning.descend import Kept
from labeldp.learning.evidence import Objective
from labeldp.learning.optimisers import MakeOptimizer, Schedule
from labeldp.learning.train import Inputs, predict
from labeldp.mechanisms.common import checked_epsilon
from labeldp.releases import NoisyGradient, NoisyLabels

Out = TypeVar("Out")
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


def check_rows(model: nn.Module, inputs: Inputs, vault: LabelVault, outputs: int) -> None:
    """Raise ValueError unless there is one input per label and the model maps each to `outputs` numbers.

    Runs the model on one row before anything is spent: a mistake here must not cost privacy.
    """
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    for number, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"inputs[{number}] is a {type(tensor).__name__}; give a torch tensor")
        if len(tensor) != len(vault):
            raise ValueError(f"inputs[{number}] has {len(tensor)} rows and the vault {len(vault)}; give one per label")
    if len(vault):
        shape = tuple(predict(model, tuple(x[:1] for x in tensors)).shape)
        if shape != (1, outputs):
            raise ValueError(f"the model maps one row to shape {shape}; it must be (1, {outputs}) for this vault")


def check_inputs(inputs: Inputs, vault: LabelVault) -> None:
    """Raise ValueError for features that are not finite, no rows, or a single class: before anything is spent."""
    if len(vault) == 0 or vault.num_classes < 2:
        raise ValueError(f"{vault!r} has nothing to learn; give at least one label of at least two classes")
    for number, tensor in enumerate(inputs if isinstance(inputs, tuple) else (inputs,)):
        if tensor.is_floating_point() and not math.isfinite(tensor.sum(dtype=torch.float64).item()):
            bad = int((~torch.isfinite(tensor)).reshape(len(tensor), -1).any(dim=1).sum())
            raise ValueError(f"inputs[{number}] has {bad} rows that are not finite; fill in or drop missing features")


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


# --- releases that are kept -------------------------------------------------------------------------------------


def release_labels(
    vault: LabelVault,
    mechanism: Mechanism[NoisyLabels],
    rows: npt.NDArray[np.intp] | None = None,
    kept: Path | None = None,
) -> NoisyLabels:
    """Release one response per row, or return those kept in this file by an earlier run: none is drawn twice."""
    note = {**query_note(vault, mechanism), "rows asked": "all" if rows is None else digest(rows)}
    return release_once(vault, mechanism, kept, note, save_labels, load_labels, rows)


def release_once(
    vault: LabelVault,
    mechanism: Mechanism[Out],
    kept: Path | None,
    note: dict[str, Any],
    save: Callable[[Path, Out, dict[str, Any]], None],
    load: Callable[[Path], Out],
    rows: npt.NDArray[np.intp] | None = None,
) -> Out:
    """Release and keep, or load what was kept for the same note.

    The file is written before the release is used; it holds the release and its public channel, no label. What another
    vault released (in an earlier process) is paid for again here, so that this vault's certificate covers it too.
    """
    if kept is None or not kept.exists():
        released = vault.release(mechanism, rows)
        if kept is not None:
            save(kept, released, note)
        return released
    earlier = load_note(kept)
    odd = sorted(key for key in note if key != "vault" and note[key] != earlier.get(key))
    if odd:
        raise ValueError(f"{kept} holds the release of another query ({', '.join(odd)} differ); use a new folder")
    if earlier["vault"] != note["vault"]:
        vault.record(mechanism, rows)
    return load(kept)


def query_note(vault: LabelVault, mechanism: Mechanism[Any]) -> dict[str, Any]:
    """Return what every kept release is bound to, as plain JSON values; "vault" says whose it was."""
    return {
        "vault": vault.id,
        "mechanism": type(mechanism).__name__,
        "event": event_to_json(mechanism.event()),
        "rows of the vault": len(vault),
        "classes": vault.num_classes,
    }


def in_folder(folder: Path | None, name: str) -> Path | None:
    """Return a file of the run's folder, which is made when it is missing; None without a folder."""
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def checkpoint_of(folder: Path | None, *responses: np.ndarray) -> dict[str, Path]:
    """Return a fit's checkpoint setting: a file named after the responses, so that no other model is resumed."""
    return {} if folder is None else {"checkpoint": folder / f"model-{digest(*responses)}.safetensors"}


# --- gradients that are paid for in advance ---------------------------------------------------------------------


class Run:
    """Prepaid gradients, drawn in order. With a folder they outlive the process; without one nothing is written.

    Before a gradient is drawn its number is on the disk, and before it is used, so is the gradient. A killed run so
    loses at most the one it was drawing, and never draws one twice. `vault.lease(..., counter=run.counter)` pays.

    Args:
        folder: where the run is kept.
        question: everything that decides what is released and what is done with it, as plain JSON values; a folder
            with another question is refused.
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
        """Noise and number of queries that an earlier process paid for; None for a new run.

        Taken from there rather than calibrated again: another machine may round the last digit otherwise.
        """
        charge = None if self.counter is None else self.counter.charge
        return None if charge is None else (float(charge["event"]["noise_std"]), int(charge["times"]))

    def query(self, step: int, lease: Lease[NoisyGradient]) -> Tensor | None:
        """Return this step's gradient: kept by an earlier process, or drawn and kept; None if it was lost."""
        found = None if self.kept is None else self.kept.gradient(step)
        if found is not None or step < self._begun:
            return found
        noisy = lease().value
        if self.kept is not None:
            self.kept.add(step, noisy)
        return noisy


def described(model: nn.Module, inputs: Inputs, vault: LabelVault, **settings: Any) -> dict[str, Any]:
    """Return the question of a run as plain values: shapes, a digest of the data, and the settings in words."""
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
    """Return a setting as a JSON value that is equal for equal settings: functions by name, partials with theirs."""
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
    """Return optimiser and schedule as JSON: its name and settings, and its values; both come from closures."""
    made = optimizer([nn.Parameter(torch.zeros(1))])
    return [type(made).__name__, in_words(made.defaults), [round(schedule(i / 16), 12) for i in range(16)]]
