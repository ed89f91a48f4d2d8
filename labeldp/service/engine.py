"""Answer queries exactly once: what is charged, drawn and kept is written down in one transaction, many at a time.

    check everything  →  draw, in memory  →  one transaction: charge, keep the release, log it  →  answer

Nothing leaves the process before the transaction is on the disk, and a query that cannot be paid for at that moment is
refused and its draw forgotten unseen. A draw that fails is charged, unless it was its public columns that were wrong. A
kill at any point leaves all of it or nothing: a release that was charged is kept, and asking again with the same id
returns it and charges nothing. The same id with another question is refused.

Transactions are committed by one thread, as many queries in each as are waiting (group commit), so that a thousand
small queries do not wait for the disk a thousand times. Features are added up while they arrive, outside of any lock.
"""

from __future__ import annotations

import hashlib
import json
import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np

from labeldp.budgets.batch import Batch, Book, State
from labeldp.budgets.ids import Charge
from labeldp.budgets.keys import StoreError
from labeldp.budgets.tables import Database, describe, refuse_change, sa, sealed_line, tampered, whole_line
from labeldp.core.accountant import epsilon as epsilon_of
from labeldp.core.certificate import Certificate, certify
from labeldp.core.events import Event, Query, event_to_json
from labeldp.core.ledger import ONE_LABEL, Budget, Ledger
from labeldp.core.limits import MOST_WORK
from labeldp.core.vault import MechanismError
from labeldp.results.signing import SigningKey
from labeldp.service import log, logbook, wire
from labeldp.service.access import Person
from labeldp.service.served import Choice, Choices, Served
from labeldp.service.tables import JOBS, REQUESTS
from labeldp.service.wire import WireError

# Queries, and bytes of releases, that one transaction takes.
_MOST_AT_ONCE, _MOST_BYTES = 512, 1 << 28
# How many queries may wait for the disk before others are turned away.
_MOST_WAITING = 4096
PATIENCE_SECONDS = 150.0
_encoded = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
# Made once: making a statement takes longer than running it.
_KEEP, _ASKED, _SENT = (
    sa.insert(REQUESTS),
    *(
        wanted.where(
            table.c.id.in_(sa.bindparam("ids", expanding=True)),
            table.c.person.in_(sa.bindparam("people", expanding=True)),
        )
        for table, wanted in ((REQUESTS, sa.select(REQUESTS)), (JOBS, sa.select(JOBS.c.person, JOBS.c.id)))
    ),
)


class UnknownRowsError(WireError):
    """A choice of rows that this process does not remember; the analyst names its rows again."""


@dataclass(frozen=True)
class Ask:
    """A query as it was sent, its settings checked."""

    request: str
    dataset: str
    rows: str
    verb: str
    settings: dict[str, Any] = field(repr=False)
    # As they were sent: what the digest is made of.
    given: Mapping[str, Any] = field(repr=False)
    plan_id: str | None = None
    # Event, times and choice of rows of every query that was fixed together with this one.
    plan: Sequence[tuple[Event, str]] | None = None
    again: bool = False


@dataclass(frozen=True)
class Kept:
    """A release that is on the disk, and the log's entry about it."""

    release: bytes = field(repr=False)
    place: log.Place


@dataclass(frozen=True, eq=False)
class _Job:
    """A query that was drawn and waits for the disk."""

    person: Person
    budget: Budget
    ask: Ask
    charge: Charge
    plan: list[Charge]
    # What the log says of the price.
    price: Mapping[str, Any]
    digest: str
    release: bytes
    # SHA-256 of the release.
    released: str
    done: Future[Kept]


@dataclass(frozen=True)
class Books:
    """What is written down within one transaction of `Engine.writing`."""

    connection: sa.Connection
    batch: Batch
    log: Callable[..., log.Place]


