"""Train by a mean teacher: what the averaged network believes of a row, and what was released of it, together.

    q_i = softmax(slow network (weak view of x_i))                 the teacher, whose weights are a moving average
    r_i = q_i − ∂ objective(z, i) / ∂z  at z = log q_i              what the private label makes of that belief
    loss = (1 − w) · mean_labelled objective(model(strong view of x_i), i)
           + w · mean_i CE(r_i^{1/T}, model(strong view of x_i))            for a row without a label r_i = q_i

A. Tarvainen and H. Valpola, "Mean teachers are better role models", 2017, with the weak and strong views of Sohn et
al. 2020 and a target that knows the label. For the likelihood of a response, −log Σ_c softmax(z)_c·P(response | c),
the gradient in the second line is q − r with r_c ∝ q_c·P(response | c): r is the posterior with the teacher as prior,
and the last term is expectation-maximisation with the averaged network as the expectation. For the cross-entropy to a
target t it is q − t, and r = t. `mean_teacher` has the signature of `labeldp.learning.train.fit`, so every recipe with
a `fit` argument can train by it.

Rows cost four passes forward (one for the teacher, three for a step), where FixMatch with seven unlabelled rows to a
labelled one costs six or more. A teacher that knows nothing yet teaches itself one class: the ramp, w from near 0 to
λ ≤ 1, keeps it out until the labels have taught it something. One that starts well (`features.encoders.begin_as`) needs
none, and can have all of the loss, λ = 1: a network memorises noisy responses in time, likelihood or not, and the
teacher's posterior holds the same responses against what other rows have taught. From random weights λ = 1 is slow. In
long training the teacher remembers rows, too, and counts their responses again; distillation in `one_shot_prior` does
not.
"""

from __future__ import annotations

import math
from typing import Any, Unpack, cast

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import log_softmax

from labeldp.features.augment import Augment, learned_view, weak_view
from labeldp.features.cache import content_key
from labeldp.learning.evidence import Objective
from labeldp.learning.optimisers import one_cycle, sgd
from labeldp.learning.train import Ahead, Averaged, Batch, Inputs, LoopOptions, in_batches, minimise
from labeldp.models.zoo import checked_count
from labeldp.ranks import part_of


