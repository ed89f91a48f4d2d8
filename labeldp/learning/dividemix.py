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

import copy
import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import log_softmax

from labeldp.features.augment import Augment, learned_view, weak_view
from labeldp.features.cache import content_key
from labeldp.learning.evidence import Labels
from labeldp.learning.train import (
    MakeOptimizer,
    PausedError,
    Progress,
    Schedule,
    channels_first,
    channels_last,
    piecewise,
    sgd,
)
from labeldp.models.zoo import checked_count

# --- two_networks --------------------
#
# Two networks trained side by side: their optimisers, random state, checkpoints, and both as one model.


@dataclass(frozen=True)
class Refined(Progress):
    """`Progress` with the share of labels that were believed in this epoch; nan while warming up."""

    believed: float


# Number of the epoch → its mean loss, on the device, and the share of labels believed.
OneEpoch = Callable[[int], tuple[Tensor, Tensor]]


class Pair(nn.Module):
    """Two networks as one: the logarithm of their mean probabilities."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, …) → (n, K)."""
        both = torch.stack([log_softmax(net(inputs).float(), dim=1) for net in (self.first, self.second)])
        return both.logsumexp(dim=0) - math.log(2)


def another(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy with the entries of every weight in another order: other first weights by the same law, whatever it was.

    Right for entries drawn independently, not for weights that were trained: a plain copy keeps what those know.
    """
    made, generator = copy.deepcopy(model), Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return made


class TwoNetworks:
    """Networks, optimisers, random state and the losses of the last epochs."""

    def __init__(
        self, nets: tuple[nn.Module, nn.Module], optimizer: MakeOptimizer, seed: int, bf16: bool | None, compiled: bool
    ) -> None:
        for net in nets:
            channels_last(net)
        self.nets = nets
        self.forwards: list[Any] = [torch.compile(net) if compiled else net for net in nets]
        self.optimizers = [optimizer(net.parameters()) for net in nets]
        self.peaks = [[group["lr"] for group in each.param_groups] for each in self.optimizers]
        self.device = next(nets[0].parameters()).device
        self.generator = Generator(self.device).manual_seed(seed)
        self.losses: list[Tensor] = []
        self._bf16 = self.device.type == "cuda" if bf16 is None else bf16

    def precision(self) -> AbstractContextManager[object]:
        """Mixed or full."""
        return torch.autocast(self.device.type, torch.bfloat16) if self._bf16 else nullcontext()

    def set_rate(self, factor: float) -> None:
        """The learning rates, as a share of their peaks."""
        for optimizer, peaks in zip(self.optimizers, self.peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor

    def step(self, number: int, loss: Tensor) -> None:
        """One step of one network."""
        self.optimizers[number].zero_grad(set_to_none=True)
        with repeatable():
            loss.backward()
        self.optimizers[number].step()

    def run(
        self,
        one_epoch: OneEpoch,
        epochs: int,
        run: str,
        report: Callable[[Refined], None] | None,
        checkpoint: Path | None,
        every: int,
        seconds: float | None,
    ) -> Pair:
        """All epochs from the checkpoint's on; see `co_refine` for the arguments."""
        begun = time.perf_counter()
        for epoch in range(self._resume(checkpoint, run), epochs):
            started = time.perf_counter()
            loss, believed = one_epoch(epoch)
            late = seconds is not None and time.perf_counter() - begun > seconds and epoch + 1 < epochs
            if late or epoch + 1 == epochs or (epoch + 1) % checked_count("every", every) == 0:
                self._save(checkpoint, run, epoch + 1)
            if report is not None:
                took = time.perf_counter() - started
                report(Refined(epoch + 1, epochs, loss.item(), took, believed.item()))
            if late:
                raise PausedError(f"paused after epoch {epoch + 1} of {epochs}; call again to go on from {checkpoint}")
        both = Pair(*self.nets)
        channels_first(both)
        return both.eval()

    def _save(self, path: Path | None, run: str, epoch: int) -> None:
        """In one step: an older file stays until the new one is whole."""
        if path is None:
            return
        state = {
            "nets": [net.state_dict() for net in self.nets],
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "generator": self.generator.get_state(), "losses": self.losses, "epoch": epoch, "run": run,
        }  # fmt: skip
        draft = path.with_name(path.name + ".part")
        torch.save(state, draft)
        os.replace(draft, path)

    def _resume(self, path: Path | None, run: str) -> int:
        if path is None or not path.exists():
            return 0
        # weights_only: a checkpoint is data, it cannot run code.
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state["run"] != run:
            raise ValueError(f"checkpoint {path.name} belongs to a run with other data or settings; name another file")
        for part, saved in zip((*self.nets, *self.optimizers), (*state["nets"], *state["optimizers"]), strict=True):
            part.load_state_dict(saved)
        self.generator.set_state(state["generator"])
        self.losses = [losses.to(self.device) for losses in state["losses"]]
        return int(state["epoch"])


def repeatable() -> AbstractContextManager[object]:
    """Convolutions on a GPU by the same algorithm each time, so that a seed decides the result."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=True)


# --- mixtures --------------------
#
# Two Gaussians on a line, fitted to many numbers on their device: which losses are those of right labels?


# Losses of labels, (m,) → how likely each label is right, (m,).
Judge = Callable[[Tensor], Tensor]


def by_mixture(iterations: int = 20) -> Judge:
    """Of two Gaussians fitted to the losses, the lower one is of right labels (Arazo et al. 2019; Li et al. 2020)."""

    def judge(losses: Tensor) -> Tensor:
        values = (losses - losses.amin()) / (losses.amax() - losses.amin()).clamp_min(1e-12)
        return two_gaussians(values, iterations).lower(values)

    return judge


def by_response(epsilon: float) -> Judge:
    """Bayes' rule where labels are randomized response at ε, with p the network's probability of the answer.

        P(answer is right | x, answer) = e^ε·p / (e^ε·p + 1 − p)

    In place of a mixture that has to guess the noise; here the noise is known, and p = e^{−loss}.

    >>> by_response(math.log(3))(torch.tensor([math.log(2)]))
    tensor([0.7500])
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon={epsilon} must be at least 0")

    def judge(losses: Tensor) -> Tensor:
        losses = losses.clamp_min(1e-7)
        return torch.sigmoid(epsilon - losses - torch.log(-torch.expm1(-losses)))

    return judge


@dataclass(frozen=True, eq=False)
class TwoGaussians:
    """w₀·N(m₀, v₀) + w₁·N(m₁, v₁) with m₀ ≤ m₁; each a tensor (2,), double, on the device of the numbers."""

    weights: Tensor
    means: Tensor
    variances: Tensor

    def log_joint(self, values: Tensor) -> Tensor:
        """log of weight times density of both parts, (n, 2)."""
        distance = (values.double()[:, None] - self.means).square() / self.variances
        return self.weights.log() - 0.5 * (distance + self.variances.log() + math.log(2 * math.pi))

    def lower(self, values: Tensor) -> Tensor:
        """The probability of being of the part with the lower mean, (n,), in the numbers' own type."""
        return torch.softmax(self.log_joint(values), dim=1)[:, 0].to(values.dtype)


def two_gaussians(values: Tensor, iterations: int = 20, floor: float = 5e-4) -> TwoGaussians:
    """Fit by expectation and maximisation from the best split into two (Dempster, Laird and Rubin 1977).

        r_ic ∝ w_c·N(x_i; m_c, v_c)
        w_c = Σ_i r_ic / n,   m_c = Σ_i r_ic x_i / Σ_i r_ic,   v_c = Σ_i r_ic (x_i − m_c)² / Σ_i r_ic + floor

    Nothing is read back from the device: the number of rounds is fixed and not by convergence.

    Args:
        values: (n,), n ≥ 2, finite.
        iterations: rounds.
        floor: added to every variance, so that no part shrinks to a point.

    >>> found = two_gaussians(torch.tensor([0.0, 0.1, 0.2, 2.0, 2.1, 2.2]), floor=1e-6)
    >>> found.means.round(decimals=3).tolist(), found.lower(torch.tensor([0.3, 1.9])).round().tolist()
    ([0.1, 2.1], [1.0, 0.0])
    """
    if values.ndim != 1 or len(values) < 2 or not floor > 0:
        raise ValueError(
            f"values has shape {tuple(values.shape)}, floor={floor}; give at least two numbers and floor > 0"
        )
    numbers = values.double()
    found = _from_shares(numbers, best_split(numbers), floor)
    for _ in range(checked_count("iterations", iterations)):
        found = _from_shares(numbers, torch.softmax(found.log_joint(numbers), dim=1), floor)
    order = found.means.argsort()
    return TwoGaussians(found.weights[order], found.means[order], found.variances[order])


def best_split(values: Tensor) -> Tensor:
    """Two-means on a line, exactly: 1 and 0, or 0 and 1, for each value, (n, 2), the least squares within the parts.

    The best parts are a prefix and a suffix of the sorted values; with prefix sums all n − 1 are compared at once.
    """
    ordered = values.sort().values
    sizes = torch.arange(1, len(values), device=values.device, dtype=values.dtype)
    below = ordered.cumsum(0)
    # Σ(x − m)² within = Σx² − (Σ below)²/k − (Σ above)²/(n − k): the last two are to be large. Centred, for the digits.
    centred = below[:-1] - sizes * (below[-1] / len(values))
    gain = centred.square() * (1 / sizes + 1 / (len(values) - sizes))
    # The boundary is halfway between two sorted neighbours; gather keeps the place on the device.
    place = gain.argmax(keepdim=True)
    border = (ordered.gather(0, place) + ordered.gather(0, place + 1)) / 2
    low = (values <= border).to(values.dtype)
    return torch.stack((low, 1 - low), dim=1)


def _from_shares(values: Tensor, shares: Tensor, floor: float) -> TwoGaussians:
    # A part without members keeps a trace of weight, not a division by nothing.
    sizes = shares.sum(dim=0) + 10 * torch.finfo(values.dtype).eps
    means = (shares * values[:, None]).sum(dim=0) / sizes
    variances = (shares * (values[:, None] - means).square()).sum(dim=0) / sizes + floor
    return TwoGaussians(sizes / len(values), means, variances)


# --- mixmatch --------------------
#
# Targets and loss of MixMatch (Berthelot et al. 2019) as DivideMix uses them (Li et al. 2020).


def refined(labels: Tensor, right: Tensor, guesses: Tensor, temperature: float) -> Tensor:
    """sharpen(w·label + (1 − w)·guess), rows (n, K), w (n,)."""
    return sharpened(torch.lerp(guesses, labels, right[:, None]), temperature)


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    """p^{1/T}, made to sum to 1.

    >>> sharpened(torch.tensor([[0.6, 0.4]]), 0.5).round(decimals=4)
    tensor([[0.6923, 0.3077]])
    """
    # In logarithms: small probabilities to a high power would vanish together.
    return torch.softmax(probabilities.clamp_min(1e-30).log() / temperature, dim=1)


def mixed_loss(logits: Tensor, targets: Tensor, labelled: int, strength: float | Tensor, prior: Tensor) -> Tensor:
    """Cross-entropy of the first `labelled` rows, λ_u · mean squared error of the others, and the penalty on classes.

    The penalty Σ_c prior_c·log(prior_c / mean prediction_c) keeps the networks from giving all rows to one class.
    """
    logs = log_softmax(logits, dim=1)
    likelihood = -(targets[:labelled] * logs[:labelled]).sum(dim=1).mean()
    distance = (logs[labelled:].exp() - targets[labelled:]).square().mean()
    mean = logs.exp().mean(dim=0).clamp_min(1e-12)
    penalty = (torch.xlogy(prior, prior) - prior * mean.log()).sum()
    return likelihood + strength * distance + penalty


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
