"""Cluster votes: the majority of every cluster for ε in all, by three ways of voting, and a model trained on it."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from torch import nn

from labeldp.core.certificate import verify
from labeldp.core.events import PureDP
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.features.clusters import kmeans
from labeldp.learning.optimisers import linear, sgd
from labeldp.learning.train import accuracy, fit
from labeldp.mechanisms.counts import GaussianNoise, LaplaceNoise
from labeldp.mechanisms.selection import GroupVotes
from labeldp.recipes.cluster_votes import gaussian_counts, label, laplace_counts, permute_and_flip, train
from tests.trained import weights

K, N = 4, 2400
TRAIN = functools.partial(fit, epochs=8, batch_size=64, optimizer=sgd(0.05), schedule=linear())


@functools.cache
def problem():
    """Four Gaussian clouds, and twelve clusters of them found without their labels."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, K, size=N)
    x = torch.from_numpy(3 * np.eye(K, 6)[labels] + generator.normal(size=(N, 6))).float()
    return x, labels, kmeans(x, 12, seed=1)


def vault(budget=None, seed=None):
    return LabelVault(problem()[1], K, budget, rng=None if seed is None else SecureRandom(seed))


def network():
    torch.manual_seed(0)
    return nn.Linear(6, K)


def majority():
    _, labels, clusters = problem()
    table = np.zeros((12, K), dtype=np.int64)
    np.add.at(table, (clusters.members.numpy(), labels), 1)
    return table.argmax(axis=1)


VOTES = [(permute_and_flip, 0.0), (laplace_counts, 0.0), (gaussian_counts, 1e-5)]
every_vote = pytest.mark.parametrize(("vote", "delta"), VOTES, ids=[vote.__name__ for vote, _ in VOTES])


@every_vote
def test_clusters_get_their_majority_and_all_together_cost_epsilon(vote, delta):
    x, labels, clusters = problem()
    box = vault(Budget(1.0, delta), seed=2)
    found = label(clusters, box, epsilon=1.0, delta=delta, vote=vote)
    assert np.array_equal(found.winners, majority())
    assert np.array_equal(found.labels, found.winners[clusters.members.numpy()])
    assert (found.labels == labels).mean() > 0.9
    assert 0.99 < found.certificate.epsilon <= 1.0 * (1 + 1e-12)
    assert found.certificate.delta == delta
    assert (found.counts is None) == (vote is permute_and_flip)
    assert np.array_equal(found.predict(clusters.assign(x[:50])), found.labels[:50])
    (group,) = box.ledger.groups()
    assert [query.times for query in group.queries] == [1]


def test_a_certificate_of_secure_noise_verifies():
    found = label(problem()[2], vault(), epsilon=0.5)
    assert found.certificate.epsilon == 0.5
    assert verify(found.certificate) == ()


@every_vote
def test_a_model_learns_from_the_clusters(vote, delta):
    x, labels, clusters = problem()
    box = vault(Budget(0.5, delta), seed=2)
    model = train(network(), x, box, epsilon=0.5, delta=delta, fit=TRAIN, clusters=clusters, vote=vote)
    assert accuracy(model, x, labels) > 0.85
    assert box.certificate().epsilon <= 0.5 * (1 + 1e-12)


@every_vote
def test_a_killed_run_resumes_without_asking_again(vote, delta, tmp_path):
    x, _, clusters = problem()
    run = functools.partial(train, epsilon=0.5, delta=delta, clusters=clusters, vote=vote)
    whole = weights(run(network(), x, vault(seed=3), fit=TRAIN))
    box = vault(Budget(0.5, delta), seed=3)

    def stop(progress):
        if progress.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(network(), x, box, fit=functools.partial(TRAIN, report=stop), folder=tmp_path)
    assert torch.equal(weights(run(network(), x, box, fit=TRAIN, folder=tmp_path)), whole)
    assert box.certificate().epsilon <= 0.5 * (1 + 1e-12)
    later = vault(Budget(0.5, delta), seed=99)
    assert torch.equal(weights(run(network(), x, later, fit=TRAIN, folder=tmp_path)), whole)
    assert later.certificate() == box.certificate()
    with pytest.raises(BudgetExceededError):
        run(network(), x, vault(Budget(0.1, delta)), fit=TRAIN, folder=tmp_path)


