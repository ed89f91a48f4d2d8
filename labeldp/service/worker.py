"""Run one job in a process of its own: it holds the labels of one data set, and no key, no token and no connection.

    service → worker    where the job lies, and answers to what the worker asks
    worker → service    "labels" it has sealed · "keep" the charge · "begin" a draw · progress · how it ended

Everything that can be checked is checked before "keep" is asked, the first steps on made-up labels included: whether
they fit into the owner's memory, and how long all of them would take. Every draw is begun at the service first, whose
store counts it. The process may be killed at any moment: the next one goes on with what lies in the job's folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import resource
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import safetensors.torch

from labeldp.atomic import replacing
from labeldp.budgets.counter import CounterError
from labeldp.budgets.keys import StoreError
from labeldp.core.events import event_to_json
from labeldp.core.ledger import BudgetExceededError, Charged, Unit
from labeldp.core.vault import LabelVault, MechanismError
from labeldp.learning.descend import EndDescent
from labeldp.learning.progress import Progress
from labeldp.mechanisms.users import UserVault
from labeldp.service import tasks
from labeldp.service.limits import Limits
from labeldp.service.source import Source
from labeldp.service.wire import WireError

# Steps that are tried on made-up labels; the first is slower than the others.
_TRIED = 3
# What is said of an error in words of its own: these know no label.
_IN_WORDS = (WireError, MechanismError, CounterError, StoreError, BudgetExceededError)


class Line:
    """Speak with the service, one JSON object to a line; when the service is gone, so is this process."""

    def __init__(self, hear: IO[bytes], say: IO[bytes]) -> None:
        self._say, self._heard = say, queue.Queue[dict[str, Any]]()
        self._lock = threading.Lock()
        threading.Thread(target=self._hear, args=(hear,), daemon=True).start()

    def _hear(self, hear: IO[bytes]) -> None:
        for line in hear:
            self._heard.put(json.loads(line))
        # Nobody counts what would be drawn now.
        os._exit(3)

    def hear(self) -> dict[str, Any]:
        """Return what the service says next."""
        return self._heard.get()

    def say(self, **message: Any) -> None:
        """Tell the service something."""
        with self._lock:
            self._say.write(json.dumps(message).encode() + b"\n")
            self._say.flush()

    def ask(self, **message: Any) -> dict[str, Any]:
        """Tell the service something and return its answer; raise what it refuses, or EndDescent."""
        self.say(**message)
        answer = self.hear()
        if answer.get("stop"):
            raise EndDescent
        if "refused" in answer:
            raise StoreError(answer["refused"])
        return answer


class Charges:
    """The `store` of the vault of a job: what it is charged, and what it draws, is asked of the service."""

    by_row = True

    def __init__(self, line: Line) -> None:
        self._line, self.paid = line, False

    @property
    def id(self) -> str:
        """The service."""
        return "service"

    def serve(self, vault: str, unit: Unit) -> None:
        """Take any vault: it was compared with the service's own."""

    def keep(self, plan: Sequence[Charged], num_rows: int, query_id: str | None) -> None:
        """Ask the service to charge a plan that is about all rows; it is on the disk when this returns."""
        if any(rows is not None and len(np.unique(rows)) != num_rows for _, _, rows in plan):
            raise WireError("the job is about some of its rows only; name these when you send it")
        self._line.ask(keep=[[event_to_json(event), times] for event, times, _ in plan])
        self.paid = True

    def holds(self, query_id: str) -> bool:
        """Return whether the job was paid for."""
        self.paid = bool(self._line.ask(holds=True)["holds"])
        return self.paid

    def begin(self, query_id: str, number: int, index: int, most: int) -> None:
        """Have it written down that a draw begins; EndDescent where the job is to end."""
        self._line.ask(begin=[number, index, most])


class _Trial:
    """The store of a vault of made-up labels: it ends a descent after a few steps, and knows when they began."""

    by_row = True
    id = "trial"

    def __init__(self) -> None:
        self.times: list[float] = []

    def serve(self, vault: str, unit: Unit) -> None:
        """Take it."""

    def keep(self, plan: Sequence[Charged], num_rows: int, query_id: str | None) -> None:
        """Take note of nothing: these labels are nobody's."""

    def holds(self, query_id: str) -> bool:
        """Return that nothing was paid for."""
        return False

    def begin(self, query_id: str, number: int, index: int, most: int) -> None:
        """Take the time."""
        self.times.append(time.perf_counter())
        if len(self.times) > _TRIED:
            raise EndDescent


