"""Copies of a counter, and older ones put back, draw no more than was charged."""

import json
import os
import shutil
import signal

import pytest

from labeldp.budgets.counter import CounterError, QueryCounter
from labeldp.budgets.keys import StoreError
from labeldp.budgets.store import BudgetStore
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.responses import RandomizedResponse
from tests.budgets.test_store_damage import sql
from tests.processes import exit_code

KEY = b"a key of the tests, thirty-two b"
LABELS = [0, 1, 1, 0]
RR = RandomizedResponse(0.01, 2)
TIMES = 100


@pytest.fixture
def store(place):
    kept = BudgetStore.open(place, key=KEY)
    kept.create("visits", LabelVault(LABELS, 2), Budget(1.0))
    return kept


def vault(store):
    labels = LabelVault(LABELS, 2)
    return labels if store is None else labels.part(store=store.account(labels))


def drawn(path, store, most, times=TIMES):
    """How many queries come out of this counter, at most so many; a refusal ends them."""
    count = 0
    with QueryCounter(path, {}) as counter:
        lease = vault(store).lease(RR, times, counter=counter)
        while count < min(most, lease.remaining + count):
            lease()
            count += 1
    return count


def tried(*arguments):
    try:
        return drawn(*arguments)
    except (CounterError, StoreError, BudgetExceededError):
        return 0


def copies(tmp_path, many=20):
    paths = [tmp_path / f"copy {number}" for number in range(many)]
    for path in paths:
        shutil.copy(tmp_path / "t", path)
    return paths


# -- without a store ------------------------------------------------------------------------------------------------


def test_twenty_copies_without_a_store_are_refused(tmp_path):
    """Issue 18, 5: they drew 2,000 queries where 100 were charged."""
    with QueryCounter(tmp_path / "t", {}) as counter:
        vault(None).lease(RR, TIMES, counter=counter)
    for path in copies(tmp_path):
        with pytest.raises(CounterError, match=r"is a copy, or was moved.*charge a budget store.*pay again"):
            drawn(path, None, TIMES)
    assert drawn(tmp_path / "t", None, TIMES) == TIMES


def test_a_copy_in_the_place_of_the_file_is_refused(tmp_path):
    drawn(tmp_path / "t", None, 3)
    shutil.copy(tmp_path / "t", tmp_path / "older")
    drawn(tmp_path / "t", None, 3)
    os.replace(tmp_path / "older", tmp_path / "t")
    with pytest.raises(CounterError, match="is a copy"):
        drawn(tmp_path / "t", None, 3)


def test_a_refused_copy_has_charged_nothing(tmp_path):
    drawn(tmp_path / "t", None, 3)
    (copy,) = copies(tmp_path, 1)
    labels = vault(None)
    with QueryCounter(copy, {}) as counter, pytest.raises(CounterError):
        labels.lease(RR, TIMES, counter=counter)
    assert labels.certificate().epsilon == 0.0


def test_a_renamed_folder_goes_on(tmp_path):
    (tmp_path / "run").mkdir()
    drawn(tmp_path / "run" / "t", None, 3)
    (tmp_path / "run").rename(tmp_path / "moved")
    assert drawn(tmp_path / "moved" / "t", None, 3) == 3
    with QueryCounter(tmp_path / "moved" / "t", {}) as counter:
        assert counter.drawn() == 6


@pytest.mark.parametrize(
    ("change", "goes_on"),
    [
        ({"device": 1}, True),  # after a restart, at the same path
        ({"path": "elsewhere"}, True),  # renamed
        ({"device": 1, "path": "elsewhere"}, False),
        ({"inode": 1}, False),
    ],
)
def test_what_is_the_same_place(tmp_path, change, goes_on):
    path = tmp_path / "t"
    drawn(path, None, 1)
    header, *rest = path.read_bytes().splitlines(keepends=True)
    fields = json.loads(header)
    fields["place"] |= change
    path.write_bytes(json.dumps(fields).encode() + b"\n" + b"".join(rest))
    assert tried(path, None, 1) == goes_on
    # Where it goes on, it is bound to where it is now.
    assert tried(path, None, 1) == goes_on


