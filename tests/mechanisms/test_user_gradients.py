"""One bounded vector per user: bounds by enumeration, the law of the batch, the noise, what users pay."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from labeldp.core.certificate import verify
from labeldp.core.events import Gaussian, PoissonGaussian
from labeldp.core.ledger import Budget
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.gradients.layers import cross_entropy
from labeldp.mechanisms.gradients.per_example import ROUNDING, gradients
from labeldp.mechanisms.gradients.sums import NormBound
from labeldp.mechanisms.gradients.users import UserGradientSum
from labeldp.mechanisms.users import Users, UserVault, cap_rows
from tests.mechanisms.frequencies import follows

OWNERS = ["a", "b", "a", "c", "a", "b"]


def question(owners=OWNERS, classes=3, features=2, **settings):
    torch.manual_seed(0)
    users = Users(owners)
    inputs = torch.randn(len(users.owner), features)
    settings = {"bound": NormBound(0.5), "noise_std": 1.0, **settings}
    return UserGradientSum(nn.Linear(features, classes), inputs, users, **settings)


def labels_of(ask, seed=0):
    return np.random.default_rng(seed).integers(3, size=len(ask.users.owner)).astype(np.uint8)


def by_loop(ask, labels, chosen):
    """The sum over users, one user and one row at a time."""
    total = torch.zeros(sum(p.numel() for p in ask.model.parameters()), dtype=torch.float64)
    weights = np.ones(len(labels)) if ask.weights is None else ask.weights
    for user in chosen:
        rows = np.flatnonzero(ask.users.owner == user)
        parts = [
            weights[row] * gradients(ask.model, cross_entropy, ask.inputs[[row]], torch.tensor([int(labels[row])]))[0]
            for row in rows
        ]
        vector = torch.stack(parts).sum(dim=0).float()
        total += vector * min(1.0, ask.bound.clip * (1 - ROUNDING) / max(vector.norm().item(), 1e-30))
    return total


# --- the sum ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [0.05, 0.9, 100.0])
@pytest.mark.parametrize("chunk", [None, 1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_a_loop_over_users_and_rows(clip, chunk, weighted):
    weights = np.array([1.0, 0.5, 2.0, 0.0, 0.25, 1.0]) if weighted else None
    ask = question(bound=NormBound(clip), chunk=chunk, weights=weights)
    labels = labels_of(ask)
    for chosen in ([0, 1, 2], [1], [2, 0], []):
        torch.testing.assert_close(
            ask.total(labels, np.array(chosen, dtype=int)), by_loop(ask, labels, chosen), atol=1e-5, rtol=1e-5
        )


def test_users_beyond_the_table_are_added_in_pieces(monkeypatch):
    ask = question()
    whole = ask.total(labels_of(ask), np.arange(3))
    monkeypatch.setattr("labeldp.mechanisms.gradients.users._TABLE_BYTES", 4 * 9 * 2)
    torch.testing.assert_close(ask.total(labels_of(ask), np.arange(3)), whole)


def test_a_release_is_the_sum_over_the_expected_number_of_users():
    ask = question(noise_std=1e-9)
    labels = labels_of(ask)
    release = UserVault(labels, OWNERS, 3).release(ask)
    torch.testing.assert_close(release.value, ask.total(labels, np.arange(3)).float() / 3, atol=1e-7, rtol=0)
    assert (release.expected_batch, release.noise_std) == (3.0, 1e-9 / 3)
    assert question(rate=0.5).sample(labels, SecureRandom(1)).expected_batch == 1.5


def test_empty_batches_are_noise_alone():
    ask = question(rate=1e-9)
    release = ask.sample(labels_of(ask), SecureRandom(seed=1))
    assert release.value.isfinite().all()
    assert ask.total(labels_of(ask), np.array([], dtype=int)).abs().sum() == 0


def test_weights_of_repeated_rows_give_the_gradient_of_the_resampled_mean():
    users = Users(["a", "b", "a"])
    kept = cap_rows(users, 4)
    inputs, model = torch.randn(3, 2), nn.Linear(2, 3)
    ask = UserGradientSum(model, inputs, users, NormBound(100.0), 1.0, weights=kept.repeats / 4)
    labels, listed = np.array([0, 2, 1], dtype=np.uint8), kept.listed()
    own = torch.from_numpy(np.flatnonzero(users.owner[listed] == 0))
    rows = torch.from_numpy(listed)[own]
    loss = cross_entropy(model(inputs[rows]), torch.from_numpy(labels.astype(int))[rows]).mean()
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    torch.testing.assert_close(ask.total(labels, np.array([0])).float(), expected, atol=1e-4, rtol=1e-4)


def test_what_is_not_finite_counts_as_nothing():
    ask = question()
    ask.inputs[1] = torch.inf
    labels = labels_of(ask)
    torch.testing.assert_close(ask.total(labels, np.arange(3)), by_loop(ask, labels, [0, 2]), atol=1e-5, rtol=1e-5)


# --- every list of labels of one user -----------------------------------------------------------------------------


def vectors_of_user(ask, user, classes):
    """v_u for every list of this user's labels, (K^m, P)."""
    rows, labels = np.flatnonzero(ask.users.owner == user), labels_of(ask) % classes
    found = []
    for own in itertools.product(range(classes), repeat=len(rows)):
        labels[rows] = own
        found.append(ask.total(labels, np.array([user])))
    return torch.stack(found)


