"""Plans: queries fixed in advance are drawn as reserved or not at all, and what a seed drew stays marked."""

import math

import numpy as np
import pytest

from labeldp import Budget, BudgetExceededError, LabelVault, RandomizedResponse
from labeldp.budgets.counter import CounterError, QueryCounter
from labeldp.budgets.keys import StoreError
from labeldp.budgets.store import BudgetStore
from labeldp.core import accountant
from labeldp.core.certificate import parse, verify
from labeldp.core.events import GridGaussian, PureDP, Query
from labeldp.core.random import SecureRandom
from labeldp.mechanisms.counts import GaussianNoise
from labeldp.mechanisms.moments import Moments

DELTA = 1e-5
LABELS = [0, 1, 1, 0, 1]
MOMENT = Moments(np.eye(5), 2, GaussianNoise(8.0), 1.0)
EVENT = GridGaussian(8.0, math.sqrt(2))
RR = RandomizedResponse(0.5, 2)
QUERIES = [(EVENT, 1, None), (PureDP(0.5), 1, None)]


def vault(**more):
    return LabelVault(LABELS, 2, **more)


def test_a_plan_costs_its_queries_composed_and_separate_queries_cost_more():
    box, apart = vault(), vault()
    plan = box.plan(QUERIES)
    assert box.certificate(DELTA).epsilon == 0.0
    plan.release(MOMENT)
    paid = box.certificate(DELTA).epsilon
    assert paid == accountant.epsilon([Query(EVENT), Query(PureDP(0.5))], DELTA)
    plan.release(RR)
    assert box.certificate(DELTA).epsilon == paid
    apart.release(MOMENT)
    apart.release(RR)
    assert apart.certificate(DELTA).epsilon > paid * 1.001


def test_only_what_was_reserved_can_be_drawn():
    plan = vault().plan([*QUERIES, (PureDP(0.25), 1, [0, 2])])
    plan.release(RR)
    with pytest.raises(BudgetExceededError, match="was drawn"):
        plan.release(RR)
    for mechanism, rows in [(RandomizedResponse(0.6, 2), None), (RandomizedResponse(0.25, 2), None),
                            (RandomizedResponse(0.25, 2), [0, 1])]:  # fmt: skip
        with pytest.raises(BudgetExceededError, match="not in the plan"):
            plan.release(mechanism, rows)
    assert len(plan.release(RandomizedResponse(0.25, 2), [2, 0])) == 2
    with pytest.raises(BudgetExceededError, match="not in the plan"):
        plan.reveal("for fun")


def test_a_plan_is_refused_whole_and_charged_once():
    kept = []
    box = vault(budget=Budget(0.9), store=kept.append)
    with pytest.raises(BudgetExceededError):
        box.plan([(PureDP(0.5), 1, None), (PureDP(0.45), 1, [1])])
    plan = box.plan([(PureDP(0.5), 1, None), (PureDP(0.4), 1, [1])])
    assert not kept
    plan.release(RR)
    plan.release(RandomizedResponse(0.4, 2), [1])
    assert len(kept) == 1
    assert box.certificate().epsilon == 0.9


def test_what_is_left_of_a_plan_is_gone_on_with():
    box = vault(budget=Budget(0.8))
    box.plan([(PureDP(0.5), 1, None), (PureDP(0.3), 1, None)]).release(RR)
    box.plan([(PureDP(0.3), 1, None)]).release(RandomizedResponse(0.3, 2))
    assert box.certificate().epsilon == 0.8
    with pytest.raises(BudgetExceededError):
        box.plan([(PureDP(0.3), 1, None)])


def test_a_certificate_of_plans_says_so_and_is_recomputed():
    box = vault()
    box.release(MOMENT)
    box.release(RR)
    text = box.certificate(DELTA).dumps()
    assert '"labeldp-certificate/2"' in text
    assert "fully adaptive filter" in text
    assert verify(parse(text)) == ()
    assert [len(group.plans) for group in parse(text).groups] == [2]
    one = vault()
    one.plan(QUERIES).release(MOMENT)
    assert '"labeldp-certificate/1"' in one.certificate(DELTA).dumps()


def test_a_named_plan_is_drawn_once_over_all_processes(tmp_path):
    """20 copies of a folder that has a plan's id and nothing else: the store counts what is drawn."""
    store = BudgetStore.open(tmp_path / "budgets.db")
    box = vault()
    store.create("visits", box, Budget(2.0, DELTA))
    first = vault(store=store.account(box))
    plan = first.plan(QUERIES, query_id="a" * 32)
    plan.release(MOMENT)
    paid = store.epsilon("visits")
    drawn = 0
    for _ in range(20):
        copy = vault(store=store.account(vault())).plan(QUERIES, query_id="a" * 32)
        copy.record(MOMENT)
        try:
            copy.release(RR)
            drawn += 1
        except StoreError:
            pass
    assert drawn == 1
    assert store.epsilon("visits") == paid


@pytest.mark.parametrize("counted", [False, True])
def test_a_part_of_a_named_plan_is_drawn_once_over_all_processes(tmp_path, counted):
    """What a plan's part draws is counted under the plan's id: copies of a folder, moved or not, draw it once."""
    store = BudgetStore.open(tmp_path / "budgets.db")
    store.create("visits", vault(), Budget(2.0, DELTA))
    drawn = 0
    for number in range(4):
        part = vault(store=store.account(vault())).plan(QUERIES, query_id="c" * 32).part()
        try:
            if counted:
                with QueryCounter(tmp_path / f"copy-{number}", {}) as counter:
                    part.lease(RR, 1, counter=counter)()
            else:
                part.release(RR)
            drawn += 1
        except StoreError:
            pass
    assert drawn == 1
    assert len(store.history("visits")) == 2


def test_a_plan_that_was_drawn_is_not_opened_again():
    box = vault()
    plan = box.plan(QUERIES, query_id="b" * 32)
    plan.release(MOMENT)
    plan.release(RR)
    with pytest.raises(BudgetExceededError, match="fewer queries left"):
        box.plan(QUERIES, query_id="b" * 32)


# -- seeds ---------------------------------------------------------------------------------------------------------


def test_a_recorded_release_of_a_seed_marks_the_certificate_for_ever():
    """Fault 2: the responses of a seeded vault, recorded by the next one, were certified as secure noise."""
    whole = vault()
    part = whole.part()
    part.record(RR, seeded=True)
    for box in (whole, part):
        assert box.seeded
        certificate = parse(box.certificate().dumps())
        assert certificate.seeded
        assert any("seed" in problem for problem in verify(certificate))
    assert not vault().seeded
    assert vault(rng=SecureRandom(seed=1)).seeded


def test_no_vault_goes_on_with_the_counter_of_a_seeded_one(tmp_path):
    path, question = tmp_path / "q.counter", {"epsilon": 1.0}
    with QueryCounter(path, question) as counter:
        vault(rng=SecureRandom(seed=1)).lease(RR, 3, counter=counter)()
    with QueryCounter(path, question) as counter, pytest.raises(CounterError, match="seeded"):
        vault().lease(RR, 3, counter=counter)
    with QueryCounter(path, question) as counter:
        again = vault(rng=SecureRandom(seed=1)).lease(RR, 3, counter=counter)
        assert again.remaining == 2


def test_assumptions_travel_with_the_certificate():
    whole = vault()
    whole.part().assume("The list of classes is public.")
    whole.release(RR)
    text = whole.certificate().dumps()
    assert parse(text).assumptions == ("The list of classes is public.",)
    assert verify(parse(text)) == ()
    assert '"labeldp-certificate/2"' in text
