"""Many processes at once, some of them killed: what is drawn never exceeds the budget, and nothing drawn is unpaid."""

import os
import signal

import pytest

from labeldp.budgets.store import BudgetStore
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.counts import GaussianNoise, GroupCounts
from labeldp.mechanisms.responses import RandomizedResponse
from tests.budgets.storehelp import LABELS, crowd
from tests.processes import CONTEXT, exit_code

KEY = b"a key of the tests, thirty-two b"


@pytest.fixture
def crowded(place):
    store = BudgetStore.open(place, key=KEY)
    store.create("crowd", LabelVault(LABELS, 2), Budget(4.0))
    return store


MANY = pytest.mark.parametrize("processes", [30, pytest.param(100, marks=pytest.mark.slow)])


@MANY
def test_many_processes_spend_the_budget_and_no_more(crowded, place, processes):
    seen = crowd(place, KEY, epsilon=0.1, processes=processes)
    assert set(seen["codes"]) == {0}
    assert seen["drawn"] == 40
    history = crowded.history("crowd")
    assert [entry.number for entry in history] == list(range(1, 41))
    assert history[-1].epsilon == crowded.epsilon("crowd") == pytest.approx(4.0)


@pytest.mark.slow
@MANY
def test_many_processes_compose_gaussian_queries_as_one_vault_does(place, processes):
    store, budget = BudgetStore.open(place, key=KEY), Budget(2.0, 1e-5)
    store.create("crowd", LabelVault(LABELS, 2), budget)
    alone, question = LabelVault(LABELS, 2, budget), GroupCounts([0] * 8, 1, 2, GaussianNoise.for_budget(0.5, 1e-5))
    with pytest.raises(BudgetExceededError):
        list(map(alone.release, [question] * 100))
    most = alone.ledger.groups()[0].queries[0].times
    assert 8 <= most < processes
    seen = crowd(place, KEY, epsilon=0.5, delta=1e-5, tries=1, processes=processes)
    assert set(seen["codes"]) == {0}
    assert seen["drawn"] == most
    assert store.epsilon("crowd") == alone.certificate().epsilon


def test_processes_killed_at_random_leave_what_they_reserved_charged(crowded, place):
    seen = crowd(place, KEY, epsilon=0.01, processes=20, tries=6, kills=14)
    assert seen["codes"].count(-signal.SIGKILL) > 0
    assert {code for code in seen["codes"] if code != -signal.SIGKILL} <= {0}
    charges = len(crowded.history("crowd"))
    # One query of each killed process may have been reserved and not drawn; none was drawn and not reserved.
    assert seen["drawn"] <= charges <= seen["drawn"] + 14
    again = crowd(place, KEY, epsilon=0.01, processes=5, tries=2)
    assert again["drawn"] == 10
    assert len(crowded.history("crowd")) == charges + 10


class Deadly(RandomizedResponse):
    def sample(self, labels, rng):
        os.kill(os.getpid(), signal.SIGKILL)


def dies(place):
    store = BudgetStore.open(place, key=KEY, create=False)
    vault = LabelVault(LABELS, 2, store=store.account(LabelVault(LABELS, 2), note="deadly"))
    vault.release(Deadly(1.5, 2))


def test_killed_between_reservation_and_look_it_stays_charged(crowded, place):
    assert exit_code(dies, str(place)) == -signal.SIGKILL
    (entry,) = crowded.history("crowd")
    assert (entry.note, entry.epsilon) == ("deadly", 1.5)
    # And the store is as usable as before.
    assert crowd(place, KEY, epsilon=1.0, processes=4, tries=1)["drawn"] == 2


def makes(place, go):
    go.wait()
    BudgetStore.open(place).create("x", LabelVault([0, 1], 2), Budget(1.0))


def test_all_make_one_store_and_one_key(tmp_path):
    go = CONTEXT.Barrier(6)
    runs = [CONTEXT.Process(target=makes, args=(tmp_path / "b.db", go)) for _ in range(6)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert [run.exitcode for run in runs] == [0] * 6
    assert [kept.name for kept in BudgetStore.open(tmp_path / "b.db").datasets()] == ["x"]
    assert {path.name for path in tmp_path.iterdir()} == {"b.db", "b.db.key"}
