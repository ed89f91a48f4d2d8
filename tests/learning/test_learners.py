"""Learning from responses: the way back through the channel, kernels that find their columns, and the judge."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression

from labeldp.core.random import SecureRandom
from labeldp.learning.learners import Kernel, Own, Task, Trees, boosting, choose, corrected, kernel, own, unmixing
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.releases import NoisyLabels

SETTINGS = {"max_leaf_nodes": 8, "learning_rate": 0.2, "min_samples_leaf": 20}


def answered(labels, classes, epsilon, seed=0):
    return RandomizedResponse(epsilon, classes).sample(np.asarray(labels, dtype=np.uint8), SecureRandom(seed=seed))


def crossed(rows, idle, epsilon, seed=0):
    """The label is whether two columns have one sign; the other columns say nothing."""
    x = torch.randn(rows, 2 + idle, generator=torch.Generator().manual_seed(seed))
    truth = (x[:, 0] * x[:, 1] > 0).long().numpy()
    return x, truth, answered(truth, 2, epsilon, seed)


def accuracy(learnt, x, truth):
    return float((learnt.logits(x).argmax(dim=1).numpy() == truth).mean())


# -- the way back through the channel --------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("epsilon", [0.3, 3.0])
def test_probabilities_of_responses_lead_back_to_those_of_classes(classes, epsilon):
    channel = RandomizedResponse(epsilon, classes)
    truth = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(classes), size=50))
    forth = torch.from_numpy(np.stack([channel.probabilities(label)[0] for label in range(classes)]))
    found = corrected(truth @ forth, unmixing(channel)).exp()
    # All but a hundredth, which is not corrected.
    torch.testing.assert_close(found, 0.99 * truth + 0.01 * truth @ forth)


def test_what_is_impossible_becomes_probabilities_that_keep_their_order():
    sure = torch.tensor([[0.1, 0.9], [0.05, 0.95], [0.0, 1.0]], dtype=torch.float64)
    found = corrected(sure, unmixing(RandomizedResponse(1.0, 2)))
    assert torch.allclose(found.exp().sum(dim=1), torch.ones(3, dtype=torch.float64))
    assert (found[:, 1].diff() > 0).all()


def test_the_judge_is_the_mean_log_likelihood_of_held_out_responses():
    x, _, private = crossed(200, 0, 1.0)
    task = Task.split(x, private, seed=3)
    rows = np.concatenate([task.learning, task.held])
    assert len(task.held) == 40
    assert sorted(rows) == list(range(200))
    belief = torch.tensor([0.8, 0.2]).log()
    right = math.e / (math.e + 1)
    # P(response 0) and P(response 1) if class 0 has probability 0.8.
    likely = np.array([0.8 * right + 0.2 * (1 - right), 0.2 * right + 0.8 * (1 - right)])
    expected = np.log(likely[private.hard()[task.held]]).mean()
    assert task.judged(lambda held: belief.expand(len(held), 2)) == pytest.approx(expected, abs=1e-6)


# -- kernels ---------------------------------------------------------------------------------------------------------


def some_kernel(columns=3, cosines=40, classes=2):
    generator = torch.Generator().manual_seed(0)
    sizes = (columns, cosines), (cosines,), (1 + columns + cosines, classes)
    return Kernel(*(torch.randn(size, generator=generator) for size in sizes))


def test_slopes_are_those_of_automatic_differentiation():
    model, x = some_kernel(), torch.randn(30, 3, generator=torch.Generator().manual_seed(1))
    x.requires_grad_(True)
    squares = sum(torch.autograd.grad(model.logits(x)[:, c].sum(), x)[0].square() for c in range(2))
    torch.testing.assert_close(model.slopes(x.detach()), squares.mean(dim=0).sqrt(), rtol=1e-4, atol=1e-5)


def test_sums_are_gram_matrix_and_moment():
    model, x = some_kernel(), torch.randn(30, 3)
    targets, phi = torch.randn(30, 2), model.features(x).double()
    gram, moment = model.sums(x, targets)
    torch.testing.assert_close(gram, phi.T @ phi, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(moment, phi.T @ targets.double(), rtol=1e-4, atol=1e-4)


def test_the_last_fit_is_ridge_regression_on_all_rows():
    x, _, private = crossed(300, 1, 2.0)
    found = kernel(Task.split(x, private, 0), 0, cosines=50).refit()
    phi, targets = found.features(x).double(), torch.from_numpy(private.unbiased())
    # W = t·(Φ'Φ + ρI)⁻¹Φ'Z, so that Φ'ΦW = t·Φ'Z − ρW for some t and ρ above 0.
    wanted = (phi.T @ phi @ found.weight.double()).flatten()
    basis = torch.stack([(phi.T @ targets).flatten(), -found.weight.double().flatten()], dim=1)
    factors = torch.linalg.lstsq(basis, wanted[:, None]).solution[:, 0]
    torch.testing.assert_close(basis @ factors, wanted, rtol=0, atol=1e-3 * float(wanted.abs().max()))
    assert (factors > 0).all()


def test_a_kernel_finds_the_columns_that_matter():
    x, truth, private = crossed(3000, 8, 3.0)
    task = Task.split(x, private, 0)
    found = kernel(task, 0, cosines=300)
    assert accuracy(found.refit(), x, truth) > 0.9
    alike = kernel(task, 0, cosines=300, rounds=0)
    assert found.likelihood > alike.likelihood + 0.05
    assert kernel(task, 0, cosines=0).likelihood < alike.likelihood


# -- the choice ------------------------------------------------------------------------------------------------------


def test_trees_are_taken_where_they_are_best_and_lines_where_lines_are():
    chance = np.random.default_rng(0)
    x = torch.from_numpy(chance.normal(size=(2000, 4))).float()
    steps = ((4 * x[:, 0]).floor().long() % 2).numpy()
    line = (x.sum(dim=1) > 0).long().numpy()
    for truth, expected in ((steps, "trees"), (line, "linear")):
        task = Task.split(x, answered(truth, 2, 4.0), 0)
        judged = [
            kernel(task, 0, 0),
            kernel(task, 0, 200),
            boosting(task, 0, SETTINGS),
        ]
        best = max(judged, key=lambda candidate: candidate.likelihood)
        assert expected in best.name
        assert accuracy(best.refit(), x, truth) > 0.9


def test_trees_of_two_and_of_more_classes_are_corrected():
    x = torch.randn(1500, 2, generator=torch.Generator().manual_seed(0))
    for classes in (2, 4):
        truth = ((x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()).numpy() % classes
        task = Task.split(x, answered(truth, classes, 2.0), 0)
        found = boosting(task, 0, SETTINGS).refit()
        assert isinstance(found, Trees)
        assert found.logits(x).shape == (1500, classes)
        # Responses are right in fewer cases than the corrected probability of the likeliest class says.
        assert accuracy(found, x, truth) > 0.9
        assert float(found.logits(x).exp().amax(dim=1).mean()) > 0.85


@pytest.mark.parametrize("rows", [2, 5, 30])
def test_few_rows_and_classes_that_nobody_answered(rows):
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
    private = NoisyLabels(RandomizedResponse(1.0, 4), np.zeros(rows, dtype=np.int64))
    for candidate in choose(Task.split(x, private, 0), 0):
        assert "trees" not in candidate.name
        assert candidate.refit().logits(x).isfinite().all()


def test_a_learner_of_the_users_stays_as_it_is_and_may_miss_classes():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    private = NoisyLabels(RandomizedResponse(2.0, 3), np.arange(60) % 2 * 2)
    learner = LogisticRegression()
    found = own(Task.split(x, private, 0), learner).refit()
    assert isinstance(found, Own)
    assert not hasattr(learner, "classes_")
    assert found.fitted.classes_.tolist() == [0, 2]
    assert (found.logits(x)[:, 1] < found.logits(x)[:, 0]).all()


def test_the_better_of_two_learners_is_judged_better():
    x, _, private = crossed(2000, 0, 2.0)
    task = Task.split(x[:, :1] * x[:, 1:2], private, 0)
    assert own(task, LogisticRegression()).likelihood > own(task, DummyClassifier()).likelihood + 0.05
