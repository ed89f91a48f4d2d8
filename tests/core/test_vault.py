import copy
import os
import pickle
import traceback
from dataclasses import dataclass

import numpy as np
import pytest

from labeldp.core.certificate import verify
from labeldp.core.events import PureDP
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault, MechanismError
from labeldp.mechanisms.responses import PriorResponse, RandomizedResponse

LABELS = [0, 1, 2, 2, 1, 0, 0, 2]
RR = RandomizedResponse(epsilon=1.0, num_classes=3)


def vault(**more):
    return LabelVault(LABELS, 3, rng=SecureRandom(seed=1), **more)


def test_a_release_is_paid_for_and_certified():
    box = LabelVault(LABELS, 3)
    assert len(box.release(RR)) == 8
    certificate = box.certificate()
    assert (certificate.epsilon, certificate.delta) == (1.0, 0.0)
    assert verify(certificate) == ()


def test_rows_are_answered_in_the_order_asked():
    truth = RandomizedResponse(epsilon=float("inf"), num_classes=3)
    assert vault().release(truth, rows=[7, 0, 1]).responses.tolist() == [2, 0, 1]
    mask = np.arange(8) % 2 == 0
    assert vault().release(truth, rows=mask).responses.tolist() == [0, 2, 1, 0]


def test_disjoint_rows_compose_in_parallel_and_repeats_add_up():
    box = vault()
    box.release(RR, rows=[0, 1, 2])
    box.release(RR, rows=[3, 4])
    assert box.certificate().epsilon == 1.0
    box.release(RR, rows=[4, 5])
    assert box.certificate().epsilon == 2.0


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([0, 0], "1 repeats"),
        ([8], "1 entries outside"),
        ([-1], "1 entries outside"),
        ([0.5], "type float64"),
        ([[0]], r"shape \(1, 1\)"),
        ([True, False], "mask of shape"),
        (["a"], "type"),
    ],
)
def test_bad_rows_are_refused_before_anything_is_charged(rows, what):
    box = vault()
    with pytest.raises(ValueError, match=what):
        box.release(RR, rows=rows)
    assert box.certificate().epsilon == 0.0


def test_no_rows_is_an_answer_of_length_zero():
    assert len(vault().release(RR, rows=[])) == 0


def test_past_the_budget_nothing_is_charged_stored_or_drawn():
    stored = []
    box = vault(budget=Budget(1.5), store=stored.append)
    box.release(RR)
    with pytest.raises(BudgetExceededError, match=r"epsilon=1\.5"):
        box.release(RR)
    assert len(stored) == 1
    assert box.certificate().epsilon == 1.0
    box.release(RandomizedResponse(0.5, 3))


def test_a_lease_is_paid_in_full_before_its_first_look():
    box = vault(budget=Budget(3.0))
    ask = box.lease(RR, times=3)
    assert box.certificate().epsilon == 3.0
    for left in (2, 1, 0):
        ask()
        assert ask.remaining == left
    with pytest.raises(BudgetExceededError, match="used up"):
        ask()


@pytest.mark.parametrize("times", [0, -2])
def test_a_lease_of_nothing_is_refused(times):
    with pytest.raises(ValueError, match="times"):
        vault().lease(RR, times=times)


@dataclass(frozen=True)
class Spy:
    """Records in which order the vault does things."""

    log: list

    def fits(self, num_rows, num_classes):
        self.log.append("fits")

    def event(self):
        self.log.append("event")
        return PureDP(1.0)

    def sample(self, labels, rng):
        self.log.append("sample")
        assert not labels.flags.writeable
        return None


def test_fits_then_charge_then_store_then_sample():
    log = []
    vault(store=lambda ledger: log.append(("store", ledger.epsilon(0)))).release(Spy(log))
    assert log == ["fits", "event", ("store", 1.0), "sample"]


def test_when_the_store_fails_nothing_is_drawn():
    log = []

    def full_disk(_):
        raise OSError("no space left")

    box = vault(store=full_disk)
    with pytest.raises(OSError, match="no space"):
        box.release(Spy(log))
    assert "sample" not in log


