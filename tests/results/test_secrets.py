"""Secrets stay out of everything that is written or said: passwords, users of a store, keys and where they are kept."""

import dataclasses
import logging

import pytest

from labeldp.budgets.keys import shown_address
from labeldp.results.folder import drafting, run_toml
from labeldp.results.signing import SigningKey
from tests.commands import labeldp
from tests.results.resulthelp import result

PASSWORD, USER, KEYS, PHRASE = "hunter2/planted", "ann-planted", "planted-keys", "planted-phrase"
PLANTED = ("hunter2", USER, KEYS, PHRASE, "db.planted.org")
ADDRESSES = (
    f"postgresql://{USER}:hunter2@db.planted.org:5432/budgets?sslpassword=hunter2",
    f"postgresql+psycopg://{USER}:{PASSWORD}@db.planted.org/budgets",
    f"postgresql://{USER}:hunter2@[db.planted.org/budgets",
    f"postgresql://{USER}:hunter2#@db.planted.org/budgets",
    f"mysql://{USER}:hunter2@db.planted.org/budgets",
)


def secrets_in(*texts, folder=None):
    found = [word for word in PLANTED for text in texts if word in text]
    for path in sorted(folder.rglob("*")) if folder is not None else ():
        content = path.read_bytes() if path.is_file() else b""
        found += [f"{word} in {path.name}" for word in PLANTED if word.encode() in content or word in path.name]
    return found


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_is_shown_without_user_password_and_host(address):
    assert secrets_in(shown_address(address)) == []
    assert shown_address(ADDRESSES[0]) == "postgresql:///budgets"


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_secret_of_a_run_is_in_the_folder(tmp_path, address):
    """The old code wrote every option as it was given: password, user and key file."""
    made = result()
    options = {
        "store": address,
        "key": f"/home/{USER}/{KEYS}",
        "sign": f"{KEYS}/ann.key",
        "table": f"s3://{USER}:x@b/t",
    }
    run = {"train": {**made.run["train"], **options}}
    with drafting(tmp_path / "model") as draft:
        draft.write(dataclasses.replace(made, run=run), SigningKey.new())
    assert secrets_in(folder=tmp_path / "model") == []
    # A run that is repeated from the file must charge the store or fail: it is not left out.
    assert 'store = "' in (tmp_path / "model" / "config.toml").read_text()


def test_paths_do_not_tell_the_login_name(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / USER))
    written = run_toml({"train": {"table": str(tmp_path / USER / "t.csv"), "drop": ["id"], "store": "~/budgets.db"}})
    assert written == '[train]\ntable = "~/t.csv"\ndrop = [\n    "id",\n]\nstore = "~/budgets.db"\n'


@pytest.fixture
def table(tmp_path, monkeypatch):
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("HOME", str(tmp_path / USER))
    (tmp_path / USER / KEYS).mkdir(parents=True)
    (tmp_path / "work").mkdir()
    rows = (f"{18 + i % 50},{'no' if i % 3 else 'yes'}\n" for i in range(200))
    (tmp_path / "work" / "t.csv").write_text("age,y\n" + "".join(rows))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def test_no_command_writes_or_says_a_secret(table, monkeypatch, caplog):
    """Every command that writes, with a store, a store's key and a signing key in a place whose name is secret."""
    caplog.set_level(logging.DEBUG)
    work = table / "work"
    monkeypatch.setenv("LABELDP_PASSPHRASE", PHRASE)
    said = []

    def run(*arguments):
        found = labeldp(*arguments)
        assert found.returncode == 0, (arguments, found.stderr)
        said.extend((found.stdout, found.stderr))

    columns = ("--label", "y", "--classes", "no,yes")
    store = ("--store", table / USER / "budgets.db")
    key = table / USER / KEYS / "ann.key"
    labeldp("keys", "new", key, "--passphrase", check=0)
    labeldp("budget", "create", "t.csv", "--name", "t", *columns, "--epsilon", 9, "--delta", 1e-4, *store, check=0)
    run("train", "t.csv", *columns, "--epsilon", 1, "--method", "rr", "--out", "model", *store, "--sign", key)
    run("privatize", "t.csv", *columns, "--epsilon", 1, "--out", "private.csv", *store, "--sign", key)
    run("predict", "model", "t.csv", "--out", "now.csv", "--sign", key)
    run("report", "model", "--out", "page.html", "--sign", key)
    run("verify", "model", "--signer", f"{key}.pub", "--json")
    run("verify", "private.csv", "--signer", f"{key}.pub")
    assert secrets_in(*said, caplog.text, folder=work) == []
    assert 'store = "~/budgets.db"' in (work / "model" / "config.toml").read_text()


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_error_quotes_the_address_of_a_store(table, address):
    columns = ("--label", "y", "--classes", "no,yes")
    key = table / "team.key"
    labeldp("budget", "key", key, check=0)
    for arguments in (
        ("budget", "show", "--store", address, "--key", key),
        ("budget", "create", "t.csv", "--name", "t", *columns, "--epsilon", 1, "--store", address, "--key", key),
        ("train", "t.csv", *columns, "--epsilon", 1, "--out", "model", "--store", address, "--key", key),
        ("privatize", "t.csv", *columns, "--epsilon", 1, "--out", "out.csv", "--store", address, "--key", key),
    ):
        found = labeldp(*arguments)
        assert found.returncode == 2
        assert secrets_in(found.stdout, found.stderr) == [], found.stderr
    assert secrets_in(folder=table / "work") == []


def test_an_estimator_is_printed_without_the_password():
    pytest.importorskip("sklearn")
    from labeldp.estimator import LabelDPClassifier, LabelDPRegressor

    for made in (LabelDPClassifier(1.0, store=ADDRESSES[0]), LabelDPRegressor(1.0, (0, 1), store=ADDRESSES[0])):
        shown = made._repr_mimebundle_()
        assert secrets_in(repr(made), str(made), *shown.values(), made._repr_html_()) == []
        assert "postgresql:///budgets" in repr(made)
        assert made.get_params()["store"] == ADDRESSES[0]
