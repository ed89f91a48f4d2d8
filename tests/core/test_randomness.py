from __future__ import annotations

import copy
import hashlib
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.core import random
from labeldp.core.random import SecureRandom
from tests.mechanisms.frequencies import follows


def test_source_says_whether_it_is_private():
    assert "operating-system entropy" in SecureRandom().source
    assert "not private" in SecureRandom(seed=1).source
    assert (SecureRandom().seed, SecureRandom(seed=7).seed) == (None, 7)
    assert "entropy" in repr(SecureRandom())


def octets(rng, size):
    buffer = np.empty(size, dtype=np.uint8)
    rng.fill(buffer)
    return buffer.tobytes()


def test_seed_fixes_the_stream_and_nothing_else_does():
    assert (SecureRandom(5).words(9) == SecureRandom(5).words(9)).all()
    assert (SecureRandom(5).words(9) != SecureRandom(6).words(9)).any()
    assert (SecureRandom().words(9) != SecureRandom().words(9)).any()


def test_the_key_without_a_seed_is_the_operating_systems():
    """In processes of their own, where no test's name makes the keys (see conftest.py)."""
    show = "from labeldp.core.random import SecureRandom; print(SecureRandom().words(2))"
    drawn = {subprocess.check_output([sys.executable, "-c", show]) for _ in range(2)}
    assert len(drawn) == 2


def test_a_tests_keys_follow_from_its_name(request):
    if request.config.getoption("fresh"):
        pytest.skip("keys are the operating system's with --fresh")
    expected = [hashlib.sha256(f"{request.node.nodeid}, key {k}".encode()).digest() for k in range(2)]
    assert [random.system_key() for _ in range(2)] == expected


def test_stream_does_not_depend_on_how_it_is_cut():
    rng = SecureRandom(5)
    cut = b"".join([octets(rng, 3), octets(rng, 0), octets(rng, 29), rng.words(300_000).tobytes()])
    assert cut == octets(SecureRandom(5), 32 + 8 * 300_000)


def test_bytes_are_uniform():
    assert follows(np.bincount(np.frombuffer(octets(SecureRandom(2), 10**6), np.uint8)), np.full(256, 1 / 256))


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(how):
    with pytest.raises(TypeError, match="repeats its noise"):
        how(SecureRandom())


FORK = """
import os, sys
from labeldp.core.random import SecureRandom
rng = SecureRandom({seed})
rng.words(4)
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, rng.words(2).tobytes().hex().encode())
    os._exit(0)
os.wait()
print(os.read(read, 99).decode(), rng.words(2).tobytes().hex())
"""


@pytest.mark.parametrize("seed", [None, 3])
def test_forked_child_draws_other_noise(seed):
    script = FORK.format(seed=seed)
    child, parent = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(child) == len(parent) == 32
    assert child != parent


def test_fork_keeps_the_parent_reproducible():
    rng, again = SecureRandom(3), SecureRandom(3)
    first = rng.words(4)
    again._after_fork()
    assert (again.words(4) != first).any()


def test_new_key_after_the_limit(monkeypatch):
    monkeypatch.setattr(random, "_REKEY_AFTER", 64)
    for seed in (None, 3):
        rng = SecureRandom(seed)
        key = rng._key
        octets(rng, 64)
        assert rng._key == key
        octets(rng, 1)
        assert rng._key != key


def test_threads_share_one_stream_without_repeats():
    rng = SecureRandom(11)
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda _: rng.words(500), range(64)))
    drawn = np.concatenate(parts)
    assert set(drawn.tolist()) == set(SecureRandom(11).words(drawn.size).tolist())


@given(bound=st.integers(1, 2**63), size=st.integers(0, 50))
@settings(max_examples=50, deadline=None)
def test_below_stays_below(bound, size):
    drawn = SecureRandom(1).below(bound, size)
    assert drawn.shape == (size,)
    assert (drawn < bound).all()


def test_below_is_uniform_for_one_bound_and_many():
    rng = SecureRandom(8)
    assert follows(np.bincount(rng.below(7, 10**6).astype(int)), np.full(7, 1 / 7))
    mixed = rng.below(np.tile([3, 5], 500_000), 10**6).astype(int)
    assert follows(np.bincount(mixed[::2]), np.full(3, 1 / 3))
    assert follows(np.bincount(mixed[1::2]), np.full(5, 1 / 5))


def test_below_redraws_the_surplus_words():
    script = [0, 2**64 % 10 - 1, 2**64 % 10]

    class Scripted(SecureRandom):
        def words(self, size):
            return np.array([script.pop(0) for _ in range(size)], dtype=np.uint64)

    assert Scripted(0).below(10, 1).tolist() == [6]


@pytest.mark.parametrize("bound", [0, 2**63 + 1])
def test_below_refuses_other_bounds(bound):
    with pytest.raises(ValueError, match="between 1 and 2\\^63"):
        SecureRandom(1).below(bound, 3)
