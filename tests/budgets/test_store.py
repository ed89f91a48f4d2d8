"""Budgets in a database: charged before the draw, composed per row over all processes, and never told a label."""

import json
import math
import pickle
import stat
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeldp.budgets.counter import QueryCounter
from labeldp.budgets.keys import Key, StoreError
from labeldp.budgets.store import BudgetStore, UnknownDataSetError, largest_growth
from labeldp.budgets.tables import pack, unpack
from labeldp.core.events import Gaussian, PureDP
from labeldp.core.ledger import Budget, BudgetExceededError, Ledger
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.counts import GaussianNoise, GroupCounts
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.user_responses import UserResponse
from labeldp.mechanisms.users import Users, UserVault
from labeldp.mechanisms.values import seal_values

KEY = b"a key of the tests, thirty-two b"
LABELS = [0, 1, 1, 0, 1, 0]
RR = RandomizedResponse(1.0, 2)


def opened(place):
    return BudgetStore.open(place, key=KEY)


@pytest.fixture
def store(place):
    kept = opened(place)
    kept.create("visits", LabelVault(LABELS, 2), Budget(3.0))
    return kept


def vault(store, labels=LABELS, budget=None, **more):
    return LabelVault(labels, 2, budget, store=store.account(LabelVault(labels, 2), **more), rng=SecureRandom(0))


# --- spending ----------------------------------------------------------------------------------------------------


def test_looks_add_up_over_vaults_and_stores(store, place):
    vault(store).release(RR)
    vault(opened(place)).release(RR)
    assert opened(place).epsilon("visits") == 2.0
    assert opened(place).dataset("visits").charges == 2


def test_past_the_budget_nothing_is_drawn_and_nothing_is_left(store):
    vault(store).release(RandomizedResponse(2.5, 2))
    late = vault(store)
    with pytest.raises(BudgetExceededError, match=r"budget is epsilon=3, delta=0.*epsilon=3\.5"):
        late.release(RR)
    assert late.certificate().epsilon == 0.0
    assert store.epsilon("visits") == 2.5
    assert len(store.history("visits")) == 1


def test_all_of_the_budget_can_be_spent(place):
    kept = opened(place)
    kept.create("tenths", LabelVault(LABELS, 2), Budget(0.3))
    for _ in range(3):
        vault(kept).release(RandomizedResponse(0.1, 2))
    with pytest.raises(BudgetExceededError):
        vault(kept).release(RandomizedResponse(0.001, 2))


def test_two_processes_that_ask_different_rows_pay_once(store):
    vault(store).release(RandomizedResponse(3.0, 2), rows=[0, 1, 2])
    vault(store).release(RandomizedResponse(3.0, 2), rows=[3, 4, 5])
    assert store.epsilon("visits") == 3.0
    assert [group.rows for group in store.ledger("visits").groups()] == [6]
    with pytest.raises(BudgetExceededError):
        vault(store).release(RandomizedResponse(0.1, 2), rows=[5])


def test_the_ledger_is_the_one_of_a_single_vault(store):
    """Whatever is asked, in however many vaults: the store composes as one vault that was asked everything."""
    choose, single = np.random.default_rng(0), LabelVault(LABELS, 2, rng=SecureRandom(0))
    store.create("wide", LabelVault([1, *LABELS[1:]], 2), Budget(math.inf, 1e-5))
    for _ in range(6):
        box = vault(store, [1, *LABELS[1:]])
        for _ in range(3):
            rows = np.flatnonzero(choose.integers(0, 2, size=6)) if choose.integers(0, 2) else None
            if rows is not None and not len(rows):
                continue
            event = [PureDP(0.5), Gaussian(3.0, 1.0)][choose.integers(0, 2)]
            question = FixedCost(event)
            box.release(question, rows=rows)
            single.release(question, rows=rows)
    ours = {(group.rows, group.queries) for group in store.ledger("wide").groups()}
    assert ours == {(group.rows, group.queries) for group in single.ledger.groups()}
    assert store.epsilon("wide") == single.certificate(delta=1e-5).epsilon


class FixedCost:
    """A question that tells nothing and is charged like another one."""

    def __init__(self, event):
        self.cost = event

    def fits(self, num_rows, num_classes):
        pass

    def event(self):
        return self.cost

    def sample(self, labels, rng):
        return None


