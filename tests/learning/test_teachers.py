"""Teachers trained together: the same as one by one, apart from each other, and as good as they should be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labeldp.learning.teachers import one_shot_teachers, ridge_teachers
from labeldp.mechanisms.teachers import TeacherVotes, check_separate, one_by_one

K = 4


def clouds(n, d=12, spread=0.5, seed=0):
    """K classes around random centres."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, size=n)
    points = rng.normal(size=(K, d))[labels] + spread * rng.normal(size=(n, d))
    return torch.from_numpy(points).float(), labels


def voting(teach, teachers, queries):
    noises = {"noise_std": 50.0, "threshold": 1, "threshold_std": 50.0}
    return TeacherVotes(teach, K, teachers, queries, queries, **noises, at_once=teachers)


MAKERS = {
    "ridge": lambda x, asked: ridge_teachers(x, asked, K),
    "one shot": lambda x, asked: one_shot_teachers(x, asked, K),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("size", [6, 40])
def test_teachers_learn(name, size):
    """Four far classes: each teacher of 40 labels is nearly always right, of 6 labels better than chance."""
    points, labels = clouds(40 * 25)
    teach = MAKERS[name](points, points[:100])
    rows = np.arange(40 * 25).reshape(25, 40)[:, :size]
    votes = teach(np.arange(25), rows, labels[rows].astype(np.uint8))
    assert votes.shape == (25, 100)
    assert np.mean(votes == labels[:100]) > (0.95 if size == 40 else 0.55)


@pytest.mark.parametrize("name", MAKERS)
def test_no_teacher_hears_of_another_shard(name):
    points, _ = clouds(120)
    check_separate(voting(MAKERS[name](points, points[:30]), 6, 30), 120, teachers=4)


def test_planted_a_common_mean_is_found():
    """Ridge whose targets are centred on the labels of all teachers of the call, instead of 1/K."""
    points, _ = clouds(120)

    def leaky(numbers, rows, labels):
        onehot = np.eye(K)[labels]
        scores = np.einsum("qd,tmd,tmk->tqk", points[:30], points.numpy()[rows], onehot - 4 * onehot.mean(axis=(0, 1)))
        return scores.argmax(axis=2)

    with pytest.raises(ValueError, match="changed the votes of teachers"):
        check_separate(voting(leaky, 6, 30), 120, teachers=4)


@pytest.mark.parametrize("name", ["ridge", "one shot"])
@pytest.mark.parametrize("size", [5, 30])
def test_the_batched_solve_is_the_textbook_one(name, size):
    """One teacher at a time in float64, in the primal, from the formula in the docstring; both sides of m = d."""
    points, labels = clouds(300, d=12, spread=1.5)
    points = points.double()
    asked, ridge = points[:80], 1e-2
    phi = points - points.mean(dim=0)
    phi = phi / phi.square().sum(dim=1).mean().sqrt()
    queries = phi[:80]

    def textbook(number, rows, own):
        targets = torch.eye(K, dtype=torch.float64)[own.astype(np.int64)] - 1 / K
        gram = phi[rows].T @ phi[rows] / len(rows) if name == "ridge" else phi.T @ phi / len(phi)
        weights = torch.linalg.solve(
            gram + ridge * torch.eye(12, dtype=torch.float64), phi[rows].T @ targets / len(rows)
        )
        return (queries @ weights).argmax(dim=1).numpy()

    maker = ridge_teachers if name == "ridge" else one_shot_teachers
    rows = np.arange(10 * size).reshape(10, size)
    batched = maker(points, asked, K, ridge=ridge)(np.arange(10), rows, labels[rows])
    assert np.array_equal(batched, one_by_one(textbook)(np.arange(10), rows, labels[rows]))


def test_votes_do_not_depend_on_pieces(monkeypatch):
    points, labels = clouds(200)
    rows = np.arange(200).reshape(10, 20)
    whole = [make(points, points)(np.arange(10), rows, labels[rows]) for make in MAKERS.values()]
    monkeypatch.setattr("labeldp.learning.teachers._CPU_CELLS", 100)
    parts = [make(points, points)(np.arange(10), rows, labels[rows]) for make in MAKERS.values()]
    assert all(np.mean(a != b) < 0.002 for a, b in zip(whole, parts, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", ["ridge", "one shot"])
def test_on_a_gpu(name):
    points, labels = clouds(1000)
    rows = np.arange(1000).reshape(25, 40)
    device = points.cuda()
    votes = MAKERS[name](device, device[:100])(np.arange(25), rows, labels[rows])
    assert np.mean(votes == labels[:100]) > 0.9


def test_bad_settings():
    points, _ = clouds(10)
    with pytest.raises(ValueError, match="must be"):
        ridge_teachers(points, points[:, :3], K)
    with pytest.raises(ValueError, match="ridge=0"):
        one_shot_teachers(points, points, K, ridge=0)
    with pytest.raises(ValueError, match="num_classes"):
        ridge_teachers(points, points, 0)
