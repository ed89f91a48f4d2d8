"""Priors from clusters: two queries that add up to ε, exactly; the published steps; resuming without a query."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from labeldp.core.certificate import verify
from labeldp.core.events import PureDP
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.features.clusters import kmeans
from labeldp.learning.optimisers import linear, sgd
from labeldp.learning.train import accuracy, fit
from labeldp.mechanisms.counts import GroupCounts, LaplaceNoise
from labeldp.mechanisms.responses import PriorResponse
from labeldp.recipes import lp_mst, per_row, ssl_prior
from labeldp.recipes.kept import load
from labeldp.recipes.ssl_prior import fitted_part, published_part, split_of, train
from tests.trained import StopHereError, stop_at, weights

K, N, C = 4, 2400, 12
TRAIN = functools.partial(fit, epochs=8, batch_size=64, optimizer=sgd(0.05), schedule=linear())


@functools.cache
def problem():
    """Four Gaussian clouds, and twelve clusters of them found without their labels."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, K, size=N)
    x = torch.from_numpy(3 * np.eye(K, 6)[labels] + generator.normal(size=(N, 6))).float()
    return x, labels, kmeans(x, C, seed=1)


def vault(budget=None, seed=None):
    return LabelVault(problem()[1], K, budget, rng=None if seed is None else SecureRandom(seed))


def network():
    torch.manual_seed(0)
    return nn.Linear(6, K)


def run(box, epsilon=1.0, fit=TRAIN, clusters=None, **settings):
    x, _, found = problem()
    return train(
        network(), x, box, epsilon=epsilon, fit=fit, clusters=found if clusters is None else clusters, **settings
    )


# -- the budget ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.3, 1 / 3, 1.0, 2.0, 4.7])
def test_the_ledger_says_exactly_epsilon(epsilon):
    box = vault(Budget(epsilon))
    run(box, epsilon)
    first, second = split_of(epsilon, N, C)
    (group,) = box.ledger.groups()
    assert {query.event: query.times for query in group.queries} == Counter([PureDP(first), PureDP(second)])
    assert box.certificate().epsilon == epsilon
    assert verify(box.certificate()) == ()


@given(st.floats(0, 100), st.floats(0, 1), st.integers(0, 10**7), st.integers(1, 10**4))
def test_the_parts_add_up_without_rounding(epsilon, share, rows, clusters):
    for given_part in (None, share * epsilon):
        first, second = split_of(epsilon, rows, clusters, given_part)
        assert Fraction(first) + Fraction(second) == Fraction(epsilon)
        assert first >= 0
        assert second >= 0
    if share * epsilon >= 1e-9:
        assert first == pytest.approx(share * epsilon, abs=1e-15 * max(epsilon, 1))


PUBLISHED_2021 = [(1.0, 100, 0.05), (1.0, 50, 0.025)]
PUBLISHED_2024 = [(0.01, 0.005), (0.02, 0.01), (0.05, 0.02), (0.18, 0.05), (0.29, 0.05), (0.5, 0.1), (1.6, 0.1)]


def test_the_rule_is_near_the_published_parts():
    for epsilon, clusters, part in PUBLISHED_2021:
        assert published_part(epsilon, 50_000, clusters) == pytest.approx(part)
    ratios = [published_part(epsilon, 50_000, 100) / part for epsilon, part in PUBLISHED_2024]
    assert ratios == pytest.approx([1, 1, 1.25, 1, 1, 0.5, 0.5])


def test_other_parts():
    assert split_of(1.0, 50_000, 100, prior_epsilon=0.05)[0] == pytest.approx(0.05)
    assert split_of(1.0, 50_000, 100, prior_epsilon=0.0) == (0.0, 1.0)
    assert split_of(1.0, 50_000, 100, prior_epsilon=1.0) == (1.0, 0.0)
    assert split_of(math.inf, 50_000, 100) == (0.0, math.inf)
    assert split_of(0.0, 50_000, 100) == (0.0, 0.0)
    assert fitted_part(2.0, 50_000, 100, 10) == pytest.approx(30 * math.sqrt(10) / 500)
    assert fitted_part(0.1, 50_000, 100, 10) == 0.1


def test_all_on_the_prior_responds_with_the_clusters_class(tmp_path):
    run(vault(seed=4), 0.2, prior_epsilon=0.2, folder=tmp_path)
    responses, groups = load(tmp_path / "responses.npz").responses, problem()[2].members.numpy()
    assert all(len(set(responses[groups == g])) == 1 for g in range(C))


@pytest.mark.parametrize("part", [-0.1, 1.1, math.nan, math.inf])
def test_a_part_that_is_none_is_refused_unpaid(part):
    box = vault()
    with pytest.raises(ValueError, match="epsilon"):
        run(box, 1.0, prior_epsilon=part)
    assert box.certificate().epsilon == 0.0


