"""The vault of users: who is charged what, and which rows are kept."""

import copy
import os
import pickle
import traceback

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeldp.budgets.counter import CounterError, QueryCounter
from labeldp.budgets.journal import Journal
from labeldp.core.certificate import parse, verify
from labeldp.core.events import DiscreteGaussian, Gaussian, NonPrivate, PoissonGaussian, PureDP
from labeldp.core.ledger import ONE_USER, Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import MechanismError
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.user_responses import UserResponse
from labeldp.mechanisms.users import Charge, Users, UserVault, cap_rows, group_charges
from tests.budgets.journalstore import JournalStore

LABELS = [0, 1, 2, 2, 1, 0, 0, 2]
OWNERS = ["ann", "bob", "ann", "cyd", "ann", "bob", "dan", "ann"]
RR = RandomizedResponse(epsilon=0.5, num_classes=3)


def vault(**more):
    return UserVault(LABELS, OWNERS, 3, rng=SecureRandom(seed=1), **more)


def spent(box):
    """Epsilon of every user, by name, from the ledger."""
    ledger = box.ledger
    history = ledger.history_of_row if ledger.history_of_row is not None else np.zeros(len(box.users), int)
    cost = [sum(query.times * query.event.epsilon for plan in ledger.histories[h] for query in plan) for h in history]
    return dict(zip(box.users.ids, cost, strict=True))


# --- who owns what ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "owner"),
    [
        ([7, 3, 7, 9], [0, 1, 0, 2]),
        (["b", "a", "b"], [0, 1, 0]),
        ([(1, 2), (1, 3), (1, 2)], [0, 1, 0]),
        ([1, "1", 1.0], [0, 1, 0]),
        (np.array([5, 5, 2], dtype=np.uint32), [0, 0, 1]),
        (np.array(["x", "y", "x"]), [0, 1, 0]),
        ([2**64, -1, 2**64, 2**64 + 1], [0, 1, 0, 2]),
        ([], []),
        (np.array([1.5, 1.5, 0.0]), [0, 0, 1]),
    ],
)
def test_any_hashable_is_an_id(ids, owner):
    users = Users(ids)
    assert users.owner.tolist() == owner
    assert len(users) == len(set(owner))
    assert users.sizes.sum() == len(owner)


def test_other_libraries_columns_are_ids():
    pandas, torch = pytest.importorskip("pandas"), pytest.importorskip("torch")
    for ids in (pandas.Series(["b", "a", "b"]), torch.tensor([4, 1, 4])):
        assert Users(ids).owner.tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="1 missing"):
        Users(pandas.Series([4, None, 4], dtype="Int64"))


@pytest.mark.parametrize(
    ("ids", "what"),
    [
        ([1, None, None], "2 missing"),
        ([1.0, float("nan")], "1 missing"),
        (np.array([1.0, np.nan]), "1 missing"),
        (np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"), "1 missing"),
        (np.ma.masked_array([1, 2], mask=[False, True]), "1 missing"),
        (np.zeros((2, 2)), "shape"),
        ([[1], [2]], "hashed"),
    ],
)
def test_unusable_ids_are_refused(ids, what):
    with pytest.raises(ValueError, match=what):
        Users(ids)


def test_there_is_one_id_per_label():
    with pytest.raises(ValueError, match="7 entries for 8 labels"):
        UserVault(LABELS, OWNERS[:-1], 3)


def test_some_rows_are_numbered_anew():
    some = Users(OWNERS).take([3, 5, 1, 3])
    assert some.ids.tolist() == ["cyd", "bob"]
    assert some.owner.tolist() == [0, 1, 1, 0]
    assert some.same_as(Users([10, 20, 20, 10]))
    assert not some.same_as(Users([10, 20, 10, 10]))


# --- which rows are kept ----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), max_size=40), st.integers(1, 6), st.integers(0, 3), st.booleans())
def test_at_most_k_rows_of_each_user_are_kept(ids, k, seed, resample):
    users = Users(np.array(ids, dtype=int))
    kept = cap_rows(users, k, resample=resample, seed=seed)
    per_user = np.bincount(users.owner[kept.rows], minlength=len(users))
    assert (per_user == np.minimum(users.sizes, k)).all()
    counted = np.bincount(users.owner[kept.rows[kept.listed()]], minlength=len(users))
    assert (counted == (k if resample else np.minimum(users.sizes, k))).all()
    assert (kept.repeats >= 1).all()
    assert len(set(kept.rows.tolist())) == len(kept.rows)


def test_rows_are_kept_and_repeated_uniformly():
    """Each of 5 rows is one of 2 kept with chance 2/5; each of 2 rows counts Binomial(3, 1/2) times more."""
    many, pairs = Users(np.repeat(np.arange(200_000), 5)), Users(np.repeat(np.arange(200_000), 2))
    places = np.bincount(cap_rows(many, 2).rows % 5, minlength=5)
    assert (np.abs(places - 80_000) < 6.2 * np.sqrt(200_000 * 0.4 * 0.6)).all()
    extra = np.bincount(cap_rows(pairs, 5).repeats[::2] - 1, minlength=4)
    chances = np.array([1, 3, 3, 1]) / 8
    assert (np.abs(extra - 200_000 * chances) < 6.2 * np.sqrt(200_000 * chances * (1 - chances))).all()


@pytest.mark.parametrize("k", [0, -1, 2.5, True, None])
def test_a_cap_is_a_count(k):
    with pytest.raises(ValueError, match="k is"):
        cap_rows(Users(OWNERS), k)


# --- who is charged what ----------------------------------------------------------------------------------------------


def test_a_user_pays_once_for_each_of_its_labels():
    box = vault()
    box.release(RR)
    assert spent(box) == {"ann": 2.0, "bob": 1.0, "cyd": 0.5, "dan": 0.5}
    assert box.certificate().epsilon == 2.0


def test_only_the_users_of_the_rows_asked_pay():
    box = vault()
    box.release(RR, rows=[3, 5, 1])
    assert spent(box) == {"ann": 0, "bob": 1.0, "cyd": 0.5, "dan": 0}
    box.release(RR, rows=np.array(OWNERS) == "dan")
    box.release(RR, rows=[])
    assert spent(box) == {"ann": 0, "bob": 1.0, "cyd": 0.5, "dan": 0.5}


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=20),
    st.lists(st.lists(st.integers(0, 19), unique=True), max_size=4),
)
def test_the_ledger_is_the_sum_over_a_users_rows(rows, queries):
    owners, labels = zip(*rows, strict=True)
    box, expected = UserVault(labels, owners, 3), dict.fromkeys(owners, 0.0)
    for query in queries:
        asked = [row for row in query if row < len(rows)]
        box.release(RR, rows=asked)
        for row in asked:
            expected[owners[row]] += 0.5
    assert spent(box) == expected
    assert box.certificate().epsilon == max(expected.values())