def mean_teacher(
    model: nn.Module,
    inputs: Inputs,
    objective: Objective,
    *,
    epochs: int,
    rows: Tensor | None = None,
    batch_size: int = 512,
    temperature: float = 1.0,
    strength: float = 0.5,
    ramp: float = 0.4,
    weak: Augment | None = None,
    strong: Augment | None = None,
    prior: Tensor | None = None,
    average: float = 0.99,
    compiled: bool = False,
    seed: int = 0,
    **loop: Unpack[LoopOptions],
) -> nn.Module:
    """Train by the teacher's beliefs and the objective; return the model, in place, in eval mode, weights averaged.

    Args:
        inputs: of all rows, labelled or not, on the model's device; an epoch goes over all of them once.
        objective: (logits, row numbers) → loss per row; called with labelled rows only.
        rows: the labelled rows (all when None), on the same device.
        temperature: T; below 1 sharpens the teacher's beliefs.
        strength, ramp: λ, how much of the loss is the teacher's in the end, from 0 to 1, and the share of training over
            which it grows to that, w = λ·exp(−5·(1 − t)²).
        weak, strong: views of the inputs, `weak_view()` and `learned_view()` when None, which are for images in [0, 1];
            for scaled images wrap them in `augment.scaled`.
        prior: class shares, (K,), to which the teacher's beliefs are held; not used when None.
        average: decay of the moving average of the weights, above 0.
        compiled: run through torch.compile.
        seed: of order and views.
        loop: others of `minimise`. `sgd(0.03)` and `one_cycle(0.2)` unless given.
    """
    if not isinstance(inputs, Tensor):
        raise ValueError("inputs is a tuple; the mean teacher changes views of one tensor, give that one")
    if not temperature > 0 or not 0 <= strength <= 1:
        raise ValueError(f"temperature={temperature}, strength={strength}; give more than 0, and a share from 0 to 1")
    if not 0 <= ramp <= 1 or not 0 < average < 1:
        raise ValueError(f"ramp={ramp}, average={average}; give a share of training, and a decay between 0 and 1")
    having = torch.arange(len(inputs), device=inputs.device) if rows is None else rows.to(inputs.device)
    if len(having) == 0:
        raise ValueError("rows is empty, so the classes are unknown; give at least one labelled row")
    labelled = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device).index_fill_(0, having, True)
    network = Averaged(model, average, prior)
    teacher = cast("nn.Module", network.slow)
    forward: Any = torch.compile(model) if compiled else model
    gentle, hard = weak or weak_view(), strong or learned_view()
    size = min(checked_count("batch_size", batch_size), len(inputs))

    def views(rows: Tensor, generator: Generator) -> list[tuple[Tensor, ...]]:
        some = inputs[rows]
        return in_batches((gentle(some, generator), hard(some, generator)), (part_of(size),) * 2)

    ahead = Ahead(views, size, inputs)

    def arguments(batch: Batch) -> tuple[Tensor, ...]:
        # By the steps before this one.
        share = strength * ramped(max(0, batch.step - 1) / batch.steps, ramp)
        return batch.rows, torch.full((), share, device=inputs.device), *ahead(batch)

    def loss(rows: Tensor, share: Tensor, easy: Tensor, difficult: Tensor) -> Tensor:
        with torch.no_grad():
            beliefs = network.aligned(torch.softmax(teacher.eval()(easy).float(), dim=1))
        # The objective may know nothing of a row without a label, so another row stands in, and does not count.
        known = labelled[rows]
        stand_in = torch.where(known, rows, having[0])
        targets = torch.where(known[:, None], corrected(beliefs, objective, stand_in), beliefs)
        targets = torch.softmax(targets.clamp_min(1e-12).log() / temperature, dim=1)
        logits = forward(difficult).float()
        own = torch.where(known, objective(logits, stand_in), 0.0).sum() / known.sum().clamp_min(1)
        taught = -(targets * log_softmax(logits, dim=1)).sum(dim=1).mean()
        return own.lerp(taught, share)

    usual: dict[str, Any] = {"optimizer": sgd(0.03, weight_decay=5e-4), "schedule": one_cycle(0.2)}
    settings: Any = {**usual, **loop, "batch_size": size}
    run = content_key("mean teacher", str((epochs, batch_size, temperature, strength, ramp, average, seed)), labelled)
    minimise(
        network, loss, len(inputs), arguments=arguments, epochs=epochs, after=network.follow, seed=seed, run=run,
        **settings,
    )  # fmt: skip
    return network.finish()


def ramped(done: float, ramp: float) -> float:
    """Return exp(−5·(1 − t)²), t the share of the ramp that is done: from 0.007 to 1.

    >>> [round(ramped(done, 0.4), 3) for done in (0.0, 0.2, 0.4, 1.0)]
    [0.007, 0.287, 1.0, 1.0]
    """
    return math.exp(-5 * (1 - min(1.0, done / ramp)) ** 2) if ramp else 1.0


def corrected(beliefs: Tensor, objective: Objective, rows: Tensor) -> Tensor:
    """Return r = q − ∂ objective / ∂ log q, (b, K), brought back to probabilities where weights above 1 push it out.

    >>> from labeldp.learning.evidence import forward_loss
    >>> likelihood = torch.tensor([[0.8, 0.2]])
    >>> objective = lambda z, rows: forward_loss(z, likelihood[rows].log())
    >>> corrected(torch.tensor([[0.5, 0.5]]), objective, torch.tensor([0]))
    tensor([[0.8000, 0.2000]])
    """
    with torch.enable_grad():
        scores = beliefs.clamp_min(1e-12).log().requires_grad_()
        (slope,) = torch.autograd.grad(objective(scores, rows).sum(), scores)
    moved = (beliefs - slope).clamp_min(0)
    return moved / moved.sum(dim=1, keepdim=True).clamp_min(1e-12)
