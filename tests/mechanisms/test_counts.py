from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.core.events import DiscreteGaussian, PureDP
from labeldp.core.random import SecureRandom
from labeldp.mechanisms.counts import GaussianNoise, GroupCounts, LaplaceNoise
from tests.mechanisms.frequencies import follows


def ask(noise, groups=(0, 2, 0, 2), num_groups=3, num_classes=2):
    return GroupCounts(np.array(groups, dtype=np.int64), num_groups, num_classes, noise)


LABELS = np.array([1, 0, 1, 1], dtype=np.uint8)


def test_counts_without_noise_are_the_counts():
    release = ask(LaplaceNoise(math.inf)).sample(LABELS, SecureRandom(1))
    assert release.counts.tolist() == [[0, 2], [0, 0], [1, 1]]
    assert release.group_sizes.tolist() == [2, 0, 2]
    assert release.noise_std == 0


def cells_and_law(noise, stated, n=2 * 10**6, reach=12):
    """Noisy counts of n empty cells drawn with `noise`, in bins, and the law of the noise that is `stated`."""
    release = GroupCounts([], n // 2, 2, noise).sample(LABELS[:0], SecureRandom(5))
    k = np.arange(-reach, reach + 1)
    if isinstance(stated, LaplaceNoise):
        channel = math.tanh(stated.epsilon / 4) * np.exp(-stated.epsilon / 2 * np.abs(k))
    else:
        wide = np.arange(-99, 100)
        channel = np.exp(-0.5 * (k / stated.std) ** 2) / np.sum(np.exp(-0.5 * (wide / stated.std) ** 2))
    drawn = release.counts.ravel()
    inside = drawn[np.abs(drawn) <= reach]
    counts = np.append(np.bincount(inside + reach, minlength=len(k)), n - inside.size)
    return release, counts, np.append(channel, 1 - channel.sum())


@pytest.mark.parametrize(
    ("noise", "planted"), [(LaplaceNoise(1.0), LaplaceNoise(1.02)), (GaussianNoise(2.0), GaussianNoise(2.0 / 1.02))]
)
def test_every_cell_has_its_own_noise_of_the_stated_law(noise, planted):
    """2·10⁶ cells, false alarm 1e-9; the planted bug is noise 2% too small, which the same test must reject."""
    release, counts, channel = cells_and_law(noise, noise)
    assert follows(counts, channel)
    assert release.noise_std == pytest.approx(release.counts.std(), rel=0.005)
    assert abs(np.corrcoef(release.counts.T)[0, 1]) < 6 / math.sqrt(len(release.counts))
    assert not follows(*cells_and_law(planted, noise)[1:])


def test_exact_privacy_of_laplace_counts():
    """log-ratio of the laws of two cells that move by one: at most ε, and attained."""
    epsilon = 0.7
    log = -epsilon / 2 * np.abs(np.arange(-30, 31))
    shift = np.abs(np.diff(log)).max()
    assert 2 * shift == pytest.approx(epsilon, rel=1e-12)
    assert 2 * shift <= epsilon * (1 + 1e-12)


def test_events():
    assert ask(LaplaceNoise(0.3)).event() == PureDP(0.3)
    assert ask(GaussianNoise(2.5)).event() == DiscreteGaussian(2.5, (1, 1))


@pytest.mark.parametrize(
    ("epsilon", "std"), [(0.003, 978.6423847506941), (0.1, 43.4864534609309), (1.0, 5.275909854174817)]
)
def test_gaussian_for_budget_reference(epsilon, std):
    noise = GaussianNoise.for_budget(epsilon, 1e-5)
    assert std * (1 - 1e-9) <= noise.std <= std * 1.01
    assert noise.event().profile(epsilon)[0] <= 1e-5


@given(epsilon=st.floats(0.01, 8), log_delta=st.floats(-10, -2))
@settings(max_examples=40, deadline=None)
def test_gaussian_for_budget_meets_it_exactly(epsilon, log_delta):
    noise = GaussianNoise.for_budget(epsilon, 10**log_delta)
    assert noise.event().profile(epsilon)[0] <= 10**log_delta


@pytest.mark.parametrize("std", [0.2, 0.5, 1.0, 3.0, 7.9, 8.1, 30.0])
def test_exact_std_of_the_gaussian(std):
    k = np.arange(-2000, 2001)
    weights = np.exp(-0.5 * (k / std) ** 2)
    assert GaussianNoise(std).exact_std == pytest.approx(math.sqrt(weights @ k**2 / weights.sum()), rel=1e-12)


@pytest.mark.parametrize("epsilon", [1e-6, 0.025, 0.05, 1.0, 40.0, 2000.0])
def test_exact_std_of_the_laplace(epsilon):
    expected = 0.0 if epsilon > 1000 else 1 / (math.sqrt(2) * math.sinh(epsilon / 4))
    assert LaplaceNoise(epsilon).exact_std == pytest.approx(expected, rel=1e-12, abs=1e-200)
    assert LaplaceNoise(0.05).exact_std ** 2 == pytest.approx(3199.8333385415376, rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, 1e-15])
def test_bad_epsilon(epsilon):
    with pytest.raises(ValueError, match="epsilon is"):
        LaplaceNoise(epsilon)


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan])
def test_bad_std(std):
    with pytest.raises(ValueError, match="noise_std"):
        GaussianNoise(std)


@pytest.mark.parametrize(
    ("groups", "words"),
    [([[0]], "shape"), ([0.5], "type float"), ([0, 3, -1], "2 entries outside 0 to 2"), ([True], "type bool")],
)
def test_bad_groups(groups, words):
    with pytest.raises(ValueError, match=words):
        GroupCounts(groups, 3, 2, LaplaceNoise(1.0))


def test_fits_refuses_other_data():
    mechanism = ask(LaplaceNoise(1.0))
    mechanism.fits(4, 2)
    with pytest.raises(ValueError, match="groups has 4 rows, the data 5"):
        mechanism.fits(5, 2)
    with pytest.raises(ValueError, match="num_classes"):
        mechanism.fits(4, 3)


def test_groups_are_kept_apart_from_the_caller():
    groups = np.zeros(4, dtype=np.int64)
    mechanism = GroupCounts(groups, 3, 2, LaplaceNoise(math.inf))
    groups[:] = 2
    assert mechanism.sample(LABELS, SecureRandom(1)).group_sizes.tolist() == [4, 0, 0]
    assert not mechanism.groups.flags.writeable


def test_one_row_moves_one_group():
    other = LABELS.copy()
    other[0] = 0
    mechanism = ask(LaplaceNoise(0.5))
    moved = mechanism.sample(LABELS, SecureRandom(9)).counts - mechanism.sample(other, SecureRandom(9)).counts
    assert moved.tolist() == [[-1, 1], [0, 0], [0, 0]]


@pytest.mark.parametrize("n", [0, 1])
def test_few_rows(n):
    release = GroupCounts([0] * n, 1, 1, LaplaceNoise(1.0)).sample(LABELS[:n] * 0, SecureRandom(1))
    assert release.counts.shape == (1, 1)
