"""Noise keyed by row: its bits by their definition, its law, independence, and that it repeats whoever draws it.

Statistical tests have a false-alarm rate of 1e-9 each, and reject: rows that share a counter, words taken modulo the
number of classes, a release id that is ignored.
"""

from __future__ import annotations

import hashlib
import hmac
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from labeldp.core import keyed, random
from labeldp.core.keyed import KeyedRandom
from labeldp.core.random import SecureRandom
from labeldp.mechanisms.responses import PriorResponse, RandomizedResponse, TopKResponse
from labeldp.mechanisms.vectors import BitFlip, LaplaceOneHot
from tests.mechanisms.frequencies import follows

ROWS = 400
PRIOR = np.random.default_rng(0).random((ROWS, 5))
MECHANISMS = {
    "rr": RandomizedResponse(1.0, 5),
    "rr of no privacy budget": RandomizedResponse(0.0, 5),
    "prior": PriorResponse(1.0, PRIOR),
    "top-k": TopKResponse.of_prior(1.0, PRIOR, 3),
    "bit-flip": BitFlip(1.0, 5),
    "laplace": LaplaceOneHot(1.0, 5),
    "laplace without end": LaplaceOneHot(0.0, 5),
}
NUMBERS = np.random.default_rng(1).permutation(10 * ROWS)[:ROWS] - 5 * ROWS
TEXTS = [f"row {number}" for number in NUMBERS]


def taken(ids, rows):
    return ids[rows] if isinstance(ids, np.ndarray) else [ids[row] for row in rows]


# -- exactly -----------------------------------------------------------------------------------------------------------


def block(key, release, purpose, plain):
    """The definition in one line, without arrays."""
    sub = hmac.new(key, f"labeldp.keyed/{purpose}\0{release}".encode(), hashlib.sha256).digest()
    return Cipher(AES(sub), ECB()).encryptor().update(plain)


def words_of(cipher_blocks, each):
    return [int.from_bytes(part, "little") for one in cipher_blocks for part in (one[:8], one[8:])][:each]


def test_the_bits_of_a_number_are_those_of_the_definition():
    key, ids = random.system_key(), np.array([3, -1, 2**62])
    source = KeyedRandom(key, "r", ids)
    first, then = source.words(9).reshape(3, 3), source.words(3)
    for place, one in enumerate(ids.tolist()):
        name = one.to_bytes(8, "little", signed=True)
        made = [block(key, "r", "integer", name + count.to_bytes(8, "little")) for count in range(3)]
        assert first[place].tolist() == words_of(made[:2], 3)
        assert then[place] == words_of(made[2:], 1)[0]


def test_the_bits_of_a_text_are_those_of_the_definition():
    key = random.system_key()
    secret = hmac.new(key, b"labeldp.keyed/hash\0r", hashlib.sha256).digest()
    name = hashlib.blake2b("é".encode(), digest_size=16, key=secret).digest()
    low = int.from_bytes(name[8:], "little")
    made = [block(key, "r", "text", name[:8] + (low ^ count).to_bytes(8, "little")) for count in range(2)]
    assert KeyedRandom(key, "r", ["é"]).words(4).tolist() == words_of(made, 4)


@pytest.mark.parametrize("ids", [NUMBERS, NUMBERS.astype(np.int16), TEXTS], ids=["numbers", "narrow", "texts"])
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_row_draws_the_same_alone_in_any_order_and_in_any_company(name, ids):
    mechanism, key = MECHANISMS[name], random.system_key()
    labels = (np.arange(ROWS) % 5).astype(np.uint8)

    def drawn(rows):
        channel = mechanism.take(rows)
        return channel.sample(labels[rows], KeyedRandom(key, "r", taken(ids, rows))).responses

    whole = drawn(np.arange(ROWS))
    mixed = np.random.default_rng(2).permutation(ROWS)
    assert (drawn(mixed) == whole[mixed]).all()
    for part in np.array_split(mixed, [1, 2, 100]):
        assert (drawn(part) == whole[part]).all()
    assert drawn(mixed[:0]).shape == (0, *whole.shape[1:])


@pytest.mark.parametrize("bits", [8, 32])
def test_coins_that_need_more_bits_are_the_same_in_any_company(bits, monkeypatch):
    """One word of 8 bits in some hundred leaves its coin open, as one of 32 bits in 2^32; it takes the row's next."""
    key, ids = random.system_key(), np.arange(1000)
    monkeypatch.setattr(random, "_COIN_BITS", bits)
    monkeypatch.setattr(random, "coins", partial(random.coins, bits=bits))
    monkeypatch.setattr(random, "_place_bounds", random._place_bounds.__wrapped__)

    def drawn(rows):
        return random.geometric(KeyedRandom(key, "r", ids[rows]), Fraction(1, 50), len(rows))

    whole = drawn(np.arange(1000))
    for size in (1, 100, 400):
        assert (drawn(np.arange(size)) == whole[:size]).all()


def test_the_width_of_a_type_does_not_matter():
    key = random.system_key()
    narrow, wide = (KeyedRandom(key, "r", np.array([5, -2], kind)).words(2) for kind in (np.int16, np.int64))
    assert (narrow == wide).all()


def test_redrawn_words_take_the_rows_own_next_counters():
    key, ids = random.system_key(), np.arange(50)
    source = KeyedRandom(key, "r", ids)
    parts = source.at(np.array([3, 7])).words(2), source.words(50), source.at(slice(5, 9)).at([2]).words(1)
    for one in (3, 7, 6, 7):
        alone = KeyedRandom(key, "r", ids[one : one + 1])
        mine = [alone.words(1)[0] for _ in range(3)]
        if one in (3, 7):
            assert parts[0][[3, 7].index(one)] == mine[0]
            assert parts[1][one] == mine[1]
        if one == 7:
            assert parts[2][0] == mine[2]
        if one == 6:
            assert parts[1][one] == mine[0]


