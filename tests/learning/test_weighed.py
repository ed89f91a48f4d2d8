"""Columns are weighed by what one noisy moment says of them: post-processing, honest, and only where it is likelier."""

import dataclasses

import torch

from labeldp.features.extract import gram_of
from labeldp.features.kernels import random_cosines
from labeldp.learning.heads import eigenbasis
from labeldp.learning.tuning import Plan, class_sums, mock_release, tune
from labeldp.learning.weighed import weighed

ROWS, TEST, COLUMNS = 4000, 2000, 8
X = torch.randn(ROWS + TEST, COLUMNS, generator=torch.Generator().manual_seed(0))
# The label is what two of eight columns say together.
CROSSED = (X[:, 2] * X[:, 5] > 0).long()


def learnt(labels, noise=2.0, rank=150, classes=2):
    """Return what weighing finds, the linear head's weights, φ of all rows, the moment and Φ'Φ."""
    lifted = random_cosines(X[:ROWS], 300, seed=1)(X)
    tuned = tune(lifted[:ROWS], classes, noise, plans=[Plan(rank)], clusterings=2, draws=1)
    turned = tuned.basis(lifted)
    noisy = mock_release(class_sums(turned[:ROWS], labels[:ROWS], classes), noise, ROWS, seed=3)
    axes = eigenbasis(gram_of(turned[:ROWS]))
    constant = tuned.basis.constant_column
    found = weighed(
        noisy, turned[:ROWS], X[:ROWS], X[:ROWS], torch.arange(COLUMNS), torch.ones(COLUMNS), axes, tuned.scales[0],
        constant=constant, seed=1,
    )  # fmt: skip
    return found, tuned.fit(noisy, turned[:ROWS])(lifted[ROWS:]), turned[ROWS:]


def right(scores, labels):
    return float((scores.argmax(dim=1) == labels[ROWS:]).double().mean())


def test_columns_that_matter_together_are_found_and_teach_more_than_a_linear_head():
    found, linear, turned = learnt(CROSSED)
    scores = found.logits(X[ROWS:], turned)
    assert right(scores, CROSSED) > max(0.85, right(linear, CROSSED) + 0.05)
    heights = found.turn.norm(dim=1)
    assert set(heights.topk(2).indices.tolist()) == {2, 5}
    assert heights[[2, 5]].min() > 2 * heights[[0, 1, 3, 4, 6, 7]].max()


def test_probabilities_are_honest():
    chances = torch.sigmoid(3 * X[:, 2] * X[:, 5])
    labels = torch.bernoulli(chances, generator=torch.Generator().manual_seed(5)).long()
    found, _, turned = learnt(labels)
    scores = found.logits(X[ROWS:], turned)
    losses = [float(torch.nn.functional.cross_entropy(t * scores, labels[ROWS:])) for t in (0.5, 1.0, 2.0)]
    assert losses[1] == min(losses)
    assert losses[1] < 0.6


def test_noise_is_given_no_weights():
    coins = torch.randint(2, (ROWS + TEST,), generator=torch.Generator().manual_seed(2))
    assert learnt(coins)[0] is None
    # Nor is a label that noise hides.
    assert learnt(CROSSED, noise=300.0, rank=30)[0] is None


def test_more_directions_than_cosines_take_the_other_way_to_the_same_eigenvalues(monkeypatch):
    monkeypatch.setattr("labeldp.learning.weighed._FEW_COSINES", 200)
    found, _, turned = learnt(CROSSED, noise=0.3, rank=300)
    assert right(found.logits(X[ROWS:], turned), CROSSED) > 0.93


def test_several_classes():
    labels = (X[:, 0] > 0).long() + (X[:, 1].abs() > 0.7).long()
    found, linear, turned = learnt(labels, classes=3)
    scores = found.logits(X[ROWS:], turned)
    assert right(scores, labels) > right(linear, labels)
    assert scores.shape == (TEST, 3)
    assert all(torch.is_tensor(value) for value in dataclasses.asdict(found).values())


def test_effects_that_add_up_are_beneath_the_kernel_and_only_where_they_are():
    chance = torch.Generator().manual_seed(7)
    labels = (X @ torch.randn(COLUMNS, generator=chance) + torch.randn(len(X), generator=chance) > 0).long()
    found, linear, turned = learnt(labels, noise=6.0)
    assert found.plain.abs().amax() > 0
    scores = found.logits(X[ROWS:], turned)
    assert right(scores, labels) > right(linear, labels)
    # Without them the scores are those of other probabilities: they are no ornament.
    without = dataclasses.replace(found, plain=torch.zeros_like(found.plain)).logits(X[ROWS:], turned)
    assert right(without, labels) < right(scores, labels) - 0.02
    crossed, _, _ = learnt(CROSSED)
    assert crossed.plain.abs().amax() == 0