def test_a_counter_of_the_first_version_is_bound_where_it_is_opened(tmp_path):
    path = tmp_path / "t"
    drawn(path, None, 4)
    text = path.read_text().replace("labeldp-tally/2", "labeldp-tally/1")
    header = {key: value for key, value in json.loads(text.splitlines()[0]).items() if key != "place"}
    path.write_text("\n".join([json.dumps(header), *text.splitlines()[1:]]) + "\n")
    assert drawn(path, None, 3) == 3
    (copy,) = copies(tmp_path, 1)
    assert tried(copy, None, 3) == 0
    with QueryCounter(path, {}) as counter:
        assert counter.drawn() == 7


def test_the_place_names_no_folder_and_no_user(tmp_path):
    (tmp_path / "mallory").mkdir()
    drawn(tmp_path / "mallory" / "t", None, 1)
    assert "mallory" not in (tmp_path / "mallory" / "t").read_text()


# -- with a store ---------------------------------------------------------------------------------------------------


def test_twenty_copies_draw_what_was_charged_to_their_store(store, tmp_path):
    """Issue 18, 5, with a store: one after the other, and each from where it was copied."""
    assert drawn(tmp_path / "t", store, 10) == 10
    paths = copies(tmp_path)
    assert drawn(tmp_path / "t", store, 20) == 20
    assert sum(tried(path, store, TIMES) for path in paths) == 0
    assert drawn(tmp_path / "t", store, TIMES) == 70
    assert store.epsilon("visits") == pytest.approx(1.0)


def test_copies_at_once_draw_each_query_once(store, tmp_path):
    with QueryCounter(tmp_path / "t", {}) as counter:
        vault(store).lease(RR, 6, counter=counter)
    counters = [QueryCounter(path, {}) for path in copies(tmp_path, 4)]
    leases = [vault(store).lease(RR, 6, counter=counter) for counter in counters]
    count = 0
    for _ in range(6):
        for lease in leases:
            try:
                lease()
            except (StoreError, BudgetExceededError):
                continue
            count += 1
    for counter in counters:
        counter.close()
    assert count == 6


def test_with_a_store_a_run_may_move(store, tmp_path):
    drawn(tmp_path / "t", store, 10)
    shutil.copy(tmp_path / "t", tmp_path / "moved")
    (tmp_path / "t").unlink()
    assert drawn(tmp_path / "moved", store, TIMES) == 90


def test_an_older_copy_put_back_is_noticed_by_the_store(store, tmp_path):
    drawn(tmp_path / "t", store, 3)
    shutil.copy(tmp_path / "t", tmp_path / "older")
    drawn(tmp_path / "t", store, 5)
    shutil.copy(tmp_path / "older", tmp_path / "t")
    with pytest.raises(StoreError, match=r"query 4 was begun before, and 8 of 100 are: this run is a copy"):
        drawn(tmp_path / "t", store, 5)


def test_an_older_copy_of_the_store_is_noticed_by_the_counter(tmp_path):
    place = tmp_path / "budgets.db"
    store = BudgetStore.open(place, key=KEY)
    store.create("visits", LabelVault(LABELS, 2), Budget(1.0))
    shutil.copy(place, tmp_path / "older.db")
    drawn(tmp_path / "t", store, 5)
    shutil.copy(tmp_path / "older.db", place)
    with pytest.raises(CounterError, match="has forgotten them: an older copy"):
        drawn(tmp_path / "t", BudgetStore.open(place, key=KEY), 5)


def test_a_copy_cannot_ask_for_more_than_was_charged(store, tmp_path):
    """Another number of queries written into the file is not paid for by that."""
    drawn(tmp_path / "t", store, 5)
    path = tmp_path / "t"
    path.write_text(path.read_text().replace('"times": 100', '"times": 1000'))
    labels = vault(store)
    with QueryCounter(path, {}) as counter, pytest.raises(StoreError, match="other queries"):
        labels.lease(RR, 1000, counter=counter)


