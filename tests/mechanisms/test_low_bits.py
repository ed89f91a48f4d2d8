"""The low-bit attack finds nothing, and finds noise in floating point and noise that is two percent short."""

import numpy as np
import pytest
import torch

from tests.mechanisms.low_bits import STD, claim, contradicts, gradient_sum, moments, user_sum

# Seconds each; tests/stress has 10^7, and every kind of number.
DRAWS = 10**6
KINDS = {
    "float64": {"dtype": torch.float64},
    "float32": {"dtype": torch.float32},
    "bfloat16": {"dtype": torch.float32, "precision": torch.bfloat16},
}


@pytest.mark.parametrize("kind", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_gradient_sums(kind):
    assert not contradicts(gradient_sum(DRAWS, **KINDS[kind]), claim(1e-5))
    assert contradicts(gradient_sum(DRAWS, **KINDS[kind], share=0.98), claim(1e-5))


@pytest.mark.slow
def test_sums_over_users():
    assert not contradicts(user_sum(DRAWS), claim(1e-5))
    assert contradicts(user_sum(DRAWS, share=0.98), claim(1e-5))


def test_moments_with_rounded_noise():
    assert not contradicts(moments(exact=False)(DRAWS), claim())
    assert contradicts(moments(exact=False)(DRAWS, share=0.98), claim())


def test_floating_point_noise_is_found():
    """Box–Muller in float64, as it was before: the digits of a small release say whether 1 was taken from it."""

    def release(label, rng):
        chance, turn = rng.words(2 * DRAWS).reshape(2, -1) * 2.0**-64
        return label + STD * np.sqrt(-2 * np.log(1 - chance)) * np.cos(2 * np.pi * turn)

    assert contradicts(release, claim())
