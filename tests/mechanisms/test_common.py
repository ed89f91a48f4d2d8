"""Exact thresholds of randomized response, checked on the integers themselves."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.mechanisms import common
from labeldp.mechanisms.common import exp_rounded_down, response_thresholds


def thresholds_are_private(epsilon, set_size, bits=64):
    """No response's odds exceed e^ε: exact rational arithmetic."""
    thresholds = response_thresholds(epsilon, set_size, bits)
    if thresholds is None:
        return True
    gap, width = thresholds
    fills = gap >= 0 and width >= 1 and gap + set_size * width == 2**bits
    return fills and Fraction(gap + width, width) <= exp_rounded_down(epsilon)


@given(epsilon=st.floats(0, 50), k=st.integers(1, 10_000))
@settings(max_examples=300, deadline=None)
def test_thresholds_never_exceed_epsilon(epsilon, k):
    assert thresholds_are_private(epsilon, k)
    with mpmath.workdps(120):
        assert mpmath.mpf(exp_rounded_down(epsilon).numerator) / exp_rounded_down(epsilon).denominator <= mpmath.exp(
            mpmath.mpf(epsilon)
        )


@given(epsilon=st.floats(1e-6, 40), k=st.integers(2, 10_000))
@settings(max_examples=200, deadline=None)
def test_thresholds_waste_next_to_nothing(epsilon, k):
    gap, width = response_thresholds(epsilon, k)
    keep = (gap + width) / 2**64
    assert keep == pytest.approx(1 / (1 + (k - 1) * math.exp(-epsilon)), rel=1e-9)


def test_thresholds_at_the_edges():
    assert response_thresholds(1.0, 1) is None
    assert response_thresholds(0.0, 2) == (0, 2**63)
    assert response_thresholds(0.0, 3) is None
    assert response_thresholds(1e-30, 10) is None
    assert response_thresholds(700.0, 3) == (2**64 - 3, 1)


@pytest.mark.parametrize("k", range(2, 12))
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.3, 1.0, 2.0, 5.0])
def test_eight_bit_analogue_by_counting_every_word(epsilon, k):
    thresholds = response_thresholds(epsilon, k, bits=8)
    assert thresholds_are_private(epsilon, k, bits=8)
    if thresholds is None:
        return
    gap, width = thresholds
    responses = [0 if u < gap else (u - gap) // width for u in range(256)]
    owned = np.bincount(responses, minlength=k)
    assert len(owned) == k
    assert (owned[1:] == width).all()
    assert 1 <= owned[0] / width <= math.exp(epsilon)


def test_a_width_rounded_down_would_break_the_promise(monkeypatch):
    """The planted bug: floor instead of ceiling gives odds above e^ε on short words, and the check says so."""
    monkeypatch.setattr(common.math, "ceil", math.floor)
    assert not all(thresholds_are_private(1.0, k, bits=8) for k in range(2, 12))
