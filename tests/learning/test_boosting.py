"""Trees on noisy histograms: signal is learnt, noise is not, and plain arrays score as the trees do."""

import numpy as np
import pytest

from labeldp.learning.boosting import Histogram, boost, cut, forest_of

N = 4000


def rows_of(seed=0):
    rng = np.random.default_rng(seed)
    category = np.eye(4)[rng.integers(0, 5, size=N) % 4] * (rng.random(N) < 0.9)[:, None]
    return np.concatenate([rng.normal(size=(N, 2)), category], axis=1)


def histogram(rows, labels, classes, features, splits, noise=0.0, bins=8, seed=0):
    column, node = cut(rows, features, bins), np.zeros(len(rows), dtype=np.int64)
    for feature, threshold in splits:
        node = 2 * node + (rows[:, feature] > threshold)
    leaf = node * column.size + column.bins(rows)
    leaves = column.size << len(splits)
    sums = np.stack([np.bincount(leaf[labels == k], minlength=leaves) for k in range(classes)]).astype(float)
    drawn = noise * np.random.default_rng(seed).normal(size=sums.shape)
    return Histogram(splits, column, leaf, sums + drawn - drawn.mean(axis=0), noise**2 * (1 - 1 / classes))


def boosted(trees, classes, passes=6):
    scores = np.zeros((N, classes))
    boost(trees, scores, passes, 0.5)
    return scores


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_forest_scores_as_the_trees_do(classes):
    rows, labels = rows_of(), np.random.default_rng(1).integers(0, classes, size=N)
    labels = np.where(rows[:, 0] > 0.3, 0, labels)
    trees = [
        histogram(rows, labels, classes, (0,), []),
        histogram(rows, labels, classes, (2, 3, 4, 5), [(1, 0.2)], noise=5.0),
        histogram(rows, labels, classes, (1,), [(0, 0.0), (3, 0.5)], noise=5.0, bins=5),
    ]
    scores = boosted(trees, classes)
    baseline = np.linspace(0.0, 1.0, classes)
    found = forest_of(trees, baseline).scores(rows)
    assert np.allclose(found, scores + baseline - (scores + baseline)[:, :1], atol=1e-9)


def test_a_tree_of_two_levels_learns_what_no_column_shows_alone():
    rows = rows_of()
    labels = ((rows[:, 0] > 0) ^ (rows[:, 1] > 0)).astype(int)
    alone = boosted([histogram(rows, labels, 2, (f,), [], noise=20.0) for f in (0, 1)], 2)
    together = boosted([histogram(rows, labels, 2, (1,), [(0, 0.0)], noise=20.0)], 2)
    assert (alone.argmax(axis=1) == labels).mean() < 0.6
    assert (together.argmax(axis=1) == labels).mean() > 0.9


def test_what_noise_alone_gives_is_taken_for_noise():
    """Labels without a feature behind them: the values stay near 0 however large the noise, and the gain is small."""
    rows, labels = rows_of(), np.random.default_rng(2).integers(0, 2, size=N)
    for noise in (1.0, 30.0, 1000.0):
        trees = [histogram(rows, labels, 2, (0,), [(1, 0.0)], noise, seed=s) for s in range(20)]
        for tree in trees:
            boosted([tree], 2)
        assert np.mean([np.square(tree.values).mean() for tree in trees]) < 0.02
        assert np.median([tree.gain for tree in trees]) < 1.0


def test_more_noise_shrinks_values_more():
    rows = rows_of()
    labels = (rows[:, 0] + np.random.default_rng(3).logistic(size=N) > 0).astype(int)
    lengths = []
    for noise in (0.0, 100.0, 1000.0):
        trees = [histogram(rows, labels, 2, (0,), [], noise, seed=s) for s in range(10)]
        lengths.append(np.mean([np.abs(boosted([tree], 2)).mean() for tree in trees]))
    assert lengths[0] > lengths[1] > lengths[2]


def test_probabilities_of_exact_sums_are_those_of_the_leaves():
    rows = rows_of()
    labels = (np.random.default_rng(4).random(N) < 0.2 + 0.6 * (rows[:, 0] > 0)).astype(int)
    scores = boosted([histogram(rows, labels, 2, (0,), [], bins=2)], 2, passes=30)
    likely = 1 / (1 + np.exp(scores[:, 0] - scores[:, 1]))
    assert likely[rows[:, 0] > 0.1].mean() == pytest.approx(0.8, abs=0.03)
    assert likely[rows[:, 0] < -0.1].mean() == pytest.approx(0.2, abs=0.03)
