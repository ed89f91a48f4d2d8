"""The best candidate: its exact ε over all labels and predictions, a million draws, planted bugs."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.core.events import PureDP
from labeldp.core.random import SecureRandom, exp_coins
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.selection import BestCandidate, permute_and_flip
from labeldp.testing import ContractError, check_mechanism
from tests.mechanisms.frequencies import follows

# -- the law from its definition, in rational arithmetic: e^{-ε/2} is taken to be the fraction x --------------------


def channel(scores, x):
    """Flip the candidates in random order, heads with chance x^(distance to the best); the first heads wins."""
    chances = [Fraction(0)] * len(scores)
    orders = list(itertools.permutations(range(len(scores))))
    for order in orders:
        still = Fraction(1, len(orders))
        for c in order:
            heads = x ** (max(scores) - scores[c])
            chances[c] += still * heads
            still *= 1 - heads
    return chances


def scores_of(predictions, labels):
    return [sum(p == y for p, y in zip(row, labels, strict=True)) for row in predictions]


def one_sided(scores, x):
    """Planted: the rate ε, as if all scores moved the same way."""
    return channel(scores, x * x)


def sharper(scores, x):
    """Planted: noise 2% too small."""
    return channel(scores, Fraction(math.exp(1.02 * math.log(x))))


def worst_ratio(one_law, x, rows, candidates, classes):
    """Over all tables of predictions, all labels and all replacements of the first label."""
    worst = Fraction(0)
    for flat in itertools.product(range(classes), repeat=rows * candidates):
        predictions = [flat[c * rows : (c + 1) * rows] for c in range(candidates)]
        for labels in itertools.product(range(classes), repeat=rows):
            here = one_law(scores_of(predictions, labels), x)
            for other in range(classes):
                there = one_law(scores_of(predictions, (other, *labels[1:])), x)
                worst = max(worst, *(p / q for p, q in zip(here, there, strict=True)))
    return worst


@pytest.mark.parametrize(("rows", "candidates", "classes"), [(2, 2, 2), (3, 2, 2), (1, 3, 3), (2, 3, 2), (1, 4, 2)])
@pytest.mark.parametrize("x", [Fraction(1, 2), Fraction(9, 10)])
def test_no_ratio_exceeds_epsilon(rows, candidates, classes, x):
    assert worst_ratio(channel, x, rows, candidates, classes) <= 1 / x**2


def test_the_bound_is_met_and_the_exact_check_finds_planted_bugs():
    x = Fraction(1, 2)
    assert worst_ratio(channel, x, 2, 2, 2) == 1 / x**2
    assert worst_ratio(one_sided, x, 2, 2, 2) > 1 / x**2
    assert worst_ratio(sharper, x, 2, 2, 2) > 1 / x**2


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.floats(0.0, 5.0))
@settings(max_examples=50)
def test_stated_chances_are_the_law(scores, epsilon):
    stated = BestCandidate(np.zeros((len(scores), 1), int), 2, epsilon).chances(scores)
    exact = [float(p) for p in channel(scores, Fraction(math.exp(-epsilon / 2)))]
    assert np.allclose(stated, exact, atol=1e-12)
    assert stated.sum() == pytest.approx(1.0)


# -- the sampler ----------------------------------------------------------------------------------------------------

LABELS = np.array([0, 1, 1, 0, 1, 0], dtype=np.uint8)
# Right on 6, 5, 4 and 4 rows.
PREDICTIONS = np.array([LABELS, 1 - LABELS, 1 - LABELS, 1 - LABELS], dtype=np.int64)
PREDICTIONS[1, :5], PREDICTIONS[2, :4], PREDICTIONS[3, 2:] = LABELS[:5], LABELS[:4], LABELS[2:]


def winners(epsilon, draws, rng):
    """How often each candidate wins, many choices at once; `sample` itself takes a hundred times as long."""
    scores = np.count_nonzero(PREDICTIONS == LABELS, axis=1)
    return np.bincount(permute_and_flip(np.tile(scores, (draws, 1)), epsilon, rng), minlength=len(scores))


class FirstOfTheHeads(BestCandidate):
    """Planted: ties go to the lower number."""

    def sample(self, labels, rng):
        scores = np.count_nonzero(self.predictions == labels, axis=1)
        behind = scores.max() - scores
        rate = Fraction(self.epsilon) / 2
        return int(exp_coins(rng, behind * float(rate), lambda c: rate * int(behind[c])).argmax())


@pytest.mark.parametrize("epsilon", [0.7, 2.0])
def test_a_million_draws_follow_the_law(epsilon):
    """False alarm: 1e-9 each (`follows`)."""
    stated = BestCandidate(PREDICTIONS, 2, epsilon).chances([6, 5, 4, 4])
    assert follows(winners(epsilon, 2_000_000, SecureRandom(seed=1)), stated)
    # Planted: noise 2% too small.
    assert not follows(winners(1.02 * epsilon, 2_000_000, SecureRandom(seed=1)), stated)


@pytest.mark.parametrize(("kind", "right"), [(BestCandidate, True), (FirstOfTheHeads, False)])
def test_sample_itself_follows_the_law(kind, right):
    ask, rng = kind(PREDICTIONS, 2, 1.0), SecureRandom(seed=2)
    counts = np.bincount([ask.sample(LABELS, rng) for _ in range(30_000)], minlength=4)
    assert follows(counts, ask.chances([6, 5, 4, 4])) == right


class HalfPrice(BestCandidate):
    """Planted: says half of what it costs."""

    def event(self):
        return PureDP(self.epsilon / 2)


def test_the_public_check_accepts_it_and_catches_half_the_price():
    ours, theirs = [0, 0, 0], [0, 0, 1]
    predictions = [[0, 0, 0], [1, 1, 1]]
    check_mechanism(BestCandidate(predictions, 2, 2.0), ours, theirs, 2, draws=4000)
    with pytest.raises(ContractError):
        check_mechanism(HalfPrice(predictions, 2, 2.0), ours, theirs, 2, draws=4000)


# -- as a mechanism -------------------------------------------------------------------------------------------------


def test_a_vault_charges_epsilon_for_the_rows_asked():
    vault = LabelVault(LABELS, 2)
    winner = vault.release(BestCandidate(PREDICTIONS[:, :4], 2, 50.0), rows=[0, 1, 2, 3])
    # All but the last are right on all four rows or on two.
    assert winner in (0, 1, 2)
    assert vault.certificate().epsilon == 50.0
    assert [group.rows for group in vault.ledger.groups() if group.queries] == [4]


def test_no_noise_is_the_best_and_ties_are_fair():
    ask, rng = BestCandidate(PREDICTIONS[1:], 2, math.inf), SecureRandom(seed=3)
    assert {ask.sample(LABELS, rng) for _ in range(20)} == {0}
    tied = BestCandidate(PREDICTIONS[2:], 2, math.inf)
    counts = np.bincount([tied.sample(LABELS, rng) for _ in range(4000)], minlength=2)
    assert follows(counts, np.array([0.5, 0.5]))


def test_pieces_do_not_matter(monkeypatch):
    monkeypatch.setattr("labeldp.mechanisms.selection._ROWS_AT_ONCE", 2)
    assert BestCandidate(PREDICTIONS, 2, math.inf).sample(LABELS, SecureRandom(seed=4)) == 0


@pytest.mark.parametrize(
    ("predictions", "classes", "epsilon", "message"),
    [
        ([0, 1], 2, 1.0, "shape"),
        ([], 2, 1.0, "shape"),
        ([[0.5, 1.0]], 2, 1.0, "type"),
        ([[0, 2]], 2, 1.0, "1 entries outside 0 to 1"),
        ([[0, 1]], 2, -1.0, "epsilon"),
    ],
)
def test_bad_settings_are_refused(predictions, classes, epsilon, message):
    with pytest.raises(ValueError, match=message):
        BestCandidate(predictions, classes, epsilon)


def test_other_data_is_refused():
    ask = BestCandidate([[0, 1]], 2, 1.0)
    with pytest.raises(ValueError, match="2 rows, the data 3"):
        ask.fits(3, 2)
    with pytest.raises(ValueError, match="num_classes"):
        ask.fits(2, 3)


def test_extremes():
    assert BestCandidate([[0, 1]], 2, 0.0).sample(np.array([1, 0], dtype=np.uint8), SecureRandom()) == 0
    assert BestCandidate(np.zeros((3, 0), int), 2, 1.0).chances([0, 0, 0]) == pytest.approx([1 / 3] * 3)
    assert BestCandidate([[0]], 1, 1e300).sample(np.array([0], dtype=np.uint8), SecureRandom()) == 0
