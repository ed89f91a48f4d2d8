"""Keep what was paid for: every release is on the disk before it is used, and a run that stopped goes on from there.

For a release NAME.npz of a run's folder, in this order:

    room on the disk is taken  →  the query is charged, under the id in NAME.tally  →  its beginning is counted there
    →  drawn  →  written into the room, flushed, renamed

Wherever a kill, an exception or a full disk stops it, the next run in the folder knows what to do. Not charged yet: all
from the start. Charged and not begun: it is drawn, and a store that holds the id is not charged again. Begun and not
kept: that one is lost, and only that one; its count is put aside and the query paid for anew. Kept: it is read, and the
new vault's ledger records what it cost, and whether its noise came from a seed.

`release_once` does so for single releases, `Run` for gradients that are paid for in advance. Files hold releases and
their public channels, no label.
"""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import io
import os
import secrets
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from labeldp.atomic import Room, flush, replacing
from labeldp.budgets.counter import CounterError, QueryCounter
from labeldp.core.events import Event, event_to_json
from labeldp.core.ledger import RowIndex
from labeldp.core.vault import LabelVault, Lease, Mechanism
from labeldp.data.storage import digest, load_labels, load_note, save_labels
from labeldp.learning.descend import Kept
from labeldp.learning.optimisers import MakeOptimizer, Schedule
from labeldp.learning.train import Inputs
from labeldp.releases import NoisyGradient, NoisyLabels

Out = TypeVar("Out")
Save = Callable[[Path | IO[bytes], Out, dict[str, Any]], None]
# What a file has besides its numbers.
_DESCRIPTION = 1 << 16
# What reading half a file can raise.
_BROKEN = (ValueError, KeyError, EOFError, zipfile.BadZipFile)


# --- single releases --------------------------------------------------------------------------------------------


def release_labels(
    vault: LabelVault,
    mechanism: Mechanism[NoisyLabels],
    rows: npt.NDArray[np.intp] | None = None,
    kept: Path | None = None,
) -> NoisyLabels:
    """Release one response per row, or return those kept in this file by an earlier run."""
    note = {**query_note(vault, mechanism), "rows asked": "all" if rows is None else digest(rows)}
    # A whole number per row, or per row and class, and the classes that it was drawn from.
    numbers = (len(vault) if rows is None else len(rows)) * (vault.num_classes + 2)
    return release_once(vault, mechanism, kept, note, save_labels, load_labels, rows, numbers=numbers)


def release_once(
    vault: LabelVault,
    mechanism: Mechanism[Out],
    kept: Path | None,
    note: dict[str, Any],
    save: Save[Out],
    load: Callable[[Path], Out],
    rows: npt.NDArray[np.intp] | None = None,
    *,
    numbers: int,
) -> Out:
    """Release and keep, or load what was kept for the same note.

    Args:
        kept: the file; None keeps nothing.
        note: what the release is of, as plain JSON values; a file with another note is refused. "vault" says whose.
        save, load: write and read the release.
        numbers: how many it has at most, so that there is room for them before they are paid for.
    """
    if kept is None:
        return vault.release(mechanism, rows)
    with _alone_in(kept.parent):
        _recover(kept)
        if kept.exists():
            earlier = load_note(kept)
            odd = sorted(key for key in note if key != "vault" and note[key] != earlier.get(key))
            if odd:
                raise ValueError(
                    f"{kept} holds the release of another query ({', '.join(odd)} differ); use a new folder"
                )
            if earlier["vault"] != note["vault"]:
                vault.record(mechanism, rows, seeded=earlier.get("seeded", False), query_id=earlier.get("query"))
            return load(kept)
        if _was_lost(kept):
            _put_aside(kept)
        question = {key: value for key, value in note.items() if key != "vault"}
        with (
            QueryCounter(kept.with_suffix(".tally"), question) as counter,
            Room(kept, 9 * numbers + _DESCRIPTION) as room,
        ):
            released = vault.lease(mechanism, 1, rows, counter=counter)()
            content = io.BytesIO()
            save(content, released, {**note, "seeded": vault.seeded, "query": counter.query_id})
            room.fill(content.getbuffer())
        return released


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from taking what this one has begun for lost: one at a time is in a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise CounterError(f"{str(folder)!r} is in use by a run that has not ended; wait for it") from None
    finally:
        os.close(descriptor)


