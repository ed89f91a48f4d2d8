"""Releases in plain values: every size and every number of classes comes back as it was, in as few bits as it needs."""

import numpy as np
import pytest

from labeldp.core.random import SecureRandom
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.vectors import BitFlip, LaplaceOneHot
from labeldp.service import wire


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


@pytest.mark.parametrize("ask", [BitFlip(1.0, 5), LaplaceOneHot(1.0, 5, 4)], ids=["bits", "vectors"])
def test_tables_of_responses_come_back(ask):
    drawn = ask.sample(np.arange(7, dtype=np.uint8) % 5, SecureRandom(seed=1))
    come = wire.unpack(wire.pack(drawn), ask)
    assert type(come) is type(drawn)
    assert wire.pack(come) == wire.pack(drawn)
