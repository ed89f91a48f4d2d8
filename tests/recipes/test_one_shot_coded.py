"""One query of rows whose features are made as they are needed: same query, same price, nearly the same head."""

import functools

import numpy as np
import pytest
import torch

from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.vault import LabelVault
from labeldp.features.coded import Coder
from labeldp.features.tables import Table
from labeldp.learning.tuning import Plan, tune
from labeldp.recipes import one_shot
from labeldp.recipes.one_shot import moment_of
from labeldp.releases import NoisyMoments

ROWS = 6000


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    x, kinds = rng.normal(size=(ROWS, 4)), rng.integers(3, size=(ROWS, 1))
    score = x[:, 0] - x[:, 1] ** 2 + (kinds[:, 0] == 1)
    found = Table(bins=8, steps=4, scale=0.5).fit((x, kinds))
    return Coder(found).coded([(x, kinds)]), found.features((x, kinds)), (score > 0).astype(np.int64)


def tuning(**settings):
    return functools.partial(tune, rows=2000, clusterings=2, draws=1, **settings)


def right(shot, features, labels):
    return float((shot.predict(features).numpy() == labels).mean())


@pytest.mark.parametrize("delta", [1e-6, 0.0])
def test_a_part_of_the_rows_teaches_nearly_as_much_and_costs_the_same(problem, delta):
    coded, features, labels = problem
    epsilon = 3.0 if delta else 30.0
    whole, part = (LabelVault(labels, 2, Budget(epsilon, delta)) for _ in range(2))
    one = one_shot.train(features, whole, epsilon=epsilon, delta=delta, tune=tuning())
    other = one_shot.train(coded, part, epsilon=epsilon, delta=delta, tune=tuning(num_rows=ROWS), most=2000, seed=1)
    assert part.certificate(delta).epsilon == whole.certificate(delta).epsilon <= epsilon
    assert other.noisy.num_rows == ROWS
    assert right(one, features, labels) > 0.85
    assert right(other, features, labels) > right(one, features, labels) - 0.04


def test_themoment_of_all_rows_beats_that_of_the_rows_held(problem):
    """At an ε where 2,000 labels say little, 6,000 say more: what is held is features, not labels."""
    coded, features, labels = problem
    some = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))[:600]
    plan, found = {"plans": [Plan(12)]}, {"all": [], "some": []}
    for seed in range(12):
        budget = {"epsilon": 0.15, "delta": 1e-6}
        all_of = one_shot.train(
            coded, LabelVault(labels, 2), **budget, tune=tuning(num_rows=ROWS, **plan), most=600, seed=seed
        )
        few = one_shot.train(features[some], LabelVault(labels[some.numpy()], 2), **budget, tune=tuning(**plan))
        found["all"].append(right(all_of, features, labels))
        found["some"].append(right(few, features, labels))
    assert np.mean(found["all"]) > np.mean(found["some"]) + 0.05


def test_themoment_of_some_rows_is_estimated_without_bias_and_adds_up():
    rng = np.random.default_rng(1)
    rows, labels = torch.tensor(rng.normal(size=(500, 3)) + 1.0), rng.integers(2, size=500)
    rows[labels == 1, 0] += 1
    sums = np.stack([rows[labels == k].sum(dim=0).numpy() for k in range(2)])
    noisy = NoisyMoments(sums, sums.sum(axis=0), 500, "none", 7.0, 1.0)
    errors = []
    for seed in range(400):
        some = torch.randperm(500, generator=torch.Generator().manual_seed(seed))[:100]
        found = moment_of(rows[some], noisy)
        assert found.value.sum(axis=0) == pytest.approx(rows[some].sum(dim=0).numpy())
        assert (found.num_rows, found.noise_std) == (100, pytest.approx(7.0 / 5))
        own = np.stack([rows[some][labels[some.numpy()] == k].sum(dim=0).numpy() for k in range(2)])
        errors.append(found.value - own)
    mean, spread = np.mean(errors, axis=0), np.std(errors, axis=0) / 20
    # Five deviations: a false alarm in 300,000 runs, and the seeds are fixed.
    assert (np.abs(mean) < 5 * spread).all()


def test_all_rows_held_is_the_plain_recipe(problem):
    coded, features, labels = problem
    budget = {"epsilon": 1000.0, "delta": 1e-6}
    one, other = (one_shot.train(rows, LabelVault(labels, 2), **budget, tune=tuning()) for rows in (features, coded))
    assert one.tuning.plan == other.tuning.plan
    assert torch.allclose(one.probabilities(features), other.probabilities(features), atol=0.05)


def test_what_cannot_be_paid_is_refused_before_any_work(problem):
    coded, _, labels = problem
    with pytest.raises(BudgetExceededError):
        one_shot.train(coded, LabelVault(labels, 2, Budget(0.5, 1e-6)), epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match="rows"):
        one_shot.train(coded, LabelVault(labels[:-1], 2), epsilon=1.0, delta=1e-6)