def main() -> None:
    """Run the job that the first line names."""
    # What libraries print goes nowhere that somebody reads.
    hear, say = os.fdopen(0, "rb", closefd=False), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    line = Line(hear, say)
    told = line.hear()
    charges = Charges(line)
    try:
        _run(line, told, charges)
    except EndDescent:
        line.say(ended="nothing")
    except Exception as error:
        known = isinstance(error, _IN_WORDS) or (isinstance(error, (ValueError, RuntimeError)) and not charges.paid)
        sentence = str(error)[:500] if known else f"it failed with {type(error).__name__}; the message is withheld"
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            sentence = f"it needs more memory than the {told['limits']['memory'] >> 20} MiB that are allowed here"
        line.say(failed=sentence)


def _run(line: Line, told: dict[str, Any], charges: Charges) -> None:
    limits, folder = Limits(**told["limits"]), Path(told["folder"])
    limit_process(limits)
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    source, chosen = Source.parsed(told["source"]), folder / "rows.npy"
    rows = np.load(chosen, allow_pickle=False) if chosen.exists() else None
    try:
        # Rows of users are sealed in their order: a part of them would be another table of users.
        sealed = source.seal(rows if source.users else None)
    except Exception:
        # Whatever it says may be about labels.
        raise WireError("the owner's table cannot be read as it was declared; ask its owner") from None
    found = sealed.fingerprint(bytes.fromhex(told["secret"]))
    line.ask(labels=f"{found} {sealed.users.digest()}" if isinstance(sealed, UserVault) else found)
    vault = (sealed if source.users else sealed.part(rows)).part(store=charges)
    settings = tasks.checked(job["recipe"], job["settings"], len(vault), limits)
    tensors, inputs = tasks.received(folder / "sent.safetensors", len(vault))
    steps = tasks.steps_of(settings)
    work = partial(tasks.run, job["recipe"], settings, tensors, inputs)
    if told["trial"] and "network" in settings:
        _try(work, vault, limits, folder / "trial", steps)

    done = [0]

    def report(progress: Progress) -> None:
        done[0] = progress.step or 0
        line.say(progress={name: value for name, value in vars(progress).items() if value is not None})

    line.say(progress={"phase": "training", "detail": f"step 0 of {steps}", "seconds": 0.0, "share": 0.0})
    found = work(vault, limits, folder / "run", report)
    with replacing(folder / "result.safetensors") as draft:
        draft.write_bytes(safetensors.torch.save(found))
    finished = "network" not in settings or done[0] >= steps
    line.say(
        ended="done" if finished else "part", steps=steps, taken=steps if finished else done[0],
        assumptions=list(vault.certificate(0.0).assumptions), seeded=vault.seeded,
    )  # fmt: skip


def _try(work: partial[Any], vault: LabelVault, limits: Limits, folder: Path, steps: int) -> None:
    """Take a few steps on made-up labels; WireError where all of them would take too long. Costs no privacy."""
    trial, made_up = _Trial(), np.random.default_rng(0).integers(0, vault.num_classes, len(vault))
    whose = vault.users if isinstance(vault, UserVault) else None
    labels = (
        LabelVault(made_up, vault.num_classes, store=trial)
        if whose is None
        else UserVault(made_up, whose, vault.num_classes, store=trial)
    )
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(EndDescent):
        work(labels, limits, folder)
    shutil.rmtree(folder, ignore_errors=True)
    if len(trial.times) > _TRIED:
        each = (trial.times[-1] - trial.times[1]) / (_TRIED - 1)
        if each * steps > limits.seconds:
            raise WireError(
                f"{steps} steps would take about {each * steps:,.0f} s; at most {limits.seconds:g} s are allowed here"
            )


def limit_process(limits: Limits) -> None:
    """Keep this process within the owner's memory, and let the service go first."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (limits.memory, limits.memory))
        os.nice(5)


if __name__ == "__main__":
    # As for every script: Ctrl-C is for the service, which decides.
    if sys.argv[1:] != ["job"]:
        raise SystemExit("a job is started by labeldp serve")
    main()
