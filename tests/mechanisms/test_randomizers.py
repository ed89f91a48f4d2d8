from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.core.events import PureDP
from labeldp.core.random import SecureRandom
from labeldp.mechanisms.channels import channel_from_description
from labeldp.mechanisms.responses import PriorResponse, RandomizedResponse, TopKResponse
from labeldp.mechanisms.vectors import BitFlip, LaplaceOneHot

PRIOR = [0.4, 0.3, 0.15, 0.1, 0.05]
SETS = np.array([True, True, False, True, False])

# One line per mechanism: every test below that takes `build` runs on all of them.
BUILDERS = {
    "rr": lambda epsilon: RandomizedResponse(epsilon, 5),
    "top-k": lambda epsilon: TopKResponse(epsilon, SETS),
    "top-k rows": lambda epsilon: TopKResponse(epsilon, np.stack([SETS, ~SETS])),
    "prior": lambda epsilon: PriorResponse(epsilon, PRIOR),
    "prior rows": lambda epsilon: PriorResponse(epsilon, [PRIOR, PRIOR[::-1]]),
    "laplace": lambda epsilon: LaplaceOneHot(epsilon, 3, levels=4),
    "bit-flip": lambda epsilon: BitFlip(epsilon, 4),
}
every = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
EPSILONS = [0.0, 1e-6, 0.1, 1.0, 4.0, 30.0]


def all_responses(channel):
    """Every possible answer of one row, and its probability under each label, (answers, K)."""
    tables = [channel.probabilities(label) for label in range(channel.num_classes)]
    coordinates, values = tables[0].shape
    responses = np.array(list(itertools.product(range(values), repeat=coordinates)))
    chances = [np.prod(table[np.arange(coordinates), responses], axis=1) for table in tables]
    return (responses[:, 0] if coordinates == 1 else responses), np.stack(chances, axis=1)


def rows_of(channel, row, count):
    """The law of `count` copies of one row."""
    return channel.take(np.full(count, row))


@every
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_law_is_a_law_and_keeps_its_promise(build, epsilon):
    channel = build(epsilon)
    responses, chances = all_responses(channel)
    assert chances.sum(axis=0) == pytest.approx(np.ones(channel.num_classes), rel=1e-12)
    possible = chances.max(axis=1) > 0
    ratios = np.log(chances[possible].max(axis=1)) - np.log(chances[possible].min(axis=1))
    assert ratios.max() <= epsilon + 1e-12
    log = rows_of(channel, 0, len(responses)).log_likelihood(responses)
    assert log[possible] == pytest.approx(np.log(chances[possible]), rel=1e-10, abs=1e-12)
    assert (np.ptp(log[possible], axis=1) <= epsilon + 1e-12).all()
    assert not np.exp(log[~possible]).any()


@every
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_unbiased_is_unbiased(build, epsilon):
    channel = build(epsilon)
    responses, chances = all_responses(channel)
    row = rows_of(channel, 0, len(responses))
    estimates = row.unbiased(responses)
    if not row.informative(len(responses)).any():
        assert not estimates.any()
        return
    means = chances.T @ estimates
    members = channel.members() if hasattr(channel, "members") else np.ones(channel.num_classes, bool)
    members = members if members.ndim == 1 else members[0]
    for label in range(channel.num_classes):
        truth = np.eye(channel.num_classes)[label] if members[label] else members / members.sum()
        assert means[label] == pytest.approx(truth, abs=1e-8)


@every
def test_no_privacy_is_the_label(build):
    channel = build(math.inf)
    labels = np.array([0, 1], dtype=np.uint8)
    if isinstance(channel, TopKResponse) and channel.members().ndim == 2:
        labels = np.array([1, 2], dtype=np.uint8)
    release = channel.sample(labels, SecureRandom(1))
    assert (release.hard() == labels).all()
    assert release.unbiased() == pytest.approx(np.eye(channel.num_classes)[labels])
    # Labels outside given sets remain possible; elsewhere the posterior is certain.
    assert isinstance(channel, TopKResponse) or (release.posterior() == np.eye(channel.num_classes)[labels]).all()