@pytest.mark.parametrize(("classes", "clip"), [(2, 0.3), (3, 0.3), (3, 5.0)])
def test_no_list_of_labels_leaves_the_bound(classes, clip):
    ask = question(classes=classes, bound=NormBound(clip), weights=np.array([1.0, 3.0, 2.0, 1.0, 5.0, 0.1]))
    for user in range(3):
        vectors = vectors_of_user(ask, user, classes)
        assert vectors.norm(dim=1).max() <= ask.bound.radius
        assert torch.pdist(vectors.double()).max() <= ask.bound.diameter


def test_the_bound_is_attained():
    """Two classes and one feature vector: all labels 0 and all labels 1 give opposite vectors of norm C."""
    ask = question(classes=2)
    ask.inputs[:] = ask.inputs[0].clone()
    nn.init.zeros_(ask.model.weight)
    nn.init.zeros_(ask.model.bias)
    vectors = vectors_of_user(ask, 0, 2)
    assert torch.pdist(vectors.double()).max() > 0.999 * ask.bound.diameter


def test_clipping_rows_instead_of_users_is_caught():
    """A planted bug: each row clipped at C, so a user with three rows reaches 3C."""
    ask = question(classes=2, bound=NormBound(0.1))
    ask.inputs[:] = ask.inputs[0].clone()
    rows = np.flatnonzero(ask.users.owner == 0)
    each = gradients(ask.model, cross_entropy, ask.inputs[rows], torch.zeros(3, dtype=torch.long))
    wrong = (each * (0.1 / each.norm(dim=1))[:, None]).sum(dim=0)
    assert wrong.norm() > 2.9 * ask.bound.radius


def hockey_stick(first, second, rate, std, epsilon):
    """δ at ε between the two laws of the released sum along the line through both vectors and 0, by quadrature."""
    line = torch.linspace(-12, 12, 200_001, dtype=torch.float64).numpy() * std

    def channel(at):
        return (1 - rate) * norm.pdf(line, 0, std) + rate * norm.pdf(line, at, std)

    excess = np.clip(channel(first) - math.exp(epsilon) * channel(second), 0, None)
    return float(excess.sum() * (line[1] - line[0]))


@pytest.mark.parametrize("rate", [0.2, 0.7])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_the_event_covers_the_worst_pair_of_lists(rate, epsilon):
    ask = question(classes=2, rate=rate, noise_std=0.6, bound=NormBound(0.5))
    ask.inputs[:] = ask.inputs[0].clone()
    vectors = vectors_of_user(ask, 0, 2).double()
    pairs = torch.cdist(vectors, vectors)
    first, second = divmod(int(pairs.argmax()), len(vectors))
    # All lists give multiples of one direction here, so the line is all there is.
    direction = (vectors[first] - vectors[second]) / pairs.max()
    ends = [(vectors[i] @ direction).item() for i in (first, second)]
    found = hockey_stick(*ends, rate, 0.6, epsilon)
    stated = float(ask.event().profile(epsilon)[0])
    assert found <= stated * (1 + 1e-6) + 1e-12
    assert found >= 0.99 * stated
    assert hockey_stick(1.1 * ends[0], 1.1 * ends[1], rate, 0.6, epsilon) > stated


