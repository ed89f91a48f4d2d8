"""Many small networks trained at once, one per label shard: `torch.func` stacks their weights, one pass moves them all.

    loss of teacher t = mean_b CE(net_t(x_b), y_b)  +  λ · mean_u 1[max p_u ≥ τ] · CE(argmax p_u, net_t(strong(x_u)))
    with b from its own labelled rows, u from all rows, p_u = softmax(net_t(weak(x_u))) without gradient

The second term is FixMatch (Sohn et al. 2020), by which Malek et al. 2021 trained the teachers of PATE-FM; without
`consistency` it is left out. Losses are added up over teachers and every parameter belongs to one of them, so its
gradient, and each element of the optimiser's state, is that teacher's alone.
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
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from labeldp.learning.augment import Augment
from labeldp.learning.teachers import Teach
from labeldp.models.shared import checked_count

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
