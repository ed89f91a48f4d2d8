"""How fast a service answers beside a vault in this process: a moment, responses, and many small requests.

    python benchmarks/service.py [--rows 1000000] [--features 256] [--responses 10000000] [--repeats 3]
                                 [--clients 4] [--threads 16] [--seconds 10] [--store FILE] [--json]

The service runs in a process of its own, on a Unix socket, with its store in a file: every release is charged, kept,
logged and flushed to the disk before it is answered. Small requests are noisy counts of 100 rows, by so many processes
with so many threads each, every thread one request at a time; the books of five data sets are spread over them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.moments import chunks, take_rows
from benchmarks.timing import rates, show_rates
from labeldp.core.ledger import Budget
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.counts import GaussianNoise, GroupCounts, LaplaceNoise
from labeldp.mechanisms.moments import Moments, RowChunks
from labeldp.mechanisms.responses import RandomizedResponse

CLASSES, SMALL, DATASETS = 10, 100, 5
PLENTY = Budget(1e4, 1e-6)


def labels(rows: int) -> np.ndarray:
    """The same labels in every process."""
    return np.random.default_rng(rows).integers(0, CLASSES, rows)


def serve(folder: Path, sizes: dict[str, int], store: str) -> None:
    """Be the service until standard input ends."""
    from labeldp.budgets.store import BudgetStore
    from labeldp.results.signing import SigningKey
    from labeldp.service.access import Access, RateLimit
    from labeldp.service.engine import Engine
    from labeldp.service.served import Served
    from labeldp.service.server import Server
    from labeldp.service.source import texts
    from labeldp.service.tables import open_service

    vaults = {name: LabelVault(np.roll(labels(rows), number), CLASSES) for number, (name, rows) in
              enumerate(sizes.items())}  # fmt: skip
    opened = BudgetStore.open(store)
    for name, vault in vaults.items():
        opened.create(name, vault, PLENTY)
    database = open_service(store)
    access = Access(database)
    access.add("ann", "analyst")
    for name in sizes:
        access.grant(name, "ann", PLENTY)
    served = [Served(name, vault, texts(np.arange(len(vault)))) for name, vault in vaults.items()]
    engine = Engine(database, served, SigningKey.new())
    server = Server(engine, access, f"grpc+unix://{folder}/s", limit=RateLimit(1e9, 1 << 30))
    print(json.dumps({"token": access.issue("ann", 1), "pid": os.getpid()}), flush=True)
    sys.stdin.read()
    server.stop()


def ask_small(address: str, token: str, seconds: float, threads: int, number: int) -> None:
    """Be one client process: print how many small requests were answered."""
    from labeldp.service.client import RemoteVault

    vault = RemoteVault(address, token=token, dataset=f"small-{number % DATASETS}", ids=np.arange(SMALL))
    ask, answered, end = GroupCounts(np.zeros(SMALL, dtype=int), 1, CLASSES, LaplaceNoise(1e-4)), [0] * threads, [0.0]

    def one(place: int) -> None:
        # Beside the books of the client: what is measured is the service.
        from labeldp.service.client import _Ask

        while time.perf_counter() < end[0]:
            sent = _Ask(vault._account, ask, np.arange(SMALL), os.urandom(16).hex())
            sent.send(None, None)
            answered[place] += 1

    print("ready", flush=True)
    sys.stdin.readline()
    end[0] = time.perf_counter() + seconds
    crowd = [threading.Thread(target=one, args=(place,)) for place in range(threads)]
    for each in crowd:
        each.start()
    for each in crowd:
        each.join()
    print(sum(answered), flush=True)


def peak(pid: int) -> float:
    """The most memory that a process has had, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> None:
    """Measure, or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("rows", 1_000_000), ("features", 256), ("responses", 10_000_000), ("repeats", 3),
                        ("clients", 4), ("threads", 16)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--store")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--be", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.be and given.be[0] == "server":
        return serve(Path(given.be[1]), json.loads(given.be[2]), given.be[3])
    if given.be:
        return ask_small(given.be[1], given.be[2], float(given.be[3]), int(given.be[4]), int(given.be[5]))
    sizes = {"few": max(1, given.rows // 10), "rows": given.rows, "responses": given.responses}
    sizes |= {f"small-{number}": SMALL for number in range(DATASETS)}
    with tempfile.TemporaryDirectory(prefix="ldp-") as folder:
        store = given.store or f"{folder}/budgets.db"
        command = [sys.executable, __file__, "--be", "server", folder, json.dumps(sizes), store]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            told = json.loads(server.stdout.readline())
            try:
                measure(given, f"grpc+unix://{folder}/s", told["token"], told["pid"])
            finally:
                server.stdin.close()
    return None


def measure(given: argparse.Namespace, address: str, token: str, pid: int) -> None:
    """Measure small requests, a moment and responses."""
    from labeldp.service.client import RemoteVault

    def remote(dataset: str, rows: int) -> RemoteVault:
        return RemoteVault(address, token=token, dataset=dataset, ids=np.arange(rows))

    chunk, noise = take_rows(given.features), GaussianNoise.for_budget(1.0, 1e-5)

    def moment(rows: int) -> Moments:
        return Moments(RowChunks(rows, given.features, lambda: chunks(chunk, rows)), CLASSES, noise, 1.0)

    if given.clients:
        small(given, address, token)
    if given.rows > 1:
        before = peak(pid)
        remote("few", given.rows // 10).release(moment(given.rows // 10))
        few = peak(pid)
        here, there = LabelVault(labels(given.rows), CLASSES), remote("rows", given.rows)
        ask = moment(given.rows)
        contest = {"service": lambda: there.release(ask), "here": lambda: here.release(ask)}
        print(f"a moment of {given.rows:,} × {given.features}")
        show_rates(rates(contest, given.rows, given.repeats), "rows/s", given.json, features=given.features)
        print(f"peak memory of the service: {before:.0f} MB at first, {few:.0f} MB after {given.rows // 10:,} rows, "
              f"{peak(pid):.0f} MB after {given.rows:,}")  # fmt: skip
    if given.responses > 1:
        here, there = LabelVault(labels(given.responses), CLASSES), remote("responses", given.responses)
        ask = RandomizedResponse(1.0, CLASSES)
        contest = {"service": lambda: there.release(ask), "here": lambda: here.release(ask)}
        print(f"{given.responses:,} responses")
        show_rates(rates(contest, given.responses, given.repeats), "rows/s", given.json)


def small(given: argparse.Namespace, address: str, token: str) -> None:
    """Measure small requests per second."""
    command = [sys.executable, __file__, "--be", "client", address, token, str(given.seconds), str(given.threads)]
    crowd = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(given.clients)
    ]
    for client in crowd:
        assert client.stdout.readline() == "ready\n"
    for client in crowd:
        client.stdin.write("go\n")
        client.stdin.flush()
    answered = [int(client.stdout.readline()) for client in crowd]
    for client in crowd:
        client.wait()
    total = sum(answered) / given.seconds
    print(f"small requests, {given.clients} processes × {given.threads} threads: {total:,.0f} per second, on the disk")


if __name__ == "__main__":
    main()
