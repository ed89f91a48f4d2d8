"""Confident-GNMax: exact laws against the claim, a million draws, planted bugs; shards; what leaves and what not."""

from __future__ import annotations

import math
import pickle
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from labeldp.budgets.calibrate import voting_for_budget
from labeldp.core.certificate import parse
from labeldp.core.events import TeacherVoting
from labeldp.core.ledger import Budget
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault, MechanismError
from labeldp.mechanisms.common import grid_std
from labeldp.mechanisms.teachers import TeacherVotes, check_separate, one_by_one
from labeldp.testing import ContractError, check_mechanism
from tests.mechanisms.frequencies import follows

EPS = np.linspace(0, 3, 61)


def majority(queries):
    """Every teacher votes for its most frequent label, on every query."""

    def teach(numbers, rows, labels):
        return np.stack([np.full(queries, np.bincount(own).argmax()) for own in labels])

    return teach


def ask(teach=None, num_classes=3, teachers=20, queries=10, responses=4, noise=3.0, threshold=10, tight=3.0, **others):
    noises = {"noise_std": noise, "threshold": threshold, "threshold_std": tight}
    return TeacherVotes(teach or majority(queries), num_classes, teachers, queries, responses, **noises, **others)


# -- the claim against the exact law of everything that leaves, without a single draw -------------------------
#
# All queries have the same two counts. What leaves is then told apart by k answers in t queries, j of them class 0.


def leaving(confident, wins, queries, responses):
    """P of every outcome (k answers, t queries asked, j times class 0), in a fixed order."""
    channel = []
    for k in range(responses):
        channel.append(binom.pmf(k, queries, confident) * binom.pmf(np.arange(k + 1), k, wins))
    for t in range(responses, queries + 1):
        stopped = confident * binom.pmf(responses - 1, t - 1, confident)
        channel.append(stopped * binom.pmf(np.arange(responses + 1), responses, wins))
    return np.concatenate(channel)


def published(counts, event, threshold):
    """(P(answered), P(class 0 wins)) for one query: noise on both counts."""
    sure = norm.sf((threshold - max(counts)) / event.threshold_std) if event.threshold_std else 1.0
    return sure, norm.cdf((counts[0] - counts[1]) / (math.sqrt(2) * event.noise_std))


def noise_on_the_largest_only(counts, event, threshold):
    """Planted: the sampler that a bound on the top count alone would need."""
    sure = published(counts, event, threshold)[0]
    return sure, norm.cdf((counts[0] - counts[1]) / event.noise_std)


def exact_delta(sampler, event, threshold, here, there):
    """δ at every ε in EPS between two neighbouring tables of counts, both ways."""
    p, q = (leaving(*sampler(counts, event, threshold), event.queries, event.responses) for counts in (here, there))
    assert p.sum() == pytest.approx(1.0, rel=1e-9)
    both = [np.maximum(a - np.exp(eps) * b, 0).sum() for eps in EPS for a, b in ((p, q), (q, p))]
    return np.array(both).reshape(len(EPS), 2).max(axis=1)


def broken(claim, delta):
    return bool((delta > claim.profile(EPS) + 1e-12).any())


TABLES = [((51, 49), (50, 50)), ((50, 50), (49, 51)), ((60, 40), (59, 41)), ((70, 30), (69, 31)), ((90, 10), (89, 11))]


@pytest.mark.parametrize("threshold", [40, 55, 62, 75])
@pytest.mark.parametrize(("here", "there"), TABLES)
@pytest.mark.parametrize(
    "event", [TeacherVoting(8.0, 6, 10.0, 60), TeacherVoting(20.0, 12, 4.0, 30), TeacherVoting(3.0, 1, 5.0, 200)]
)
def test_the_claim_holds_for_all_that_leaves(event, here, there, threshold):
    assert not broken(event, exact_delta(published, event, threshold, here, there))


