"""Where the tests of budget stores keep them: a file, or a PostgreSQL server that is started here."""

import contextlib
import os
import pwd
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.processes import CONTEXT

LABELS = [0, 1, 1, 0, 1, 0, 0, 1]


def postgres_programs():
    """The folder of initdb and postgres, wherever they are; None if they are not."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


def somebody():
    """A user to run the server as: it refuses to run as root. {} for whoever runs the tests."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")
    return None


@contextlib.contextmanager
def postgres(**settings):
    """The address of a fresh PostgreSQL server that listens on a socket only and is gone afterwards."""
    programs = postgres_programs()
    if programs is None:
        pytest.skip("there is no initdb on this machine; Debian has it in the package postgresql")
    who = somebody()
    # Short, because a socket's path may not be long.
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        if who:
            os.chown(folder, who["user"], who["group"])
        data = Path(folder) / "data"
        make = [programs / "initdb", "-D", data, "-A", "trust", "-U", "owner", "-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(make, check=True, capture_output=True, cwd=folder, **who)
        options = {"listen_addresses": "", "unix_socket_directories": folder, "max_connections": 150, **settings}
        command = [programs / "postgres", "-D", data, *(f"--{name}={value}" for name, value in options.items())]
        with (Path(folder) / "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, **who)
        try:
            address = f"postgresql://owner@/postgres?host={folder}"
            wait_until_it_answers(address, server, Path(folder) / "log")
            yield address
        finally:
            # At once: nothing of it is needed any more, so it need not write everything out.
            server.send_signal(signal.SIGQUIT)
            server.wait(timeout=60)


def wait_until_it_answers(address, server, log):
    psycopg = pytest.importorskip("psycopg", reason="the tests on PostgreSQL need psycopg")
    for _ in range(600):
        assert server.poll() is None, log.read_text()
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(address).close()
            return
        time.sleep(0.1)
    raise AssertionError(log.read_text())


# --- the crowd ---------------------------------------------------------------------------------------------------


def member(where, key, mechanism, tries, go, notes, delta):
    """One process: opens the store, waits until all are there, and asks a vault `tries` times."""
    from labeldp.budgets.store import BudgetStore
    from labeldp.core.ledger import Budget, BudgetExceededError
    from labeldp.core.vault import LabelVault

    store = BudgetStore.open(where, key=bytes.fromhex(key), create=False)
    account = store.account(LabelVault(LABELS, 2), note="crowd")
    vault = LabelVault(LABELS, 2, Budget(float("inf"), delta), store=account)
    os.read(go, 1)
    for _ in range(tries):
        with contextlib.suppress(BudgetExceededError):
            vault.release(mechanism)
            os.write(notes, b"drawn\n")


def lead(where, key, delta, epsilon, processes, tries, kills, result):
    """Let all at once try to spend; kill some at random moments. Send how many releases were really drawn."""
    from labeldp.budgets.store import BudgetStore
    from labeldp.core.vault import LabelVault
    from labeldp.mechanisms.counts import GaussianNoise, GroupCounts
    from labeldp.mechanisms.responses import RandomizedResponse

    # What imports and drivers take is paid here, once, and not by every child. No connection stays open.
    BudgetStore.open(where, key=bytes.fromhex(key), create=False).account(LabelVault(LABELS, 2))
    mechanism = RandomizedResponse(epsilon, 2)
    if delta:
        mechanism = GroupCounts([0] * len(LABELS), 1, 2, GaussianNoise.for_budget(epsilon, delta))
    go, start = os.pipe()
    drawn, notes = os.pipe()
    children = []
    for _ in range(processes):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                member(where, key, mechanism, tries, go, notes, delta)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    os.close(notes)
    os.write(start, b"." * processes)
    choose = random.Random(0)
    for child in choose.sample(children, kills):
        time.sleep(choose.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
    with os.fdopen(drawn) as lines:
        count = len(lines.read().splitlines())
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    result.send({"drawn": count, "codes": codes})


def crowd(where, key, *, epsilon, delta=0.0, processes=100, tries=2, kills=0):
    """What `lead` sends, from a process of its own: tests may have threads, and those do not survive a fork."""
    found, result = CONTEXT.Pipe(duplex=False)
    given = (str(where), key.hex(), delta, epsilon, processes, tries, kills, result)
    leader = CONTEXT.Process(target=lead, args=given)
    leader.start()
    # The leader has its own end: when it is gone, nothing can be sent any more.
    result.close()
    try:
        return found.recv()
    finally:
        leader.join()
        assert leader.exitcode == 0
