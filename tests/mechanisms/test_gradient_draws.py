"""Statistical checks with at least 10^6 draws each, and the planted bugs they reject.

False alarms: 1e-9 per test (`frequencies.follows`); the seeds are fixed, so it could only have happened once.
"""

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from torch import nn

from labeldp.core.events import Gaussian
from labeldp.core.random import SecureRandom
from labeldp.mechanisms.gradients import sums
from labeldp.mechanisms.gradients.layers import cross_entropy
from labeldp.mechanisms.gradients.per_example import gradients
from labeldp.mechanisms.gradients.sums import GradientSum, NormBound
from labeldp.releases import NoisyGradient
from labeldp.testing import ContractError, check_mechanism
from tests.marks import mostly_slow
from tests.mechanisms.frequencies import follows

ROWS, RATE = 1000, 0.25


# -- noise ---------------------------------------------------------------------------------------------------


def noise_counts(ask):
    """Rows of zeros have no gradient: the release is noise, 10^6 numbers of it, in 50 equally likely cells."""
    release = ask.sample(np.zeros(4, dtype=np.uint8), SecureRandom(seed=11))
    cells = np.floor(norm.cdf(release.value.double().numpy() / release.noise_std) * 50).astype(int)
    return np.bincount(cells.clip(0, 49), minlength=50)


def silent(kind, **settings):
    return kind(nn.Linear(1000, 1000, bias=False), torch.zeros(4, 1000), NormBound(0.7), 3.0, **settings)


class QuieterNoise(GradientSum):
    """Bug 1: two percent less noise than declared."""

    def sample(self, labels, rng):
        draw = GradientSum(self.model, self.inputs, self.bound, self.noise_std * 0.98, self.rate).sample(labels, rng)
        return NoisyGradient(draw.value, self.noise_std / self.expected_batch, draw.expected_batch)


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_the_noise_has_the_stated_law_and_a_little_less_is_found(rate):
    assert follows(noise_counts(silent(GradientSum, rate=rate)), np.full(50, 0.02))
    assert not follows(noise_counts(silent(QuieterNoise, rate=rate)), np.full(50, 0.02))


# -- batches -------------------------------------------------------------------------------------------------


def visible(kind=GradientSum, rate=RATE):
    """Row i alone moves the weights of input i, and the noise is nothing: a release shows who was drawn."""
    model = nn.Linear(ROWS, 2, bias=False)
    nn.init.zeros_(model.weight)
    return kind(model, torch.eye(ROWS), NormBound(0.1), 1e-9, rate)


def drawn(ask, draws):
    """How much of its due each row added in each draw, (draws, rows): 0 or 1."""
    rng, labels = SecureRandom(seed=12), np.zeros(ROWS, dtype=np.uint8)
    releases = np.stack([ask.sample(labels, rng).value.view(2, ROWS)[0].numpy() for _ in range(draws)])
    return releases * (RATE * ROWS) / -(0.1 / np.sqrt(2))


def size_counts(batches):
    """Batch sizes as the sums show them, around the expected one, in cells; and the law of a Poisson batch."""
    edges = np.arange(RATE * ROWS - 50, RATE * ROWS + 51, 5)
    channel = np.diff(np.concatenate([[0.0], binom.cdf(edges, ROWS, RATE), [1.0]]))
    return np.bincount(np.searchsorted(edges, np.rint(batches.sum(axis=1))), minlength=len(channel)), channel


class DrawsMore(GradientSum):
    """Bug 2: rows are drawn with probability two percent above the declared one."""

    def sample(self, labels, rng):
        more = GradientSum(self.model, self.inputs, self.bound, self.noise_std, self.rate * 1.02).sample(labels, rng)
        return NoisyGradient(more.value * 1.02, more.noise_std, more.expected_batch)


class DividesByTheBatch(GradientSum):
    """Bug 3: the realised size in place of the expected one."""

    def sample(self, labels, rng):
        draw = super().sample(labels, rng)
        size = max(1, int((draw.value.view(2, ROWS)[0].abs() > 1e-6).sum()))
        return NoisyGradient(draw.value * self.expected_batch / size, draw.noise_std, draw.expected_batch)


