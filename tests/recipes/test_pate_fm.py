"""PATE-FM: private labels from voting teachers at ε in all, a student on them, runs that are killed."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from labeldp.core.certificate import parse, verify
from labeldp.core.events import TeacherVoting
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault, MechanismError
from labeldp.learning.optimisers import linear, sgd
from labeldp.learning.teachers import one_shot_teachers, ridge_teachers
from labeldp.learning.train import accuracy, fit
from labeldp.mechanisms.teachers import one_by_one
from labeldp.recipes.pate import Ballot, label, relabel, train
from tests.trained import weights

K, N = 4, 4000
BALLOT = Ballot(teachers=200, queries=80, responses=40, at_once=200)
TRAIN = functools.partial(fit, epochs=40, batch_size=8, optimizer=sgd(0.05), schedule=linear())


@functools.cache
def problem():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, K, size=N)
    return torch.from_numpy(4 * np.eye(K, 6)[labels] + generator.normal(size=(N, 6))).float(), labels


def vault(budget=None, seed=None):
    return LabelVault(problem()[1], K, budget, rng=None if seed is None else SecureRandom(seed))


def network():
    torch.manual_seed(0)
    return nn.Linear(6, K)


def ridge(rows):
    return ridge_teachers(problem()[0], problem()[0][rows], K)


def one_look(rows):
    return one_shot_teachers(problem()[0], problem()[0][rows], K)


def nearest(rows):
    """Each teacher by itself: the label of the nearest of its rows."""
    x = problem()[0]
    return one_by_one(lambda number, own, labels: labels[torch.cdist(x[rows], x[own]).argmin(dim=1).numpy()])


@pytest.mark.parametrize("teachers", [ridge, one_look, nearest])
def test_responses_are_right_and_cost_epsilon(teachers):
    box = vault(Budget(2.0, 1e-5), seed=1)
    found = label(teachers, box, epsilon=2.0, delta=1e-5, ballot=BALLOT)
    assert 20 < len(found.rows) <= 40
    assert len(set(found.rows.tolist())) == len(found.rows)
    assert np.mean(found.classes == problem()[1][found.rows]) > 0.9
    assert 2.0 * (1 - 1e-9) <= found.certificate.epsilon <= 2.0
    (group,) = box.ledger.groups()
    (query,) = group.queries
    assert (query.times, group.rows) == (1, N)
    assert isinstance(query.event, TeacherVoting)
    assert (query.event.queries, query.event.responses) == (80, 40)
    assert query.event.threshold_std == 1.6 * found.noise_std


def test_a_certificate_of_secure_noise_verifies():
    found = label(ridge, vault(), epsilon=0.5, delta=1e-5, ballot=BALLOT)
    assert verify(parse(found.certificate.dumps())) == ()


def test_without_a_threshold_every_row_asked_about_has_a_label():
    ballot = Ballot(teachers=200, queries=40, responses=40, threshold=None)
    found = label(ridge, vault(seed=1), epsilon=2.0, delta=1e-5, ballot=ballot)
    assert np.array_equal(found.rows, ballot.rows(N))


def test_a_student_learns_from_the_responses():
    x, labels = problem()
    box = vault(Budget(2.0, 1e-5), seed=2)
    student = train(network(), x, box, epsilon=2.0, delta=1e-5, fit=TRAIN, teachers=ridge, ballot=BALLOT)
    assert accuracy(student, x, labels) > 0.9
    assert np.mean(relabel(student, x).numpy() == labels) > 0.9
    assert box.certificate().epsilon <= 2.0


def test_the_student_sees_labelled_rows_with_their_responses_and_nothing_else():
    seen = {}

    def spy(model, inputs, objective, *, rows):
        losses = objective(torch.eye(K)[torch.arange(K)].repeat(len(rows), 1) * 50, rows.repeat_interleave(K))
        seen["classes"], seen["rows"], seen["inputs"] = losses.view(-1, K).argmin(dim=1), rows, inputs
        return model

    x, _ = problem()
    settings = {"epsilon": 2.0, "delta": 1e-5, "ballot": BALLOT}
    train(network(), x, vault(seed=5), fit=spy, teachers=ridge, **settings)
    found = label(ridge, vault(seed=5), **settings)
    assert np.array_equal(seen["rows"].numpy(), found.rows)
    assert np.array_equal(seen["classes"].numpy(), found.classes)
    assert seen["inputs"] is x


def test_a_killed_run_resumes_without_asking_again(tmp_path):
    x, _ = problem()
    run = functools.partial(train, epsilon=1.0, delta=1e-5, teachers=ridge, ballot=BALLOT)
    whole = weights(run(network(), x, vault(seed=3), fit=TRAIN))
    box = vault(Budget(1.0, 1e-5), seed=3)

    def stop(progress):
        if progress.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(network(), x, box, fit=functools.partial(TRAIN, report=stop), folder=tmp_path)
    assert torch.equal(weights(run(network(), x, box, fit=TRAIN, folder=tmp_path)), whole)
    assert box.certificate().epsilon <= 1.0
    later = vault(Budget(1.0, 1e-5), seed=99)
    assert torch.equal(weights(run(network(), x, later, fit=TRAIN, folder=tmp_path)), whole)
    assert later.certificate().epsilon == box.certificate().epsilon
    with pytest.raises(BudgetExceededError):
        run(network(), x, vault(Budget(0.1, 1e-5)), fit=TRAIN, folder=tmp_path)


_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.recipes import test_pate_fm as t

def die(progress):
    os.kill(os.getpid(), signal.SIGKILL)

fit = t.functools.partial(t.TRAIN, report=die)
t.train(t.network(), t.problem()[0], t.vault(), epsilon=1.0, delta=1e-5, fit=fit, teachers=t.ridge, ballot=t.BALLOT,
        folder=Path(sys.argv[1]))
"""