def test_unanswered_queries_must_be_paid_for():
    """One answer at most in 4,000 queries: how long the silence lasts tells more than two Gaussian looks would."""
    event = TeacherVoting(50.0, 1, 3.0, 4000)
    threshold = 50 + 3.5 * 3.0
    delta = exact_delta(published, event, threshold, (50, 40), (49, 41))
    assert not broken(event, delta)
    answered_only = TeacherVoting(50.0, 1, 3.0, 1)
    assert broken(answered_only, delta)


def test_votes_move_by_root_two_and_every_count_needs_noise():
    """400 answers without a threshold: the claim holds, half its μ² does not, nor does noise on the largest count."""
    event = TeacherVoting(12.0, 400, None, 400)
    assert not broken(event, exact_delta(published, event, None, (51, 49), (50, 50)))
    assert not broken(event, exact_delta(published, event, None, (50, 50), (49, 51)))
    as_if_one = TeacherVoting(12.0 * math.sqrt(2), 400, None, 400)
    assert broken(as_if_one, exact_delta(published, event, None, (51, 49), (50, 50)))
    assert broken(event, exact_delta(noise_on_the_largest_only, event, None, (51, 49), (50, 50)))


def test_more_answers_than_the_cap_cost_more_than_the_claim():
    event, endless = TeacherVoting(6.0, 20, 40.0, 200), TeacherVoting(6.0, 200, 40.0, 200)
    delta = exact_delta(published, endless, 0, (51, 49), (50, 50))
    assert broken(event, delta)
    assert not broken(endless, delta)


def test_the_noise_is_at_least_what_is_paid_for():
    """s′² ≥ (2^10·s)²(1 + 2^-39) + 4, and not more than needed."""
    for std in (0.5, 3.0, 50.0, 800.0, 1e6 / 3):
        assert (std * 1024) ** 2 + 4 <= grid_std(std, 1024) ** 2 <= ((std * 1024) ** 2 + 4) * (1 + 2.0**-38)


# -- the sampler ---------------------------------------------------------------------------------------------

DRAWS = 10**6
COUNTS = np.array([500, 300, 200])
THRESHOLD, TIGHT, NOISE = 300, 200.0, 300.0


def stated(noise=NOISE, tight=TIGHT):
    """P(no answer), P(each class). The grid's steps are 3·10^-6 deviations: real Gaussians will do."""
    sure = norm.sf((THRESHOLD - COUNTS.max()) / tight)
    x = np.linspace(-9, 9, 20_001)
    density = norm.pdf(x) * (x[1] - x[0])
    wins = [
        np.sum(density * np.prod([norm.cdf(x + (COUNTS[c] - n) / noise) for n in np.delete(COUNTS, c)], axis=0))
        for c in range(3)
    ]
    return np.concatenate([[1 - sure], sure * np.array(wins)])


def aggregator(kind=TeacherVotes, noise=NOISE, tight=TIGHT, queries=DRAWS):
    noises = {"noise_std": noise, "threshold": THRESHOLD, "threshold_std": tight}
    return kind(majority(1), 3, 1000, queries, queries, **noises)


def seen(mechanism):
    responses = mechanism.answered(np.tile(COUNTS, (mechanism.queries, 1)), SecureRandom(11))
    return np.bincount(responses + 1, minlength=4), responses


class NoisyMaximum(TeacherVotes):
    """Planted: the same noise, on the largest count only."""

    def answered(self, counts, rng):
        sure = super().answered(counts, rng) >= 0
        noisy = counts.astype(float)
        noisy[np.arange(len(counts)), counts.argmax(axis=1)] += (
            rng.rounded_gaussian(2.0**20, len(counts)) * 2.0**-20 * self.noise_std
        )
        return np.where(sure, noisy.argmax(axis=1), -1)


class OneNoise(TeacherVotes):
    """Planted: the comparison's noise is used again for the winner."""

    def answered(self, counts, rng):
        drawn = (rng.rounded_gaussian(2.0**20, counts.size) * 2.0**-20 * self.noise_std).reshape(counts.shape)
        sure = counts.max(axis=1) + drawn[:, 0] * (self.threshold_std / self.noise_std) >= self.threshold
        return np.where(sure, (counts + drawn).argmax(axis=1), -1)


