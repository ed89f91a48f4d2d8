"""The database behind a budget store: its tables, how it is opened, and its failures in words.

SQLite takes writers one at a time (`BEGIN IMMEDIATE`) and flushes every commit to the disk (`synchronous = EXTRA`).
PostgreSQL locks the row of the data set (`SELECT … FOR UPDATE`) and flushes at commit; a server set not to is refused.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import os
import secrets
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from labeldp.budgets.keys import Key, StoreError, StoreKeyError, make_key, read_key
from labeldp.core.events import Event, Queries, event_from_json, event_to_json
from labeldp.core.ledger import ONE_LABEL, ONE_USER, Budget, Ledger, RowIndex, Unit
from labeldp.core.vault import LabelVault

try:
    import sqlalchemy as sa
    from sqlalchemy import event as sa_event
    from sqlalchemy import exc
except ImportError:
    raise ImportError("budgets in a database need SQLAlchemy; install it with: pip install 'labeldp[store]'") from None

FORMAT = "labeldp-budgets/1"
# How long a process waits for its turn before it gives up, charging nothing.
PATIENCE_SECONDS = 120
# Any fixed number: processes that find no tables in PostgreSQL make them one after the other.
_MAKING_TABLES = 7_236_051_402

_tables = sa.MetaData()
FACTS = sa.Table(
    "labeldp_facts", _tables,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)  # fmt: skip
DATASETS = sa.Table(
    "labeldp_datasets", _tables,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("fingerprint", sa.Text, nullable=False, unique=True),
    sa.Column("num_rows", sa.BigInteger, nullable=False),
    sa.Column("num_classes", sa.BigInteger, nullable=False),
    # Lines of the ledger: rows, or users and how they group the rows.
    sa.Column("units", sa.BigInteger, nullable=False),
    sa.Column("grouping", sa.Text, nullable=False),
    sa.Column("epsilon", sa.Double, nullable=False),
    sa.Column("delta", sa.Double, nullable=False),
    sa.Column("created", sa.Text, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    # What makes a line that was taken out show: how many there are, and the seal of the last one.
    sa.Column("charges", sa.BigInteger, nullable=False),
    sa.Column("head", sa.Text, nullable=False),
    sa.Column("seal", sa.Text, nullable=False),
)  # fmt: skip
CHARGES = sa.Table(
    "labeldp_charges", _tables,
    sa.Column("dataset", sa.Integer, sa.ForeignKey("labeldp_datasets.id"), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("times", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.LargeBinary),
    sa.Column("rows_asked", sa.BigInteger, nullable=False),
    sa.Column("receipt", sa.Text),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("time", sa.Text, nullable=False),
    sa.Column("epsilon", sa.Double, nullable=False),
    sa.Column("seal", sa.Text, nullable=False),
)  # fmt: skip

# What drivers say, and what it means here.
_IN_WORDS = {
    "lock timeout": f"is busy: others kept it for {PATIENCE_SECONDS} s; nothing was charged, try again",
    "locked": f"is busy: others kept it for {PATIENCE_SECONDS} s; nothing was charged, try again",
    "not a database": "is not a budget store of this library; give another name",
    "malformed": "is damaged; restore it from a backup before asking again",
    "readonly": "cannot be written to; nothing was charged. Ask its owner for access",
    "unable to open": "cannot be opened; check that its folder exists and may be written to",
    "full": "cannot be written to because the disk is full; nothing was charged",
    "no such": "has lost a table or a column; restore it from a backup before asking again",
    "undefined": "has lost a table or a column; restore it from a backup before asking again",
    "permission denied": "may not be used by this user; nothing was charged. Ask its owner for access",
}


@dataclass(frozen=True)
class Database:
    """An open budget store's engine, its key, and the name it goes by in messages (no password in it)."""

    engine: sa.Engine
    key: Key
    name: str

    @property
    def is_file(self) -> bool:
        """Whether this is SQLite."""
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def writing(self) -> Generator[sa.Connection]:
        """A transaction that is on the disk when the block has ended, or has not happened."""
        with in_words(self.name), self.engine.connect() as connection:
            connection.execution_options(labeldp_writes=True)
            with connection.begin():
                if not self.is_file:
                    _insist(connection)
                yield connection

    @contextmanager
    def reading(self) -> Generator[sa.Connection]:
        """A transaction that sees one state of the store."""
        with in_words(self.name), self.engine.connect() as connection:
            if not self.is_file:
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection


