from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeldp.core.events import Gaussian, NonPrivate, PureDP, Query
from labeldp.core.ledger import Budget, BudgetExceededError, Group, Ledger, check_budget, merge_disjoint, worst_epsilon


def test_disjoint_stages_cost_one_stage_and_merge_into_one_group():
    ledger = Ledger(10).charge(PureDP(1.0), rows=np.arange(4)).charge(PureDP(1.0), rows=np.arange(4, 10))
    assert ledger.epsilon(0) == 1.0
    assert ledger.groups() == (Group(10, ((Query(PureDP(1.0), 1),),)),)


def test_rows_asked_again_pay_again():
    ledger = Ledger(100).charge(PureDP(1.0)).charge(PureDP(0.5), rows=np.arange(10))
    assert ledger.epsilon(0) == 1.5
    assert {group.rows for group in ledger.groups()} == {10, 90}


def test_equal_queries_of_one_plan_in_another_order_are_one_history():
    a, b, first, second = PureDP(1.0), Gaussian(2.0, 1.0), np.array([0]), np.array([1])
    ledger = Ledger(2).charge_plan([(a, 1, first), (b, 1, first), (b, 1, second), (a, 1, second)])
    assert len(ledger.groups()) == 1
    assert len(Ledger(2).charge_plan([(a, 1, first), (b, 1, None)]).charge_plan([(a, 1, second)]).groups()) == 2


def test_a_ledger_never_changes():
    before = Ledger(5).charge(PureDP(1.0), rows=[1])
    before.charge(PureDP(1.0), rows=[1, 2])
    before.charge(PureDP(1.0))
    assert before.epsilon(0) == 1.0
    assert {group.rows for group in before.groups()} == {1, 4}


def test_times_multiply():
    assert Ledger(3).charge(PureDP(0.25), times=8).epsilon(0) == 2.0


def test_non_private_is_infinite_for_its_rows_only_counted_as_the_worst():
    assert Ledger(3).charge(NonPrivate("debugging"), rows=[2]).epsilon(1e-6) == np.inf


def test_charging_no_row_costs_nothing():
    assert Ledger(3).charge(PureDP(9.0), rows=[]).epsilon(0) == 0.0


def test_an_empty_data_set_still_remembers_what_was_asked():
    assert Ledger(0).charge(PureDP(1.0)).epsilon(0) == 1.0


@pytest.mark.parametrize("times", [0, -1, 1.5, True, float("nan")])
def test_looks_are_counted_from_one(times):
    with pytest.raises(ValueError, match="times"):
        Ledger(3).charge(PureDP(1.0), times=times)


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.5, 1.0]), st.sets(st.integers(0, 7))), max_size=8))
def test_the_claim_is_the_worst_row_counted_by_hand(charges):
    ledger, by_hand = Ledger(8), np.zeros(8)
    for epsilon, rows in charges:
        ledger = ledger.charge(PureDP(epsilon), rows=sorted(rows))
        by_hand[sorted(rows)] += epsilon
    assert ledger.epsilon(0) == pytest.approx(by_hand.max())
    assert sum(group.rows for group in ledger.groups()) == 8


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.5]), st.sets(st.integers(0, 5))), max_size=6), st.randoms())
def test_order_of_charges_does_not_matter(charges, random):
    def total(order):
        ledger = Ledger(6)
        for epsilon, rows in order:
            ledger = ledger.charge(PureDP(epsilon), rows=sorted(rows))
        return sorted(Counter(chain(*([repr(g.queries)] * g.rows for g in ledger.groups()))).items())

    shuffled = list(charges)
    random.shuffle(shuffled)
    assert total(charges) == total(shuffled)


def test_parts_that_share_no_row_lie_side_by_side():
    part = Ledger(4).charge(PureDP(1.0)).groups()
    assert merge_disjoint([part, part, part]) == (Group(12, part[0].plans),)


def test_a_look_listed_twice_counts_twice():
    twice = Group(1, ((Query(PureDP(1.0)), Query(PureDP(1.0))),))
    assert worst_epsilon((twice,), 0) == 2.0


def test_nobody_can_write_into_a_ledger():
    ledger = Ledger(3).charge(PureDP(1.0), rows=[1])
    with pytest.raises(ValueError, match="read-only"):
        ledger.history_of_row[:] = 0


def test_groups_inside_another_are_not_the_worst():
    big, small = (Query(PureDP(1.0), 3),), (Query(PureDP(1.0), 1),)
    assert worst_epsilon((Group(1, (small,)), Group(1, (big,)), Group(1, (big,))), 0) == 3.0


def test_three_looks_at_a_tenth_fit_a_budget_of_three_tenths():
    groups = Ledger(1).charge(PureDP(0.1), times=3).groups()
    check_budget(groups, Budget(0.3))
    with pytest.raises(BudgetExceededError, match="budget"):
        check_budget(groups, Budget(0.3 * (1 - 1e-9)))


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [("1", 0), (1, "0"), (True, 0), (-1, 0), (float("nan"), 0), (1, -0.1), (1, 1), (1, float("nan"))],
)
def test_senseless_budgets_are_refused(epsilon, delta):
    with pytest.raises(ValueError):
        Budget(epsilon, delta)
