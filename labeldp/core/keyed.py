"""Draw each row's noise from the row's id under a key, so that a task that runs again draws the same noise again.

Row i's bits are PRF(release key, release id, row id, counter): whoever repeats, splits or reorders the work gets the
same response to the same label. Two rows never share a block, nor do two releases share a key. The counter feeds
rejection sampling and vectors, and each row has its own, so that what it draws does not depend on its neighbours.

    integer id:   AES-256_k(id ‖ counter), 64 bits each: one block for every pair (id, counter)
    text id:      AES-256_k(h ⊕ counter), h a hash of the text of 128 bits under a key of its own (BLAKE2b)

Claim. A release of q blocks is told from one with perfect noise with advantage α ≤ q²/2^128 plus the advantages against
AES-256 and keyed BLAKE2b as a permutation and a function that look random: half of q²/2^128 because blocks of a
permutation never repeat, half because two blocks h ⊕ counter may meet (integer ids have only the first). A claim (ε, δ)
becomes (ε, δ + (1 + e^ε)·α), against whoever cannot compute without bound; at 2^40 blocks q²/2^128 is 2^-48.

It holds for ids that are unique within the release, and public. Rows with one id share their noise, and equal responses
then tell that their labels are equal. A row that is answered again with another label, prior or id under the same key
gives two answers with one noise: what is keyed must be fixed beforehand.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any, NoReturn, Self

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from labeldp.core.certificate import KEYED_NOISE
from labeldp.core.random import SecureRandom

WordArray = npt.NDArray[np.uint64]
# Whole numbers as an array, or texts.
Ids = npt.NDArray[np.integer[Any]] | Sequence[str]


class KeyedRandom(SecureRandom):
    """The random bits of some rows, known by their ids; for mechanisms that answer row by row.

    Every draw takes as many words for each row as for any other, in the order of the rows; `at` is how a mechanism
    names some of them. Bits of all rows together, as sums need them, are refused: they are for `stream`.

    Args:
        key: 256 bits of the operating system, made for one release and destroyed after it.
        release: its name, never used again.
        ids: of the rows, each once: whole numbers of at most 64 bits, or texts.
        seeded: whether the key came from a seed, which protects nobody.

    >>> import numpy as np
    >>> key = bytes(32)
    >>> both = KeyedRandom(key, "first", np.array([7, 8])).below(1000, 2)
    >>> alone = [int(KeyedRandom(key, "first", np.array([i])).below(1000, 1)[0]) for i in (7, 8)]
    >>> both.tolist() == alone, both.tolist() == KeyedRandom(key, "second", np.array([7, 8])).below(1000, 2).tolist()
    (True, False)
    """

    # Where several coins are drawn at once, one that needs more bits finds a row's counter elsewhere than when they are
    # drawn one by one: a row's noise would depend on how many rows there are.
    few = 0

    def __init__(self, key: bytes, release: str, ids: Ids, *, seeded: bool = False) -> None:
        if len(key) != 32:
            raise ValueError(f"key has {len(key)} bytes; make one with labeldp.core.random.system_key()")
        self._seed = 0 if seeded else None
        if isinstance(ids, np.ndarray):
            if ids.dtype.kind not in "iu" or ids.ndim != 1:
                raise ValueError(f"ids has type {ids.dtype} and shape {ids.shape}; give whole numbers or texts")
            base = np.zeros((len(ids), 2), dtype="<u8")
            # The same 64 bits whatever the width of the type: sign and all.
            base[:, 0] = ids.astype(np.uint64) if ids.dtype.kind == "u" else ids.astype(np.int64).view(np.uint64)
            purpose = "unsigned" if ids.dtype.kind == "u" else "integer"
        else:
            secret, purpose = derived(key, release, "hash"), "text"
            digests = b"".join(hashlib.blake2b(one.encode(), digest_size=16, key=secret).digest() for one in ids)
            base = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
        self._cipher = Cipher(AES(derived(key, release, purpose)), ECB())
        self._begin(base)

    def _begin(self, base: WordArray) -> None:
        self._base, self._counters = base, np.zeros(len(base), dtype=np.uint64)
        self._rows = np.arange(len(base))

    @property
    def source(self) -> str:
        """Where the bits come from, in words for a certificate."""
        return KEYED_NOISE if self._seed is None else "seeded AES-256, keyed by row (not private: for tests)"

    def fill(self, buffer: npt.NDArray[Any]) -> NoReturn:
        """Refuse: bits belong to rows here."""
        raise TypeError("this noise belongs to rows, and these bits to none; a sum takes labeldp.core.keyed.stream")

    def words(self, size: int) -> WordArray:
        """Return as many uniform words for every row, `size` in all; those of a row lie side by side."""
        base, counters = self._base[self._rows], self._counters[self._rows]
        rows = len(base)
        each, odd = divmod(size, rows) if rows else (0, size)
        if odd:
            raise ValueError(f"{size} words for {rows} rows; keyed noise is drawn alike for every row")
        blocks = -(-each // 2)
        plain = np.empty((rows, blocks, 2), dtype="<u8")
        plain[:, :, 0] = base[:, :1]
        plain[:, :, 1] = base[:, 1:] ^ (counters[:, None] + np.arange(blocks, dtype=np.uint64))
        self._counters[self._rows] = counters + np.uint64(blocks)
        drawn = np.empty(plain.nbytes + 15, dtype=np.uint8)
        self._cipher.encryptor().update_into(plain.reshape(-1).view(np.uint8).data, drawn.data)
        words = drawn[: plain.nbytes].view("<u8").reshape(rows, 2 * blocks)
        return words[:, :each].reshape(-1).astype(np.uint64)

    def narrow(self, size: int, bits: int) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Return short words; none is shared by two rows."""
        return (self.words(size) >> np.uint64(64 - bits)).astype(np.dtype(f"uint{bits}"))

    def at(self, rows: Any) -> Self:
        """Return the noise of some of the rows, each once; what they draw, they have drawn here, too."""
        some = self._same()
        some._rows = self._rows[rows]
        return some

    def split(self, parts: int) -> Self:
        """Return a source of `parts` streams for each row, side by side: their names are drawn from the row's own."""
        cells = self._same()
        cells._begin(self.words(2 * parts * len(self._rows)).reshape(-1, 2))
        return cells

    def _same(self) -> Self:
        same = object.__new__(type(self))
        vars(same).update(vars(self))
        return same


def stream(key: bytes, release: str, *, seeded: bool = False) -> SecureRandom:
    """Return the noise of a sum over all rows: a stream that is the same whenever this release is drawn again."""
    found = SecureRandom(seed=0 if seeded else None)
    found._open_stream(derived(key, release, "stream"))  # pyright: ignore[reportPrivateUsage]
    return found


def derived(key: bytes, release: str, purpose: str) -> bytes:
    """Return a key for one release and one purpose: nothing that is drawn under one tells of another."""
    return hmac.digest(key, f"labeldp.keyed/{purpose}\0{release}".encode(), "sha256")
