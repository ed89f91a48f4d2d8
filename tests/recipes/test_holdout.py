"""Rows set aside: chosen without labels, asked once, kept after the draw."""

import inspect
import math

import numpy as np
import pytest

from labeldp import LabelVault
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.recipes.holdout import error_query, ranked, released, rows_set_aside, score_query


@pytest.mark.parametrize(
    ("rows", "holdout", "count"),
    [(999, None, 0), (1000, None, 100), (32_561, None, 3256), (10**6, None, 20_000), (500, 0.1, 50), (500, 7, 7),
     (500, 0, 0), (500, False, 0), (500, 7.0, 7), (5, 0.01, 1)],
)  # fmt: skip
def test_how_many_rows_are_set_aside(rows, holdout, count):
    held = rows_set_aside(rows, holdout, seed=3)
    assert (0 if held is None else len(np.unique(held))) == count
    assert count == 0 or (held.min() >= 0 and held.max() < rows and (np.diff(held) > 0).all())


@pytest.mark.parametrize("holdout", [True, -0.1, 1.5, 500, 501, math.nan, math.inf, "0.1"])
def test_what_is_no_part_is_refused(holdout):
    with pytest.raises(ValueError, match="holdout="):
        rows_set_aside(500, holdout, seed=0)


def test_the_choice_sees_no_label():
    """Its arguments are a number, the option and a seed, and it is a function of them."""
    assert list(inspect.signature(rows_set_aside).parameters) == ["num_rows", "holdout", "seed"]
    same, other = (rows_set_aside(2000, None, seed) for seed in (1, 2))
    assert np.array_equal(same, rows_set_aside(2000, 200, 1))
    assert not np.array_equal(same, other)


def test_bins_hold_like_many_rows_and_are_fewer_where_noise_is_larger():
    chance = np.random.default_rng(0).dirichlet(np.ones(4), 4000)
    groups = [score_query(chance, epsilon).cells.num_groups for epsilon in (0.01, 0.3, 1.0, 4.0)]
    assert groups == sorted(groups)
    assert (groups[0], groups[-1]) == (4, 40)
    query = score_query(chance, 4.0)
    sizes = np.bincount(query.cells.groups, minlength=40).reshape(4, 10)
    assert (np.ptp(sizes, axis=1) <= 1).all()
    assert np.array_equal(query.cells.groups // 10, query.predicted)
    assert score_query(np.full((50, 200), 1 / 200), 1.0).cells.num_groups == 1


def test_ties_are_cut_by_their_order():
    assert ranked(np.zeros(4), np.zeros(4, dtype=int), 2).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("levels", [[0, 255], [128, 128], [255, 255], [0, 0], [3, 250]])
def test_the_grid_holds_every_error(levels):
    query = error_query(np.array(levels), 256, 1.0)
    assert query.grid[0] == -max(levels)
    assert query.grid[-1] == 255 - min(levels)
    assert 0 in query.grid


# -- kept ------------------------------------------------------------------------------------------------------------

CHANCE = np.random.default_rng(1).dirichlet(np.ones(3), 60)


def sealed():
    return LabelVault(np.arange(60) % 3, 3, Budget(1.0))


def test_a_run_that_goes_on_reads_what_was_drawn(tmp_path):
    query = score_query(CHANCE, 1.0)
    first, second = sealed(), sealed()
    drawn, again = released(first, query, tmp_path), released(second, query, tmp_path)
    assert np.array_equal(drawn.cells.counts, again.cells.counts)
    assert (drawn.right, drawn.right_std, drawn.cells.noise_std) == (
        again.right,
        again.right_std,
        again.cells.noise_std,
    )
    assert second.certificate().epsilon == 1.0
    numbers = error_query(np.arange(60), 256, 1.0)
    vaults = [LabelVault(np.arange(60), 256) for _ in range(2)]
    kept = [released(vault, numbers, tmp_path / "numbers").counts for vault in vaults]
    assert np.array_equal(*kept)


def test_other_predictions_are_not_measured_again_and_what_was_paid_is_recorded(tmp_path):
    released(sealed(), score_query(CHANCE, 1.0), tmp_path)
    vault = sealed()
    with pytest.raises(BudgetExceededError, match="cannot pay twice"):
        released(vault, score_query(CHANCE[::-1], 1.0), tmp_path)
    assert vault.certificate().epsilon == 1.0
