"""The best bins: against every partition, and against every ε-private randomizer there is."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from labeldp.learning.bins import expected_loss, nearest_distribution, optimal_bins
from labeldp.mechanisms.values import BinnedResponse


def huber(outputs, labels):
    gap = np.abs(outputs - labels)
    return np.where(gap < 0.3, gap**2, 0.6 * gap - 0.09)


def poisson(outputs, labels):
    return outputs - labels * np.log(outputs)


LOSSES = {"squared": "squared", "absolute": "absolute", "huber": huber}


def random_problem(seed, m, candidates):
    chance = np.random.default_rng(seed)
    histogram = chance.exponential(size=m) ** 2 * (chance.random(m) < 0.8)
    values = np.sort(chance.random(m))
    outputs = values if candidates == m else np.sort(chance.random(candidates))
    return histogram, values, outputs


def least_over_all_partitions(histogram, values, epsilon, loss, candidates):
    m, best = len(values), math.inf
    for cuts in itertools.product([0, 1], repeat=m - 1):
        bins = np.concatenate([[0], np.cumsum(cuts)]).astype(int)
        for outputs in itertools.product(candidates, repeat=bins[-1] + 1):
            best = min(best, expected_loss(histogram, values, epsilon, bins, outputs, loss))
    return best


def least_over_all_randomizers(histogram, values, epsilon, losses):
    """Linear programme: rows Q(y, ·) sum to 1 and t_o ≤ Q(y, o) ≤ e^ε t_o for every output o."""
    c, m = losses.shape
    weights = histogram / histogram.sum() if histogram.sum() else np.full(m, 1 / m)
    cost = np.concatenate([(losses.T * weights[:, None]).ravel(), np.zeros(c)])
    low = np.hstack([-np.eye(m * c), np.tile(np.eye(c), (m, 1))])
    high = np.hstack([np.eye(m * c), -math.exp(epsilon) * np.tile(np.eye(c), (m, 1))])
    sums = np.hstack([np.kron(np.eye(m), np.ones(c)), np.zeros((m, c))])
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    limits = np.vstack([low, high]), np.zeros(2 * m * c)
    response = linprog(cost, *limits, sums, np.ones(m), bounds=(0, None), options=tight)
    assert response.status == 0
    return response.fun


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("seed", range(3))
def test_no_partition_is_better(loss, epsilon, seed):
    histogram, values, candidates = random_problem(seed, 4, 5)
    bins, outputs = optimal_bins(histogram, values, epsilon, loss, candidates)
    found = expected_loss(histogram, values, epsilon, bins, outputs, loss)
    assert found == pytest.approx(least_over_all_partitions(histogram, values, epsilon, loss, candidates), rel=1e-9)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@given(seed=st.integers(0, 10**6), m=st.integers(1, 9), epsilon=st.floats(0, 6))
@settings(max_examples=25, deadline=None)
def test_no_private_randomizer_is_better(loss, seed, m, epsilon):
    """The theorem of the paper: the optimum over all ε-private channels onto the same outputs is reached."""
    histogram, values, candidates = random_problem(seed, m, m)
    bins, outputs = optimal_bins(histogram, values, epsilon, loss, candidates)
    found = expected_loss(histogram, values, epsilon, bins, outputs, loss)
    losses = {"squared": np.square, "absolute": np.abs}.get(loss, lambda gap: huber(gap, 0.0))(
        candidates[:, None] - values
    )
    assert found == pytest.approx(least_over_all_randomizers(histogram, values, epsilon, losses), rel=1e-8, abs=1e-9)


def test_a_loss_that_is_no_function_of_the_distance():
    histogram, values = np.array([5.0, 3, 2, 1, 1, 1]), np.arange(1.0, 7.0)
    bins, outputs = optimal_bins(histogram, values, 2.0, poisson)
    found = expected_loss(histogram, values, 2.0, bins, outputs, poisson)
    losses = poisson(values[:, None], values)
    assert found == pytest.approx(least_over_all_randomizers(histogram, values, 2.0, losses), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("seed", range(5))
def test_real_outputs_are_what_an_ever_finer_grid_of_outputs_tends_to(epsilon, seed):
    histogram, values, _ = random_problem(seed, 20, 20)
    free, fine = (
        expected_loss(histogram, values, epsilon, *optimal_bins(histogram, values, epsilon, "squared", candidates))
        for candidates in (None, np.linspace(0, 1, 2001))
    )
    assert free <= fine * (1 + 1e-12)
    assert fine <= free + 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_the_table_over_the_number_of_bins_agrees(seed):
    """The cubic dynamic programme over (number of bins, right end), written out from its definition."""
    histogram, values, _ = random_problem(seed, 30, 30)
    weights, odds, m = histogram / histogram.sum(), math.exp(-2.0), 30
    losses = np.abs(values[:, None] - values) * weights
    table = np.full((m + 1, m + 1), np.inf)
    table[0, 0] = 0.0
    for k, end in itertools.product(range(1, m + 1), range(1, m + 1)):
        for start in range(end):
            cost = ((1 - odds) * losses[:, start:end].sum(axis=1) + odds * losses.sum(axis=1)).min()
            table[k, end] = min(table[k, end], table[k - 1, start] + cost)
    best = min(table[k, m] / (1 + (k - 1) * odds) for k in range(1, m + 1))
    bins, outputs = optimal_bins(histogram, values, 2.0, "absolute")
    assert expected_loss(histogram, values, 2.0, bins, outputs, "absolute") == pytest.approx(best, rel=1e-10)


def test_the_expected_loss_is_that_of_the_mechanism():
    histogram, values, _ = random_problem(3, 12, 12)
    bins, outputs = optimal_bins(histogram, values, 1.5)
    channel = BinnedResponse(1.5, bins, outputs)
    chances = np.concatenate([channel.probabilities(level) for level in range(12)])[:, : len(outputs)]
    direct = (histogram / histogram.sum()) @ (chances * (outputs - values[:, None]) ** 2).sum(axis=1)
    assert expected_loss(histogram, values, 1.5, bins, outputs) == pytest.approx(direct, rel=1e-12)


def test_squared_outputs_are_posterior_means():
    histogram, values, _ = random_problem(4, 15, 15)
    bins, outputs = optimal_bins(histogram, values, 3.0)
    likelihood = np.exp(BinnedResponse(3.0, bins, outputs).log_likelihood(np.arange(len(outputs))))
    posterior = likelihood * histogram
    assert len(outputs) > 2
    assert outputs == pytest.approx(posterior @ values / posterior.sum(axis=1), rel=1e-9)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@given(seed=st.integers(0, 10**6), m=st.integers(1, 40), epsilon=st.floats(0, 1000))
@settings(max_examples=40, deadline=None)
def test_bins_are_bins(loss, seed, m, epsilon):
    histogram, values, _ = random_problem(seed, m, m)
    bins, outputs = optimal_bins(histogram, values, epsilon, loss)
    channel = BinnedResponse(epsilon, bins, outputs)
    assert channel.num_classes == m
    assert (np.diff(outputs) > 0).all()
    assert values[0] <= outputs[0]
    assert outputs[-1] <= values[-1]


def test_no_budget_is_one_bin_and_no_privacy_is_every_level():
    histogram, values = np.array([4.0, 0, 3, 2, 0]), np.arange(5.0)
    bins, outputs = optimal_bins(histogram, values, 0.0)
    assert bins.tolist() == [0] * 5
    assert outputs == pytest.approx([12 / 9])
    for epsilon in (math.inf, 5000.0):
        for loss in LOSSES.values():
            bins, outputs = optimal_bins(histogram, values, epsilon, loss)
            assert bins.tolist() == [0, 1, 2, 3, 4]
            assert outputs.tolist() == values.tolist()


def test_levels_that_never_occur_join_the_nearer_output():
    bins, outputs = optimal_bins([5, 0, 0, 0, 0, 5], np.arange(6.0), 6.0)
    assert bins.tolist() == [0, 0, 0, 1, 1, 1]
    assert len(outputs) == 2


@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_units_do_not_matter(scale):
    histogram, values, _ = random_problem(7, 50, 50)
    bins, outputs = optimal_bins(histogram, values, 2.0)
    moved, scaled = optimal_bins(histogram * scale, values * 1e4 + 1e6, 2.0)
    assert (bins == moved).all()
    assert scaled == pytest.approx(outputs * 1e4 + 1e6, rel=1e-9)


def test_one_level_and_an_empty_histogram():
    assert optimal_bins([3.0], [7.0], 1.0)[1].tolist() == [7.0]
    empty, uniform = (optimal_bins(h, np.arange(4.0), 2.0) for h in (np.zeros(4), np.ones(4)))
    assert empty[0].tolist() == uniform[0].tolist()
    assert empty[1].tolist() == uniform[1].tolist()


@pytest.mark.parametrize("loss", ["squared", "absolute"])
def test_512_levels_take_no_time(loss):
    histogram = np.random.default_rng(0).exponential(size=512) * np.exp(-np.arange(512) / 100)
    start = time.process_time()
    optimal_bins(histogram, np.linspace(0, 1, 512), 3.0, loss)
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"histogram": [1.0, -1.0]}, "negative"),
        ({"histogram": [1.0, math.nan]}, "not finite"),
        ({"histogram": [1.0]}, "histogram has shape"),
        ({"grid_values": [1.0, 1.0]}, "increasing"),
        ({"grid_values": [0.0, math.inf]}, "finite"),
        ({"epsilon": -1.0}, "epsilon is"),
        ({"epsilon": math.nan}, "epsilon is"),
        ({"loss": "cubic"}, "loss is 'cubic'"),
        ({"loss": lambda o, y: np.full((len(o), y.shape[1]), np.inf)}, "loss is not finite"),
        ({"candidates": []}, "candidates"),
    ],
)
def test_bad_arguments(change, words):
    good = {"histogram": [1.0, 2.0], "grid_values": [0.0, 1.0], "epsilon": 1.0}
    with pytest.raises(ValueError, match=words):
        optimal_bins(**(good | change))


@given(st.lists(st.integers(-50, 200), min_size=1, max_size=40), st.integers(1, 500))
def test_nearest_distribution_is_the_projection(counts, total):
    found = nearest_distribution(counts, total)
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1.0, rel=1e-9)
    # Optimality of a projection on the simplex: no vertex lies on the far side of the tangent plane.
    residual = np.array(counts) / total - found
    assert residual.max() <= residual @ found + 1e-9 * (1 + np.abs(residual).max())


def test_nearest_distribution_of_nobody_is_uniform():
    assert nearest_distribution([3, -5], 0).tolist() == [0.5, 0.5]
