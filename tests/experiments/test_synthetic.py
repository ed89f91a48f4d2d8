"""The stand-in says what it is, is the same for the same seed, and can be learned."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.synthetic import CARDINALITIES, synthetic_attribution_stand_in, synthetic_stand_in
from labeldp.core.ledger import Budget
from labeldp.core.random import SecureRandom
from tests.data.made import truth


def test_it_says_what_it_is():
    found = synthetic_stand_in(50, 20, 4, shape=(3, 10, 9), seed=1, budget=Budget(1.0))
    assert found.name == "synthetic stand-in (tests only)"
    assert found.train.shape == (50, 3, 10, 9)
    assert found.test.shape == (20, 3, 10, 9)
    assert found.train.dtype == np.uint8
    assert (found.num_classes, len(found.classes), found.vault.budget) == (4, 4, Budget(1.0))


def test_the_seed_decides_all():
    first, again, other = (synthetic_stand_in(40, 5, 3, seed=seed) for seed in (7, 7, 8))
    assert np.array_equal(first.train, again.train)
    assert np.array_equal(first.test_labels.values, again.test_labels.values)
    assert truth(first) == truth(again)
    assert not np.array_equal(first.train, other.train)


def test_the_nearest_mean_finds_most_classes():
    found = synthetic_stand_in(600, 300, 10)
    labels = np.array(truth(found))
    train, test = (part.reshape(len(part), -1).astype(float) for part in (found.train, found.test))
    means = np.stack([train[labels == label].mean(axis=0) for label in range(10)])
    nearest = ((test[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == found.test_labels.values).mean() > 0.9


@pytest.mark.parametrize("argument", ["num_train", "num_test", "num_classes"])
def test_nothing_is_not_a_size(argument):
    sizes = {"num_train": 3, "num_test": 3, "num_classes": 3, argument: 0}
    with pytest.raises(ValueError, match=f"{argument}=0 must be at least 1"):
        synthetic_stand_in(**sizes)


def test_the_attribution_stand_in_has_the_shape_of_the_real_table():
    made_up = synthetic_attribution_stand_in(3000, 1000, rng=SecureRandom(1))
    assert "synthetic" in made_up.name
    assert made_up.train.categorical.shape == (len(made_up.vault), 10)
    assert made_up.train.numeric.shape == (len(made_up.vault), 1)
    assert all(found <= size for found, size in zip(made_up.train.cardinalities, CARDINALITIES, strict=True))
    assert len(made_up.vault.users) == 3000
    assert not set(made_up.train.users.tolist()) & set(made_up.test.users.tolist())
    assert 0.05 < made_up.test_labels.values.mean() < 0.25
    sizes = made_up.vault.users.sizes
    assert sizes.min() == 1
    assert sizes.max() > 10


def test_the_attribution_stand_in_repeats_with_its_seed():
    one, other, third = (synthetic_attribution_stand_in(50, 20, seed) for seed in (0, 0, 1))
    assert np.array_equal(one.train.categorical, other.train.categorical)
    assert np.array_equal(one.vault.reveal("test"), other.vault.reveal("test"))
    assert len(one.train) != len(third.train) or not np.array_equal(one.train.categorical, third.train.categorical)
    with pytest.raises(ValueError, match="train_users=0"):
        synthetic_attribution_stand_in(0, 1)
