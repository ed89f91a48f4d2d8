import numpy as np
import pytest

from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.data.storage import load_groups, load_note, save_groups
from labeldp.mechanisms.counts import GaussianNoise, GroupCounts, GroupVotes, LaplaceNoise

GROUPS = np.arange(30) % 3


def released(question):
    return LabelVault(np.arange(30) % 4, 4, rng=SecureRandom(0)).release(question)


@pytest.mark.parametrize("noise", [LaplaceNoise(0.7), GaussianNoise(2.0)])
def test_counts_come_back(noise, tmp_path):
    counts = released(GroupCounts(GROUPS, 3, 4, noise))
    save_groups(tmp_path / "counts.npz", counts, {"about": "nothing"})
    again = load_groups(tmp_path / "counts.npz")
    assert np.array_equal(again.counts, counts.counts)
    assert np.array_equal(again.group_sizes, counts.group_sizes)
    assert (again.noise, again.noise_std) == (counts.noise, counts.noise_std)
    assert load_note(tmp_path / "counts.npz") == {"about": "nothing"}
    assert [path.name for path in tmp_path.iterdir()] == ["counts.npz"]


def test_winners_come_back(tmp_path):
    winners = released(GroupVotes(GROUPS, 3, 4, 1.0))
    save_groups(tmp_path / "votes.npz", winners)
    again = load_groups(tmp_path / "votes.npz")
    assert np.array_equal(again, winners)
    assert again.dtype == winners.dtype
    assert load_note(tmp_path / "votes.npz") == {}


def test_no_pickle_is_ever_read(tmp_path):
    np.savez(tmp_path / "votes.npz", winners=np.array([object()]), description=np.array('{"note": {}}'))
    with pytest.raises(ValueError):
        load_groups(tmp_path / "votes.npz")
