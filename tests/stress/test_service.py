"""Campaigns against a service: hostile messages, clients that race, processes that are killed. Counts are printed.

LABELDP_KILLS=500 LABELDP_SEED=0 python -m pytest tests/stress/test_service.py -m stress -s
"""

import json
import os
import random
from collections import Counter

import pytest

pytest.importorskip("sqlalchemy", reason="a service keeps its books in a database")

from labeldp.budgets.store import BudgetStore
from labeldp.core.ledger import Budget
from labeldp.mechanisms.user_responses import UserResponse
from labeldp.service import log, logbook
from labeldp.service.logbook import problems_of_store
from tests.budgets.conftest import database, place, server  # noqa: F401
from tests.service import test_jobs as jobs
from tests.service import test_near as near
from tests.service import test_users as users
from tests.service.asking import bound
from tests.service.hostile import CLASSES, KINDS, ROWS, Fuzzer
from tests.service.servicehelp import NAME, labels, service
from tests.service.test_crowds import overspent, survived

pytestmark = pytest.mark.stress
SEED = int(os.environ.get("LABELDP_SEED", "0"))


@pytest.mark.parametrize("of_users", [False, True], ids=["labels", "users"])
def test_ten_thousand_hostile_messages(of_users):
    vault, more = labels(ROWS, CLASSES)[0], []
    if of_users:
        vault = users.sealed()
        more = [UserResponse(1e-3, CLASSES, vault.users, cap=cap) for cap in (None, 9)] * 2
    with service(vault) as found:
        connection = found.connection()
        fuzzer = Fuzzer(connection, bound(connection, ROWS), SEED, more)
        outcomes = Counter(fuzzer.send()[0] for _ in range(int(os.environ.get("LABELDP_MESSAGES", "10000"))))
        print(dict(outcomes))
        assert set(outcomes) <= {*KINDS, "ok"}
        lines = logbook.read(found.database)
        assert log.verify(lines) + problems_of_store(found.database, lines) == ()
        charges = Counter(entry.query_id for entry in BudgetStore.open(found.place, create=False).history(NAME))
        assert len(charges) <= outcomes["ok"]
        assert len(charges) == len(lines)


def test_two_thousand_broken_conversations_beside_grpc():
    with service(labels(near.ROWS)[0]) as found:
        found.named = bound(found.connection(), near.ROWS)
        answered = near.hostile(found, 2000, SEED)
        charges = near.charges(found)
        print({"conversations": 2000, "answered": answered, "charges": charges})
        assert 0 < answered <= charges
        assert near.asked(found)[0] == b"A"


def test_jobs_with_something_wrong(tmp_path):
    with jobs.running(tmp_path) as found:
        outcomes = Counter(
            kind for kind, _ in jobs.hostile_jobs(found, int(os.environ.get("LABELDP_JOBS", "200")), SEED)
        )
        print(dict(outcomes))
        assert set(outcomes) <= {*KINDS, "ok"}
        lines = logbook.read(found.database)
        assert log.verify(lines) + problems_of_store(found.database, lines) == ()


def test_processes_of_jobs_that_are_killed(tmp_path):
    """Each is killed when a draw has begun, which is then lost, and goes on: all end, and none draws twice."""
    choose, steps = random.Random(SEED), Counter()
    with jobs.running(tmp_path, grant=Budget(1e4, jobs.DELTA), total=Budget(1e4, jobs.DELTA)) as found:
        for _ in range(int(os.environ.get("LABELDP_JOB_KILLS", "40"))):
            step = choose.randrange(6)
            begun = jobs.killed_at(found, found.remote(), step)
            assert begun == list(range(1, 7))
            steps[step] += 1
        print({"killed": sum(steps.values()), "at step": dict(sorted(steps.items()))})
        lines = logbook.read(found.database)
        assert Counter(json.loads(line.entry)["kind"] for line in lines) == {
            "job": steps.total(), "release": steps.total(),
        }  # fmt: skip
        assert log.verify(lines) + problems_of_store(found.database, lines) == ()


def test_a_hundred_clients_race_for_one_budget(place, tmp_path):  # noqa: F811
    overspent(place, tmp_path, clients=10, threads=10, tries=2)


def test_processes_that_are_killed(place, tmp_path):  # noqa: F811
    """On SQLite and PostgreSQL, so many times on each."""
    print(survived(place, tmp_path, int(os.environ.get("LABELDP_KILLS", "500")), SEED))
