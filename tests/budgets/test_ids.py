"""Rows known by ids: a reordered, filtered or re-exported table meets what it has spent."""

import shutil
import uuid
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from labeldp.budgets.counter import QueryCounter
from labeldp.budgets.ids import canonical
from labeldp.budgets.keys import StoreError
from labeldp.budgets.store import BudgetStore, UnknownDataSetError
from labeldp.core.events import Gaussian, PublicBatchGaussian, PureDP
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.user_responses import UserResponse
from labeldp.mechanisms.users import Users, UserVault
from tests.budgets.test_store import FixedCost
from tests.budgets.test_store_damage import sql

KEY = b"a key of the tests, thirty-two b"
LABELS = np.array([0, 1, 1, 0, 1, 0])
IDS = np.array(["p1", "p2", "p3", "p4", "p5", "p6"])
RR = RandomizedResponse(1.0, 2)


@pytest.fixture
def store(place):
    kept = BudgetStore.open(place, key=KEY)
    kept.create("visits", LabelVault(LABELS, 2), Budget(3.0, 1e-5), ids=IDS)
    return kept


def vault(store, labels=LABELS, ids=IDS, **more):
    labels = LabelVault(labels, 2, rng=SecureRandom(0))
    return labels.part(store=store.account(labels, ids=ids, **more))


def spent(store, name="visits"):
    return store.ledger(name).epsilon(0)


# -- the same rows again ------------------------------------------------------------------------------------------


def test_five_orders_and_selections_share_one_budget(place):
    """Issue 18, 16: each of them got a budget of its own, 6.0 spent of 1.0."""
    store = BudgetStore.open(place, key=KEY)
    store.create("visits", LabelVault(LABELS, 2), Budget(1.0), ids=IDS)
    vault(store).release(RR)
    orders = [np.roll(np.arange(6), 1), np.arange(6)[::-1], np.array([2, 0, 4]), np.array([5]), np.array([1, 2, 3, 4])]
    for rows in orders:
        with pytest.raises(BudgetExceededError):
            vault(store, LABELS[rows], IDS[rows]).release(RandomizedResponse(0.01, 2))
        with pytest.raises(StoreError, match="under the name 'visits'"):
            store.create(f"again {len(rows)}", LabelVault(LABELS[rows], 2), Budget(1.0), ids=IDS[rows])
    assert spent(store) == 1.0


def test_a_row_is_charged_wherever_it_stands(store):
    vault(store).release(RR, rows=[0, 1])
    vault(store, LABELS[[1, 4]], IDS[[1, 4]]).release(RR)
    vault(store, LABELS[::-1], IDS[::-1]).release(RandomizedResponse(0.5, 2), rows=[0])
    histories = store.ledger("visits")
    cost = [sum(q.event.epsilon for plan in histories.histories[h] for q in plan) for h in histories.history_of_row]
    assert cost == [1.0, 2.0, 0.0, 0.0, 1.0, 0.5]


def test_new_ids_start_at_zero_and_join(store):
    vault(store).release(RandomizedResponse(2.5, 2))
    with pytest.raises(BudgetExceededError):
        vault(store).release(RR)
    vault(store, [1, 0], ["p7", "p8"], dataset="visits").release(RandomizedResponse(2.5, 2))
    assert store.dataset("visits").units == 8
    vault(store, [0, 1], ["p9", "p8"]).release(RandomizedResponse(0.5, 2))
    assert (store.dataset("visits").units, spent(store)) == (9, 3.0)
    with pytest.raises(BudgetExceededError):
        vault(store, [0, 1], ["p9", "p8"]).release(RandomizedResponse(0.5, 2))
    # Another process reads the same.
    again = BudgetStore(store._database)
    assert spent(again) == 3.0


def test_what_some_rows_paid_for_is_not_drawn_of_others(store, tmp_path):
    """A counter that p1 to p3 had paid for drew a response of p4, which had paid for nothing."""
    with QueryCounter(tmp_path / "t", {}) as counter:
        vault(store, LABELS[:3], IDS[:3]).lease(RR, 1, counter=counter)
    with QueryCounter(tmp_path / "t", {}) as counter, pytest.raises(StoreError, match="other rows"):
        vault(store, LABELS[1:4], IDS[1:4]).lease(RR, 1, counter=counter)
    with QueryCounter(tmp_path / "t", {}) as counter:
        # In another order they are the same rows.
        vault(store, LABELS[2::-1], IDS[2::-1]).lease(RR, 1, counter=counter)()
    assert spent(store) == 1.0
    assert store.ledger("visits").history_of_row is not None


def test_a_refused_query_leaves_no_new_id(store):
    with pytest.raises(BudgetExceededError):
        vault(store, [0, 1], ["p1", "new"]).release(RandomizedResponse(9.0, 2))
    assert store.dataset("visits").units == 6


def test_unknown_ids_need_the_name_of_their_data_set(store):
    with pytest.raises(UnknownDataSetError, match="known by ids"):
        vault(store, [1, 0, 1], ["x", "y", "z"])
    with pytest.raises(UnknownDataSetError, match="'nothing'"):
        vault(store, [1, 0, 1], ["x", "y", "z"], dataset="nothing")


