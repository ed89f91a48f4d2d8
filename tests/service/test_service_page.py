"""The page for owners and analysts, end to end: its commands are run as they stand, server and client as processes."""

import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("sqlalchemy", reason="a service keeps its books in a database")

from tests.commands import labeldp
from tests.docs.pages import ROOT, blocks, command_lines, text


def tables(folder, rows=1200):
    """The owner's table of labels, and the analyst's of features, in another order and without some rows."""
    choose = np.random.default_rng(0)
    x = choose.normal(size=(rows, 3))
    ids = np.array([f"P{number:05d}" for number in range(rows)])
    diagnosis = np.where(x[:, 0] + 0.3 * choose.normal(size=rows) > 0, "yes", "no")
    pq.write_table(pa.table({"patient_id": ids, "diagnosis": diagnosis}), folder / "patients.parquet")
    order = choose.permutation(rows)[: rows - 100]
    features = {f"x{column}": x[order, column] for column in range(3)}
    pq.write_table(pa.table({"patient_id": ids[order], **features}), folder / "features.parquet")


class Owner:
    """A running `labeldp serve`, in a folder of its own."""

    def __init__(self, line, folder, socket):
        command = [sys.executable, "-m", "labeldp", *shlex.split(line)[1:]]
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(600):
            if socket.exists() or self.process.poll() is not None:
                break
            time.sleep(0.1)
        assert self.process.poll() is None, self.process.stderr.read()

    def stop(self):
        self.process.terminate()
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, err
        return out, err


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory(prefix="ldp-") as folder:
        tables(Path(folder))
        yield Path(folder)


def lines_of_page(place):
    here = [line.replace("/run/labeldp/socket", f"{place}/s") for block in blocks(text("service"), "console")
            for line in command_lines(block)]  # fmt: skip
    return here


@pytest.mark.slow
def test_the_commands_of_the_page_work_as_they_stand(place, monkeypatch):
    pytest.importorskip("sklearn", reason="labeldp train needs scikit-learn")
    serve, *access, train, verify = lines_of_page(place)
    owner = Owner(serve, place, place / "s")
    for line in access:
        out = labeldp(*shlex.split(line)[1:], cwd=place, check=0).stdout
    token = out.strip()
    monkeypatch.setenv("LABELDP_TOKEN", token)
    assert "trained on" in labeldp(*shlex.split(train)[1:], cwd=place, check=0).stdout
    assert "the certificate holds" in labeldp(*shlex.split(verify)[1:], cwd=place, check=0).stdout
    secret = token.split(".")[2].encode()
    assert not [path for path in (place / "model").rglob("*") if path.is_file() and secret in path.read_bytes()]
    # All of it is spent now.
    again = labeldp(*shlex.split(train.replace("--out model", "--out other"))[1:], cwd=place, check=2)
    assert "nothing was charged" in again.stderr
    assert "the log holds: 6 entries" in labeldp("log", "verify", "--store", "budgets.db", cwd=place, check=0).stdout
    out, err = owner.stop()
    assert "stopped; all that was charged is kept" in out
    assert '"verb": "moments", "outcome": "ok"' in err
    assert secret.decode() not in err


@pytest.mark.slow
def test_an_owner_from_start_to_stop(place):
    """Budget, people, log, export, backup, rollback: what has no model in it."""
    serve, *access, _, _ = lines_of_page(place)
    owner = Owner(serve, place, place / "s")
    store = ("--store", "budgets.db")
    try:
        for line in access:
            out = labeldp(*shlex.split(line)[1:], cwd=place, check=0).stdout
        assert '"healthy": true' in labeldp("health", f"grpc+unix://{place}/s", cwd=place, check=0).stdout
        listed = labeldp("access", "list", *store, cwd=place, check=0).stdout
        assert "ann may spend epsilon 1, delta 1e-05 on 'patients'" in listed
        assert out.split(".")[2].strip() not in listed
        labeldp("access", "backup", "copy.db", *store, cwd=place, check=0)
        labeldp("access", "revoke", out.split(".")[1], *store, cwd=place, check=0)
        labeldp("log", "export", "log.jsonl", *store, cwd=place, check=0)
        signer = ("--signer", "budgets.db.log.key.pub")
        assert "holds: 5 entries" in labeldp("log", "verify", "log.jsonl", *signer, cwd=place, check=0).stdout
        content = (place / "log.jsonl").read_text()
        (place / "log.jsonl").write_text(content.replace("ann", "eve", 1))
        assert "PROBLEM: entry 2 was changed" in labeldp("log", "verify", "log.jsonl", cwd=place, check=1).stderr
        labeldp("access", "add", "art", "--role", "auditor", *store, cwd=place, check=0)
        art = labeldp("access", "token", "art", *store, cwd=place, check=0).stdout.strip()
        fetched = ("log", "export", "theirs.jsonl", "--vault", f"grpc+unix://{place}/s", "--token", art)
        assert "7 entries" in labeldp(*fetched, cwd=place, check=0).stdout
        assert "holds: 7 entries" in labeldp("log", "verify", "theirs.jsonl", *signer, cwd=place, check=0).stdout
        assert '"kind":"revoked"' in labeldp("log", "show", *store, cwd=place, check=0).stdout
    finally:
        owner.stop()
    assert labeldp("health", f"grpc+unix://{place}/s", cwd=place).returncode == 2
    (place / "copy.db").replace(place / "budgets.db")
    refused = labeldp(*shlex.split(serve)[1:], cwd=place, check=2)
    assert "An older copy of the store was put in its place" in refused.stderr