class _Arriving(Iterator[Mapping[str, Any]]):
    """The columns of a query as they come; knows whether it was they that were wrong, which tells of no label."""

    def __init__(self, parts: Iterator[Mapping[str, Any]], rows: int | None) -> None:
        self._parts, self._rows, self._come, self.broken = parts, rows, 0, False

    def __next__(self) -> Mapping[str, Any]:
        """Return the next part; WireError where there are fewer or more rows than are asked."""
        part = None
        try:
            part = next(self._parts)
            self._come += len(next(iter(part.values()), ()))
        except StopIteration:
            pass
        except BaseException:
            self.broken = True
            raise
        if self._rows is not None and (self._come > self._rows or (part is None and self._come < self._rows)):
            self.broken = True
            raise WireError(f"the columns have {self._come} rows and {self._rows} are asked; send one for each")
        if part is None:
            raise StopIteration
        return part


class Engine:
    """Data sets, books and the thread that writes them down.

    Args:
        database: the budget store, with the tables of a service.
        served: the data sets; each must have a budget in the store.
        key: signs the log.
        witness: remembers outside of the store how far the log has come.
    """

    def __init__(
        self, database: Database, served: Sequence[Served], key: SigningKey, witness: logbook.Witness | None = None
    ) -> None:
        self.database, self.key, self.choices = database, key, Choices()
        self.served = {each.name: each for each in served}
        self._witness, self._states = witness, dict[str, State]()
        self._waiting: queue.Queue[_Job | None] = queue.Queue(_MOST_WAITING)
        self._flying: dict[tuple[str, str], tuple[threading.Lock, int]] = {}
        self._lock = threading.Lock()
        with database.writing() as connection:
            for each in served:
                self._check_served(Batch(database, connection, each.name), each)
        self._thread = threading.Thread(target=self._commit_all, name="labeldp-commits", daemon=True)
        self._thread.start()

    def _check_served(self, batch: Batch, served: Served) -> None:
        # The same name, labels, classes and unit as the budget was made with.
        refuse_change(
            batch.dataset, describe(self.database.key, served.name, served.vault, batch.dataset.budget, None)[0]
        )
        self._states[served.name] = batch.state

    def close(self) -> None:
        """Answer what is waiting, and stop."""
        self._waiting.put(None)
        self._thread.join()

    # -- a query ---------------------------------------------------------------------------------------------------

    def choice(self, dataset: str, name: str) -> Choice:
        """Return a choice of rows that was named before; UnknownRowsError where it is not remembered."""
        found = self.choices.get(dataset, name)
        if found is None:
            raise UnknownRowsError(f"rows={name!r} are not known here; name them again")
        return found

    def ask(
        self, person: Person, budget: Budget, ask: Ask, parts: Callable[[Any], Iterator[Mapping[str, Any]]]
    ) -> Kept:
        """Return the release of a query, drawn now or kept from before.

        Args:
            person: who pays.
            budget: what they may spend on this data set.
            ask: the query.
            parts: gives its columns, in parts of the rows, and adds what it reads to a digest.
        """
        served, chosen = self.served[ask.dataset], self.choice(ask.dataset, ask.rows)
        wire.check_size(ask.verb, ask.settings, chosen.count, served.vault.num_classes)
        with self.alone(person.name, ask.request) as repeated:
            digest = hashlib.sha256(_encoded([ask.dataset, ask.rows, ask.verb, ask.given, ask.plan_id]).encode())
            arriving = _Arriving(parts(digest), chosen.count if wire.streams(ask.verb, ask.settings) else None)
            line = self._line(person, ask) if ask.again or repeated else None
            if line is not None:
                # Drawn before: what is sent again is only compared.
                for _ in arriving:
                    pass
                return self._checked(line, digest.hexdigest())
            whose = partial(served.users, chosen.rows)
            mechanism = wire.decode(ask.verb, ask.settings, chosen.count, arriving, whose)
            try:
                paid = served.charges(mechanism, chosen.rows)
            except ValueError as error:
                raise WireError(str(error)) from None
            if not all(_finite(each.event, budget.delta or 1e-12) for each in paid):
                raise WireError("the query has no noise and would cost without bound; give it some")
            plan = self._plan(ask, paid, served)
            self._check_affordable(person, budget, ask, plan)
            try:
                release = wire.pack(served.vault.release(mechanism, chosen.rows))
            except MechanismError:
                if arriving.broken:
                    raise WireError("the columns could not be read as declared; nothing was charged") from None
                # It failed with labels in its hands: that it did may tell of them, and is paid for like a release,
                # whatever becomes of the columns that it has not read.
                release = wire.FAILED
                with suppress(Exception):
                    deque(arriving, maxlen=0)
            else:
                for _ in arriving:
                    raise WireError("the columns have more rows than are asked; send one entry for each")
            done: Future[Kept] = Future()
            try:
                released = hashlib.sha256(release).hexdigest()
                price = _price(served, paid, chosen.count)
                job = _Job(person, budget, ask, paid[0], plan, price, digest.hexdigest(), release, released, done)
                self._waiting.put(job, timeout=PATIENCE_SECONDS)
            except queue.Full:
                raise StoreError("the service is busy; nothing was charged, try again") from None
            return done.result(timeout=2 * PATIENCE_SECONDS)

    @contextmanager
    def alone(self, person: str, request: str) -> Generator[bool]:
        """Let the copies of one request wait for each other; yield whether there was one before."""
        key = (person, request)
        with self._lock:
            lock, count = self._flying.get(key, (threading.Lock(), 0))
            self._flying[key] = lock, count + 1
        try:
            with lock:
                yield count > 0
        finally:
            with self._lock:
                lock, count = self._flying.pop(key)
                if count > 1:
                    self._flying[key] = lock, count - 1

    def _plan(self, ask: Ask, paid: list[Charge], served: Served) -> list[Charge]:
        """Return all queries that were fixed together with this one: at least itself."""
        if served.vault.unit != ONE_LABEL and (ask.plan_id, ask.plan) != (None, None):
            raise WireError("the data set protects all labels of a user, whose queries pay one by one; send no plan")
        if ask.plan_id is None:
            # A query by itself pays for itself, and for nothing else.
            if ask.plan is not None:
                raise WireError("a plan is given without a plan_id; give it one, by which its other queries are known")
            return paid
        if ask.plan is not None and not ask.plan:
            raise WireError("plan is empty; list the queries that were fixed together")
        costly = len({event for event, _ in ask.plan or () if event.mu is None})
        if costly > MOST_WORK:
            # Composed while all others wait; and no reader of a certificate would compose so many.
            raise WireError(f"plan has {costly} different events that are not Gaussian; give at most {MOST_WORK}")
        found = []
        for event, rows in ask.plan or ():
            chosen = self.choice(ask.dataset, rows).rows
            found.append(Charge(event, 1, served.payers(chosen)))
        return found

    def _check_affordable(self, person: Person, budget: Budget, ask: Ask, plan: list[Charge]) -> None:
        """Refuse before anything is drawn what cannot be paid for, as far as this process knows."""
        if ask.plan_id is None and not ask.again:
            served, book = self.served[ask.dataset], self._states[ask.dataset].own.get(person.spends_as)
            book = book or Book(Ledger(served.units))
            book.check_with(plan, budget, served.vault.unit)

    def _line(self, person: Person, ask: Ask) -> sa.RowMapping | None:
        with self.database.reading() as connection:
            here = (REQUESTS.c.person == person.name, REQUESTS.c.id == ask.request)
            return connection.execute(sa.select(REQUESTS).where(*here)).mappings().one_or_none()

    def _checked(self, line: sa.RowMapping, digest: str) -> Kept:
        if not whole_line(self.database.key, line):
            raise StoreError(tampered(line["dataset"], self.database.name))
        if line["digest"] != digest:
            raise WireError(f"request={line['id']!r} was another question before; give this one an id of its own")
        return Kept(bytes(line["release"]), log.Place(line["entry"], line["hash"]))

    # -- the thread that writes down -------------------------------------------------------------------------------

    def _commit_all(self) -> None:
        while (first := self._waiting.get()) is not None:
            jobs, size, last = [first], len(first.release), False
            while len(jobs) < _MOST_AT_ONCE and size < _MOST_BYTES:
                try:
                    job = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if job is None:
                    last = True
                    break
                jobs.append(job)
                size += len(job.release)
            self._commit(jobs)
            if last:
                break

    def _commit(self, jobs: list[_Job]) -> None:
        """Write the jobs down in one transaction, and answer them when it is on the disk."""
        answers: list[tuple[_Job, Kept | Exception]] = []
        try:
            with self.database.writing() as connection:
                books = Batch.all(self.database, connection, {job.ask.dataset for job in jobs}, self._states)
                answers, place = self._write(connection, books, jobs)
            self._states |= {name: batch.state for name, batch in books.items()}
            if place is not None and self._witness is not None:
                self._witness.note(place)
        except Exception as error:
            # Nothing of it was written, whatever it was; the books are read anew.
            answers = [(job, error) for job in jobs]
            for name in {job.ask.dataset for job in jobs}:
                self._states[name] = State.empty(self.served[name].units)
        for job, answer in answers:
            if isinstance(answer, Exception):
                job.done.set_exception(answer)
            else:
                job.done.set_result(answer)

    def _write(
        self, connection: sa.Connection, books: Mapping[str, Batch], jobs: list[_Job]
    ) -> tuple[list[tuple[_Job, Kept | Exception]], log.Place | None]:
        answers: list[tuple[_Job, Kept | Exception]] = []
        asked = {"ids": [job.ask.request for job in jobs], "people": list({job.person.name for job in jobs})}
        found = {(line["person"], line["id"]): line for line in connection.execute(_ASKED, asked).mappings()}
        sent = {(line.person, line.id) for line in connection.execute(_SENT, asked)}
        new: list[tuple[_Job, int, dict[str, Any]]] = []
        drawn: set[tuple[str, str]] = set()
        for job in jobs:
            key = (job.person.name, job.ask.request)
            try:
                if key in found:
                    answers.append((job, self._checked(found[key], job.digest)))
                elif key in sent:
                    raise WireError(f"request={job.ask.request!r} is a job; give this question an id of its own")
                elif key in drawn:
                    raise WireError(f"request={job.ask.request!r} is being answered; ask again")
                else:
                    number = self._charged(connection, books[job.ask.dataset], job, new)
                    drawn.add(key)
                    ask = job.ask
                    entry = {
                        "kind": "release", "who": job.person.name, "dataset": ask.dataset, "request": ask.request,
                        "verb": ask.verb, **job.price, "charge": number, "question": job.digest,
                        "released": job.released,
                    }  # fmt: skip
                    new.append((job, number, entry))
            except Exception as error:
                answers.append((job, error))
        first, *others = books.values()
        first.write(*others)
        places = logbook.append(self.database, connection, [entry for _, _, entry in new], self.key)
        lines = [
            sealed_line(
                self.database.key, person=job.person.name, id=job.ask.request, dataset=job.ask.dataset,
                digest=job.digest, plan=_plan_name(job), charge=number, entry=place.number, hash=place.hash,
                release=job.release, digests={"release": job.released},
            )
            for (job, number, _), place in zip(new, places, strict=True)
        ]  # fmt: skip
        if lines:
            connection.execute(_KEEP, lines)
        answers += [(job, Kept(job.release, place)) for (job, _, _), place in zip(new, places, strict=True)]
        return answers, places[-1] if places else None

    def _charged(
        self, connection: sa.Connection, batch: Batch, job: _Job, new: list[tuple[_Job, int, dict[str, Any]]]
    ) -> int:
        """Charge a query, or find what paid for it in its plan; return the number of the charge."""
        who, plan_id = job.person.spends_as, job.ask.plan_id
        said = {"who": who, "note": f"served {job.ask.verb}", "own": job.budget}
        if plan_id is None:
            return batch.charge(job.plan, query_id=_plan_name(job), **said)[0]
        paid = batch.plan_of(_plan_name(job), who)
        if not paid:
            if not job.plan:
                raise WireError(f"plan={plan_id!r} was not paid for; send its queries with the first of them")
            if not any(_same(charge, job.charge) for charge in job.plan):
                raise WireError(_not_in(plan_id))
            numbers = batch.charge(job.plan, query_id=_plan_name(job), **said)
            paid = list(zip(numbers, job.plan, strict=True))
        asked = sa.select(REQUESTS.c.charge).where(
            REQUESTS.c.plan == _plan_name(job), REQUESTS.c.person == job.person.name
        )
        used = set(connection.execute(asked).scalars())
        used |= {number for other, number, _ in new if _plan_name(other) == _plan_name(job)}
        for number, charge in paid:
            if number not in used and _same(charge, job.charge):
                return number
        raise WireError(_not_in(plan_id))

    @contextmanager
    def writing(self, dataset: str) -> Generator[Books]:
        """Charge, keep and log other things than queries in one transaction; on the disk when the block ends."""
        places: list[log.Place] = []
        with self.database.writing() as connection:
            batch = Batch(self.database, connection, dataset, self._states.get(dataset))

            def write(**entry: Any) -> log.Place:
                places.extend(logbook.append(self.database, connection, [entry], self.key))
                return places[-1]

            yield Books(connection, batch, write)
            batch.write()
        self._states[dataset] = batch.state
        if self._witness is not None and places:
            self._witness.note(places[-1])

    # -- what was spent --------------------------------------------------------------------------------------------

    def books(self, dataset: str) -> Batch:
        """Return the books of a data set as they are on the disk."""
        with self.database.writing() as connection:
            batch = Batch(self.database, connection, dataset, self._states.get(dataset))
        return batch

    def holds(self, person: Person, dataset: str, plan_id: str) -> bool:
        """Return whether queries of a person were paid for under this id: of a plan, or of a single request."""
        with self.database.reading() as connection:
            plans = REQUESTS.c.plan.in_([f"plan {person.name} {plan_id}", f"request {person.name} {plan_id}"])
            asked = sa.select(sa.literal(1)).where(plans, REQUESTS.c.dataset == dataset).limit(1)
            return connection.execute(asked).first() is not None

    def certificate(self, person: Person, dataset: str, delta: float) -> Certificate:
        """Return the claim about all that one analyst was told of a data set, which names the log's last entry."""
        served, batch = self.served[dataset], self.books(dataset)
        book = batch.state.own.get(person.spends_as) or Book(Ledger(served.units))
        with self.database.reading() as connection:
            asked = sa.select(REQUESTS.c.entry, REQUESTS.c.hash).where(
                REQUESTS.c.person == person.name, REQUESTS.c.dataset == dataset
            )
            last = connection.execute(asked.order_by(REQUESTS.c.entry.desc()).limit(1)).first()
        told = () if last is None else (log.sentence(log.Place(last.entry, last.hash), self.key.public),)
        return certify(
            book.ledger.groups(), delta, noise=served.vault.certificate().noise, seeded=served.vault.seeded,
            unit=served.vault.unit, assumptions=told,
        )  # fmt: skip

    def spent(self, person: Person, dataset: str, budget: Budget) -> float:
        """Return what one analyst has spent on a data set, at the δ of its budget."""
        book = self.books(dataset).state.own.get(person.spends_as)
        spent = 0.0 if book is None else book.ledger.epsilon(budget.delta)
        return spent if math.isfinite(spent) else budget.epsilon


