"""Open the database behind a budget store, write and read the lines of its tables, put its failures in words.

SQLite takes writers one at a time (`BEGIN IMMEDIATE`) and flushes every commit to the disk (`synchronous = EXTRA`).
PostgreSQL locks the row of the data set (`SELECT … FOR UPDATE`) and flushes at commit; a server set not to is refused.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import os
import re
import secrets
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from labeldp.budgets.ids import Charge, Hashes, Ids, hashed
from labeldp.budgets.keys import Key, StoreError, StoreKeyError, find_key, given_key, shown_address
from labeldp.core.events import Event, event_from_json, event_to_json
from labeldp.core.ledger import ONE_LABEL, ONE_USER, Budget, RowIndex, Unit
from labeldp.core.vault import LabelVault

try:
    import sqlalchemy as sa
    from sqlalchemy import event as sa_event
    from sqlalchemy import exc
except ImportError:
    raise ImportError("budgets in a database need SQLAlchemy; install it with: pip install 'labeldp[store]'") from None

FORMAT = "labeldp-budgets/2"
# Without plans, ids and begun queries; it gets their columns when it is opened.
_FIRST_FORMAT = "labeldp-budgets/1"
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
    # "ids" where lines of the ledger are known by ids; how many prepaid queries were begun under all query ids.
    sa.Column("bound", sa.Text),
    sa.Column("begun", sa.BigInteger),
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
    # The number of the first charge that was fixed together with this one; none in the first version.
    sa.Column("plan", sa.BigInteger),
)  # fmt: skip
IDS = sa.Table(
    "labeldp_ids", _tables,
    sa.Column("dataset", sa.Integer, sa.ForeignKey("labeldp_datasets.id"), primary_key=True),
    # The line of the ledger that the first of these hashes names.
    sa.Column("first", sa.BigInteger, primary_key=True),
    sa.Column("hashes", sa.LargeBinary, nullable=False),
    sa.Column("seal", sa.Text, nullable=False),
)  # fmt: skip
BEGUN = sa.Table(
    "labeldp_begun", _tables,
    sa.Column("dataset", sa.Integer, sa.ForeignKey("labeldp_datasets.id"), primary_key=True),
    sa.Column("receipt", sa.Text, primary_key=True),
    # How many queries of each batch were begun, as JSON.
    sa.Column("batches", sa.Text, nullable=False),
    sa.Column("seal", sa.Text, nullable=False),
)  # fmt: skip
_SINCE_FIRST_FORMAT = (DATASETS.c.bound, DATASETS.c.begun, CHARGES.c.plan)
_LATER = frozenset(column.name for column in _SINCE_FIRST_FORMAT)

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
    # Random, and its own: what tells it from another store.
    id: str = ""

    @property
    def is_file(self) -> bool:
        """Whether this is SQLite."""
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def writing(self) -> Generator[sa.Connection]:
        """Yield a transaction that is on the disk when the block has ended, or has not happened."""
        with in_words(self.name), self.engine.connect() as connection:
            connection.execution_options(labeldp_writes=True)
            with connection.begin():
                if not self.is_file:
                    # For its turn not for ever, and for the disk whatever the server's default.
                    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{PATIENCE_SECONDS}s'")
                    if connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "off":
                        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
                yield connection

    @contextmanager
    def reading(self) -> Generator[sa.Connection]:
        """Yield a transaction that sees one state of the store."""
        with in_words(self.name), self.engine.connect() as connection:
            if not self.is_file:
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection


def open_database(where: str | Path, key: bytes | str | Path | None, create: bool) -> Database:
    """Open the store at this path or PostgreSQL address, made when there is none and `create` says so."""
    url = _address(where)
    if url.get_backend_name() != "sqlite":
        shown = shown_address(where)
        if (shared := given_key(key)) is None:
            raise StoreKeyError(
                "a PostgreSQL store needs its key, a file that the team shares and others cannot read; name it in "
                "LABELDP_STORE_KEY, or make one with: labeldp budget key FILE"
            )
        try:
            engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="READ COMMITTED")
        except ImportError:
            raise StoreError("PostgreSQL needs a driver; install it with: pip install 'labeldp[postgresql]'") from None
        database = Database(engine, shared, shown)
    else:
        path = Path(str(url.database)).absolute()
        if path.is_dir():
            raise StoreError(f"{str(url.database)!r} is a folder; give the name of a file in it, say budgets.db")
        if not create and not path.is_file():
            raise StoreError(f"there is no budget store {str(url.database)!r}; make one with: labeldp budget create")
        try:
            secret = find_key(key, path, make=not (path.exists() and path.stat().st_size))
            database = Database(_sqlite(url.set(database=str(path))), secret, str(url.database))
            # Made by us, so that only its owner may read it; SQLite gives its own files the same mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise StoreError(f"the budget store {str(path)!r} cannot be opened or made ({error.strerror})") from None
    return replace(database, id=_settle(database, create)["id"])


@contextmanager
def in_words(name: str) -> Generator[None]:
    """Raise failures of the database as one sentence each."""
    try:
        yield
    except exc.DBAPIError as error:
        said = str(error.orig)
        known = [words for sign, words in _IN_WORDS.items() if sign in f"{type(error.orig).__name__} {said}".lower()]
        # What a database quotes may be a user, a host or a password.
        quoted = re.sub(r"\"[^\"]*\"|'[^']*'", "…", said.strip().splitlines()[0])
        reason = known[0] if known else f"cannot be used ({quoted}); nothing was drawn"
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


def _sqlite(url: sa.URL) -> sa.Engine:
    # No connection is kept: a forked process must not share one.
    engine = sa.create_engine(url, poolclass=sa.NullPool, connect_args={"timeout": PATIENCE_SECONDS})

    @sa_event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        # Transactions begin where we say, not where the driver guesses.
        connection.isolation_level = None
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA foreign_keys = ON")
        # A release of megabytes is written in one go: larger pages (of new stores), and room for them until the end.
        connection.execute("PRAGMA page_size = 16384")
        connection.execute("PRAGMA cache_size = -65536")

    @sa_event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:  # pyright: ignore[reportUnusedFunction]
        writes = connection.get_execution_options().get("labeldp_writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _settle(database: Database, create: bool) -> dict[str, str]:
    """Make the tables where there are none; check version, key and what the server promises; return the facts."""
    with database.reading() as connection:
        facts = _facts(connection)
        if not database.is_file and connection.execute(sa.text("SHOW fsync")).scalar_one() != "on":
            raise StoreError(f"the server of {database.name!r} runs with fsync = off: a power cut would undo charges")
    if not facts:
        if not create:
            raise StoreError(f"{database.name!r} holds no budget store; make one with: labeldp budget create")
        facts = _prepared(database)
    if facts.get("format") not in (FORMAT, _FIRST_FORMAT):
        raise StoreError(
            f"the budget store {database.name!r} has the format {facts.get('format')!r}, not {FORMAT!r}; use the "
            "version of the library that wrote it"
        )
    if facts.get("key check") != database.key.seal("key check", facts.get("id")):
        raise StoreKeyError(
            f"the key does not belong to the budget store {database.name!r}; give the one with which it was made"
        )
    return _prepared(database) if facts["format"] == _FIRST_FORMAT else facts


def _facts(connection: sa.Connection) -> dict[str, str]:
    if not sa.inspect(connection).has_table(FACTS.name):
        return {}
    return {str(row.name): str(row.value) for row in connection.execute(sa.select(FACTS))}


def _prepared(database: Database) -> dict[str, str]:
    """Make the tables, or what a store of the first version lacks, whoever comes first; return the facts."""
    with database.writing() as connection:
        if not database.is_file:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MAKING_TABLES)))
        facts = _facts(connection)
        if not facts:
            if database.is_file and sa.inspect(connection).get_table_names():
                raise StoreError(f"{database.name!r} is a database of something else; give the store a file of its own")
            _tables.create_all(connection)
            name = secrets.token_hex(16)
            facts = {"format": FORMAT, "id": name, "key check": database.key.seal("key check", name)}
            connection.execute(sa.insert(FACTS), [{"name": name, "value": value} for name, value in facts.items()])
        elif facts["format"] == _FIRST_FORMAT:
            for column in _SINCE_FIRST_FORMAT:
                kind = column.type.compile(connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {column.name} {kind}")
            _tables.create_all(connection)
            connection.execute(sa.update(FACTS).where(FACTS.c.name == "format").values(value=FORMAT))
        return facts


# -- data sets and charges as lines of the tables ------------------------------------------------------------


_LONGEST_NAME = 200
# A row of a table, by the names of its columns.
Line = Mapping[Any, Any]


@dataclass(frozen=True)
class DataSet:
    """What a store knows of a data set: all of it may be shown.

    `units` counts the lines of its ledger: rows, or the users of `grouping`. Where the data set is `bound` to ids they
    are known by these, whatever table they come in, and new ones can join.
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
    bound: bool = False
    begun: int | None = None

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


