"""A service that is stopped, watched, and fed more rows than its memory would hold."""

import os
import shlex
import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sqlalchemy", reason="a service keeps its books in a database")

from labeldp.budgets.store import BudgetStore
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.counts import GaussianNoise, GroupCounts, LaplaceNoise
from labeldp.mechanisms.moments import Moments, RowChunks
from labeldp.service.client import Connection, RemoteVault
from labeldp.service.wire import BusyError
from tests.commands import labeldp
from tests.processes import CONTEXT
from tests.service.servicehelp import NAME, labels, service
from tests.service.test_access import certificates
from tests.service.test_service_page import Owner, place  # noqa: F401


def test_a_service_that_is_stopped_finishes_what_has_begun_and_begins_nothing(monkeypatch):
    begun, may_go_on, real = threading.Event(), threading.Event(), GroupCounts.sample

    def slow(mechanism, values, rng):
        begun.set()
        assert may_go_on.wait(60)
        return real(mechanism, values, rng)

    monkeypatch.setattr(GroupCounts, "sample", slow)
    with service(labels()[0]) as found, ThreadPoolExecutor(2) as threads:
        remote, late = found.remote(), found.connection()
        late._tries = 1
        asked = threads.submit(remote.release, GroupCounts(np.arange(60) % 4, 4, 3, LaplaceNoise(0.5)))
        assert begun.wait(60)
        stopped = threads.submit(found.server.stop, 60)
        while not found.server._closing:
            time.sleep(0.001)
        with pytest.raises(BusyError, match="is being stopped"):
            late.act("describe", dataset=NAME)
        assert not stopped.done()
        may_go_on.set()
        assert asked.result(60).counts.shape == (4, 3)
        stopped.result(60)
        assert len(BudgetStore.open(found.place, create=False).history(NAME)) == 1


@pytest.mark.slow
def test_an_owner_with_a_file_of_options_and_a_collector(place):  # noqa: F811
    """`--config` is the command line; `/metrics` and `/health` are pages, and there is no other."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        watched = f"127.0.0.1:{free.getsockname()[1]}"
    (place / "serve.toml").write_text(
        '[serve]\ntable = "patients.parquet"\nid = "patient_id"\nlabel = "diagnosis"\nclasses = "no,yes"\nepsilon = 3\n'
        f'store = "budgets.db"\nlisten = "grpc+unix://{place}/s"\nmetrics = "{watched}"\n'
    )
    owner = Owner("labeldp serve --config serve.toml", place, place / "s")
    try:
        assert labeldp("health", f"grpc+unix://{place}/s", cwd=place).returncode == 0
        pages = {}
        for name in ("metrics", "health", "labels"):
            try:
                with urllib.request.urlopen(f"http://{watched}/{name}", timeout=30) as answer:
                    pages[name] = answer.read().decode()
            except urllib.error.HTTPError as error:
                pages[name] = error.code
    finally:
        owner.stop()
    assert 'labeldp_calls_total{call="action health",verb="",outcome="ok"} 1' in pages["metrics"]
    assert pages["health"] == '{"healthy": true}\n'
    assert pages["labels"] == 404


@pytest.mark.slow
def test_a_service_on_the_network_wants_a_certificate_where_its_owner_says_so(place):  # noqa: F811
    cert, secret = certificates()
    files = {"cert.pem": cert, "key.pem": secret, "ann.pem": b"".join(certificates())}
    for name, content in files.items():
        (place / name).write_bytes(content)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"grpc+tls://localhost:{free.getsockname()[1]}"
    serve = "labeldp serve patients.parquet --id patient_id --label diagnosis --classes no,yes --epsilon 3 "
    secured = (
        f"{serve} --store budgets.db --listen {address} --tls-cert cert.pem --tls-key key.pem --tls-clients ann.pem"
    )
    owner = Owner(secured, place, place / "budgets.db.witness")
    asked = ("health", address, "--root-certs", "cert.pem")
    try:
        end = time.monotonic() + 60
        while labeldp(*asked, "--client-cert", "ann.pem", cwd=place).returncode and time.monotonic() < end:
            time.sleep(0.1)
        assert '"healthy": true' in labeldp(*asked, "--client-cert", "ann.pem", cwd=place, check=0).stdout
        for others in ((), ("--client-cert", "cert.pem")):
            assert "cannot be reached" in labeldp(*asked, *others, cwd=place, check=2).stderr
    finally:
        owner.stop()
    plain = f"{serve} --store budgets.db --listen grpc+unix://{place}/s --tls-clients ann.pem"
    refused = labeldp(*shlex.split(plain)[1:], cwd=place, check=2)
    assert "where nobody shows a certificate" in refused.stderr


FEW, MANY, WIDTH = 20_000, 400_000, 128


def be_served(rows, told, until):
    with service(LabelVault(np.arange(rows) % 3, 3)) as found:
        told.send((found.address, found.token, os.getpid()))
        until.recv()


def most_memory(pid):
    """The most that a process has held so far, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("near", [True, False], ids=["through memory", "through gRPC"])
def test_memory_is_flat_in_the_rows_that_are_streamed(near, monkeypatch):
    """A service that has read 10 MB of features holds as much as one that has read 200 MB."""
    if not near:
        monkeypatch.setattr("labeldp.service.near.beside", lambda address: None)
    heard, told = CONTEXT.Pipe(duplex=False)
    until, end = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=be_served, args=(MANY, told, until), daemon=True)
    process.start()
    address, token, pid = heard.recv()
    chunk = np.full((4096, WIDTH), 0.01, dtype=np.float32)
    ids = [f"patient-{number}" for number in range(MANY)]
    held = {}
    try:
        for rows in (FEW, FEW, MANY):
            remote = RemoteVault(address, token=token, dataset=NAME, ids=ids[:rows])
            parts = lambda rows=rows: (chunk[: min(4096, rows - start)] for start in range(0, rows, 4096))  # noqa: E731
            held["bound", rows] = most_memory(pid)
            remote.release(Moments(RowChunks(rows, WIDTH, parts), 3, GaussianNoise(5.0), 2.0))
            held["read", rows] = most_memory(pid)
    finally:
        end.send("end")
        process.join(60)
    # What naming 400,000 rows takes is not of the features: 200 MB.
    assert held["read", FEW] - held["bound", FEW] < 40
    assert held["read", MANY] - held["bound", MANY] < 40
    assert isinstance(Connection(address, token)._near, type(None)) is not near