def _recover(kept: Path) -> None:
    """Give a release its name that was written whole and not named; throw half of one away."""
    room = Room.beside(kept)
    if kept.exists() or not room.exists():
        return
    try:
        with room.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            # Read, so that check sums are compared.
            _ = [arrays[name] for name in arrays]
    except _BROKEN:
        room.unlink()
    else:
        os.replace(room, kept)
        flush(kept.parent)


def _was_lost(kept: Path) -> bool:
    """Return whether the query was begun, and what it released is nowhere."""
    _recover(kept)
    path = kept.with_suffix(".tally")
    if kept.exists() or not path.exists():
        return False
    # Of a query that begins there is its number, alone on a line.
    return any(line.isdigit() for line in path.read_bytes().split(b"\n")[:-1])


def _put_aside(kept: Path) -> None:
    """Rename the count of a lost query, which stays charged."""
    path = kept.with_suffix(".tally")
    os.replace(path, path.with_name(f"{kept.stem}.lost-{secrets.token_hex(4)}"))
    flush(path.parent)


def planned(vault: LabelVault, queries: Iterable[tuple[Event, RowIndex | None, Path | None]]) -> LabelVault:
    """Return a vault that draws these queries (event, rows, file) as one plan: fixed in advance, they cost the least.

    A release that this very vault gave before, and which is kept in its file, is paid for. Raises BudgetExceededError
    when the budget does not allow all the others; they are charged together, with the first that is drawn, under an id
    that is kept beside the first file. One query begun and lost, and the plan is paid for anew.
    """
    asked = list(queries)
    files = [kept for _, _, kept in asked if kept is not None]
    due = [
        (event, 1, rows)
        for event, rows, kept in asked
        if kept is None or not kept.exists() or load_note(kept)["vault"] != vault.id
    ]
    if not due:
        return vault
    return vault.plan(due, query_id=_plan_id(files) if files else None)


def _plan_id(files: list[Path]) -> str:
    path = files[0].with_name("plan.id")
    with ExitStack() as alone:
        for folder in sorted({file.parent for file in files}):
            alone.enter_context(_alone_in(folder))
        lost = [file for file in files if _was_lost(file)]
        if lost or not path.exists():
            with replacing(path) as draft:
                draft.write_text(secrets.token_hex(16), encoding="ascii")
        # Only now: stopped in between, the next run finds them lost again, and nothing was paid under the new id.
        for file in lost:
            _put_aside(file)
        return path.read_text(encoding="ascii")


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
        width: of a gradient.
    """

    def __init__(self, folder: Path | None, question: Mapping[str, Any], width: int = 0) -> None:
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
            spare = folder / "gradient.npz"
            self._take_back(spare)
            # For the one gradient that is drawn when the disk is full.
            self._room = opened.enter_context(Room(spare, 8 * width + _DESCRIPTION))
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
            try:
                self.kept.add(step, noisy)
            except OSError:
                content = io.BytesIO()
                np.savez(content, allow_pickle=False, step=np.array(step), value=noisy.detach().cpu().numpy())
                self._room.fill(content.getbuffer())
                raise
        return noisy

    def _take_back(self, spare: Path) -> None:
        """Put a gradient that a full disk kept out of the log where it belongs."""
        assert self.kept is not None
        _recover(spare)
        if spare.exists():
            with np.load(spare, allow_pickle=False) as found:
                step, value = int(found["step"]), torch.from_numpy(found["value"])
            done = self.kept.load()
            if done is not None and done[0] <= step and self.kept.gradient(step) is None:
                self.kept.add(step, value)
            spare.unlink()


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