@dataclass(frozen=True)
class Indiscreet(Spy):
    """A mechanism whose error quotes a label."""

    def sample(self, labels, rng):
        raise RuntimeError(f"cannot handle {labels.tolist()}")


def test_a_failing_mechanism_cannot_quote_a_label_and_stays_charged():
    box = vault()
    with pytest.raises(MechanismError) as caught:
        box.release(Indiscreet([]))
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "[0, 1, 2" not in "".join(traceback.format_exception(caught.value))
    assert box.certificate().epsilon == 1.0


@dataclass(frozen=True)
class Quitter(Spy):
    """A mechanism that ends the program with a label on its lips."""

    how: type = SystemExit

    def sample(self, labels, rng):
        raise self.how(f"label {labels.tolist()}")


@pytest.mark.parametrize(("how", "seen"), [(SystemExit, MechanismError), (KeyboardInterrupt, KeyboardInterrupt)])
def test_even_an_exit_does_not_carry_a_label_out(how, seen):
    with pytest.raises(seen) as caught:
        vault().release(Quitter([], how))
    assert "[0, 1, 2" not in "".join(traceback.format_exception(caught.value))


def test_no_frame_of_the_traceback_holds_the_labels():
    with pytest.raises(MechanismError) as caught:
        vault().release(Indiscreet([]))
    for frame, _ in traceback.walk_tb(caught.value.__traceback__):
        if "labeldp/private" in frame.f_code.co_filename:
            assert not any(isinstance(value, np.ndarray) for value in frame.f_locals.values())


def test_a_forked_process_cannot_spend_behind_the_ledger():
    box = vault(budget=Budget(1.0))
    ask = box.lease(RR, 1)
    child = os.fork()
    if child == 0:
        refused = 0
        for attempt in (lambda: box.release(RR), ask):
            try:
                attempt()
            except RuntimeError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def test_what_was_promised_cannot_be_changed_afterwards():
    box = vault(budget=Budget(1.0))
    lease = box.lease(RR, 1)
    for thing, name in ((box, "budget"), (box, "num_classes"), (box, "ledger"), (lease, "remaining")):
        with pytest.raises(AttributeError):
            setattr(thing, name, 1000)


def test_an_answer_kept_from_an_earlier_process_is_paid_for_without_drawing():
    log = []
    box = vault(budget=Budget(1.0))
    box.record(Spy(log), rows=[1, 2])
    assert box.certificate().epsilon == 1.0
    assert "sample" not in log
    with pytest.raises(BudgetExceededError):
        box.record(Spy(log), rows=[2])


@pytest.mark.parametrize("question", ["rr", RandomizedResponse, None, 1.0])
def test_what_is_no_mechanism_is_refused(question):
    with pytest.raises(ValueError, match="not a mechanism"):
        vault().release(question)


@pytest.mark.parametrize("budget", [1.0, "1", (1.0, 0.0)])
def test_what_is_no_budget_is_refused(budget):
    with pytest.raises(ValueError, match="Budget"):
        vault(budget=budget)


def test_a_mechanism_that_does_not_fit_is_refused_unpaid():
    box = vault()
    with pytest.raises(ValueError):
        box.release(RandomizedResponse(1.0, 4))
    with pytest.raises(ValueError):
        box.release(PriorResponse(1.0, np.ones((3, 3))))
    assert box.certificate().epsilon == 0.0


def test_reveal_is_honest():
    box = vault()
    assert box.reveal("a public benchmark").tolist() == LABELS
    assert box.certificate().epsilon == np.inf
    assert "a public benchmark" in box.certificate().dumps()


def test_reveal_is_refused_under_a_budget():
    with pytest.raises(BudgetExceededError, match="without bound"):
        vault(budget=Budget(100.0)).reveal("curiosity")


@pytest.mark.parametrize(
    "act", [iter, list, np.asarray, pickle.dumps, copy.copy, copy.deepcopy, lambda v: v[0], lambda v: 1 in v]
)
def test_labels_do_not_leave_by_accident(act):
    with pytest.raises(TypeError, match="LabelVault"):
        act(vault())


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy])
def test_leases_do_not_carry_labels_away(act):
    with pytest.raises(TypeError):
        act(vault().lease(RR, 1))


