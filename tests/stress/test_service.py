"""Campaigns against a service: hostile messages, clients that race, processes that are killed. Counts are printed.

LABELDP_KILLS=500 python -m pytest tests/stress/test_service.py -m stress -s
"""

import os
from collections import Counter

import pytest

pytest.importorskip("sqlalchemy", reason="a service keeps its books in a database")

from labeldp.budgets.store import BudgetStore
from labeldp.service import log, logbook
from labeldp.service.audit import problems_of_store
from tests.budgets.conftest import database, place, server  # noqa: F401
from tests.service.asking import bound
from tests.service.hostile import CLASSES, KINDS, ROWS, Fuzzer
from tests.service.servicehelp import NAME, labels, service
from tests.service.test_crowds import overspent, survived

pytestmark = pytest.mark.stress
SEED = int(os.environ.get("LABELDP_SEED", "0"))


def test_ten_thousand_hostile_messages():
    with service(labels(ROWS, CLASSES)[0]) as found:
        connection = found.connection()
        fuzzer = Fuzzer(connection, bound(connection, ROWS), seed=SEED)
        outcomes = Counter(fuzzer.send()[0] for _ in range(10_000))
        print(dict(outcomes))
        assert set(outcomes) <= {*KINDS, "ok"}
        lines = logbook.read(found.database)
        assert log.verify(lines) + problems_of_store(found.database, lines) == ()
        assert len(BudgetStore.open(found.place, create=False).history(NAME)) <= outcomes["ok"]


def test_a_hundred_clients_race_for_one_budget(place, tmp_path):  # noqa: F811
    overspent(place, tmp_path, clients=10, threads=10, tries=2)


def test_processes_that_are_killed(tmp_path):
    print(survived(tmp_path / "budgets.db", tmp_path, int(os.environ.get("LABELDP_KILLS", "500")), SEED))
