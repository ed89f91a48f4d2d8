"""Audits of per-row releases: below the claim for every honest one, above it for every planted bug."""

import numpy as np
import pytest
from scipy.stats import binom

from labeldp.audit.bounds import Claim
from labeldp.audit.responses import audit_mechanism, audit_responses, drawn_trials, same_channel
from labeldp.core.events import PureDP
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.responses import PriorResponse, RandomizedResponse, TopKResponse
from labeldp.mechanisms.user_responses import UserResponse
from labeldp.mechanisms.users import Users
from labeldp.mechanisms.vectors import BitFlip, LaplaceOneHot
from labeldp.releases import NoisyLabels

N, K = 40_000, 5
# An honest release is accused once in a million audits at most, and seeds are fixed (and too large to be guessed).
SURE = 1 - 1e-6
SKEWED = np.array([0.4, 0.3, 0.15, 0.1, 0.05])


def labels(n=N, seed=0):
    return np.random.default_rng(seed).choice(K, p=SKEWED, size=n)


def prior(n=N):
    """Few different sets of plausible classes, as clusters have."""
    kinds = np.array([[4, 3, 2, 1, 1], [1, 1, 8, 8, 1], [1, 1, 1, 1, 96], [1, 1, 1, 1, 1]], dtype=float)
    return kinds[np.arange(n) % len(kinds)]


