"""Leases that outlive their process: paid once per vault, drawn no more often than paid for."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest

from labeldp.budgets.counter import CounterError, QueryCounter
from labeldp.core.events import PureDP
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.users import UserVault

LABELS = [0, 1, 2, 2, 1, 0, 0, 2]
RR = RandomizedResponse(epsilon=1.0, num_classes=3)
TRUTH = RandomizedResponse(epsilon=float("inf"), num_classes=3)


def vault(**more):
    return LabelVault(LABELS, 3, rng=SecureRandom(seed=1), **more)


@dataclass(frozen=True)
class Spy:
    """Writes down what was done in which order."""

    log: list

    def fits(self, num_rows, num_classes):
        self.log.append("fits")

    def event(self):
        return PureDP(1.0)

    def sample(self, labels, rng):
        self.log.append("sample")


def test_the_count_is_on_disk_before_the_draw(tmp_path):
    log = []
    with QueryCounter(tmp_path / "t", {}) as counter:
        lease = vault(store=lambda _: log.append("store")).lease(Spy(log), 2, counter=counter)
        whole = counter.count
        counter.count = lambda *args: (log.append("count"), whole(*args))[1]
        lease()
    assert log == ["fits", "store", "count", "sample"]


def test_when_the_count_cannot_be_written_nothing_is_drawn(tmp_path):
    log = []
    counter = QueryCounter(tmp_path / "t", {})
    lease = vault().lease(Spy(log), 2, counter=counter)
    counter.close()
    with pytest.raises(CounterError, match="closed"):
        lease()
    assert "sample" not in log
    assert lease.remaining == 2


def test_a_new_vault_pays_for_the_whole_and_draws_the_rest(tmp_path):
    with QueryCounter(tmp_path / "t", {}) as counter:
        lease = vault().lease(RR, 5, counter=counter)
        lease(), lease()
    later = vault(budget=Budget(5.0))
    with QueryCounter(tmp_path / "t", {}) as counter:
        lease = later.lease(RR, 5, counter=counter)
        assert lease.remaining == 3
        for _ in range(3):
            lease()
        with pytest.raises(BudgetExceededError):
            lease()
    assert later.certificate().epsilon == 5.0


def test_the_same_vault_pays_once(tmp_path):
    box = vault(budget=Budget(5.0))
    for left in (5, 4, 3):
        with QueryCounter(tmp_path / "t", {}) as counter:
            lease = box.lease(RR, 5, counter=counter)
            assert lease.remaining == left
            lease()
    assert box.certificate().epsilon == 5.0


def test_two_leases_of_one_tally_share_its_looks(tmp_path):
    box = vault()
    with QueryCounter(tmp_path / "t", {}) as counter:
        first, second = box.lease(RR, 3, counter=counter), box.lease(RR, 3, counter=counter)
        first(), second(), first()
        for lease in (first, second):
            with pytest.raises(BudgetExceededError):
                lease()
    assert box.certificate().epsilon == 3.0


def test_threads_share_them_too(tmp_path):
    drawn = []
    with QueryCounter(tmp_path / "t", {}) as counter:
        box = vault()
        leases = [box.lease(RR, 20, counter=counter) for _ in range(4)]

        def ask(lease):
            try:
                while True:
                    lease()
                    drawn.append(1)
            except BudgetExceededError:
                pass

        threads = [threading.Thread(target=ask, args=(lease,)) for lease in leases]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert len(drawn) == 20


def test_a_poor_vault_may_not_continue(tmp_path):
    with QueryCounter(tmp_path / "t", {}) as counter:
        vault().lease(RR, 5, counter=counter)
    poor = vault(budget=Budget(4.5))
    with QueryCounter(tmp_path / "t", {}) as counter, pytest.raises(BudgetExceededError):
        poor.lease(RR, 5, counter=counter)
    assert poor.certificate().epsilon == 0.0


@pytest.mark.parametrize(
    ("mechanism", "times", "rows", "labels", "what"),
    [
        (RandomizedResponse(2.0, 3), 5, None, LABELS, "event"),
        (RR, 6, None, LABELS, "times"),
        (RR, 5, [0, 1], LABELS, "rows asked"),
        (RR, 5, None, [*LABELS, 0], "labels"),
    ],
)
def test_a_tally_counts_the_looks_it_was_made_for_and_no_others(tmp_path, mechanism, times, rows, labels, what):
    with QueryCounter(tmp_path / "t", {}) as counter:
        vault().lease(RR, 5, counter=counter)
    box = LabelVault(labels, 3)
    with QueryCounter(tmp_path / "t", {}) as counter, pytest.raises(CounterError, match=what):
        box.lease(mechanism, times, rows, counter=counter)
    assert box.certificate().epsilon == 0.0


@pytest.mark.parametrize(("other", "rows"), [(RandomizedResponse(2.0, 3), None), (RR, [0, 1])])
def test_what_was_paid_for_under_an_id_pays_for_nothing_else(other, rows):
    box = vault()
    box.record(RR, query_id="one")
    box.record(RR, query_id="one")
    assert box.certificate().epsilon == 1.0
    with pytest.raises(ValueError, match="under the id 'one'"):
        box.record(other, rows, query_id="one")


# --- batches ---


def test_batches_are_paid_at_once_and_each_row_for_its_own():
    box = vault()
    leases = box.lease_batches([TRUTH] * 3, 2, [[7, 0], [1, 2, 3], [4]])
    assert [lease.remaining for lease in leases] == [2, 2, 2]
    assert [lease().responses.tolist() for lease in leases] == [[2, 0], [1, 2, 2], [1]]
    assert sorted((group.rows, sum(query.times for query in group.queries)) for group in box.ledger.groups()) == [
        (2, 0),
        (6, 2),
    ]


def test_batches_go_on_where_they_stopped(tmp_path):
    batches = [[0, 1, 2], [3, 4], [5, 6, 7]]
    with QueryCounter(tmp_path / "t", {}) as counter:
        leases = vault().lease_batches([RR] * 3, 2, batches, counter=counter)
        leases[0](), leases[0](), leases[2]()
    box = vault(budget=Budget(2.0))
    with QueryCounter(tmp_path / "t", {}) as counter:
        leases = box.lease_batches([RR] * 3, 2, batches, counter=counter)
        assert [lease.remaining for lease in leases] == [0, 2, 1]
    assert box.certificate().epsilon == 2.0
    regrouped = [[0, 1, 2, 3], [4], [5, 6, 7]]
    with QueryCounter(tmp_path / "t", {}) as counter, pytest.raises(CounterError, match="rows asked"):
        vault().lease_batches([RR] * 3, 2, regrouped, counter=counter)


def test_batches_past_the_budget_are_refused_as_a_whole():
    box = vault(budget=Budget(1.5))
    with pytest.raises(BudgetExceededError):
        box.lease_batches([RR] * 2, 2, [[0, 1], [2]])
    assert box.certificate().epsilon == 0.0


@pytest.mark.parametrize(
    ("mechanisms", "batches", "what"),
    [
        ([RR, RR], [[0, 1], [1, 2]], "1 repeats"),
        ([RR, RandomizedResponse(2.0, 3)], [[0], [1]], "2 different events"),
        ([RR, RandomizedResponse(1.0, 4)], [[0], [1]], "classes"),
        ([RR], [[0], [1]], "1 mechanisms for 2"),
        ([], [], "0 mechanisms"),
    ],
)
def test_batches_that_cannot_be_charged_are_refused_unpaid(mechanisms, batches, what):
    box = vault()
    with pytest.raises(ValueError, match=what):
        box.lease_batches(mechanisms, 1, batches)
    assert box.certificate().epsilon == 0.0


def test_a_vault_that_does_not_count_by_rows_refuses_batches():
    """A user's labels may lie in several batches: charging rows would charge the user too little."""
    box = UserVault(LABELS, users=np.arange(8) // 2, num_classes=3)
    with pytest.raises(ValueError, match="row by row"):
        box.lease_batches([RR, RR], 1, [[0], [1]])
    assert box.certificate().epsilon == 0.0


def test_a_counter_paid_for_by_one_part_is_paid_for_again_by_another(tmp_path):
    whole = LabelVault([0, 1, 1, 0], 2)
    with QueryCounter(tmp_path / "t", {}) as counter:
        for rows in ([0, 1], [2, 3]):
            part = whole.part(rows)
            part.lease(RandomizedResponse(1.0, 2), 1, counter=counter)
            # The same part again, as a run that goes on: nothing more to pay.
            part.lease(RandomizedResponse(1.0, 2), 1, counter=counter)
    assert [(group.rows, len(group.queries)) for group in whole.ledger.groups()] == [(4, 1)]
    assert whole.certificate().epsilon == 1.0