def joint_ratio(first, second, reach=8):
    """The largest log-ratio of P(counts, responses) over two rows of two classes in one cluster and one replacement.

    From the stated laws: discrete Laplace noise at `first`, then RRWithPrior at `second` under what it shows.
    """

    def channel(labels):
        cells = np.bincount(labels, minlength=2)
        table = {}
        for shown in itertools.product(range(-reach, reach), repeat=2):
            chance = math.exp(-first / 2 * np.abs(np.array(shown) - cells).sum())
            kept = np.clip(shown, 0, None)
            response = PriorResponse(second, kept / kept.sum() if kept.sum() else [0.5, 0.5])
            rows = [response.probabilities(y)[0] for y in labels]
            for responses in itertools.product(range(2), repeat=2):
                table[shown, responses] = chance * rows[0][responses[0]] * rows[1][responses[1]]
        return table

    channels = {labels: channel(labels) for labels in itertools.product(range(2), repeat=2)}
    pairs = [(a, b) for a in channels for b in channels if sum(x != y for x, y in zip(a, b, strict=True)) == 1]
    # An answer that the sets exclude is impossible under every label.
    assert all((channels[a][out] > 0) == (channels[b][out] > 0) for a, b in pairs for out in channels[a])
    return max(
        math.log(channels[a][out] / channels[b][out]) for a, b in pairs for out in channels[a] if channels[a][out] > 0
    )


def test_both_queries_together_are_epsilon_private_and_no_less():
    """Exact, over every pair of neighbours. Planted: the responses get ε instead of what is left of it."""
    first, second = split_of(1.5, 2, 1, prior_epsilon=0.5)
    assert joint_ratio(first, second) == pytest.approx(1.5, rel=1e-9)
    assert joint_ratio(first, 1.5) > 1.5 * 1.2


# -- the published steps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_the_steps_are_those_of_algorithm_4(epsilon, tmp_path):
    """The same noise through the steps written out here gives the same responses."""
    _, labels, clusters = problem()
    run(vault(seed=7), epsilon, folder=tmp_path, prior_epsilon=0.1)
    rng, groups, secret = SecureRandom(7), clusters.members.numpy(), labels.astype(np.uint8)
    first, second = split_of(epsilon, N, C, 0.1)
    noisy = np.zeros((C, K), dtype=np.int64)
    np.add.at(noisy, (groups, labels), 1)
    noisy += rng.discrete_laplace(Fraction(first) / 2, C * K).reshape(C, K)
    prior = np.empty((C, K))
    for g in range(C):
        positive = [max(0, h) for h in noisy[g]]
        prior[g] = [h / sum(positive) if sum(positive) else 1 / K for h in positive]
    responses = PriorResponse(second, prior[groups]).sample(secret, rng).responses
    assert np.array_equal(load(tmp_path / "responses.npz").responses, responses)


def test_a_cluster_that_noise_emptied_has_a_uniform_prior():
    """Five hundred clusters of one row at ε = 0.05: in some all four noisy counts are negative or zero."""
    box = LabelVault(np.zeros(500, dtype=int), K, rng=SecureRandom(0))
    prior = box.release(GroupCounts(np.arange(500), 500, K, LaplaceNoise(0.05))).probabilities()
    uniform = (prior == 0.25).all(axis=1)
    assert 5 < uniform.sum() < 100  # about 1/16 of them
    assert np.allclose(prior.sum(axis=1), 1.0)
    assert box.certificate().epsilon == 0.05


def test_the_prior_is_the_clusters_distribution():
    _, labels, clusters = problem()
    groups = clusters.members.numpy()
    box = vault()
    counts = GroupCounts(groups, C, K, LaplaceNoise(2.0))
    prior = box.release(counts).probabilities()
    assert prior.shape == (C, K)
    for g in range(C):
        truth = np.bincount(labels[groups == g], minlength=K) / (groups == g).sum()
        assert np.abs(prior[g] - truth).max() < 0.2
    assert box.ledger.histories[0][0][0].event == counts.event()


def expected_accuracy(channel, prior):
    """The mean chance that a response is the label, were the prior true."""
    inside = np.where(channel.members(), np.asarray(prior), 0.0).sum(axis=-1)
    return np.mean(inside / (1.0 + (channel.set_sizes() - 1.0) * math.exp(-channel.epsilon)))


