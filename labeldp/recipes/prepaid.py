"""Keep gradients that are paid for in advance: a killed run loses at most the one it was drawing, and draws none twice.

Before a gradient is drawn its number is on the disk, and before it is used, so is the gradient; a checkpoint follows
every few steps (`labeldp.learning.descend.Kept`). A run is bound to its question: everything that decides what is
released and what is done with it. The next process in the folder takes noise and number of queries from the charge.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labeldp.atomic import Room, replacing
from labeldp.budgets.counter import QueryCounter
from labeldp.core.vault import LabelVault, Lease
from labeldp.learning.descend import Kept
from labeldp.learning.optimisers import MakeOptimizer, Schedule
from labeldp.learning.train import Inputs
from labeldp.recipes.kept import ROOM_TO_SPARE, digest, recover
from labeldp.releases import NoisyGradient


class Run:
    """Prepaid gradients, drawn in order. With a folder they outlive the process; without one nothing is written.

    `vault.lease(..., counter=run.counter)` pays.

    Args:
        folder: where the run is kept.
        question: everything that decides what is released and what is done with it, as plain JSON values; a folder
            with another question is refused.
        width: of a gradient.
    """

    def __init__(self, folder: Path | None, question: Mapping[str, Any], width: int = 0) -> None:
        self.counter: QueryCounter | None = None
        self.kept: Kept | None = None
        self._begun, self._folder = 0, folder
        self._open = ExitStack()
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            self.counter = opened.enter_context(QueryCounter(folder / "gradients.counter", question))
            self.kept = opened.enter_context(Kept(folder, self.counter.query_id))
            self._begun = self.counter.total
            if self._begun and self.kept.load() is None:
                raise ValueError(f"{folder} has lost its checkpoint; put it back, or use a new folder and pay again")
            spare = folder / "gradient.npz"
            recover(spare)
            if spare.exists():
                # A full disk kept it out of the log, where it belongs.
                with np.load(spare, allow_pickle=False) as found:
                    step, value = int(found["step"]), torch.from_numpy(found["value"])
                done = self.kept.load()
                if done is not None and done[0] <= step and self.kept.gradient(step) is None:
                    self.kept.add(step, value)
                spare.unlink()
            # For the one gradient that is drawn when the disk is full.
            self._room = opened.enter_context(Room(spare, 8 * width + ROOM_TO_SPARE))
            self._open = opened.pop_all()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def terms(self) -> tuple[float, int] | None:
        """Return noise and number of queries that an earlier process paid for; None for a new run.

        Taken from there rather than calibrated again: another machine may round the last digit otherwise.
        """
        charge = None if self.counter is None else self.counter.charge
        return None if charge is None else (float(charge["event"]["noise_std"]), int(charge["times"]))

    def assume(self, vault: LabelVault, *sentences: str) -> None:
        """Let the certificate say these sentences, and those of every earlier process that drew for this run."""
        if self._folder is not None:
            file = self._folder / "assumptions.json"
            earlier = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
            sentences = tuple(dict.fromkeys([*earlier, *sentences]))
            if len(sentences) > len(earlier):
                with replacing(file) as draft:
                    draft.write_text(json.dumps(sentences), encoding="utf-8")
        vault.assume(*sentences)

    def query(self, step: int, lease: Lease[NoisyGradient]) -> Tensor | None:
        """Return this step's gradient: kept by an earlier process, or drawn and kept; None if it was lost."""
        found = None if self.kept is None else self.kept.gradient(step)
        if found is not None or step < self._begun:
            return found
        noisy = lease().value
        if self.kept is not None:
            try:
                self.kept.add(step, noisy)
            except OSError:
                content = io.BytesIO()
                np.savez(content, allow_pickle=False, step=np.array(step), value=noisy.detach().cpu().numpy())
                self._room.fill(content.getbuffer())
                raise
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