def test_a_run_killed_by_force_does_not_draw_twice(tmp_path):
    """Secure noise, so a second draw would show; the process dies in the student's first epoch."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", _KILLED, str(tmp_path)]
    ended = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, check=False)
    assert ended.returncode == -signal.SIGKILL
    kept = (tmp_path / "votes.npz").read_bytes()
    again = [
        label(ridge, vault(Budget(1.0, 1e-5)), epsilon=1.0, delta=1e-5, ballot=BALLOT, folder=tmp_path)
        for _ in range(2)
    ]
    assert np.array_equal(again[0].classes, again[1].classes)
    assert np.array_equal(again[0].rows, again[1].rows)
    assert (tmp_path / "votes.npz").read_bytes() == kept
    assert again[0].certificate.epsilon == pytest.approx(1.0, rel=1e-9)


def test_kept_responses_are_bound_to_their_query(tmp_path):
    label(ridge, vault(), epsilon=0.5, delta=1e-5, ballot=BALLOT, folder=tmp_path)
    box = vault()
    for other in (
        {"epsilon": 0.2, "ballot": BALLOT},
        {"epsilon": 0.5, "ballot": Ballot(teachers=100, queries=80, responses=40)},
        {"epsilon": 0.5, "ballot": Ballot(teachers=200, queries=80, responses=40, seed=1)},
        {"epsilon": 0.5, "ballot": Ballot(teachers=200, queries=80, responses=40, threshold=0.6)},
    ):
        with pytest.raises(ValueError, match="another query"):
            label(ridge, box, delta=1e-5, folder=tmp_path, **other)
    assert box.certificate(1e-5).epsilon == 0.0


def test_mistakes_cost_nothing():
    box = vault(Budget(1.0, 1e-5))
    x, _ = problem()
    run = functools.partial(label, vault=box, epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match="votes have shape"):
        run(lambda rows: ridge_teachers(x, x[rows][:5], K), ballot=BALLOT)
    with pytest.raises(ValueError, match="teachers is 5000"):
        run(ridge, ballot=Ballot(teachers=5000))
    with pytest.raises(ValueError, match="queries=4001"):
        run(ridge, ballot=Ballot(teachers=10, queries=N + 1))
    with pytest.raises(ValueError, match="delta"):
        label(ridge, box, epsilon=1.0, delta=0.0, ballot=BALLOT)
    with pytest.raises(BudgetExceededError):
        label(ridge, box, epsilon=1.1, delta=1e-5, ballot=BALLOT)
    with pytest.raises(ValueError, match="shape"):
        train(nn.Linear(6, 3), x, box, epsilon=1.0, delta=1e-5, fit=TRAIN, teachers=ridge, ballot=BALLOT)
    assert box.certificate().epsilon == 0.0


def test_a_student_without_responses_is_refused():
    high = Ballot(teachers=200, queries=20, responses=10, threshold=50.0)
    with pytest.raises(ValueError, match="no query has a winner"):
        train(network(), problem()[0], vault(), epsilon=2.0, delta=1e-5, fit=TRAIN, teachers=ridge, ballot=high)


def test_labels_do_not_leave_with_an_error_of_a_teacher():
    """It fails on true labels only, so the try on made-up ones does not find it; the query stays charged."""
    truth = problem()[1]

    def teachers(rows):
        def fails(number, own, labels):
            if np.array_equal(truth[own], labels):
                raise RuntimeError(f"labels {labels}")
            return np.zeros(len(rows), dtype=int)

        return one_by_one(fails)

    box = vault()
    with pytest.raises(MechanismError) as caught:
        label(teachers, box, epsilon=1.0, delta=1e-5, ballot=BALLOT)
    assert "labels [" not in str(caught.value)
    assert box.certificate(1e-5).epsilon > 0.99
