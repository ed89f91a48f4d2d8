"""Round sums to a grid and draw rounded Gaussian noise in steps of it, on the device where the sums are.

A sum S ∈ R^d that a replaced label moves by at most D is brought to the grid, T = round(S/g), and released as T + N
with N = round(Z/g), Z ~ N(0, s²I), all in integers (float64 holds them exactly).

Proof. T is a vector of integers, so T + round(Z/g) = round(T + Z/g): the release is a function of gT + Z, and costs no
more than Gaussian noise of deviation s on gT, which moves by at most D + g√d. No low bit of S survives: the output lies
on gZ, and the distribution of N is exact (`rounded_gaussian`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from labeldp.core.random import DOUBT, EXTREME, SecureRandom, settle_pair

# Bits are drawn while the host waits for the device's other work.
_BESIDE = ThreadPoolExecutor(max_workers=1, thread_name_prefix="labeldp-noise")
# 64 MiB of bits.
_NORMALS_AT_ONCE = 1 << 23


def grid_step(noise_std: float, diameter: float, size: int, longest: float) -> float:
    """Return the grid's step g, a power of two, for `size` numbers and sums of length at most `longest`.

    At most s/2^20, so that the noise covers many steps; and so small that rounding moves the sum by no more than
    6·10^-5 of the diameter, but no smaller than s/2^27, or noise would often be in doubt (`rounded_gaussian`). Sums
    stay below 2^50 steps, where float64 counts them exactly.

    >>> grid_step(noise_std=1.0, diameter=2.0, size=10_000, longest=1e3) == 2.0**-20
    True
    """
    fine = max(2.0**-14 * diameter / math.sqrt(max(1, size)), 2.0**-26 * noise_std)
    exponent = math.floor(math.log2(min(2.0**-20 * noise_std, fine)))
    return math.ldexp(1.0, max(exponent, math.ceil(math.log2(longest)) - 50))


def with_noise(total: Tensor, step: float, noise: Tensor) -> Tensor:
    """Bring a sum to the grid and add noise in steps of it, in place; all numbers are below 2^53 steps, so exact.

    >>> with_noise(torch.tensor([0.3, -1.0], dtype=torch.float64), 0.25, torch.tensor([1.0, 0.0], dtype=torch.float64))
    tensor([ 0.5000, -1.0000], dtype=torch.float64)
    """
    return total.div_(step).round_().add_(noise).mul_(step)


def rounded_on(device: torch.device, size: int, std: float, rng: SecureRandom) -> Callable[[], Tensor]:
    """Begin to draw `size` integers; call the result for them, (size,) float64 on the device.

    Their distribution is that of `SecureRandom.rounded_gaussian`, and so are the numbers, but for the order of the bits
    of those few that are in doubt. Logarithms and tangents take time on a processor, and a device has units for them.

    >>> rounded_on(torch.device("cpu"), 3, 2.0**20, SecureRandom())().shape
    torch.Size([3])
    """
    if device.type == "cpu":
        return lambda: torch.as_tensor(rng.rounded_gaussian(std, size).astype(np.float64))

    def drawn() -> list[Tensor]:
        counts = (min(_NORMALS_AT_ONCE, size - start) for start in range(0, size, _NORMALS_AT_ONCE))
        found = [torch.as_tensor(rng.words(2 * ((n + 1) // 2)).view(np.int64).reshape(2, -1)) for n in counts]
        # From pinned memory the device fetches them when it comes to it, and the host goes on.
        return [pairs.pin_memory() for pairs in found] if device.type == "cuda" else found

    words = _BESIDE.submit(drawn)

    def finish() -> Tensor:
        parts = [torch.zeros(0, dtype=torch.float64).to(device)]
        for pairs in words.result():
            rounded, doubt = box_muller(pairs.to(device, non_blocking=True), std)
            for place in doubt.nonzero()[:, 0].cpu().numpy():
                settled = settle_pair(rng, int(pairs[0, place]), int(pairs[1, place]), std)
                rounded[:, place] = torch.tensor(settled, dtype=torch.float64).to(device)
            parts.append(rounded.flatten())
        return torch.cat(parts)[:size]

    return finish


def box_muller(pairs: Tensor, std: float) -> tuple[Tensor, Tensor]:
    """Return rounded pairs, (2, m) float64, and which are in doubt, (m,), as `SecureRandom` makes them.

    Sine and cosine come from one function here; the bound on errors, in `labeldp.core.random`, allows for either way.
    """
    unit = pairs.double().mul_(2.0**-64)
    chance = unit[0] + (pairs[0] < 0)
    radius = chance.log().mul_(-2.0).sqrt_().mul_(std)
    exact = torch.view_as_real(torch.polar(radius, unit[1] * (2.0 * math.pi))).mT
    rounded = exact.round()
    doubt = (exact - rounded).abs_().amax(0) > 0.5 - std * DOUBT
    return rounded, doubt | ((chance - 0.5).abs_() > 0.5 - EXTREME)
