"""The database behind a budget store: its tables, how it is opened, and its failures in words.

SQLite takes writers one at a time (`BEGIN IMMEDIATE`) and flushes every commit to the disk (`synchronous = EXTRA`).
PostgreSQL locks the row of the data set (`SELECT … FOR UPDATE`) and flushes at commit; a server told not to is refused.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labeldp.accounting.store_key import Key, StoreError, StoreKeyError, make_key, read_key

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
