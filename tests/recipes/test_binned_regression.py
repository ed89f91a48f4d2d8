from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labeldp.core.events import PureDP
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.learning.optimisers import sgd
from labeldp.learning.train import fit, predict
from labeldp.mechanisms.values import seal_values
from labeldp.recipes import regression
from labeldp.recipes.regression import (
    noisy_histogram,
    posterior_values,
    privatize_values,
    split_of,
)


def skewed(seed, n=2000):
    return np.clip(np.random.default_rng(seed).exponential(size=n), 0, 10)


def sealed(values, seed=0, **settings):
    return seal_values(values, 0.0, 10.0, rng=SecureRandom(seed), **settings)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_both_queries_add_up_to_epsilon(epsilon):
    vault = sealed(skewed(0), budget=Budget(epsilon))
    privatize_values(vault, epsilon=epsilon)
    _, first, second = split_of(epsilon, 2000, 0.2)
    assert {query.event: query.times for query in vault.ledger.groups()[0].queries} == {
        PureDP(first): 1,
        PureDP(second): 1,
    }
    assert vault.certificate().epsilon == pytest.approx(epsilon, rel=1e-12)
    with pytest.raises(BudgetExceededError):
        privatize_values(vault, epsilon=0.01)


def test_a_refusal_leaves_no_trace():
    vault = sealed(skewed(0), budget=Budget(0.9))
    with pytest.raises(BudgetExceededError):
        privatize_values(vault, epsilon=1.0)
    with pytest.raises(ValueError, match="loss='cubic' is not 'squared'"):
        privatize_values(vault, epsilon=0.5, loss="cubic")  # type: ignore[arg-type]
    assert vault.ledger.epsilon(0.0) == 0.0


def test_a_public_histogram_costs_nothing():
    vault = sealed(skewed(0))
    noisy = privatize_values(vault, epsilon=1.0, histogram=np.exp(-vault.grid.values()))
    assert vault.ledger.histories[0][0][0].event == PureDP(1.0)
    assert len(vault.ledger.histories[0]) == 1
    assert noisy.channel.epsilon == 1.0


@given(st.floats(0, 50), st.integers(0, 10**6), st.floats(0, 0.99))
def test_the_split_never_exceeds_epsilon(epsilon, n, share):
    cells, first, second = split_of(epsilon, n, share)
    assert Fraction(first) + Fraction(second) <= Fraction(epsilon)
    assert first + second == pytest.approx(epsilon, rel=1e-12)
    assert 0 <= first <= share * epsilon + math.ulp(epsilon)
    assert 8 <= cells <= 32


def test_few_labels_still_beat_a_guess_made_without_them():
    """300 rows at ε = 0.5: the histogram is coarse and noisy, and the responses still beat the middle of the range."""
    errors = []
    for seed in range(20):
        values = skewed(seed, 300)
        errors.append(np.mean((privatize_values(sealed(values, seed), epsilon=0.5).values() - values) ** 2))
    assert np.mean(errors) < 0.25 * np.mean((5.0 - values) ** 2)


@pytest.mark.parametrize("share", [-0.1, 1.0, math.nan])
def test_bad_share(share):
    with pytest.raises(ValueError, match="histogram_share"):
        privatize_values(sealed(skewed(0)), epsilon=1.0, histogram_share=share)


def test_the_histogram_is_a_coarse_distribution_of_the_labels():
    vault = sealed(skewed(1, 20_000))
    histogram = noisy_histogram(vault, 1.0, cells=32)
    assert histogram.shape == (256,)
    assert histogram.sum() == pytest.approx(1.0)
    truth = np.bincount(vault.reveal("a test"), minlength=256).reshape(32, 8).sum(axis=1) / 20_000
    # 32 cells with Laplace noise of mean size 2 rows each, summed: far below 1 percent of the rows.
    assert np.abs(histogram.reshape(32, 8).sum(axis=1) - truth).sum() < 0.01