def test_the_certificate_speaks_of_users_and_holds():
    box = UserVault(LABELS, OWNERS, 3)
    box.release(RR)
    certificate = parse(box.certificate().dumps())
    assert verify(certificate) == ()
    assert certificate.unit.protects == "all labels of one user"
    assert sorted(group.rows for group in certificate.groups) == [1, 1, 2]


def test_answers_follow_the_rows_asked():
    truth = RandomizedResponse(epsilon=float("inf"), num_classes=3)
    assert vault().release(truth, rows=[7, 0, 1]).responses.tolist() == [2, 0, 1]


def test_past_the_budget_of_the_worst_user_nothing_happens():
    stored = []
    box = vault(budget=Budget(1.9), store=stored.append)
    with pytest.raises(BudgetExceededError, match="worst user to epsilon=2"):
        box.release(RR)
    assert stored == []
    assert box.certificate().epsilon == 0.0
    box.release(RR, rows=[0, 1, 2, 3])
    assert len(stored) == 1
    assert stored[0].num_rows == 4


def test_a_lease_pays_for_all_looks_of_all_users():
    box = vault()
    ask = box.lease(RR, 3, rows=[0, 2, 3])
    assert spent(box) == {"ann": 3.0, "bob": 0, "cyd": 1.5, "dan": 0}
    for _ in range(3):
        ask()
    with pytest.raises(BudgetExceededError):
        ask()


@pytest.mark.parametrize("times", [0, -2, 1.5, "2"])
def test_a_lease_of_nothing_is_refused(times):
    with pytest.raises(ValueError, match="times"):
        vault().lease(RR, times)


def test_kept_answers_are_recorded_per_user():
    box = vault()
    box.record(RR, rows=[0, 2])
    assert spent(box)["ann"] == 1.0


def test_reveal_is_honest_about_every_user():
    box = vault()
    assert box.reveal("a test").tolist() == LABELS
    assert box.certificate().epsilon == np.inf
    assert vault(budget=Budget(9.0)).certificate().epsilon == 0
    with pytest.raises(BudgetExceededError):
        vault(budget=Budget(9.0)).reveal("curiosity")


class Costs:
    """A mechanism that answers nothing and costs one label this event."""

    def __init__(self, event):
        self._event = event

    def fits(self, num_rows, num_classes):
        pass

    def event(self):
        return self._event

    def sample(self, labels, rng):
        return None


def test_group_privacy_of_each_kind_of_look():
    users = Users(OWNERS)
    gaussian = group_charges(Costs(Gaussian(3.0, 1.5)), users)
    assert [(c.event, c.users.tolist()) for c in gaussian] == [
        (Gaussian(3.0, 1.5), [2, 3]),
        (Gaussian(3.0, 3.0), [1]),
        (Gaussian(3.0, 6.0), [0]),
    ]
    pure = group_charges(Costs(PureDP(0.1)), users)
    assert [c.event.epsilon for c in pure][:2] == [0.1, 0.2]
    assert pure[2].event.epsilon >= 4 * 0.1
    assert group_charges(Costs(PureDP(np.inf)), users)[2].event.epsilon == np.inf


