"""Audits of training functions: honest ones stay below their claim, planted bugs do not."""

import math

import numpy as np
import pytest

from labeldp.audit.bounds import Claim, separate
from labeldp.audit.training import audit_runs, audit_training, guesses_of
from labeldp.core.events import Gaussian, PureDP, Query
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.counts import GaussianNoise, GroupCounts
from labeldp.mechanisms.responses import RandomizedResponse

SURE = 1 - 1e-6
ZEROS = np.zeros(3000, dtype=np.int64)


class Noise:
    """A new generator for every run, the same ones in every test."""

    def __init__(self, first=1000):
        self.next = first

    def __call__(self):
        self.next += 1
        return SecureRandom(self.next)


def answering(epsilon, noise, claimed=None, classes=2):
    """Training that shows its private answers: the most that a model could."""

    def train(labels):
        vault = LabelVault(labels, classes, rng=noise())
        private = vault.release(RandomizedResponse(epsilon, classes))
        return private.log_likelihood(), Claim(claimed) if claimed else Claim.of(vault.certificate())

    return train


def counting(epsilon, noise, delta=1e-5, less=1.0):
    """A noisy count of every row by itself: a Gaussian mechanism whose canaries do not touch each other."""

    def train(labels):
        vault = LabelVault(labels, 2, rng=noise())
        told = GaussianNoise.for_budget(epsilon, delta)
        vault.release(GroupCounts(np.arange(len(labels)), len(labels), 2, told))
        claim = Claim.of(vault.certificate(delta))
        again = LabelVault(labels, 2, rng=noise())
        spent = GroupCounts(np.arange(len(labels)), len(labels), 2, GaussianNoise(told.std / less))
        return again.release(spent).counts.astype(float), claim

    return train


# --- honest ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("classes", [2, 5])
def test_honest_answers_stay_below(epsilon, classes):
    result = audit_training(answering(epsilon, Noise(), classes=classes), ZEROS, classes, confidence=SURE, seed=0)
    assert result.bound <= epsilon
    if epsilon >= 1 and classes == 2:
        assert result.bound > 0.6 * epsilon


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 6.0])
@pytest.mark.parametrize("apart", [False, True])
def test_honest_gaussian_noise_stays_below(epsilon, apart):
    result = audit_training(counting(epsilon, Noise()), ZEROS, 2, separate=apart, confidence=SURE, seed=0)
    assert result.bound <= result.epsilon <= epsilon


def test_canaries_known_to_be_separate_are_worth_far_more():
    together, apart = (
        audit_training(counting(4.0, Noise()), ZEROS, 2, separate=known, confidence=0.95, seed=0).bound
        for known in (False, True)
    )
    assert together < 2.0 < 2.5 < apart < 4.0


def test_only_canaries_are_changed():
    seen = []

    def train(labels):
        seen.append(labels)
        return np.zeros((len(labels), 4)), Claim(1.0)

    given = np.arange(50) % 4
    audit_training(train, given, 4, canaries=[3, 8, 9], seed=0)
    untouched = np.setdiff1d(np.arange(50), [3, 8, 9])
    assert len(seen) == 3
    for labels in seen:
        assert (labels[untouched] == given[untouched]).all()
    # The two replays have the two candidates of every canary, and the run one of them.
    run, first, second = (labels[[3, 8, 9]] for labels in seen)
    assert ((run == first) | (run == second)).all()
    assert (first != second).all()
    assert len(seen[:1]) == 1
    audit_training(train, given, 4, canaries=5, replay=False, seed=0)
    assert len(seen) == 4


def test_coins_do_not_come_from_the_labels_given():
    """A training that gives its input back is caught whatever the labels were."""
    for given in (ZEROS[:200], ZEROS[:200] + 1):
        result = audit_training(lambda y: (np.eye(2)[y], Claim(1.0)), given, 2, replay=False, seed=0)
        assert (result.correct, result.guesses) == (200, 200)
        assert result.contradicts


def test_a_training_that_tells_nothing_is_never_accused():
    result = audit_training(lambda y: (np.zeros((len(y), 2)), Claim(0.0)), ZEROS, 2, seed=0)
    assert result.bound == 0.0
    assert not result.contradicts


# --- planted bugs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_half_the_noise_of_answers_is_caught(epsilon):
    result = audit_training(answering(2 * epsilon, Noise(), claimed=epsilon), ZEROS, 2, confidence=SURE, seed=0)
    assert result.contradicts


@pytest.mark.parametrize("epsilon", [2.0, 4.0])
def test_half_the_noise_of_gaussian_sums_is_caught(epsilon):
    result = audit_training(counting(epsilon, Noise(), less=2.0), ZEROS, 2, separate=True, confidence=SURE, seed=0)
    assert result.contradicts
    assert "each canary by itself" in result.attack


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_a_seed_used_again_in_every_run_is_caught(epsilon):
    def again():
        return SecureRandom(7777)

    for train in (answering(epsilon, again), counting(epsilon, again, delta=1e-7)):
        result = audit_training(train, ZEROS, 2, seed=0)
        assert result.contradicts
        assert "a repeated run" in result.attack


def early_stop(peeks, epsilon=0.1, checkpoints=1500):
    """Noise trains as well as anything at a tiny ε; what matters is which checkpoints are kept.

    Honest training keeps the last one. The planted bug goes back to the best one so far whenever the next is worse, and
    which is the best it asks the true labels.
    """
    runs = iter(range(10**6))

    def train(labels):
        vault = LabelVault(labels, 2, rng=SecureRandom(5000 + next(runs)))
        private = vault.release(RandomizedResponse(epsilon, 2))
        chance, scores = np.random.default_rng(next(runs)), 0.1 * private.log_likelihood()
        for _ in range(checkpoints):
            new = scores + 0.2 * chance.normal(size=scores.shape)
            if not peeks or right(new, labels) >= right(scores, labels):
                scores = new
        return scores, Claim.of(vault.certificate())

    return train


