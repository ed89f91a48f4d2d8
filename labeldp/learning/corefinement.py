"""Two networks tell each other which labels to believe: DivideMix with weak views to judge and strong views to learn.

    1. warm up: both networks learn all labels as they are, under weak views
    2. every epoch, each network's losses say which labels are likely right: w_i = P(label i is right)
    3. the *other* network learns: labels with w_i above a threshold are refined, the rest are dropped and guessed,
           target of a label     sharpen(w_i·label_i + (1 − w_i)·own guess_i)
           target without one    sharpen(mean of both networks' guesses)
       where guesses are means over two weak views, and sharpen(p) ∝ p^{1/T}
    4. inputs are strong views, convexly combined in pairs, targets likewise;
           loss = CE(labelled) + λ_u · |softmax − target|² (others) + KL(prior ‖ mean prediction)

J. Li, R. Socher and S. Hoi, "DivideMix", 2020; K. Nishi, Y. Ding, A. Rich and T. Höllerer, "Augmentation Strategies for
Learning with Noisy Labels", 2021 (AugDescent). All on the device: two numbers are read back per network and epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from labeldp.learning.augment import Augment
from labeldp.learning.cache import content_key
from labeldp.learning.fit import MakeOptimizer, sgd
from labeldp.learning.mixmatch import mixed_loss, refined, sharpened
from labeldp.learning.mixtures import Judge, by_mixture
from labeldp.learning.schedules import Schedule, piecewise
from labeldp.learning.semisupervised import Labels
from labeldp.learning.strong_views import learned_view, weak_view
from labeldp.learning.two_networks import Pair, Refined, TwoNetworks, another, repeatable
from labeldp.models.shared import checked_count

_ROWS_AT_ONCE = 4096


def co_refine(
    model: nn.Module,
    inputs: Tensor,
    labels: Labels,
    *,
    epochs: int,
    twin: nn.Module | None = None,
    warmup: int = 10,
    batch_size: int = 128,
    steps: int | None = None,
    threshold: float = 0.5,
    strength: float = 25.0,
    ramp: int = 16,
    temperature: float = 0.5,
    mixup: float = 4.0,
    judge: Judge | None = None,
    history: int = 0,
    prior: Tensor | None = None,
    weak: Augment | None = None,
    strong: Augment | None = None,
    optimizer: MakeOptimizer | None = None,
    schedule: Schedule | None = None,
    bf16: bool | None = None,
    compiled: bool = False,
    seed: int = 0,
    report: Callable[[Refined], None] | None = None,
    checkpoint: Path | None = None,
    every: int = 10,
    seconds: float | None = None,
) -> Pair:
    """Train two networks by each other's judgement; returns both as one model, in eval mode.

    Args:
        model: the first network, trained in place.
        inputs: of all rows, on the model's device.
        labels: private labels of all rows or of some; their weights count while warming up.
        twin: the second network, of the same kind and other first weights; `another(model)` when None, which is right
            for random first weights only.
        warmup: epochs of learning the labels as they are.
        batch_size: labelled rows of a step; as many unlabelled ones come with them, and two views of each.
        steps: of either network in an epoch; as many as the labels in use fill when None. Give it where they are few.
        threshold: labels likelier right than this are believed.
        strength, ramp: λ_u, and over how many epochs after warming up it grows to that.
        temperature: T.
        mixup: parameter of the Beta distribution of the combinations' weights.
        judge: `by_mixture()` when None; `by_response(epsilon)` where labels are randomized response.
        history: the judge sees the mean loss of so many epochs; 0 for the last one's.
        prior: class shares, (K,); uniform when None.
        weak, strong: views, `weak_view()` and `learned_view()` when None, for images in [0, 1].
        optimizer, schedule: of either network; SGD of rate 0.02, a tenth after half of the epochs, when None.
        bf16: mixed precision with bfloat16; on when None and the device is a GPU.
        compiled: run through torch.compile.
        seed: of everything random but the first network's weights.
        report: told of every epoch.
        checkpoint, every: a file written every so many epochs and at the end, and resumed from when it exists.
        seconds: after so long, at the end of an epoch, write the checkpoint and raise `PausedError`.
    """
    _check(
        inputs,
        labels,
        (epochs, batch_size, warmup, 1 if steps is None else steps),
        threshold,
        temperature,
        mixup,
        strength,
    )
    if seconds is not None and checkpoint is None:
        raise ValueError(f"seconds={seconds} but checkpoint is None; name a file to go on from")
    shares = torch.full((labels.num_classes,), 1 / labels.num_classes) if prior is None else torch.as_tensor(prior)
    task = _Task(
        inputs, labels, labels.rows(), weak or weak_view(), strong or learned_view(), judge or by_mixture(), history,
        batch_size, steps, threshold, temperature, mixup, shares.to(inputs.device, torch.float32), seed,
    )  # fmt: skip
    given = (epochs, warmup, batch_size, steps, threshold, strength, ramp, temperature, mixup, history, seed)
    run = content_key("co-refinement", str(given), labels.targets, labels.weights)
    rate, make = schedule or piecewise((0.5,), warmup=0.0), optimizer or sgd(0.02, weight_decay=5e-4, nesterov=False)
    both = TwoNetworks((model, another(model, seed) if twin is None else twin), make, seed, bf16, compiled)

    def one_epoch(epoch: int) -> tuple[Tensor, Tensor]:
        both.set_rate(rate(epoch / epochs))
        if epoch < warmup:
            return _warm_up(task, both), torch.tensor(float("nan"))
        return _refine(task, both, epoch, strength * min(1.0, (epoch - warmup) / max(ramp, 1)))

    return both.run(one_epoch, epochs, run, report, checkpoint, every, seconds)


# -- one epoch --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Task:
    inputs: Tensor
    labels: Labels
    known: Tensor  # rows that have a label
    weak: Augment
    strong: Augment
    judge: Judge
    history: int
    batch_size: int
    steps: int | None
    threshold: float
    temperature: float
    mixup: float
    prior: Tensor
    seed: int

    def view(self, change: Augment, rows: Tensor, both: TwoNetworks) -> Tensor:
        with torch.no_grad(), torch.autocast(both.device.type, enabled=False):
            return change(self.inputs[rows], both.generator)


def _warm_up(task: _Task, both: TwoNetworks) -> Tensor:
    """An epoch of the labels as they are, for either network in its own order."""
    total, objective, batches = torch.zeros((), device=both.device), task.labels.objective(), []
    for number, net in enumerate(both.nets):
        net.train()
        batches = _batches(task, task.known, both)
        for rows in batches:
            with both.precision(), repeatable():
                logits = both.forwards[number](task.view(task.weak, rows, both)).float()
            loss = objective(logits, rows).mean()
            both.step(number, loss)
            total += loss.detach()
    return total / (2 * len(batches))


def _refine(task: _Task, both: TwoNetworks, epoch: int, strength: float) -> tuple[Tensor, Tensor]:
    """Judge all labels, then an epoch of either network by the other's judgement."""
    right = _judged(task, both)
    total = torch.zeros((), device=both.device)
    for number in (0, 1):
        # Not its own judgement: a network that believed its own errors would keep them.
        total += _learn(task, both, number, right[1 - number], epoch, strength) / 2
    return total, (right[:, task.known] > task.threshold).float().mean()