def describe(key: Key, name: str, vault: LabelVault, budget: Budget, ids: Ids | None) -> tuple[DataSet, Hashes | None]:
    """Return what a store knows about these labels, their keyed hash and how many there are; and the hashes of ids."""
    if not isinstance(cast("Any", vault), LabelVault):
        raise ValueError(
            f"vault is a {type(vault).__name__}; a store takes no open labels: seal them first, say with "
            "LabelVault(labels, num_classes)"
        )
    if not isinstance(cast("Any", budget), Budget):
        raise ValueError(f"budget={budget!r} is not a budget; give labeldp.Budget(epsilon=..., delta=...)")
    if not len(vault):
        raise ValueError("vault is empty; there is nothing to protect")
    units, grouping = vault.ledger.num_rows, "" if vault.unit == ONE_LABEL else cast("Any", vault).users.digest()
    hashes = None if ids is None else hashed(key, ids, vault)
    if hashes is not None:
        units, grouping = len(set(hashes.tolist())), grouping and "by id"
    dataset = DataSet(
        name, vault.fingerprint(key.secret), len(vault), vault.num_classes, units, grouping, budget, now(), user_name(),
        bound=ids is not None, begun=0,
    )  # fmt: skip
    return dataset, hashes


def dataset_line(key: Key, dataset: DataSet, head: str) -> dict[str, Any]:
    """Return the line of a data set whose last charge has the seal `head`."""
    budget = {"epsilon": float(dataset.budget.epsilon), "delta": float(dataset.budget.delta)}
    line = {**vars(dataset), **budget, "bound": "ids" if dataset.bound else None, "head": head}
    del line["budget"]
    return {**line, "seal": _seal(key, line)}