def test_responses_under_the_prior_are_right_as_often_as_it_says():
    """Labels that follow the prior: 200,000 responses, six deviations. Far oftener than plain randomized response."""
    generator = np.random.default_rng(3)
    table = generator.dirichlet(np.full(K, 0.3), size=20)
    labels = np.concatenate([generator.choice(K, size=10_000, p=channel) for channel in table])
    prior = np.repeat(table, 10_000, axis=0)
    channel = PriorResponse(1.0, prior)
    kept = (channel.sample(labels.astype(np.uint8), SecureRandom(1)).responses == labels).mean()
    assert kept == pytest.approx(expected_accuracy(channel, prior), abs=6 * 0.5 / math.sqrt(200_000))
    assert expected_accuracy(channel, prior) > math.e / (math.e + K - 1) + 0.1
    assert expected_accuracy(PriorResponse(1.0, [0.25] * 4), [0.25] * 4) == pytest.approx(math.e / (math.e + 3))


# -- training ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learn", [lp_mst.hard_responses, lp_mst.posterior_of_model])
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_it_learns(learn, epsilon):
    x, labels, _ = problem()
    model = run(vault(seed=2), epsilon, learn=learn)
    assert accuracy(model, x, labels) > 0.85
    assert not model.training


def test_at_small_epsilon_it_beats_randomized_response():
    """ε = 0.3, plain responses are right 31% of the time; under the prior three times as often."""
    x, labels, _ = problem()
    plain = per_row.rr(network(), x, vault(seed=2), epsilon=0.3, fit=TRAIN)
    assert accuracy(run(vault(seed=2), 0.3), x, labels) > accuracy(plain, x, labels) + 0.1


def test_no_privacy_is_ordinary_training():
    x, labels, _ = problem()
    box = vault()
    assert accuracy(run(box, math.inf), x, labels) > 0.95
    assert box.certificate().epsilon == math.inf


def test_epsilon_zero_learns_nothing_and_costs_nothing():
    box = vault()
    assert torch.isfinite(weights(run(box, 0.0))).all()
    assert box.certificate().epsilon == 0.0


def test_one_class_and_one_row():
    box = LabelVault([0], 1)
    train(nn.Linear(6, 1), torch.zeros(1, 6), box, epsilon=1.0, fit=TRAIN, clusters=[0])
    assert box.certificate().epsilon == 1.0


def test_both_queries_or_none():
    box = vault(Budget(0.9))
    with pytest.raises(BudgetExceededError):
        run(box, 1.0)
    assert box.certificate().epsilon == 0.0
    with pytest.raises(BudgetExceededError):
        run(vault(Budget(0.6)), 1.0, prior_epsilon=0.5)  # two equal queries are two queries


def test_rows_that_do_not_match_are_refused_unpaid():
    box = vault()
    with pytest.raises(ValueError, match="10 rows"):
        train(network(), torch.zeros(10, 6), box, epsilon=1.0, fit=TRAIN, clusters=problem()[2])
    with pytest.raises(ValueError, match="clusters has"):
        run(box, clusters=[0, 1])
    assert box.certificate().epsilon == 0.0


# -- resuming ------------------------------------------------------------------------------------------------


def test_a_killed_run_resumes_without_asking_again(tmp_path):
    whole = weights(run(vault(seed=3)))
    box = vault(Budget(1.0), seed=3)

    stop = stop_at(epoch=3)

    with pytest.raises(StopHereError):
        run(box, fit=functools.partial(TRAIN, report=stop), folder=tmp_path)
    assert torch.equal(weights(run(box, folder=tmp_path)), whole)
    assert box.certificate().epsilon == 1.0
    later = vault(Budget(1.0), seed=99)
    assert torch.equal(weights(run(later, folder=tmp_path)), whole)
    assert later.certificate().epsilon == 1.0
    poor = vault(Budget(0.99))
    with pytest.raises(BudgetExceededError):
        run(poor, folder=tmp_path)
    assert poor.certificate().epsilon == 0.0


def test_a_run_killed_between_its_queries_draws_only_the_second(tmp_path, monkeypatch):
    whole = weights(run(vault(seed=3)))
    box = vault(Budget(1.0), seed=3)

    def killed(*_, **__):
        raise StopHereError

    with monkeypatch.context() as patched:
        patched.setattr(ssl_prior, "release_labels", killed)
        with pytest.raises(StopHereError):
            run(box, folder=tmp_path)
    assert box.certificate().epsilon == split_of(1.0, N, C)[0]
    assert torch.equal(weights(run(box, folder=tmp_path)), whole)
    assert box.certificate().epsilon == 1.0


def test_kept_releases_are_bound_to_their_query(tmp_path):
    run(vault(), 1.0, folder=tmp_path, prior_epsilon=0.25)
    box = vault()
    for other in (
        {"epsilon": 2.0, "prior_epsilon": 0.25},
        {"epsilon": 1.0, "prior_epsilon": 0.5},
        {"epsilon": 1.0, "prior_epsilon": 0.25, "clusters": problem()[2].members.roll(1)},
    ):
        with pytest.raises(ValueError, match="another query"):
            run(box, folder=tmp_path, **other)
    assert box.certificate().epsilon == 0.0