def _judged(task: _Task, both: TwoNetworks) -> Tensor:
    """How likely each network finds each label right, (2, n); 0 for rows without a label."""
    found = torch.stack([_losses(task, both, number) for number in (0, 1)])
    both.losses = [*both.losses, found][-max(task.history, 1) :]
    losses = torch.stack(both.losses).mean(dim=0)
    right = torch.zeros(2, len(task.labels), device=both.device)
    for number in (0, 1):
        right[number, task.known] = task.judge(losses[number])
    return right


def _losses(task: _Task, both: TwoNetworks, number: int) -> Tensor:
    """Cross-entropy of every label under a weak view, by a network at rest, (m,)."""
    both.nets[number].eval()
    parts = []
    for rows in task.known.split(_ROWS_AT_ONCE):
        with torch.no_grad(), both.precision(), repeatable():
            logits = both.forwards[number](task.view(task.weak, rows, both)).float()
        parts.append(-(task.labels.targets[rows] * log_softmax(logits, dim=1)).sum(dim=1))
    return torch.cat(parts)


def _learn(task: _Task, both: TwoNetworks, number: int, right: Tensor, epoch: int, strength: float) -> Tensor:
    """An epoch of one network; the mean loss."""
    believed, others = _divided(right, task)
    batches, total = _batches(task, believed, both), torch.zeros((), device=both.device)
    weights = _combinations(task.mixup, len(batches), (task.seed, epoch, number), both.device)
    both.nets[1 - number].eval()
    both.nets[number].train()
    for rows, weight in zip(batches, weights.unbind(), strict=True):
        pick = torch.randint(len(others), (len(rows),), device=both.device, generator=both.generator)
        loss = _step_loss(task, both, number, rows, others[pick], right, weight, strength)
        both.step(number, loss)
        total += loss.detach()
    return total / len(batches)


