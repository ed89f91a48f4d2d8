import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labeldp.results.measure import auc


def by_pairs(scores, labels):
    ones, zeros = np.asarray(scores)[labels == 1], np.asarray(scores)[labels == 0]
    difference = ones[:, None] - zeros[None, :]
    return ((difference > 0).sum() + 0.5 * (difference == 0).sum()) / difference.size


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1)), min_size=2, max_size=40))
def test_equals_counting_all_pairs_with_ties(rows):
    scores, labels = (np.array(column) for column in zip(*rows, strict=True))
    if labels.min() == labels.max():
        with pytest.raises(ValueError, match="needs both"):
            auc(scores, labels)
    else:
        assert auc(scores, labels) == by_pairs(scores, labels)
        assert auc(-scores, labels) == pytest.approx(1 - auc(scores, labels))


def test_perfect_reversed_and_constant_scores():
    labels = np.array([0, 1, 0, 1, 1])
    assert auc(labels, labels) == 1.0
    assert auc(1 - labels, labels) == 0.0
    assert auc(np.zeros(5), labels) == 0.5


def test_infinite_scores_rank_too_and_tensors_are_taken():
    scores = torch.tensor([-torch.inf, torch.inf, 0.0], requires_grad=True)
    assert auc(scores, torch.tensor([0, 1, 0])) == 1.0


def test_a_large_sample_agrees_with_the_normal_law():
    """Scores N(1, 1) against N(0, 1): AUC = Φ(1/√2) = 0.76025; its error over 2·10^5 rows each is about 0.0011."""
    chance = np.random.default_rng(0)
    labels = np.repeat([0, 1], 200_000)
    assert auc(chance.normal(size=400_000) + labels, labels) == pytest.approx(0.760250, abs=0.006)


@pytest.mark.parametrize(
    ("scores", "labels", "what"),
    [
        ([1.0], [0, 1], "1 entries and labels 2"),
        ([np.nan, 1.0], [0, 1], "1 entries that are not numbers"),
        ([0.0, 1.0], [0, 2], "other than 0 and 1"),
        ([[0.0], [1.0]], [0, 1], "shape"),
        ([], [], "needs both"),
    ],
)
def test_senseless_input_is_refused(scores, labels, what):
    with pytest.raises(ValueError, match=what):
        auc(scores, labels)
