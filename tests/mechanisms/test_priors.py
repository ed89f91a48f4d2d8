"""The sets of PriorResponse: optimal among all private answers, and without a rule for ties."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from labeldp.mechanisms.responses import PriorResponse, TopKResponse


def truthful(prior, epsilon, members):
    """P(answer = label) within a set."""
    return math.exp(epsilon) * np.sum(prior[members]) / (math.exp(epsilon) + members.sum() - 1)


def best_of_all_private_answers(prior, epsilon):
    """The linear program over every ε-private channel T[label, answer]."""
    size = len(prior)
    rows = []
    for response in range(size):
        for a in range(size):
            for b in set(range(size)) - {a}:
                row = np.zeros((size, size))
                row[a, response], row[b, response] = 1.0, -math.exp(epsilon)
                rows.append(row.ravel())
    sums = np.kron(np.eye(size), np.ones(size))
    result = linprog(
        -np.diag(prior).ravel(), A_ub=np.array(rows), b_ub=np.zeros(len(rows)), A_eq=sums, b_eq=np.ones(size)
    )
    return -result.fun


def off_by_one(prior, epsilon):
    """The planted bug: k maximises S_k/(e^ε + k − 2), with k counted from 0, instead of k − 1."""
    order = np.argsort(-prior, kind="stable")
    k = 1 + np.argmax(np.cumsum(prior[order]) / (math.exp(epsilon) + np.arange(len(prior)) - 1))
    return np.isin(np.arange(len(prior)), order[:k])


def test_sets_meet_the_linear_program_and_the_planted_bug_does_not():
    rng = np.random.default_rng(1)
    lost = 0
    for _ in range(40):
        size, epsilon = int(rng.integers(2, 7)), float(rng.uniform(0.05, 3))
        prior = rng.dirichlet(np.ones(size))
        best = best_of_all_private_answers(prior, epsilon)
        assert truthful(prior, epsilon, PriorResponse(epsilon, prior).members()) == pytest.approx(best, rel=1e-7)
        lost += truthful(prior, epsilon, off_by_one(prior, epsilon)) < best * (1 - 1e-4)
    assert lost > 0


@given(epsilon=st.floats(0, 50), size=st.integers(1, 10_000))
@settings(max_examples=40, deadline=None)
def test_uniform_prior_allows_everything_at_every_epsilon(epsilon, size):
    for weight in (1 / size, 0.1, 0.0):
        assert PriorResponse(epsilon, np.full(size, weight)).members().all()


def test_the_planted_bug_fails_on_the_uniform_prior():
    assert not off_by_one(np.full(5, 0.2), 0.5).all()


@given(
    weights=st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.3, 1.0]) | st.floats(0, 1), min_size=1, max_size=40),
    epsilon=st.floats(0, 20),
)
@settings(max_examples=300, deadline=None)
def test_sets_are_best_upper_and_fair_to_ties(weights, epsilon):
    prior = np.array(weights)
    members = PriorResponse(epsilon, prior).members()
    assert members.any()
    ranked = np.sort(prior)[::-1]
    sizes = np.arange(1, len(prior) + 1)
    best = np.max(np.cumsum(ranked) / (math.exp(epsilon) + sizes - 1))
    assert truthful(prior, epsilon, members) == pytest.approx(math.exp(epsilon) * best, rel=1e-9, abs=1e-300)
    if not members.all():
        assert prior[members].min() > prior[~members].max()


@given(scale=st.sampled_from([2.0**-30, 0.5, 1024.0]), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_scale_does_not_matter(scale, seed):
    prior = np.random.default_rng(seed).dirichlet(np.ones(7), 20)
    assert (PriorResponse(1.0, prior).members() == PriorResponse(1.0, prior * scale).members()).all()


def test_one_class_condition_of_the_docstring():
    prior = np.random.default_rng(3).dirichlet(np.ones(6), 200)
    gaps = np.maximum(prior[:, :, None] - prior[:, None, :], 0).sum(axis=1)
    assert (PriorResponse(0.8, prior).members() == (gaps <= prior * math.expm1(0.8))).all()


@pytest.mark.parametrize("classes", [2, 3, 300])
def test_rows_do_not_depend_on_how_they_are_cut(classes):
    prior = np.random.default_rng(3).dirichlet(np.ones(classes), 700)
    together = PriorResponse(1.0, prior).members()
    for row in (0, 255, 256, 699):
        assert (together[row] == PriorResponse(1.0, prior[row]).members()).all()


def test_larger_sets_for_larger_epsilon_and_single_precision():
    prior = np.random.default_rng(3).dirichlet(np.ones(10), 100)
    sizes = [PriorResponse(e, prior.astype(np.float32)).set_sizes() for e in (0.0, 0.5, 2.0, 8.0, math.inf)]
    assert all((a <= b).all() for a, b in itertools.pairwise(sizes))
    assert (sizes[0] == 1).all()
    assert (sizes[-1] == 10).all()


@pytest.mark.parametrize(
    ("epsilon", "prior", "members", "objective"),
    [
        (0.5, [0.5, 0.3, 0.1, 0.05, 0.05], [0], 0.5),
        (2.0, [0.5, 0.3, 0.1, 0.05, 0.05], [0, 1, 2], 0.7082874379454387),
        (1.0, [0.2] * 5, [0, 1, 2, 3, 4], 0.40460967519168967),
        (3.0, [0.9, 0.025, 0.025, 0.025, 0.025], [0], 0.9),
        (0.0, [0.5, 0.3, 0.1, 0.05, 0.05], [0], 0.5),
    ],
)
def test_reference_values(epsilon, prior, members, objective):
    channel = PriorResponse(epsilon, prior)
    assert np.flatnonzero(channel.members()).tolist() == members
    assert truthful(np.array(prior), epsilon, channel.members()) == pytest.approx(objective, rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1e-9])
def test_bad_priors_are_refused_with_a_count(bad):
    prior = np.full((4, 3), 0.3)
    prior[1, 2] = prior[3, 0] = bad
    for build in (PriorResponse, lambda e, p: TopKResponse.of_prior(e, p, 2)):
        with pytest.raises(ValueError, match="prior has 2 rows"):
            build(1.0, prior)


@pytest.mark.parametrize("prior", [1.0, np.zeros((2, 0)), np.zeros((2, 2, 2))])
def test_bad_shapes_are_refused(prior):
    with pytest.raises(ValueError, match="prior has shape"):
        PriorResponse(1.0, prior)


def test_later_changes_of_the_prior_do_not_matter():
    prior = np.array([0.9, 0.1])
    channel = PriorResponse(0.1, prior)
    prior[:] = 0.5
    assert channel.members().tolist() == [True, False]


def test_top_k_of_prior_breaks_ties_by_index():
    assert TopKResponse.of_prior(1.0, [0.2, 0.4, 0.2, 0.2], 2).members().tolist() == [True, True, False, False]
    with pytest.raises(ValueError, match="k is 5"):
        TopKResponse.of_prior(1.0, [0.2, 0.4, 0.2, 0.2], 5)