def test_gaussian_looks_compose_exactly(place):
    kept = opened(place)
    kept.create("counts", LabelVault(LABELS, 2), Budget(1.1, 1e-5))
    question = GroupCounts([0] * 6, 1, 2, GaussianNoise.for_budget(0.5, 1e-5))
    spent = []
    for _ in range(3):
        vault(kept).release(question)
        spent.append(kept.epsilon("counts"))
    assert spent[0] <= 0.5 < spent[1] < spent[2] <= 1.1
    # Two of them are cheaper than twice one: nothing is simply added up.
    assert spent[1] < 2 * spent[0]
    single = LabelVault(LABELS, 2, Budget(1.1, 1e-5))
    for _ in range(3):
        single.release(question)
    assert spent[2] == single.certificate().epsilon
    with pytest.raises(BudgetExceededError):
        vault(kept).release(question)


def test_a_budget_without_delta_refuses_gaussian_looks(store):
    with pytest.raises(BudgetExceededError, match="without bound"):
        vault(store).release(GroupCounts([0] * 6, 1, 2, GaussianNoise.for_budget(0.5, 1e-5)))


def test_revealed_labels_are_refused_and_kept_in_history_where_they_are_not(store, place):
    with pytest.raises(BudgetExceededError):
        vault(store).reveal("debugging")
    store.create("open", LabelVault([0, 0], 2), Budget(math.inf))
    vault(store, [0, 0]).reveal("debugging")
    assert opened(place).epsilon("open") == math.inf
    assert "debugging" in repr(opened(place).history("open")[0].event)


def test_an_account_has_its_budget_for_the_vault(store):
    account = store.account(LabelVault(LABELS, 2))
    assert account.budget == Budget(3.0)
    box = LabelVault(LABELS, 2, account.budget, store=account)
    box.release(RR)
    assert account.epsilon() == box.certificate().epsilon == 1.0


def test_looks_can_be_charged_without_a_vault(store):
    account = store.account(LabelVault(LABELS, 2))
    account.charge(PureDP(1.0), rows=[0, 1], note="by hand")
    account.charge(PureDP(1.0), times=2, rows=[2])
    assert store.epsilon("visits") == 2.0
    assert store.history("visits")[0].note == "by hand"
    with pytest.raises(ValueError, match="times"):
        account.charge(PureDP(1.0), times=0)


def test_one_account_serves_one_vault(store):
    account = store.account(LabelVault(LABELS, 2))
    LabelVault(LABELS, 2, store=account).release(RR)
    with pytest.raises(ValueError, match="already serves another vault"):
        LabelVault(LABELS, 2, store=account)


def test_a_lease_continued_elsewhere_is_charged_once(store, tmp_path):
    for _ in range(3):
        box = vault(store)
        with QueryCounter(tmp_path / "t", {}) as counter:
            lease = box.lease(RandomizedResponse(0.5, 2), 4, counter=counter)
            lease()
        assert (store.epsilon("visits"), box.certificate().epsilon) == (2.0, 2.0)
    box.release(RR)
    assert store.epsilon("visits") == 3.0
    (first, second) = store.history("visits")
    assert (first.times, first.query_id is None, second.times, second.query_id) == (4, False, 1, None)


def test_a_plan_goes_on_elsewhere_only_as_it_was_charged(store):
    """A second process drew ε = 50 under the id of a plan that had paid for 0.3; or the same query twice."""
    queries = [(PureDP(0.1), 1, None), (PureDP(0.2), 1, [0, 2])]
    vault(store).plan(queries, query_id="a plan").release(RandomizedResponse(0.1, 2))
    spent = store.epsilon("visits")
    for order in (queries, queries[::-1]):
        with pytest.raises(StoreError, match="begun before"):
            vault(store).plan(order, query_id="a plan").release(RandomizedResponse(0.1, 2))
    vault(store).plan(queries[::-1], query_id="a plan").release(RandomizedResponse(0.2, 2), [2, 0])
    assert store.epsilon("visits") == spent
    others = [
        [queries[0], (PureDP(50.0), 1, [0, 2])],
        [*queries, (PureDP(3.0), 1, [1])],
        [queries[0], (PureDP(0.2), 20, [0, 2])],
    ]
    for other in others:
        event, times, rows = other[-1]
        with pytest.raises(BudgetExceededError):
            vault(store).plan(other, query_id="a plan").lease(RandomizedResponse(event.epsilon, 2), times, rows)
    vault(store).plan([queries[0], (PureDP(0.2), 1, [0, 1])], query_id="a plan").release(RandomizedResponse(0.1, 2))
    assert store.epsilon("visits") > spent


