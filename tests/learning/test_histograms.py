"""Columns are found again in a table's features, and their bins are what trees ask for."""

import numpy as np
import pytest

from labeldp.features.tables import Table
from labeldp.learning.boosting import columns, cut


def table(rows=3000, missing=False):
    rng = np.random.default_rng(0)
    numeric = np.stack([rng.normal(size=rows), rng.integers(0, 90, size=rows), rng.exponential(size=rows)], axis=1)
    if missing:
        numeric[rng.random(rows) < 0.1, 0] = np.nan
    categorical = np.stack([rng.integers(0, 5, size=rows), rng.integers(0, 3, size=rows)], axis=1).astype(str)
    return numeric, categorical


@pytest.mark.parametrize("missing", [False, True])
def test_numbers_categories_and_missing_marks_are_columns_and_bins_and_steps_are_not(missing):
    found = Table(bins=32, steps=8, scale=0.5, clip=4.0).fit(table(missing=missing))
    features = found.features(table(missing=missing)).numpy()
    sizes = [len(column) for column in columns(features)]
    assert sizes == ([1, 1, 1, 1, 5, 3] if missing else [1, 1, 1, 5, 3])


def test_constant_features_are_no_columns():
    rows = np.random.default_rng(0).normal(size=(50, 3))
    rows[:, 1], rows[:, 2] = 0.0, 7.0
    assert columns(rows) == ((0,),)


def test_flags_that_meet_in_a_row_are_two_columns():
    flags = np.array([[1, 0, 1], [0, 1, 0], [1, 0, 0], [0, 1, 1]])
    assert columns(flags) == ((0, 1), (2,))


@pytest.mark.parametrize("bins", [2, 5, 16])
def test_bins_are_the_cuts_that_a_row_is_beyond(bins):
    rows = np.random.default_rng(1).choice(np.arange(40.0), size=(500, 1))
    column = cut(rows, (0,), bins)
    assert column.size <= bins
    assert np.array_equal(column.bins(rows), sum(rows[:, f] > t for f, t in column.cuts))
    assert np.bincount(column.bins(rows), minlength=column.size).min() > 0


def test_a_category_has_a_bin_for_each_value_and_one_for_none():
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    column = cut(rows, (0, 1), 8)
    assert (column.edges, column.size, column.bins(rows).tolist()) == (None, 3, [0, 1, 2])
    assert column.cuts == ((0, 0.5), (1, 0.5))


@pytest.mark.parametrize("frequent", [0.0, 2.0, 5.0])
def test_a_number_that_is_nearly_always_the_same_is_still_cut(frequent):
    rows = np.full((1000, 1), frequent)
    rows[:6, 0] = np.arange(6)
    column = cut(rows, (0,), 4)
    assert column.size >= 2
    assert np.bincount(column.bins(rows), minlength=column.size).min() > 0
