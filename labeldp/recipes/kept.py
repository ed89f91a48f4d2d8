"""Keep what was paid for: every release is on the disk before it is used, and a run that stopped goes on from there.

For a release NAME.npz of a run's folder, in this order:

    room on the disk is taken  →  the query is charged, under the id in NAME.counter  →  its beginning is counted there
    →  drawn  →  written into the room, flushed, renamed

Wherever a kill, an exception or a full disk stops it, the next run in the folder knows what to do. Not charged yet: all
from the start. Charged and not begun: it is drawn, and a store that holds the id is not charged again. Begun and not
kept: that one is lost, and only that one; its count is put aside and the query paid for anew. Kept: it is read, and the
new vault's ledger records what it cost, and whether its noise came from a seed.

`release_once` does so for single releases, `labeldp.recipes.prepaid` for gradients that are paid for in advance. A file
holds a release, its public channel and a note of what was asked, as arrays and JSON: no label, and nothing that runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import secrets
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt

from labeldp.atomic import Room, check_room, rename, replacing
from labeldp.budgets.counter import CounterError, QueryCounter
from labeldp.core.events import Event, event_to_json
from labeldp.core.ledger import Charged, RowIndex, check_budget
from labeldp.core.vault import LabelVault, Mechanism
from labeldp.data.released import ReleasedLabels
from labeldp.mechanisms.channels import channel_from_description
from labeldp.mechanisms.responses import SetResponse, TopKResponse
from labeldp.mechanisms.values import BinnedResponse, NoisyValues
from labeldp.ranks import current
from labeldp.releases import NoisyCounts, NoisyErrors, NoisyLabels, NoisyMoments, NoisyScores

Out = TypeVar("Out")
# What a query costs, the rows it is of (all when None), and the file that keeps what it releases.
Asked = tuple[Event, RowIndex | None, Path | None]
# What a file has besides its numbers.
ROOM_TO_SPARE = 1 << 16
# In a note, which rows a part of a vault has: a part of other rows has not paid for the release.
_PLACE = "rows of the whole"
# In a note, what says who drew and who paid, and not what was asked.
_OF_THE_DRAW = {"vault", "seeded", "query"}
# What a fit that sets rows aside was begun with.
_FIT = "fit.json"
# What reading half a file can raise.
_BROKEN = (ValueError, KeyError, EOFError, zipfile.BadZipFile)


def release_labels(
    vault: LabelVault,
    mechanism: Mechanism[NoisyLabels],
    rows: npt.NDArray[np.intp] | None = None,
    kept: Path | None = None,
) -> NoisyLabels:
    """Release one response per row, or return those kept in this file by an earlier run."""
    note = {**query_note(vault, mechanism), "rows queried": "all" if rows is None else digest(rows)}
    # A whole number per row, or per row and class, and the classes that it was drawn from.
    numbers = (len(vault) if rows is None else len(rows)) * (vault.num_classes + 2)
    return release_once(vault, mechanism, kept, note, rows, numbers=numbers)


def release_once(
    vault: LabelVault,
    mechanism: Mechanism[Out],
    kept: Path | None,
    note: dict[str, Any],
    rows: npt.NDArray[np.intp] | None = None,
    *,
    numbers: int,
    read: Callable[[Path], Out] | None = None,
) -> Out:
    """Release and keep, or load what was kept for the same note.

    Args:
        kept: the file; None keeps nothing.
        note: what the release is of, as plain JSON values; a file with another note is refused. "vault" says whose.
        numbers: how many it has at most, so that there is room for them before they are paid for.
        read: reads what `save` wrote, where `load` cannot know all of it.
    """
    if isinstance(vault, ReleasedLabels):
        # What was released before is kept where it was, and is not drawn here.
        return vault.release(mechanism, rows)
    ranks = current()
    if ranks is None:
        return _released(vault, mechanism, kept, note, rows, numbers, read)
    if ranks.first:
        # Drawn once: every rank learns from the same release.
        released, content = _released(vault, mechanism, kept, note, rows, numbers, read), io.BytesIO()
        save(content, released, note)
        ranks.send(content.getvalue())
        return released
    vault.record(mechanism, rows, seeded=vault.seeded)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "release.npz"
        file.write_bytes(ranks.receive())
        return load(file) if read is None else read(file)


def _released(
    vault: LabelVault,
    mechanism: Mechanism[Out],
    kept: Path | None,
    note: dict[str, Any],
    rows: npt.NDArray[np.intp] | None,
    numbers: int,
    read: Callable[[Path], Out] | None,
) -> Out:
    if kept is None:
        return vault.release(mechanism, rows)
    with _alone_in(kept.parent):
        lost = _was_lost(kept)
        if kept.exists():
            earlier = load_note(kept)
            odd = sorted(key for key in {*note, *earlier} - _OF_THE_DRAW if note.get(key) != earlier.get(key))
            if odd:
                raise ValueError(
                    f"{kept} holds the release of another query ({', '.join(odd)} differ); use a new folder"
                )
            if earlier["vault"] != note["vault"]:
                vault.record(mechanism, rows, seeded=earlier.get("seeded", False), query_id=earlier.get("query"))
            return load(kept) if read is None else read(kept)
        if lost:
            _put_aside(kept)
        question = {key: value for key, value in note.items() if key != "vault"}
        with (
            QueryCounter(kept.with_suffix(".counter"), question) as counter,
            Room(kept, 9 * numbers + ROOM_TO_SPARE) as room,
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


def recover(kept: Path) -> None:
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
        rename(room, kept)


def _was_lost(kept: Path) -> bool:
    """Return whether the query was begun, and what it released is nowhere, after `recover`."""
    recover(kept)
    path = kept.with_suffix(".counter")
    if kept.exists() or not path.exists():
        return False
    # Of a query that begins there is its number, alone on a line.
    return any(line.isdigit() for line in path.read_bytes().split(b"\n")[:-1])


def _put_aside(kept: Path) -> None:
    """Rename the count of a lost query, which stays charged."""
    path = kept.with_suffix(".counter")
    rename(path, path.with_name(f"{kept.stem}.lost-{secrets.token_hex(4)}"))


def check_affordable(vault: LabelVault, *queries: Asked) -> None:
    """Raise BudgetExceededError before the first of these queries when the budget does not allow all of them."""
    ledger = vault.ledger
    for charge in _unpaid(vault, queries):
        ledger = ledger.charge(*charge)
    check_budget(ledger.groups(), vault.budget)


def planned(vault: LabelVault, *queries: Asked) -> LabelVault:
    """Return a vault that draws these queries as one plan: fixed in advance, they cost the least.

    Raises BudgetExceededError when the budget does not allow all that are not paid for; they are charged together, with
    the first that is drawn, under an id that is kept beside the first file. One query begun and lost, and the plan is
    paid for anew. Raises ValueError where one was drawn under another plan: what is asked next was then not fixed
    before its outcome was seen.
    """
    due = _unpaid(vault, queries)
    if not due:
        return vault
    files = [kept for _, _, kept in queries if kept is not None]
    names = [(repr(event), "all" if rows is None else digest(np.sort(rows))) for event, rows, _ in queries]
    asked = digest(np.array([vault.place, *(text for name in sorted(names) for text in name)]))
    return vault.plan(due, query_id=_plan_id(files, asked) if files else None)


def _unpaid(vault: LabelVault, queries: Iterable[Asked]) -> list[Charged]:
    """Return what is due: not what this very vault released before, and which is kept in its file."""
    return [
        (event, 1, rows)
        for event, rows, kept in queries
        if kept is None or not kept.exists() or load_note(kept)["vault"] != vault.id
    ]


def _plan_id(files: list[Path], asked: str) -> str:
    """Return the id that this plan of these files is charged under; a new one where a query of it was lost."""
    # The first versions had one name for all plans.
    path, old = files[0].with_name(f"plan-{asked}.id"), files[0].with_name("plan.id")
    path = old if old.exists() else path
    with ExitStack() as alone:
        for folder in sorted({file.parent for file in files}):
            alone.enter_context(_alone_in(folder))
        lost = [file for file in files if _was_lost(file)]
        if not path.exists() and any(file.exists() for file in files) and any(path.parent.glob("plan-*.id")):
            raise ValueError(
                f"{path.parent} keeps releases of another plan, with other queries; give the settings of that run, or "
                "use a new folder"
            )
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
        **({} if vault.place == "all" else {_PLACE: vault.place}),
    }


def in_folder(folder: Path | None, name: str) -> Path | None:
    """Return a file of the run's folder, which is made when it is missing; None without a folder."""
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def first_seed(folder: Path | None, seed: int) -> int:
    """Return the public seed of the fit that began in this folder, so that it can be gone on with; else this one."""
    begun = {} if folder is None else _begun_with(folder)
    return int(begun.get("seed", seed))