def test_a_failed_reservation_is_not_drawn_and_can_be_tried_again(store, monkeypatch):
    box, real = vault(store), store.reserve

    def fails(*args, **more):
        raise StoreError("the disk is full")

    monkeypatch.setattr(store, "reserve", fails)
    with pytest.raises(StoreError):
        box.release(RR)
    assert box.certificate().epsilon == 0.0
    monkeypatch.setattr(store, "reserve", real)
    box.release(RR)
    assert store.epsilon("visits") == box.certificate().epsilon == 1.0


# --- parts, users, numbers ---------------------------------------------------------------------------------------


def test_a_part_is_charged_to_the_whole(store):
    for fold in ([0, 1, 1], [0, 1, 0]):
        box = LabelVault(fold, 2, store=store.part_of("visits", note="fold"))
        box.release(RR, rows=[0])
        box.release(RR, rows=[1, 2])
    assert store.epsilon("visits") == 2.0
    assert [entry.rows for entry in store.history("visits")] == [6, 6]
    box = LabelVault(LABELS[:3], 2, store=store.part_of("visits"))
    box.release(RR)
    with pytest.raises(BudgetExceededError):
        box.release(RR)


def test_a_part_that_asks_nothing_new_of_its_worst_row_is_free_only_within_one_vault(store):
    box = LabelVault(LABELS[:4], 2, store=store.part_of("visits"))
    box.release(RR, rows=[0, 1])
    box.release(RR, rows=[2, 3])
    assert store.epsilon("visits") == 1.0
    box.release(RR, rows=[0])
    assert store.epsilon("visits") == 2.0


def test_users_have_budgets_of_their_own(place):
    kept, users = opened(place), Users(["a", "b", "a", "c", "c", "c"])
    labels = UserVault(LABELS, users, 2)
    kept.create("by user", labels, Budget(2.0))
    box = UserVault(LABELS, users, 2, store=kept.account(labels))
    box.release(UserResponse(1.0, 2, users))
    assert kept.epsilon("by user") == box.certificate().epsilon == 1.0
    assert kept.dataset("by user").unit.protects == "all labels of one user"
    assert kept.ledger("by user").num_rows == 3
    with pytest.raises(StoreError, match="all labels of one user, not one label"):
        kept.account(LabelVault(LABELS, 2))
    with pytest.raises(StoreError, match="grouped otherwise"):
        kept.account(UserVault(LABELS, ["a", "b", "b", "c", "c", "c"], 2))
    with pytest.raises(StoreError, match="users"):
        kept.part_of("by user")


def test_a_vault_of_rows_cannot_use_an_account_of_users(place):
    kept, labels = opened(place), UserVault(LABELS, ["a", "b", "a", "c", "c", "c"], 2)
    kept.create("by user", labels, Budget(2.0))
    with pytest.raises(ValueError, match=r"all labels of one user.*one label.*cannot be added up"):
        LabelVault(LABELS, 2, store=kept.account(labels))


def test_a_vault_of_users_cannot_use_an_account_of_rows(store):
    """Issue 18, 9: as a part it could, and what users met was added to what rows met."""
    users = UserVault(LABELS, ["a", "b", "a", "c", "c", "c"], 2)
    for account in (store.part_of("visits"), store.account(LabelVault(LABELS, 2))):
        with pytest.raises(ValueError, match=r"one label.*all labels of one user"):
            users.part(store=account)


def test_real_valued_labels_have_a_name_too(place):
    kept, values = opened(place), [0.5, 2.25, 9.0]
    labels = seal_values(values, 0.0, 10.0, levels=101)
    kept.create("prices", labels, Budget(1.0))
    box = labels.part(store=kept.account(labels))
    box.release(RandomizedResponse(1.0, 101))
    assert kept.epsilon("prices") == 1.0


# --- names and budgets -------------------------------------------------------------------------------------------