def right(scores, labels):
    return np.mean(scores.argmax(axis=1) == labels)


def test_labels_that_leak_through_early_stopping_are_caught():
    zeros = ZEROS[:200]
    caught = audit_training(early_stop(True), zeros, 2, seed=0)
    assert caught.contradicts
    assert caught.p_value < 1e-6
    assert not audit_training(early_stop(False), zeros, 2, seed=0).contradicts


def stop_for_one(peeks):
    """Training stops as soon as it is right about row 0, or after a while if it does not look."""
    runs = iter(range(10**6))

    def train(labels):
        chance = np.random.default_rng(next(runs))
        for _ in range(6):
            scores = chance.normal(size=(len(labels), 2))
            if peeks and scores[0].argmax() == labels[0]:
                break
        return scores, Claim(0.5)

    return train


def test_a_stop_that_looks_at_one_label_shows_in_many_runs():
    labels = np.zeros(10, dtype=np.int64)
    assert audit_runs(stop_for_one(True), labels, 2, row=0, runs=200, seed=0).contradicts
    assert not audit_runs(stop_for_one(False), labels, 2, row=0, runs=200, seed=0).contradicts
    # Other rows tell nothing.
    assert not audit_runs(stop_for_one(True), labels, 2, row=1, runs=200, seed=0).contradicts


# --- many runs ---------------------------------------------------------------------------------------------------


def one_row(epsilon, less=1.0, delta=1e-5, queries=True):
    """A Gaussian count of a single label, with a bias that the attacker has to find out."""
    std, rng = GaussianNoise.for_budget(epsilon, delta).std, np.random.default_rng(0)
    event = Query(Gaussian(std, math.sqrt(2.0)))

    def train(labels):
        told = np.eye(2)[labels] + rng.normal(size=(len(labels), 2)) * std / less + np.array([3.0, 0.0])
        return told, Claim(epsilon, delta, (event,) if queries else ())

    return train


@pytest.mark.parametrize("queries", [True, False])
def test_many_runs_find_missing_noise(queries):
    labels = np.zeros(1, dtype=np.int64)
    # Of one point of the curve less is known than of all of it, and so more must be wrong to be seen.
    honest, planted = (
        audit_runs(one_row(3.0, less, queries=queries), labels, 2, row=0, runs=20_000, confidence=SURE, seed=0)
        for less in (1.0, 2.0 if queries else 8.0)
    )
    assert honest.bound <= 3.0 < planted.bound
    assert honest.bound > (2.0 if queries else 0.3)


# --- separate canaries -------------------------------------------------------------------------------------------


def test_separate_counts_only_what_was_not_chosen_by():
    coins = np.array([1, -1] * 50)
    found = separate("x", coins, coins * 1.0)
    assert (found.correct, found.wrong, found.canaries) == (75, 0, 75)
    assert separate("x", coins, np.zeros(100)).counts == (0, 0, 75)


def test_pure_looks_can_be_audited_as_separate_ones():
    rng = np.random.default_rng(0)
    coins = rng.choice([-1, 1], size=20_000)
    responses = np.where(rng.random(20_000) < math.e / (1 + math.e), coins, -coins)
    attack = separate("answers", coins, responses)
    claim = Claim(1.0, 0.0, (Query(PureDP(1.0)),))
    assert 0.85 < attack.bound(claim, 0.999) <= 1.0
    assert attack.p_value(claim) > 0.01
    assert attack.p_value(Claim(0.5, 0.0, (Query(PureDP(0.5)),))) < 1e-9


def test_the_curve_is_not_broken_by_its_own_mechanism():
    """200 honest Gaussian audits at 90%: more than 45 accusations would have a chance below 1e-6."""
    rng, claim = np.random.default_rng(0), Claim(2.0, 1e-5, (Query(Gaussian(4.0, 2.0)),))
    accused = 0
    for _ in range(200):
        coins = rng.choice([-1, 1], size=2000)
        attack = separate("shift", coins, coins + rng.normal(size=2000) * 4.0)
        accused += attack.p_value(claim) < 0.1
    assert accused <= 45


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"canaries": 0}, "canaries=0"),
        ({"canaries": 11}, "canaries=11"),
        ({"canaries": [1, 1]}, "2 rows"),
        ({"canaries": [10]}, "1 rows"),
        ({"canaries": []}, "0 rows"),
        ({"confidence": 2.0}, "confidence"),
    ],
)
def test_nonsense_is_refused(change, what):
    with pytest.raises(ValueError, match=what):
        audit_training(lambda y: (np.zeros((len(y), 2)), Claim(1.0)), ZEROS[:10], 2, **change)


def test_scores_must_be_finite_and_one_for_every_class():
    for scores in (np.zeros((10, 3)), np.zeros(10), np.full((10, 2), np.nan)):
        with pytest.raises(ValueError, match="scores"):
            audit_training(lambda y, s=scores: (s, Claim(1.0)), ZEROS[:10], 2)
    with pytest.raises(ValueError, match="num_classes=1"):
        audit_training(lambda y: (np.zeros((len(y), 1)), Claim(1.0)), ZEROS[:10], 1)
    with pytest.raises(ValueError, match="not a claim"):
        Claim(-1.0)


def test_the_surest_guesses_come_first():
    coins = np.array([1, 1, 0, 0])
    found = np.array([3.0, -0.1, -2.0, 0.2])
    counted = [(g.correct, g.guesses) for g in guesses_of("x", coins, found, (1.0, 0.5))]
    assert counted == [(2, 4), (2, 2)]
