"""A hundred processes at one budget: nothing overspent, nothing drawn that was not paid for, no query drawn twice."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

from labeldp.budgets.counter import QueryCounter
from labeldp.budgets.store import BudgetStore
from labeldp.core.ledger import Budget
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.responses import RandomizedResponse
from tests.budgets.conftest import database, place, server  # noqa: F401
from tests.budgets.storehelp import LABELS, crowd

pytestmark = pytest.mark.stress

KEY = b"a key of the tests, thirty-two b"
PROCESSES = 100


@pytest.fixture
def crowded(place):  # noqa: F811
    store = BudgetStore.open(place, key=KEY)
    store.create("crowd", LabelVault(LABELS, 2), Budget(4.0))
    return store


@pytest.mark.parametrize("tries", [1, 4])
def test_a_hundred_processes_spend_the_budget_and_no_more(crowded, place, tries):  # noqa: F811
    seen = crowd(place, KEY, epsilon=0.1, processes=PROCESSES, tries=tries)
    assert set(seen["codes"]) == {0}
    assert seen["drawn"] == 40
    assert [entry.number for entry in crowded.history("crowd")] == list(range(1, 41))
    assert crowded.epsilon("crowd") == pytest.approx(4.0)


def test_a_hundred_of_which_sixty_are_killed(crowded, place):  # noqa: F811
    seen = crowd(place, KEY, epsilon=0.01, processes=PROCESSES, tries=6, kills=60)
    assert {code for code in seen["codes"] if code != -signal.SIGKILL} <= {0}
    charges = len(crowded.history("crowd"))
    assert seen["drawn"] <= charges <= min(400, seen["drawn"] + 60)
    crowd(place, KEY, epsilon=0.01, processes=PROCESSES, tries=6)
    assert len(crowded.history("crowd")) == 400


MEMBER = """
    import os, sys
    from pathlib import Path
    from labeldp.budgets.counter import QueryCounter
    from labeldp.budgets.keys import StoreError
    from labeldp.budgets.store import BudgetStore
    from labeldp.core.ledger import BudgetExceededError
    from labeldp.core.vault import LabelVault
    from labeldp.mechanisms.responses import RandomizedResponse
    from tests.budgets.storehelp import LABELS

    where, key, folder = sys.argv[1], bytes.fromhex(sys.argv[2]), Path(sys.argv[3])
    copies, times = map(int, sys.argv[4:])
    go, start = os.pipe()
    children = []
    for number in range(copies):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                labels = LabelVault(LABELS, 2)
                vault = labels.part(store=BudgetStore.open(where, key=key, create=False).account(labels))
                drawn = 0
                with QueryCounter(folder / str(number), {}) as counter:
                    lease = vault.lease(RandomizedResponse(0.01, 2), times, counter=counter)
                    os.read(go, 1)
                    for _ in range(times):
                        try:
                            lease()
                        except (StoreError, BudgetExceededError):
                            continue
                        drawn += 1
                (folder / f"{number}.drawn").write_text(str(drawn))
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    os.write(start, b"." * copies)
    assert {os.waitpid(child, 0)[1] for child in children} == {0}
"""


def test_copies_of_a_run_that_race_draw_each_query_once(crowded, place, tmp_path):  # noqa: F811
    times, copies = 30, 20
    labels = LabelVault(LABELS, 2)
    with QueryCounter(tmp_path / "t", {}) as counter:
        labels.part(store=crowded.account(labels)).lease(RandomizedResponse(0.01, 2), times, counter=counter)
    for number in range(copies):
        shutil.copy(tmp_path / "t", tmp_path / str(number))
    numbers = [str(copies), str(times)]
    command = [sys.executable, "-c", textwrap.dedent(MEMBER), str(place), KEY.hex(), str(tmp_path), *numbers]
    here = {**os.environ, "PYTHONPATH": os.getcwd()}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=here)
    assert run.returncode == 0, run.stderr
    drawn = [int((tmp_path / f"{number}.drawn").read_text()) for number in range(copies)]
    # Some are lost: a copy that writes a number down and is told that another was first has begun it for nothing.
    assert 0 < sum(drawn) <= times
    assert crowded.dataset("crowd").begun <= times