@pytest.mark.slow
def test_numbers_are_trained_on_and_a_killed_run_goes_on(place, monkeypatch):
    """The same folder after a kill: one charge, and the config of the result says nothing that is not so."""
    pytest.importorskip("sklearn", reason="labeldp train needs scikit-learn")
    rents = np.linspace(0, 100, 300)
    pq.write_table(pa.table({"id": np.arange(300), "rent": rents}), place / "flats.parquet")
    pq.write_table(pa.table({"id": np.arange(300)[::-1], "size": rents[::-1] / 2}), place / "rooms.parquet")
    address = f"grpc+unix://{place}/s"
    serve = "labeldp serve flats.parquet --id id --label rent --range 0 100 --epsilon 3 --store budgets.db --listen "
    serve += address
    owner = Owner(serve, place, place / "s")
    store = ("--store", "budgets.db")
    labeldp("access", "add", "ann", "--role", "analyst", *store, cwd=place, check=0)
    labeldp("access", "grant", "ann", "flats", "--epsilon", "1", *store, cwd=place, check=0)
    monkeypatch.setenv("LABELDP_TOKEN", labeldp("access", "token", "ann", *store, cwd=place, check=0).stdout.strip())
    train = ("train", "rooms.parquet", "--vault", address, "--dataset", "flats", "--id", "id", "--epsilon", "1",
             "--holdout", "0", "--out", "model", "--method", "binned_regression")  # fmt: skip
    from labeldp.recipes import kept

    real = kept.save

    def killed(file, release, note):
        # Released and charged, and gone before it is kept here.
        real(file, release, note)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kept, "save", killed)
        assert labeldp(*train, cwd=place).returncode == 2
    labeldp(*train, cwd=place, check=0)
    assert "the certificate holds" in labeldp("verify", "model", cwd=place, check=0).stdout
    history = labeldp("budget", "history", "flats", *store, cwd=place, check=0).stdout
    assert len(history.splitlines()) == 2
    owner.stop()


def test_the_files_for_operations_name_commands_that_exist():
    page = text("service")
    assert [name for name in re.findall(r"`(deploy/[\w.]+)`", page) if not (ROOT / name).exists()] == []
    options = labeldp("serve", "--help", check=0).stdout
    for name in ("deploy/labeldp.service", "deploy/Containerfile"):
        used = set(re.findall(r" (--[a-z-]+) ", (ROOT / name).read_text().partition("FROM")[0]))
        assert [option for option in used if option not in options] == []


@pytest.mark.slow
def test_labels_of_users_are_trained_on(place, monkeypatch):
    """The owner says whose each row is, and the analyst's certificate is about users."""
    pytest.importorskip("sklearn", reason="labeldp train needs scikit-learn")
    rows, address = np.arange(600), f"grpc+unix://{place}/s"
    sick = rows % 7 < 3
    labels = {"visit": rows, "ill": np.where(sick, "yes", "no"), "person": rows // 3}
    features = {"visit": rows[::-1], "person": rows[::-1] // 3, "fever": sick[::-1] + rows / 1e4}
    pq.write_table(pa.table(labels), place / "visits.parquet")
    pq.write_table(pa.table(features), place / "wards.parquet")
    serve = "labeldp serve visits.parquet --id visit --label ill --user person --classes no,yes --epsilon 30 "
    store = ("--store", "budgets.db")
    train = ("train", "wards.parquet", "--vault", address, "--dataset", "visits", "--id", "visit", "--drop", "person",
             "--epsilon", "9", "--out", "model")  # fmt: skip
    owner = Owner(f"{serve} --store budgets.db --listen {address}", place, place / "s")
    labeldp("access", "add", "ann", "--role", "analyst", *store, cwd=place, check=0)
    labeldp("access", "grant", "ann", "visits", "--epsilon", "9", *store, cwd=place, check=0)
    monkeypatch.setenv("LABELDP_TOKEN", labeldp("access", "token", "ann", *store, cwd=place, check=0).stdout.strip())
    assert "trained on" in labeldp(*train, cwd=place, check=0).stdout
    owner.stop()
    shown = labeldp("verify", "model", cwd=place, check=0).stdout
    assert "the certificate holds" in shown
    assert "all labels of one user" in shown
    history = labeldp("budget", "history", "visits", *store, cwd=place, check=0).stdout
    assert "served user_responses" in history
