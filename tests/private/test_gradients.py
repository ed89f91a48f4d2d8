"""The mechanism on real vaults: shapes, charges, refusals."""

import numpy as np
import torch
from torch import nn

from labeldp import GradientSum, LabelVault, NormBound
from labeldp.accounting.events import Gaussian, PoissonGaussian
from labeldp.models.per_example import clipped_sum, cross_entropy
from labeldp.private.randomness import SecureRandom

ROWS, CLASSES = 40, 3


def question(**settings):
    torch.manual_seed(0)
    inputs = torch.randn(ROWS, 4)
    return GradientSum(nn.Linear(4, CLASSES), inputs, **{"bound": NormBound(0.5), "noise_std": 1.0, **settings})


def labels():
    return np.arange(ROWS, dtype=np.uint8) % CLASSES


def test_events():
    assert question().event() == Gaussian(1.0, 1.0)
    assert question(rate=0.1).event() == PoissonGaussian(1.0, 0.5, 1.0, 0.1)


def test_a_full_sum_is_the_clipped_sum_plus_noise_over_the_rows():
    ask = question(noise_std=1e-9)
    release = LabelVault(labels(), CLASSES).release(ask)
    exact = clipped_sum(ask.model, cross_entropy, ask.inputs, torch.from_numpy(labels().astype(int)), clip=0.5)
    torch.testing.assert_close(release.value, exact / ROWS, atol=1e-7, rtol=0)
    assert (release.noise_std, release.expected_batch) == (1e-9 / ROWS, ROWS)


def test_a_secret_batch_is_divided_by_its_expected_size():
    ask = question(rate=0.25)
    release = ask.sample(labels(), SecureRandom(seed=1))
    assert release.value.shape == (15,)
    assert release.expected_batch == 10.0
    assert release.noise_std == 0.1
