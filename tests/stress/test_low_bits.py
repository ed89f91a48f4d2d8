"""The low-bit attack with 10^7 draws of every mechanism that adds Gaussian noise to sums, in every kind of number.

On a GPU where there is one: `pytest tests/stress/test_low_bits.py -m stress`.
"""

import numpy as np
import pytest
import torch

from labeldp.core.random import SecureRandom
from labeldp.mechanisms.common import grid_std
from labeldp.mechanisms.gradients.noise import grid_step, rounded_on, with_noise
from tests.mechanisms.low_bits import STD, claim, contradicts, gradient_sum, moments, user_sum

pytestmark = pytest.mark.stress

DRAWS = 10**7
KINDS = {
    "float64": {"dtype": torch.float64},
    "float32": {"dtype": torch.float32},
    "bfloat16": {"dtype": torch.float32, "precision": torch.bfloat16},
}


@pytest.mark.parametrize("made", [gradient_sum, user_sum], ids=["rows", "users"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_sums(made, kind):
    assert not contradicts(made(DRAWS, **KINDS[kind]), claim(1e-5))
    assert contradicts(made(DRAWS, **KINDS[kind], share=0.98), claim(1e-5))


@pytest.mark.parametrize("exact", [True, False])
def test_moments(exact):
    assert not contradicts(moments(exact)(DRAWS), claim())
    assert contradicts(moments(exact)(DRAWS, share=0.98), claim())


def test_votes():
    """The noise of teachers' votes: integers on a grid of 2^-10."""

    def release(share):
        return lambda label, rng: (
            label + rng.discrete_gaussian(grid_std(STD * share, 1 << 10), DRAWS).astype(np.float64) * 2.0**-10
        )

    assert not contradicts(release(1.0), claim())
    assert contradicts(release(0.98), claim())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16])
def test_noise_made_on_a_gpu(kind):
    device, step = torch.device("cuda"), grid_step(STD, 1.0, 1, 1.0)

    def release(share):
        def released(label: int, rng: SecureRandom):
            total = torch.full((DRAWS,), float(label), dtype=kind, device=device).double()
            noise = rounded_on(device, DRAWS, STD * share / step, rng)()
            return with_noise(total, step, noise).to(torch.float64 if kind == torch.float64 else torch.float32).cpu()

        return released

    assert not contradicts(release(1.0), claim(step))
    assert contradicts(release(0.98), claim(step))
