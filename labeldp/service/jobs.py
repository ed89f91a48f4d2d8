"""Run jobs for analysts: charged in the transaction that starts them, in a process of their own, within limits.

    send  →  check, try on made-up labels  →  one transaction: charge, job, log entry  →  draw by draw  →  release

A job has the id of its request: sent again it is the same job, and the same id with another question is refused. What
it draws is begun in the store first, so that a process that is killed, or a service that is started anew, goes on
without drawing anything twice. What was paid stays paid: of a descent that is stopped, by its analyst or by a limit,
the weights so far are a function of the gradients that were paid for, and may be fetched. What analysts sent is kept in
the job's folder while it runs, and thrown away when it has ended.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from labeldp.budgets.ids import Charge
from labeldp.budgets.keys import StoreError
from labeldp.budgets.store import BudgetStore
from labeldp.budgets.tables import sa, sealed_line, tampered, whole_line
from labeldp.core.accountant import is_infinite
from labeldp.core.certificate import certify
from labeldp.core.events import Query, event_from_json
from labeldp.core.ledger import Budget, Ledger
from labeldp.service import log, tasks
from labeldp.service.access import Person
from labeldp.service.engine import Engine, Kept
from labeldp.service.limits import Limits
from labeldp.service.tables import JOBS, REQUESTS
from labeldp.service.wire import BusyError, WireError

# How often the process of a job that was paid for is started when it ends without a word, killed say.
_TRIES = 3
# Seconds between two attempts to write down how a job has ended.
_PAUSES = (0.5, 2.0, 10.0)
# Seconds that a process may take longer than its limit to come to its next draw.
_GRACE = 60.0


@dataclass(eq=False)
class _Running:
    """A job that has a process, or will have one."""

    person: str
    # The columns of its line in the store.
    line: dict[str, Any]
    budget: Budget | None
    charge: list[Any]
    paid: bool
    begun: float = field(default_factory=time.monotonic)
    stop: str = ""
    progress: dict[str, Any] = field(default_factory=dict[str, Any])
    refusal: Exception | None = None
    settled: Future[None] = field(default_factory=Future[None])
    process: subprocess.Popen[bytes] | None = None


class Jobs:
    """The jobs of one server.

    Args:
        engine: the data sets and their books.
        folder: where jobs lie while they run; a server that is started again with it goes on with them.
        limits: what the owner allows.
    """

    def __init__(self, engine: Engine, folder: Path, limits: Limits) -> None:
        self._engine, self._folder, self.limits, self.recipes = engine, folder, limits, tasks.JOBS
        self._store, self._lock, self._closing = BudgetStore(engine.database), threading.Lock(), False
        self._running: dict[tuple[str, str], _Running] = {}
        # What is sent takes room on the owner's disk before anything is paid for.
        self._arriving = threading.BoundedSemaphore(limits.at_once + 1)
        self._threads: list[threading.Thread] = []
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = folder / "home"
        if not name.exists():
            name.write_text(secrets.token_hex(16), encoding="ascii")
        self._home = name.read_text(encoding="ascii")
        self._resume()

    def _resume(self) -> None:
        """Go on with what was running when the server was stopped, or killed."""
        with self._engine.database.reading() as connection:
            mine = sa.select(JOBS).where(JOBS.c.home == self._home, JOBS.c.state == "running")
            lines = [dict(self._whole(line)) for line in connection.execute(mine).mappings().all()]
        known = {line["folder"] for line in lines}
        for each in self._folder.iterdir():
            if each.is_dir() and each.name not in known:
                # Never paid for, or ended just before it could be thrown away.
                shutil.rmtree(each, ignore_errors=True)
        for line in lines:
            if line["dataset"] in self._engine.served:
                self._start(_Running(line["person"], line, None, json.loads(line["facts"])["charge"], paid=True))

    # -- what analysts ask ---------------------------------------------------------------------------------------------

    def send(
        self, person: Person, budget: Budget, given: Mapping[str, Any], parts: Iterator[memoryview]
    ) -> dict[str, Any]:
        """Take a job: it is paid for and runs when this returns; or it is the one that was sent under this id before.

        Args:
            person: who pays.
            budget: what they may spend on this data set.
            given: the checked fields of the message.
            parts: tensors and features, a safetensors file in parts.
        """
        served = self._engine.served[given["dataset"]]
        if served.source is None or self.limits.at_once == 0 or served.bounds is not None:
            raise WireError(
                "no jobs are taken on this data set; ask its owner, who may allow them: labeldp serve --jobs"
            )
        chosen = self._engine.choice(given["dataset"], given["rows"])
        tasks.checked(given["recipe"], given["settings"], chosen.count, self.limits)
        # What they cost is computed when the process has found the same: an event of anyone's own may take long.
        if is_infinite(tuple(Query(_event(event), times) for event, times in given["charge"])):
            raise WireError("the job has no noise and would cost without bound; give it some")
        if not self._arriving.acquire(blocking=False):
            raise BusyError("as many jobs are sent here as are allowed at once; send it later, nothing was charged")
        folder = self._folder / secrets.token_hex(16)
        try:
            folder.mkdir(mode=0o700)
            question = {name: given[name] for name in ("dataset", "rows", "recipe", "settings", "charge")}
            digest = hashlib.sha256(json.dumps(question, sort_keys=True, allow_nan=False).encode())
            self._write(folder / "sent.safetensors", parts, digest)
            with self._engine.alone(person.name, given["request"]):
                line = self._line(person.name, given["request"])
                if line is not None or self._was_asked(person.name, given["request"]):
                    if line is None or line["digest"] != digest.hexdigest():
                        raise WireError(
                            f"request={given['request']!r} was another question before; give this one an id of its own"
                        )
                    return self.status(person, given["dataset"], given["request"])
                (folder / "job.json").write_text(json.dumps({name: given[name] for name in ("recipe", "settings")}))
                if chosen.rows is not None:
                    np.save(folder / "rows.npy", chosen.rows, allow_pickle=False)
                made = {
                    "person": person.name, "id": given["request"], "dataset": given["dataset"],
                    "recipe": given["recipe"], "digest": digest.hexdigest(),
                    "plan": f"job {person.name} {given['request']}", "home": self._home, "folder": folder.name,
                    "state": "running", "why": "",
                }  # fmt: skip
                job = _Running(person.name, made, budget, given["charge"], paid=False)
                with self._lock:
                    if len(self._running) >= self.limits.at_once or self._closing:
                        raise BusyError(
                            "as many jobs run here as are allowed at once; send it later, nothing was charged"
                        )
                    self._running[person.name, given["request"]] = job
                self._start(job)
                job.settled.result()
            return self.status(person, given["dataset"], given["request"])
        finally:
            self._arriving.release()
            if self._line(person.name, given["request"], folder.name) is None:
                shutil.rmtree(folder, ignore_errors=True)

    def _write(self, file: Path, parts: Iterator[memoryview], digest: Any) -> None:
        size = 0
        with file.open("wb") as opened:
            for part in parts:
                size += len(part)
                if size > self.limits.memory:
                    raise WireError(f"more than {self.limits.memory} bytes were sent; send fewer features")
                opened.write(part)
                digest.update(part)

    def status(self, person: Person, dataset: str, request: str) -> dict[str, Any]:
        """Return how it is with a job of this person: running, done, stopped or failed, why, and how far it is."""
        line = self._line(person.name, request)
        if line is None or line["dataset"] != dataset:
            raise WireError(f"request={request!r} is no job of yours; send it first")
        running = self._running.get((person.name, request))
        return {
            "state": line["state"], "why": line["why"], "progress": {} if running is None else running.progress,
        }  # fmt: skip

    def stop(self, person: Person, dataset: str, request: str) -> dict[str, Any]:
        """End a job of this person before its next draw; what was paid stays paid."""
        found = self.status(person, dataset, request)
        running = self._running.get((person.name, request))
        if running is not None:
            running.stop = "it was stopped by its analyst"
        return found

    def fetch(self, person: Person, dataset: str, request: str, delta: float) -> tuple[Kept, str]:
        """Return what a job has released, and a certificate of this job alone."""
        if self.status(person, dataset, request)["state"] == "running":
            raise BusyError("the job is not done; ask again later")
        line = self._line(person.name, request)
        assert line is not None
        with self._engine.database.reading() as connection:
            here = (REQUESTS.c.person == person.name, REQUESTS.c.id == request, REQUESTS.c.digest == line["digest"])
            kept = connection.execute(sa.select(REQUESTS).where(*here)).mappings().one_or_none()
        if kept is None:
            raise StoreError(f"the job has released nothing: {line['why']}; what it was charged stays charged")
        served, facts, place = (
            self._engine.served[dataset],
            json.loads(line["facts"]),
            log.Place(kept["entry"], kept["hash"]),
        )
        plan = [Charge(_event(event), times, None) for event, times in facts["charge"]]
        claim = certify(
            Ledger(facts.get("units", facts["rows"])).charge_plan(plan).groups(), delta,
            noise=served.vault.certificate().noise, seeded=served.vault.seeded or facts["seeded"],
            unit=served.vault.unit,
            assumptions=(*facts["assumptions"], log.sentence(place, self._engine.key.public)),
        )  # fmt: skip
        return Kept(bytes(self._whole(kept)["release"]), place), claim.dumps()

    def close(self) -> None:
        """End all processes; their jobs go on when a server is started with this folder again."""
        with self._lock:
            self._closing = True
            running = list(self._running.values())
        for job in running:
            if job.process is not None:
                job.process.kill()
        for thread in self._threads:
            thread.join(timeout=30)

    # -- the store -----------------------------------------------------------------------------------------------------

    def _line(self, person: str, request: str, folder: str | None = None) -> sa.RowMapping | None:
        here = [JOBS.c.person == person, JOBS.c.id == request]
        if folder is not None:
            here.append(JOBS.c.folder == folder)
        with self._engine.database.reading() as connection:
            line = connection.execute(sa.select(JOBS).where(*here)).mappings().one_or_none()
        return None if line is None else self._whole(line)

    def _was_asked(self, person: str, request: str) -> bool:
        with self._engine.database.reading() as connection:
            asked = sa.select(sa.literal(1)).where(REQUESTS.c.person == person, REQUESTS.c.id == request)
            return connection.execute(asked).first() is not None

    def _whole(self, line: sa.RowMapping) -> sa.RowMapping:
        if not whole_line(self._engine.database.key, line):
            raise StoreError(tampered(line["dataset"], self._engine.database.name))
        return line

    def _pay(self, job: _Running, plan: list[Any]) -> None:
        """Charge a job, write it down and log it, in one transaction; nothing where it was paid for before."""
        if plan != job.charge:
            raise StoreError("the job would be charged otherwise than its analyst has said; nothing was charged")
        if job.paid:
            return
        engine, line = self._engine, job.line
        rows, served = self._rows(job), engine.served[line["dataset"]]
        payers, count = served.payers(rows), len(served.vault) if rows is None else len(rows)
        charges = [Charge(_event(event), times, payers) for event, times in plan]
        assert job.budget is not None
        with engine.writing(line["dataset"]) as books:
            numbers = books.batch.charge(
                charges, who=f"analyst {job.person}", query_id=line["plan"], own=job.budget,
                note=f"served job {line['recipe']}",
            )  # fmt: skip
            books.batch.count_draws(line["plan"])
            place = books.log(
                kind="job", who=job.person, dataset=line["dataset"], request=line["id"], recipe=line["recipe"],
                queries=plan, rows=count, charge=numbers[0], question=line["digest"],
            )  # fmt: skip
            units = served.units if payers is None else len(payers)
            facts = {"charge": plan, "rows": count, "units": units, "assumptions": [], "seeded": False}
            line |= {
                "charge": numbers[0], "entry": place.number, "hash": place.hash, "facts": json.dumps(facts),
            }  # fmt: skip
            books.connection.execute(sa.insert(JOBS).values(**sealed_line(engine.database.key, **line)))
        job.paid = True
        job.settled.set_result(None)

    def _rows(self, job: _Running) -> Any:
        file = self._folder / job.line["folder"] / "rows.npy"
        return np.load(file, allow_pickle=False) if file.exists() else None

    def _end(self, job: _Running, state: str, why: str, said: Mapping[str, Any], release: bytes | None) -> None:
        """Write down how a job that was paid for has ended, with what it releases, in one transaction."""
        engine, line = self._engine, job.line
        facts = json.loads(line["facts"]) | {name: said[name] for name in ("assumptions", "seeded") if name in said}
        about = {"who": job.person, "dataset": line["dataset"], "request": line["id"], "charge": line["charge"]}
        with engine.writing(line["dataset"]) as books:
            if release is None:
                books.log(kind="job ended", state=state, why=why, **about)
            else:
                place = books.log(
                    kind="release", verb=f"job {line['recipe']}", event=facts["charge"][0][0], rows=facts["rows"],
                    question=line["digest"], released=hashlib.sha256(release).hexdigest(), **about,
                )  # fmt: skip
                kept = sealed_line(
                    engine.database.key, person=job.person, id=line["id"], dataset=line["dataset"],
                    digest=line["digest"], plan=line["plan"], charge=line["charge"], entry=place.number,
                    hash=place.hash, release=release,
                )  # fmt: skip
                books.connection.execute(sa.insert(REQUESTS).values(**kept))
            ended = {**line, "state": state, "why": why, "facts": json.dumps(facts)}
            ended.pop("seal", None)
            here = (JOBS.c.person == job.person, JOBS.c.id == line["id"])
            changed = sealed_line(engine.database.key, **ended)
            books.connection.execute(sa.update(JOBS).where(*here).values(**changed))
        shutil.rmtree(self._folder / line["folder"], ignore_errors=True)

    # -- processes -----------------------------------------------------------------------------------------------------

    def _start(self, job: _Running) -> None:
        self._running[job.person, job.line["id"]] = job
        thread = threading.Thread(target=self._watch, args=(job,), name="labeldp-job", daemon=True)
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        thread.start()

    def _watch(self, job: _Running) -> None:
        """Run the process of a job until it has ended, and say how."""
        try:
            said: dict[str, Any] | None = None
            for _ in range(_TRIES):
                said = self._talk(job)
                if said is not None or not job.paid or self._closing:
                    break
            if not job.paid:
                # No one but its analyst has heard of it, and nothing was charged.
                why = (
                    "its process was ended before it was paid for"
                    if said is None
                    else said.get("failed", "it was stopped")
                )
                raise job.refusal or WireError(f"the job was refused: {why}. Nothing was charged")
            if said is None and self._closing:
                return
            self._write_down(job, said)
        except Exception as error:
            if not job.settled.done():
                job.settled.set_exception(error)
        finally:
            self._running.pop((job.person, job.line["id"]), None)

    def _write_down(self, job: _Running, said: dict[str, Any] | None) -> None:
        """Write down how a paid job has ended, again where the store is not to be had; at last, that it has failed.

        A transaction is all or nothing, and charges nothing here. Where not even the failure can be written the job's
        folder stays, and the next server goes on with it.
        """
        for pause in (*_PAUSES, None):
            try:
                if said is None:
                    why = f"its process was ended {_TRIES} times, by a limit or from outside"
                    self._end(job, "failed", why, {}, None)
                elif "failed" in said:
                    self._end(job, "failed", said["failed"], {}, None)
                elif said["ended"] == "nothing":
                    self._end(job, "stopped", job.stop or "it was stopped", said, None)
                else:
                    done, release = said["ended"] == "done", self._folder / job.line["folder"] / "result.safetensors"
                    why = f"{job.stop or 'it was stopped'}, after {said['taken']} of {said['steps']} steps"
                    state, why = ("done", "") if done else ("stopped", why)
                    self._end(job, state, why, said, release.read_bytes())
                return
            except Exception:
                if pause is None or self._closing:
                    break
                time.sleep(pause)
        if not self._closing:
            self._end(job, "failed", "its result could not be stored", {}, None)

    def _talk(self, job: _Running) -> dict[str, Any] | None:
        """Start a process, answer what it asks, and return how it says it has ended; None where it is just gone."""
        served = self._engine.served[job.line["dataset"]]
        assert served.source is not None
        secret = secrets.token_bytes(32)
        users = served.users(rows := self._rows(job))
        # Of users, what the process has sealed is the job's rows, in their order, and whose they are counts as well.
        labels = served.vault.fingerprint(secret, None if users is None else rows)
        labels += "" if users is None else f" {users.digest()}"
        told = {
            "limits": asdict(self.limits), "folder": str(self._folder / job.line["folder"]),
            "source": served.source.plain(), "secret": secret.hex(), "trial": not job.paid,
        }  # fmt: skip
        # No key, no token, no address of a store.
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("LABELDP_", "PG"))}
        with subprocess.Popen(
            [sys.executable, "-m", "labeldp.service.worker", "job"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=clean, start_new_session=True,
        ) as process:  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            job.process = process
            late = threading.Timer(self.limits.seconds + _GRACE, process.kill)
            late.daemon = True
            late.start()
            try:
                if self._closing:
                    return None
                _say(process.stdin, told)
                for line in process.stdout:
                    message = json.loads(line)
                    if "ended" in message or "failed" in message:
                        return message
                    if "progress" in message:
                        job.progress = message["progress"]
                    else:
                        _say(process.stdin, self._answer(job, message, labels))
                return None
            except (OSError, ValueError):
                return None
            finally:
                late.cancel()
                job.process = None
                process.kill()

    def _answer(self, job: _Running, message: dict[str, Any], labels: str) -> dict[str, Any]:
        try:
            if "labels" in message:
                if message["labels"] != labels:
                    raise StoreError("the owner's table has changed since it was served; start the service anew")
            elif "keep" in message:
                self._pay(job, message["keep"])
            elif "holds" in message:
                return {"holds": job.paid}
            else:
                number, index, most = message["begin"]
                if not job.stop and time.monotonic() - job.begun > self.limits.seconds:
                    job.stop = f"it ran longer than the {self.limits.seconds:g} s that are allowed here"
                if job.stop:
                    return {"stop": True}
                self._store.begin(job.line["dataset"], job.line["plan"], number, index, most)
        except Exception as error:
            if not job.paid:
                job.refusal = error
            return {"refused": str(error)[:500]}
        return {}


def _say(pipe: IO[bytes], message: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):
        pipe.write(json.dumps(message).encode() + b"\n")
        pipe.flush()


def _event(plain: Any) -> Any:
    try:
        return event_from_json(plain)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise WireError("charge has something that is no event; use RemoteVault") from None
