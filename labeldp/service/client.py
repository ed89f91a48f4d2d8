"""Ask a vault that lies behind a service: `RemoteVault` has the face of `LabelVault`, so that recipes run unchanged.

What it holds in place of labels are the numbers of its rows. It keeps its own books, so that parts, plans, budgets and
certificates work as in process; a query is paid for, drawn and kept by the service, in one transaction, before it
counts here. Every query has an id: sent again after a lost connection, or by a run that was killed and goes on in its
folder, it returns what was released the first time and costs nothing.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import flight

from labeldp.core.certificate import Certificate
from labeldp.core.certificate import parse as read_certificate
from labeldp.core.events import Event, event_to_json
from labeldp.core.ledger import Budget, BudgetExceededError, Charged, Unit
from labeldp.core.protocols import LeaseCounter, LedgerStore
from labeldp.core.vault import LabelVault, Lease, Mechanism, digest
from labeldp.mechanisms.teachers import TeacherVotes
from labeldp.mechanisms.users import Users, UserVault
from labeldp.mechanisms.values import Grid, ValueVault
from labeldp.service import near, wire
from labeldp.service.log import Line, Place, sentence
from labeldp.service.source import texts
from labeldp.service.wire import AccessError, BusyError, WireError

Out = TypeVar("Out")
Rows = npt.ArrayLike | None
_Declared = dict[str, tuple[str, int | None]]
# Rows, and bytes of columns, that are sent at a time.
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 1 << 16, 1 << 21
# Bytes of columns that are sent with the question itself, as one message.
_SMALL = 1 << 18
# How often a call is sent again when the connection is lost, and how long it waits in between, in seconds.
_TRIES, _PAUSE, _LONGEST_PAUSE = 8, 0.1, 5.0
_LOST = (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError)


class ServiceError(ValueError):
    """A service that cannot be reached, or failed. One sentence."""


class StaleRowsError(ServiceError):
    """The service does not remember a choice of rows: it is named again."""


# -- the connection ----------------------------------------------------------------------------------------------------


class Connection:
    """Calls of one service with one token; what is lost on the way is sent again.

    Args:
        address: grpc+unix:///path/to/socket or grpc+tls://host:port.
        token: of `labeldp access token`.
        root_certs: PEM of who signed the service's certificate; the system's own when None.
        client_cert: PEM with a certificate of one's own and its private key, for a service that wants one.
        tries: how often a call is sent before the service counts as gone.
    """

    def __init__(
        self,
        address: str,
        token: str,
        root_certs: bytes | None = None,
        tries: int = _TRIES,
        client_cert: bytes | None = None,
    ) -> None:
        if not address.startswith(("grpc+unix://", "grpc+tls://")):
            raise ValueError(f"address={address!r} is neither grpc+unix:///path nor grpc+tls://host:port; give one")
        self.address, self._tries = address, tries
        self._options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
        more: dict[str, Any] = {} if root_certs is None else {"tls_root_certs": root_certs}
        more |= {} if client_cert is None else {"cert_chain": client_cert, "private_key": client_cert}
        self._make: Callable[[], Any] = lambda: flight.FlightClient(address, **more)
        self._client = self._make()
        # Lines to a service on this machine that nobody is using.
        self._near, self._token, self._callers = near.beside(address), token, deque[near.Caller]()
        weakref.finalize(self, _hang_up, self._callers)

    def __repr__(self) -> str:
        return f"Connection({self.address!r})"

    def act(self, action: str, **fields: Any) -> dict[str, Any]:
        """Call without data."""

        def call() -> dict[str, Any]:
            body = json.dumps(fields).encode()
            (answer,) = self._client.do_action(flight.Action(action, body), self._options)
            return json.loads(answer.body.to_pybytes())

        return self._again(lambda _: call())

    def ask(self, header: dict[str, Any], columns: Iterable[memoryview]) -> tuple[dict[str, Any], memoryview]:
        """Ask a query with few bytes of columns: one message there, and one back."""
        content = list(columns)

        def call(again: bool) -> tuple[dict[str, Any], memoryview]:
            message = wire.framed({**header, "again": again}, content)
            answer = None if again else self._ask_near(message, lambda caller: caller.ask(message))
            if answer is None:
                (result,) = self._client.do_action(flight.Action("ask", message), self._options)
                answer = memoryview(result.body)
            told, release = wire.unframed(answer)
            return json.loads(bytes(told)), release

        return self._again(call)

    def ask_rows(
        self, header: dict[str, Any], schema: pa.Schema, chunks: Callable[[], Iterable[npt.NDArray[Any]]]
    ) -> tuple[dict[str, Any], memoryview]:
        """Ask a query with features: through memory, where the service is on this machine."""
        ((kind, width),) = ((each.type.value_type.to_pandas_dtype(), each.type.list_size) for each in schema)

        def call(again: bool) -> tuple[dict[str, Any], memoryview]:
            told = {**header, "again": again}
            message = wire.framed(told)
            fill = lambda caller: caller.ask_rows(message, chunks(), np.dtype(kind).name, width)  # noqa: E731
            answer = None if again else self._ask_near(message, fill)
            if answer is None:
                batches = lambda: (wire.to_batch(schema, {wire.FEATURES: part}) for part in chunks())  # noqa: E731
                return self._exchanged(told, schema, batches)
            head, release = wire.unframed(answer)
            return json.loads(bytes(head)), release

        return self._again(call)

    def _ask_near(self, message: bytes, ask: Callable[[near.Caller], tuple[bytes, memoryview]]) -> memoryview | None:
        """Return the answer through the socket beside the service's own; None where it has to go through gRPC.

        What goes wrong here, or is too much for it, is asked again through gRPC.
        """
        if self._near is None or len(message) > near.MOST_MESSAGE:
            return None
        try:
            caller = self._callers.pop()
        except IndexError:
            try:
                caller = near.Caller(self._near, self._token)
            except OSError:
                # There is none, or the service has gone, which gRPC will say.
                return None
        try:
            kind, content = ask(caller)
        except BaseException as error:
            caller.close()
            if isinstance(error, EOFError):
                raise flight.FlightUnavailableError("the answer ended too soon") from None
            raise
        if kind == b"A":
            self._callers.append(caller)
            return content
        # It may be in the middle of something.
        caller.close()
        told = json.loads(bytes(content))
        raise flight.FlightServerError(told["said"], extra_info=told["kind"].encode())

    def exchange(
        self, header: dict[str, Any], schema: pa.Schema, batches: Callable[[], Iterable[pa.RecordBatch]]
    ) -> tuple[dict[str, Any], memoryview]:
        """Call with data, which is read anew each time it is sent."""

        def call(again: bool) -> tuple[dict[str, Any], memoryview]:
            return self._exchanged({**header, "again": again} if header["do"] == "ask" else header, schema, batches)

        return self._again(call)

    def _exchanged(
        self, told: dict[str, Any], schema: pa.Schema, batches: Callable[[], Iterable[pa.RecordBatch]]
    ) -> tuple[dict[str, Any], memoryview]:
        command = flight.FlightDescriptor.for_command(json.dumps(told, allow_nan=False).encode())
        writer, reader = self._client.do_exchange(command, self._options)
        try:
            # Where the service has ended the call early, what it says about that comes with the answer.
            with suppress(pa.ArrowException, flight.FlightError, OSError):
                if schema.names:
                    writer.begin(schema)
                    for batch in batches():
                        writer.write_batch(batch)
                writer.done_writing()
            answer = json.loads(reader.read_chunk().app_metadata.to_pybytes())
            content = memoryview(b"")
            if told["do"] in ("ask", "fetch", "users"):
                content = memoryview(reader.read_chunk().app_metadata)
        except StopIteration:
            raise flight.FlightUnavailableError("the answer ended too soon") from None
        finally:
            # What went wrong was said above; closing says it again.
            with suppress(pa.ArrowException, flight.FlightError, OSError):
                writer.close()
        return answer, content

    def _again(self, call: Callable[[bool], Any]) -> Any:
        pause, failed = _PAUSE, ""
        for attempt in range(self._tries):
            try:
                return call(attempt > 0)
            except _LOST as error:
                failed = type(error).__name__
            except flight.FlightError as error:
                kind = bytes(error.extra_info or b"").decode("ascii", "replace")
                if kind != "busy" or attempt + 1 == self._tries:
                    raise _in_words(kind, str(error)) from None
                failed = "too many calls"
            except (pa.ArrowException, OSError) as error:
                failed = type(error).__name__
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            self._client = self._make()
        # gRPC does not say that it was the certificate.
        tls = self.address.startswith("grpc+tls")
        given = (
            "the certificate of who signed its own (root_certs, --root-certs), yours if it wants one (--client-cert)"
        )
        trusted = f", {given}" if tls else ""
        raise ServiceError(
            f"the service at {self.address} cannot be reached ({failed}); check the address{trusted}, and ask its owner"
        )


def _hang_up(callers: deque[near.Caller]) -> None:
    while callers:
        callers.pop().close()


def _in_words(kind: str, message: str) -> Exception:
    """Return what a refusal raises here."""
    # Flight adds where it happened; the sentence comes first.
    sentence = message.partition(". Detail: ")[0].partition(". gRPC client debug context")[0]
    kinds: dict[str, type[Exception]] = {
        "budget": BudgetExceededError, "access": AccessError, "busy": BusyError, "message": WireError,
        "rows": StaleRowsError,
    }  # fmt: skip
    return kinds.get(kind, ServiceError)(sentence)


# -- the vault ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Noise:
    """Whose noise it is: the service's, as it says."""

    source: str
    seed: int | None