def test_a_million_draws_follow_the_law():
    """10⁶ queries, false alarm 1e-9; the same draws reject either noise 2% too small, and neighbours know nothing."""
    counts, responses = seen(aggregator())
    channel = stated()
    assert channel.sum() == pytest.approx(1.0, rel=1e-6)
    assert follows(counts, channel)
    assert not follows(counts, stated(noise=NOISE / 0.98))
    assert not follows(counts, stated(tight=TIGHT / 0.98))
    pairs = np.bincount((responses[::2] + 1) * 4 + responses[1::2] + 1, minlength=16)
    assert follows(pairs, np.outer(channel, channel).ravel())


@pytest.mark.parametrize("bug", [NoisyMaximum, OneNoise])
def test_a_million_draws_of_a_planted_bug_do_not(bug):
    assert not follows(seen(aggregator(bug))[0], stated())


def test_comparisons_are_as_likely_as_the_closed_form_says():
    """Largest count 200, threshold 180, s₁ = 50: P(answered) = 0.655421741610324."""
    mechanism = TeacherVotes(majority(1), 2, 250, 200_000, 200_000, noise_std=400.0, threshold=180, threshold_std=50.0)
    responses = mechanism.answered(np.tile([200, 50], (200_000, 1)), SecureRandom(4))
    chance = 0.655421741610324167
    assert follows(np.array([np.sum(responses < 0), np.sum(responses >= 0)]), np.array([1 - chance, chance]))


# -- the cap, and silence --------------------------------------------------------------------------------------


def test_after_the_cap_nothing_leaves():
    labels = np.full(200, 2, dtype=np.uint8)
    responses = ask(queries=30, responses=4).sample(labels, SecureRandom(1))
    assert np.flatnonzero(responses >= 0).tolist() == [0, 1, 2, 3]
    assert set(responses[4:].tolist()) == {-1}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_never_more_than_the_cap(seed, cap):
    counts = np.random.default_rng(seed).integers(0, 20, size=(40, 3))
    mechanism = ask(queries=40, responses=cap, noise=5.0, threshold=12, tight=6.0)
    responses = mechanism.answered(counts, SecureRandom(seed))
    assert np.count_nonzero(responses >= 0) <= cap
    assert not responses.flags.writeable


def test_an_unanswered_query_says_only_that():
    """Counts that differ, all far below the threshold: not a bit of what leaves differs."""
    mechanism = ask(queries=50, responses=50, noise=30.0, threshold=1e6, tight=30.0)
    tables = np.random.default_rng(0).integers(0, 20, size=(2, 50, 3))
    assert all((mechanism.answered(table, SecureRandom(3)) == -1).all() for table in tables)


def test_without_a_threshold_every_query_is_answered():
    mechanism = ask(queries=6, responses=6, noise=2.0, threshold=None, tight=None)
    assert mechanism.sample(np.full(100, 1, dtype=np.uint8), SecureRandom(2)).tolist() == [1] * 6
    assert mechanism.event() == TeacherVoting(2.0, 6, None, 6)


