"""A store that is not as it was left says so and answers nothing: wrong key, other version, damage, tampering."""

import os
import shutil
import sqlite3

import pytest

from labeldp.budgets import tables
from labeldp.budgets.keys import StoreError, StoreKeyError, make_key, read_key
from labeldp.budgets.store import BudgetStore
from labeldp.core.ledger import Budget
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.responses import RandomizedResponse
from tests.budgets.storehelp import postgres

KEY = b"a key of the tests, thirty-two b"
LABELS = [0, 1, 1, 0]


def ask(store, epsilon=1.0):
    vault = LabelVault(LABELS, 2, store=store.account(LabelVault(LABELS, 2)))
    return vault.release(RandomizedResponse(epsilon, 2))


def filled(place, key=None):
    store = BudgetStore.open(place, key=key)
    store.create("visits", LabelVault(LABELS, 2), Budget(5.0))
    for _ in range(3):
        ask(store)
    return store


def sql(place, *statements):
    if isinstance(place, str):
        import psycopg

        with psycopg.connect(place) as connection:
            for statement in statements:
                connection.execute(statement)
        return
    connection = sqlite3.connect(place)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


# --- the key -----------------------------------------------------------------------------------------------------


def test_another_key_is_refused(place):
    filled(place, KEY)
    with pytest.raises(StoreKeyError, match="does not belong"):
        BudgetStore.open(place, key=KEY[::-1])


def test_a_lost_key_is_not_replaced(tmp_path):
    filled(tmp_path / "b")
    (tmp_path / "b.key").unlink()
    with pytest.raises(StoreKeyError, match="missing"):
        BudgetStore.open(tmp_path / "b")
    assert not (tmp_path / "b.key").exists()


def test_a_key_that_others_can_read_is_refused(tmp_path):
    filled(tmp_path / "b")
    (tmp_path / "b.key").chmod(0o640)
    with pytest.raises(StoreKeyError, match="chmod 600"):
        BudgetStore.open(tmp_path / "b")


def test_a_key_can_live_elsewhere(tmp_path):
    (tmp_path / "safe").mkdir()
    make_key(tmp_path / "safe" / "owner.key")
    filled(tmp_path / "b", tmp_path / "safe" / "owner.key")
    assert not (tmp_path / "b.key").exists()
    assert BudgetStore.open(tmp_path / "b", key=str(tmp_path / "safe" / "owner.key")).epsilon("visits") == 3.0


def test_the_environment_may_name_the_key(place, tmp_path, monkeypatch):
    monkeypatch.setenv("LABELDP_STORE_KEY", str(tmp_path / "team.key"))
    with pytest.raises(StoreKeyError, match=r"'team\.key' is missing"):
        BudgetStore.open(place)
    make_key(tmp_path / "team.key")
    filled(place)
    assert BudgetStore.open(place, key=tmp_path / "team.key").epsilon("visits") == 3.0


@pytest.mark.parametrize("key", [b"short", b"", 7.5])
def test_what_is_no_key(tmp_path, key):
    with pytest.raises((StoreKeyError, TypeError)):
        BudgetStore.open(tmp_path / "b", key=key)


@pytest.mark.parametrize("content", ["", "not hexadecimal", "abcd", "\x00\x01"])
def test_a_file_that_holds_no_key(tmp_path, content):
    (tmp_path / "k").write_text(content)
    (tmp_path / "k").chmod(0o600)
    with pytest.raises(StoreKeyError):
        read_key(tmp_path / "k")


def test_postgresql_needs_a_key(database):
    with pytest.raises(StoreKeyError, match="needs its key"):
        BudgetStore.open(database)


# --- version, wrong files, no files -------------------------------------------------------------------------------


def test_another_version_is_refused_and_untouched(place):
    filled(place, KEY)
    sql(place, "UPDATE labeldp_facts SET value = 'labeldp-budgets/3' WHERE name = 'format'")
    with pytest.raises(StoreError, match="'labeldp-budgets/3', not 'labeldp-budgets/2'"):
        BudgetStore.open(place, key=KEY)


@pytest.mark.parametrize("content", [b"hello, I am a text file\n" * 50, os.urandom(4096)])
def test_a_file_of_something_else_is_refused_and_untouched(tmp_path, content):
    (tmp_path / "notes").write_bytes(content)
    with pytest.raises(StoreError, match="is not a budget store"):
        BudgetStore.open(tmp_path / "notes", key=KEY)
    assert (tmp_path / "notes").read_bytes() == content


