"""Gaussian noise on a device: secure bits from the host, made normal where they are needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from labeldp.core.random import SecureRandom

# Bits are drawn while the host waits for the device's other work.
_BESIDE = ThreadPoolExecutor(max_workers=1, thread_name_prefix="labeldp-noise")
# 64 MiB of bits.
_NORMALS_AT_ONCE = 1 << 22
_TOP = (1 << 53) - 1


def gaussian_on(device: torch.device, size: int, std: float, rng: SecureRandom) -> Callable[[], Tensor]:
    """Begin to draw `size` Gaussian floats; call the result for them, (size,) float64 on the device.

    The distribution of `SecureRandom.gaussian`, and its limits: (g + g′)/√2 of two Box–Muller normals on 53-bit
    uniforms, in float64. Logarithms and tangents are what takes time there, and what a device has units for.

    >>> gaussian_on(torch.device("cpu"), 3, 2.0, SecureRandom())().shape
    torch.Size([3])
    """
    if device.type == "cpu":
        return lambda: torch.as_tensor(rng.gaussian(size, std))
    drawn = _BESIDE.submit(_words, size, rng)
    return lambda: torch.cat([normals(words.to(device)) for words in drawn.result()])[:size] * std


def _words(size: int, rng: SecureRandom) -> list[Tensor]:
    starts = range(0, max(size, 1), _NORMALS_AT_ONCE)
    sizes = [4 * ((min(_NORMALS_AT_ONCE, size - start) + 1) // 2) for start in starts]
    return [torch.as_tensor(rng.words(words).view(np.int64).reshape(4, -1)) for words in sizes]


def normals(words: Tensor) -> Tensor:
    """(4, m) random 64-bit words to 2m standard normals, float64, as `SecureRandom` makes them."""
    # torch shifts the sign along; the mask takes it away.
    unit = (words >> 11 & _TOP).double() * 2.0**-53
    # 1 − U lies in (0, 1], so the logarithm is finite. The 1/√2 of the sum cancels the 2 of Box–Muller.
    radius = (1.0 - unit[:2]).log().neg().sqrt()
    tangent = ((unit[2:] - 0.5) * math.pi).tan()
    versed = 2.0 / (1.0 + tangent * tangent)
    return torch.cat([(radius * (versed - 1.0)).sum(0), (radius * versed * tangent).sum(0)])
