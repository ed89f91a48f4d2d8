"""The linear student: ridge regression by hand, better than its teacher where it should be, and no way to a label."""

from __future__ import annotations

import functools
import inspect
import math

import numpy as np
import pytest
import torch
from torch import Generator

from labeldp.core.certificate import verify
from labeldp.core.ledger import Budget
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.learning.tuning import Plan, tune
from labeldp.recipes import distil, one_shot
from labeldp.recipes.distil import linear as train
from labeldp.recipes.distil import linear_after as train_after

N, K, P = 6000, 4, 60


@functools.cache
def clouds(seed=0):
    """Four clouds. Their means are in twelve directions; the two widest, which a poor head queries, say a part."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, K, size=N)
    means = np.random.default_rng(99).normal(size=(K, 12))
    x = generator.normal(size=(N, P))
    x[:, :12] += 1.2 * means[labels]
    x[:, :2] *= 2.0
    return torch.from_numpy(x).float(), torch.from_numpy(labels)


@functools.cache
def poor_shot(rank=2):
    """A head that may query the widest directions only."""
    x, labels = clouds()
    plan = functools.partial(tune, plans=[Plan(rank)], clusterings=2, draws=1)
    vault = LabelVault(labels, K, rng=SecureRandom(1))
    return one_shot.train(x, vault, epsilon=1.0, delta=1e-6, tune=plan)


def right(probabilities, seed=1):
    return float((probabilities.argmax(dim=1) == clouds(seed)[1]).float().mean())


# -- privacy -----------------------------------------------------------------------------------------------------


def test_the_student_is_post_processing():
    """By type: after the query nothing takes a vault; and the whole costs what the query costs."""
    assert "vault" not in inspect.signature(train_after).parameters
    x, labels = clouds()
    vault = LabelVault(labels, K, Budget(0.5, 1e-6))
    train(x, vault, epsilon=0.5, delta=1e-6, generations=2)
    certificate = vault.certificate(1e-6)
    assert certificate.epsilon <= 0.5
    assert verify(certificate) == ()
    (group,) = vault.ledger.groups()
    assert [query.times for query in group.queries] == [1]


# -- what it learns ----------------------------------------------------------------------------------------------


def test_it_is_better_than_a_head_that_asked_about_few_directions():
    x, _ = clouds()
    new, _ = clouds(seed=1)
    shot = poor_shot()
    student = train_after(shot, x)
    assert right(student.probabilities(new)) > right(shot.probabilities(new)) + 0.05
    assert (student.predict(new) == student.probabilities(new).argmax(dim=1)).all()


def test_generations_help_here():
    x, _ = clouds()
    new, _ = clouds(seed=1)
    once, four = (train_after(poor_shot(), x, generations=count) for count in (1, 4))
    assert right(four.probabilities(new)) > right(once.probabilities(new))


def test_one_generation_is_ridge_regression():
    x, _ = clouds()
    shot = poor_shot()
    student = train_after(shot, x, generations=1, ridge=0.1)
    teacher = shot.probabilities(x).double().numpy()
    rows = x.double().numpy() - x.double().numpy().mean(axis=0)
    gram = rows.T @ rows
    weight = np.linalg.solve(gram + 0.1 * np.trace(gram) / P * np.eye(P), rows.T @ (teacher - teacher.mean(axis=0))).T
    found = student.layer.weight.double().numpy()
    scale = (found * weight).sum() / (weight * weight).sum()
    assert scale > 0
    assert np.allclose(found, scale * weight, atol=1e-4 * np.abs(found).max())
    offset = scale * (teacher.mean(axis=0) - weight @ x.double().numpy().mean(axis=0))
    assert np.allclose(student.layer.bias.double().numpy(), offset, atol=1e-3 * np.abs(offset).max() + 1e-4)


def test_its_probabilities_are_as_near_to_the_teachers_as_a_factor_can_bring_them():
    x, _ = clouds()
    shot = poor_shot()
    student = train_after(shot, x, generations=1)
    teacher, scores = shot.probabilities(x), student.layer(x)

    def entropy(factor):
        return float(-(teacher * torch.log_softmax(factor * scores, dim=1)).sum(dim=1).mean())

    assert entropy(1.0) < min(entropy(0.9), entropy(1.1))


def test_a_head_that_knows_all_directions_keeps_the_word():
    x, _ = clouds()
    shot = poor_shot(rank=P)
    student = train_after(shot, x)
    assert student.share == 1.0
    assert torch.allclose(student.probabilities(x), shot.probabilities(x), atol=1e-6)
    assert train_after(poor_shot(), x).share == pytest.approx((2 / P) ** 2)


def test_constant_features_do_not_count_as_directions():
    x, _ = clouds()
    padded = torch.cat((x, torch.ones(N, P)), dim=1)
    share = train_after(poor_shot(), padded, seen=x).share
    assert share == 0.0
    plan = functools.partial(tune, plans=[Plan(6)], clusterings=2, draws=1)
    shot = one_shot.train(padded, LabelVault(clouds()[1], K), epsilon=1.0, delta=1e-6, tune=plan)
    assert train_after(shot, padded).share == pytest.approx((6 / P) ** 2)


def test_features_alike_for_all_rows_teach_nothing_and_break_nothing():
    x, _ = clouds()
    student = train_after(poor_shot(), torch.zeros(N, 3), seen=x, generations=2)
    shares = poor_shot().probabilities(x).mean(dim=0)
    assert (student.probabilities(torch.zeros(5, 3)).argmax(dim=1) == shares.argmax()).all()


def test_a_look_at_other_features_is_handed_on():
    """The head sees two features made of the others; the student needs the plain ones only."""
    x, labels = clouds()
    new, _ = clouds(seed=1)
    turned = torch.linalg.qr(torch.randn(P, P, generator=Generator().manual_seed(3)))[0]
    made = (x @ turned)[:, :30]
    student = train(x, LabelVault(labels, K), epsilon=4.0, delta=1e-6, seen=made)
    assert student.share == 0.0
    assert right(student.probabilities(new)) > 0.8


def test_without_delta_it_queries_with_laplace_noise():
    x, labels = clouds()
    vault = LabelVault(labels, K, Budget(4.0))
    student = train(x, vault, epsilon=4.0, delta=0.0)
    assert vault.certificate().epsilon <= 4.0
    assert right(student.probabilities(clouds(seed=1)[0])) > 0.5


def test_a_killed_run_does_not_ask_again(tmp_path):
    x, labels = clouds()
    vault = LabelVault(labels, K, Budget(1.0, 1e-6))
    first = train(x, vault, epsilon=1.0, delta=1e-6, folder=tmp_path, generations=2)
    again = train(x, vault, epsilon=1.0, delta=1e-6, folder=tmp_path, generations=2)
    assert torch.allclose(first.layer.weight, again.layer.weight, rtol=1e-4, atol=1e-5)


def test_progress_is_told():
    x, _ = clouds()
    reports = []
    train_after(poor_shot(), x, generations=3, report=reports.append)
    # One as it begins, and one for each generation.
    assert [one.phase for one in reports] == ["student"] * 4
    assert "3 of 3" in reports[-1].detail


# -- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"generations": 0}, {"ridge": 0.0}, {"ridge": math.inf}, {"ridge": -1.0}])
def test_bad_settings_are_refused_before_anything_is_asked(settings):
    x, labels = clouds()
    vault = LabelVault(labels, K)
    with pytest.raises(ValueError, match=next(iter(settings))):
        train(x, vault, epsilon=1.0, delta=1e-6, **settings)
    assert vault.certificate(1e-6).epsilon == 0


def test_other_rows_are_refused_before_anything_is_asked():
    x, labels = clouds()
    vault = LabelVault(labels, K)
    with pytest.raises(ValueError, match="5999 rows"):
        train(x, vault, epsilon=1.0, delta=1e-6, seen=x[1:])
    with pytest.raises(ValueError, match="5999 rows"):
        train(x[1:], vault, epsilon=1.0, delta=1e-6, seen=x)
    assert vault.certificate(1e-6).epsilon == 0


def test_rows_that_are_no_numbers_are_refused_before_anything_is_asked():
    """Of the plain features, too, where the query is of others."""
    x, labels = clouds()
    vault, broken = LabelVault(labels, K), x.clone()
    broken[7, 3] = math.nan
    with pytest.raises(ValueError, match="features"):
        train(broken, vault, epsilon=1.0, delta=1e-6, seen=x)
    assert vault.certificate(1e-6).epsilon == 0


def test_a_student_that_never_hears_the_teacher_again_is_worse(monkeypatch):
    """Planted: targets that are the student's own word drift away from what was seen."""
    x, _ = clouds()
    new, _ = clouds(seed=1)
    honest = train_after(poor_shot(), x, generations=12)
    monkeypatch.setattr(distil, "matched", lambda noisy, rows: lambda teacher, student: student)
    drifting = train_after(poor_shot(), x, generations=12)
    assert right(honest.probabilities(new)) > right(drifting.probabilities(new))
