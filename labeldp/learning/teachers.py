"""Train many linear teachers at once on shared public features: one teacher is one row of a batched solve.

Each function gives a `teach` for `labeldp.mechanisms.teachers.TeacherVotes`: (teacher numbers (t,), their rows
(t, m), the labels of those rows (t, m)) → votes (t, queries). Rows number the features given here. The votes of a
teacher depend on labels of its own rows only; nothing is kept.

Features are centred and scaled to mean square length 1, by public numbers of all rows; penalties are in the units of a
mean over rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from labeldp.models.zoo import checked_count

Teach = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
# (features of the rows (t, m, d), one-hot labels less 1/K (t, m, K)) → weights (t, K, d).
_Heads = Callable[[Tensor, Tensor], Tensor]

# Scores held at once, in floats: 16 MB on a CPU, 1 GB on a GPU.
_CPU_CELLS, _GPU_CELLS = 1 << 22, 1 << 28


@dataclass(frozen=True, eq=False)
class LinearTeachers:
    """Teach many linear heads at once, and know what they are made of: plain values, by which to make them elsewhere.

    Args:
        kind: by which function of this file it was made.
        features, queries: public, as they were given.
        num_classes: K.
        ridge: ρ.
        teach: (teacher numbers (t,), rows (t, m), labels (t, m)) → votes (t, queries).
    """

    kind: Literal["ridge", "shared"]
    features: Tensor = field(repr=False)
    queries: Tensor = field(repr=False)
    num_classes: int
    ridge: float
    teach: Teach = field(repr=False)

    def __call__(self, numbers: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the votes of these teachers."""
        return self.teach(numbers, rows, labels)


def ridge_teachers(features: Tensor, queries: Tensor, num_classes: int, *, ridge: float = 1e-3) -> LinearTeachers:
    """Fit least squares on each teacher's own rows: W_t = argmin mean_{i∈t} |onehot(y_i) − 1/K − Wφ_i|² + ρ|W|².

    All teachers are one batched Cholesky solve, of size m (rows of a teacher) or d (features), whichever is less.

    Args:
        features: public, of all rows that can be in a shard, (n, d), on the device where the work is to be done.
        queries: their features, (q, d), made the same way.
        num_classes: K.
        ridge: ρ.

    >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).repeat(20, 1)
    >>> rows = np.arange(40).reshape(4, 10)
    >>> ridge_teachers(x, x[:3], 2)(np.arange(4), rows, rows % 2)
    array([[0, 1, 0],
           [0, 1, 0],
           [0, 1, 0],
           [0, 1, 0]])
    """

    def heads(own: Tensor, targets: Tensor) -> Tensor:
        count, width = own.shape[1:]
        if width < count:
            gram = own.mT @ own / count + ridge * _eye(width, own)
            return torch.cholesky_solve(own.mT @ targets / count, torch.linalg.cholesky(gram)).mT
        kernel = own @ own.mT / count + ridge * _eye(count, own)
        return torch.cholesky_solve(targets / count, torch.linalg.cholesky(kernel)).mT @ own

    known, points = _standard(features, queries, num_classes, ridge)
    return LinearTeachers("ridge", features, queries, num_classes, ridge, _linear(known, points, num_classes, heads))


def one_shot_teachers(features: Tensor, queries: Tensor, num_classes: int, *, ridge: float = 1e-3) -> LinearTeachers:
    """Take the one-shot head on each teacher's own labels: W_t = mean_{i∈t} (onehot(y_i) − 1/K) φ_iᵀ (Σ + ρ)^{-1}.

    Σ is the second moment of the features of *all* rows. It is public, so it is solved once for all teachers, and a
    teacher is a sum over its rows. Its errors are its own and average out over teachers, where those of
    `ridge_teachers` are alike: single teachers are worse, and with a small ρ and enough of them the vote is better.
    Arguments as in `ridge_teachers`.
    """
    known, points = _standard(features, queries, num_classes, ridge)
    moment = known.mT @ known / len(known) + ridge * _eye(known.shape[1], known)
    whitened = torch.cholesky_solve(points.mT, torch.linalg.cholesky(moment)).mT
    teach = _linear(known, whitened, num_classes, lambda own, targets: targets.mT @ own / own.shape[1])
    return LinearTeachers("shared", features, queries, num_classes, ridge, teach)


def _linear(features: Tensor, queries: Tensor, num_classes: int, heads: _Heads) -> Teach:
    def teach(numbers: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        chosen, classes = (torch.from_numpy(array.astype(np.int64)).to(features.device) for array in (rows, labels))
        weights = heads(features[chosen], one_hot(classes, num_classes).to(features) - 1 / num_classes)
        return _votes(queries, weights).cpu().numpy()

    return teach


def _votes(queries: Tensor, weights: Tensor) -> Tensor:
    """Return the class with the largest score, (t, q); one matrix product for all teachers, in pieces that fit."""
    teachers, num_classes, width = weights.shape
    columns = weights.reshape(teachers * num_classes, width).mT
    cells = _GPU_CELLS if queries.is_cuda else _CPU_CELLS
    parts = queries.split(max(1, cells // (teachers * num_classes)))
    return torch.cat([(part @ columns).view(-1, teachers, num_classes).argmax(dim=2) for part in parts]).mT


def _standard(features: Tensor, queries: Tensor, num_classes: int, ridge: float) -> tuple[Tensor, Tensor]:
    """Return both, centred and scaled by the features' own mean and mean square length."""
    if features.ndim != 2 or queries.ndim != 2 or features.shape[1] != queries.shape[1] or not len(features):
        shapes = tuple(features.shape), tuple(queries.shape)
        raise ValueError(f"features {shapes[0]} and queries {shapes[1]} must be (n, d) and (q, d)")
    if not ridge > 0:
        raise ValueError(f"ridge={ridge} is not a penalty; give a number above 0")
    checked_count("num_classes", num_classes)
    mean = features.mean(dim=0)
    known = features - mean
    # A tensor, not a number: nothing waits for the device.
    scale = known.square().sum(dim=1).mean().sqrt().clamp_min(torch.finfo(known.dtype).tiny)
    return known / scale, (queries.to(features) - mean) / scale


def _eye(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)