def open_database(where: str | Path, key: bytes | str | Path | None, create: bool) -> Database:
    """The store at this path or PostgreSQL address, made when there is none and `create` says so."""
    url = _address(where)
    if url.get_backend_name() != "sqlite":
        shown = url.set(drivername="postgresql").render_as_string(hide_password=True)
        database = Database(_postgresql(url), _key(key, None), shown)
    else:
        path = Path(str(url.database)).absolute()
        if path.is_dir():
            raise StoreError(f"{str(url.database)!r} is a folder; give the name of a file in it, say budgets.db")
        if not create and not path.is_file():
            raise StoreError(f"there is no budget store {str(url.database)!r}; make one with: labeldp budget create")
        database = Database(_sqlite(url.set(database=str(path))), _key(key, path), str(url.database))
        with _folder_in_words(path):
            # Made by us, so that only its owner may read it; SQLite gives its own files the same mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    _settle(database, create)
    return database


@contextmanager
def in_words(name: str) -> Generator[None]:
    """Failures of the database as one sentence each."""
    try:
        yield
    except exc.DBAPIError as error:
        said = str(error.orig)
        known = [words for sign, words in _IN_WORDS.items() if sign in f"{type(error.orig).__name__} {said}".lower()]
        reason = known[0] if known else f"cannot be used ({said.strip().splitlines()[0]}); nothing was drawn"
        raise StoreError(f"the budget store {name!r} {reason}") from None
    except exc.SQLAlchemyError as error:
        raise StoreError(f"the budget store {name!r} cannot be used ({type(error).__name__})") from None


def _address(where: str | Path) -> sa.URL:
    text = str(where)
    if "://" not in text:
        return sa.URL.create("sqlite+pysqlite", database=str(Path(text).expanduser()))
    try:
        url = sa.make_url(text)
    except (exc.ArgumentError, ValueError):
        raise StoreError(
            "the address of the budget store cannot be read; give postgresql://user@host/database"
        ) from None
    backend = url.get_backend_name()
    if backend == "sqlite" and url.database and url.database != ":memory:":
        return url.set(drivername="sqlite+pysqlite")
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    raise StoreError(f"a budget store is a file or a postgresql:// address, not {backend!r} in memory or elsewhere")


def _key(given: bytes | str | Path | None, path: Path | None) -> Key:
    if isinstance(given, bytes):
        return Key(given)
    given = given or os.environ.get("LABELDP_STORE_KEY")
    if given:
        return read_key(Path(given).expanduser())
    if path is None:
        raise StoreKeyError(
            "a PostgreSQL store needs its key, a file that the team shares and others cannot read; name it in "
            "LABELDP_STORE_KEY, or make one with: labeldp budget key FILE"
        )
    beside = path.with_name(path.name + ".key")
    # A new key beside an old store would be a wrong one.
    if path.exists() and path.stat().st_size:
        return read_key(beside)
    with _folder_in_words(path):
        return make_key(beside)


@contextmanager
def _folder_in_words(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"the budget store {str(path)!r} cannot be opened or made ({error.strerror})") from None


