"""Randomized response shared among a user's labels: the law, the odds of every list of labels, the draws."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeldp.core import accountant
from labeldp.core.certificate import verify
from labeldp.core.events import PureDP, Query
from labeldp.core.ledger import Budget
from labeldp.core.random import SecureRandom, exp_digits
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.common import response_thresholds
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.user_responses import RowResponse, UserResponse, label_epsilon
from labeldp.mechanisms.users import Users, UserVault, cap_rows
from labeldp.releases import NoisyLabels
from labeldp.testing import check_randomizer
from tests.mechanisms.frequencies import follows

# --- the odds of every list of answers, by enumeration --------------------------------------------------------------


def joint_law(channel, rows, labels):
    """P(answers of these rows | their labels), for every list of answers, (K^m,)."""
    joint = np.ones(1)
    for row, label in zip(rows, labels, strict=True):
        joint = np.outer(joint, channel.probabilities(label, row)[0]).ravel()
    return joint


def worst_odds(channel, rows):
    """The largest log-ratio of the chance of one list of answers under two lists of one user's labels."""
    lists = itertools.product(range(channel.num_classes), repeat=len(rows))
    channels = np.log(np.stack([joint_law(channel, rows, labels) for labels in lists]))
    return float((channels[:, None] - channels[None, :]).max())


def odds_of_users(channel, users):
    return max(worst_odds(channel, np.flatnonzero(users.owner == user)) for user in range(len(users)))


GROUPED = Users(["a", "b", "a", "c", "a", "b"])


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("cap", [None, 3, 4])
def test_no_list_of_answers_has_worse_odds_than_promised(epsilon, num_classes, cap):
    question = UserResponse(epsilon, num_classes, GROUPED, cap=cap)
    worst = odds_of_users(question, GROUPED)
    assert worst <= epsilon * (1 + 1e-12) + 1e-12
    largest = epsilon if cap != 4 else epsilon * 3 / 4
    assert worst >= largest * (1 - 1e-9) - 1e-12


@pytest.mark.parametrize(("labels", "epsilon", "num_classes"), [(3, 1.0, 2), (7, 0.3, 10), (10, 5.0, 2), (3, 0.1, 4)])
def test_the_words_of_the_sampler_keep_the_promise_exactly(labels, epsilon, num_classes):
    """Odds of the integers that are really used, to the power of a user's labels, against e^ε from above."""
    each = label_epsilon(epsilon, labels)
    gap, width = response_thresholds(each, num_classes)
    bits = 200
    largest = 1 / (Fraction(exp_digits(Fraction(epsilon))(bits)[0]) / 2**bits)
    assert Fraction(gap + width, width) ** labels <= largest


def test_an_epsilon_that_was_not_divided_is_caught():
    class NotDivided(UserResponse):
        def probabilities(self, label, row=0):
            return RandomizedResponse(self.user_epsilon, self.num_classes).probabilities(label)

    assert odds_of_users(NotDivided(1.0, 2, GROUPED), GROUPED) == pytest.approx(3.0)


def test_a_label_drawn_twice_is_caught():
    """A user with one row that counts twice: one draw has odds e^ε, a second draw of the same label e^{2ε}."""
    question = UserResponse(1.0, 3, Users(["a"]))
    channel = np.log(np.stack([question.probabilities(label)[0] for label in range(3)]))
    once = np.stack([np.where(np.eye(3) > 0, np.diag(row), -np.inf) for row in channel])
    with np.errstate(invalid="ignore"):
        assert np.nanmax(once[:, None] - once[None, :]) == pytest.approx(1.0)
    twice = np.stack([row[:, None] + row[None, :] for row in channel])
    assert (twice[:, None] - twice[None, :]).max() == pytest.approx(2.0)


# --- shares of a budget ---------------------------------------------------------------------------------------------


@given(st.floats(1e-300, 20) | st.just(0.0), st.integers(1, 1000))
def test_shares_add_up_to_no_more_than_the_budget(epsilon, labels):
    each = label_epsilon(epsilon, labels)
    assert labels * Fraction(each) <= Fraction(epsilon)
    assert each >= epsilon / labels * (1 - 1e-15)


@pytest.mark.parametrize(("labels", "gain"), [(5, 1.00), (10, 1.006), (50, 1.94), (200, 3.8)])
def test_composition_pays_at_a_delta(labels, gain):
    each = label_epsilon(1.0, labels, 1e-5)
    assert each * labels == pytest.approx(gain, rel=6e-3)
    assert accountant.epsilon([Query(PureDP(each), labels)], 1e-5) <= 1.0
    assert accountant.epsilon([Query(PureDP(each * (1 + 1e-4)), labels)], 1e-5) > 1.0


def test_composition_is_never_less_than_the_share():
    for epsilon, labels, delta in itertools.product((0.01, 0.5, 4.0), (1, 2, 30), (1e-9, 1e-3)):
        assert label_epsilon(epsilon, labels, delta) >= label_epsilon(epsilon, labels)
    assert label_epsilon(0.0, 5, 1e-5) == 0.0
    assert label_epsilon(math.inf, 5, 1e-5) == math.inf