def test_binned_beats_laplace_noise():
    """ε = 1, skewed labels, 20 seeds: smaller squared error than clip(y + Laplace(range/ε)), every time."""
    for seed in range(20):
        values = skewed(seed)
        binned = privatize_values(sealed(values, seed), epsilon=1.0).values()
        noise = np.random.default_rng(1000 + seed).laplace(scale=10.0, size=len(values))
        laplace = np.clip(values + noise, 0, 10)
        assert np.mean((binned - values) ** 2) < 0.25 * np.mean((laplace - values) ** 2)


def test_the_private_histogram_loses_little():
    """With 20 000 rows the whole recipe is within 5 percent of bins made for the true distribution."""
    values = skewed(3, 20_000)
    truth = np.bincount(sealed(values).reveal("a test"), minlength=256)
    ours = privatize_values(sealed(values, 1), epsilon=1.0).values()
    ideal = privatize_values(sealed(values, 1), epsilon=1.0, histogram=truth).values()
    assert np.mean((ours - values) ** 2) < 1.05 * np.mean((ideal - values) ** 2)


@pytest.mark.parametrize("loss", ["squared", "absolute"])
def test_posterior_means(loss):
    noisy = privatize_values(sealed(skewed(2)), epsilon=2.0, loss=loss)
    direct = noisy.posterior(noisy.prior) @ noisy.levels
    assert posterior_values(noisy) == pytest.approx(direct, rel=1e-9)
    assert posterior_values(noisy, noisy.prior) == pytest.approx(direct, rel=1e-9)
    if loss == "squared":
        assert noisy.values() == pytest.approx(direct, rel=1e-9)


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, math.inf])
@pytest.mark.parametrize("levels", [1, 2, 256])
def test_the_ends_of_every_scale(n, epsilon, levels):
    vault = sealed([3.0] * n, levels=levels)
    noisy = privatize_values(vault, epsilon=epsilon)
    for values in (noisy.values(), posterior_values(noisy)):
        assert values.shape == (n,)
        assert np.isfinite(values).all()
    assert vault.ledger.epsilon(0.0) <= epsilon


def test_no_privacy_is_the_rounded_label():
    values = skewed(4, 500)
    vault = sealed(values)
    noisy = privatize_values(vault, epsilon=math.inf)
    expected = vault.grid.values()[vault.reveal("a test")]
    assert noisy.values() == pytest.approx(expected)
    assert posterior_values(noisy) == pytest.approx(expected)


def test_no_budget_is_a_constant():
    vault = sealed(skewed(4, 500))
    noisy = privatize_values(vault, epsilon=0.0)
    assert len(set(noisy.values())) == 1
    assert vault.ledger.epsilon(0.0) == 0.0


def test_values_need_a_histogram():
    noisy = privatize_values(sealed(skewed(2)), epsilon=1.0)
    with pytest.raises(ValueError, match="histogram has shape"):
        posterior_values(noisy, [1.0, 2.0])
    bare = sealed(skewed(2)).release(noisy.channel)
    with pytest.raises(ValueError, match="lacks"):
        posterior_values(bare)


def test_training_on_private_values_follows_the_truth():
    """A line with noise, at epsilon 4: better than the best constant, and the ledger says 4."""
    chance = np.random.default_rng(0)
    x = chance.uniform(-1, 1, size=4000)
    y = 2 * x + 0.2 * chance.normal(size=4000)
    vault = seal_values(y, -3, 3, rng=SecureRandom(seed=2))
    train = functools.partial(fit, epochs=15, batch_size=64, optimizer=sgd(0.02))
    model = regression.train(torch.nn.Linear(1, 1), torch.from_numpy(x).float()[:, None], vault, epsilon=4.0, fit=train)
    predicted = predict(model, torch.from_numpy(x).float()[:, None]).squeeze(1).numpy()
    assert ((predicted - y) ** 2).mean() < 0.3 * y.var()
    assert vault.certificate().epsilon == pytest.approx(4.0)