class ClipsTheMean(GradientSum):
    """Bug 4: the gradient of the batch is clipped, not that of each row; declared as if each row were."""

    def sample(self, labels, rng):
        responses = torch.as_tensor(labels.astype(np.int64))
        rows = sums.poisson_batch(len(labels), self.rate, rng)
        rows = torch.arange(len(labels)) if rows is None else torch.as_tensor(rows)
        total = gradients(self.model, cross_entropy, self.inputs[rows], responses[rows]).sum(0)
        mean = total / max(1, len(rows))
        mean = mean * min(1.0, self.bound.clip / max(1e-12, mean.norm().item()))
        steps = rng.rounded_gaussian(2.0**20, len(mean)) * 2.0**-20
        noise = torch.as_tensor(steps * self.noise_std / self.expected_batch)
        return NoisyGradient(mean + noise, self.noise_std / self.expected_batch, self.expected_batch)


def test_every_row_is_drawn_on_its_own_with_the_stated_probability():
    """10^6 rows drawn, each visible: their number, the sizes of the batches, and each row by itself."""
    batches = drawn(visible(), 1000)
    inside = np.rint(batches)
    assert np.abs(batches - inside).max() < 2e-3, "a row adds its clipped gradient over the expected size, or nothing"
    assert set(np.unique(inside)) == {0.0, 1.0}
    assert follows(np.array([inside.sum(), inside.size - inside.sum()]), np.array([RATE, 1 - RATE]))
    assert follows(*size_counts(batches))
    cells = np.arange(200, 301, 5)
    channel = np.diff(np.concatenate([[0.0], binom.cdf(cells, 1000, RATE), [1.0]]))
    assert follows(np.bincount(np.searchsorted(cells, inside.sum(axis=0)), minlength=len(channel)), channel)
    # Neighbouring rows, and the same row in the next draw: not correlated.
    for a, b in ((inside[:, :-1], inside[:, 1:]), (inside[:-1], inside[1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 6.2 / np.sqrt(a.size)


def test_a_rate_a_little_too_high_is_found():
    inside = np.rint(drawn(visible(DrawsMore), 1000))
    assert not follows(np.array([inside.sum(), inside.size - inside.sum()]), np.array([RATE, 1 - RATE]))


def test_division_by_the_realised_batch_is_found():
    assert not follows(*size_counts(drawn(visible(DividesByTheBatch), 400)))


def test_clipping_the_mean_is_found_by_what_a_row_adds():
    batches = drawn(visible(ClipsTheMean), 20)
    assert np.abs(batches - np.rint(batches)).max() > 0.05


def test_the_threshold_never_exceeds_the_rate():
    class Words:
        def words(self, size):
            return np.full(size, (1 << 62), dtype=np.uint64)

    assert len(sums.poisson_batch(3, 0.25, Words())) == 0
    assert len(sums.poisson_batch(3, np.nextafter(0.25, 1), Words())) == 3
    assert len(sums.poisson_batch(3, 2.0**-70, Words())) == 0
    assert sums.poisson_batch(3, 1.0, Words()) is None


# -- the contract, from outside ------------------------------------------------------------------------------

FEATURES = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, -1.0]])
OURS, THEIRS = [0, 1, 1, 0], [0, 1, 1, 1]


def along(release):
    return float(release.value[0] - release.value[2])


def small(kind, **settings):
    model = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(model.weight)
    return kind(model, FEATURES, NormBound(0.5), **{"noise_std": 1.0, **settings})


@pytest.mark.parametrize("rate", mostly_slow([0.5, 1.0]))
def test_the_mechanism_keeps_the_contract(rate):
    check_mechanism(small(GradientSum, rate=rate), OURS, THEIRS, 2, statistic=along, draws=1000)


class ForgetsTheFactorTwo(GradientSum):
    """Bug 5: declares that a replaced label moves the sum by C."""

    def event(self):
        return Gaussian(self.noise_std, self.bound.radius)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "noise"), [(ForgetsTheFactorTwo, 0.25), (ClipsTheMean, 0.5)])
def test_mechanisms_that_declare_too_little_are_caught(kind, noise):
    with pytest.raises(ContractError, match="neighbour"):
        check_mechanism(small(kind, noise_std=noise), OURS, THEIRS, 2, statistic=along, draws=1500)