class _Ask:
    """A query on its way: sent when it is paid for, or when it is drawn where its plan was paid for before."""

    def __init__(self, account: RemoteAccount, mechanism: Any, rows: npt.NDArray[Any], request: str) -> None:
        self._account, self._mechanism, self._rows, self._request = account, mechanism, rows, request
        self._question = wire.encode(mechanism)
        self.release: Any = None
        self.place: Place | None = None

    def send(self, plan_id: str | None, plan: Sequence[Charged] | None) -> None:
        """Ask the service; plan are the queries that are paid for with this one, where they are not yet."""
        self.release, self.place = self._account.send(
            self._mechanism, self._question, self._rows, self._request, plan_id, plan
        )


class RemoteAccount:
    """The `store` of a remote vault: what it is charged, the service charges, while the query is on its way."""

    # Every row pays for itself: ids are all different.
    by_row = True

    def __init__(self, connection: Connection, dataset: str, ids: pa.Array, service: str, by_user: bool) -> None:
        self._connection, self._dataset, self._ids, self._service = connection, dataset, ids, service
        self._by_user = by_user
        self._lock, self._pending = threading.RLock(), threading.local()
        # Names of choices of rows, by their content here.
        self._names: dict[bytes, str] = {}
        # All rows: known again without looking at them.
        self.places: npt.NDArray[Any] = np.arange(len(ids))
        self.places.setflags(write=False)
        self.rows = self._bind()

    @property
    def id(self) -> str:
        """The service's store, by its random name."""
        return self._service

    @contextmanager
    def asking(self, ask: Any) -> Iterator[None]:
        """Let the charges of this block be paid for by sending this query."""
        self._pending.ask = ask
        try:
            yield
        finally:
            self._pending.ask = None

    # -- what a vault expects of a store ------------------------------------------------------------------------------

    def serve(self, vault: str, unit: Unit) -> None:
        """Take any vault: the service knows rows by their ids."""

    def keep(self, plan: Sequence[Charged], num_rows: int, query_id: str | None) -> None:
        """Let the service charge a plan with the first query of it; or check that it did, for one drawn before."""
        ask: Any = getattr(self._pending, "ask", None)
        if ask is not None:
            ask.send(query_id, None if query_id is None else plan)
        elif query_id is None or not self.holds(query_id):
            raise ServiceError(
                "the service does not know a release that is kept here: it is another one, or an older copy of its "
                "store was put back. Use a new folder and pay again"
            )

    def holds(self, query_id: str) -> bool:
        """Return whether queries were paid for under this id."""
        return bool(self._connection.act("holds", dataset=self._dataset, plan=query_id)["holds"])

    def begin(self, query_id: str, number: int, index: int, most: int) -> None:
        """Do nothing: the service counts."""

    # -- rows and queries ---------------------------------------------------------------------------------------------

    def _bind(self) -> str:
        """Name all rows of the vault by their ids."""
        schema = pa.schema([pa.field("id", pa.large_string(), nullable=False)])

        def batches() -> Iterator[pa.RecordBatch]:
            for start in range(0, len(self._ids), _ROWS_AT_ONCE):
                yield pa.RecordBatch.from_arrays([self._ids.slice(start, _ROWS_AT_ONCE)], schema=schema)

        answer, _ = self._connection.exchange({"do": "bind", "dataset": self._dataset}, schema, batches)
        return str(answer["rows"])

    def users(self) -> Users:
        """Return whose each row is, as the service says."""
        header = {"do": "users", "dataset": self._dataset, "rows": self.rows}
        _, content = self._connection.exchange(header, wire.arrow_schema({}), lambda: ())
        return Users(np.frombuffer(content, "<u4").astype(np.intp))

    def _named(self, rows: npt.NDArray[Any] | None) -> str:
        """Return the service's name of these rows of the vault, in this order."""
        if rows is None or rows is self.places or np.array_equal(rows, self.places):
            return self.rows
        index = np.ascontiguousarray(rows, dtype=np.int64)
        key = hmac.digest(b"rows", index.tobytes(), "sha256")
        if key not in self._names:
            schema = wire.arrow_schema({"row": ("int64", None)})
            header = {"do": "choose", "dataset": self._dataset, "rows": self.rows}
            parts = lambda: (wire.to_batch(schema, part) for part in wire.rows_of({"row": index}, _ROWS_AT_ONCE))  # noqa: E731
            self._names[key] = str(self._connection.exchange(header, schema, parts)[0]["rows"])
        return self._names[key]

    def send_job(self, header: Mapping[str, Any], rows: npt.NDArray[Any], content: bytes) -> tuple[Connection, str]:
        """Send a job with its tensors and features; return where to ask about it. It is paid for when this returns."""
        schema = wire.arrow_schema({"byte": ("uint8", None)})
        data = np.frombuffer(content, dtype=np.uint8)

        def batches() -> Iterator[pa.RecordBatch]:
            for start in range(0, len(data), _BYTES_AT_ONCE):
                yield wire.to_batch(schema, {"byte": data[start : start + _BYTES_AT_ONCE]})

        for _ in range(3):
            try:
                with self._lock:
                    named = self._named(rows)
                self._connection.exchange(
                    {"do": "job", "dataset": self._dataset, "rows": named, **header}, schema, batches
                )
                return self._connection, self._dataset
            except StaleRowsError:
                with self._lock:
                    self._names.clear()
                    self.rows = self._bind()
        raise ServiceError("the service forgets the rows that are named; it serves too many choices at once")

    def send(
        self,
        mechanism: Any,
        question: wire.Question,
        rows: npt.NDArray[Any],
        request: str,
        plan_id: str | None,
        plan: Sequence[Charged] | None,
    ) -> tuple[Any, Place]:
        """Ask, naming the rows again where the service has forgotten them."""
        if self._by_user:
            # Known by the id of its request alone: queries of users pay one by one.
            plan_id = plan = None
        declared = wire.declared_columns(question.verb, question.settings)
        header: dict[str, Any] = {
            "do": "ask", "dataset": self._dataset, "request": request, "verb": question.verb,
            "settings": question.settings, "plan_id": plan_id,
        }  # fmt: skip
        for attempt in range(3):
            try:
                with self._lock:
                    header["rows"] = self._named(rows)
                    header["plan"] = plan and [
                        {"event": event_to_json(event), "rows": self._named(which)} for event, _, which in plan
                    ]
                answer, content = self._asked(header, question, declared, len(rows))
                return wire.unpack(content, mechanism), Place(int(answer["entry"]), str(answer["hash"]))
            except StaleRowsError:
                # The service was started anew, say.
                with self._lock:
                    time.sleep(attempt * _PAUSE)
                    self._names.clear()
                    self.rows = self._bind()
        raise ServiceError("the service forgets the rows that are named; it serves too many choices at once")

    def _asked(
        self, header: dict[str, Any], question: wire.Question, declared: _Declared, num_rows: int
    ) -> tuple[dict[str, Any], memoryview]:
        """Send a query in the way that fits its size."""
        size = num_rows * sum(np.dtype(kind).itemsize * (width or 1) for kind, width in declared.values())
        if size <= _SMALL:
            columns = dict(question.columns)
            if question.stream is not None:
                columns[wire.FEATURES] = np.concatenate([np.asanyarray(chunk) for chunk in question.stream.read()])
            return self._connection.ask(header, wire.to_bytes(declared, columns))
        schema = wire.arrow_schema(declared)
        if question.stream is not None:
            kind, width = declared[wire.FEATURES]
            return self._connection.ask_rows(header, schema, lambda: _rows(question.stream, kind, width or 1))
        parts = lambda: (wire.to_batch(schema, part) for part in wire.rows_of(question.columns, _ROWS_AT_ONCE))  # noqa: E731
        return self._connection.exchange(header, schema, parts)


