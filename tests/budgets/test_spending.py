"""A vault's spending in a journal: never less than any row has met, and not twice for one receipt."""

import numpy as np
import pytest

from labeldp.budgets.counter import QueryCounter
from labeldp.budgets.journal import Journal
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.responses import RandomizedResponse
from tests.budgets.journalstore import JournalStore

RR = RandomizedResponse(1.0, 2)


def journal(tmp_path, budget=None):
    return Journal.open(tmp_path / "j", budget)


def vault(store, n=6):
    return LabelVault([0, 1] * (n // 2), 2, store=store, rng=SecureRandom(0))


def test_disjoint_rows_cost_a_journal_once_and_repeats_add_up(tmp_path):
    kept = journal(tmp_path)
    box = vault(JournalStore(kept))
    box.release(RR, rows=[0, 1])
    box.release(RR, rows=[2, 3])
    assert kept.epsilon(0) == 1.0
    box.release(RR, rows=[3, 4])
    assert kept.epsilon(0) == 2.0
    box.release(RandomizedResponse(0.5, 2), rows=[5])
    assert kept.epsilon(0) == 2.5


def test_a_journals_budget_stops_a_vault_before_it_draws(tmp_path):
    kept = journal(tmp_path, Budget(1.5))
    vault(JournalStore(kept)).release(RR)
    later = vault(JournalStore(kept))
    with pytest.raises(BudgetExceededError):
        later.release(RR)
    assert later.certificate().epsilon == 0.0
    assert kept.epsilon(0) == 1.0


def test_a_lease_continued_elsewhere_is_charged_once(tmp_path):
    kept, epsilons = journal(tmp_path), []
    for _ in range(4):
        box = vault(JournalStore(kept))
        with QueryCounter(tmp_path / "t", {}) as counter:
            lease = box.lease(RR, 5, counter=counter)
            lease()
        epsilons.append((kept.epsilon(0), box.certificate().epsilon))
    assert epsilons == [(5.0, 5.0)] * 4
    assert lease.remaining == 1


def test_a_lease_begun_without_a_journal_is_charged_when_one_appears(tmp_path):
    with QueryCounter(tmp_path / "t", {}) as counter:
        vault(None).lease(RR, 5, counter=counter)
    kept = journal(tmp_path)
    with QueryCounter(tmp_path / "t", {}) as counter:
        vault(JournalStore(kept)).lease(RR, 5, counter=counter)
    assert kept.epsilon(0) == 5.0


def test_what_a_continuing_process_spends_besides_is_charged_in_full(tmp_path):
    """Rows outside the lease were charged before it began: the lease must not hide what they are asked later."""
    kept, truth = journal(tmp_path), np.zeros(6)
    first = vault(JournalStore(kept))
    first.release(RR, rows=[0, 1])
    with QueryCounter(tmp_path / "t", {}) as counter:
        first.lease(RR, 5, rows=[2, 3], counter=counter)
    truth += [1, 1, 5, 5, 0, 0]
    second = vault(JournalStore(kept))
    with QueryCounter(tmp_path / "t", {}) as counter:
        second.lease(RR, 5, rows=[2, 3], counter=counter)
    for _ in range(6):
        second.release(RR, rows=[0, 1])
    truth += [6, 6, 0, 0, 0, 0]
    assert kept.epsilon(0) >= truth.max()
    assert kept.epsilon(0) == 5 + 6
    assert second.certificate().epsilon == 6.0


@pytest.mark.parametrize("seed", range(20))
def test_no_row_has_ever_met_more_than_the_journal_says(tmp_path, seed):
    choose = np.random.default_rng(seed)
    kept, truth, begun = journal(tmp_path), np.zeros(6), {}
    for _ in range(4):
        box = vault(JournalStore(kept))
        for _ in range(4):
            rows = np.flatnonzero(choose.integers(0, 2, size=6))
            if not len(rows):
                continue
            if choose.integers(0, 2):
                box.release(RR, rows=rows)
                truth[rows] += 1
            else:
                name = str(choose.integers(0, 3))
                new = name not in begun
                rows, times = begun.setdefault(name, (rows, int(choose.integers(1, 4))))
                with QueryCounter(tmp_path / name, {}) as counter:
                    box.lease(RR, times, rows=rows, counter=counter)
                truth[rows] += times * new
            assert kept.epsilon(0) >= truth.max()


def test_a_plain_store_is_called_again_which_over_counts(tmp_path):
    """A function cannot know what an earlier process told it."""
    calls = []
    for _ in range(2):
        with QueryCounter(tmp_path / "t", {}) as counter:
            vault(calls.append).lease(RR, 5, counter=counter)
    assert [ledger.epsilon(0) for ledger in calls] == [5.0, 5.0]


def test_one_journal_store_serves_one_vault(tmp_path):
    """A second vault's spending would be hidden behind the first's: its ledger starts at nothing again."""
    kept = journal(tmp_path)
    store = JournalStore(kept)
    vault(store).release(RR)
    with pytest.raises(ValueError, match="one for each vault"):
        vault(store)
    vault(JournalStore(kept)).release(RR)
    assert kept.epsilon(0) == 2.0