def test_a_budget_cannot_be_changed_and_labels_cannot_have_two(store):
    assert store.create("visits", LabelVault(np.array(LABELS, dtype=np.uint8), 2), Budget(3.0)).charges == 0
    for name, labels, classes, budget, what in [
        ("visits", LABELS, 2, Budget(4.0), "cannot become"),
        ("visits", LABELS, 2, Budget(3.0, 1e-6), "cannot become"),
        ("again", LABELS, 2, Budget(4.0), "under the name 'visits'"),
        ("visits", LABELS[::-1], 2, Budget(3.0), "belongs to other labels"),
        ("visits", LABELS, 3, Budget(3.0), "2 classes, not 3"),
    ]:
        with pytest.raises(StoreError, match=what):
            store.create(name, LabelVault(labels, classes), budget)
    assert [kept.name for kept in store.datasets()] == ["visits"]


def test_unknown_labels_and_names_are_refused(store):
    with pytest.raises(UnknownDataSetError, match="labeldp budget create"):
        store.account(LabelVault([1, *LABELS[1:]], 2))
    with pytest.raises(UnknownDataSetError, match="labeldp budget create"):
        store.account(LabelVault(LABELS[:-1], 2))
    with pytest.raises(StoreError, match="2 classes, not 3"):
        store.account(LabelVault(LABELS, 3))
    for ask in (store.dataset, store.part_of, store.history, store.epsilon):
        with pytest.raises(UnknownDataSetError, match="'nothing'"):
            ask("nothing")


@pytest.mark.parametrize("name", ["", "  ", "a\nb", 7, None, "x" * 201])
def test_names_are_names(tmp_path, name):
    with pytest.raises(StoreError, match="name="):
        opened(tmp_path / "b").create(name, LabelVault(LABELS, 2), Budget(1.0))


def test_open_labels_are_refused_without_quoting_them(store):
    for use in (lambda labels: store.create("x", labels, Budget(1.0)), store.account):
        for labels in (LABELS, np.array(LABELS), ["yes", "no"], None):
            with pytest.raises(ValueError, match="takes no open labels: seal them first") as caught:
                use(labels)
            assert "yes" not in str(caught.value)


def test_what_has_no_budget(tmp_path):
    with pytest.raises(ValueError, match="empty"):
        opened(tmp_path / "b").create("x", LabelVault([], 2), Budget(1.0))
    with pytest.raises(ValueError, match=r"budget=1\.0"):
        opened(tmp_path / "b").create("x", LabelVault([0, 1], 2), 1.0)


def name(labels, key=KEY):
    return LabelVault(labels, int(max(labels)) + 1).fingerprint(key)


def test_the_same_labels_have_the_same_name_whatever_holds_them():
    torch, pandas = pytest.importorskip("torch"), pytest.importorskip("pandas")
    kinds = [np.uint8, np.int32, np.int64, np.float32, np.float64, object]
    names = {name(np.array(LABELS, dtype=kind)) for kind in kinds}
    names |= {name(LABELS), name(torch.tensor(LABELS)), name(pandas.Series(LABELS))}
    # However its classes are coded: recoding them must not buy a second budget.
    names |= {name([1 - label for label in LABELS]), name([3 * label for label in LABELS])}
    assert len(names) == 1


def groups(labels):
    return [labels.index(label) for label in labels]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_other_labels_have_another_name(first, second):
    assert (name(first) == name(second)) == (groups(first) == groups(second))
    assert name(first) != name(first, KEY[::-1])


def test_quantities_are_named_by_their_values():
    """Of two columns whose values all differ, numbered by first rows neither would differ from the other."""
    prices = np.arange(100)
    assert name(prices) != name(prices[::-1])


def test_names_are_those_of_the_first_version():
    """A store made by it must find its labels again."""
    assert name([0, 1, 1, 0])[:16] == "4033e7787496fc3e"
    assert name(np.arange(100) * 7 % 100)[:16] == "8c6f9dfb097ae474"


def test_long_columns_are_hashed_in_blocks_without_a_seam():
    column = np.arange(3_000_000) % 251
    assert name(column) == name(column.astype(np.uint8))
    changed = column.copy()
    changed[-1] = 0
    assert name(column) != name(changed)


# --- history -----------------------------------------------------------------------------------------------------


def test_history_says_who_asked_what_and_what_it_came_to(store):
    vault(store, note="first model").release(RR, rows=[0, 1])
    vault(store, note="second model", host=True).release(RandomizedResponse(0.5, 2))
    first, second = store.history("visits")
    assert (first.number, first.note, first.host, first.rows, first.epsilon) == (1, "first model", "", 2, 1.0)
    assert (second.event, second.times, second.rows, second.epsilon) == (PureDP(0.5), 1, 6, 1.5)
    assert first.who == second.who != ""
    assert second.host != ""
    assert first.time <= second.time


