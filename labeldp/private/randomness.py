"""Secure random bits, and the few shapes of noise that mechanisms need.

Mechanisms draw every bit of noise from one `SecureRandom`: AES-256 in counter mode under a key from the
operating system. A seeded one exists for tests; its `source` says that it protects nobody.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from labeldp.accounting.certificate import SECURE_NOISE
from labeldp.private import discrete

_BLOCK = 1 << 20
_ZEROS = memoryview(bytes(_BLOCK))
# Far below the 2^68 bytes of a 128-bit counter and the 2^64 blocks where CTR becomes distinguishable.
_REKEY_AFTER = 1 << 36
_NORMALS_AT_ONCE = 1 << 14


class SecureRandom:
    """Random bits from AES-256-CTR, keyed by the operating system.

    Safe to share between threads. A forked child gets a fresh key, so it never repeats its parent's noise.
    Copying or pickling is refused: two copies would draw the same noise, and the difference of two answers
    with the same noise is the bare truth. (Restoring a snapshot of a virtual machine copies it all the same.)

    `seed` replaces the key by a hash of the seed. Whoever knows the seed can undo the noise: tests only.

    >>> SecureRandom().source
    'operating-system entropy, AES-256-CTR'
    >>> SecureRandom(seed=3).below(6, 4)
    array([4, 0, 5, 2], dtype=uint64)
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._start(system_key() if seed is None else _hash("seed", str(int(seed)).encode()))
        _living.add(self)

    @property
    def seed(self) -> int | None:
        """The seed given, or None for operating-system entropy."""
        return self._seed

    @property
    def source(self) -> str:
        """Where the bits come from, in words for a certificate."""
        if self._seed is None:
            return SECURE_NOISE
        return "seeded AES-256-CTR (not private: for tests)"

    def __repr__(self) -> str:
        return f"SecureRandom({self.source})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("SecureRandom cannot be copied or pickled: a copy repeats its noise; make a new one")

    # -- bits -----------------------------------------------------------------------------------------------

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
        """`size` uniform 64-bit words."""
        words = np.empty(size, dtype=np.uint64)
        self.fill(words)
        return words

    def bytes(self, size: int) -> bytes:
        """`size` uniform bytes."""
        octets = np.empty(size, dtype=np.uint8)
        self.fill(octets)
        return octets.tobytes()

    # -- exact laws on the integers -------------------------------------------------------------------------

    def below(self, bound: npt.ArrayLike, size: int) -> npt.NDArray[np.uint64]:
        """`size` exactly uniform integers in [0, bound); `bound` is one number or one per draw, 1 to 2^63.

        Of the 2^64 words the first 2^64 mod bound are redrawn, so that a multiple of bound is left.
        """
        bounds = np.broadcast_to(np.asarray(bound, dtype=np.uint64), (size,))
        if size and (int(bounds.min()) < 1 or int(bounds.max()) > 1 << 63):
            raise ValueError("bound must lie between 1 and 2^63")
        words = self.words(size)
        surplus = (np.uint64(0) - bounds) % bounds
        while (again := np.flatnonzero(words < surplus)).size:
            words[again] = self.words(again.size)
        return words % bounds

    def permutation(self, size: int) -> npt.NDArray[np.intp]:
        """An exactly uniform ordering of range(size): the order of distinct random words."""
        while True:
            words = self.words(size)
            order = np.argsort(words)
            ranked = words[order]
            if not (ranked[1:] == ranked[:-1]).any():
                return order

    def discrete_laplace(self, rate: float | Fraction, size: int) -> npt.NDArray[np.int64]:
        """Integers with P(k) ∝ exp(−rate·|k|), exactly; see `labeldp.private.discrete`."""
        return discrete.discrete_laplace(self, rate, size)

    def discrete_gaussian(self, std: float | Fraction, size: int) -> npt.NDArray[np.int64]:
        """Integers with P(k) ∝ exp(−k²/(2·std²)), exactly; see `labeldp.private.discrete`."""
        return discrete.discrete_gaussian(self, std, size)

    # -- real numbers ---------------------------------------------------------------------------------------

    def gaussian(self, size: int, std: float = 1.0, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[np.floating[Any]]:
        """`size` Gaussian floats with mean 0 and standard deviation `std`.

        Each is (g + g′)/√2 of two independent Box–Muller normals on 53-bit uniforms, computed in float64.
        Floating-point noise is not the real-number Gaussian: the gaps between reachable numbers can betray
        what was added (Mironov 2012). The sum of two makes the inversion of Holohan and Braghin (2021)
        impractical, not impossible, and no value lies beyond 12.2 deviations. Fit for sums that training
        rounds anyway, such as gradients; counts take `discrete_gaussian`, whose law is exact.
        """
        result = np.empty(size, dtype=dtype)
        for start in range(0, size, _NORMALS_AT_ONCE):
            part = result[start : start + _NORMALS_AT_ONCE]
            part[...] = self._normals(len(part)) * std
        return result

    def _normals(self, size: int) -> npt.NDArray[np.float64]:
        pairs = (size + 1) // 2
        uniform = np.empty((4, pairs), dtype=np.uint64)
        self.fill(uniform)
        uniform >>= np.uint64(11)
        unit = uniform * 2.0**-53
        # 1 − U lies in (0, 1], so the logarithm is finite. The 1/√2 of the sum cancels the 2 of Box–Muller.
        radius = np.sqrt(-np.log(1.0 - unit[:2]))
        # cos θ = 2/(1 + t²) − 1 and sin θ = 2t/(1 + t²) with t = tan(θ/2): three times as fast.
        tangent = np.tan((unit[2:] - 0.5) * np.pi)
        versed = 2.0 / (1.0 + tangent * tangent)
        cosines = (radius * (versed - 1.0)).sum(axis=0)
        sines = (radius * versed * tangent).sum(axis=0)
        return np.concatenate([cosines, sines])[:size]

    # -- keys -----------------------------------------------------------------------------------------------

    def _start(self, key: bytes) -> None:
        self._key = key
        self._lock = threading.Lock()
        self._open_stream()

    def _open_stream(self) -> None:
        self._stream = Cipher(AES(self._key), CTR(bytes(16))).encryptor()
        self._drawn = 0

    def _rekey(self, reason: bytes) -> None:
        self._key = system_key() if self._seed is None else _hash("rekey", self._key + reason)
        self._open_stream()

    def _after_fork(self) -> None:
        # The lock may have been held by a thread that does not exist in the child.
        self._lock = threading.Lock()
        self._rekey(b"fork %d" % os.getpid())


def system_key() -> bytes:
    """A fresh key of 256 bits from the operating system."""
    return os.urandom(32)


def _hash(purpose: str, data: bytes) -> bytes:
    return hashlib.sha256(b"labeldp.SecureRandom/" + purpose.encode() + b"\0" + data).digest()


_living: weakref.WeakSet[SecureRandom] = weakref.WeakSet()


def _rekey_child() -> None:
    for living in list(_living):
        living._after_fork()  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_rekey_child)
