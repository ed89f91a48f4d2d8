"""Tail sums of the discrete Gaussian N_Z(0, s²), P(X = k) ∝ e^{−k²/(2s²)}, and of its integer combinations.

Reference: Canonne, Kamath & Steinke 2020, The Discrete Gaussian for Differential Privacy.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Beyond this many standard deviations a double-precision Gaussian weight is zero.
_REACH = 38.6
# Above this squared length of the moves the direct convolution of a small noise is too slow.
MAX_SQUARED_MOVES = 64


def reduced(moves: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Greatest common divisor g of the moves, and the non-zero moves divided by it."""
    g = math.gcd(*moves)
    return g, tuple(sorted(abs(m) // g for m in moves if m))


def smooth_enough(noise_std: float, moves: tuple[int, ...]) -> bool:
    """Whether Y = Σ mᵢXᵢ is itself a discrete Gaussian, of variance s²|m|², to better than 1e-30.

    P(Y = k) is e^{−k²/(2s²|m|²)} times a Gaussian sum over a shifted copy of the lattice {x : m·x = 0}. By
    Poisson summation that sum is a constant up to relative terms e^{−2π²s²ℓ²}, ℓ ranging over the non-zero
    lengths of the dual lattice, the projections of integer vectors. For integer z not parallel to m the Gram
    determinant |z|²|m|² − (z·m)² is a positive integer, hence ℓ² ≥ 1/|m|²; at s ≥ 2|m| a term is below 1e-34.
    """
    return noise_std >= 2 * math.sqrt(sum(m * m for m in moves))


@lru_cache(maxsize=8)
def upper_tail(noise_std: float, moves: tuple[int, ...]) -> Array:
    """S[k] = P(Y > k) for k = 0, 1, …, where Y = Σ mᵢXᵢ for coprime positive moves."""
    if len(moves) == 1 or smooth_enough(noise_std, moves):
        pmf = _pmf(noise_std * math.sqrt(sum(m * m for m in moves)))
    else:
        pmf = _convolved(noise_std, moves)
    centre = len(pmf) // 2
    # Summed from the far end in extended precision: every entry keeps its relative accuracy.
    tail = np.cumsum(pmf[:centre:-1].astype(np.longdouble))[::-1].astype(np.float64)
    result = np.append(tail, 0.0)
    result.setflags(write=False)
    return result


def survival(tail: Array, threshold: Array) -> Array:
    """P(Y > k) for integers k, from the table of :func:`upper_tail` and the symmetry of Y."""
    last = len(tail) - 1
    k = np.clip(threshold, -last - 1, last).astype(np.int64)
    return np.where(k >= 0, tail[np.maximum(k, 0)], 1.0 - tail[np.maximum(-k - 1, 0)])


def _pmf(std: float) -> Array:
    k = np.arange(-math.ceil(_REACH * std) - 1, math.ceil(_REACH * std) + 2, dtype=np.float64)
    weights = np.exp(-0.5 * (k / std) ** 2)
    return weights / weights.sum()


def _convolved(noise_std: float, moves: tuple[int, ...]) -> Array:
    one = _pmf(noise_std)
    half = math.ceil(_REACH * noise_std * math.sqrt(sum(m * m for m in moves))) + 1
    total = np.ones(1)
    for move in moves:
        spread = np.zeros((len(one) - 1) * move + 1)
        spread[::move] = one
        total = np.convolve(total, spread)
        centre = len(total) // 2
        total = total[max(0, centre - half) : centre + half + 1]
    return total