def _plan_name(job: _Job) -> str:
    """Return the name of what pays, in the store: a person's own."""
    if job.ask.plan_id is None:
        return f"request {job.person.name} {job.ask.request}"
    return f"plan {job.person.name} {job.ask.plan_id}"


@lru_cache(4096)
def _finite(event: Event, delta: float) -> bool:
    return math.isfinite(epsilon_of((Query(event),), delta))


def _price(served: Served, paid: list[Charge], num_rows: int) -> dict[str, Any]:
    """Return what a query costs and of how many rows it is; of users, how many are charged each of its events."""
    if served.vault.unit == ONE_LABEL:
        return {"event": event_to_json(paid[0].event), "rows": num_rows}
    sizes = [served.units if each.rows is None else len(each.rows) for each in paid]
    queries = [[event_to_json(each.event), each.times, size] for each, size in zip(paid, sizes, strict=True)]
    return {"queries": queries, "rows": num_rows}


def _same(one: Charge, other: Charge) -> bool:
    """Return whether two charges are the same event at the same rows."""
    if one.event != other.event or one.rows is None or other.rows is None:
        return one.event == other.event and one.rows is other.rows
    return len(one.rows) == len(other.rows) and np.array_equal(np.sort(one.rows), np.sort(other.rows))


def _not_in(plan_id: str) -> str:
    return f"the query is not in the plan {plan_id!r}, or was drawn; a plan is fixed before its first query"
