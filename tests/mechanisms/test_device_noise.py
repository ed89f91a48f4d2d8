"""Noise made on a device: the same numbers as the host's, the normal law, finite at the ends."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.gradients import noise
from labeldp.mechanisms.gradients.noise import gaussian_on, normals
from labeldp.mechanisms.gradients.sums import GradientSum, NormBound

# Of one test; a test of 10^6 draws that is wrong this seldom still tells a deviation 2% too large.
FALSE_ALARM = 1e-9


class Elsewhere:
    """A device that is no processor to the code that asks, and one to torch."""

    type = "elsewhere"


@pytest.fixture
def elsewhere(monkeypatch):
    """The path of devices, on this processor."""
    to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda t, where: t if isinstance(where, Elsewhere) else to(t, where))
    return Elsewhere()


@pytest.mark.parametrize("size", [0, 1, 2, 777, 16_384])
def test_the_same_numbers_as_on_the_host(elsewhere, size):
    there = gaussian_on(elsewhere, size, 3.0, SecureRandom(5))()
    assert there.dtype == torch.float64
    np.testing.assert_allclose(there.numpy(), SecureRandom(5).gaussian(size, 3.0), rtol=1e-12, atol=1e-14)


def test_in_parts_no_bit_is_used_twice(elsewhere, monkeypatch):
    monkeypatch.setattr(noise, "_NORMALS_AT_ONCE", 100)
    drawn = gaussian_on(elsewhere, 1001, 1.0, SecureRandom(5))()
    assert drawn.shape == (1001,)
    assert len(drawn.unique()) == 1001


def test_the_normal_law_and_the_test_can_tell(elsewhere):
    draws = gaussian_on(elsewhere, 10**6, 3.0, SecureRandom(9))().numpy() / 3.0
    assert kstest(draws, "norm").pvalue > FALSE_ALARM
    assert kstest(draws * 1.02, "norm").pvalue < FALSE_ALARM
    halves = draws.reshape(2, -1)  # cosine and sine of one angle: dependent, if the radius were reused
    assert abs(np.corrcoef(halves)[0, 1]) < 0.009
    assert abs(np.corrcoef(halves**2)[0, 1]) < 0.009
    assert abs(np.mean(draws**4) - 3.0) < 0.06


@pytest.mark.parametrize("word", [0, -1, 2**63 - 1, -(2**63)])
def test_finite_at_the_extreme_words(word):
    drawn = normals(torch.full((4, 5), word, dtype=torch.int64))
    assert drawn.isfinite().all()
    assert drawn.abs().max() < 12.2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu():
    there = gaussian_on(torch.device("cuda"), 10**6, 3.0, SecureRandom(9))()
    assert there.is_cuda
    assert kstest(there.cpu().numpy() / 3.0, "norm").pvalue > FALSE_ALARM
    few = gaussian_on(torch.device("cuda"), 777, 3.0, SecureRandom(5))().cpu().numpy()
    np.testing.assert_allclose(few, SecureRandom(5).gaussian(777, 3.0), rtol=1e-10, atol=1e-13)


def test_a_gradient_sum_asks_for_as_many_as_it_has_weights(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "labeldp.mechanisms.gradients.sums.gaussian_on",
        lambda *given: asked.append(given[1:3]) or gaussian_on(*given),
    )
    model = torch.nn.Linear(4, 3)
    model.bias.requires_grad_(False)
    ask = GradientSum(model, torch.ones(6, 4), NormBound(1.0), noise_std=2.0)
    LabelVault([0, 1, 2, 0, 1, 2], 3).release(ask)
    assert asked == [(12, 2.0)]