def test_a_view_of_the_store_has_the_ids(store):
    labels = LabelVault(LABELS[::-1], 2)
    bound = store.with_ids(IDS[::-1])
    labels.part(store=bound.account(labels)).release(RR)
    assert spent(store) == 1.0
    with pytest.raises(StoreError, match="6 entries for 3 labels"):
        bound.account(LabelVault([0, 1, 0], 2))


def test_without_ids_it_is_told_to_give_them(store):
    with pytest.raises(StoreError, match=r"has ids by which it knows its rows; give them \(ids, --id\)"):
        store.account(LabelVault(LABELS, 2))
    with pytest.raises(StoreError, match="has ids"):
        store.create("visits", LabelVault(LABELS, 2), Budget(3.0, 1e-5))
    store.create("plain", LabelVault([0, 0, 0, 1], 2), Budget(1.0))
    with pytest.raises(StoreError, match="has no ids by which it knows its rows; leave them out"):
        store.account(LabelVault([0, 0, 0, 1], 2), ids=["a", "b", "c", "d"])


def test_rows_of_two_data_sets_are_not_mixed(store):
    store.create("others", LabelVault([1, 1, 1, 0], 2), Budget(1.0), ids=[1, 2, 3, 4])
    with pytest.raises(StoreError, match="'others' and as 'visits'"):
        vault(store, [0, 1], ["p1", "1"])
    with pytest.raises(StoreError, match="knows these labels as 'visits'"):
        vault(store, [0, 1, 1], ["p1", "p2", "p3"], dataset="others")
    with pytest.raises(StoreError, match="belongs to rows with other ids"):
        store.create("others", LabelVault([1, 0, 0, 0], 2), Budget(1.0), ids=[5, 6, 7, 8])


def test_making_it_again_changes_nothing_in_any_order(store):
    kept = store.create("visits", LabelVault(LABELS[::-1], 2), Budget(3.0, 1e-5), ids=IDS[::-1])
    assert (kept.units, kept.charges, kept.bound) == (6, 0, True)
    with pytest.raises(StoreError, match="cannot become"):
        store.create("visits", LabelVault(LABELS[::-1], 2), Budget(4.0, 1e-5), ids=IDS[::-1])
    with pytest.raises(StoreError, match="2 classes, not 3"):
        store.account(LabelVault(LABELS, 3), ids=IDS)


def test_a_part_of_it_is_charged_to_all_ids(store):
    LabelVault(LABELS[:2], 2, store=store.part_of("visits")).release(RR)
    vault(store, [1], ["new"], dataset="visits")
    vault(store, [1, 0], ["new", "p1"]).release(RR)
    assert spent(store) == 2.0


# -- an id that occurs several times --------------------------------------------------------------------------------


def test_an_id_that_occurs_m_times_pays_m_times(store):
    twice = vault(store, [0, 1, 0], ["p1", "p2", "p1"])
    twice.release(RR)
    assert spent(store) == 2.0
    assert store.ledger("visits").charge(PureDP(1.0), rows=[1]).epsilon(0) == 2.0
    twice.release(RandomizedResponse(0.5, 2), rows=[0])
    assert spent(store) == 2.5


def test_gaussian_noise_hides_m_copies_m_times_worse_and_not_by_the_root(place):
    """m queries would cost a copied row √m times the distance of one; copies in one sum move it m times as far."""
    store = BudgetStore.open(place, key=KEY)
    store.create("sums", LabelVault(LABELS, 2), Budget(99.0, 1e-5), ids=IDS)
    vault(store, [0, 0, 0, 1], ["p1", "p1", "p1", "p2"]).release(FixedCost(Gaussian(5.0, 1.0)))
    entries = {entry.event: entry.rows for entry in store.history("sums")}
    assert entries == {Gaussian(5.0, 3.0): 1, Gaussian(5.0, 1.0): 1}
    alone = LabelVault([0], 2)
    alone.release(FixedCost(Gaussian(5.0, 3.0)))
    assert store.epsilon("sums") == alone.certificate(delta=1e-5).epsilon


def test_queries_without_a_rule_for_groups_are_refused_where_ids_repeat(store):
    event = PublicBatchGaussian(8.0, 1.0, 0.1)
    vault(store, [0, 1], ["p1", "p2"]).release(FixedCost(event))
    with pytest.raises(ValueError, match="2 of its rows"):
        vault(store, [0, 1], ["p1", "p1"]).release(FixedCost(event))


# -- what an id is --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "column",
    [
        [7, 8, 9],
        np.array([7, 8, 9], dtype=np.int16),
        [7.0, 8.0, 9.0],
        ["7", "8", "9"],
        ["007", " 8 ", "9.0"],
        [Decimal("7"), Decimal("8.0"), "9"],
        np.array(["7", 8, 9.0], dtype=object),
    ],
)
def test_ids_are_the_same_whatever_file_they_come_from(tmp_path, column):
    store = BudgetStore.open(tmp_path / "b", key=KEY)
    store.create("numbers", LabelVault([0, 1, 1], 2), Budget(1.0), ids=[9, 8, 7])
    vault(store, [1, 0, 1], column).release(RR)
    assert (spent(store, "numbers"), store.dataset("numbers").units) == (1.0, 3)