def test_no_label_in_words():
    secret = LabelVault([7777] * 3, 10_000)
    for text in (repr(secret), str(secret), f"{secret}", repr(secret.ledger), repr(secret.lease(Spy([]), 1))):
        assert "7777" not in text


def test_the_vault_keeps_its_own_copy():
    mine = np.array(LABELS)
    box = LabelVault(mine, 3)
    mine[:] = 0
    assert box.reveal("test").tolist() == LABELS


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        ([0, 1, 3], "1 out of range"),
        ([0, -1, 777], "2 out of range"),
        ([0.0, np.nan, 2.0], "1 missing"),
        ([0.0, np.inf, 2.0], "1 missing"),
        ([0, None, 2], "1 missing"),
        ([0.5, 1.0], "1 not whole"),
        ([None, 0.5, 777], "1 missing, 1 not whole numbers, 1 out of range"),
        (["no", "yes"], "encode them as integers"),
        ([0, "yes"], "encode them as integers"),
        (np.ma.masked_array([0, 777, 1], mask=[False, True, False]), "1 of them are masked"),
        ([[0], [1]], "shape"),
        (5, "shape"),
    ],
)
def test_unusable_labels_are_counted_never_quoted(labels, what):
    with pytest.raises(ValueError, match=what) as caught:
        LabelVault(labels, 3)
    assert "777" not in str(caught.value)
    assert "yes" not in str(caught.value)


@pytest.mark.parametrize("num_classes", [0, -1, 2.5, True, "3", None])
def test_classes_must_be_declared(num_classes):
    with pytest.raises(ValueError, match="num_classes"):
        LabelVault(LABELS, num_classes)


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0, 1, 1], dtype=np.int8),
        np.array([0, 1, 1], dtype=np.uint64),
        np.array([0.0, 1.0, 1.0], dtype=np.float32),
        np.array([False, True, True]),
        [0, 1, 1],
        np.array([0, 1, 1], dtype=object),
    ],
)
def test_any_way_to_write_integers_is_sealed(labels):
    assert LabelVault(labels, 2).reveal("test").tolist() == [0, 1, 1]


def test_other_libraries_arrays_are_sealed():
    pandas, torch, pyarrow = (pytest.importorskip(name) for name in ("pandas", "torch", "pyarrow"))
    for labels in (pandas.Series([0, 1, 1]), torch.tensor([0, 1, 1]), pyarrow.array([0, 1, 1])):
        assert LabelVault(labels, 2).reveal("test").tolist() == [0, 1, 1]
    with pytest.raises(ValueError, match="1 missing"):
        LabelVault(pandas.Series([0, None, 1], dtype="Int64"), 2)


@pytest.mark.parametrize(("labels", "classes"), [([], 1), ([], 5), ([0], 1)])
def test_tiny_vaults_work(labels, classes):
    box = LabelVault(labels, classes)
    assert len(box.release(RandomizedResponse(1.0, classes))) == len(labels)


def test_a_seeded_vault_says_so():
    assert vault().certificate().seeded
    assert "seed" in verify(vault().certificate())[0]
    assert not LabelVault(LABELS, 3).certificate().seeded


def test_seeds_repeat_and_secure_noise_does_not():
    many = [0] * 500

    def responses(rng):
        return LabelVault(many, 3, rng=rng).release(RR).responses.tolist()

    assert responses(SecureRandom(seed=3)) == responses(SecureRandom(seed=3))
    assert responses(None) != responses(None)


def test_rows_that_are_changed_after_they_were_planned_are_not_those_that_pay():
    rows, vault = np.array([0, 1], dtype=np.intp), LabelVault([0, 1, 2, 3], num_classes=4)
    plan = vault.plan([(PureDP(1.0), 1, rows)])
    rows[:] = [2, 3]
    plan.release(RandomizedResponse(1.0, 4), [0, 1])
    assert vault.ledger.charge(PureDP(1.0), rows=[2, 3]).epsilon(0.0) == 1.0
