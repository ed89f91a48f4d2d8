"""Servers and clients as processes, to race each other and to be killed: for the quick tests and for the campaign."""

import hashlib
import json
import os
import random
import time
from pathlib import Path

import numpy as np

from labeldp.budgets.tables import sa
from tests.processes import CONTEXT
from tests.service.servicehelp import NAME, names

ROWS = 50


def values():
    return np.random.default_rng(2).integers(0, 3, ROWS)


def prepared(where, key, total, grant, people=("ann",)):
    """Make the store, its budget and grants; a token for each of the people."""
    from labeldp.budgets.store import BudgetStore
    from labeldp.core.vault import LabelVault
    from labeldp.service.access import Access
    from labeldp.service.tables import open_service

    BudgetStore.open(where, key=key).create(NAME, LabelVault(values(), 3), total)
    access = Access(open_service(where, key))
    for name in people:
        access.add(name, "analyst")
        access.grant(NAME, name, grant)
    return [access.issue(name, 1) for name in people]


def serve(where, key, address, signer, ready):
    """Be a server until the end."""
    from labeldp.core.vault import LabelVault
    from labeldp.results.signing import SigningKey
    from labeldp.service.access import Access, RateLimit
    from labeldp.service.engine import Engine
    from labeldp.service.served import Served
    from labeldp.service.server import Server
    from labeldp.service.source import texts
    from labeldp.service.tables import open_service

    database = open_service(where, key)
    Path(address.removeprefix("grpc+unix://")).unlink(missing_ok=True)
    engine = Engine(database, [Served(NAME, LabelVault(values(), 3), texts(names(ROWS)))], SigningKey.read(signer))
    server = Server(engine, Access(database), address, limit=RateLimit(1e9, 1 << 30))
    ready.send("ready")
    server.wait()


def started(where, key, address, signer):
    """A server in a process of its own, which is listening."""
    heard, ready = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=serve, args=(where, key, address, signer, ready), daemon=True)
    process.start()
    ready.close()
    assert heard.recv() == "ready"
    return process


def race(address, token, epsilon, tries, threads, told):
    """Ask as often as allowed, by so many threads with a connection each; send how many were answered."""
    from concurrent.futures import ThreadPoolExecutor

    from labeldp.core.ledger import BudgetExceededError
    from labeldp.mechanisms.responses import RandomizedResponse
    from labeldp.service.client import RemoteVault

    def one(_):
        vault, answered = RemoteVault(address, token=token, dataset=NAME, ids=names(ROWS)), 0
        for _ in range(tries):
            try:
                vault.release(RandomizedResponse(epsilon, 3))
                answered += 1
            except BudgetExceededError:
                pass
        return answered

    with ThreadPoolExecutor(threads) as crowd:
        told.send(sum(crowd.map(one, range(threads))))


def ask_and_note(address, token, notes, rounds, go):
    """Ask under ids that every attempt repeats; note what came back for each, as soon as it did."""
    from labeldp.mechanisms.responses import RandomizedResponse
    from labeldp.service.client import Connection
    from tests.service.asking import ask, bound, header

    connection = Connection(address, token)
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    named = bound(connection, ROWS)
    # What is loaded with the first query takes its time: kills come afterwards.
    ask(connection, header(named, RandomizedResponse(0.01, 3), request="the first", again=True)[0])
    go.send("go")
    for number in rounds:
        told, _ = header(named, RandomizedResponse(0.01, 3), request=f"request-{number}", again=number % 2 == 0)
        _, content = ask(connection, told)
        os.write(file, b"\n" + json.dumps([number, hashlib.sha256(content).hexdigest()]).encode())
    os._exit(0)


def noted(notes):
    """What clients have noted: the number of a request and the hash of what came back."""
    lines = notes.read_text().splitlines() if notes.exists() else []
    # Half a line is being written, or was when its writer was killed.
    return [json.loads(line) for line in lines if line.endswith("]")]


def campaign(where, key, folder, signer, token, kills, seed):
    """Kill servers and clients at random moments; return the ids that were asked and what was noted of each.

    A moment is so many answers and a fraction of a second after the client begins: on a busy machine, too, it is in
    the middle of its work.
    """
    choose, address, notes = random.Random(seed), f"grpc+unix://{folder}/s", Path(folder, "notes")
    asked, killed = 0, {"server": 0, "client": 0}
    for _ in range(kills):
        server = started(where, key, address, signer)
        heard, go = CONTEXT.Pipe(duplex=False)
        # The last ones again, and some that are new.
        span = range(max(0, asked - 6), asked + 10_000)
        client = CONTEXT.Process(target=ask_and_note, args=(address, token, str(notes), span, go), daemon=True)
        client.start()
        go.close()
        heard.recv()
        victim, answers, end = choose.choice(["server", "client"]), choose.randrange(12), time.monotonic() + 60
        before = len(noted(notes))
        while len(noted(notes)) < before + answers:
            assert time.monotonic() < end, "no answer in a minute"
            time.sleep(0.001)
        time.sleep(choose.uniform(0.0, 0.1))
        {"server": server, "client": client}[victim].kill()
        killed[victim] += 1
        if victim == "client":
            # The server may be in the middle of its request: let it be, or kill it, too.
            time.sleep(choose.uniform(0.0, 0.05))
        for process in (client, server):
            process.kill()
            process.join()
        asked = max([asked, *(number + 1 for number, _ in noted(notes))])
    found = {}
    for number, digest in noted(notes):
        found.setdefault(number, set()).add(digest)
    return found, killed


def alone(database):
    """Wait until PostgreSQL has noticed that the killed are gone: it commits what it was told to, and may be late."""
    others = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )
    end = time.monotonic() + 60
    while not database.is_file and time.monotonic() < end:
        with database.reading() as connection:
            if not connection.execute(others).scalar_one():
                return
        time.sleep(0.01)
    assert database.is_file, "sessions of killed processes are still there after a minute"


def left(where, key):
    """What is in the store: requests with the hashes of their releases, and how many charges there are."""
    from labeldp.budgets.store import BudgetStore
    from labeldp.service import log, logbook
    from labeldp.service.logbook import problems_of_store
    from labeldp.service.tables import REQUESTS, open_service

    database = open_service(where, key)
    alone(database)
    with database.reading() as connection:
        lines = connection.execute(sa.select(REQUESTS.c.id, REQUESTS.c.release)).all()
    kept = {line.id: hashlib.sha256(line.release).hexdigest() for line in lines}
    entries = logbook.read(database)
    problems = log.verify(entries) + problems_of_store(database, entries)
    return kept, len(BudgetStore.open(where, key=key, create=False).history(NAME)), problems