def test_batches_are_counted_apart(store, tmp_path):
    labels = vault(store)
    with QueryCounter(tmp_path / "t", {}) as counter:
        first, second = labels.lease_batches([RR, RR], 3, [[0, 1], [2, 3]], counter=counter)
        for lease in (first, second, first, second, first, second):
            lease()
    with QueryCounter(tmp_path / "t", {}) as counter:
        again = vault(store).lease_batches([RR, RR], 3, [[0, 1], [2, 3]], counter=counter)
        assert [each.remaining for each in again] == [0, 0]
    assert store.dataset("visits").begun == 6


def test_the_store_of_the_whole_counts_what_a_part_draws(store, tmp_path):
    whole = vault(store)
    part = whole.part([0, 2])
    with QueryCounter(tmp_path / "t", {}) as counter:
        lease = part.lease(RR, 4, counter=counter)
        lease()
        shutil.copy(tmp_path / "t", tmp_path / "copy")
        lease()
    assert store.dataset("visits").begun == 2
    with QueryCounter(tmp_path / "copy", {}) as counter:
        lease = vault(store).part([0, 2]).lease(RR, 4, counter=counter)
        with pytest.raises(StoreError, match="begun before"):
            lease()


def test_a_fold_that_charges_nothing_new_is_counted_too(store, tmp_path):
    box = LabelVault(LABELS, 2, store=store.part_of("visits"))
    box.lease(RR, 5, rows=[0])
    with QueryCounter(tmp_path / "t", {}) as counter:
        lease = box.lease(RR, 5, rows=[1], counter=counter)
        lease()
    assert (store.epsilon("visits"), store.dataset("visits").begun) == (0.05, 1)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM labeldp_begun",
        "UPDATE labeldp_begun SET batches = '{}'",
        "UPDATE labeldp_datasets SET begun = 0",
        "UPDATE labeldp_begun SET receipt = 'another'",
    ],
)
def test_counts_changed_without_the_key_are_found_out(tmp_path, statement):
    store = BudgetStore.open(tmp_path / "b", key=KEY)
    store.create("visits", LabelVault(LABELS, 2), Budget(1.0))
    drawn(tmp_path / "t", store, 5)
    sql(tmp_path / "b", statement)
    with pytest.raises(StoreError, match="changed or damaged"):
        drawn(tmp_path / "t", store, 5)


def test_a_count_put_back_without_its_data_set_is_found_out(tmp_path):
    store = BudgetStore.open(tmp_path / "b", key=KEY)
    store.create("visits", LabelVault(LABELS, 2), Budget(1.0))
    drawn(tmp_path / "t", store, 5)
    sql(tmp_path / "b", "CREATE TABLE kept AS SELECT * FROM labeldp_begun")
    drawn(tmp_path / "t", store, 5)
    sql(tmp_path / "b", "DELETE FROM labeldp_begun", "INSERT INTO labeldp_begun SELECT * FROM kept")
    with pytest.raises(StoreError, match="changed or damaged"):
        drawn(tmp_path / "t", store, 5)


def killed(place, path, when):
    store = BudgetStore.open(place, key=KEY)
    real = store.begin

    def begin(*args):
        if when == "after":
            real(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    store.begin = begin
    with QueryCounter(path, {}) as counter:
        vault(store).lease(RR, TIMES, counter=counter)()


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_between_the_file_and_the_store_one_query_is_lost_and_none_drawn_twice(tmp_path, when):
    store = BudgetStore.open(tmp_path / "b", key=KEY)
    store.create("visits", LabelVault(LABELS, 2), Budget(1.0))
    drawn(tmp_path / "t", store, 2)
    assert exit_code(killed, tmp_path / "b", tmp_path / "t", when) == -signal.SIGKILL
    assert drawn(tmp_path / "t", store, TIMES) == TIMES - 3
    assert store.dataset("visits").begun == TIMES