def test_the_programs_name_is_the_note_when_none_is_given(store, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/train.py", "--secret"])
    vault(store).release(RR)
    assert store.history("visits")[0].note == "train.py"


def test_a_user_without_a_name_is_unknown(store, monkeypatch):
    def nobody():
        raise OSError("no entry")

    monkeypatch.setattr("getpass.getuser", nobody)
    vault(store).release(RR)
    assert store.history("visits")[0].who == "unknown"


# --- what it is made of -------------------------------------------------------------------------------------------


def test_labels_are_nowhere_in_the_file(tmp_path):
    """Not as text, not as bytes: the store knows their keyed hash."""
    labels = np.random.default_rng(0).integers(0, 2, size=4000)
    kept = BudgetStore.open(tmp_path / "b")
    kept.create("x", LabelVault(labels, 2), Budget(1.0))
    box = LabelVault(labels, 2, store=kept.account(LabelVault(labels, 2)))
    box.release(RR, rows=np.arange(100))
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for form in (labels.astype(np.uint8), labels.astype(np.int64), labels.astype(np.int32), np.packbits(labels)):
        assert form.tobytes()[:64] not in content
    assert "".join(map(str, labels[:64])).encode() not in content


def test_a_new_store_and_its_key_are_its_owners_only(tmp_path):
    BudgetStore.open(tmp_path / "b")
    assert {path.name for path in tmp_path.iterdir()} == {"b", "b.key"}
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_stores_know_nothing_of_each_other(tmp_path):
    first, second = BudgetStore.open(tmp_path / "a"), BudgetStore.open(tmp_path / "b")
    for kept in (first, second):
        kept.create("visits", LabelVault(LABELS, 2), Budget(1.0))
    vault(first).release(RR)
    assert (first.epsilon("visits"), second.epsilon("visits")) == (1.0, 0.0)
    # Each has its own key, so even the same labels have two names that nobody can match.
    assert first.dataset("visits").fingerprint != second.dataset("visits").fingerprint


def test_what_is_shown_tells_no_label_and_no_key(store, place):
    shown = repr(store) + repr(store.account(LabelVault(LABELS, 2))) + repr(store.dataset("visits")) + repr(Key(KEY))
    assert KEY.decode() not in shown
    assert str(LABELS) not in shown
    with pytest.raises(TypeError):
        pickle.dumps(vault(store))


def test_the_store_works_without_the_rest(tmp_path):
    """A data owner's machine needs no torch, no pandas and no network for it."""
    code = (
        "import sys, json; from labeldp import Budget, LabelVault; from labeldp.budgets.store import BudgetStore; "
        f"BudgetStore.open({str(tmp_path / 'b')!r}).create('x', LabelVault([0, 1], 2), Budget(1.0)); "
        "print(json.dumps(sorted({'torch', 'pandas', 'pyarrow', 'psycopg'} & set(sys.modules))))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == []


EVENTS = (PureDP(0.5), PureDP(1.0), Gaussian(2.0, 1.0))
asked = st.tuples(st.sampled_from(EVENTS), st.integers(1, 3), st.none() | st.sets(st.integers(0, 4), min_size=1))


def charged(ledger, plans):
    for event, times, rows in plans:
        ledger = ledger.charge(event, times, None if rows is None else sorted(rows))
    return ledger


@given(st.lists(asked, max_size=6))
def test_charged_as_a_part_no_row_has_met_more_than_was_charged(plans):
    ledger, whole = Ledger(5), Ledger(5)
    for each in plans:
        after = charged(ledger, [each])
        for plan in largest_growth(ledger, after):
            whole = whole.charge_plan(plan)
        ledger = after
    everything = Counter(history(whole, 0))
    for row in range(5):
        assert not Counter(history(ledger, row)) - everything


def history(ledger, row):
    return ledger.histories[0 if ledger.history_of_row is None else int(ledger.history_of_row[row])]


@given(st.integers(1, 40), st.data())
def test_rows_are_packed_and_unpacked(num_rows, data):
    rows = sorted(data.draw(st.sets(st.integers(0, num_rows - 1))))
    assert unpack(pack(np.array(rows, dtype=np.intp), num_rows), num_rows).tolist() == rows
    assert pack(None, num_rows) is None
    assert unpack(None, num_rows) is None