@pytest.mark.parametrize("epsilon", [100.0, 700.0, 709.5, 5000.0, 1e308])
@every
def test_large_epsilon_does_not_overflow(build, epsilon):
    channel = build(epsilon)
    labels = np.array([1, 1], dtype=np.uint8)
    release = channel.sample(labels, SecureRandom(1))
    assert not np.isnan(release.log_likelihood()).any()
    assert np.isfinite(release.unbiased()).all()
    assert np.ptp(release.log_likelihood(), axis=1).max() <= epsilon


@every
def test_event_is_pure(build):
    assert build(0.7).event() == PureDP(0.7)


@every
@pytest.mark.parametrize("bad", [-0.1, math.nan, "1", None, True])
def test_bad_epsilon_is_refused_by_name(build, bad):
    with pytest.raises(ValueError, match="epsilon is"):
        build(bad)


@pytest.mark.parametrize("bad", [0, -3, 2.5, "4", None])
@pytest.mark.parametrize("mechanism", [RandomizedResponse, LaplaceOneHot, BitFlip])
def test_bad_classes_are_refused_by_name(mechanism, bad):
    with pytest.raises(ValueError, match="num_classes is"):
        mechanism(1.0, bad)


@every
def test_fits_refuses_other_data(build):
    channel = build(1.0)
    channel.fits(2, channel.num_classes)
    with pytest.raises(ValueError, match="num_classes"):
        channel.fits(2, channel.num_classes + 1)


@pytest.mark.parametrize("name", ["top-k rows", "prior rows"])
def test_sets_for_other_rows_are_refused(name):
    channel = BUILDERS[name](1.0)
    with pytest.raises(ValueError, match="2 rows, the data has 3"):
        channel.fits(3, 5)
    with pytest.raises(ValueError, match="2 rows"):
        channel.log_likelihood(np.array([0]))


@every
def test_frozen(build):
    with pytest.raises(AttributeError):
        build(1.0).epsilon = 2.0


@every
@pytest.mark.parametrize("epsilon", [0.5, math.inf])
def test_description_is_json_and_gives_the_law_back(build, epsilon):
    channel = build(epsilon)
    description = json.loads(json.dumps(channel.describe(), allow_nan=False))
    prior = {"top-k rows": np.stack([SETS, ~SETS]), "prior": PRIOR, "prior rows": [PRIOR, PRIOR[::-1]]}
    name = next(key for key, value in BUILDERS.items() if value is build)
    again = channel_from_description(description, prior.get(name))
    assert type(again) is type(channel)
    assert again.describe() == channel.describe()
    labels = np.array([0, 2], dtype=np.uint8)
    responses = channel.sample(labels, SecureRandom(3)).responses
    assert (again.log_likelihood(responses) == channel.log_likelihood(responses)).all()


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ({"mechanism": "magic"}, "mechanism is 'magic'"),
        ({"mechanism": "bit-flip", "epsilon": 1.0}, "incomplete"),
        ({"mechanism": "prior-response", "epsilon": 1.0, "num_classes": 3}, "prior is missing"),
        ({"mechanism": "bit-flip", "epsilon": -1.0, "num_classes": 3}, "epsilon is"),
    ],
)
def test_bad_descriptions(description, words):
    with pytest.raises(ValueError, match=words):
        channel_from_description(description)


def test_description_with_another_number_of_classes_than_its_prior():
    description = PriorResponse(1.0, PRIOR).describe()
    with pytest.raises(ValueError, match="num_classes is 2, but the description says 5"):
        channel_from_description(description, [0.5, 0.5])