def bind_fit(folder: Path | None, seed: int, *features: np.ndarray) -> None:
    """Bind a folder to which rows are set aside: those that measure must not be among those that were trained on.

    Raises ValueError where it was begun with another seed, or for other rows or in another order of them.
    """
    if folder is None:
        return
    check_room(folder, ROOM_TO_SPARE)
    facts = {"seed": seed, "features": digest(*features)}
    begun = _begun_with(folder) or facts
    odd = [name for name in facts if begun.get(name) != facts[name]]
    if odd:
        raise ValueError(
            f"{folder} keeps what a fit with other {' and '.join(odd)} has paid for, which set other rows aside; give "
            "the same rows in the same order and the same random_state, or use a new folder"
        )
    with replacing(folder / _FIT) as draft:
        draft.write_text(json.dumps(facts), encoding="utf-8")


def _begun_with(folder: Path) -> dict[str, Any]:
    """Return what the fit was begun with that has paid for something here; nothing where none has."""
    path = folder / _FIT
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() and any(folder.rglob("*.counter")) else {}


def checkpoint_of(folder: Path | None, *responses: np.ndarray) -> dict[str, Path]:
    """Return a fit's checkpoint setting: a file named after the responses, so that no other model is resumed."""
    return {} if folder is None else {"checkpoint": folder / f"model-{digest(*responses)}.safetensors"}


