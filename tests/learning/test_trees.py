"""Trees as plain arrays: what they score is what the booster scores, and what makes no forest is refused."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load, save
from sklearn.ensemble import HistGradientBoostingClassifier

from labeldp.learning.trees import Forest


def table(rows, seed=0):
    chance = np.random.default_rng(seed)
    found = chance.normal(size=(rows, 5))
    # Ties with thresholds, and a column that is nearly all missing.
    found[:, 1] = found[:, 1].round(1)
    found[chance.random(found.shape) < 0.1] = np.nan
    found[chance.random(rows) < 0.9, 4] = np.nan
    return found


def booster(classes, rows=2000, max_iter=20, **settings):
    x = table(rows)
    shown = np.nan_to_num(x, nan=0.3)
    y = (3 * np.abs(shown[:, 0] + shown[:, 1] * shown[:, 4])).astype(int) % classes
    return HistGradientBoostingClassifier(max_iter=max_iter, random_state=0, **settings).fit(x, y)


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("settings", [{}, {"max_leaf_nodes": None, "min_samples_leaf": 3}, {"max_depth": 1}])
def test_a_forest_scores_what_the_booster_scores(classes, settings):
    fitted, fresh = booster(classes, max_iter=8, **settings), table(1500, seed=1)
    forest = Forest.from_boosting(fitted)
    expected = fitted.decision_function(fresh).reshape(len(fresh), -1)
    assert forest.num_outputs == (1 if classes == 2 else classes)
    assert len(forest.roots) == 8 * forest.num_outputs
    np.testing.assert_allclose(forest.scores(fresh), expected, rtol=0, atol=1e-9)


def test_missing_numbers_in_columns_that_had_none_go_where_the_booster_sends_them():
    x = np.random.default_rng(0).normal(size=(500, 3))
    fitted = HistGradientBoostingClassifier(max_iter=5).fit(x, x[:, 0] > 0.4)
    holes = table(200)[:, :3]
    np.testing.assert_allclose(
        Forest.from_boosting(fitted).scores(holes)[:, 0], fitted.decision_function(holes), rtol=0, atol=1e-9
    )


def test_rows_are_scored_alike_whatever_their_number(monkeypatch):
    forest, fresh = Forest.from_boosting(booster(3)), table(300)
    whole = forest.scores(fresh)
    monkeypatch.setattr("labeldp.learning.trees._PAIRS", 1)
    np.testing.assert_allclose(forest.scores(fresh), whole, rtol=0, atol=1e-12)
    assert forest.scores(fresh[:0]).shape == (0, 3)


def test_a_forest_comes_back_from_a_file():
    forest, fresh = Forest.from_boosting(booster(3)), table(300)
    again = Forest.from_arrays(load(save(forest.arrays())))
    np.testing.assert_array_equal(again.scores(fresh), forest.scores(fresh))


def test_a_tree_without_a_split_is_its_leaf():
    lone = HistGradientBoostingClassifier(max_iter=2).fit(np.zeros((50, 2)), np.arange(50) % 2)
    assert Forest.from_boosting(lone).scores(np.zeros((3, 2))).tolist() == [[0.0]] * 3


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("left", lambda a: np.where(a > 0, 0, a)),  # a walk that does not end
        ("right", lambda a: a + (1 << 20)),
        ("right", lambda a: np.full_like(a, -1)),
        ("feature", lambda a: a - (1 << 20)),
        ("roots", lambda a: a - 1),
        ("outputs", lambda a: a + 3),
        ("value", lambda a: a[1:]),
    ],
)
def test_arrays_that_make_no_forest_are_refused(name, change):
    arrays = Forest.from_boosting(booster(3)).arrays()
    with pytest.raises(ValueError, match="make no forest"):
        Forest.from_arrays({**arrays, name: change(arrays[name])})
    with pytest.raises(ValueError, match=f"{name}.* of a forest are missing"):
        Forest.from_arrays({key: array for key, array in arrays.items() if key != name})


def test_what_cannot_be_converted_or_scored_is_refused():
    with pytest.raises(ValueError, match="is not fitted"):
        Forest.from_boosting(HistGradientBoostingClassifier())
    x = np.arange(60)[:, None] % 3
    with pytest.raises(ValueError, match="splits on categories"):
        Forest.from_boosting(HistGradientBoostingClassifier(categorical_features=[0], max_iter=2).fit(x, x[:, 0] == 1))
    with pytest.raises(ValueError, match="at least 5 features"):
        Forest.from_boosting(booster(2)).scores(np.zeros((3, 2)))