@pytest.mark.parametrize("event", [PoissonGaussian(1.0, 1.0, 2.0, 0.1), DiscreteGaussian(5.0, (1, 1))])
def test_looks_without_a_rule_for_groups_are_refused_unless_nobody_has_two_rows(event):
    box = vault(budget=Budget(100.0, 1e-6))
    with pytest.raises(ValueError, match="with 2 of its rows"):
        box.release(Costs(event))
    assert box.ledger.groups()[0].queries == ()
    box.release(Costs(event), rows=[0, 1, 3, 6])
    assert box.certificate().epsilon > 0


def test_an_honest_reason_stays_for_users_with_one_row():
    assert group_charges(Costs(NonPrivate("why")), Users([1]))[0].event == NonPrivate("why")


class ForUsers(Costs):
    """States its own cost: 1 for the first user asked, nothing for the others."""

    def charges(self, users):
        return [Charge(PureDP(1.0), 2, np.array([0]))]


def test_a_mechanism_made_for_users_says_what_it_costs():
    box = vault()
    box.release(ForUsers(PureDP(9.0)), rows=[5, 0])
    assert spent(box) == {"ann": 0, "bob": 2.0, "cyd": 0, "dan": 0}


# --- the vault stays a vault ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [iter, list, np.asarray, pickle.dumps, copy.copy, copy.deepcopy, lambda v: v[0]])
def test_labels_do_not_leave_by_accident(act):
    with pytest.raises(TypeError):
        act(vault())


def test_no_label_in_words():
    secret = UserVault([7777] * 3, [1, 2, 3], 10_000)
    for text in (repr(secret), str(secret), repr(secret.users), repr(secret.ledger)):
        assert "7777" not in text


class Indiscreet(Costs):
    """A mechanism whose error quotes a label."""

    def sample(self, labels, rng):
        raise RuntimeError(f"cannot handle {labels.tolist()}")


def test_a_failing_mechanism_cannot_quote_a_label_and_stays_charged():
    box = vault()
    with pytest.raises(MechanismError) as caught:
        box.release(Indiscreet(PureDP(1.0)))
    assert "[0, 1, 2" not in "".join(traceback.format_exception(caught.value))
    assert box.certificate().epsilon == 4.0


@pytest.mark.parametrize("question", ["rr", RandomizedResponse, None])
def test_what_is_no_mechanism_is_refused(question):
    with pytest.raises(ValueError, match="not a mechanism"):
        vault().release(question)


def test_a_forked_process_cannot_spend_behind_the_ledger():
    box = vault(budget=Budget(2.0))
    child = os.fork()
    if child == 0:
        try:
            box.release(RR)
        except RuntimeError:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def counted(tmp_path, name="looks", epsilon=1.0):
    return QueryCounter(tmp_path / f"{name}.counter", {"epsilon": epsilon})


def test_a_lease_with_a_tally_outlives_the_process(tmp_path):
    journal = Journal.open(tmp_path / "users.journal", Budget(9.0), unit=ONE_USER)
    question = UserResponse(1.0, 3, Users(OWNERS))
    for left, taken in ((3, 2), (1, 1), (0, 0)):
        box = vault(store=JournalStore(journal))
        with counted(tmp_path) as counter:
            ask = box.lease(question, 3, counter=counter)
            assert ask.remaining == left
            for _ in range(taken):
                ask()
        assert box.certificate().epsilon == 3.0
        assert journal.epsilon(0) == 3.0
    box.release(RR, rows=[0, 2, 1])
    assert journal.epsilon(0) == 4.5


def test_a_tally_belongs_to_its_users(tmp_path):
    with counted(tmp_path) as counter:
        vault().lease(UserResponse(1.0, 3, Users(OWNERS)), 2, counter=counter)
    others = UserVault(LABELS, range(8), 3, rng=SecureRandom(seed=1))
    with counted(tmp_path) as counter, pytest.raises(CounterError, match="users differs"):
        others.lease(UserResponse(1.0, 3, others.users), 2, counter=counter)


def test_a_tally_needs_one_cost_for_all(tmp_path):
    box = vault()
    with counted(tmp_path) as counter, pytest.raises(ValueError, match="costs users differently"):
        box.lease(RR, 2, counter=counter)
    assert box.certificate().epsilon == 0.0


def test_batches_named_by_row_are_refused():
    with pytest.raises(ValueError, match="does not charge row by row"):
        vault().lease_batches([RR, RR], 1, [[0], [1]])


def test_when_the_store_fails_nothing_is_charged_or_drawn():
    def full_disk(_):
        raise OSError("no space left")

    box = vault(store=full_disk)
    with pytest.raises(OSError, match="no space"):
        box.release(RR)
    assert box.certificate().epsilon == 0.0
