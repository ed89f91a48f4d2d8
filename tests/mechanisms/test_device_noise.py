"""Noise made on a device: the same integers as the host's, the normal law, exact in doubt and at the ends."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from labeldp.core import random
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.gradients import noise
from labeldp.mechanisms.gradients.noise import box_muller, grid_step, rounded_on
from labeldp.mechanisms.gradients.sums import GradientSum, NormBound

# Of one test; a test of 10^6 draws that is wrong this seldom still tells a deviation 2% too large.
FALSE_ALARM = 1e-9
STD = 3.0 * 2.0**18


class Elsewhere:
    """A device that is no processor to the code that asks, and one to torch."""

    type = "elsewhere"


@pytest.fixture
def elsewhere(monkeypatch):
    """The path of devices, on this processor."""
    to = torch.Tensor.to
    monkeypatch.setattr(
        torch.Tensor, "to", lambda t, where, **how: t if isinstance(where, Elsewhere) else to(t, where, **how)
    )
    return Elsewhere()


@pytest.mark.parametrize("size", [0, 1, 2, 777, 16_384])
def test_the_same_numbers_as_on_the_host(elsewhere, size):
    there = rounded_on(elsewhere, size, STD, SecureRandom(5))()
    assert there.dtype == torch.float64
    np.testing.assert_array_equal(there.numpy(), SecureRandom(5).rounded_gaussian(STD, size))


def test_in_parts_no_bit_is_used_twice(elsewhere, monkeypatch):
    monkeypatch.setattr(noise, "_NORMALS_AT_ONCE", 100)
    drawn = rounded_on(elsewhere, 1001, 2.0**30, SecureRandom(5))()
    assert drawn.shape == (1001,)
    assert len(drawn.unique()) == 1001


def test_the_normal_law_and_the_test_can_tell(elsewhere):
    draws = rounded_on(elsewhere, 10**6, STD, SecureRandom(9))().numpy() / STD
    assert kstest(draws, "norm").pvalue > FALSE_ALARM
    assert kstest(draws * 1.02, "norm").pvalue < FALSE_ALARM
    halves = draws.reshape(2, -1)  # cosine and sine of one angle: dependent, if the radius were reused
    assert abs(np.corrcoef(halves)[0, 1]) < 0.009
    assert abs(np.corrcoef(halves**2)[0, 1]) < 0.009
    assert abs(np.mean(draws**4) - 3.0) < 0.06


@pytest.mark.parametrize("word", [0, -1, 2**63 - 1, -(2**63)])
def test_extreme_words_are_in_doubt_and_settled(elsewhere, monkeypatch, word):
    assert box_muller(torch.tensor([[0, -1], [word, word]]), STD)[1].all()
    true = SecureRandom.words
    first = iter([np.full(4, np.int64(word)).view(np.uint64)])
    monkeypatch.setattr(SecureRandom, "words", lambda self, size: next(first, None) if size == 4 else true(self, size))
    drawn = rounded_on(elsewhere, 4, STD, SecureRandom(1))()
    assert drawn.isfinite().all()
    assert drawn.abs().max() < 20 * STD


def test_what_is_in_doubt_is_settled_alike_on_both_sides(elsewhere, monkeypatch):
    """With a tolerance so wide that everything is in doubt, nothing changes but the time it takes."""
    plain = SecureRandom(5).rounded_gaussian(1000.0, 60)
    for place in (random, noise):
        monkeypatch.setattr(place, "DOUBT", 1.0)
    np.testing.assert_array_equal(SecureRandom(5).rounded_gaussian(1000.0, 60), plain)
    np.testing.assert_array_equal(rounded_on(elsewhere, 60, 1000.0, SecureRandom(5))().numpy(), plain)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu():
    there = rounded_on(torch.device("cuda"), 10**6, STD, SecureRandom(9))()
    assert there.is_cuda
    assert kstest(there.cpu().numpy() / STD, "norm").pvalue > FALSE_ALARM
    few = rounded_on(torch.device("cuda"), 16_384, STD, SecureRandom(5))().cpu().numpy()
    np.testing.assert_array_equal(few, SecureRandom(5).rounded_gaussian(STD, 16_384))


# -- the grid ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("std", [1e-9, 0.3, 1.0, 50.0])
@pytest.mark.parametrize("size", [1, 10**4, 10**7])
def test_the_grid_is_fine_and_sums_on_it_are_exact(std, size):
    step, longest = grid_step(std, 2.0, size, 1e5), 1e5
    assert math.frexp(step)[0] == 0.5, "a power of two"
    assert longest / step <= 2.0**50
    if std > 1e-9:
        assert 2.0**-28 * std < step <= 2.0**-20 * std
    if std <= 1.0:
        assert step * math.sqrt(size) <= 1e-4 * 2.0


def test_a_gradient_sum_asks_for_as_many_as_it_has_weights(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "labeldp.mechanisms.gradients.sums.rounded_on",
        lambda *given: asked.append(given[1:3]) or rounded_on(*given),
    )
    model = torch.nn.Linear(4, 3)
    model.bias.requires_grad_(False)
    ask = GradientSum(model, torch.ones(6, 4), NormBound(1.0), noise_std=2.0)
    LabelVault([0, 1, 2, 0, 1, 2], 3).release(ask)
    assert asked == [(12, 2.0 / ask.step)]