def read_dataset(key: Key, line: Line, store: str) -> DataSet:
    """Return the data set of a line; StoreError if the line is not as it was written."""
    named = {each.name: line[each.name] for each in fields(DataSet) if each.name not in ("budget", "bound")}
    try:
        dataset = DataSet(**named, budget=Budget(line["epsilon"], line["delta"]), bound=line["bound"] == "ids")
        if dataset_line(key, dataset, line["head"])["seal"] == line["seal"]:
            return dataset
    except (ValueError, TypeError):
        pass
    raise StoreError(tampered(str(line["name"]), store))


def charge_line(
    key: Key, charge: Charge, dataset: int, number: int, units: int, before: str, **said: Any
) -> dict[str, Any]:
    """Return the line of a charge, sealed over the one before it."""
    asked = units if charge.rows is None else len(charge.rows)
    line = {
        "dataset": dataset, "number": number, "event": _event_text(charge.event),
        "times": charge.times, "rows": pack(charge.rows, units), "rows_asked": asked, **said,
    }  # fmt: skip
    return {**line, "seal": _seal(key, line, before)}


@lru_cache(4096)
def _event_text(event: Event) -> str:
    return json.dumps(event_to_json(event))


def read_charge(key: Key, line: Line, number: int, units: int, before: str) -> Charge | None:
    """Return the charge of a line; None if it is not as it was written or not the one of this number."""
    if line["number"] != number or not whole_line(key, line, before):
        return None
    return recorded_charge(line, units)