def test_a_database_of_something_else_is_refused_and_untouched(tmp_path):
    sql(tmp_path / "other.db", "CREATE TABLE people (name TEXT)")
    before = (tmp_path / "other.db").read_bytes()
    with pytest.raises(StoreError, match="something else"):
        BudgetStore.open(tmp_path / "other.db", key=KEY)
    assert (tmp_path / "other.db").read_bytes() == before


def test_a_team_may_keep_other_tables_in_its_database(database):
    sql(database, "CREATE TABLE people (name TEXT)")
    assert filled(database, KEY).epsilon("visits") == 3.0


def test_no_store_is_made_where_none_is_wanted(place, tmp_path):
    with pytest.raises(StoreError, match="labeldp budget create"):
        BudgetStore.open(place, key=KEY, create=False)
    assert list(tmp_path.iterdir()) == []


def test_folders_that_cannot_be_used(tmp_path):
    for key in (KEY, None):
        with pytest.raises(StoreError, match="cannot be opened or made"):
            BudgetStore.open(tmp_path / "missing" / "b", key=key)
        with pytest.raises(StoreError, match="is a folder"):
            BudgetStore.open(tmp_path, key=key)


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("mysql://u@h/d", "not 'mysql'"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("postgresql://u@h:port/d", "cannot be read"),
        ("://", "cannot be read"),
    ],
)
def test_addresses_that_are_none(address, what):
    with pytest.raises(StoreError, match=what):
        BudgetStore.open(address, key=KEY)


def test_an_sqlite_address_is_a_file(tmp_path):
    filled(tmp_path / "b", KEY)
    assert BudgetStore.open(f"sqlite:///{tmp_path}/b", key=KEY).epsilon("visits") == 3.0


def test_a_server_that_is_not_there_is_named_without_its_password():
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError, match="cannot be used") as caught:
        BudgetStore.open("postgresql://mallory:sesame@127.0.0.1:1/d", key=KEY)
    assert "sesame" not in str(caught.value)
    assert "mallory" not in str(caught.value)
    assert "postgresql:///d" in str(caught.value)


def test_a_server_that_does_not_wait_for_its_disk_is_refused():
    with postgres(fsync="off") as address, pytest.raises(StoreError, match="fsync = off"):
        BudgetStore.open(address, key=KEY)


def test_a_server_that_answers_before_its_disk_is_told_to_wait():
    with postgres(synchronous_commit="off") as address:
        store = filled(address, KEY)
        with store._database.writing() as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"


def test_a_store_without_its_driver(tmp_path, monkeypatch):
    def fails(*_args, **_more):
        raise ModuleNotFoundError("No module named 'psycopg'")

    monkeypatch.setattr(tables.sa, "create_engine", fails)
    with pytest.raises(StoreError, match=r"pip install 'labeldp\[postgresql\]'"):
        BudgetStore.open("postgresql://u@h/d", key=KEY)


# --- damage and tampering ----------------------------------------------------------------------------------------


TAMPERED = [
    "UPDATE labeldp_datasets SET epsilon = 50",
    "UPDATE labeldp_datasets SET delta = 0.5",
    "UPDATE labeldp_datasets SET charges = 0, head = ''",
    "UPDATE labeldp_datasets SET num_classes = 3",
    "UPDATE labeldp_datasets SET created_by = 'mallory'",
    "DELETE FROM labeldp_charges WHERE number = 3",
    "DELETE FROM labeldp_charges WHERE number = 1",
    "DELETE FROM labeldp_charges",
    "UPDATE labeldp_charges SET times = 0 WHERE number = 2",
    "UPDATE labeldp_charges SET who = 'mallory' WHERE number = 2",
    "UPDATE labeldp_charges SET epsilon = 0.5 WHERE number = 2",
    'UPDATE labeldp_charges SET event = \'{"kind": "PureDP", "epsilon": 0.0}\' WHERE number = 1',
    "UPDATE labeldp_charges SET number = 4 WHERE number = 2",
    "UPDATE labeldp_charges SET seal = 'x' WHERE number = 3",
]


@pytest.mark.parametrize("statement", TAMPERED)
def test_changes_without_the_key_are_found_out(tmp_path, statement):
    store = filled(tmp_path / "b", KEY)
    sql(tmp_path / "b", statement)
    for kept in (store, BudgetStore.open(tmp_path / "b", key=KEY)):
        with pytest.raises(StoreError, match=r"'visits'.*changed or damaged"):
            kept.history("visits")
    with pytest.raises(StoreError, match="changed or damaged"):
        ask(BudgetStore.open(tmp_path / "b", key=KEY))


