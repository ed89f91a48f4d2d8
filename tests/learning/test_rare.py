"""Probabilities of rare classes from a moment: their level and their slope are those of the labels."""

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from labeldp.features.extract import gram_of
from labeldp.learning.heads import eigenbasis, levelled, ridge_head, softmax_head
from labeldp.releases import NoisyMoments


def problem(rows=20_000, share=0.01, seed=0):
    """Rows with a constant, and a rare class whose log-odds rise by 3 with the first feature."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator)
    odds = 3 * x[:, 0] + np.log(share / (1 - share)) - 4.5
    y = (torch.rand(rows, generator=generator) < odds.sigmoid()).long()
    return torch.cat([x, torch.ones(rows, 1)], dim=1) / 5, y


def moment(rows, y, std, seed=1):
    noise = np.random.default_rng(seed).normal(size=(2, rows.shape[1])) * std
    value = torch.zeros(2, rows.shape[1], dtype=torch.float64).index_add_(0, y, rows.double()).numpy()
    return NoisyMoments(value + noise - noise.mean(axis=0), value.sum(axis=0), len(rows), "none", std, 1.0)


@pytest.mark.parametrize("head", [ridge_head, softmax_head])
def test_without_noise_the_probabilities_have_the_sum_and_the_slope_of_the_labels(head):
    rows, y = problem()
    weight, slope = levelled(head, moment(rows, y, 0.0), rows, eigenbasis(gram_of(rows)), 3)
    likely = torch.softmax(rows @ weight.T, dim=1)[:, 1]
    assert slope > 0
    assert float(likely.sum()) == pytest.approx(int(y.sum()), rel=0.02)
    # The labels' mean score is the expected one: the condition of the largest likelihood.
    scores = rows @ (weight[1] - weight[0])
    assert float((likely * scores).sum()) == pytest.approx(
        float(scores[y == 1].sum()), abs=0.05 * float(scores.std()) * int(y.sum())
    )


def test_the_scale_for_accuracy_hides_a_rare_class_and_levels_show_it():
    rows, y = problem()
    noisy = moment(rows, y, 2.0)
    weight, _ = levelled(softmax_head, noisy, rows, eigenbasis(gram_of(rows)), 3)
    share = float(y.float().mean())
    weighted = (rows @ (weight[1] - weight[0]) + np.log((1 - share) / share)) > 0
    recall, passed = weighted[y == 1].float().mean(), (~weighted[y == 0]).float().mean()
    assert float(recall + passed) / 2 > 0.85


def test_a_class_that_is_lost_in_the_noise_keeps_a_finite_level():
    rows, y = problem()
    noisy = moment(rows, y, 500.0, seed=3)
    weight, slope = levelled(softmax_head, noisy, rows, eigenbasis(gram_of(rows)), 3)
    assert torch.isfinite(weight).all()
    assert slope >= 0


def test_classes_that_a_head_separates_are_not_all_called_one():
    """Noise may ask for more than any slope reaches; slope and levels then grew until every row was of one class."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(1500) % 2
    x = torch.stack([2.0 * y - 1 + 0.05 * torch.randn(1500, generator=generator), torch.ones(1500)], dim=1) / 3
    for seed in range(12):
        noisy = moment(x, y, 6.0, seed)
        weight, slope = levelled(softmax_head, noisy, x, eigenbasis(gram_of(x)), 1)
        assert 0 < slope < 1e3, seed
        assert (x @ weight.T).argmax(dim=1).eq(y).float().mean() > 0.95, seed
