import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeldp.results.charts import Axis, log_ticks, text_width, ticks

numbers = st.floats(-1e6, 1e6)


@given(numbers, st.floats(1e-6, 1e6), st.integers(2, 10))
def test_ticks_are_few_round_and_inside(low, size, most):
    high = low + size
    if high <= low:
        return
    found = ticks(low, high, most)
    assert 1 <= len(found) <= most
    slack = 1e-6 * size + 1e-9 * abs(low)
    assert all(low - slack <= tick <= high + slack for tick in found)
    steps = [b - a for a, b in pairwise(found)]
    for step in steps:
        lead = step / 10 ** math.floor(math.log10(step) + 1e-6)
        assert min(abs(lead - good) for good in (1, 2, 5, 10)) < 1e-3 + 1e-9 * max(map(abs, found)) / step


@given(st.floats(1e-5, 1e5), st.floats(1.2, 1e8), st.integers(2, 9))
def test_log_ticks_are_few_rise_and_lie_inside(low, factor, most):
    found = log_ticks(low, low * factor, most)
    assert 1 <= len(found) <= most
    assert all(low * (1 - 1e-6) <= tick <= low * factor * (1 + 1e-6) for tick in found)
    assert list(found) == sorted(set(found))


@given(numbers, st.floats(1e-3, 1e6), st.floats(40, 600), st.booleans())
def test_labels_along_an_axis_do_not_touch(low, size, room, percent):
    axis = Axis("x", low, low + size, percent=percent)
    marks = axis.fitting(room, 11.0)
    ends = [
        (axis.share(mark) * room, text_width(label, 11.0) / 2)
        for mark, label in zip(marks, axis.labels(marks), strict=True)
    ]
    for (left, half), (right, other) in pairwise(ends):
        assert left + half < right - other


@pytest.mark.parametrize(("low", "high", "log"), [(1, 1, False), (2, 1, False), (0, 1, True), (0, math.inf, False)])
def test_axes_without_room_are_refused(low, high, log):
    with pytest.raises(ValueError, match="low="):
        Axis("x", low, high, log=log)


def test_ticks_of_whole_numbers_are_whole():
    assert Axis("epoch", 1, 4, whole=True).fitting(300, 11.0) == (1.0, 2.0, 3.0, 4.0)
    assert Axis("epoch", 1, 1.5, whole=True).marks(5)
