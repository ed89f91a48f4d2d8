"""Plans chosen by earlier outcomes: what an adversary really gets, computed exactly, against what the filter states."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.core import accountant
from labeldp.core.events import DiscreteGaussian, Gaussian, NonPrivate, PoissonGaussian, PureDP, Query
from labeldp.core.gaussian import gaussian_epsilon, gaussian_profile, root
from labeldp.core.inverse import gaussian_mu
from labeldp.core.ledger import Budget, BudgetExceededError, Ledger, check_budget

DELTA = 1e-5
# privacy.md 9.5: a Gaussian first; after a high outcome one second query, after a low one another.
FIRST, SECOND, PURE = 0.15, 0.222, 0.4885


def plan(*events):
    return tuple(Query(event) for event in events)


def branching_delta(first, continuations, epsilon):
    """δ(ε) when the second query is the best of these for every outcome: the loss after the first is known exactly.

    L₁ = μz + μ²/2 under P with z standard normal; what is left to exceed is ε − L₁.
    """
    z = np.linspace(-12, 12, 20_001)
    weights = np.exp(-(z**2) / 2) / np.sum(np.exp(-(z**2) / 2))  # the trapezoidal rule, exact for such an integrand
    left = epsilon - (first * z + first**2 / 2)
    return float(np.sum(weights * np.max([Query(event).event.profile(left) for event in continuations], axis=0)))


def test_the_branching_adversary_breaks_flat_composition_and_not_the_filter():
    events = Gaussian(1.0, SECOND), PureDP(PURE)
    true = branching_delta(FIRST, events, 1.0)
    assert true == pytest.approx(1.9e-5, rel=0.05)
    flat = [accountant.epsilon(plan(Gaussian(1.0, FIRST), event), DELTA) for event in events]
    assert max(flat) <= 1.0001  # what a ledger that composes what happened would have stated, on either branch
    claims = [accountant.plans_epsilon((plan(Gaussian(1.0, FIRST)), plan(event)), DELTA) for event in events]
    assert branching_delta(FIRST, events, max(claims)) <= DELTA
    assert max(claims) > 1.0
    # A budget of ε = 1 stops at least one of the branches; what is left holds.
    allowed = [event for event, claim in zip(events, claims, strict=True) if claim <= 1.0]
    assert len(allowed) < 2


def test_a_ledger_keeps_the_budget_from_the_branching_adversary():
    after = Ledger(3).charge(Gaussian(1.0, FIRST))
    with pytest.raises(BudgetExceededError):
        check_budget(after.charge(PureDP(PURE)).groups(), Budget(1.0, DELTA))
    together = Ledger(3).charge_plan([(Gaussian(1.0, FIRST), 1, None), (PureDP(PURE), 1, None)])
    check_budget(together.groups(), Budget(1.0001, DELTA))


# -- trees: every choice by every outcome, exactly -----------------------------------------------------------------

# Event → outcomes as (P, Q): binary responses, and Gaussians cut into cells (post-processing).
PAIRS = {
    PureDP(e): [(1 / (1 + math.exp(-e)), 1 / (1 + math.exp(e))), (1 / (1 + math.exp(e)), 1 / (1 + math.exp(-e)))]
    for e in (0.05, 0.1, 0.2, 0.4)
}
for mu in (0.05, 0.1, 0.2, 0.3):
    edges = np.concatenate([[-np.inf], np.linspace(-5, 5 + mu, 61), [np.inf]])
    cdf = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)))
    PAIRS[Gaussian(1.0, mu)] = list(zip(np.diff(cdf(edges - mu)), np.diff(cdf(edges)), strict=True))
EVENTS = list(PAIRS)


def worst_delta(stated, history, epsilon, delta, loss=0.0, depth=3):
    """The most an adversary gains who, after every outcome, takes the best plan that the rule `stated` still lets pass.

    H(ε) of the whole = Σ over outcomes of P·(gain below), where stopping with total loss L gains (1 − e^{ε−L})₊.
    """
    best = max(0.0, 1 - math.exp(min(epsilon - loss, 50.0)))
    if depth == 0:
        return best
    for event in EVENTS:
        after = (*history, plan(event))
        if stated(after, delta) > epsilon:
            continue
        gain = sum(
            p * worst_delta(stated, after, epsilon, delta, loss + math.log(p / q), depth - 1)
            for p, q in PAIRS[event]
            if p > 1e-300 and q > 1e-300
        )
        best = max(best, gain)
    return best


def flat_epsilon(history, delta):
    """The rule that was: compose what happened."""
    return accountant.epsilon(itertools.chain(*history), delta)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-2), (0.6, 2e-3), (0.3, 5e-3)])
def test_no_tree_of_choices_beats_the_filter(epsilon, delta):
    assert worst_delta(accountant.plans_epsilon, (), epsilon, delta, depth=2) <= delta


def test_the_search_finds_trees_that_beat_flat_composition():
    """The planted wrong filter: the same search must break it."""
    assert worst_delta(flat_epsilon, (), 0.5, 1e-2, depth=2) > 1e-2 * 1.02


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_random_deep_trees_stay_within_the_claim(data):
    """Random plans by outcome, four deep, of binary responses; the gain is summed over all outcomes."""
    epsilon, delta = data.draw(st.sampled_from([(0.6, 1e-2), (1.0, 1e-3), (0.4, 5e-2)]))
    pure = [event for event in EVENTS if isinstance(event, PureDP)]
    choices = data.draw(st.randoms(use_true_random=False))

    def gain(history, loss, depth):
        event = choices.choice(pure)
        after = (*history, plan(event))
        if depth == 0 or accountant.plans_epsilon(after, delta) > epsilon:
            return max(0.0, 1 - math.exp(epsilon - loss))
        return sum(p * gain(after, loss + math.log(p / q), depth - 1) for p, q in PAIRS[event])

    assert gain((), 0.0, 7) <= delta


# -- the filters by themselves ---------------------------------------------------------------------------------------


def test_one_plan_costs_what_it_cost_before():
    queries = plan(Gaussian(4.0, 1.0), PureDP(0.3), PoissonGaussian(2.0, 1.0, 2.0, 0.01))
    assert accountant.plans_epsilon((queries,), DELTA) == accountant.epsilon(queries, DELTA)
    assert accountant.plans_epsilon((queries, plan(PureDP(0.0))), DELTA) == accountant.epsilon(queries, DELTA)
    assert accountant.plans_epsilon((), DELTA) == 0.0


def test_pure_plans_add_up_exactly_without_delta():
    assert accountant.plans_epsilon((plan(PureDP(0.1)),) * 3, 0.0) == accountant.epsilon([Query(PureDP(0.1), 3)], 0.0)
    assert accountant.plans_epsilon((plan(PureDP(0.1)), plan(Gaussian(9.0, 1.0))), 0.0) == math.inf
    assert accountant.plans_epsilon((plan(PureDP(0.1)), plan(NonPrivate("why"))), DELTA) == math.inf


def test_gaussian_plans_cost_one_gaussian_at_their_share():
    many = (plan(Gaussian(4.0, 1.0)),) * 9
    assert accountant.plans_epsilon(many, DELTA) == pytest.approx(gaussian_epsilon(0.75, 0.8 * DELTA), rel=1e-9)


@pytest.mark.parametrize("runs", [2, 3, 10])
def test_runs_of_dp_sgd_grow_like_the_root_of_their_number(runs):
    steps = (Query(PoissonGaussian(2.0, 1.0, 2.0, 0.01), 1000),)
    one, exact = accountant.epsilon(steps, DELTA), accountant.epsilon(steps * runs, DELTA)
    assert exact < accountant.plans_epsilon((steps,) * runs, DELTA) < min(1.18 * exact, runs * one)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from([*EVENTS, DiscreteGaussian(9.0, (1, 1))]), min_size=1, max_size=3), min_size=2,
                max_size=5), st.sampled_from([1e-8, 1e-5, 1e-2]))  # fmt: skip
def test_a_history_costs_at_least_its_queries_and_grows(lists, delta):
    plans = tuple(plan(*events) for events in lists)
    whole = accountant.plans_epsilon(plans, delta)
    assert whole >= accountant.epsilon(itertools.chain(*plans), delta) * (1 - 1e-9)
    assert whole >= accountant.plans_epsilon(plans[:-1], delta) * (1 - 1e-9)
    assert accountant.plans_epsilon(plans, 2 * delta) <= whole * (1 + 1e-9)


@pytest.mark.parametrize("tilt", [0.5, 7.0, 40.0])
def test_log_moments_of_the_grid_are_those_of_the_event_rounded_up(tilt):
    def gaussian_by_grid(mu):
        return accountant.log_moment(Gaussian(1.0, mu), tilt)

    for mu in (mu for mu in (0.02, 0.3, 2.0) if mu * tilt < 6):  # further out losses are left out on purpose
        exact = tilt * (tilt + 1) * mu**2 / 2
        assert exact <= gaussian_by_grid(mu) <= exact * (1 + 1e-5) + 2e-13
    sampled = accountant.log_moment(PoissonGaussian(2.0, 1.0, 2.0, 0.01), tilt)
    assert 0 < sampled < tilt * (tilt + 1) / 2


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1, 0.9])
def test_what_passes_at_an_epsilon_passes_at_every_larger_one(delta):
    """The K/λ that the Rényi filter allows grows with ε: the claim in the module's text, over eleven decades."""
    log_delta, eps = -math.log(delta), np.geomspace(1e-6, 1e5, 4000)
    tilt = (log_delta + np.sqrt(log_delta * (log_delta + eps))) / eps
    allowed = eps + np.log1p(1 / tilt) - (log_delta - np.log1p(tilt)) / tilt
    assert np.all(np.diff(allowed) > 0)
    assert np.all(np.diff(tilt) < 0)


def test_the_shares_add_up():
    for shares in (accountant._AFTER_GAUSSIAN, accountant._AFTER_OTHERS):
        assert sum(shares) <= 1
    assert sum(6 / (math.pi * j) ** 2 for j in range(1, 10**6)) < 1


def test_a_gaussian_filling_the_budget_is_close_to_its_exact_cost():
    mu = gaussian_mu(1.0, DELTA)
    half = plan(Gaussian(1.0, mu / math.sqrt(2)))
    assert 1.0 < accountant.plans_epsilon((half, half), DELTA) < 1.015
    assert root(lambda e: float(gaussian_profile(mu, np.array([e]))[0]) - DELTA, 0.5, 2.0) == pytest.approx(1.0)
