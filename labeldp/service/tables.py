"""Declare the tables that a service keeps in its budget store: people, tokens, grants, releases, and the log.

Every line carries a seal under the store's key, as charges do. Tokens are kept as keyed hashes, labels not at all.
"""

from __future__ import annotations

from pathlib import Path

from labeldp.budgets.tables import Database, open_database, sa

_tables = sa.MetaData()
# Any fixed number: servers that share a PostgreSQL store append to the log one after the other.
APPENDING = 7_236_051_403

PEOPLE = sa.Table(
    "labeldp_people", _tables,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("created", sa.Text, nullable=False),
    sa.Column("seal", sa.Text, nullable=False),
)  # fmt: skip
TOKENS = sa.Table(
    "labeldp_tokens", _tables,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("person", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("created", sa.Text, nullable=False),
    sa.Column("expires", sa.Text, nullable=False),
    # When it was revoked; empty while it was not.
    sa.Column("revoked", sa.Text, nullable=False),
    sa.Column("seal", sa.Text, nullable=False),
)  # fmt: skip
GRANTS = sa.Table(
    "labeldp_grants", _tables,
    sa.Column("dataset", sa.Text, primary_key=True),
    sa.Column("person", sa.Text, primary_key=True),
    sa.Column("epsilon", sa.Double, nullable=False),
    sa.Column("delta", sa.Double, nullable=False),
    sa.Column("created", sa.Text, nullable=False),
    sa.Column("seal", sa.Text, nullable=False),
)  # fmt: skip
REQUESTS = sa.Table(
    "labeldp_requests", _tables,
    sa.Column("person", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("dataset", sa.Text, nullable=False),
    # Of the whole question: the same id with another question is refused.
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("plan", sa.Text, nullable=False),
    # The number of the charge that paid for it, and of its line in the log, with that line's hash.
    sa.Column("charge", sa.BigInteger, nullable=False),
    sa.Column("entry", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("release", sa.LargeBinary, nullable=False),
    sa.Column("seal", sa.Text, nullable=False),
)  # fmt: skip
sa.Index("labeldp_requests_of_plan", REQUESTS.c.plan)
JOBS = sa.Table(
    "labeldp_jobs", _tables,
    sa.Column("person", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("dataset", sa.Text, nullable=False),
    sa.Column("recipe", sa.Text, nullable=False),
    # Of the whole question, and of what was charged for it.
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("plan", sa.Text, nullable=False),
    sa.Column("charge", sa.BigInteger, nullable=False),
    sa.Column("entry", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    # Which server has it (by its folder of jobs), and where in that folder what it needs lies.
    sa.Column("home", sa.Text, nullable=False),
    sa.Column("folder", sa.Text, nullable=False),
    # running; or done, stopped or failed, with the reason in words and what was said of the release.
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("facts", sa.Text, nullable=False),
    sa.Column("seal", sa.Text, nullable=False),
)  # fmt: skip
LOG = sa.Table(
    "labeldp_log", _tables,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("entry", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    # Of the last line of each commit, which covers those before it; empty elsewhere.
    sa.Column("signer", sa.Text, nullable=False),
    sa.Column("signature", sa.Text, nullable=False),
)  # fmt: skip


def open_service(where: str | Path, key: bytes | str | Path | None = None, create: bool = False) -> Database:
    """Open a budget store with the tables of a service, which are made when they are missing."""
    database = open_database(where, key, create)
    with database.writing() as connection:
        if not database.is_file:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(APPENDING)))
        _tables.create_all(connection)
    return database
