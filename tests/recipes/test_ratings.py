import functools

import numpy as np
import pytest
import torch

from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.learning.optimisers import adam
from labeldp.learning.train import fit, predict
from labeldp.models.zoo import collaborative_filter
from labeldp.recipes import per_row, ratings
from labeldp.recipes.ratings import expected_rating, root_mean_square_error


def test_the_expected_rating_is_the_mean_under_the_softmax():
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.0001]]))
    weights = torch.softmax(logits, dim=1)[0]
    assert torch.allclose(expected_rating(logits), (weights * torch.arange(1.0, 6.0)).sum()[None])
    assert expected_rating(torch.tensor([[0.0, 100.0]]), torch.tensor([0.5, 2.5])).tolist() == [2.5]


def test_error_by_hand():
    assert root_mean_square_error(torch.tensor([1.0, 2.0]), torch.tensor([1, 4])) == np.sqrt(2.0).astype(np.float32)


def made_up_ratings(n=6000):
    """Users and items with one hidden taste each; the rating is high where they agree. For tests only."""
    chance = np.random.default_rng(0)
    users, items = chance.integers(0, 60, n), chance.integers(0, 40, n)
    taste, kind = chance.normal(size=60), chance.normal(size=40)
    stars = np.clip(np.round(3 + 1.5 * taste[users] * kind[items] + 0.3 * chance.normal(size=n)), 1, 5).astype(int)
    return torch.from_numpy(users), torch.from_numpy(items), stars


@pytest.mark.slow
def test_private_ratings_beat_the_mean_rating():
    """Ratings as five classes, privatized at epsilon 3, on a two-branch network: better than guessing the mean."""
    users, items, stars = made_up_ratings()
    split = 5000
    inputs, truth = (users[:split], items[:split]), torch.from_numpy(stars[split:]).float()
    train = functools.partial(fit, epochs=20, batch_size=128, optimizer=adam(5e-3))
    baseline = root_mean_square_error(torch.full_like(truth, float(stars.mean())), truth)
    for train_on in (per_row.rr, per_row.forward, ratings.train):
        torch.manual_seed(0)
        vault = LabelVault(stars[:split] - 1, 5, rng=SecureRandom(seed=1))
        model = train_on(collaborative_filter(60, 40, dim=8), inputs, vault, epsilon=3.0, fit=train)
        predicted = expected_rating(predict(model, (users[split:], items[split:])))
        assert root_mean_square_error(predicted, truth) < 0.85 * baseline
