"""Releases on disk: what is read is what was written, and no pickle is ever read."""

import numpy as np
import pytest

from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.counts import GaussianNoise, GroupCounts, LaplaceNoise
from labeldp.mechanisms.responses import PriorResponse, RandomizedResponse, TopKResponse
from labeldp.mechanisms.selection import GroupVotes
from labeldp.mechanisms.values import seal_values
from labeldp.mechanisms.vectors import BitFlip, LaplaceOneHot
from labeldp.recipes.kept import load, load_note, save
from labeldp.recipes.regression import privatize_values
from labeldp.releases import NoisyMoments

PRIOR = np.random.default_rng(0).dirichlet(np.ones(4), 30)
GROUPS = np.arange(30) % 3


def released(mechanism):
    return LabelVault(np.arange(30) % 4, 4, rng=SecureRandom(0)).release(mechanism)


def on_disk(path, release, note=None):
    with path.open("wb") as file:
        save(file, release, note or {})
    assert load_note(path) == (note or {})
    return load(path)


@pytest.mark.parametrize(
    "mechanism",
    [
        RandomizedResponse(1.0, 4),
        RandomizedResponse(float("inf"), 4),
        TopKResponse(1.0, np.array([True, False, True, True])),
        TopKResponse.of_prior(1.0, PRIOR, 2),
        PriorResponse(2.0, PRIOR),
        LaplaceOneHot(1.0, 4),
        BitFlip(1.0, 4),
    ],
)
def test_responses_and_their_likelihood_come_back(mechanism, tmp_path):
    private = released(mechanism)
    again = on_disk(tmp_path / "responses.npz", private)
    assert np.array_equal(again.responses, private.responses)
    assert again.responses.dtype == private.responses.dtype
    assert np.array_equal(again.log_likelihood(), private.log_likelihood())
    assert np.array_equal(again.unbiased(), private.unbiased())


@pytest.mark.parametrize("noise", [LaplaceNoise(0.7), GaussianNoise(2.0)])
def test_counts_come_back(noise, tmp_path):
    counts = released(GroupCounts(GROUPS, 3, 4, noise))
    again = on_disk(tmp_path / "counts.npz", counts, {"about": "nothing"})
    assert np.array_equal(again.counts, counts.counts)
    assert np.array_equal(again.group_sizes, counts.group_sizes)
    assert (again.noise, again.noise_std) == (counts.noise, counts.noise_std)


def test_winners_come_back(tmp_path):
    winners = released(GroupVotes(GROUPS, 3, 4, 1.0))
    again = on_disk(tmp_path / "votes.npz", winners)
    assert np.array_equal(again, winners)
    assert again.dtype == winners.dtype


def test_values_come_back(tmp_path):
    noisy = privatize_values(seal_values(np.linspace(0, 1, 30), 0, 1, rng=SecureRandom(0)), epsilon=1.0)
    again = on_disk(tmp_path / "values.npz", noisy)
    assert np.array_equal(again.values(), noisy.values())
    assert np.array_equal(again.log_likelihood(), noisy.log_likelihood())


def test_a_moment_comes_back_to_the_last_bit(tmp_path):
    noisy = NoisyMoments(np.arange(6.0).reshape(2, 3), np.arange(3.0), 9, "discrete Gaussian", 0.1 + 0.2, 1.5, 2, 1)
    again = on_disk(tmp_path / "moment.npz", noisy, {"why": "test"})
    for name in noisy.__dataclass_fields__:
        assert np.array_equal(getattr(again, name), getattr(noisy, name))


@pytest.mark.parametrize(
    ("kind", "arrays", "fields"),
    [
        ("labels", ("responses",), '"channel": {"mechanism": "bit-flip", "epsilon": 1.0, "num_classes": 2}'),
        ("values", ("responses", "bins", "outputs"), '"epsilon": 1.0'),
        ("counts", ("counts", "group_sizes"), '"noise": "none", "noise_std": 0.0'),
        ("moment", ("value", "total"), '"num_rows": 1, "noise": "none", "noise_std": 0.0, "radius": 1.0'),
        ("winners", ("winners",), '"none": 0'),
    ],
)
def test_no_pickle_is_ever_read(kind, arrays, fields, tmp_path):
    described = np.array(f'{{"kind": "{kind}", {fields}, "note": {{}}}}')
    planted = {name: np.array([object()]) for name in arrays}
    np.savez(tmp_path / "x.npz", description=described, **planted)
    with pytest.raises(ValueError, match="allow_pickle"):
        load(tmp_path / "x.npz")
