"""Labels of some rows: from answers, classes, votes and confident teachers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labeldp.core.vault import LabelVault
from labeldp.learning.evidence import Labels, from_classes, from_responses, most_confident, on_rows
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.vectors import LaplaceOneHot


def test_answers_at_their_word():
    vault = LabelVault([0, 1, 2] * 20, num_classes=3)
    noisy = vault.release(RandomizedResponse(1.0, 3))
    labels = from_responses(noisy)
    assert torch.equal(labels.targets.argmax(dim=1), torch.from_numpy(noisy.hard()))
    assert torch.equal(labels.targets.sum(dim=1), torch.ones(60))
    assert torch.equal(labels.rows(), torch.arange(60))


def test_answers_that_are_vectors_and_answers_that_say_nothing():
    vault = LabelVault([0, 1, 2] * 20, num_classes=3)
    noisy = vault.release(LaplaceOneHot(2.0, 3))
    assert torch.equal(from_responses(noisy).targets.argmax(dim=1), torch.from_numpy(noisy.hard()))
    silent = vault.release(RandomizedResponse(0.0, 3))
    assert not from_responses(silent).weights.any()


def test_the_objective_weighs_rows():
    targets = torch.tensor([[0.7, 0.3], [0.0, 1.0], [1.0, 0.0]])
    labels = Labels(targets, torch.tensor([1.0, 3.0, 0.0]))
    logits = torch.randn(2, 2, generator=torch.Generator().manual_seed(0))
    logs = torch.log_softmax(logits, dim=1)
    expected = torch.stack((-0.5 * (targets[0] * logs[0]).sum(), -1.5 * logs[1, 1]))
    assert torch.allclose(labels.objective()(logits, torch.tensor([0, 1])), expected)
    assert labels.objective()(logits[:1], torch.tensor([2])).item() == 0


def test_only_drops_labels():
    labels = from_classes([0, 1, 1], 2).only(torch.tensor([True, False, True]))
    assert labels.rows().tolist() == [0, 2]
    assert len(labels) == 3
    assert labels.num_classes == 2


@given(st.lists(st.integers(-1, 4), min_size=1, max_size=30))
def test_classes_come_back(classes):
    labels = from_classes(classes, 5)
    back = torch.where(labels.weights > 0, labels.targets.argmax(dim=1), -1)
    assert back.tolist() == classes
    rows = [i for i, c in enumerate(classes) if c >= 0]
    same = on_rows(rows, [classes[i] for i in rows], len(classes), 5)
    assert torch.equal(same.weights, labels.weights)
    assert torch.equal(same.targets[same.rows()], labels.targets[labels.rows()])


@given(st.integers(0, 500), st.integers(1, 12))
def test_the_surest_of_every_class(seed, per_class):
    p = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(3), size=40)).float()
    labels = most_confident(p, per_class)
    confidence, chosen = p.max(dim=1)
    for c in range(3):
        own = torch.where(chosen == c)[0]
        best = own[confidence[own].argsort(descending=True)[:per_class]]
        kept = torch.where((labels.weights > 0) & (chosen == c))[0]
        assert sorted(kept.tolist()) == sorted(best.tolist())
        if len(kept):
            assert labels.weights[kept].sum().item() == pytest.approx(per_class, rel=1e-5)
    assert torch.equal(labels.targets.argmax(dim=1), chosen)


def test_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="shapes"):
        Labels(torch.zeros(3, 2), torch.zeros(2))
    with pytest.raises(ValueError, match="−1 to 1"):
        from_classes([0, 2], 2)
    with pytest.raises(ValueError, match="same length"):
        on_rows([0, 1], [0], 3, 2)
    with pytest.raises(ValueError, match="rows 0 to 2"):
        on_rows([3], [0], 3, 2)
    with pytest.raises(ValueError, match="per_class"):
        most_confident(torch.ones(2, 2) / 2, 0)
