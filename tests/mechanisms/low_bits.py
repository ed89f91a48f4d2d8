"""The low-bit attack: what the last digits of a release say about the sum under the noise (Mironov 2012).

Two neighbours give 0 and 1 under noise of deviation s: many releases of each. A release falls into a cell, by its size
and by the number of zeros that its digits end with. On the first half of the releases the attack picks the cells that
speak for one neighbour beyond e^ε; on the second half it bounds their chances from the safe side, and so
δ(ε) ≥ P(cells) − e^ε Q(cells). A second attack looks at sizes alone, with the cut that is best for Gaussian noise. A
bound above the claim's own δ(ε) contradicts the claim.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import beta
from torch import nn

from labeldp.core.events import Gaussian
from labeldp.core.random import SecureRandom
from labeldp.mechanisms.counts import GaussianNoise
from labeldp.mechanisms.gradients.sums import GradientSum, NormBound
from labeldp.mechanisms.gradients.users import UserGradientSum
from labeldp.mechanisms.moments import Moments
from labeldp.mechanisms.users import Users

EPSILONS = (0.0, 0.5, 1.0, 2.0, 4.0)
# Of one call of `contradicts`: two attacks in both directions, at all ε, with two bounds each.
FALSE_ALARM = 1e-9
STD = 0.5


def cells(values):
    """Size in 64 classes × zeros at the end of the mantissa, as one number each."""
    mantissa = np.abs(values).view(np.int64) & ((1 << 52) - 1)
    ends = np.where(mantissa == 0, 52, np.frexp((mantissa & -mantissa).astype(np.float64))[1] - 1)
    return (np.digitize(values, np.linspace(-1.0, 2.0, 63)) * 53 + ends).astype(np.int64)


def proven(ours, theirs, epsilon):
    """A δ(ε) that is true but for a chance: so often is an event seen in our releases and in theirs, (trials,)."""
    level = FALSE_ALARM / (8 * len(EPSILONS))
    low = beta.ppf(level, ours.sum(), len(ours) - ours.sum() + 1) if ours.any() else 0.0
    high = beta.ppf(1 - level, theirs.sum() + 1, len(theirs) - theirs.sum()) if not theirs.all() else 1.0
    return low - np.exp(epsilon) * high


def by_low_bits(ours, theirs, epsilon):
    found, half, count = [cells(ours), cells(theirs)], len(ours) // 2, 64 * 53
    seen = [np.bincount(part[:half], minlength=count) for part in found]
    chosen = seen[0] > np.exp(epsilon) * seen[1] + 3 * np.sqrt(seen[0] + 1)
    return proven(*(chosen[part[half:]] for part in found), epsilon)


def by_size(ours, theirs, epsilon):
    # Where the density of one neighbour is e^ε that of the other; which of them lies above is public.
    cut = 0.5 + epsilon * STD**2
    above = ours.mean() > theirs.mean()
    return proven(*((part > cut if above else part < 1 - cut) for part in (ours, theirs)), epsilon)


def contradicts(release, claim):
    """Whether releases of 0 and of 1 (functions of the neighbour and a generator) prove more than the claim."""
    pair = [np.asarray(release(label, SecureRandom(seed=label + 1)), dtype=np.float64) for label in (0, 1)]
    return any(
        attack(ours, theirs, epsilon) > float(claim.profile(epsilon)[0])
        for attack in (by_low_bits, by_size)
        for ours, theirs in (pair, pair[::-1])
        for epsilon in EPSILONS
    )


# -- every mechanism that adds Gaussian noise to sums, many numbers at once: each is a release of its own ------------


def tall(draws, dtype):
    """A model in which every one of so many weights has the gradient 0 or 1, whichever is the label."""
    width = round(draws**0.5)
    return nn.Linear(width, width, bias=False).to(dtype), torch.ones(1, width, dtype=dtype)


def all_or_nothing(logits, labels):
    return logits.sum(1) * labels


def gradient_sum(draws, dtype=torch.float64, precision=None, share=1.0):
    model, inputs = tall(draws, dtype)
    long = 2.0 * draws**0.5
    ask = GradientSum(
        model, inputs, NormBound(long), STD * share, loss=all_or_nothing, num_classes=2, precision=precision
    )
    return lambda label, rng: ask.sample(np.array([label], dtype=np.uint8), rng).value.numpy()


def user_sum(draws, dtype=torch.float64, precision=None, share=1.0):
    model, inputs = tall(draws, dtype)
    ask = UserGradientSum(
        model,
        inputs,
        Users(["ann"]),
        NormBound(2.0 * draws**0.5),
        STD * share,
        loss=all_or_nothing,
        precision=precision,
    )
    return lambda label, rng: ask.sample(np.array([label], dtype=np.uint8), rng).value.numpy()


def moments(exact):
    def made(draws, share=1.0):
        reach = Moments(np.ones((1, 1)), 2, GaussianNoise(STD), 1.0).grid.reach
        # A move of so many steps, a power of two, so that dividing by it leaves the digits alone.
        move = 1 << (reach.bit_length() - 1)
        ask = Moments(np.ones((1, 1)), 2, GaussianNoise(STD * share * move / reach), 1.0, exact=exact)

        def release(label, rng):
            return ask._noisy(np.full((draws, 1), label * move, dtype=np.int64), rng)[:, 0] / move

        return release

    return made


def claim(step=0.0):
    """One number that moves by 1, and by what rounding to a grid adds."""
    return Gaussian(STD, 1.0 + step)