def hockey_stick(channel, rows, epsilon):
    """The largest δ at ε over all pairs of lists of labels, by enumeration of the answers."""
    channels = np.stack([joint_law(channel, rows, labels) for labels in itertools.product(range(2), repeat=len(rows))])
    return max(np.clip(p - math.exp(epsilon) * q, 0, None).sum() for p in channels for q in channels)


def test_delta_by_enumeration():
    users = Users(["a"] * 6)
    question = UserResponse(1.0, 2, users, delta=0.01)
    assert question.epsilon > 1.0 / 6
    assert 0.0099 <= hockey_stick(question, range(6), 1.0) <= 0.01
    planted = RowResponse(np.full(6, question.epsilon * 1.02), 2)
    assert hockey_stick(planted, range(6), 1.0) > 0.01


# --- what users pay -------------------------------------------------------------------------------------------------


def vault_of(users, num_classes=2, **more):
    return UserVault(np.zeros(len(users.owner), dtype=int), users, num_classes, **more)


@pytest.mark.parametrize(("cap", "claim"), [(None, 1.2), (3, 1.2), (6, 0.6)])
def test_the_certificate_says_what_the_worst_user_pays(cap, claim):
    vault = vault_of(GROUPED, budget=Budget(1.2))
    vault.release(UserResponse(1.2, 2, vault.users, cap=cap))
    assert vault.certificate().epsilon == pytest.approx(claim, rel=1e-12)
    assert verify(vault.certificate()) == ()


def test_each_user_pays_for_its_own_labels():
    def paid(question):
        return {(c.event.epsilon, c.times, tuple(c.users)) for c in question.charges(GROUPED)}

    assert paid(UserResponse(1.2, 2, GROUPED, cap=4)) == {(0.3, 3, (0,)), (0.3, 2, (1,)), (0.3, 1, (2,))}
    each = [label_epsilon(1.2, labels, 1e-5) for labels in (3, 2, 1)]
    composed = {(each[0], 3, (0,)), (each[1], 2, (1,)), (each[2], 1, (2,))}
    assert paid(UserResponse(1.2, 2, GROUPED, delta=1e-5)) == composed
    (whole,) = UserResponse(1.2, 2, GROUPED).charges(GROUPED)
    assert (whole.event, whole.times, whole.users) == (PureDP(1.2), 1, None)


def test_with_a_delta_the_budget_holds_and_is_used():
    users = Users(np.repeat(np.arange(3), 50))
    vault = vault_of(users, budget=Budget(1.0, 1e-5))
    vault.release(UserResponse(1.0, 2, users, delta=1e-5))
    assert 0.9999 < vault.certificate().epsilon <= 1.0
    assert vault.certificate(0.0).epsilon == pytest.approx(1.94, rel=6e-3)


def test_some_rows_are_asked_with_their_own_users():
    vault, rows = vault_of(GROUPED, budget=Budget(1.0)), [4, 0, 5]
    vault.release(UserResponse(1.0, 2, vault.users.take(rows)), rows=rows)
    assert vault.certificate().epsilon == 1.0


@pytest.mark.parametrize("users", [Users(["a", "b", "a", "c", "b", "b"]), Users(range(6))])
def test_a_question_for_other_users_is_refused_unpaid(users):
    vault = vault_of(GROUPED)
    with pytest.raises(ValueError, match="grouped otherwise"):
        vault.release(UserResponse(1.0, 2, users))
    with pytest.raises(ValueError, match="is for 6 rows"):
        vault.release(UserResponse(1.0, 2, GROUPED), rows=[0, 1])
    assert vault.certificate().epsilon == 0.0


def test_in_a_plain_vault_it_costs_what_the_worst_label_costs():
    vault = LabelVault([0, 1, 1, 0, 1, 0], 2)
    vault.release(UserResponse(1.2, 2, GROUPED))
    assert vault.certificate().epsilon == 1.2
    assert vault.certificate().unit.protects == "one label"


def test_more_rows_than_the_cap_are_refused_with_a_remedy():
    with pytest.raises(ValueError, match=r"1 users have more rows, 3 at most; ask about cap_rows"):
        UserResponse(1.0, 2, GROUPED, cap=2)
    kept = cap_rows(GROUPED, 2)
    assert UserResponse(1.0, 2, GROUPED.take(kept.rows), cap=2).epsilon == 0.5


@pytest.mark.parametrize("more", [{"cap": 0}, {"cap": 1.5}, {"delta": -1.0}, {"delta": 2.0}, {"delta": 1e-20}])
def test_senseless_settings_are_refused(more):
    with pytest.raises(ValueError):
        UserResponse(1.0, 2, GROUPED, **more)
    with pytest.raises(ValueError, match="epsilon"):
        UserResponse(-1.0, 2, GROUPED)


# --- the law --------------------------------------------------------------------------------------------------------