HONEST = {
    "randomized response": RandomizedResponse(1.0, K),
    "at a small epsilon": RandomizedResponse(0.1, K),
    "at a large epsilon": RandomizedResponse(5.0, K),
    "at none": RandomizedResponse(0.0, K),
    "prior": PriorResponse(1.0, prior()),
    "top-k": TopKResponse(1.0, [True, True, True, False, False]),
    "bit flip": BitFlip(1.0, K),
    "Laplace": LaplaceOneHot(1.0, K),
    "users": UserResponse(1.0, K, Users(np.arange(N) // (1 + np.arange(N) % 2))),
}
every = pytest.mark.parametrize("mechanism", HONEST.values(), ids=HONEST.keys())


def released(mechanism, truth, seed=1000):
    return LabelVault(truth, K, rng=SecureRandom(seed)).release(mechanism)


@every
def test_honest_answers_stay_below_their_claim(mechanism):
    truth = labels()
    result = audit_responses(released(mechanism, truth), truth, confidence=SURE, seed=0)
    assert result.bound <= result.epsilon
    assert not result.contradicts
    assert "No contradiction" in result.verdict


@every
def test_honest_mechanisms_stay_below_their_claim(mechanism):
    result = audit_mechanism(mechanism, N, K, confidence=SURE, seed=0)
    assert result.bound <= result.epsilon


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("candidates", [2, K])
def test_the_bound_is_close_to_the_truth(epsilon, candidates):
    truth = np.arange(60_000) % K
    private = LabelVault(truth, K, rng=SecureRandom(1001)).release(RandomizedResponse(epsilon, K))
    result = audit_responses(private, truth, candidates=candidates, confidence=0.95, seed=0)
    assert 0.85 * epsilon < result.bound < 1.02 * epsilon


@pytest.mark.parametrize("name", ["randomized response", "prior", "top-k", "bit flip", "Laplace"])
def test_half_the_noise_is_caught(name):
    """Twice the ε that is claimed, in a stream of labels as skewed as real ones."""
    truth = labels()
    for kind in ("answers", "mechanism"):
        if kind == "answers":
            result = audit_responses(released(HONEST[name], truth), truth, Claim(0.5), confidence=SURE, seed=0)
        else:
            result = audit_mechanism(Flagged(HONEST[name], 0.5), N, K, confidence=SURE, seed=0)
        assert result.contradicts
        assert result.p_value < 1e-6
        assert "THE CLAIM IS BROKEN" in result.verdict


class Flagged:
    """Claims another ε than it spends."""

    def __init__(self, mechanism, epsilon):
        self.mechanism, self.claimed = mechanism, epsilon

    def fits(self, num_rows, num_classes):
        self.mechanism.fits(num_rows, num_classes)

    def event(self):
        return PureDP(self.claimed)

    def sample(self, labels, rng):
        return self.mechanism.sample(labels, rng)


def test_three_percent_too_much_is_caught_among_many_rows():
    truth = np.arange(1_000_000) % 2
    private = LabelVault(truth, 2, rng=SecureRandom(1000)).release(RandomizedResponse(1.03, 2))
    assert audit_responses(private, truth, Claim(1.0), seed=0).contradicts
    honest = LabelVault(truth, 2, rng=SecureRandom(1000)).release(RandomizedResponse(1.0, 2))
    assert not audit_responses(honest, truth, seed=0).contradicts


class OneShift(RandomizedResponse):
    """One draw for all rows: how far to move along the classes."""

    def sample(self, labels, rng):
        shift = super().sample(np.zeros(1, dtype=np.uint8), rng).responses[0]
        return NoisyLabels(self, (labels + shift) % self.num_classes)


@pytest.mark.parametrize("seed", range(6))
def test_noise_that_all_rows_share_is_caught(seed):
    """Whether it keeps all labels or moves them all: other rows tell what was done to this one."""
    truth = labels()
    private = OneShift(0.5, K).sample(truth.astype(np.uint8), SecureRandom(seed))
    result = audit_responses(private, truth, confidence=SURE, seed=0)
    assert result.contradicts
    assert result.bound > 5


@pytest.mark.parametrize("name", ["randomized response", "prior", "top-k", "bit flip", "Laplace"])
def test_a_seed_that_can_be_guessed_is_caught(name):
    truth = labels(5000)
    mechanism = HONEST[name].take(np.arange(5000))
    caught = audit_responses(released(mechanism, truth, seed=100), truth, confidence=SURE, seed=0)
    assert caught.contradicts
    assert "small seed" in caught.attack
    assert not audit_responses(released(mechanism, truth, seed=256), truth, confidence=SURE, seed=0).contradicts
    assert not audit_responses(LabelVault(truth, K).release(mechanism), truth, confidence=SURE, seed=0).contradicts


class Reseeded(BitFlip):
    """Does not use the noise it is handed."""

    def sample(self, labels, rng):
        return super().sample(labels, SecureRandom(123))


def test_a_mechanism_with_a_generator_of_its_own_is_caught():
    assert audit_mechanism(Reseeded(0.5, K), 5000, K, confidence=SURE, seed=0).contradicts


def test_a_mechanism_that_leaks_one_class_only_is_caught():
    """The average over classes hides little of it: the pairs with that class are guessed almost always."""
    truth = labels()
    private = released(RandomizedResponse(0.5, K), truth)
    responses = private.responses.copy()
    responses[truth == 4] = 4
    assert audit_responses(NoisyLabels(private.channel, responses), truth, confidence=SURE, seed=0).contradicts


@pytest.mark.slow
def test_honest_releases_are_accused_as_rarely_as_promised():
    """150 audits at 90%: more than 36 accusations would happen to an exact test with a chance below 1e-6."""
    truth, accused = np.arange(2000) % 2, 0
    for seed in range(150):
        private = LabelVault(truth, 2, rng=SecureRandom(1000 + seed)).release(RandomizedResponse(1.0, 2))
        accused += audit_responses(private, truth, confidence=0.9, seed=seed).contradicts
    assert binom.sf(36, 150, 0.1) < 1e-6
    assert accused <= 36


def test_drawn_trials_are_fair():
    """A million trials: the label stands in every place equally often, and decoys are uniform."""
    chance = np.random.default_rng(0)
    truth = chance.integers(4, size=1_000_000)
    trials = drawn_trials(truth, np.arange(len(truth)), 4, 3, chance)
    assert (np.take_along_axis(trials.options, trials.truth[:, None], 1)[:, 0] == truth).all()
    assert all(len(set(options)) == 3 for options in trials.options[:100].tolist())
    spread = 6 * np.sqrt(1e6 / 3)
    assert (np.abs(np.bincount(trials.truth) - 1e6 / 3) < spread).all()
    decoys = trials.options[trials.options != truth[:, None]]
    assert (np.abs(np.bincount(decoys) - 5e5) < spread).all()


def test_rows_of_one_law_are_found():
    assert set(same_channel(released(RandomizedResponse(1.0, K), labels(100)))) == {0}
    found = same_channel(released(PriorResponse(1.0, prior(100)), labels(100)))
    # The kinds of prior repeat every four rows; two of them allow all classes at this ε.
    assert (found[:96] == np.tile(found[:4], 24)).all()
    assert 1 < len(set(found)) <= 4


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda p, y: audit_responses(p, y[:-1]), "39999"),
        (lambda p, y: audit_responses(p, y + 3), "are not among 0"),
        (lambda p, y: audit_responses(p, y.astype(float)), "not among"),
        (lambda p, y: audit_responses(p, y, candidates=1), "candidates=1"),
        (lambda p, y: audit_responses(p, y, candidates=K + 1), "candidates=6"),
        (lambda p, y: audit_responses(p, y, confidence=1.0), "confidence"),
        (lambda p, y: audit_responses(p.take(np.arange(30)), y[:30]), "too few rows"),
    ],
)
def test_what_cannot_be_audited_is_refused_without_quoting_a_label(change, what):
    truth = labels()
    with pytest.raises(ValueError, match=what):
        change(released(RandomizedResponse(1.0, K), truth), truth)


def test_the_same_seed_gives_the_same_result():
    truth = labels(5000)
    private = released(RandomizedResponse(1.0, K), truth)
    assert audit_responses(private, truth, seed=3) == audit_responses(private, truth, seed=3)
    values = audit_responses(private, truth, seed=3).to_json()
    assert (values["verdict"] != "", values["contradicts"], values["epsilon"]) == (True, False, 1.0)