def _step_loss(
    task: _Task,
    both: TwoNetworks,
    number: int,
    rows: Tensor,
    others: Tensor,
    right: Tensor,
    weight: Tensor,
    strength: float,
) -> Tensor:
    targets = _targets(task, both, number, rows, others, right)
    images = task.view(task.strong, torch.cat((rows, rows, others, others)), both)
    partner = torch.randperm(len(images), device=both.device, generator=both.generator)
    images = torch.lerp(images[partner], images, weight.to(images.dtype))
    with both.precision(), repeatable():
        logits = both.forwards[number](images).float()
    mixed = torch.lerp(targets[partner], targets, weight)
    return mixed_loss(logits, mixed, 2 * len(rows), strength, task.prior)


def _targets(task: _Task, both: TwoNetworks, number: int, rows: Tensor, others: Tensor, right: Tensor) -> Tensor:
    """Refined labels of the believed rows, then guesses of the others; each twice, for two strong views."""
    n = len(rows)
    with torch.no_grad(), both.precision(), repeatable():
        views = task.view(task.weak, torch.cat((rows, rows, others, others)), both)
        own = torch.softmax(both.forwards[number](views).float(), dim=1)
        helper = torch.softmax(both.forwards[1 - number](views[2 * n :]).float(), dim=1)
    known = refined(task.labels.targets[rows], right[rows], (own[:n] + own[n : 2 * n]) / 2, task.temperature)
    guess = sharpened((own[2 * n : 3 * n] + own[3 * n :] + helper[:n] + helper[n:]) / 4, task.temperature)
    return torch.cat((known, known, guess, guess))


def _batches(task: _Task, rows: Tensor, both: TwoNetworks) -> list[Tensor]:
    """An epoch of these rows in random order, all batches of one size: each row once, or as `steps` want."""
    size = min(task.batch_size, len(rows))
    steps = len(rows) // size if task.steps is None else task.steps
    rounds = -(-steps * size // len(rows))
    orders = [torch.randperm(len(rows), device=both.device, generator=both.generator) for _ in range(rounds)]
    return list(rows[torch.cat(orders)[: steps * size]].split(size))


def _divided(right: Tensor, task: _Task) -> tuple[Tensor, Tensor]:
    """Rows whose labels are believed, at least a batch of them, and all others. Asks the device: once an epoch."""
    sure = right > task.threshold
    believed, others = sure.nonzero().squeeze(1), (~sure).nonzero().squeeze(1)
    least = min(task.batch_size, len(task.known))
    if len(believed) < least:
        believed = right.topk(least).indices
    return believed, others if len(others) else believed


def _combinations(alpha: float, steps: int, seed: tuple[int, int, int], device: torch.device) -> Tensor:
    """max(λ, 1 − λ), λ from Beta(α, α), one per step, drawn ahead: a draw inside the loop would wait for the host."""
    drawn = np.random.default_rng(seed).beta(alpha, alpha, size=steps)
    return torch.from_numpy(np.maximum(drawn, 1 - drawn)).float().to(device)


def _check(
    inputs: Tensor,
    labels: Labels,
    counts: tuple[int, int, int, int],
    threshold: float,
    temperature: float,
    mixup: float,
    strength: float,
) -> None:
    for name, value, low in zip(("epochs", "batch_size", "warmup", "steps"), counts, (1, 1, 0, 1), strict=True):
        checked_count(name, value, low)
    if not isinstance(inputs, Tensor) or len(inputs) != len(labels):
        count = f"{len(inputs)} rows" if isinstance(inputs, Tensor) else f"a {type(inputs).__name__}"
        raise ValueError(f"inputs is {count} for {len(labels)} labels; give one tensor with a row for each")
    if int((labels.weights > 0).sum()) < 2:
        raise ValueError("labels has fewer than two rows with a label; give more")
    if not 0 <= threshold <= 1 or not temperature > 0 or not mixup > 0 or not strength >= 0:
        given = f"threshold={threshold}, temperature={temperature}, mixup={mixup}, strength={strength}"
        raise ValueError(f"{given}: give a probability, two positive numbers, and 0 or more")
