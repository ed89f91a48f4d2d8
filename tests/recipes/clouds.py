"""Three clouds of points that a linear model tells apart: the problem of the gradient recipes' tests."""

import functools

import numpy as np
import torch
from torch import nn

from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.learning.optimisers import sgd
from labeldp.recipes.labeldp_pro import train

K, DELTA = 3, 1e-5
some = functools.partial(train, delta=DELTA, batch_size=60, optimizer=sgd(1.0, 0.0, 0.0))


@functools.cache
def problem(n=600, seed=0):
    """Three Gaussian clouds that a linear model separates nearly perfectly."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, K, size=n)
    x = torch.from_numpy(4 * np.eye(K, 5)[labels] + generator.normal(size=(n, 5))).float()
    return x, labels


def vault(budget=None, seed=None, n=600, **more):
    return LabelVault(problem(n)[1], K, budget, rng=None if seed is None else SecureRandom(seed), **more)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(5, K)
