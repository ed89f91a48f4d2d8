"""Serve vaults over Arrow Flight: read messages, check them field by field, let the engine answer, say what went wrong.

Calls without data are Flight actions, those with data exchanges whose command is JSON and whose record batches are the
columns. A Unix socket is plain, everything else needs TLS. A token comes with every call. Whatever a stranger sends,
the outcome is a sentence; errors that are nobody's intention are withheld.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from labeldp.budgets.keys import StoreError
from labeldp.core.events import DiscreteGaussian, GridGaussian, PureDP, event_from_json
from labeldp.core.ledger import BudgetExceededError
from labeldp.service import logbook, near, wire
from labeldp.service.access import Access, Person, RateLimit
from labeldp.service.engine import Ask, Engine, UnknownRowsError
from labeldp.service.metrics import Metrics
from labeldp.service.served import name_of_ids, name_of_rows
from labeldp.service.wire import (
    AccessError,
    BusyError,
    WireError,
    choice,
    integer,
    listed,
    number,
    optional,
    parsed,
    text,
)

if TYPE_CHECKING:
    from labeldp.service.jobs import Jobs

_Declared = dict[str, tuple[str, int | None]]
_NAME = text(200)
_ID = text(128)
# The declared fields of every message. An exchange's "do" says which of them it is.
ACTIONS: Mapping[str, Mapping[str, wire.Check]] = {
    "health": {},
    "describe": {"dataset": _NAME},
    "budget": {"dataset": _NAME},
    "certificate": {"dataset": _NAME, "delta": number(0.0, 0.999)},
    "holds": {"dataset": _NAME, "plan": _ID},
    "log": {"after": integer(0, 1 << 62)},
    "metrics": {},
    "job": {"dataset": _NAME, "request": _ID},
    "stop": {"dataset": _NAME, "request": _ID},
}


def _event_of(name: str, value: Any) -> Any:
    """Check an event of a plan: one that some verb has, so that it is accounted for as quickly as theirs."""
    try:
        found = event_from_json(value)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        found = None
    if not isinstance(found, (PureDP, GridGaussian, DiscreteGaussian)):
        raise WireError(f"{name} is not an event that a verb of this service has; use RemoteVault")
    return found


def _charge(name: str, value: Any) -> list[Any]:
    """Check an event of a job, as JSON has it, and how often it is drawn."""
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], dict):
        raise WireError(f"{name} is not an event and a number of times; use RemoteVault")
    return [value[0], integer(1, 1 << 24)(f"{name}[1]", value[1])]


_EVENT = wire.fields({"event": _event_of, "rows": _ID})
EXCHANGES: Mapping[str, Mapping[str, wire.Check]] = {
    "bind": {"do": choice("bind"), "dataset": _NAME},
    "choose": {"do": choice("choose"), "dataset": _NAME, "rows": _ID},
    "users": {"do": choice("users"), "dataset": _NAME, "rows": _ID},
    "ask": {
        "do": choice("ask"), "dataset": _NAME, "request": _ID, "rows": _ID, "verb": choice(*wire.VERBS),
        "settings": lambda name, value: value, "plan_id": optional(_ID), "plan": optional(listed(1024, _EVENT)),
        "again": wire.flag,
    },
    "job": {
        "do": choice("job"), "dataset": _NAME, "request": _ID, "rows": _ID, "recipe": text(40),
        "settings": lambda name, value: value, "charge": listed(16, _charge),
    },
    "fetch": {"do": choice("fetch"), "dataset": _NAME, "request": _ID, "delta": number(0.0, 0.999)},
}  # fmt: skip
# A query whose columns are small is one message, and so is its answer: see `wire.framed`.
SMALL = "ask"
_DO, _EXCHANGES = choice(*EXCHANGES), {do: wire.fields(declared) for do, declared in EXCHANGES.items()}
_IDS = pa.schema([pa.field("id", pa.large_string(), nullable=False)])
# Bytes that an id may have, on average.
_ID_BYTES = 256
_ROWS = wire.arrow_schema({"row": ("int64", None)})
# What a job is sent with: a file, byte by byte.
BYTES = wire.arrow_schema({"byte": ("uint8", None)})
# Kinds of refusals, by which a client knows what to raise.
KINDS: tuple[tuple[type[Exception], str], ...] = (
    (UnknownRowsError, "rows"), (WireError, "message"), (BudgetExceededError, "budget"), (BusyError, "busy"),
    (AccessError, "access"), (StoreError, "store"),
)  # fmt: skip


class _Token(flight.ServerMiddleware):
    def __init__(self, token: str) -> None:
        self.token = token


class _Tokens(flight.ServerMiddlewareFactory):
    """Take the token off the headers of a call."""

    def start_call(self, info: Any, headers: Mapping[str, list[Any]]) -> _Token:
        given = next((value for name, value in headers.items() if name.lower() == "authorization"), [""])
        word = given[0] if given and isinstance(given[0], str) else ""
        return _Token(word.removeprefix("Bearer "))


class _Near:
    """What is known of a call that did not come through Flight."""

    def __init__(self, token: str) -> None:
        self._token = _Token(token)

    def get_middleware(self, name: str) -> _Token:
        return self._token


class Server(flight.FlightServerBase):
    """A Flight server of one engine.

    Args:
        engine: answers.
        access: knows who asks.
        listen: grpc+unix:///path/to/socket, or grpc+tls://host:port.
        tls: certificate chain and private key, as PEM, where it listens on a network.
        clients: PEM of the authority whose certificates clients must show; None lets in everybody with a token.
        limit: how often a person may ask.
        most_bytes: that one call may send.
        metrics: counts calls.
        jobs: runs recipes beside the labels; None where there are none.
    """

    def __init__(
        self,
        engine: Engine,
        access: Access,
        listen: str,
        *,
        tls: tuple[bytes, bytes] | None = None,
        clients: bytes | None = None,
        limit: RateLimit | None = None,
        most_bytes: int = 1 << 36,
        metrics: Metrics | None = None,
        jobs: Jobs | None = None,
    ) -> None:
        check_address(listen, tls is not None)
        if clients is not None and not listen.startswith("grpc+tls://"):
            raise ValueError(
                f"clients mean nothing at listen={listen!r}, where nobody shows a certificate; leave it out"
            )
        self.engine, self.access, self.metrics = engine, access, metrics or Metrics()
        self._jobs = jobs
        self._limit, self._most_bytes = limit or RateLimit(5000.0, 10_000), most_bytes
        # Strangers share a bucket: guessing tokens is slow for all of them together.
        self._strangers = RateLimit(50.0, 200)
        self._open, self._closing, self._idle = 0, False, threading.Condition()
        super().__init__(
            listen, middleware={"token": _Tokens()}, tls_certificates=None if tls is None else [tls],
            verify_client=clients is not None, root_certificates=clients,
        )  # fmt: skip
        place = near.beside(listen)
        self._door = None if place is None else near.Door(place, place.with_suffix(""), self._ask_near)

    # -- calls -----------------------------------------------------------------------------------------------------

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        """Answer a call without data."""
        return iter([self._called(context, f"action {action.type}", lambda fields: self._act(context, action, fields))])

    def _act(self, context: Any, action: Any, fields: dict[str, Any]) -> Any:
        if action.type == SMALL:
            return self._ask_small(context, action, fields)
        if action.type not in ACTIONS:
            raise WireError(f"action={action.type[:60]!r} is not one of {', '.join(ACTIONS)}; give one of them")
        body = action.body
        given = parsed(memoryview(body) if body is not None and body.size else b"{}", ACTIONS[action.type])
        if action.type == "health":
            return _result({"service": "labeldp", "healthy": True, "signer": self.engine.key.public})
        person = self._who(context, fields)
        answer = getattr(self, f"_{action.type}")(person, **given)
        return _result(answer)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Answer a call with data."""
        self._called(context, "exchange", lambda fields: self._exchange(context, descriptor, reader, writer, fields))

    def _exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any, fields: dict[str, Any]) -> None:
        person = self._who(context, fields)
        command = descriptor.command
        if command is None:
            raise WireError("the call has no command; use RemoteVault, or see docs/service.md")
        message = wire.loaded(command)
        do = _DO("do", message.get("do") if isinstance(message, dict) else None)
        given = _EXCHANGES[do]("", message)
        fields |= {"call": do, "dataset": given["dataset"]}
        answer: dict[str, Any]
        if do == "bind":
            answer, content = self._bind(person, given["dataset"], reader), None
        elif do == "choose":
            answer, content = self._choose(person, given["dataset"], given["rows"], reader), None
        elif do == "users":
            answer, content = self._users(person, given["dataset"], given["rows"])
        elif do == "job":
            fields["verb"] = f"job {given['recipe']}"
            answer, content = self._send_job(person, given, reader), None
        elif do == "fetch":
            self.access.allowance(person, given["dataset"])
            self._served(given["dataset"])
            kept, claim = self._taken().fetch(person, given["dataset"], given["request"], given["delta"])
            answer, content = {"entry": kept.place.number, "hash": kept.place.hash, "certificate": claim}, kept.release
        else:
            fields["verb"] = given["verb"]
            answer, content = self._ask(person, given, lambda declared, _: self._arriving(declared, reader))
        writer.write_metadata(pa.py_buffer(json.dumps(answer).encode()))
        if content is not None:
            writer.write_metadata(pa.py_buffer(content))

    def _called(self, context: Any, call: str, run: Callable[[dict[str, Any]], Any]) -> Any:
        """Run a call; count it, log it, and put whatever goes wrong into a sentence of a kind."""
        begun, fields, outcome = time.perf_counter(), {"call": call}, "ok"
        with self._idle:
            self._open += 1
        try:
            if self._closing:
                raise BusyError("the service is being stopped; ask again when it is back, nothing was charged")
            return run(fields)
        except Exception as error:
            outcome = next((kind for known, kind in KINDS if isinstance(error, known)), "failed")
            sentence = str(error) if outcome != "failed" else (
                f"the service failed with {type(error).__name__}; nothing was charged that was not kept. Ask again"
            )  # fmt: skip
            raise flight.FlightServerError(sentence[:2000], extra_info=outcome.encode()) from None
        finally:
            self.metrics.count(fields, outcome, time.perf_counter() - begun)
            with self._idle:
                self._open -= 1
                self._idle.notify_all()

    def _who(self, context: Any, fields: dict[str, Any]) -> Person:
        found = context.get_middleware("token")
        try:
            person = self.access.who("" if found is None else found.token)
        except AccessError:
            if not self._strangers.allows("strangers"):
                raise BusyError("too many calls with tokens that do not count; wait") from None
            raise
        fields["who"] = person.name
        if not self._limit.allows(person.name):
            raise BusyError("too many calls; wait a moment and ask again, nothing was charged")
        return person

    # -- what can be asked -----------------------------------------------------------------------------------------

    def _describe(self, person: Person, dataset: str) -> dict[str, Any]:
        budget = self.access.allowance(person, dataset)
        facts = self._served(dataset).describe()
        granted = {"epsilon": budget.epsilon, "delta": budget.delta}
        return {**facts, "budget": granted, "service": self.engine.database.id, "signer": self.engine.key.public}

    def _budget(self, person: Person, dataset: str) -> dict[str, Any]:
        budget = self.access.allowance(person, dataset)
        self._served(dataset)
        spent = self.engine.spent(person, dataset, budget)
        return {"epsilon": budget.epsilon, "delta": budget.delta, "spent": spent}

    def _certificate(self, person: Person, dataset: str, delta: float) -> dict[str, Any]:
        self.access.allowance(person, dataset)
        self._served(dataset)
        return {"certificate": self.engine.certificate(person, dataset, delta).dumps()}

    def _holds(self, person: Person, dataset: str, plan: str) -> dict[str, Any]:
        self.access.allowance(person, dataset)
        return {"holds": self.engine.holds(person, dataset, plan)}

    def _log(self, person: Person, after: int) -> dict[str, Any]:
        if person.role not in ("owner", "auditor"):
            raise AccessError("the log is for owners and auditors; ask the data owner")
        return {"lines": [line._asdict() for line in logbook.read(self.engine.database, after)[:10_000]]}

    def _metrics(self, person: Person) -> dict[str, Any]:
        if person.role != "owner":
            raise AccessError("metrics are for the owner; ask the data owner")
        return {"text": self.metrics.text()}

    def _job(self, person: Person, dataset: str, request: str) -> dict[str, Any]:
        self.access.allowance(person, dataset)
        return self._taken().status(person, dataset, request)

    def _stop(self, person: Person, dataset: str, request: str) -> dict[str, Any]:
        self.access.allowance(person, dataset)
        return self._taken().stop(person, dataset, request)

    def _taken(self) -> Jobs:
        if self._jobs is None:
            raise WireError("no jobs are taken here; ask the data owner, who may allow them: labeldp serve --jobs")
        return self._jobs

    def _send_job(self, person: Person, given: dict[str, Any], reader: Any) -> dict[str, Any]:
        budget, jobs = self.access.allowance(person, given["dataset"]), self._taken()
        self._served(given["dataset"])
        if given["recipe"] not in jobs.recipes:
            raise WireError(f"recipe={given['recipe']!r} is not one of {', '.join(jobs.recipes)}; give one of them")

        def parts() -> Iterator[memoryview]:
            for batch in _batches(reader):
                for part in wire.from_batch(BYTES, batch)["byte"].reshape(-1, max(1, batch.num_rows)):
                    yield part.data

        return jobs.send(person, budget, given, parts())

    def _served(self, dataset: str) -> Any:
        found = self.engine.served.get(dataset)
        if found is None:
            # Granted, but served elsewhere: not told apart from what does not exist.
            raise AccessError(f"there is no data set {dataset!r} that you may ask; see its name, or ask its owner")
        return found

    def _bind(self, person: Person, dataset: str, reader: Any) -> dict[str, Any]:
        self.access.allowance(person, dataset)
        served, parts, sent, size = self._served(dataset), [], 0, 0
        for batch in _batches(reader):
            size += batch.nbytes
            if size > _ID_BYTES * (len(served.vault) + 1):
                raise WireError(f"ids have more than {_ID_BYTES} bytes each; send those of the data set")
            if not batch.schema.equals(_IDS) or batch.column(0).null_count:
                raise WireError("the ids are not one column 'id' of large texts without gaps; send that")
            sent += batch.num_rows
            if sent > len(served.vault):
                raise WireError(f"{sent} ids or more were sent for {len(served.vault)} rows; name each row once")
            parts.append(batch.column(0))
        if not parts:
            raise WireError("no ids were sent; name the rows that you ask about")
        ids = pa.concat_arrays(parts)
        try:
            ids.validate(full=True)
        except pa.ArrowInvalid:
            raise WireError("the ids are not texts in UTF-8; send such") from None
        name = name_of_ids(ids)
        self.engine.choices.add(dataset, name, served.find(ids), len(served.vault))
        return {"rows": name, "count": sent}

    def _choose(self, person: Person, dataset: str, base: str, reader: Any) -> dict[str, Any]:
        self.access.allowance(person, dataset)
        served, chosen, parts, sent = self._served(dataset), self.engine.choice(dataset, base), [], 0
        for batch in _batches(reader):
            parts.append(wire.from_batch(_ROWS, batch)["row"])
            sent += batch.num_rows
            if sent > chosen.count:
                raise WireError(f"{sent} rows or more were sent of {chosen.count}; name each row once")
        picked = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        if picked.size and (int(picked.min()) < 0 or int(picked.max()) >= chosen.count):
            raise WireError(f"rows has entries outside 0 … {chosen.count - 1}; leave them out")
        if len(np.unique(picked)) != len(picked):
            raise WireError("rows has repeats; name each row once")
        name = name_of_rows(base, picked)
        rows = picked if chosen.rows is None else chosen.rows[picked]
        self.engine.choices.add(dataset, name, rows, len(served.vault))
        return {"rows": name, "count": sent}

    def _users(self, person: Person, dataset: str, rows: str) -> tuple[dict[str, Any], bytes]:
        """Return whose the rows of a choice are: public, like every feature, and numbered in their order."""
        self.access.allowance(person, dataset)
        users = self._served(dataset).users(self.engine.choice(dataset, rows).rows)
        if users is None:
            raise WireError("the data set protects its labels one by one, and knows no users")
        return {"users": len(users)}, users.owner.astype("<u4").tobytes()

    def _ask(
        self,
        person: Person,
        given: dict[str, Any],
        read: Callable[[_Declared, Ask], Iterator[dict[str, Any]]],
        rows: near.Shared | None = None,
    ) -> tuple[dict[str, Any], bytes]:
        budget = self.access.allowance(person, given["dataset"])
        self._served(given["dataset"])
        settings = wire.checked_settings(given["verb"], given["settings"])
        plan = given["plan"] and [(each["event"], each["rows"]) for each in given["plan"]]
        ask = Ask(
            given["request"], given["dataset"], given["rows"], given["verb"], settings, given["settings"],
            given["plan_id"], plan, given["again"],
        )  # fmt: skip
        declared = wire.declared_columns(given["verb"], settings)
        kept = self.engine.ask(
            person, budget, ask, lambda digest: self._digested(declared, read(declared, ask), digest, rows)
        )
        return {"entry": kept.place.number, "hash": kept.place.hash, "bytes": len(kept.release)}, kept.release

    def _ask_small(self, context: Any, action: Any, fields: dict[str, Any]) -> Any:
        """Answer a query that came as one message with all of its columns."""
        body = memoryview(action.body if action.body is not None else b"")
        return flight.Result(pa.py_buffer(b"".join(self._ask_message(context, body, None, fields))))

    def _ask_near(self, token: str, message: memoryview, rows: near.Shared | None) -> tuple[bytes, list[bytes]]:
        """Answer a query that came through the socket beside this one: the kind of its frame, and what is in it."""
        context = _Near(token)
        try:
            run = partial(self._ask_message, context, message, rows)
            return b"A", self._called(context, "ask", run)
        except flight.FlightServerError as error:
            told = {"kind": bytes(error.extra_info).decode(), "said": str(error).partition(". Detail: ")[0]}
            return b"E", [json.dumps(told).encode()]

    def _ask_message(
        self, context: Any, message: memoryview, rows: near.Shared | None, fields: dict[str, Any]
    ) -> list[bytes]:
        person = self._who(context, fields)
        if len(message) > self._most_bytes:
            raise WireError(f"more than {self._most_bytes} bytes were sent in one call; ask about parts of the rows")
        header, content = wire.unframed(message)
        given = _EXCHANGES["ask"]("", wire.loaded(header))
        fields |= {"call": "ask", "dataset": given["dataset"], "verb": given["verb"]}

        def read(declared: _Declared, ask: Ask) -> Iterator[dict[str, Any]]:
            if rows is None:
                return wire.from_bytes(declared, self.engine.choice(ask.dataset, ask.rows).count, content)
            if content or list(declared) != [wire.FEATURES]:
                raise WireError("only features come in memory; send other columns with the question")
            kind, width = declared[wire.FEATURES]
            return self._in_bytes({wire.FEATURES: part} for part in rows.rows(kind, width or 1))

        answer, release = self._ask(person, given, read, rows)
        return [wire.framed(answer), release]

    def _arriving(self, declared: _Declared, reader: Any) -> Iterator[dict[str, Any]]:
        """Yield columns as they arrive in record batches."""
        schema = wire.arrow_schema(declared)
        return self._in_bytes(wire.from_batch(schema, batch) for batch in _batches(reader))

    def _in_bytes(self, parts: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield parts of columns, until they are too large together."""
        sent = 0
        for columns in parts:
            sent += sum(column.nbytes for column in columns.values())
            if sent > self._most_bytes:
                raise WireError(
                    f"more than {self._most_bytes} bytes were sent in one call; ask about parts of the rows"
                )
            yield columns

    def _digested(
        self, declared: _Declared, parts: Iterator[dict[str, Any]], digest: Any, shared: near.Shared | None
    ) -> Iterator[dict[str, Any]]:
        """Yield the parts of columns, and add all of them to the digest at the end, however they were cut.

        Features are many: of them a check sum, by which an analyst's mistake is found; nothing else rests on it. Where
        they come in memory it is the analyst who has computed it.
        """
        sums = {name: wire.CheckSum() if name == wire.FEATURES else hashlib.sha256() for name in declared}
        rows = 0
        for columns in parts:
            rows += len(next(iter(columns.values())))
            for name, column in columns.items():
                if name != wire.FEATURES:
                    sums[name].update(column.reshape(-1).view(np.uint8).data)
                elif shared is None:
                    sums[name].update(column)
            yield columns
        found = {name: one.hexdigest() for name, one in sums.items()}
        if shared is not None:
            found[wire.FEATURES] = shared.sum
        digest.update(f"{rows} {list(found.items())}".encode())

    # -- the end ---------------------------------------------------------------------------------------------------

    def stop(self, seconds: float = 30.0) -> None:
        """Take no new calls, finish those that have begun, write down what is waiting."""
        end = time.monotonic() + seconds
        with self._idle:
            self._closing = True
            while self._open and time.monotonic() < end:
                self._idle.wait(0.1)
        if self._jobs is not None:
            self._jobs.close()
        if self._door is not None:
            self._door.close()
        self.shutdown()
        self.engine.close()


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    """Yield what arrives; WireError where it is not Arrow."""
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        except (pa.ArrowException, flight.FlightError):
            raise WireError("the data is not a stream of Arrow record batches; send one") from None
        if chunk.data is not None and chunk.data.num_rows:
            yield chunk.data


def _result(answer: dict[str, Any]) -> Any:
    return flight.Result(pa.py_buffer(json.dumps(answer).encode()))


def check_address(listen: str, tls: bool) -> None:
    """Raise ValueError unless this is a Unix socket, or a network address with TLS."""
    if listen.startswith("grpc+unix://"):
        path = Path(listen.removeprefix("grpc+unix://"))
        if not path.is_absolute() or len(str(path)) > 100:
            raise ValueError(f"listen={listen!r} needs an absolute path of at most 100 characters")
        return
    if not listen.startswith("grpc+tls://"):
        raise ValueError(f"listen={listen!r} is neither grpc+unix:///path nor grpc+tls://host:port; give one of them")
    if not tls:
        raise ValueError(f"listen={listen!r} needs a certificate and its key (--tls-cert, --tls-key)")