def test_rows_of_a_charge_cannot_be_narrowed(tmp_path):
    store = BudgetStore.open(tmp_path / "b", key=KEY)
    store.create("visits", LabelVault(LABELS, 2), Budget(5.0))
    LabelVault(LABELS, 2, store=store.account(LabelVault(LABELS, 2))).release(RandomizedResponse(1.0, 2), rows=[0, 1])
    sql(tmp_path / "b", "UPDATE labeldp_charges SET rows = NULL")
    with pytest.raises(StoreError, match="changed or damaged"):
        store.history("visits")


def test_on_postgresql_they_are_found_out_too(database):
    store = filled(database, KEY)
    sql(database, "UPDATE labeldp_datasets SET epsilon = 50")
    with pytest.raises(StoreError, match="changed or damaged"):
        ask(store)


def test_an_older_copy_is_noticed_by_whoever_saw_the_newer_one(tmp_path):
    """A process that starts afterwards cannot know; the page on budgets says so."""
    store = filled(tmp_path / "b", KEY)
    shutil.copy(tmp_path / "b", tmp_path / "old")
    ask(store)
    store.epsilon("visits")
    shutil.copy(tmp_path / "old", tmp_path / "b")
    with pytest.raises(StoreError, match="changed or damaged"):
        ask(store)


def test_a_damaged_file_is_answered_with_a_sentence(tmp_path):
    """All that is written overwritten in turn, and cut short everywhere: a sentence or the whole truth, never less."""
    filled(tmp_path / "b", KEY)
    whole = (tmp_path / "b").read_bytes()
    damaged = [whole[:cut] for cut in range(0, len(whole), 2048)]
    # Most of a page is empty, and what is there says nothing.
    written = [at for at in range(0, len(whole), 512) if any(whole[at : at + 512])]
    damaged += [whole[:at] + b"\xff" * 512 + whole[at + 512 :] for at in written]
    responses = [response_of(tmp_path / f"damaged-{number}", content) for number, content in enumerate(damaged)]
    refusals = [response for response in responses if isinstance(response, str)]
    assert all(response == [1.0, 2.0, 3.0] for response in responses if response not in refusals)
    assert all("\n" not in refusal for refusal in refusals)
    assert len(responses) / 4 < len(refusals) < len(responses)


def response_of(place, content):
    """What a store of this content says it has spent, or its refusal."""
    place.write_bytes(content)
    try:
        return [entry.epsilon for entry in BudgetStore.open(place, key=KEY, create=False).history("visits")]
    except StoreError as error:
        return str(error)


def test_lost_tables_are_missed(place):
    filled(place, KEY)
    sql(place, "DROP TABLE labeldp_charges")
    with pytest.raises(StoreError, match="lost a table"):
        BudgetStore.open(place, key=KEY).history("visits")


def test_a_store_that_is_busy_says_so_and_charges_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "PATIENCE_SECONDS", 0.1)
    store = filled(tmp_path / "b", KEY)
    other = sqlite3.connect(tmp_path / "b", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="busy"):
        ask(store)
    other.execute("ROLLBACK")
    other.close()
    assert store.epsilon("visits") == 3.0


def test_on_postgresql_too(database, monkeypatch):
    import psycopg

    monkeypatch.setattr(tables, "PATIENCE_SECONDS", 1)
    store = filled(database, KEY)
    with psycopg.connect(database) as other:
        other.execute("SELECT * FROM labeldp_datasets FOR UPDATE")
        with pytest.raises(StoreError, match="busy"):
            ask(store)
    assert store.epsilon("visits") == 3.0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_cannot_be_written_to(tmp_path):
    filled(tmp_path / "b", KEY)
    (tmp_path / "b").chmod(0o400)
    with pytest.raises(StoreError, match="cannot be"):
        ask(BudgetStore.open(tmp_path / "b", key=KEY))


def test_a_read_only_store_is_answered_with_a_sentence(place):
    store = filled(place, KEY)
    if isinstance(place, str):
        sql(place, f"ALTER DATABASE {place.split('/')[3].split('?')[0]} SET default_transaction_read_only = on")
    else:
        store._database.engine.dispose()
        sa_event = tables.sa_event

        @sa_event.listens_for(store._database.engine, "connect")
        def _no_writes(connection, _record):
            connection.execute("PRAGMA query_only = ON")

    with pytest.raises(StoreError, match=r"written to|cannot be used"):
        ask(store)
    assert store.epsilon("visits") == 3.0