# --- releases on disk -------------------------------------------------------------------------------------------


def plain(release: Any) -> tuple[str, dict[str, np.ndarray], dict[str, Any]]:
    """Return the kind, arrays and public fields of a release; a channel of responses is left out."""
    match release:
        case NoisyValues(channel=BinnedResponse() as channel):
            arrays = {"responses": release.responses, "bins": channel.bins, "outputs": channel.outputs}
            return "values", arrays, {"epsilon": channel.epsilon}
        case NoisyLabels():
            return "labels", {"responses": release.responses}, {}
        case NoisyCounts():
            fields: dict[str, Any] = {"noise": release.noise, "noise_std": release.noise_std}
            if isinstance(release, NoisyErrors):
                fields |= {"at_bounds": release.at_bounds, "at_bounds_std": release.at_bounds_std}
            return "counts", {"counts": release.counts, "group_sizes": release.group_sizes}, fields
        case NoisyScores(cells=cells):
            _, arrays, fields = plain(cells)
            return "scores", arrays, {**fields, "right": release.right, "right_std": release.right_std}
        case NoisyMoments():
            arrays = {"value": release.value, "total": release.total}
            fields = {name: getattr(release, name) for name in release.__dataclass_fields__ if name not in arrays}
            return "moment", arrays, fields
        case np.ndarray():
            return "winners", {"winners": release}, {}
    raise TypeError(f"a release of type {type(release).__name__} cannot be kept; give this recipe no folder")


def rebuilt(kind: str, arrays: Mapping[str, np.ndarray], fields: dict[str, Any]) -> Any:
    """Return the release that has no channel from what `plain` gave."""
    if kind in ("counts", "scores"):
        right = [fields.pop(name) for name in ("right", "right_std") if name in fields]
        made = NoisyErrors if "at_bounds" in fields else NoisyCounts
        counts = made(arrays["counts"], arrays["group_sizes"], **fields)
        return NoisyScores(counts, *right) if right else counts
    if kind == "moment":
        return NoisyMoments(arrays["value"], arrays["total"], **fields)
    if kind == "winners":
        return arrays["winners"]
    raise ValueError(kind)


def save(file: IO[bytes], release: Any, note: Mapping[str, Any]) -> None:
    """Write a release, its channel and a note."""
    kind, arrays, fields = plain(release)
    if kind == "labels":
        fields = {"channel": dict(release.channel.describe())}
        if isinstance(release.channel, SetResponse) and release.channel.sets is not None:
            arrays["sets"] = release.channel.sets
    described = np.array(json.dumps({"kind": kind, **fields, "note": dict(note)}))
    # Noise does not compress.
    write: Any = np.savez if kind == "moment" else np.savez_compressed
    write(file, allow_pickle=False, description=described, **arrays)


def load(path: Path) -> Any:
    """Read what `save` wrote.

    A set-valued channel comes back as `TopKResponse` on the same sets: given the sets, the prior that chose them no
    longer matters.
    """
    with np.load(path, allow_pickle=False) as arrays:
        fields = json.loads(str(arrays["description"]))
        kind, _ = fields.pop("kind"), fields.pop("note")
        if kind == "values":
            channel = BinnedResponse(float(fields["epsilon"]), arrays["bins"], arrays["outputs"])
            return NoisyValues(channel, arrays["responses"], channel.outputs)
        if kind == "labels":
            described = fields["channel"]
            if "sets" in arrays:
                return NoisyLabels(TopKResponse(float(described["epsilon"]), arrays["sets"]), arrays["responses"])
            return NoisyLabels(channel_from_description(described), arrays["responses"])
        return rebuilt(kind, arrays, fields)


def load_note(path: Path) -> dict[str, Any]:
    """Read the note that was saved with a release."""
    with np.load(path, allow_pickle=False) as arrays:
        return dict(json.loads(str(arrays["description"]))["note"])


def digest(*arrays: np.ndarray) -> str:
    """Return a short name for the content of arrays."""
    content = hashlib.sha256()
    for array in arrays:
        content.update(f"{array.dtype}{array.shape}".encode())
        content.update(np.ascontiguousarray(array).data)
    return content.hexdigest()[:16]