def _sqlite(url: sa.URL) -> sa.Engine:
    # No connection is kept: a forked process must not share one.
    engine = sa.create_engine(url, poolclass=sa.NullPool, connect_args={"timeout": PATIENCE_SECONDS})

    @sa_event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        # Transactions begin where we say, not where the driver guesses.
        connection.isolation_level = None
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA foreign_keys = ON")

    @sa_event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:  # pyright: ignore[reportUnusedFunction]
        writes = connection.get_execution_options().get("labeldp_writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql(url: sa.URL) -> sa.Engine:
    try:
        return sa.create_engine(url, poolclass=sa.NullPool, isolation_level="READ COMMITTED")
    except ImportError:
        raise StoreError("PostgreSQL needs a driver; install it with: pip install 'labeldp[postgresql]'") from None


def _settle(database: Database, create: bool) -> None:
    """Make the tables where there are none; check version, key and what the server promises."""
    with database.reading() as connection:
        facts = _facts(connection)
        if not database.is_file:
            _check_server(database, connection)
    if not facts:
        if not create:
            raise StoreError(f"{database.name!r} holds no budget store; make one with: labeldp budget create")
        facts = _made(database)
    if facts.get("format") != FORMAT:
        raise StoreError(
            f"the budget store {database.name!r} has the format {facts.get('format')!r}, not {FORMAT!r}; use the "
            "version of the library that wrote it"
        )
    if facts.get("key check") != database.key.seal("key check", facts.get("id")):
        raise StoreKeyError(
            f"the key does not belong to the budget store {database.name!r}; give the one with which it was made"
        )


def _facts(connection: sa.Connection) -> dict[str, str]:
    if not sa.inspect(connection).has_table(FACTS.name):
        return {}
    return {str(row.name): str(row.value) for row in connection.execute(sa.select(FACTS))}


def _insist(connection: sa.Connection) -> None:
    """This transaction waits for the disk whatever the server's default, and not for ever for its turn."""
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{PATIENCE_SECONDS}s'")
    if connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "off":
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")


def _made(database: Database) -> dict[str, str]:
    with database.writing() as connection:
        if not database.is_file:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MAKING_TABLES)))
        found = _facts(connection)
        if found:
            return found
        if database.is_file and sa.inspect(connection).get_table_names():
            raise StoreError(f"{database.name!r} is a database of something else; give the store a file of its own")
        _tables.create_all(connection)
        name = secrets.token_hex(16)
        facts = {"format": FORMAT, "id": name, "key check": database.key.seal("key check", name)}
        connection.execute(sa.insert(FACTS), [{"name": name, "value": value} for name, value in facts.items()])
        return facts


def _check_server(database: Database, connection: sa.Connection) -> None:
    if connection.execute(sa.text("SHOW fsync")).scalar_one() != "on":
        raise StoreError(f"the server of {database.name!r} runs with fsync = off: a power cut would undo charges")


# -- what a ledger has more than an earlier one, as charges --------------------------------------------------


@dataclass(frozen=True, eq=False)
class Charge:
    """`times` queries of one event at these rows; None is all of them."""

    event: Event
    times: int
    rows: RowIndex | None = None


def charged(ledger: Ledger, charges: Sequence[Charge]) -> Ledger:
    """The ledger after all of these."""
    return reduce(lambda before, charge: before.charge(charge.event, charge.times, charge.rows), charges, ledger)


def growth(before: Ledger, after: Ledger) -> tuple[Charge, ...]:
    """The charges that lead from one ledger to the other, row by row.

    >>> from labeldp.core.events import PureDP
    >>> empty = Ledger(4)
    >>> [(c.times, c.rows) for c in growth(empty, empty.charge(PureDP(1.0)))]
    [(1, None)]
    >>> [(c.times, c.rows) for c in growth(empty, empty.charge(PureDP(1.0), rows=[2, 3]))]
    [(1, array([2, 3]))]
    """
    if before.num_rows != after.num_rows:
        raise StoreError(f"the ledger has {after.num_rows} lines where {before.num_rows} are expected")
    parts: dict[tuple[Event, int], list[RowIndex]] = {}
    for rows, old, new in _changed(before, after):
        for event, times in _more(old, new):
            parts.setdefault((event, times), []).append(rows)
    return tuple(Charge(*what, _together(rows, after.num_rows)) for what, rows in parts.items())


def largest_growth(before: Ledger, after: Ledger) -> tuple[Charge, ...]:
    """The same as charges against all rows: how much the most that any row has met of every event has grown.

    Summed over the life of a ledger, no row has met more than was charged.
    """
    old, new = _most(before), _most(after)
    return tuple(Charge(event, times - old.get(event, 0)) for event, times in new.items() if times > old.get(event, 0))


def pack(rows: RowIndex | None, num_rows: int) -> bytes | None:
    """Row numbers in little space; they are public."""
    if rows is None:
        return None
    mask = np.zeros(num_rows, dtype=bool)
    mask[rows] = True
    return zlib.compress(np.packbits(mask).tobytes())