# -- shards and teachers -------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**40))
def test_shards_are_disjoint_and_of_one_size(num_rows, teachers, seed):
    if teachers > num_rows:
        with pytest.raises(ValueError, match="give each at least one"):
            ask(teachers=teachers, seed=seed).fits(num_rows, 3)
        return
    shards = ask(teachers=teachers, seed=seed).shards(num_rows)
    assert shards.shape == (teachers, num_rows // teachers)
    assert len(np.unique(shards)) == shards.size
    assert shards.min() >= 0
    assert shards.max() < num_rows


def test_published_shards():
    """50,000 labels for 800 teachers: 62 each, and 400 in no shard (Malek et al. 2021)."""
    shards = ask(teachers=800).shards(50_000)
    assert shards.shape == (800, 62)
    assert not np.array_equal(shards, ask(teachers=800, seed=1).shards(50_000))


@pytest.mark.parametrize("at_once", [1, 7, 100])
def test_each_teacher_gets_its_own_shard_and_no_other(at_once):
    labels = np.random.default_rng(1).integers(0, 3, size=203).astype(np.uint8)
    given_rows, calls = [], []

    def teach(numbers, rows, own):
        assert np.array_equal(labels[rows], own)
        given_rows.extend(zip(numbers.tolist(), rows.tolist(), strict=True))
        calls.append(len(numbers))
        return np.zeros((len(numbers), 10), dtype=int)

    mechanism = ask(teach, at_once=at_once)
    mechanism.sample(labels, SecureRandom(1))
    assert given_rows == list(enumerate(mechanism.shards(203).tolist()))
    assert max(calls) <= at_once


def test_one_by_one_never_shows_two_shards():
    seen_sizes = []

    def train(number, rows, labels):
        seen_sizes.append((rows.shape, labels.shape))
        return np.full(10, number % 3)

    mechanism = ask(one_by_one(train), at_once=20)
    counts = mechanism._counts(np.zeros(100, dtype=np.uint8))
    assert seen_sizes == [((5,), (5,))] * 20
    assert counts.tolist() == [[7, 7, 6]] * 10


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 119), st.integers(0, 4), st.integers(0, 1000))
def test_a_replaced_label_moves_one_vote(row, label, seed):
    """Teachers that vote anything, some of it no class: the largest count moves by ≤ 1, all counts by ≤ √2."""

    def scattered(numbers, rows, labels):
        mixed = (labels.astype(np.int64) * (rows + 3)).sum(axis=1)
        return (mixed[:, None] * np.arange(1, 11) + numbers[:, None]) % 7 - 1

    mechanism = ask(scattered, num_classes=5, teachers=17)
    ours = np.random.default_rng(seed).integers(0, 5, size=120).astype(np.uint8)
    theirs = ours.copy()
    theirs[row] = label
    here, there = (mechanism._counts(labels) for labels in (ours, theirs))
    assert np.abs(here.max(axis=1) - there.max(axis=1)).max() <= 1
    assert np.square(here - there).sum(axis=1).max() <= 2


def test_votes_for_no_class_count_for_none():
    def odd(numbers, rows, labels):
        return np.tile(np.array([-1, 0, 2, 3, 2**40, -(2**60), 1, 1, 1, 1]), (len(numbers), 1))

    counts = ask(odd)._counts(np.zeros(40, dtype=np.uint8))
    assert counts[:7].tolist() == [[0, 0, 0], [20, 0, 0], [0, 0, 20], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 20, 0]]


def shares_a_mean(numbers, rows, labels):
    """Planted: all teachers of a call centre their votes on a common mean of the labels."""
    return np.tile((labels.mean(axis=1, keepdims=True) > labels.mean()).astype(int), (1, 10))


def test_teachers_that_know_of_each_other_are_found():
    check_separate(ask(at_once=5), 100)
    with pytest.raises(ValueError, match="changed the votes of teachers"):
        check_separate(ask(shares_a_mean), 100, teachers=6)
    with pytest.raises(ValueError, match=r"votes have shape \(3, 1\)"):
        check_separate(ask(majority(1)), 100)


# -- as a mechanism ------------------------------------------------------------------------------------------


class Network:
    """As much of a torch module as is asked for: weights that training writes to."""

    def __init__(self):
        self.weight = np.zeros(3)

    def state_dict(self):
        return {"weight": torch.as_tensor(self.weight)}


SHARED = Network()


def trains_a_global(number, rows, labels):
    SHARED.weight[labels[0]] += 1
    return np.zeros(5, dtype=np.int64)


def held_in(way):
    network = Network()

    def train(network, number, rows, labels):
        network.weight[labels[0]] += 1
        return np.zeros(5, dtype=np.int64)

    match way:
        case "partial":
            return one_by_one(partial(train, network))
        case "closure":
            return one_by_one(lambda *lesson: train(network, *lesson))
        case "global":
            return one_by_one(trains_a_global)
        case "anew":
            return one_by_one(lambda *lesson: train(Network(), *lesson))


