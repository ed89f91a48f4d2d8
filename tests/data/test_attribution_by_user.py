"""Criteo attribution sealed by user, and its made-up stand-in."""

import traceback

import numpy as np
import pytest

from labeldp.core.ledger import Budget
from labeldp.core.random import SecureRandom
from labeldp.data.benchmarks import criteo_attribution
from labeldp.data.files import MissingDataError
from labeldp.data.splits import Columns
from labeldp.data.synthetic import CARDINALITIES, synthetic_attribution_stand_in
from labeldp.data.table_files import attribution_by_user, sealed_by_user
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.users import UserVault
from tests.data.benchmarkhelp import criteo, put
from tests.data.test_benchmarks import ATTRIBUTION, FILE, JOURNEYS


def test_the_same_rows_in_a_vault_of_users(tmp_path):
    put(tmp_path / "criteo_attribution" / FILE, criteo(JOURNEYS))
    settings = {"train_users": 20, "test_users": 10, "official": ATTRIBUTION}
    found, plain = (
        attribution_by_user(tmp_path, budget=Budget(3.0), **settings),
        criteo_attribution(tmp_path, **settings),
    )
    assert isinstance(found.vault, UserVault)
    assert np.array_equal(found.train.categorical, plain.train.categorical)
    assert np.array_equal(found.test_labels.values, plain.test_labels.values)
    assert found.vault.users.sizes.tolist() == [3] * 20
    found.vault.release(RandomizedResponse(1.0, 2))
    assert found.vault.certificate().epsilon == 3.0
    why = "a test compares two ways to read one file"
    with pytest.raises(ValueError, match="without bound"):
        found.vault.reveal(why)
    free = attribution_by_user(tmp_path, **settings)
    assert np.array_equal(free.vault.reveal(why), plain.vault.reveal(why))


def test_refusals_carry_no_frame_of_the_reader(tmp_path):
    with pytest.raises(MissingDataError) as caught:
        attribution_by_user(tmp_path)
    frames = [frame.f_code.co_name for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert "read_attribution" not in frames


def test_a_table_without_users_is_refused():
    table = Columns(np.zeros((2, 1), np.float32), np.zeros((2, 1), np.int64), (1,))
    with pytest.raises(ValueError, match="whose each row is"):
        sealed_by_user("made up", ("no", "yes"), (table, np.zeros(2)), (table, np.zeros(2)), rng=None, budget=None)


def test_the_stand_in_has_the_shape_of_the_real_table():
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


def test_the_stand_in_repeats_with_its_seed():
    one, other, third = (synthetic_attribution_stand_in(50, 20, seed) for seed in (0, 0, 1))
    assert np.array_equal(one.train.categorical, other.train.categorical)
    assert np.array_equal(one.vault.reveal("test"), other.vault.reveal("test"))
    assert len(one.train) != len(third.train) or not np.array_equal(one.train.categorical, third.train.categorical)
    with pytest.raises(ValueError, match="train_users=0"):
        synthetic_attribution_stand_in(0, 1)