def test_the_stream_of_a_sum_repeats_and_is_that_of_its_release():
    key = random.system_key()
    one, again, other = (keyed.stream(key, name).words(4).tolist() for name in ("a", "a", "b"))
    assert one == again != other


def test_what_keyed_noise_refuses():
    source = KeyedRandom(bytes(32), "r", np.arange(3))
    with pytest.raises(ValueError, match="4 words for 3 rows"):
        source.words(4)
    with pytest.raises(TypeError, match="belongs to rows"):
        source.fill(np.empty(4))
    with pytest.raises(ValueError, match="key has 5 bytes"):
        KeyedRandom(b"short", "r", np.arange(3))
    with pytest.raises(ValueError, match="whole numbers or texts"):
        KeyedRandom(bytes(32), "r", np.array([0.5]))
    with pytest.raises(TypeError, match="pickled"):
        source.__reduce_ex__(4)


def test_certificates_name_it_and_a_seed_shows():
    assert KeyedRandom(bytes(32), "r", np.arange(3)).source == "operating-system entropy, AES-256 keyed by row"
    seeded = KeyedRandom(bytes(32), "r", np.arange(3), seeded=True)
    assert seeded.seed is not None
    assert "not private" in seeded.source


# -- by statistics -----------------------------------------------------------------------------------------------------


class SharedCounters(KeyedRandom):
    """Planted: two neighbouring rows share their blocks."""

    def __init__(self, key, release, ids):
        super().__init__(key, release, ids // 2)


class Modulo(KeyedRandom):
    """Planted: words of 8 bits modulo the bound, no surplus redrawn."""

    def below(self, bound, size):
        return (self.words(size) >> np.uint64(56)) % np.asarray(bound, np.uint64)


class OneRelease(KeyedRandom):
    """Planted: the release id is ignored."""

    def __init__(self, key, release, ids):
        super().__init__(key, "", ids)


def lawful(source, rows, classes=5):
    """Whether draws of a mechanism, of single rows and of neighbours, and of two releases together, have their law."""
    key, ids, channel = random.system_key(), np.arange(rows), RandomizedResponse(1.0, classes)
    labels, chances = np.zeros(rows, dtype=np.uint8), channel.probabilities(0)[0]
    first, second = (channel.sample(labels, source(key, name, ids)).responses.astype(int) for name in ("1", "2"))
    both = np.outer(chances, chances).ravel()
    uniform = source(key, "3", ids).below(7, rows).astype(int)
    return {
        "rows": follows(np.bincount(first, minlength=classes), chances),
        "neighbours": all(
            follows(np.bincount(classes * first[lag:] + first[:-lag], minlength=classes**2), both)
            for lag in (1, 2, 16384)
        ),
        "releases": follows(np.bincount(classes * first + second, minlength=classes**2), both),
        "uniform": follows(np.bincount(uniform, minlength=7), np.full(7, 1 / 7)),
    }


@pytest.mark.parametrize("rows", [10**6, pytest.param(2 * 10**7, marks=pytest.mark.slow)])
def test_keyed_draws_are_independent_and_have_their_law(rows):
    assert all(lawful(KeyedRandom, rows).values())


@pytest.mark.parametrize(
    ("planted", "noticed"), [(SharedCounters, "neighbours"), (Modulo, "uniform"), (OneRelease, "releases")]
)
def test_planted_bugs_are_noticed(planted, noticed):
    found = lawful(planted, 10**6)
    assert not found[noticed]


@pytest.mark.parametrize("rows", [10**5, pytest.param(10**7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["bit-flip", "laplace"])
def test_vectors_have_their_law_and_cells_are_independent(name, rows):
    channel = {"bit-flip": BitFlip(1.0, 3), "laplace": LaplaceOneHot(1.0, 3, levels=4)}[name]
    values = channel.levels + 1
    responses = channel.sample(
        np.ones(rows, dtype=np.uint8), KeyedRandom(random.system_key(), "r", np.arange(rows))
    ).responses.astype(int)
    chances = channel.probabilities(1)
    for place in range(3):
        assert follows(np.bincount(responses[:, place], minlength=values), chances[place])
        then = (place + 1) % 3
        pairs = np.bincount(values * responses[:, place] + responses[:, then], minlength=values**2)
        assert follows(pairs, np.outer(chances[place], chances[then]).ravel())
        pairs = np.bincount(values * responses[1:, place] + responses[:-1, then], minlength=values**2)
        assert follows(pairs, np.outer(chances[place], chances[then]).ravel())


def test_texts_have_the_law_too():
    rows, channel = 10**5, RandomizedResponse(1.0, 4)
    ids = [f"id-{number}" for number in range(rows)]
    responses = channel.sample(np.zeros(rows, np.uint8), KeyedRandom(random.system_key(), "r", ids)).responses
    chances = channel.probabilities(0)[0]
    assert follows(np.bincount(responses, minlength=4), chances)
    pairs = np.bincount(4 * responses[1:].astype(int) + responses[:-1], minlength=16)
    assert follows(pairs, np.outer(chances, chances).ravel())


def test_plain_noise_is_as_before():
    """Naming rows changes nothing where one source serves all: the draws of a seed are kept in other files."""
    assert SecureRandom(seed=3).below(6, 4).tolist() == [4, 0, 5, 2]