@pytest.mark.parametrize("way", ["partial", "closure", "global", "anew"])
def test_a_network_that_goes_from_teacher_to_teacher_is_refused(way):
    """It carries labels of one shard to the next, and out of the vault."""
    probe = TeacherVotes(held_in(way), 3, 10, queries=5, responses=5, noise_std=4.0)
    with nullcontext() if way == "anew" else pytest.raises(ValueError, match=r"holds a Network and changed it.*anew"):
        check_separate(probe, 100, teachers=1)


def test_a_vault_charges_the_whole_run_and_certifies_it():
    event = voting_for_budget(1.0, 1e-5, queries=40, responses=10)
    noises = {"noise_std": event.noise_std, "threshold": 150, "threshold_std": event.threshold_std}
    vault = LabelVault(np.full(3000, 1), 3, Budget(1.0, 1e-5))
    responses = vault.release(TeacherVotes(majority(40), 3, 300, 40, 10, **noises))
    assert set(responses.tolist()) <= {-1, 0, 1, 2}
    certificate = vault.certificate()
    assert certificate.epsilon == pytest.approx(1.0, rel=1e-9)
    assert parse(certificate.dumps()).groups[0].queries[0].event == event


def test_errors_of_teachers_do_not_quote_labels():
    def fails(numbers, rows, labels):
        raise RuntimeError(f"cannot learn {labels.tolist()}")

    vault = LabelVault([2] * 40, 3)
    with pytest.raises(MechanismError, match="withheld") as caught:
        vault.release(ask(fails))
    assert "[2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_teachers_do_not_leave():
    """What comes back is one small whole number per query, and the mechanism holds none of it."""
    mechanism = ask(one_by_one(lambda number, rows, labels: np.zeros(10, dtype=int)))
    before = dict(vars(mechanism))
    responses = LabelVault([0] * 100, 3).release(mechanism)
    assert responses.shape == (10,)
    assert responses.dtype == np.int64
    assert vars(mechanism) == before
    assert "teach" not in repr(mechanism).replace("teachers", "").replace("TeacherVotes", "")


class ComparisonsForFree(TeacherVotes):
    """Declares the answers only."""

    def event(self):
        return TeacherVoting(self.noise_std, self.responses, None, self.responses)


@pytest.mark.parametrize(("kind", "honest"), [(TeacherVotes, True), (ComparisonsForFree, False)])
def test_the_public_check_finds_comparisons_for_free(kind, honest):
    """Three teachers with one label each, eight queries: how many are answered tells 3 : 0 from 2 : 1."""

    def teach(numbers, rows, labels):
        return np.tile(labels.astype(int), (1, 8))

    mechanism = kind(teach, 2, 3, 8, 8, noise_std=30.0, threshold=2.5, threshold_std=0.7)
    with nullcontext() if honest else pytest.raises(ContractError, match="neighbour"):
        check_mechanism(mechanism, [0, 0, 0], [0, 0, 1], 2, draws=300, statistic=lambda a: float(np.sum(a >= 0)))


def test_descriptions_are_plain():
    told = ask().describe()
    assert told["mechanism"] == "teacher votes"
    assert told["teachers"] == 20
    assert pickle.loads(pickle.dumps(told)) == told


def test_bad_settings():
    for name, value, said in [
        ("teachers", 0, "teachers is 0"),
        ("queries", 2**26, "queries is"),
        ("responses", 11, "at most the 10 queries"),
        ("noise", 0.0, "noise_std"),
        ("noise", 1e-3, "give noise for"),
        ("noise", 1e30, "noise_std is"),
        ("threshold", math.nan, "threshold is nan"),
        ("threshold", None, "give both, or neither"),
        ("tight", None, "give both, or neither"),
        ("seed", -1, "seed is -1"),
        ("at_once", 0, "at_once is 0"),
        ("teach", 3, "teach is 3"),
    ]:
        with pytest.raises(ValueError, match=said):
            ask(**{name: value})
    with pytest.raises(ValueError, match="num_classes"):
        ask().fits(100, 4)
