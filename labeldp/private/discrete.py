"""Exact sampling from discrete laws with irrational probabilities.

A probability p such as e^{-γ} is never rounded. A uniform real U is revealed word by word, and "U < p" is
answered as soon as the revealed digits settle it. The first word nearly always does; otherwise `settle`
computes more digits of p (decimal arithmetic with directed rounding) and reveals more of U.

The law is exact over real arithmetic. The running time is not constant: as in every rejection sampler it
depends on the noise, never on a label.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import cache, lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Integer bounds of p·2^bits: how a probability is known to any number of bits.
Digits = Callable[[int], tuple[int, int]]

SMALLEST_RATE = Fraction(1, 1 << 45)
LARGEST_STD = 1 << 40
_TAIL = 32
_COIN_BITS = 32
_DRAWS_AT_ONCE = 1 << 16


class WordSource(Protocol):
    """Anything that yields uniform 64-bit words: `SecureRandom`, or a list of words in a test."""

    def words(self, size: int) -> npt.NDArray[np.uint64]:
        """`size` uniform words."""
        ...


# -- probabilities to any number of digits ------------------------------------------------------------------


def exp_digits(gamma: Fraction) -> Digits:
    """Digits of e^{-γ}."""

    @cache
    def digits(bits: int) -> tuple[int, int]:
        return _scaled(_exp_bounds(gamma, bits), bits)

    return digits


def logistic_digits(gamma: Fraction) -> Digits:
    """Digits of 1/(1 + e^γ) = e^{-γ}/(1 + e^{-γ}), an increasing function of e^{-γ}."""

    @cache
    def digits(bits: int) -> tuple[int, int]:
        low, high = _exp_bounds(gamma, bits)
        return _scaled((low / (1 + low), high / (1 + high)), bits)

    return digits


def _exp_bounds(gamma: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    precision = bits * 3 // 10 + 25
    down = Context(prec=precision, rounding=ROUND_FLOOR, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
    up = Context(prec=precision, rounding=ROUND_CEILING, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
    top, bottom = Decimal(gamma.numerator), Decimal(gamma.denominator)
    # decimal's exp is within half a unit of its last place whatever the rounding mode: one step outwards.
    # copy_negate, because a plain minus rounds to the precision of the thread's own context.
    low = down.next_minus(down.exp(up.divide(top, bottom).copy_negate()))
    high = up.next_plus(up.exp(down.divide(top, bottom).copy_negate()))
    # A number with a vast exponent would be a vast fraction: below 2^-(bits + 64) that bound is good enough.
    if high < up.power(Decimal(2), Decimal(-bits - 64)):
        return Fraction(0), Fraction(1, 1 << (bits + 64))
    return Fraction(low), Fraction(high)


def _scaled(bounds: tuple[Fraction, Fraction], bits: int) -> tuple[int, int]:
    low, high = bounds
    return max(0, math.floor(low * 2**bits)), math.ceil(high * 2**bits)


def settle(source: WordSource, word: int, digits: Digits, bits: int = 64) -> bool:
    """Decide U < p where `word` holds the first `bits` bits of U; reveal more of U only while it is open.

    With U in [w, w+1)/2^b and p in [low, high]/2^b: true once w + 1 ≤ low, false once w ≥ high. Every
    round leaves at most a few of 2^64 cases open, so it ends with probability 1.
    """
    revealed, width = word, bits
    while True:
        low, high = digits(width)
        if revealed + 1 <= low or revealed >= high:
            return revealed + 1 <= low
        fresh = int(source.words(1)[0]) >> (64 - bits)
        revealed, width = (revealed << bits) | fresh, width + bits


# -- coins --------------------------------------------------------------------------------------------------


def coins(source: WordSource, digits: Digits, size: int, bits: int = _COIN_BITS) -> BoolArray:
    """`size` independent coins, true with exactly the probability that `digits` describes.

    One 32-bit word per coin (one 8- or 16-bit word in the tests of the rare case).
    """
    low, high = digits(bits)
    words = _narrow_words(source, size, bits)
    result = words < low
    for open_case in np.flatnonzero(~result & (words < high)):
        result[open_case] = settle(source, int(words[open_case]), digits, bits)
    return result


def _narrow_words(source: WordSource, size: int, bits: int) -> npt.NDArray[np.unsignedinteger]:
    kind = np.dtype(f"uint{bits}")
    return source.words(-(-size * bits // 64)).view(kind)[:size]


def exp_coins(
    source: WordSource,
    gamma: npt.NDArray[np.float64],
    exact: Callable[[int], Fraction],
    guard: float = 2.0**-28,
) -> BoolArray:
    """One coin per entry, true with probability e^{-γ}, where `exact(i)` is the true γ of entry i.

    The float `gamma` only has to be within 2^-30 of the truth wherever it is below 64. Then a word further
    than guard·p + 2^-60 from p is settled by it, and the others by exact digits.
    """
    words = source.words(len(gamma))
    uniform = words * 2.0**-64
    chance = np.exp(-gamma)
    result = uniform < chance
    margin = guard * chance + 2.0**-60
    for open_case in np.flatnonzero(np.abs(uniform - chance) <= margin):
        digits = exp_digits(exact(int(open_case)))
        result[open_case] = settle(source, int(words[open_case]), digits)
    return result


# -- discrete Laplace and Gaussian --------------------------------------------------------------------------


def geometric(source: WordSource, rate: Fraction, size: int, bits: int = _COIN_BITS) -> IntArray:
    """Integers with P(X ≥ m) = e^{-rate·m}, exactly.

    P(X = x) ∝ Π_j e^{-rate·2^j·x_j} over the binary digits x_j of x: a product, so the digits are
    independent and digit j is 1 with probability 1/(1 + e^{rate·2^j}). What is left above digit J is again
    geometric, with rate·2^J: the number of coins of probability e^{-rate·2^J} that come up before a failure.
    """
    places, tail = _binary_places(rate)
    result = np.zeros(size, dtype=np.int64)
    for place, digits in enumerate(places):
        result += coins(source, digits, size, bits).astype(np.int64) << place
    return result + (_run_lengths(source, tail, size, bits) << len(places))


@lru_cache(maxsize=64)
def _binary_places(rate: Fraction) -> tuple[tuple[Digits, ...], Digits]:
    # Enough places that e^{-rate·2^J} ≤ e^{-32}: the rest above them is almost always zero.
    length = (math.ceil(_TAIL / rate) - 1).bit_length()
    return tuple(logistic_digits(rate * 2**place) for place in range(length)), exp_digits(rate * 2**length)


def _run_lengths(source: WordSource, digits: Digits, size: int, bits: int) -> IntArray:
    lengths = np.zeros(size, dtype=np.int64)
    running = np.arange(size)
    while (running := running[coins(source, digits, running.size, bits)]).size:
        lengths[running] += 1
    return lengths


def discrete_laplace(source: WordSource, rate: float | Fraction, size: int) -> IntArray:
    """Integers with P(k) = tanh(rate/2)·e^{-rate·|k|}, exactly; `rate` is taken as the rational it is.

    A geometric magnitude and a fair sign; −0 is redrawn, for otherwise 0 would count twice. An infinite rate
    is no noise. A rate below 2^-45 is refused: its draws approach the range of int64.
    """
    if rate == math.inf:
        return np.zeros(size, dtype=np.int64)
    exact = checked_rate(rate)
    result = np.empty(size, dtype=np.int64)
    for start in range(0, size, _DRAWS_AT_ONCE):
        part = result[start : start + _DRAWS_AT_ONCE]
        open_cases = np.arange(len(part))
        while open_cases.size:
            magnitude = geometric(source, exact, open_cases.size)
            negative = _narrow_words(source, open_cases.size, 8) < 128
            part[open_cases] = np.where(negative, -magnitude, magnitude)
            open_cases = open_cases[negative & (magnitude == 0)]
    return result


def checked_rate(rate: float | Fraction) -> Fraction:
    """The rate as an exact fraction, or ValueError."""
    if not (rate >= SMALLEST_RATE and rate < math.inf):
        raise ValueError(f"rate is {float(rate)!r}; give at least 2^-45 (more noise overflows int64)")
    return Fraction(rate)


def discrete_gaussian(source: WordSource, std: float | Fraction, size: int) -> IntArray:
    """Integers with P(k) ∝ e^{-k²/(2·std²)}, exactly; `std` is taken as the rational it is.

    Canonne, Kamath and Steinke (2020): draw Y from the discrete Laplace law of rate 1/t, t = ⌊std⌋ + 1, keep
    it with probability e^{-(|Y| − std²/t)²/(2·std²)}. The product of the two laws has the exponent
    −Y²/(2·std²) plus a constant. Less than half of the proposals are refused.
    """
    exact = checked_std(std)
    result = np.empty(size, dtype=np.int64)
    for start in range(0, size, _DRAWS_AT_ONCE):
        part = result[start : start + _DRAWS_AT_ONCE]
        open_cases = np.arange(len(part))
        while open_cases.size:
            part[open_cases] = proposal = discrete_laplace(source, _proposal_rate(exact), open_cases.size)
            open_cases = open_cases[~_accepted(source, proposal, exact)]
    return result


def checked_std(std: float | Fraction) -> Fraction:
    """The standard deviation as an exact fraction, or ValueError."""
    if not 0 < std <= LARGEST_STD:
        raise ValueError(f"std is {float(std)!r}; give a positive number of at most 2^40")
    return Fraction(std)


def _proposal_rate(std: Fraction) -> Fraction:
    return Fraction(1, math.floor(std) + 1)


def _accepted(source: WordSource, proposal: IntArray, std: Fraction) -> BoolArray:
    rate = _proposal_rate(std)
    with np.errstate(over="ignore"):
        # Beyond 64 deviations the chance is below 2^-60 and every open word goes to exact digits.
        gamma = 0.5 * np.square(np.abs(proposal) / float(std) - float(std * rate))
    return exp_coins(source, gamma, lambda i: (abs(int(proposal[i])) - std**2 * rate) ** 2 / (2 * std**2))


# -- randomized response on 64-bit words --------------------------------------------------------------------


@lru_cache(maxsize=256)
def exp_rounded_down(epsilon: float) -> Fraction:
    """A rational number at most e^ε, and within a relative 10^-90 of it for ε ≤ 1000 (above, e^1000 serves)."""
    context = Context(prec=100, rounding=ROUND_FLOOR, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
    return max(Fraction(1), Fraction(context.next_minus(context.exp(Decimal(min(epsilon, 1000.0))))))


def response_thresholds(epsilon: float, set_size: int, bits: int = 64) -> tuple[int, int] | None:
    """(G, B) for exact randomized response among k = `set_size` answers, or None where it must be uniform.

    For a uniform word u of 2^bits: the answer is the true one if u < G, else number (u − G) // B of the k.
    So every answer owns B words and the true one G more.

    Proof. E ≤ e^ε, B = ⌈2^bits/(E + k − 1)⌉, A = 2^bits − (k − 1)·B, G = A − B. The k answers fill
    G + k·B = 2^bits words. B·(E + k − 1) ≥ 2^bits, so A = 2^bits − (k−1)·B ≤ B·E: the odds A/B never exceed
    e^ε. They are at least 1 where G ≥ 0; where rounding makes G negative, uniform answers do (None).
    """
    if set_size == 1:
        return None
    width = math.ceil(Fraction(2**bits) / (exp_rounded_down(epsilon) + set_size - 1))
    gap = 2**bits - set_size * width
    return (gap, width) if gap >= 0 else None


def thresholds_are_private(epsilon: float, set_size: int, bits: int = 64) -> bool:
    """Check on the integers themselves that no answer's odds exceed e^ε. Exact rational arithmetic."""
    thresholds = response_thresholds(epsilon, set_size, bits)
    if thresholds is None:
        return True
    gap, width = thresholds
    fills = gap >= 0 and width >= 1 and gap + set_size * width == 2**bits
    return fills and Fraction(gap + width, width) <= exp_rounded_down(epsilon)
