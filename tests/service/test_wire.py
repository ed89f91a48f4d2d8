"""Releases in plain values: every size and every number of classes comes back as it was, in as few bits as it needs."""

import contextlib
import random

import numpy as np
import pytest

from labeldp.core.random import SecureRandom
from labeldp.core.vault import MechanismError
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.vectors import BitFlip, LaplaceOneHot
from labeldp.service import wire
from tests.service.hostile import CLASSES, ROWS, mechanisms


@pytest.mark.parametrize("classes", [2, 3, 16, 17, 300])
@pytest.mark.parametrize("rows", [0, 1, 2, wire._NARROWED - 1, wire._NARROWED, 2 * wire._NARROWED + 3])
def test_responses_come_back(rows, classes):
    labels = (np.arange(rows) % classes).astype(np.min_scalar_type(classes - 1))
    ask = RandomizedResponse(1.0, classes)
    drawn = ask.sample(labels, SecureRandom(seed=1))
    packed = wire.pack(drawn)
    come = wire.unpack(packed, ask)
    assert come.responses.dtype == drawn.responses.dtype
    np.testing.assert_array_equal(come.responses, drawn.responses)
    bits = 1 if classes == 2 else 4 if classes <= 16 else 8 if classes <= 256 else 16
    assert len(packed) <= rows * bits / 8 + 300


@pytest.mark.parametrize("name", mechanisms())
def test_a_release_is_read_wherever_it_lies_in_what_came(name):
    ask = mechanisms()[name]
    drawn = ask.sample((np.arange(ROWS) % CLASSES).astype(np.uint8), SecureRandom(seed=1))
    packed = wire.pack(drawn)
    for before in range(9):
        come = wire.unpack(memoryview(bytes(before) + packed)[before:], ask)
        assert wire.pack(come) == packed
        arrays = [each for each in getattr(come, "__dict__", {}).values() if isinstance(each, np.ndarray)]
        assert all(each.flags.aligned for each in arrays)


@pytest.mark.parametrize("name", ["responses", "counts", "moments", "best"])
def test_a_release_that_was_damaged_is_a_sentence_or_another_release(name):
    choose, ask = random.Random(name), mechanisms()[name]
    packed = wire.pack(ask.sample((np.arange(ROWS) % CLASSES).astype(np.uint8), SecureRandom(seed=1)))
    for _ in range(400):
        content = bytearray(packed)
        for _ in range(choose.randrange(1, 4)):
            place = choose.randrange(min(len(content), 400))
            content[place : place + choose.randrange(3)] = choose.randbytes(choose.randrange(3))
        with contextlib.suppress(wire.WireError, MechanismError):
            wire.unpack(bytes(content[: choose.randrange(len(content)) if choose.random() < 0.2 else None]), ask)


@pytest.mark.parametrize("ask", [BitFlip(1.0, 5), LaplaceOneHot(1.0, 5, 4)], ids=["bits", "vectors"])
def test_tables_of_responses_come_back(ask):
    drawn = ask.sample(np.arange(7, dtype=np.uint8) % 5, SecureRandom(seed=1))
    come = wire.unpack(wire.pack(drawn), ask)
    assert type(come) is type(drawn)
    assert wire.pack(come) == wire.pack(drawn)
