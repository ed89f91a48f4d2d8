"""Train two networks that judge the labels for each other: DivideMix, with weak views to judge and strong to learn.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import log_softmax

from labeldp.features.augment import Augment, learned_view, weak_view
from labeldp.features.cache import content_key
from labeldp.learning.evidence import Labels
from labeldp.learning.optimisers import MakeOptimizer, Schedule, piecewise, sgd
from labeldp.learning.progress import Progress, Report
from labeldp.learning.train import channels_first, channels_last, computing, loop
from labeldp.models.zoo import checked_count

# Losses of labels, (m,) → how likely each label is right, (m,).
Judge = Callable[[Tensor], Tensor]
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
    report: Report | None = None,
    checkpoint: Path | None = None,
    every: int = 10,
    seconds: float | None = None,
) -> Pair:
    """Train two networks by each other's judgement; return both as one model, in eval mode.

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
        report: called after every epoch; `Progress.believed` is the share of labels above the threshold.
        checkpoint, every: a file written every so many epochs and at the end, and resumed from when it exists.
        seconds: after so long, at the end of an epoch, write the checkpoint and raise `PausedError`.
    """
    checked_count("batch_size", batch_size)
    checked_count("warmup", warmup, 0)
    checked_count("steps", 1 if steps is None else steps)
    if not isinstance(inputs, Tensor) or len(inputs) != len(labels):
        count = f"{len(inputs)} rows" if isinstance(inputs, Tensor) else f"a {type(inputs).__name__}"
        raise ValueError(f"inputs is {count} for {len(labels)} labels; give one tensor with a row for each")
    if int((labels.weights > 0).sum()) < 2:
        raise ValueError("labels has fewer than two rows with a label; give more")
    if not 0 <= threshold <= 1 or not temperature > 0 or not mixup > 0 or not strength >= 0:
        given = f"threshold={threshold}, temperature={temperature}, mixup={mixup}, strength={strength}"
        raise ValueError(f"{given}: give a probability, two positive numbers, and 0 or more")
    pair = Pair(model, another(model, seed) if twin is None else twin)
    channels_last(pair)
    shares = torch.full((labels.num_classes,), 1 / labels.num_classes) if prior is None else torch.as_tensor(prior)
    task = _Task(
        pair, inputs, labels, labels.rows(), weak or weak_view(), strong or learned_view(), judge or by_mixture(),
        history, batch_size, steps, threshold, temperature, mixup, shares.to(inputs.device, torch.float32), bf16,
        [torch.compile(net) if compiled else net for net in pair.children()],
    )  # fmt: skip
    believed = torch.tensor(math.nan)

    def losses(epoch: int, generator: Generator) -> Iterator[tuple[float, Tensor]]:
        nonlocal believed
        right = None if epoch < warmup else task.judged(generator)
        believed = torch.tensor(math.nan) if right is None else (right[:, task.known] > threshold).float().mean()
        pull = strength * min(1.0, (epoch - warmup) / max(ramp, 1))
        for number in (0, 1):
            if right is None:
                found = task.warm_up(number, generator)
            else:
                # Not its own judgement: a network that believed its own errors would keep them.
                found = task.learn(number, right[1 - number], pull, generator, (seed, epoch, number))
            yield from ((epoch / epochs, loss) for loss in found)

    def tell(progress: Progress) -> None:
        if report is not None:
            report(replace(progress, believed=believed.item()))

    given = (epochs, warmup, batch_size, steps, threshold, strength, ramp, temperature, mixup, history, seed)
    loop(
        task.memory, losses, epochs=epochs, optimizer=optimizer or sgd(0.02, weight_decay=5e-4, nesterov=False),
        schedule=schedule or piecewise((0.5,), warmup=0.0), seed=seed, report=tell, checkpoint=checkpoint, every=every,
        seconds=seconds, run=content_key("co-refinement", str(given), labels.targets, labels.weights),
    )  # fmt: skip
    channels_first(pair)
    return pair.eval()


@dataclass(eq=False)
class _Task:
    """What both networks learn, and from what; row numbers in, losses out."""

    pair: Pair
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
    bf16: bool | None
    forwards: list[Any]

    def __post_init__(self) -> None:
        self.device = self.inputs.device
        self.memory = _Memory(self.pair, self.device)

    def warm_up(self, number: int, generator: Generator) -> Iterator[Tensor]:
        """Yield the losses of an epoch of one network on the labels as they are."""
        objective = self.labels.objective()
        self._net(number).train()
        for rows in self._batches(self.known, generator):
            logits = self._logits(number, self._view(self.weak, rows, generator))
            yield objective(logits, rows).mean()

    def judged(self, generator: Generator) -> Tensor:
        """Return how likely each network finds each label right, (2, n); 0 for rows without a label."""
        found = torch.stack([self._label_losses(number, generator) for number in (0, 1)])
        self.memory.losses = [*self.memory.losses, found][-max(self.history, 1) :]
        mean = torch.stack(self.memory.losses).mean(dim=0)
        right = torch.zeros(2, len(self.labels), device=self.device)
        for number in (0, 1):
            right[number, self.known] = self.judge(mean[number])
        return right

    def _label_losses(self, number: int, generator: Generator) -> Tensor:
        """Return the cross-entropy of every label under a weak view, by a network at rest, (m,)."""
        self._net(number).eval()
        parts = []
        for rows in self.known.split(_ROWS_AT_ONCE):
            with torch.no_grad():
                logits = self._logits(number, self._view(self.weak, rows, generator))
            parts.append(-(self.labels.targets[rows] * log_softmax(logits, dim=1)).sum(dim=1))
        return torch.cat(parts)

    def learn(
        self, number: int, right: Tensor, strength: float, generator: Generator, seed: tuple[int, int, int]
    ) -> Iterator[Tensor]:
        """Yield the losses of an epoch of one network by the other's judgement."""
        # The rows whose labels are believed, at least a batch, and all others. Waits for the device.
        sure = right > self.threshold
        believed, others = sure.nonzero().squeeze(1), (~sure).nonzero().squeeze(1)
        least = min(self.batch_size, len(self.known))
        if len(believed) < least:
            believed = right.topk(least).indices
        others = others if len(others) else believed
        batches = self._batches(believed, generator)
        # max(λ, 1 − λ), λ from Beta(α, α), one per step, drawn ahead: a draw in the loop would wait for the host.
        drawn = np.random.default_rng(seed).beta(self.mixup, self.mixup, size=len(batches))
        weights = torch.from_numpy(np.maximum(drawn, 1 - drawn)).float().to(self.device)
        self._net(1 - number).eval()
        self._net(number).train()
        for rows, weight in zip(batches, weights.unbind(), strict=True):
            pick = others[torch.randint(len(others), (len(rows),), device=self.device, generator=generator)]
            targets = self._targets(number, rows, pick, right, generator)
            images = self._view(self.strong, torch.cat((rows, rows, pick, pick)), generator)
            partner = torch.randperm(len(images), device=self.device, generator=generator)
            logits = self._logits(number, torch.lerp(images[partner], images, weight.to(images.dtype)))
            mixed = torch.lerp(targets[partner], targets, weight)
            yield mixed_loss(logits, mixed, 2 * len(rows), strength, self.prior)

    @torch.no_grad()
    def _targets(self, number: int, rows: Tensor, others: Tensor, right: Tensor, generator: Generator) -> Tensor:
        """Return refined labels of the believed rows, then guesses of the others; each twice, for two strong views."""
        n = len(rows)
        views = self._view(self.weak, torch.cat((rows, rows, others, others)), generator)
        own = torch.softmax(self._logits(number, views), dim=1)
        helper = torch.softmax(self._logits(1 - number, views[2 * n :]), dim=1)
        known = refined(self.labels.targets[rows], right[rows], (own[:n] + own[n : 2 * n]) / 2, self.temperature)
        guess = sharpened((own[2 * n : 3 * n] + own[3 * n :] + helper[:n] + helper[n:]) / 4, self.temperature)
        return torch.cat((known, known, guess, guess))

    def _batches(self, rows: Tensor, generator: Generator) -> list[Tensor]:
        """Return an epoch of these rows in random order, all batches of one size: each row once, or as `steps` want."""
        size = min(self.batch_size, len(rows))
        steps = len(rows) // size if self.steps is None else self.steps
        rounds = -(-steps * size // len(rows))
        orders = [torch.randperm(len(rows), device=self.device, generator=generator) for _ in range(rounds)]
        return list(rows[torch.cat(orders)[: steps * size]].split(size))

    def _net(self, number: int) -> nn.Module:
        return (self.pair.first, self.pair.second)[number]

    def _logits(self, number: int, images: Tensor) -> Tensor:
        with computing(self.device, self.bf16):
            return self.forwards[number](images).float()

    def _view(self, change: Augment, rows: Tensor, generator: Generator) -> Tensor:
        with torch.no_grad():
            return change(self.inputs[rows], generator)


class _Memory(nn.Module):
    """Both networks, and the losses of all labels in the last epochs: what a checkpoint must hold."""

    def __init__(self, pair: Pair, device: torch.device) -> None:
        super().__init__()
        self.pair, self.device = pair, device
        self.losses: list[Tensor] = []

    def get_extra_state(self) -> list[Tensor]:
        return self.losses

    def set_extra_state(self, state: Any) -> None:
        self.losses = [losses.to(self.device) for losses in state]


class Pair(nn.Module):
    """Two networks as one: the logarithm of their mean probabilities."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (n, …) → (n, K)."""
        both = torch.stack([log_softmax(net(inputs).float(), dim=1) for net in (self.first, self.second)])
        return both.logsumexp(dim=0) - math.log(2)


def another(model: nn.Module, seed: int = 0) -> nn.Module:
    """Return a copy with the entries of every weight in another order: other first weights of the same distribution.

    Right for entries drawn independently, not for weights that were trained: a plain copy keeps what those know.
    """
    made, generator = copy.deepcopy(model), Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return made


# -- targets and loss -------------------------------------------------------------------------------------------------


def refined(labels: Tensor, right: Tensor, guesses: Tensor, temperature: float) -> Tensor:
    """Return sharpen(w·label + (1 − w)·guess), rows (n, K), w (n,)."""
    return sharpened(torch.lerp(guesses, labels, right[:, None]), temperature)


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    """Return p^{1/T}, made to sum to 1.

    >>> sharpened(torch.tensor([[0.6, 0.4]]), 0.5).round(decimals=4)
    tensor([[0.6923, 0.3077]])
    """
    # In logarithms: small probabilities to a high power would vanish together.
    return torch.softmax(probabilities.clamp_min(1e-30).log() / temperature, dim=1)


def mixed_loss(logits: Tensor, targets: Tensor, labelled: int, strength: float | Tensor, prior: Tensor) -> Tensor:
    """Add cross-entropy of the first `labelled` rows, λ_u · mean squared error of the others, a penalty on classes.

    The penalty Σ_c prior_c·log(prior_c / mean prediction_c) keeps the networks from giving all rows to one class.
    """
    logs = log_softmax(logits, dim=1)
    likelihood = -(targets[:labelled] * logs[:labelled]).sum(dim=1).mean()
    distance = (logs[labelled:].exp() - targets[labelled:]).square().mean()
    mean = logs.exp().mean(dim=0).clamp_min(1e-12)
    penalty = (torch.xlogy(prior, prior) - prior * mean.log()).sum()
    return likelihood + strength * distance + penalty


# -- which labels are right -------------------------------------------------------------------------------------------


def by_mixture(iterations: int = 20) -> Judge:
    """Take the lower one of two Gaussians fitted to the losses for right labels (Arazo et al. 2019; Li et al. 2020)."""

    def judge(losses: Tensor) -> Tensor:
        values = (losses - losses.amin()) / (losses.amax() - losses.amin()).clamp_min(1e-12)
        return two_gaussians(values, iterations).lower(values)

    return judge


def by_response(epsilon: float) -> Judge:
    """Judge by Bayes' rule where labels are randomized response at ε, with p the network's probability of the response.

        P(response is right | x, response) = e^ε·p / (e^ε·p + 1 − p)

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
        """Return the log of weight times density of both parts, (n, 2)."""
        distance = (values.double()[:, None] - self.means).square() / self.variances
        return self.weights.log() - 0.5 * (distance + self.variances.log() + math.log(2 * math.pi))

    def lower(self, values: Tensor) -> Tensor:
        """Return the probability of being of the part with the lower mean, (n,), in the numbers' own type."""
        return torch.softmax(self.log_joint(values), dim=1)[:, 0].to(values.dtype)


def two_gaussians(values: Tensor, iterations: int = 20, floor: float = 5e-4) -> TwoGaussians:
    """Fit by expectation-maximisation from the best split into two (Dempster, Laird and Rubin 1977).

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
    """Split values in two by exact two-means on a line: (1, 0) or (0, 1) for each value, (n, 2).

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
