"""Many linear teachers at once on shared public features: one teacher is one row of a batched solve.

Each function gives a `teach` for `labeldp.mechanisms.teachers.TeacherVotes`: (teacher numbers (t,), their rows
(t, m), the labels of those rows (t, m)) → votes (t, queries). Rows number the features given here. The votes of a
teacher depend on labels of its own rows only; nothing is kept. Networks are in `teacher_networks`.

Features are centred and scaled to mean square length 1, by public numbers of all rows; penalties are in the units of a
mean over rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.functional import cross_entropy, one_hot
from torch.nn.modules.batchnorm import _BatchNorm

from labeldp.features.augment import Augment
from labeldp.models.zoo import checked_count

Teach = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
# (features of the rows (t, m, d), one-hot labels less 1/K (t, m, K)) → weights (t, K, d).
_Heads = Callable[[Tensor, Tensor], Tensor]

# Scores held at once, in floats: 16 MB on a CPU, 1 GB on a GPU.
_CPU_CELLS, _GPU_CELLS = 1 << 22, 1 << 28


def ridge_teachers(features: Tensor, asked: Tensor, num_classes: int, *, ridge: float = 1e-3) -> Teach:
    """Least squares on each teacher's own rows: W_t = argmin mean_{i∈t} |onehot(y_i) − 1/K − Wφ_i|² + ρ|W|².

    All teachers are one batched Cholesky solve, of size m (rows of a teacher) or d (features), whichever is less.

    Args:
        features: public, of all rows that can be in a shard, (n, d), on the device where the work is to be done.
        asked: of the queries, (q, d), made the same way.
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

    known, queries = _standard(features, asked, num_classes, ridge)
    return _linear(known, queries, num_classes, heads)


def one_shot_teachers(features: Tensor, asked: Tensor, num_classes: int, *, ridge: float = 1e-3) -> Teach:
    """The head of one look, on each teacher's own labels: W_t = mean_{i∈t} (onehot(y_i) − 1/K) φ_iᵀ (Σ + ρ)^{-1}.

    Σ is the second moment of the features of *all* rows. It is public, so it is solved once for all teachers, and a
    teacher is a sum over its rows. Its errors are its own and average out over teachers, where those of
    `ridge_teachers` are alike: single teachers are worse, and with a small ρ and enough of them the vote is better.
    Arguments as in `ridge_teachers`.
    """
    known, queries = _standard(features, asked, num_classes, ridge)
    moment = known.mT @ known / len(known) + ridge * _eye(known.shape[1], known)
    whitened = torch.cholesky_solve(queries.mT, torch.linalg.cholesky(moment)).mT
    return _linear(known, whitened, num_classes, lambda own, targets: targets.mT @ own / own.shape[1])


