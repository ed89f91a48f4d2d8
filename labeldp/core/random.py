"""Draw secure random bits, and exactly from the discrete distributions that mechanisms need.

Mechanisms draw every bit of noise from one `SecureRandom`: AES-256 in counter mode under a key from the
operating system. A seeded one exists for tests; its `source` says that it protects nobody.

Discrete distributions are sampled exactly: a probability p such as e^{-γ} is never rounded. A uniform real U is
revealed word by word, and "U < p" is decided as soon as the revealed digits settle it. The first word nearly always
does; otherwise `settle` computes more digits of p (decimal arithmetic with directed rounding) and reveals more of U.
The distribution is exact over real arithmetic. The running time is not constant: as in every rejection sampler it
depends on the noise, never on a label.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, NoReturn, Self

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from mpmath.ctx_iv import MPIntervalContext  # pyright: ignore[reportMissingTypeStubs]

from labeldp.core.certificate import SECURE_NOISE

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_BLOCK = 1 << 20
_ZEROS = memoryview(bytes(_BLOCK))
# Far below the 2^68 bytes of a 128-bit counter and the 2^64 blocks where CTR becomes distinguishable.
_REKEY_AFTER = 1 << 36
_NORMALS_AT_ONCE = 1 << 14

SMALLEST_RATE = Fraction(1, 1 << 45)
LARGEST_STD = 1 << 40
_TAIL = 32
_COIN_BITS = 32
_DRAWS_AT_ONCE = 1 << 16
# How far float64 may be off in a normal number, and how near to 0 and 1 the uniform number must not be for that.
DOUBT, EXTREME = 2.0**-42, 2.0**-20


class WordSource(ABC):
    """Anything that yields uniform 64-bit words, and the samplers: `SecureRandom`, or a list of words in a test.

    Samplers name the rows they draw for, because noise may be keyed by row (`labeldp.core.keyed`); elsewhere one source
    serves all.
    """

    # Up to how many coins are drawn for all binary places at once: to begin a draw takes longer than a few coins.
    few = 1 << 9

    @abstractmethod
    def words(self, size: int) -> npt.NDArray[np.uint64]:
        """Return `size` uniform words."""

    def narrow(self, size: int, bits: int) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Return `size` uniform words of 8, 16, 32 or 64 bits."""
        return self.words(-(-size * bits // 64)).view(np.dtype(f"uint{bits}"))[:size]

    def narrow_each(self, times: int, size: int, bits: int) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Return what so many calls of `narrow` do, (times, size), drawn at once."""
        each = -(-size * bits // 64)
        return self.words(times * each).view(np.dtype(f"uint{bits}")).reshape(times, -1)[:, :size]

    def at(self, rows: Any) -> Self:
        """Return the source of these rows' noise, of those it is for: a slice, a mask or an array of their numbers."""
        return self

    def split(self, parts: int) -> Self:
        """Return the source of `parts` cells for each row, side by side."""
        return self

    def discrete_laplace(self, rate: float | Fraction, size: int) -> IntArray:
        """Return integers with P(k) = tanh(rate/2)·e^{-rate·|k|}, exactly; `rate` is taken as the rational it is.

        A geometric magnitude and a fair sign; −0 is redrawn, for otherwise 0 would count twice. An infinite rate
        is no noise. A rate below 2^-45 is refused: its draws approach the range of int64.
        """
        if rate == math.inf:
            return np.zeros(size, dtype=np.int64)
        if not rate >= SMALLEST_RATE:
            raise ValueError(f"rate is {float(rate)!r}; give at least 2^-45 (more noise overflows int64)")
        exact = Fraction(rate)

        def signed(rows: IntArray) -> tuple[IntArray, BoolArray]:
            own = self.at(rows)
            magnitude = geometric(own, exact, len(rows))
            negative = own.narrow(len(rows), 8) < 128
            return np.where(negative, -magnitude, magnitude), negative & (magnitude == 0)

        return _by_rejection(size, signed)

    def discrete_gaussian(self, std: float | Fraction, size: int) -> IntArray:
        """Return integers with P(k) ∝ e^{-k²/(2·std²)}, exactly; `std` is taken as the rational it is.

        Canonne, Kamath and Steinke (2020): draw Y from the discrete Laplace distribution of rate 1/t, t = ⌊std⌋ + 1,
        keep it with probability e^{-(|Y| − std²/t)²/(2·std²)}. The product of the two has the exponent
        −Y²/(2·std²) plus a constant. Less than half of the proposals are refused.
        """
        if not 0 < std <= LARGEST_STD:
            raise ValueError(f"std is {float(std)!r}; give a positive number of at most 2^40")
        exact = Fraction(std)
        rate = Fraction(1, math.floor(exact) + 1)

        def proposed(rows: IntArray) -> tuple[IntArray, BoolArray]:
            drawn = self.discrete_laplace(rate, len(rows))
            with np.errstate(over="ignore"):
                # Beyond 64 deviations the chance is below 2^-60 and every open word goes to exact digits.
                gamma = 0.5 * np.square(np.abs(drawn) / float(exact) - float(exact * rate))
            kept = exp_coins(self, gamma, lambda i: (abs(int(drawn[i])) - exact**2 * rate) ** 2 / (2 * exact**2))
            return drawn, ~kept

        return _by_rejection(size, proposed)

    def rounded_gaussian(self, std: float, size: int) -> IntArray:
        """Return integers with P(k) = Φ((k + ½)/std) − Φ((k − ½)/std), exactly; `std` is taken as the rational it is.

        A pair is std·√(−2 log V)·(cos, sin)(2πH) of two uniform reals (Box & Muller 1958), rounded. Each real is known
        by its first 64 bits. The pair is computed in float64; where that leaves no doubt about the two integers,
        whatever the bits not seen, they are the result. Else (about one pair in 300,000 for std = 2^20) `settle_pair`
        reveals more bits. Unlike floating-point noise it has no low bits, and added to an integer it is the rounding of
        a Gaussian around it.

        >>> SecureRandom(seed=1).rounded_gaussian(1000.0, 3)
        array([ 601,   56, -239])
        """
        if not 0 < std <= LARGEST_STD:
            raise ValueError(f"std is {std!r}; give a positive number of at most 2^40")
        result = np.empty(size, dtype=np.int64)
        for start in range(0, size, _NORMALS_AT_ONCE):
            part = result[start : start + _NORMALS_AT_ONCE]
            pairs = self.words(2 * ((len(part) + 1) // 2)).view(np.int64).reshape(2, -1)
            drawn, doubt = _box_muller(pairs, std)
            for place in np.flatnonzero(doubt):
                drawn[:, place] = settle_pair(self, int(pairs[0, place]), int(pairs[1, place]), std)
            part[...] = drawn.reshape(-1)[: len(part)]
        return result


class SecureRandom(WordSource):
    """Random bits from AES-256-CTR, keyed by the operating system.

    Safe to share between threads. A forked child gets a fresh key, so it never repeats its parent's noise.
    Copying or pickling is refused: two copies would draw the same noise, and the difference of two releases
    with the same noise is the bare truth. (Restoring a snapshot of a virtual machine copies it all the same.)

    `seed` replaces the key by a hash of the seed. Whoever knows the seed can undo the noise: tests only.

    >>> SecureRandom().source
    'operating-system entropy, AES-256-CTR'
    >>> SecureRandom(seed=3).below(6, 4)
    array([4, 0, 5, 2], dtype=uint64)
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._lock = threading.Lock()
        self._open_stream(system_key() if seed is None else _hash("seed", str(int(seed)).encode()))
        _living.add(self)

    @property
    def seed(self) -> int | None:
        """The seed given, or None for operating-system entropy."""
        return self._seed

    @property
    def source(self) -> str:
        """Where the bits come from, in words for a certificate."""
        return SECURE_NOISE if self._seed is None else "seeded AES-256-CTR (not private: for tests)"

    def __repr__(self) -> str:
        return f"SecureRandom({self.source})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("SecureRandom cannot be copied or pickled: a copy repeats its noise; make a new one")

    def fill(self, buffer: npt.NDArray[Any]) -> None:
        """Overwrite a C-contiguous array with random bytes."""
        view = buffer.reshape(-1).view(np.uint8).data
        with self._lock:
            for start in range(0, len(view), _BLOCK):
                part = view[start : start + _BLOCK]
                if self._drawn + len(part) > _REKEY_AFTER:
                    self._rekey(b"next")
                self._stream.update_into(_ZEROS[: len(part)], part)
                self._drawn += len(part)

    def words(self, size: int) -> npt.NDArray[np.uint64]:
        """Return `size` uniform 64-bit words."""
        words = np.empty(size, dtype=np.uint64)
        self.fill(words)
        return words

    def below(self, bound: npt.ArrayLike, size: int) -> npt.NDArray[np.uint64]:
        """Return `size` exactly uniform integers in [0, bound); `bound` is one number or one per draw, 1 to 2^63.

        Of the 2^64 words the first 2^64 mod bound are redrawn, so that a multiple of bound is left.
        """
        bounds = np.broadcast_to(np.asarray(bound, dtype=np.uint64), (size,))
        if size and (int(bounds.min()) < 1 or int(bounds.max()) > 1 << 63):
            raise ValueError("bound must lie between 1 and 2^63")
        words = self.words(size)
        surplus = (np.uint64(0) - bounds) % bounds
        while (again := np.flatnonzero(words < surplus)).size:
            words[again] = self.at(again).words(again.size)
        return words % bounds

    def _open_stream(self, key: bytes) -> None:
        self._key, self._drawn = key, 0
        self._stream = Cipher(AES(key), CTR(bytes(16))).encryptor()

    def _rekey(self, reason: bytes) -> None:
        self._open_stream(system_key() if self._seed is None else _hash("rekey", self._key + reason))

    def _after_fork(self) -> None:
        # The lock may have been held by a thread that does not exist in the child.
        self._lock = threading.Lock()
        self._rekey(b"fork %d" % os.getpid())


def system_key() -> bytes:
    """Return a fresh key of 256 bits from the operating system."""
    return os.urandom(32)


def _hash(purpose: str, data: bytes) -> bytes:
    return hashlib.sha256(b"labeldp.SecureRandom/" + purpose.encode() + b"\0" + data).digest()


_living: weakref.WeakSet[SecureRandom] = weakref.WeakSet()


def _rekey_child() -> None:
    for living in list(_living):
        living._after_fork()  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_rekey_child)


# -- geometric numbers, and rejection ------------------------------------------------------------------------


def _by_rejection(size: int, propose: Callable[[IntArray], tuple[IntArray, BoolArray]]) -> IntArray:
    """Return `size` draws; `propose` makes those of some rows, and says which are refused and drawn again."""
    result = np.empty(size, dtype=np.int64)
    for start in range(0, size, _DRAWS_AT_ONCE):
        open_cases = np.arange(start, min(start + _DRAWS_AT_ONCE, size))
        while open_cases.size:
            result[open_cases], refused = propose(open_cases)
            open_cases = open_cases[refused]
    return result


def geometric(source: WordSource, rate: Fraction, size: int) -> IntArray:
    """Return integers with P(X ≥ m) = e^{-rate·m}, exactly.

    P(X = x) ∝ Π_j e^{-rate·2^j·x_j} over the binary digits x_j of x: a product, so the digits are
    independent and digit j is 1 with probability 1/(1 + e^{rate·2^j}). What is left above digit J is again
    geometric, with rate·2^J: the number of coins of probability e^{-rate·2^J} that come up before a failure.
    """
    places, tail = _binary_places(rate)
    result = np.zeros(size, dtype=np.int64)
    if places and size <= source.few:
        low, high, worth = _place_bounds(rate)
        words = source.narrow_each(len(places), size, _COIN_BITS)
        ones = words < low
        for place, case in np.argwhere(~ones & (words < high)).tolist():
            ones[place, case] = settle(source.at([case]), int(words[place, case]), places[place], _COIN_BITS)
        result += (ones * worth).sum(axis=0)
    else:
        for place, digits in enumerate(places):
            result += coins(source, digits, size).astype(np.int64) << place
    running = np.arange(size)
    while (running := running[coins(source.at(running), tail, running.size)]).size:
        result[running] += 1 << len(places)
    return result


@lru_cache(maxsize=64)
def _binary_places(rate: Fraction) -> tuple[tuple[Digits, ...], Digits]:
    # Enough places that e^{-rate·2^J} ≤ e^{-32}: the rest above them is almost always zero.
    length = (math.ceil(_TAIL / rate) - 1).bit_length()
    return tuple(logistic_digits(rate * 2**place) for place in range(length)), exp_digits(rate * 2**length)


@lru_cache(maxsize=64)
def _place_bounds(rate: Fraction) -> tuple[IntArray, IntArray, IntArray]:
    """Return bounds of each place's probability times 2^32, and what the place is worth, (places, 1) each."""
    found = [digits(_COIN_BITS) for digits in _binary_places(rate)[0]]
    low, high = np.array(found, dtype=np.int64).T
    return low[:, None], high[:, None], 1 << np.arange(len(found), dtype=np.int64)[:, None]


# -- the rounded Gaussian ------------------------------------------------------------------------------------


def _box_muller(pairs: IntArray, std: float) -> tuple[npt.NDArray[np.float64], BoolArray]:
    """Return the pairs rounded in float64, (2, m), and which of them are in doubt, (m,).

    Between V = 2^-20 and 1 − 2^-20 rounding and bits not seen move a number by less than std·2^-43: log V by 2^-44, at
    a radius of at least 2^-9.5 (V near 1, where they move it by 2^-53) or 1.1, and the angle by 2^-50. That allows the
    functions errors of some units in the last place; twice as much is taken for doubt, and all other V.
    """
    unit = pairs * 2.0**-64
    chance = unit[0] + (pairs[0] < 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        radius = np.sqrt(-2.0 * np.log(chance)) * std
        # cos 2x = 2/(1 + t²) − 1 and sin 2x = 2t/(1 + t²) with t = tan x: three times as fast.
        tangent = np.tan(unit[1] * np.pi)
        versed = 2.0 / (1.0 + tangent * tangent)
        # Over numbers that are not needed any more, and are in the cache.
        exact = unit
        np.multiply(radius, versed - 1.0, out=exact[0])
        np.multiply(radius, versed * tangent, out=exact[1])
        drawn = np.rint(exact)
        exact -= drawn
    doubt = np.abs(exact, out=exact).max(axis=0) > 0.5 - std * DOUBT
    return drawn, doubt | (np.abs(chance - 0.5) > 0.5 - EXTREME)


def settle_pair(source: WordSource, first: int, second: int, std: float) -> tuple[int, int]:
    """Return the rounded pair of two reals that begin with these signed words, by intervals of any precision."""
    chance, turn, bits = first % (1 << 64), second, 64
    while True:
        context = _intervals(bits + 64)
        radius = context.sqrt(-2 * context.log(context.mpf([chance, chance + 1]) / (1 << bits))) * std
        angle = 2 * context.pi * context.mpf([turn, turn + 1]) / (1 << bits)
        nearest = _only_integer(radius * context.cos(angle)), _only_integer(radius * context.sin(angle))
        # The logarithm of 0 has no bound; more bits then say how small the number is.
        if chance and nearest[0] is not None and nearest[1] is not None:
            return nearest[0], nearest[1]
        more = source.words(2)
        chance, turn, bits = chance << 64 | int(more[0]), turn << 64 | int(more[1]), bits + 64


def _only_integer(interval: Any) -> int | None:
    """Return the integer that all of the interval rounds to; None while there are several."""
    # A float may be on the wrong side of a half, so both neighbours are tried.
    middle = float(interval.mid)
    below = math.floor(middle) if math.isfinite(middle) else 0
    return next((k for k in (below, below + 1) if interval - k > -0.5 and interval - k < 0.5), None)


@lru_cache(maxsize=8)
def _intervals(precision: int) -> Any:
    """Return arithmetic of so many bits. It takes milliseconds to make, and threads share it: nothing changes it."""
    context: Any = MPIntervalContext()
    context.prec = precision
    return context


# -- coins ---------------------------------------------------------------------------------------------------


# Integer bounds of p·2^bits: how a probability is known to any number of bits.
Digits = Callable[[int], tuple[int, int]]


def coins(source: WordSource, digits: Digits, size: int, bits: int = _COIN_BITS) -> BoolArray:
    """Return `size` independent coins, true with exactly the probability that `digits` describes.

    One 32-bit word per coin (one 8- or 16-bit word in the tests of the rare case).
    """
    low, high = digits(bits)
    words = source.narrow(size, bits)
    result = words < low
    for open_case in np.flatnonzero(~result & (words < high)):
        result[open_case] = settle(source.at([open_case]), int(words[open_case]), digits, bits)
    return result


def exp_coins(
    source: WordSource, gamma: npt.NDArray[np.float64], exact: Callable[[int], Fraction], guard: float = 2.0**-28
) -> BoolArray:
    """Return one coin per entry, true with probability e^{-γ}, where `exact(i)` is the true γ of entry i.

    The float `gamma` only has to be within 2^-30 of the truth wherever it is below 64. Then a word further
    than guard·p + 2^-60 from p is settled by it, and the others by exact digits.
    """
    words = source.words(len(gamma))
    uniform = words * 2.0**-64
    chance = np.exp(-gamma)
    result = uniform < chance
    for open_case in np.flatnonzero(np.abs(uniform - chance) <= guard * chance + 2.0**-60):
        digits = exp_digits(exact(int(open_case)))
        result[open_case] = settle(source, int(words[open_case]), digits)
    return result


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


# -- probabilities to any number of digits -------------------------------------------------------------------


def exp_digits(gamma: Fraction) -> Digits:
    """Return the digits of e^{-γ}."""
    return partial(_digits, gamma, False)


def logistic_digits(gamma: Fraction) -> Digits:
    """Return the digits of 1/(1 + e^γ) = e^{-γ}/(1 + e^{-γ}), an increasing function of e^{-γ}."""
    return partial(_digits, gamma, True)


@lru_cache(maxsize=4096)
def _digits(gamma: Fraction, logistic: bool, bits: int) -> tuple[int, int]:
    low, high = _exp_bounds(gamma, bits)
    if logistic:
        low, high = low / (1 + low), high / (1 + high)
    return max(0, math.floor(low * 2**bits)), math.ceil(high * 2**bits)


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