# --- a million draws and more ---------------------------------------------------------------------------------------


def test_the_noise_is_gaussian_of_the_stated_size_and_the_test_can_tell():
    """2·10^6 coordinates of one release, in 40 equally likely cells; false alarms 1e-9; 2% too little is rejected."""
    model = nn.Linear(10**6, 2, bias=False)
    ask = UserGradientSum(model, torch.zeros(1, 10**6), Users(["a"]), NormBound(1.0), noise_std=3.0)
    noise = ask.sample(np.zeros(1, dtype=np.uint8), SecureRandom(4)).value.double().numpy()

    def cells(values, std):
        return np.bincount((norm.cdf(values / std) * 40).astype(int), minlength=40)

    assert follows(cells(noise, 3.0), np.full(40, 1 / 40))
    assert not follows(cells(noise * 0.98, 3.0), np.full(40, 1 / 40))


PAIRS, DRAWS, RATE = 3600, 300, 0.3
# Nine users share a coordinate, as digits of a number in base 5. The two rows of a user add 1 and 3 to its digit.
BOTH, SHARED = 4, 9
DIGITS = 5 ** np.arange(SHARED)


def in_batches(draw):
    """What each user contributed to each of many batches, as a number from 0 to 4, (batches, users)."""
    return np.stack([draw(SecureRandom(seed)) for seed in range(DRAWS)])