def test_ids_that_differ_stay_apart():
    ids = ["a", "A", "1e3", "1000", "7.5", "-7", 7, uuid.UUID(int=7), "é"]
    assert len({canonical(each) for each in ids}) == len(ids)
    assert canonical("e\u0301") == canonical("é")


@pytest.mark.parametrize(
    ("column", "what"),
    [
        (["a", None, float("nan")], "2 missing"),
        (["a", " ", "b"], "1 missing"),
        ([True, False, True], "type bool"),
        ([1e300, 1.0, 2.0], "not exact"),
        (np.array(["2024-01-01"] * 3, dtype="M8[D]"), "type date"),
        ([1, 2], "2 entries for 3 labels"),
    ],
)
def test_what_is_no_id_is_refused(tmp_path, column, what):
    store = BudgetStore.open(tmp_path / "b", key=KEY)
    with pytest.raises(StoreError, match=what):
        store.create("x", LabelVault([0, 1, 1], 2), Budget(1.0), ids=column)
    assert store.datasets() == ()


def test_ids_are_kept_as_keyed_hashes_only(tmp_path):
    ids = [f"person-{number}" for number in range(6)]
    stores = [BudgetStore.open(tmp_path / name) for name in "ab"]
    for store in stores:
        store.create("x", LabelVault(LABELS, 2), Budget(1.0), ids=ids)
        assert b"person-" not in Path(store._database.engine.url.database).read_bytes()
    known = [store._ids for store in stores]
    with stores[0]._database.reading() as one, stores[1]._database.reading() as two:
        first, second = (ids(c, s._line(c, "x")) for ids, c, s in zip(known, (one, two), stores, strict=True))
    assert not set(first.tolist()) & set(second.tolist())


# -- users ----------------------------------------------------------------------------------------------------------


def test_users_are_known_by_their_ids(place):
    store = BudgetStore.open(place, key=KEY)
    owners = np.array(["ann", "bob", "ann", "cid", "cid", "cid"])
    store.create("by user", UserVault(LABELS, owners, 2), Budget(1.0), ids=owners)
    some = np.array([4, 1, 3])
    labels = UserVault(LABELS[some], owners[some], 2)
    labels.part(store=store.account(labels, ids=owners[some])).release(UserResponse(1.0, 2, Users(owners[some])))
    ledger = store.ledger("by user")
    assert [len(ledger.histories[h]) for h in ledger.history_of_row] == [0, 1, 1]
    with pytest.raises(StoreError, match="its id is the user"):
        store.account(labels, ids=["x", "y", "z"])
    with pytest.raises(StoreError, match="not one label"):
        store.account(LabelVault(LABELS, 2), ids=owners)


# -- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM labeldp_ids",
        "DELETE FROM labeldp_ids WHERE first > 0",
        "UPDATE labeldp_ids SET first = 100 WHERE first > 0",
        "UPDATE labeldp_ids SET hashes = (SELECT hashes FROM labeldp_ids WHERE first > 0) WHERE first = 0",
        "UPDATE labeldp_datasets SET units = 6",
        "UPDATE labeldp_datasets SET bound = NULL",
        "UPDATE labeldp_charges SET plan = number",
    ],
)
def test_changed_ids_are_found_out(tmp_path, statement):
    store = BudgetStore.open(tmp_path / "b", key=KEY)
    store.create("visits", LabelVault(LABELS, 2), Budget(9.0), ids=IDS)
    vault(store, [0, 1, 1], ["p1", "p1", "new"]).release(RR)
    sql(tmp_path / "b", statement)
    for kept in (store, BudgetStore.open(tmp_path / "b", key=KEY)):
        with pytest.raises(StoreError, match="changed or damaged"):
            vault(kept).release(RR)


# -- stores of the first version --------------------------------------------------------------------------------------

OLD = Path(__file__).parents[1] / "compatibility" / "v0_1"


def test_a_store_of_the_first_version_gets_what_is_new(tmp_path):
    for name in ("budgets.db", "budgets.db.key"):
        shutil.copy(OLD / name, tmp_path / name)
    (tmp_path / "budgets.db.key").chmod(0o600)
    before = BudgetStore.open(tmp_path / "budgets.db")
    (kept,) = before.datasets()
    spent_before = before.epsilon(kept.name)
    store = BudgetStore.open(tmp_path / "budgets.db", create=False)
    assert (store.epsilon(kept.name), store.dataset(kept.name).bound) == (spent_before, False)
    store.create("visits", LabelVault(LABELS, 2), Budget(1.0), ids=IDS)
    vault(store, LABELS[::-1], IDS[::-1]).release(RR)
    assert (spent(store), store.epsilon(kept.name)) == (1.0, spent_before)