def test_rows_keep_the_contract_of_a_randomizer():
    for channel in (RowResponse([0.7, 2.0], 4), RowResponse([0.0], 3), UserResponse(1.0, 3, Users(["a", "a"]))):
        check_randomizer(channel, draws=200_000)


def test_the_law_of_each_row_is_its_own():
    channel, responses = RowResponse([0.5, 2.0, 0.5], 3), np.array([2, 0, 1])
    for row, epsilon in enumerate(channel.epsilons):
        alone = RandomizedResponse(epsilon, 3)
        one = responses[row : row + 1]
        assert np.array_equal(channel.log_likelihood(responses)[row], alone.log_likelihood(one)[0])
        assert np.array_equal(channel.unbiased(responses)[row], alone.unbiased(one)[0])
    assert channel.take(np.array([1, 1])).epsilons.tolist() == [2.0, 2.0]
    assert channel.describe()["rows"] == {"0.5": 2, "2.0": 1}
    assert RowResponse([0.0, 1.0], 2).informative(2).tolist() == [False, True]
    assert not RowResponse([0.0, 1.0], 2).unbiased(np.array([0, 0]))[0].any()


@pytest.mark.parametrize("epsilons", [[-1.0], [[1.0]], [np.nan], 1.0])
def test_epsilons_are_one_number_per_row(epsilons):
    with pytest.raises(ValueError, match="epsilons"):
        RowResponse(epsilons, 2)


def test_no_rows_and_one_class_work():
    assert len(RowResponse([], 2).sample(np.zeros(0, np.uint8), SecureRandom(0))) == 0
    assert RowResponse([1.0], 1).sample(np.zeros(1, np.uint8), SecureRandom(0)).responses.tolist() == [0]


# --- a million draws and more ---------------------------------------------------------------------------------------

MANY = 700_000
LABELS_OF_USER = (0, 2, 1)


def joint_counts(responses, num_classes=3):
    """How often each list of answers came, over users with consecutive rows."""
    lists = responses.reshape(MANY, len(LABELS_OF_USER)).astype(np.int64)
    return np.bincount(lists @ num_classes ** np.arange(3)[::-1], minlength=num_classes**3)


def draw(question):
    labels = np.tile(np.array(LABELS_OF_USER, dtype=np.uint8), MANY)
    return question.sample(labels, SecureRandom(11)).responses


def test_joint_answers_of_users_follow_the_law_and_the_test_can_tell():
    """2.1 million draws, false alarms 1e-9: the joint law of a user's three answers, and two planted errors."""
    users = Users(np.repeat(np.arange(MANY), 3))
    question = UserResponse(3.0, 3, users)
    channel = joint_law(question, range(3), LABELS_OF_USER)
    assert follows(joint_counts(draw(question)), channel)
    not_divided, too_much = (RowResponse(np.full(3 * MANY, e), 3) for e in (3.0, 1.02))
    assert not follows(joint_counts(draw(not_divided)), channel)
    assert not follows(joint_counts(draw(too_much)), channel)


class OneWordPerUser(UserResponse):
    """A planted bug: the answers of a user share their randomness."""

    def sample(self, labels, rng):
        first = RandomizedResponse(self.epsilon, self.num_classes).sample(labels[::3], rng).responses
        kept = np.repeat(first == labels[::3], 3)
        return NoisyLabels(self, np.where(kept, labels, (labels + 1) % 3))


def test_answers_of_one_user_that_know_of_each_other_are_caught():
    users = Users(np.repeat(np.arange(MANY), 3))
    question = OneWordPerUser(1.5, 3, users)
    assert not follows(joint_counts(draw(question)), joint_law(question, range(3), LABELS_OF_USER))


def copies(responses):
    """How often the two copies of a row that counts twice were answered (a, b), in 2 classes."""
    pairs = responses.reshape(-1, 2).astype(np.int64)
    return np.bincount(2 * pairs[:, 0] + pairs[:, 1], minlength=4)


def test_a_resampled_label_is_drawn_once_and_the_test_can_tell():
    """10^6 users with one row each, resampled to two: both copies carry one answer, at ε and not twice ε."""
    vault = UserVault(np.ones(10**6, np.uint8), np.arange(10**6), 2, Budget(1.0), rng=SecureRandom(5))
    kept = cap_rows(vault.users, 2)
    private = vault.release(UserResponse(1.0, 2, vault.users.take(kept.rows)), rows=kept.rows)
    once = np.diag(private.channel.probabilities(1)[0]).ravel()
    assert follows(copies(private.take(kept.listed()).responses), once)
    again = RandomizedResponse(1.0, 2).sample(np.ones(2 * 10**6, np.uint8), SecureRandom(5))
    assert not follows(copies(again.responses), once)
    assert vault.certificate().epsilon == 1.0
    with pytest.raises(ValueError, match="repeats"):
        vault.release(UserResponse(1.0, 2, vault.users.take(kept.rows[kept.listed()])), rows=kept.rows[kept.listed()])