def _linear(features: Tensor, queries: Tensor, num_classes: int, heads: _Heads) -> Teach:
    def teach(numbers: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        chosen, classes = (torch.from_numpy(array.astype(np.int64)).to(features.device) for array in (rows, labels))
        weights = heads(features[chosen], one_hot(classes, num_classes).to(features) - 1 / num_classes)
        return _votes(queries, weights).cpu().numpy()

    return teach


def _votes(queries: Tensor, weights: Tensor) -> Tensor:
    """The class with the largest score, (t, q); one matrix product for all teachers, in pieces that fit."""
    teachers, num_classes, width = weights.shape
    columns = weights.reshape(teachers * num_classes, width).mT
    cells = _GPU_CELLS if queries.is_cuda else _CPU_CELLS
    parts = queries.split(max(1, cells // (teachers * num_classes)))
    return torch.cat([(part @ columns).view(-1, teachers, num_classes).argmax(dim=2) for part in parts]).mT


def _standard(features: Tensor, asked: Tensor, num_classes: int, ridge: float) -> tuple[Tensor, Tensor]:
    """Both centred and scaled by the features' own mean and mean square length."""
    if features.ndim != 2 or asked.ndim != 2 or features.shape[1] != asked.shape[1] or not len(features):
        raise ValueError(f"features {tuple(features.shape)} and asked {tuple(asked.shape)} must be (n, d) and (q, d)")
    if not ridge > 0:
        raise ValueError(f"ridge={ridge} is not a penalty; give a number above 0")
    checked_count("num_classes", num_classes)
    mean = features.mean(dim=0)
    known = features - mean
    # A tensor, not a number: nothing waits for the device.
    scale = known.square().sum(dim=1).mean().sqrt().clamp_min(torch.finfo(known.dtype).tiny)
    return known / scale, (asked.to(features) - mean) / scale


def _eye(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)


# --- teacher_networks --------------------
#
# Many small networks trained at once, one per label shard: `torch.func` stacks their weights, one pass moves them all.
#
#     loss of teacher t = mean_b CE(net_t(x_b), y_b)  +  λ · mean_u 1[max p_u ≥ τ] · CE(argmax p_u, net_t(strong(x_u)))
#     with b from its own labelled rows, u from all rows, p_u = softmax(net_t(weak(x_u))) without gradient
#
# The second term is FixMatch (Sohn et al. 2020), by which Malek et al. 2021 trained the teachers of PATE-FM; without
# `consistency` it is left out. Losses are added up over teachers and every parameter belongs to one of them, so its
# gradient, and each element of the optimiser's state, is that teacher's alone.


# Logits of queries held at once over all teachers: rows times teachers.
_ROWS_AT_ONCE = 1 << 14

Stacked = dict[str, Tensor]


@dataclass(frozen=True)
class Consistency:
    """Rows without labels in the training of a teacher: FixMatch.

    Args:
        weak, strong: views of the inputs; `strong_views.weak_view()` and `strong_view()` for images in [0, 1].
        rows: how many unlabelled rows in each step; all teachers see the same ones.
        threshold, strength: τ and λ.
    """

    weak: Augment
    strong: Augment
    rows: int = 64
    threshold: float = 0.95
    strength: float = 1.0


def network_teachers(
    build: Callable[[], nn.Module],
    inputs: Tensor,
    asked: Tensor,
    *,
    steps: int,
    batch_size: int = 64,
    learning_rate: float = 0.03,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    augment: Augment | None = None,
    consistency: Consistency | None = None,
    seed: int = 0,
) -> Teach:
    """A `teach` for `TeacherVotes` that trains its teachers side by side: Nesterov SGD, cosine to zero.

    Args:
        build: makes one network; called once per teacher under a seed of its own. No batch norm: its statistics are not
            weights (`labeldp.models.zoo.group_norm` replaces it).
        inputs: public, of all rows, on the device where the work is to be done.
        asked: of the queries.
        steps, batch_size: each step draws so many of the teacher's own rows, with repeats.
        learning_rate, momentum, weight_decay: of SGD; the weight decay is on all parameters.
        augment: changes the labelled rows of a batch; `consistency.weak` does when this is None.
        consistency: trains on unlabelled rows too.
        seed: of first weights, batches and views; public.

    >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).repeat(20, 1)
    >>> rows = np.arange(40).reshape(4, 10)
    >>> teach = network_teachers(lambda: nn.Linear(2, 2), x, x[:3], steps=40, learning_rate=0.5)
    >>> teach(np.arange(4), rows, rows % 2)[3]
    array([0, 1, 0])
    """
    checked_count("steps", steps)
    checked_count("batch_size", batch_size)

    def teach(numbers: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        school = _School(build, numbers, seed, inputs.device)
        generator = Generator(inputs.device).manual_seed(_seed_of(seed, int(numbers[0])))
        own, classes = (torch.from_numpy(array.astype(np.int64)).to(inputs.device) for array in (rows, labels))
        lessons = _Lessons(inputs, own, classes, augment, consistency, generator)
        optimizer = torch.optim.SGD(
            school.parameters.values(), learning_rate, momentum, weight_decay=weight_decay, nesterov=momentum > 0
        )
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = learning_rate * (1 + math.cos(math.pi * step / steps)) / 2
            optimizer.zero_grad(set_to_none=True)
            lessons.loss(school, batch_size).backward()
            optimizer.step()
        return school.votes(asked).cpu().numpy()

    return teach


class _School:
    """The weights of all teachers, (t, …) each, and the one network through which they pass."""

    def __init__(self, build: Callable[[], nn.Module], numbers: np.ndarray, seed: int, device: torch.device) -> None:
        networks = [_built(build, _seed_of(seed, int(number))).to(device) for number in numbers]
        if any(isinstance(module, _BatchNorm) for module in networks[0].modules()):
            raise ValueError("the network has batch norm, whose statistics are not weights; use zoo.group_norm(model)")
        self.parameters, self.buffers = stack_module_state(networks)
        self.shape = copy.deepcopy(networks[0]).to("meta")

    def __call__(self, inputs: Tensor, own: bool) -> Tensor:
        """Logits (t, b, K) of inputs (t, b, …), each teacher its own, or (b, …) for all."""
        apply = vmap(self._one, in_dims=(0, 0, 0 if own else None), randomness="different")
        return apply(self.parameters, self.buffers, inputs)

    def _one(self, parameters: Stacked, buffers: Stacked, inputs: Tensor) -> Tensor:
        return functional_call(self.shape, (parameters, buffers), (inputs,))

    @torch.no_grad()
    def votes(self, asked: Tensor) -> Tensor:
        """The likeliest class of every query, (t, q)."""
        self.shape.eval()
        teachers = len(next(iter(self.parameters.values())))
        parts = asked.split(max(1, _ROWS_AT_ONCE // teachers))
        return torch.cat([self(part, own=False).argmax(dim=2) for part in parts], dim=1)


@dataclass(frozen=True, eq=False)
class _Lessons:
    """What the teachers of one call learn from, on the device. Holds labels: it must not outlive the call."""

    inputs: Tensor
    rows: Tensor
    labels: Tensor
    augment: Augment | None
    consistency: Consistency | None
    generator: Generator

    def __repr__(self) -> str:
        return f"_Lessons({len(self.rows)} teachers)"

    def loss(self, school: _School, batch_size: int) -> Tensor:
        """Σ_t loss of teacher t on a fresh batch."""
        teachers, size = self.rows.shape
        place = torch.randint(size, (teachers, batch_size), device=self.rows.device, generator=self.generator)
        chosen = self.inputs[self.rows.gather(1, place).flatten()]
        weak = self.augment or (self.consistency.weak if self.consistency else None)
        batch = chosen if weak is None else weak(chosen, self.generator)
        logits = school(batch.view(teachers, batch_size, *batch.shape[1:]), own=True)
        loss = cross_entropy(logits.flatten(0, 1), self.labels.gather(1, place).flatten(), reduction="sum") / batch_size
        return loss if self.consistency is None else loss + self._consistent(school, self.consistency)

    def _consistent(self, school: _School, how: Consistency) -> Tensor:
        place = torch.randint(len(self.inputs), (how.rows,), device=self.rows.device, generator=self.generator)
        chosen = self.inputs[place]
        with torch.no_grad():
            beliefs = school(how.weak(chosen, self.generator), own=False).softmax(dim=2)
            confidence, targets = beliefs.max(dim=2)
        logits = school(how.strong(chosen, self.generator), own=False)
        losses = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return how.strength * ((confidence >= how.threshold).flatten() * losses).sum() / how.rows


def _built(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """One network with first weights of this seed; the global generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().train()


def _seed_of(seed: int, number: int) -> int:
    return (seed * 1_000_003 + number) % (1 << 62)
