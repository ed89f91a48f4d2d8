"""A service for tests: in this process, on a socket of its own, with a store in a file unless another is given."""

import contextlib
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from labeldp.budgets.store import BudgetStore
from labeldp.core.ledger import Budget
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.results.signing import SigningKey
from labeldp.service.access import Access
from labeldp.service.client import Connection, RemoteVault
from labeldp.service.engine import Engine
from labeldp.service.logbook import Witness
from labeldp.service.served import Served
from labeldp.service.server import Server
from labeldp.service.source import texts
from labeldp.service.tables import open_service

NAME = "visits"
PLENTY = Budget(100.0, 1e-3)


def names(count):
    return [f"patient-{number}" for number in range(count)]


@contextlib.contextmanager
def service(vault, *, total=PLENTY, grant=PLENTY, where=None, key=None, source=None, make_jobs=None, **more):
    """Serve the labels of a vault; the address, a token of ann's and all parts of it."""
    # Short, because a socket's path may not be long.
    with tempfile.TemporaryDirectory(prefix="ldp-") as folder:
        place = Path(folder, "budgets.db") if where is None else where
        BudgetStore.open(place, key=key).create(NAME, vault, total)
        database = open_service(place, key)
        access = Access(database)
        access.add("ann", "analyst")
        access.grant(NAME, "ann", grant)
        token = access.issue("ann", days=1)
        served = Served(
            NAME, vault, texts(names(len(vault))), "diagnosis", tuple(f"c{c}" for c in range(vault.num_classes)),
            source=source,
        )  # fmt: skip
        signer = SigningKey.new()
        engine = Engine(database, [served], signer, Witness(Path(folder, "witness")))
        address = f"grpc+unix://{folder}/s"
        jobs = None if make_jobs is None else make_jobs(engine)
        server = Server(engine, access, address, jobs=jobs, **more)
        found = SimpleNamespace(
            address=address, token=token, access=access, engine=engine, database=database, signer=signer, server=server,
            vault=vault, folder=Path(folder), place=place,
        )  # fmt: skip
        found.remote = lambda ids=None, token=token, dataset=NAME: RemoteVault(
            address, token=token, dataset=dataset, ids=names(len(vault)) if ids is None else ids
        )
        found.connection = lambda token=token: Connection(address, token)
        try:
            yield found
        finally:
            server.stop(seconds=5)


def labels(rows=60, classes=3, seed=7):
    """A seeded vault, and the labels in it."""
    values = np.random.default_rng(5).integers(0, classes, rows)
    return LabelVault(values, classes, rng=SecureRandom(seed=seed)), values
