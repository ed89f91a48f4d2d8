"""The statistics of an audit: exact where they can be, never above the truth, and as strong as they are known to be."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom

from labeldp.audit.bounds import LARGEST, lower_bound, p_value, share_at_least, share_at_most


def cap(epsilon, candidates=2):
    return math.exp(epsilon) / (math.exp(epsilon) + candidates - 1)


@given(st.integers(1, 3000), st.data(), st.sampled_from([2, 3, 10, 100]), st.sampled_from([0.5, 0.95, 0.999999]))
def test_without_delta_it_is_clopper_and_pearsons(guesses, data, candidates, confidence):
    correct = data.draw(st.integers(0, guesses))
    limit = beta.ppf(1 - confidence, correct, guesses - correct + 1) if correct else 0.0
    expected = max(0.0, math.log(limit * (candidates - 1) / (1 - limit))) if limit else 0.0
    found = lower_bound(correct, guesses, confidence, candidates=candidates)
    assert found == pytest.approx(min(expected, LARGEST), abs=1e-9)


@pytest.mark.parametrize(
    ("epsilon", "canaries", "expected"),
    [
        (0.5, 1000, 0.271), (0.5, 5000, 0.400), (0.5, 60_000, 0.472),
        (1.0, 1000, 0.775), (1.0, 5000, 0.904), (1.0, 60_000, 0.973),
        (2.0, 1000, 1.77), (2.0, 5000, 1.90), (2.0, 60_000, 1.97),
        (4.0, 1000, 3.56), (4.0, 5000, 3.81), (4.0, 60_000, 3.95),
    ],
)  # fmt: skip
def test_its_power_on_randomized_response_of_ten_classes_is_the_known_one(epsilon, canaries, expected):
    """Two candidates: a guess is made where the answer is one of them; the median outcome, at 95%."""
    guesses = round(canaries * (math.exp(epsilon) + 1) / (math.exp(epsilon) + 9))
    correct = round(guesses * cap(epsilon))
    assert lower_bound(correct, guesses, 0.95) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("epsilon", "expected"), [(0.5, 0.481), (1.0, 0.984), (2.0, 1.987), (4.0, 3.981)])
def test_its_power_among_all_ten_classes_is_the_known_one(epsilon, expected):
    correct = round(60_000 * cap(epsilon, 10))
    assert lower_bound(correct, 60_000, 0.95, candidates=10) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(("epsilon", "guesses"), [(0.0, 7), (0.5, 40), (1.0, 200), (3.0, 200)])
@pytest.mark.parametrize("candidates", [2, 5])
@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_an_honest_mechanism_is_accused_as_rarely_as_promised(epsilon, guesses, candidates, confidence):
    """Exactly, by adding up all outcomes of the worst honest mechanism; and not much more rarely: it is tight."""
    outcomes = np.arange(guesses + 1)
    chances = binom.pmf(outcomes, guesses, cap(epsilon, candidates))
    bounds = [lower_bound(int(v), guesses, confidence, candidates=candidates) for v in outcomes]
    accused = chances[np.array(bounds) > epsilon].sum()
    assert accused <= 1 - confidence + 1e-12
    if guesses >= 200 and epsilon > 0:
        assert accused > 0.2 * (1 - confidence)


@pytest.mark.parametrize("delta", [1e-5, 1e-3, 0.01])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 2.0])
def test_with_delta_the_worst_known_mechanisms_stay_below_it(delta, epsilon):
    """One tells everything with probability δ, the other tells each label with probability δ; answers otherwise."""
    many = 60
    outcomes, responses = np.arange(1, many + 1), cap(epsilon)
    allowed = np.array([p_value(int(v), many, epsilon, delta=delta, canaries=many) for v in outcomes])
    everything = delta + (1 - delta) * binom.sf(outcomes - 1, many, responses)
    each = binom.sf(outcomes - 1, many, delta + (1 - delta) * responses)
    assert (everything <= allowed + 1e-12).all()
    assert (each <= allowed + 1e-12).all()
    assert (np.diff(allowed) <= 1e-12).all()


def test_delta_costs_power_and_more_canaries_cost_more():
    plain = lower_bound(900, 1000, 0.95)
    little, much = (lower_bound(900, 1000, 0.95, delta=1e-5, canaries=m) for m in (1000, 60_000))
    assert plain > little > much > 0


def test_a_formula_written_out_by_hand():
    channel = binom(10, cap(1.0))
    chance = sum(channel.pmf(i) for i in (8, 9, 10))
    worst = max(sum(channel.pmf(8 - j) for j in range(1, i + 1)) / i for i in range(1, 9))
    assert p_value(8, 10, 1.0, delta=0.01, canaries=20) == pytest.approx(chance + 2 * 20 * 0.01 * worst)


@given(st.integers(0, 500), st.integers(1, 500), st.floats(1e-6, 0.5))
def test_limits_of_a_share_hold_it_between_them(count, total, missed):
    count = min(count, total)
    low, high = share_at_least(count, total, missed), share_at_most(count, total, missed)
    assert 0 <= low <= count / total <= high <= 1
    if 0 < count < total:
        assert binom.sf(count - 1, total, low) == pytest.approx(missed, rel=1e-6)
        assert binom.cdf(count, total, high) == pytest.approx(missed, rel=1e-6)


def test_no_guess_and_no_right_guess_prove_nothing():
    assert lower_bound(0, 0, 0.95) == lower_bound(0, 50, 0.95) == 0.0
    assert p_value(0, 50, 1.0) == 1.0
    assert p_value(50, 50, math.inf) == 1.0
    assert lower_bound(10**6, 10**6, 0.95) == pytest.approx(12.72, abs=0.01)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: p_value(3, 2, 1.0), "correct=3"),
        (lambda: p_value(-1, 2, 1.0), "correct=-1"),
        (lambda: p_value(1, 2, 1.0, candidates=1), "candidates=1"),
        (lambda: p_value(1, 2, 1.0, candidates=3, delta=0.1), "candidates=3"),
        (lambda: lower_bound(1, 2, 1.0), "confidence=1.0"),
        (lambda: lower_bound(1, 2, 0.0), "confidence=0.0"),
    ],
)
def test_nonsense_is_refused(call, what):
    with pytest.raises(ValueError, match=what):
        call()