def unpack(packed: bytes | None, num_rows: int) -> RowIndex | None:
    """What `pack` packed; ValueError if it cannot be."""
    if packed is None:
        return None
    try:
        bits = np.frombuffer(zlib.decompress(packed), dtype=np.uint8)
    except zlib.error:
        raise ValueError("the rows cannot be read") from None
    return np.flatnonzero(np.unpackbits(bits, count=num_rows))


def _changed(before: Ledger, after: Ledger) -> Iterator[tuple[RowIndex, Queries, Queries]]:
    """The rows of every pair of histories (old, new) that occurs and differs."""
    width = len(after.histories)
    pairs = _numbers(before) * width + _numbers(after)
    for pair in map(int, np.flatnonzero(np.bincount(pairs))):
        was, now = before.histories[pair // width], after.histories[pair % width]
        if was != now:
            yield np.flatnonzero(pairs == pair), was, now


def _numbers(ledger: Ledger) -> npt.NDArray[np.int64]:
    if ledger.history_of_row is None:
        return np.zeros(ledger.num_rows, dtype=np.int64)
    return ledger.history_of_row.astype(np.int64)


def _more(old: Queries, new: Queries) -> list[tuple[Event, int]]:
    before, after = ({query.event: query.times for query in queries} for queries in (old, new))
    if any(after.get(event, 0) < times for event, times in before.items()):
        raise StoreError("the ledger has fewer queries than before: it is another vault's; open one account per vault")
    return [(event, times - before.get(event, 0)) for event, times in after.items() if times > before.get(event, 0)]


def _together(parts: list[RowIndex], num_rows: int) -> RowIndex | None:
    rows = np.sort(np.concatenate(parts))
    return None if len(rows) == num_rows else rows


def _most(ledger: Ledger) -> dict[Event, int]:
    most: dict[Event, int] = {}
    for group in ledger.groups():
        for query in group.queries:
            most[query.event] = max(most.get(query.event, 0), query.times)
    return most


# -- data sets and charges as lines of the tables ------------------------------------------------------------


_LONGEST_NAME = 200
# A row of a table, by the names of its columns.
Line = Mapping[Any, Any]


class Grouping(Protocol):
    """Whose each row is (`labeldp.mechanisms.users.Users`)."""

    def __len__(self) -> int: ...

    def digest(self) -> str:
        """A public name of the grouping."""
        ...


@dataclass(frozen=True)
class DataSet:
    """What a store knows of a data set: all of it may be shown.

    `units` counts the lines of its ledger: rows, or the users of `grouping`.
    """

    name: str
    fingerprint: str
    num_rows: int
    num_classes: int
    units: int
    grouping: str
    budget: Budget
    created: str
    created_by: str
    charges: int = 0

    @property
    def unit(self) -> Unit:
        """Whose labels may change at once."""
        return ONE_USER if self.grouping else ONE_LABEL


@dataclass(frozen=True)
class Entry:
    """One line of a data set's history: who queried what, and what all queries so far cost the worst row."""

    number: int
    time: str
    who: str
    host: str
    note: str
    event: Event
    times: int
    rows: int
    epsilon: float
    query_id: str | None


def describe(
    key: Key, name: str, labels: npt.ArrayLike | LabelVault, num_classes: int, budget: Budget, users: Grouping | None
) -> DataSet:
    """Return what a store knows about these labels: their keyed hash and how many there are."""
    classes = cast("Any", num_classes)
    if isinstance(classes, bool) or not isinstance(classes, (int, np.integer)) or num_classes < 1:
        raise ValueError(f"num_classes={num_classes!r} is not a number of classes; declare it (≥ 1)")
    if not isinstance(cast("Any", budget), Budget):
        raise ValueError(f"budget={budget!r} is not a budget; give labeldp.Budget(epsilon=..., delta=...)")
    fingerprint, rows = key.fingerprint(labels), len(cast("Any", labels))
    if not rows:
        raise ValueError("labels is empty; there is nothing to protect")
    units, grouping = (rows, "") if users is None else (len(users), users.digest())
    return DataSet(name, fingerprint, rows, int(num_classes), units, grouping, budget, now(), user_name())


def dataset_line(key: Key, dataset: DataSet, head: str, charges: int) -> dict[str, Any]:
    """The line of a data set with so many charges, the last of which has the seal `head`."""
    line = {
        "name": dataset.name, "fingerprint": dataset.fingerprint, "num_rows": dataset.num_rows,
        "num_classes": dataset.num_classes, "units": dataset.units, "grouping": dataset.grouping,
        "epsilon": float(dataset.budget.epsilon), "delta": float(dataset.budget.delta), "created": dataset.created,
        "created_by": dataset.created_by, "charges": charges, "head": head,
    }  # fmt: skip
    return {**line, "seal": _seal(key, line)}


def read_dataset(key: Key, line: Line, store: str) -> DataSet:
    """The data set of a line; StoreError if the line is not as it was written."""
    try:
        dataset = DataSet(
            line["name"], line["fingerprint"], line["num_rows"], line["num_classes"], line["units"], line["grouping"],
            Budget(line["epsilon"], line["delta"]), line["created"], line["created_by"], line["charges"],
        )  # fmt: skip
        whole = dataset_line(key, dataset, line["head"], dataset.charges)["seal"] == line["seal"]
    except (ValueError, TypeError):
        whole, dataset = False, None
    if dataset is None or not whole:
        raise StoreError(tampered(str(line["name"]), store))
    return dataset


def charge_line(
    key: Key, charge: Charge, dataset: int, number: int, units: int, before: str, **said: Any
) -> dict[str, Any]:
    """The line of a charge, sealed over the one before it."""
    asked = units if charge.rows is None else len(charge.rows)
    line = {
        "dataset": dataset, "number": number, "event": json.dumps(event_to_json(charge.event)),
        "times": charge.times, "rows": pack(charge.rows, units), "rows_asked": asked, **said,
    }  # fmt: skip
    return {**line, "seal": _seal(key, line, before)}


def read_charge(key: Key, line: Line, number: int, units: int, before: str) -> Charge | None:
    """The charge of a line; None if it is not as it was written or not the one of this number."""
    body = {name: value for name, value in line.items() if name != "seal"}
    if line["number"] != number or _seal(key, body, before) != line["seal"]:
        return None
    return Charge(event_from_json(json.loads(line["event"])), line["times"], unpack(line["rows"], units))


def read_entry(line: Line) -> Entry:
    """A line for people."""
    return Entry(
        line["number"], line["time"], line["who"], line["host"], line["note"],
        event_from_json(json.loads(line["event"])), line["times"], line["rows_asked"], line["epsilon"], line["receipt"],
    )  # fmt: skip


def refuse_change(old: DataSet, new: DataSet) -> None:
    """Raise StoreError where `new` is not the data set that was given its budget as `old`."""
    if old.fingerprint != new.fingerprint:
        raise StoreError(f"the name {old.name!r} belongs to other labels; choose another one")
    if old.name != new.name:
        raise StoreError(f"these labels have a budget already, under the name {old.name!r}: they cannot have two")
    if old.num_classes != new.num_classes:
        raise StoreError(f"{old.name!r} was declared with {old.num_classes} classes, not {new.num_classes}")
    if (old.units, old.grouping) != (new.units, new.grouping):
        same = "grouped otherwise" if old.grouping and new.grouping else f"not {new.unit.protects}"
        raise StoreError(f"the budget of {old.name!r} is about {old.unit.protects}, {same}")
    if old.budget != new.budget:
        raise StoreError(
            f"{old.name!r} was given {_in_words(old.budget)}, which cannot become {_in_words(new.budget)}: a budget "
            "that can be raised later is none"
        )


def checked_name(name: object) -> str:
    """A name that a table can show."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise StoreError(f"name={name!r} does not name a data set; give a short text, say 'visits-2024'")
    return name


def tampered(name: str, store: str) -> str:
    """What is said of lines whose seals are not whole."""
    return (
        f"the budget of {name!r} in {store!r} was changed or damaged behind the library's back; restore the store from "
        "a backup before asking again"
    )


def user_name() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def now() -> str:
    """The time in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _in_words(budget: Budget) -> str:
    return f"a budget of epsilon {budget.epsilon:g}, delta {budget.delta:g}"


def _seal(key: Key, line: Line, before: str = "") -> str:
    return key.seal(before, [[name, _plain(value)] for name, value in sorted(line.items())])


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    return "inf" if isinstance(value, float) and math.isinf(value) else value