def _rows(stream: Any, kind: str, width: int) -> Iterator[npt.NDArray[Any]]:
    """Yield features in chunks of a few megabytes, in the type that was declared for all of them."""
    at_once = max(1, _BYTES_AT_ONCE // (width * np.dtype(kind).itemsize))
    for chunk in stream.read():
        given = np.asanyarray(chunk)
        if (given.dtype == np.float32) != (kind == "float32"):
            raise ValueError("features change their type from chunk to chunk; give one type")
        for start in range(0, len(given), at_once):
            yield np.ascontiguousarray(given[start : start + at_once], dtype=kind)


class RemoteVault(LabelVault):
    """Labels behind the door of a service; no label is ever in this process.

    Args:
        address: grpc+unix:///path/to/socket or grpc+tls://host:port.
        token: of `labeldp access token`.
        dataset: its name there.
        ids: one public id per row of this vault, in any order: whole numbers or texts. Ids that the service does not
            know are counted and refused.
        root_certs: PEM of who signed the service's certificate; the system's own when None.
        client_cert: PEM with a certificate of one's own and its private key, for a service that wants one.

    A data set of numbers makes a `RemoteValueVault`, one that protects all labels of a user a `RemoteUserVault`.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str,
        dataset: str,
        ids: Iterable[Any],
        root_certs: bytes | None = None,
        client_cert: bytes | None = None,
    ) -> None:
        connection = Connection(address, token, root_certs, client_cert=client_cert)
        facts = connection.act("describe", dataset=dataset)
        known = texts(ids)
        if facts["grid"] is not None:
            # Numbers are asked other things than classes, by other recipes.
            self.__class__ = RemoteValueVault  # type: ignore[assignment]
            low, high, levels = facts["grid"]
            vars(self)["grid"] = Grid(low, high, levels)
        by_user = facts["users"] is not None
        account = RemoteAccount(connection, dataset, known, str(facts["service"]), by_user)
        budget = Budget(float(facts["budget"]["epsilon"]), float(facts["budget"]["delta"]))
        noise: Any = _Noise(str(facts["noise"]), 0 if facts["seeded"] else None)
        # In place of labels: the numbers of rows.
        numbers, most = np.arange(len(known)), max(1, len(known))
        if by_user:
            self.__class__ = RemoteUserVault  # type: ignore[assignment]
            UserVault.__init__(self, numbers, account.users(), most, budget, store=account, rng=noise)  # type: ignore[arg-type]
        else:
            LabelVault.__init__(self, numbers, most, budget, store=account, rng=noise)
        self._num_classes, self._places = int(facts["num_classes"]), account.places
        self._facts, self._connection, self._account = facts, connection, account

    def __repr__(self) -> str:
        return f"RemoteVault({len(self)} rows of {self.dataset!r} at {self._connection.address})"

    @property
    def place(self) -> str:
        """A public name of its rows, by their ids: in another process the same places may be those of others."""
        return f"{super().place} of {self._account.rows}"

    @property
    def dataset(self) -> str:
        """The name of the data set."""
        return str(self._facts["dataset"])

    @property
    def label(self) -> str:
        """The secret column, by its name."""
        return str(self._facts["label"])

    @property
    def classes(self) -> tuple[str, ...]:
        """All classes as they were declared; empty where the label is a number."""
        return tuple(self._facts["classes"])

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Between what the label lies, where it is a number."""
        found = self._facts["bounds"]
        return None if found is None else (float(found[0]), float(found[1]))

    # -- queries ---------------------------------------------------------------------------------------------------

    def lease_batches(
        self,
        mechanisms: Sequence[Mechanism[Out]],
        times: int,
        batches: Sequence[Rows],
        *,
        counter: LeaseCounter | None = None,
    ) -> tuple[Lease[Out], ...]:
        """Ask one query of the service; it is drawn when it is paid for, and the lease hands it out."""
        if len(mechanisms) != 1 or len(batches) != 1 or times != 1:
            raise ValueError(
                f"{times} × {len(mechanisms)} queries cannot be paid for in advance at a service, which draws one when "
                "it is paid for. Choose a recipe that needs no gradients, or run this one where the labels are"
            )
        mechanism, index = mechanisms[0], self._checked_rows(batches[0])
        charges = self._charges(mechanism, 1, index)
        query_id = None if counter is None else counter.query_id
        request = secrets.token_hex(16) if query_id is None else query_id
        places = self._places if index is None else self._places[index]
        ask: Any
        if isinstance(mechanism, TeacherVotes):
            from labeldp.service.remote_jobs import votes

            ask = votes(self._account, mechanism, places, request, charges)
        else:
            ask = _Ask(self._account, mechanism, places, request)
        if counter is not None:
            self._bind(counter, charges, 1, index, [len(self)])
        with self._account.asking(ask):
            place = self._charge(charges, query_id)
        if ask.place is None:
            # Its plan was paid for with an earlier query, or it was asked for under this id before.
            known = self._counting(query_id, place)
            ask.send(known[-1][1] if known else None, None)
        if ask.place is not None:
            self.assume(*getattr(mechanism, "assumptions", ()), sentence(ask.place, str(self._facts["signer"])))
        return (Lease(lambda: (ask.release, None), 1, (), None, 0),)

    def descend(
        self, given: Mapping[str, Any], multiplier: float, event: Event, times: int, steps: int, run: Any, report: Any
    ) -> Any:
        """Let the service take the steps of `labeldp_pro.train`, as a job beside the labels; return the model.

        Args:
            given: the arguments of the recipe.
            multiplier: of the noise of every sum.
            event, times: what each row pays for.
            steps: how many there are.
            run: keeps the id of the job, where the recipe has a folder.
        """
        from labeldp.service.remote_jobs import descent

        charges = [(event, times, None)]
        request = secrets.token_hex(16) if run.counter is None else run.counter.query_id
        ask = descent(self._account, given, multiplier, steps, self._places, request, charges, report)
        if run.counter is not None:
            self._bind(run.counter, charges, times, None, [len(self)])
        with self._account.asking(ask):
            self._charge(charges, request)
        ask.finish()
        self.assume(*ask.assumptions)
        return ask.release

    def part(self, rows: Rows = None, budget: Budget | None = None, *, store: LedgerStore | None = None) -> Self:
        """Return a vault of some rows, as `LabelVault.part` does."""
        part, index = super().part(rows, budget, store=store), self._checked_rows(rows)
        part._places = self._places if index is None else self._places[index]
        return part

    def plan(self, queries: Sequence[tuple[Event, int, Rows]], *, query_id: str | None = None) -> Self:
        """Return a vault that can draw these queries, as `LabelVault.plan` does; each at most once."""
        if any(times != 1 for _, times, _ in queries):
            raise ValueError("a query of a plan is asked more than once, which a service does not do; list it twice")
        return super().plan(queries, query_id=query_id or secrets.token_hex(16))

    def spent(self) -> float:
        """Return what the holder of the token has spent on this data set so far, in all processes."""
        return float(self._connection.act("budget", dataset=self.dataset)["spent"])

    def service_certificate(self, delta: float = 0.0) -> Certificate:
        """Return the service's own claim about all that the holder of the token was told of this data set."""
        answer = self._connection.act("certificate", dataset=self.dataset, delta=delta)
        return read_certificate(answer["certificate"])

    def fingerprint(self, secret: bytes, rows: Rows = None) -> str:
        """Return a name for labels that are not here: of the service, the data set and the rows."""
        some = "" if rows is None else f" {digest(self._places[self._checked_rows(rows)])}"
        return hmac.new(
            secret, f"{self._facts['service']} {self.dataset} {self._account.rows}{some}".encode(), "sha256"
        ).hexdigest()

    def reveal(self, reason: str) -> NoReturn:
        """Refuse: a service hands out no labels."""
        raise TypeError("a RemoteVault holds no labels and cannot reveal any; ask the data owner")


class RemoteValueVault(RemoteVault, ValueVault):
    """Numbers behind the door of a service."""


class RemoteUserVault(RemoteVault, UserVault):
    """Labels behind the door of a service that protects all of a user together, and says whose each row is."""

    def plan(self, queries: Sequence[tuple[Event, int, Rows]], *, query_id: str | None = None) -> NoReturn:
        """Refuse: queries of users pay one by one."""
        raise ValueError(
            f"{self!r} protects all labels of a user, whose queries pay one by one; release each by itself"
        )


def read_log(connection: Connection, after: int = 0) -> list[Line]:
    """Return the lines of a service's log, for owners and auditors."""
    found: list[Line] = []
    while lines := connection.act("log", after=after)["lines"]:
        found += [Line(**line) for line in lines]
        after = found[-1].number
    return found