def test_kept_votes_are_bound_to_their_question(tmp_path):
    _, _, clusters = problem()
    label(clusters, vault(), epsilon=0.5, folder=tmp_path)
    box = vault()
    for other in (
        {"clusters": clusters, "epsilon": 0.2},
        {"clusters": clusters, "epsilon": 0.5, "vote": laplace_counts},
        {"clusters": clusters.members.roll(1), "epsilon": 0.5},
        {"clusters": kmeans(problem()[0], 11, seed=1), "epsilon": 0.5},
    ):
        with pytest.raises(ValueError, match="another query"):
            label(vault=box, folder=tmp_path, **other)
    assert box.certificate().epsilon == 0.0


def test_too_little_budget_is_refused_before_anything_is_drawn():
    box = vault(Budget(0.4))
    with pytest.raises(BudgetExceededError):
        label(problem()[2], box, epsilon=0.5)
    with pytest.raises(ValueError, match="delta"):
        label(problem()[2], box, epsilon=0.3, vote=gaussian_counts)
    assert box.certificate().epsilon == 0.0


@pytest.mark.parametrize("numbers", [list, np.asarray, torch.tensor])
def test_clusters_may_be_plain_numbers(numbers):
    box = LabelVault([0, 0, 1, 1], 2)
    found = label(numbers([0, 0, 2, 2]), box, epsilon=math.inf)
    assert found.winners[[0, 2]].tolist() == [0, 1]
    assert len(found.winners) == 3
    assert found.labels.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("clusters", [[0, 1], [0.0] * 4, [[0, 1, 0, 1]], [0, -1, 0, 1]])
def test_clusters_that_do_not_number_the_rows_are_refused_unpaid(clusters):
    box = LabelVault([0, 0, 1, 1], 2)
    with pytest.raises(ValueError, match=r"clusters has|groups has"):
        label(clusters, box, epsilon=1.0)
    assert box.certificate().epsilon == 0.0


def test_rows_that_do_not_match_are_refused_unpaid():
    box = vault()
    with pytest.raises(ValueError, match="10 rows"):
        train(network(), torch.zeros(10, 6), box, epsilon=1.0, fit=TRAIN, clusters=problem()[2])
    assert box.certificate().epsilon == 0.0


def test_epsilon_zero_tells_nothing():
    box = vault(seed=1)
    found = label(problem()[2], box, epsilon=0.0)
    assert found.certificate.epsilon == 0.0
    assert box.ledger.histories[0][0][0].event == PureDP(0.0)


@pytest.mark.parametrize("epsilon", [0.02, 0.05, 0.1, 0.2])
def test_the_winners_alone_keep_more_rows_right_than_noisy_counts(epsilon):
    """100 uneven clusters of 50,000 rows, ten classes. Permute-and-flip exactly, the others by 40 draws each."""
    generator = np.random.default_rng(5)
    sizes = generator.multinomial(50_000, generator.dirichlet(np.full(100, 4.0)))
    table = np.stack([generator.multinomial(size, generator.dirichlet(np.full(10, 0.3))) for size in sizes])
    best = (GroupVotes([], 100, 10, epsilon).chances(table) * table).sum() / table.sum()
    rng = SecureRandom(4)

    def kept(noise):
        noisy = (table + noise.draw(rng, table.size).reshape(table.shape) for _ in range(40))
        drawn = [table[np.arange(100), counts.argmax(axis=1)].sum() / table.sum() for counts in noisy]
        return np.mean(drawn), np.std(drawn) / math.sqrt(40)

    laplace, gaussian = kept(LaplaceNoise(epsilon)), kept(GaussianNoise.for_budget(epsilon, 1e-5))
    assert best > laplace[0] + 3 * laplace[1]
    assert laplace[0] > gaussian[0] + 3 * gaussian[1]