def test_top_k_of_prior_is_described_by_k():
    prior = np.random.default_rng(0).random((6, 4))
    channel = TopKResponse.of_prior(1.0, prior, 2)
    again = channel_from_description(channel.describe(), prior)
    assert (again.members() == channel.members()).all()


# -- shapes and sizes ---------------------------------------------------------------------------------------


@given(epsilon=st.floats(0, 50), classes=st.integers(1, 10_000), n=st.sampled_from([0, 1, 2, 7]), data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_epsilon_classes_and_rows(epsilon, classes, n, data):
    kind = np.min_scalar_type(classes - 1)
    labels = np.array([data.draw(st.integers(0, classes - 1)) for _ in range(n)], dtype=kind)
    rng = SecureRandom(1)
    prior = np.random.default_rng(classes).random((n, classes))
    for channel in [RandomizedResponse(epsilon, classes), PriorResponse(epsilon, prior), BitFlip(epsilon, classes)]:
        channel.fits(n, classes)
        release = channel.sample(labels, rng)
        assert len(release) == n
        assert release.log_likelihood().shape == release.unbiased().shape == (n, classes)
        assert release.informative().all() == (n == 0 or (release.informative().sum() == n))
        assert np.isfinite(release.log_likelihood()).all()
        assert n == 0 or np.ptp(release.log_likelihood(), axis=1).max() <= epsilon * (1 + 1e-12) + 1e-9
        if release.responses.ndim == 1:
            assert release.responses.dtype == kind
            assert (release.responses < classes).all()
            assert channel.members()[..., release.responses].any() or n == 0


@pytest.mark.parametrize(
    "channel", [RandomizedResponse(1.0, 1), BitFlip(1.0, 1), LaplaceOneHot(1.0, 1), PriorResponse(1.0, [1.0])]
)
def test_one_class_says_nothing(channel):
    release = channel.sample(np.zeros(3, dtype=np.uint8), SecureRandom(1))
    assert not release.informative().any()
    assert not release.unbiased().any()
    assert (release.posterior() == 1).all()


def test_release_is_read_only_and_takes_rows():
    prior = np.random.default_rng(0).random((50, 6))
    release = PriorResponse(1.0, prior).sample(np.zeros(50, dtype=np.uint16), SecureRandom(1))
    assert not release.responses.flags.writeable
    assert not release.channel.members().flags.writeable
    some = release.take([7, 3, 3])
    assert (some.log_likelihood() == release.log_likelihood()[[7, 3, 3]]).all()
    assert release.responses.dtype == np.uint16


def test_vector_answers_are_compact():
    labels = np.zeros(4, dtype=np.uint8)
    assert BitFlip(1.0, 3).sample(labels, SecureRandom(1)).responses.dtype == np.uint8
    wide = LaplaceOneHot(1.0, 3).sample(labels, SecureRandom(1)).responses
    assert (wide.dtype, wide.shape) == (np.uint16, (4, 3))


def test_epsilon_zero_answers_do_not_depend_on_the_label():
    for build in BUILDERS.values():
        channel = build(0.0)
        first = channel.sample(np.array([0, 0], dtype=np.uint8), SecureRandom(2)).responses
        second = channel.sample(np.array([1, 2], dtype=np.uint8), SecureRandom(2)).responses
        if channel.describe()["mechanism"] not in {"bit-flip", "laplace-one-hot"}:
            assert (first == second).all()
        assert not channel.informative(2).any()


@pytest.mark.parametrize(
    ("members", "words"),
    [([1, 0], "type int"), (np.zeros((2, 0), bool), "shape"), ([[True], [False]], "no response in 1 rows")],
)
def test_bad_members(members, words):
    with pytest.raises(ValueError, match=words):
        TopKResponse(1.0, members)


@pytest.mark.parametrize("levels", [0, 65536, 1.5])
def test_bad_levels(levels):
    with pytest.raises(ValueError, match="levels is"):
        LaplaceOneHot(1.0, 3, levels)
