"""Boosting on histograms: the whole budget, what a replaced label moves, kills, refusals, and what it learns."""

import math

import numpy as np
import pytest
import torch

from labeldp.core.certificate import verify
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.mechanisms.moments import Moments
from labeldp.mechanisms.users import UserVault
from labeldp.recipes.boosting import train

N, DELTA = 4000, 1e-5


def table(classes=2, seed=0):
    """Two columns that tell the class together, two idle ones, and a category that tells a little."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, 4))
    category = rng.integers(0, 3, size=N)
    y = ((x[:, 0] > 0).astype(int) + (x[:, 1] > 0) + (category == 2)) % classes
    return torch.from_numpy(np.concatenate([x, np.eye(3)[category]], axis=1)).float(), y


def vault(classes=2, budget=None, seed=None):
    return LabelVault(table(classes)[1], classes, budget, rng=None if seed is None else SecureRandom(seed))


def run(box, epsilon=1.0, **settings):
    return train(table(box.num_classes)[0], box, epsilon=epsilon, delta=DELTA, **settings)


@pytest.fixture
def drawn(monkeypatch):
    """Every query that is really drawn."""
    queries, sample = [], Moments.sample

    def watched(self, labels, rng):
        queries.append(self)
        return sample(self, labels, rng)

    monkeypatch.setattr(Moments, "sample", watched)
    return queries


# -- the budget ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize(("rounds", "depth", "share"), [(0, 3, 0.6), (3, 3, 0.2), (5, 1, 0.6)])
def test_all_queries_together_cost_epsilon_and_hardly_less(epsilon, rounds, depth, share):
    box = vault(budget=Budget(epsilon, DELTA))
    run(box, epsilon, rounds=rounds, depth=depth, first_share=share)
    (group,) = box.ledger.groups()
    assert (len(group.plans), sum(query.times for query in group.queries)) == (1, rounds + 1)
    certificate = box.certificate(DELTA)
    assert epsilon * (1 - 1e-6) <= certificate.epsilon <= epsilon
    assert verify(certificate) == ()


def test_more_than_the_budget_is_refused_before_the_first_histogram(drawn):
    box = vault(budget=Budget(0.9, DELTA))
    with pytest.raises(BudgetExceededError):
        run(box)
    assert not drawn
    assert not any(group.queries for group in box.ledger.groups())


def exact(query, labels):
    """The sums without noise, (K, width)."""
    block = np.concatenate(list(query.chunks.read()))
    return np.stack([block[labels == k].sum(axis=0) for k in range(query.num_classes)])


def largest_move(query, labels, classes):
    """How far the sums move, in units of the noise, when one of some labels is replaced."""
    whole, moves = exact(query, labels), []
    for row in range(0, len(labels), 397):
        other = labels.copy()
        other[row] = (other[row] + 1) % classes
        moves.append(np.linalg.norm(exact(query, other) - whole))
    return max(moves) / query.noise_std


@pytest.mark.parametrize("classes", [2, 3])
def test_a_replaced_label_moves_histograms_by_what_is_charged(classes, drawn):
    """√(2F) for F columns that are asked together, and μ is that over the noise; no row is cut down to it."""
    _, y = table(classes)
    found = run(vault(classes), rounds=2, features_per_round=2, depth=3)
    for query in drawn:
        moved, charged = largest_move(query, y, classes), query.event().mu
        assert charged * (1 - 1e-3) <= moved <= charged
    asked = [round(query.radius**2) for query in drawn]
    assert asked == [5, 2, 2]
    assert len(found.histograms) == sum(asked)
    # A planted radius of one column, whatever their number, is told apart.
    planted = Moments(drawn[0].chunks, classes, drawn[0].noise, radius=1.0)
    assert largest_move(planted, y, classes) > 2 * planted.event().mu


def test_noise_on_counts_is_what_trees_are_told():
    """Of 800 counts whose truth is known: the share of variance is within five deviations, 1 in 10⁶ false alarms."""
    _, y = table(3)
    found = run(vault(3, seed=5), epsilon=0.3, rounds=6, bins=32)
    errors, sizes = [], 0
    for tree in found.histograms:
        leaves = tree.sums.shape[1]
        truth = np.stack([np.bincount(tree.leaf[y == k], minlength=leaves) for k in range(3)])
        errors.append(((tree.sums - truth) ** 2).sum() / tree.variance)
        # Counts of a cell add up to a public number: one of three is not free.
        sizes += 2 * leaves
    share = sum(errors) / (1.5 * sizes)
    assert abs(share - 1) < 5 * math.sqrt(2 / sizes)


# -- learning ------------------------------------------------------------------------------------------------


def test_it_learns_what_needs_two_columns_together():
    x, y = table()
    found = run(vault(seed=1), epsilon=2.0)
    additive = run(vault(seed=1), epsilon=2.0, rounds=0)
    right = [float((one.logits(x).argmax(dim=1).numpy() == y).mean()) for one in (found, additive)]
    assert right[0] > 0.8 > 0.7 > right[1]
    assert torch.allclose(found.probabilities(x).sum(dim=1), torch.ones(N, dtype=torch.float64))


def test_public_choices_follow_the_seed_and_noise_does_not():
    first, again, other = (run(vault(seed=3), seed=seed) for seed in (0, 0, 1))
    assert [tree.splits for tree in first.histograms] == [tree.splits for tree in again.histograms]
    assert [tree.splits for tree in first.histograms] != [tree.splits for tree in other.histograms]
    fresh = run(vault())
    assert not np.allclose(fresh.histograms[0].sums, first.histograms[0].sums)


# -- killed runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_killed_run_goes_on_and_draws_nothing_twice(after, tmp_path, drawn, monkeypatch):
    whole, sample = run(vault(seed=4), folder=tmp_path / "whole", rounds=3), Moments.sample
    del drawn[:]

    def dies(self, labels, rng):
        if len(drawn) == after:
            raise KeyboardInterrupt
        return sample(self, labels, rng)

    with monkeypatch.context() as patch:
        patch.setattr(Moments, "sample", dies)
        with pytest.raises(KeyboardInterrupt):
            run(vault(), folder=tmp_path / "run", rounds=3)
    assert len(drawn) == after
    box = vault()
    found = run(box, folder=tmp_path / "run", rounds=3)
    assert len(drawn) == 4
    assert box.certificate(DELTA).epsilon <= 1.0
    again = run(vault(), folder=tmp_path / "run", rounds=3)
    assert len(drawn) == 4
    assert np.array_equal(found.forest.value, again.forest.value)
    assert len(whole.histograms) == len(found.histograms)


def test_a_folder_of_other_features_is_refused(tmp_path, drawn):
    run(vault(), folder=tmp_path, rounds=1)
    box = vault()
    with pytest.raises(ValueError, match="another query"):
        train(table()[0] + torch.randn(N, 7), box, epsilon=1.0, delta=DELTA, rounds=1, folder=tmp_path)
    assert len(drawn) == 2


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"rounds": -1}, "rounds=-1"),
        ({"depth": 0}, "depth=0"),
        ({"bins": 1}, "bins=1"),
        ({"coarse_bins": 1}, "coarse_bins=1"),
        ({"features_per_round": 0}, "features_per_round=0"),
        ({"first_share": 1.0}, "first_share=1.0"),
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"epsilon": math.inf}, "epsilon=inf"),
    ],
    ids=str,
)
def test_settings_that_make_no_trees_are_refused_before_the_charge(settings, match):
    box = vault()
    with pytest.raises(ValueError, match=match):
        run(box, **settings)
    assert not any(group.queries for group in box.ledger.groups())


def test_features_that_say_nothing_or_are_not_finite_are_refused_before_the_charge():
    box = vault()
    for x, match in ((torch.ones(N, 3), "0 columns"), (torch.full((N, 1), torch.nan), "finite")):
        with pytest.raises(ValueError, match=match):
            train(x, box, epsilon=1.0, delta=DELTA)
    assert not any(group.queries for group in box.ledger.groups())


def test_labels_of_users_are_refused():
    box = UserVault(table()[1], np.arange(N) // 2, 2)
    with pytest.raises(ValueError, match="user"):
        run(box)


# -- behind the estimator ------------------------------------------------------------------------------------


def test_an_estimator_fits_is_taken_apart_and_predicts_the_same():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 3))
    y = np.where(np.abs(x[:, 0]) > 0.7, "far", "near")
    model = LabelDPClassifier(2.0, method="boosting", classes=["far", "near"], random_state=0).fit(x, y)
    assert model.certificate_.epsilon <= 2.0
    assert (model.predict(x) == y).mean() > 0.85
    again = LabelDPClassifier.from_parts(*model.to_parts())
    assert np.array_equal(model.predict_proba(x), again.predict_proba(x))
