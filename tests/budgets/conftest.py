import secrets

import pytest

from tests.budgets.storehelp import postgres


@pytest.fixture(scope="session")
def server():
    """The address of a PostgreSQL server for the whole session."""
    with postgres() as address:
        yield address


@pytest.fixture
def database(server):
    """The address of an empty place in a PostgreSQL database: a schema, which is made ten times as fast."""
    import psycopg

    name = f"t{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{server}&options=-csearch_path%3D{name}"


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def place(request, tmp_path):
    """Where a store may be: a file that is not there yet, an empty database."""
    return tmp_path / "budgets.db" if request.param == "SQLite" else request.getfixturevalue("database")
