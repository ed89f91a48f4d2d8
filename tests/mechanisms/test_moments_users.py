"""The moment for users: all labels of one user together."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from labeldp.core.events import Gaussian, GridGaussian, PureDP
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.counts import GaussianNoise, LaplaceNoise
from labeldp.mechanisms.moments import Moments, RowChunks
from labeldp.mechanisms.users import Users, UserVault

NOISE = GaussianNoise(5.0)
OWNERS = Users(["ann", "bob", "ann", "cid", "ann", "bob"])


def table(seed=0, width=8, scale=1.0):
    rows = np.random.default_rng(seed).standard_normal((6, width))
    return (scale * rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def in_steps(mechanism, labels):
    value = mechanism.sample(np.array(labels, dtype=np.uint8), SecureRandom(1)).value
    return np.rint(value / mechanism.grid.step * mechanism.num_classes) / mechanism.num_classes


def furthest(mechanism, owner, order):
    """Longest move of the integer moment over all labelings of one user, exactly, for three classes."""
    mine = np.flatnonzero(OWNERS.owner == owner)
    sums = []
    for labels in itertools.product(range(3), repeat=len(mine)):
        all_labels = np.zeros(6, dtype=int)
        all_labels[mine] = labels
        sums.append(in_steps(mechanism, all_labels).ravel())
    return max(float(np.linalg.norm(a - b, ord=order)) for a, b in itertools.combinations(sums, 2))


@pytest.mark.parametrize("radius", [0.7, 2.5])
def test_no_user_moves_it_further_than_stated(radius):
    ask = Moments(table(), 3, NOISE, radius, users=OWNERS)
    reached = [furthest(ask, user, 2) for user in range(3)]
    assert max(reached) <= math.sqrt(2) * ask.grid.reach
    # Users of one row, and users scaled down whose rows point the same way, come up to it.
    same = np.repeat(table()[:1], 6, axis=0)
    tight = Moments(same, 3, NOISE, radius, users=OWNERS)
    assert furthest(tight, 0, 2) >= math.sqrt(2) * tight.grid.reach * 0.998


def test_rows_without_their_users_move_it_too_far():
    """Planted bug: a user's rows each within the radius, and the user as if it were a row."""
    same = np.repeat(table()[:1], 6, axis=0)
    ask = Moments(same, 3, NOISE, 1.0)
    assert furthest(ask, 0, 2) > math.sqrt(2) * ask.grid.reach


def test_laplace_noise_bounds_the_users_norms_of_order_one():
    ask = Moments(table(), 3, LaplaceNoise(0.5), 1.0, users=OWNERS)
    assert max(furthest(ask, user, 1) for user in range(3)) <= 2 * ask.grid.reach


def test_factors_are_public_and_users_within_the_radius_are_left_alone():
    ask = Moments(table(), 1, GaussianNoise(1e-4), 2.5, users=OWNERS)
    release = ask.sample(np.zeros(6, dtype=np.uint8), SecureRandom(1))
    factors = np.where(OWNERS.owner == 0, 2.5 / 3, 1.0)
    np.testing.assert_allclose(release.value[0], factors @ table(), atol=1e-3)
    assert (release.scaled_rows, release.dropped_rows) == (3, 0)


def test_broken_rows_are_left_out_before_users_are_scaled():
    broken = table().copy()
    broken[2, 0] = np.nan
    release = Moments(broken, 1, GaussianNoise(1e-4), 2.5, users=OWNERS).sample(np.zeros(6, np.uint8), SecureRandom(1))
    np.testing.assert_allclose(release.value[0], np.delete(broken, 2, axis=0).sum(axis=0), atol=1e-3)
    assert (release.scaled_rows, release.dropped_rows) == (0, 1)


def test_streams_are_read_twice_and_give_the_same():
    whole = Moments(table(), 3, NOISE, 1.0, users=OWNERS)
    parts = Moments(
        RowChunks(6, 8, lambda: iter([table()[:1], table()[1:4], table()[4:]])), 3, NOISE, 1.0, users=OWNERS
    )
    labels = np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8)
    assert (
        whole.sample(labels, SecureRandom(3)).value.tobytes() == parts.sample(labels, SecureRandom(3)).value.tobytes()
    )


def test_what_users_are_charged():
    vault = UserVault([0, 1, 2, 0, 1, 2], OWNERS, 3)
    vault.release(Moments(table(), 3, NOISE, 1.0, users=vault.users))
    assert [group.queries[0].event for group in vault.ledger.groups()] == [GridGaussian(5.0, math.sqrt(2))]
    vault = UserVault([0, 1, 2, 0, 1, 2], OWNERS, 3)
    vault.release(Moments(table(), 3, NOISE, 1.0))
    # Made for single labels: three rows move it three times as far.
    found = {group.queries[0].event for group in vault.ledger.groups()}
    moved = [GridGaussian(5.0, math.sqrt(2)), Gaussian(5.0, 2 * math.sqrt(2)), Gaussian(5.0, 3 * math.sqrt(2))]
    assert {round(event.mu, 9) for event in found} == {round(event.mu, 9) for event in moved}
    assert Moments(table(), 3, LaplaceNoise(0.5), 1.0, users=OWNERS).event() == PureDP(0.5)


def test_some_rows_of_users():
    rows = np.array([0, 1, 2])
    vault = UserVault([0, 1, 2, 0, 1, 2], OWNERS, 3)
    vault.release(Moments(table()[rows], 3, NOISE, 1.0, users=vault.users.take(rows)), rows=rows)
    with pytest.raises(ValueError, match="grouped otherwise"):
        vault.release(Moments(table()[rows], 3, NOISE, 1.0, users=Users([0, 1, 2])), rows=rows)
    with pytest.raises(ValueError, match="users has 6 rows, the data 3"):
        vault.release(Moments(table()[rows], 3, NOISE, 1.0, users=OWNERS), rows=rows)


def test_a_bound_for_users_is_one_for_labels_too():
    vault = LabelVault([0, 1, 2, 0, 1, 2], 3)
    assert vault.release(Moments(table(), 3, NOISE, 1.0, users=OWNERS)).value.shape == (3, 8)