def contributions(rng, ask, labels):
    """Read off a nearly noiseless release: at weights zero a row's gradient for one class is −½ times its features."""
    release = ask.sample(labels, rng)
    sums = -2 * release.value.view(2, -1)[0].double().numpy() * release.expected_batch
    return ((sums.round().astype(int)[:, None] // DIGITS) % 5).ravel()


def rows_with_digits():
    """Features (2·PAIRS, PAIRS/9) by which every sum of rows tells who took part."""
    user, digit = np.repeat(np.arange(PAIRS), 2), np.tile([1, 3], PAIRS)
    features = np.zeros((2 * PAIRS, PAIRS // SHARED), dtype=np.float32)
    features[np.arange(2 * PAIRS), user // SHARED] = digit * DIGITS[user % SHARED]
    return torch.from_numpy(features)


@pytest.mark.slow
def test_users_are_drawn_whole_each_on_its_own_and_the_test_can_tell():
    """1.08 million draws of a user; false alarms 1e-9. Planted: rows drawn in place of users; rate 2% too large."""
    users = Users(np.repeat(np.arange(PAIRS), 2))
    model = nn.Linear(PAIRS // SHARED, 2, bias=False)
    nn.init.zeros_(model.weight)
    ask = UserGradientSum(model, rows_with_digits(), users, NormBound(1e9), 1e-9, rate=RATE, chunk=4096)
    labels, channel = np.zeros(2 * PAIRS, dtype=np.uint8), np.zeros(BOTH + 1)
    channel[0], channel[BOTH] = 1 - RATE, RATE
    honest = in_batches(lambda rng: contributions(rng, ask, labels))
    assert follows(np.bincount(honest.ravel(), minlength=BOTH + 1), channel)
    neighbours = np.bincount(5 * honest[:, :-1].ravel() + honest[:, 1:].ravel(), minlength=25)
    assert follows(neighbours, np.outer(channel, channel).ravel())
    by_row = in_batches(lambda rng: (rng.words(2 * PAIRS) < RATE * 2.0**64).reshape(PAIRS, 2) @ np.array([1, 3]))
    assert not follows(np.bincount(by_row.ravel(), minlength=BOTH + 1), channel)
    often = in_batches(lambda rng: BOTH * (rng.words(PAIRS) < 1.02 * RATE * 2.0**64))
    assert not follows(np.bincount(often.ravel(), minlength=BOTH + 1), channel)


# --- what users pay, and refusals ------------------------------------------------------------------------------------


def test_events_are_those_of_one_clipped_vector_per_user():
    """Radius and diameter of the clipped vectors, and what rounding them to the grid can add."""
    moved = question().step * math.sqrt(9)
    assert 0 < moved < 1e-4
    assert question().event() == Gaussian(1.0, 1.0 + moved)
    assert question(rate=0.1).event() == PoissonGaussian(1.0, 0.5 + moved / 2, 1.0 + moved, 0.1)


def test_every_user_pays_one_look_a_step():
    ask = question(rate=0.25, noise_std=2.0)
    vault = UserVault(labels_of(ask), OWNERS, 3, Budget(8.0, 1e-5))
    lease = vault.lease(ask, 20)
    for _ in range(20):
        lease()
    (group,) = vault.ledger.groups()
    assert (group.rows, group.queries[0].event, group.queries[0].times) == (3, ask.event(), 20)
    assert verify(vault.certificate()) == ()
    plain = LabelVault(labels_of(ask), 3)
    plain.release(ask)
    assert plain.ledger.groups()[0].queries[0].event == ask.event()


def test_the_weights_of_the_model_are_read_at_every_draw():
    ask = question(noise_std=1e-9)
    lease = UserVault(labels_of(ask), OWNERS, 3).lease(ask, 2)
    before = lease().value
    with torch.no_grad():
        ask.model.weight[0].add_(1.0)
    assert not torch.allclose(before, lease().value, atol=1e-3)


def test_another_grouping_is_refused_unpaid():
    ask = question()
    vault = UserVault(labels_of(ask), range(6), 3)
    with pytest.raises(ValueError, match="grouped otherwise"):
        vault.release(ask)
    assert vault.certificate(1e-5).epsilon == 0.0


def test_some_rows_are_asked_with_their_users():
    vault = UserVault(np.zeros(6, dtype=int), OWNERS, 3)
    rows = [5, 1, 3]
    ask = UserGradientSum(nn.Linear(2, 3), torch.randn(3, 2), vault.users.take(rows), NormBound(1.0), 1.0)
    vault.release(ask, rows=rows)
    assert [group.rows for group in vault.ledger.groups()] == [1, 2]


def test_senseless_settings_are_refused():
    for settings in ({"rate": 0.0}, {"rate": 1.5}, {"noise_std": 0.0}, {"noise_std": -1.0}, {"weights": [1.0]}):
        with pytest.raises(ValueError):
            question(**settings)
    with pytest.raises(ValueError, match="NormBound"):
        question(bound=0.5)
    with pytest.raises(ValueError, match="weights"):
        question(weights=[1.0] * 5 + [np.inf])
    vault = UserVault(np.zeros(6, dtype=int), OWNERS, 3)
    normed = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    for ask in (
        UserGradientSum(normed, torch.randn(6, 2), vault.users, NormBound(1.0), 1.0),
        UserGradientSum(nn.Linear(2, 3), torch.randn(5, 2), vault.users, NormBound(1.0), 1.0),
        UserGradientSum(nn.Linear(2, 3), (torch.randn(6, 2), torch.randn(4, 2)), vault.users, NormBound(1.0), 1.0),
    ):
        with pytest.raises(ValueError):
            vault.release(ask)
    assert vault.certificate(1e-5).epsilon == 0.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_adds_up_the_same():
    ask = question(owners=np.arange(3000) % 700, weights=np.linspace(0, 2, 3000), features=64)
    labels = labels_of(ask)
    chosen = np.arange(0, 700, 3)
    expected = ask.total(labels, chosen)
    there = UserGradientSum(ask.model.cuda(), ask.inputs.cuda(), ask.users, ask.bound, 1.0, weights=ask.weights)
    torch.testing.assert_close(there.total(labels, chosen).cpu(), expected, atol=1e-4, rtol=1e-4)
    release = UserVault(labels, ask.users, 3).release(there)
    assert release.value.device.type == "cuda"