def recorded_charge(line: Line, units: int) -> Charge:
    """Return the charge of a line whose seal is whole, in a data set that has so many units now."""
    rows = unpack(line["rows"], units)
    if rows is None and line["rows_asked"] < units:
        # All that there were then.
        rows = np.arange(int(line["rows_asked"]), dtype=np.intp)
    return Charge(event_from_json(json.loads(line["event"])), line["times"], rows)


def pack(rows: RowIndex | None, num_rows: int) -> bytes | None:
    """Return row numbers in little space; they are public."""
    if rows is None:
        return None
    mask = np.zeros(num_rows, dtype=bool)
    mask[rows] = True
    return zlib.compress(np.packbits(mask).tobytes())


def unpack(packed: bytes | None, num_rows: int) -> RowIndex | None:
    """Return what `pack` packed, when there may have been fewer rows; ValueError if it cannot be."""
    if packed is None:
        return None
    try:
        bits = np.frombuffer(zlib.decompress(packed), dtype=np.uint8)
    except zlib.error:
        raise ValueError("the rows cannot be read") from None
    return np.flatnonzero(np.unpackbits(bits, count=num_rows))


def sealed_line(key: Key, *, digests: Mapping[str, str] | None = None, **line: Any) -> dict[str, Any]:
    """Return a line with its seal; `digests` has the SHA-256 of bytes in it, where that is known already."""
    return {**line, "seal": _seal(key, {**line, **(digests or {})})}


def whole_line(key: Key, line: Line, before: str = "") -> bool:
    """Return whether a line is as it was written."""
    return _seal(key, {name: value for name, value in line.items() if name != "seal"}, before) == line["seal"]


def read_entry(line: Line) -> Entry:
    """Return a line for people."""
    return Entry(
        line["number"], line["time"], line["who"], line["host"], line["note"],
        event_from_json(json.loads(line["event"])), line["times"], line["rows_asked"], line["epsilon"], line["receipt"],
    )  # fmt: skip


def refuse_change(old: DataSet, new: DataSet) -> None:
    """Raise StoreError where `new` is not the data set that was given its budget as `old`."""
    if old.fingerprint != new.fingerprint and not (old.bound and new.bound):
        raise StoreError(f"the name {old.name!r} belongs to other labels; choose another one")
    if old.name != new.name:
        raise StoreError(f"these labels have a budget already, under the name {old.name!r}: they cannot have two")
    if old.bound != new.bound:
        has, wants = ("has", "give them") if old.bound else ("has no", "leave them out")
        raise StoreError(f"the budget of {old.name!r} {has} ids by which it knows its rows; {wants} (ids, --id)")
    if old.num_classes != new.num_classes:
        raise StoreError(f"{old.name!r} was declared with {old.num_classes} classes, not {new.num_classes}")
    if old.grouping != new.grouping or (old.units != new.units and not old.bound):
        same = "grouped otherwise" if old.grouping and new.grouping else f"not {new.unit.protects}"
        raise StoreError(f"the budget of {old.name!r} is about {old.unit.protects}, {same}")
    if old.budget != new.budget:
        raise StoreError(
            f"{old.name!r} was given {_in_words(old.budget)}, which cannot become {_in_words(new.budget)}: a budget "
            "that can be raised later is none"
        )


def checked_name(name: object) -> str:
    """Return a name that a table can show, or raise StoreError."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise StoreError(f"name={name!r} does not name a data set; give a short text, say 'visits-2024'")
    return name


def tampered(name: str, store: str) -> str:
    """Return what is said of lines whose seals are not whole."""
    return (
        f"the budget of {name!r} in {store!r} was changed or damaged behind the library's back; restore the store from "
        "a backup before asking again"
    )


def user_name() -> str:
    """Return who runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def now() -> str:
    """Return the time in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _in_words(budget: Budget) -> str:
    return f"a budget of epsilon {budget.epsilon:g}, delta {budget.delta:g}"


def _seal(key: Key, line: Line, before: str = "") -> str:
    # Columns that came after the first version are not in its seals, and were empty.
    sealed = [[name, _plain(line[name])] for name in sorted(line) if line[name] is not None or name not in _LATER]
    return key.seal(before, sealed)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    return "inf" if isinstance(value, float) and math.isinf(value) else value
