"""The event of voting teachers: closed forms, reference values and JSON."""

from __future__ import annotations

import json
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeldp.budgets.calibrate import voting_for_budget
from labeldp.core import accountant, inverse
from labeldp.core.certificate import certify, parse, verify
from labeldp.core.events import (
    Gaussian,
    PureDP,
    Query,
    TeacherVoting,
    event_from_json,
    event_to_json,
)
from labeldp.core.ledger import Group

EVENTS = [TeacherVoting(500.0, 250, 800.0, 10_000), TeacherVoting(40.0, 100, None, 100), TeacherVoting(2.0, 1, 1.0, 3)]


@pytest.mark.parametrize("event", EVENTS, ids=repr)
def test_it_is_the_composition_of_its_gaussians(event):
    """One Gaussian of distance 1/s₁ per query and one of distance √2/s per answer."""
    parts = [Query(Gaussian(event.noise_std, math.sqrt(2)), event.responses)]
    if event.threshold_std is not None:
        parts.append(Query(Gaussian(event.threshold_std, 1.0), event.queries))
    for delta in (1e-10, 1e-5, 0.1):
        assert accountant.epsilon([Query(event)], delta) == pytest.approx(accountant.epsilon(parts, delta), rel=1e-12)
    assert inverse.delta([Query(event)], 0.3) == pytest.approx(inverse.delta(parts, 0.3), rel=1e-9)
    assert accountant.accountant_name(((Query(event, 3), Query(Gaussian(1.0, 1.0))),), 1e-5) == "Gaussian closed form"


@pytest.mark.parametrize("event", EVENTS, ids=repr)
def test_tails_and_profile_belong_together(event):
    eps = np.linspace(0, 3, 60)
    p, q = event.tail(eps)
    np.testing.assert_allclose(event.profile(eps), p - np.exp(eps) * q, rtol=1e-6, atol=1e-15)
    z = mpmath.mpf(event.mu) / 2 - mpmath.mpf("0.3") / event.mu
    with mpmath.workdps(40):
        exact = mpmath.ncdf(z) - mpmath.exp(mpmath.mpf("0.3")) * mpmath.ncdf(z - event.mu)
    assert event.profile(0.3)[0] == pytest.approx(float(exact), rel=1e-9)
    assert not event.free


@pytest.mark.parametrize(
    ("times", "std", "expected"), [(100, 40.0, 1.3564673644573), (1000, 100.0, 1.76005714951388108)]
)
def test_answers_alone_cost_what_the_exact_gaussian_profile_says(times, std, expected):
    """Reference: μ = √(2T)/s at δ = 1e-5, in high precision; Rényi conversions give 1.478 and 1.914 instead."""
    event = TeacherVoting(std, times, None, times)
    assert event.mu == pytest.approx(math.sqrt(2 * times) / std, rel=1e-15)
    assert accountant.epsilon([Query(event)], 1e-5) == pytest.approx(expected, rel=1e-11)


def test_a_comparison_costs_its_renyi_divergence():
    """Order 8, s₁ = 50: λ/(2s₁²) = 0.0016 for each query, and λ/s² for each answer."""
    with_ten, with_twenty = (TeacherVoting(40.0, 3, 50.0, queries) for queries in (10, 20))
    assert 8 * (with_twenty.mu**2 - with_ten.mu**2) / 2 == pytest.approx(10 * 0.0016, rel=1e-12)
    assert 8 * (with_ten.mu**2 / 2) - 10 * 0.0016 == pytest.approx(3 * 8 / 40.0**2, rel=1e-12)


@pytest.mark.parametrize("event", EVENTS, ids=repr)
def test_certificates_carry_and_recompute_it(event):
    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event
    secure = "operating-system entropy, AES-256-CTR"
    certificate = certify((Group(10, ((Query(event), Query(PureDP(0.1))),)),), 1e-5, noise=secure, seeded=False)
    assert verify(parse(certificate.dumps())) == ()
    record = event_to_json(event)
    assert set(record) == {"kind", "noise_std", "answers", "threshold_std", "queries"}
    with pytest.raises(ValueError, match="responses must be an integer"):
        event_from_json({**record, "answers": 1.0})


@given(
    epsilon=st.floats(0.01, 8),
    queries=st.integers(1, 10**5),
    share=st.floats(0, 1),
    ratio=st.none() | st.floats(0.1, 10),
)
def test_noise_for_a_budget_is_the_least(epsilon, queries, share, ratio):
    responses = queries if ratio is None else max(1, int(share * queries))
    event = voting_for_budget(epsilon, 1e-5, queries, responses, ratio)
    spent = accountant.epsilon([Query(event)], 1e-5)
    assert epsilon * (1 - 1e-10) <= spent <= epsilon
    assert event.threshold_std is None if ratio is None else event.threshold_std == ratio * event.noise_std


def test_bad_numbers():
    good = {"noise_std": 2.0, "responses": 5, "threshold_std": 3.0, "queries": 10}
    for name, value, said in [
        ("noise_std", 0.0, "noise_std must be greater than 0"),
        ("noise_std", math.nan, "noise_std"),
        ("threshold_std", 0.0, "For no threshold give None"),
        ("threshold_std", None, "as many without a threshold"),
        ("responses", 11, "at most the 10 queries"),
        ("responses", True, "integer"),
        ("queries", 0, "queries must be an integer"),
    ]:
        with pytest.raises(ValueError, match=said):
            TeacherVoting(**{**good, name: value})
    with pytest.raises(ValueError, match="ratio"):
        voting_for_budget(1.0, 1e-5, 10, 5, ratio=0.0)
