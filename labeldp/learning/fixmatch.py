"""Train by FixMatch: rows without a label learn, under strong changes, what the model is sure of under weak ones.

    loss = mean_b objective(model(weak(x_b)), b)  +  λ · mean_u 1[max q_u ≥ τ] · CE(argmax q_u, model(strong(x_u)))
    with q_u = softmax(model(weak(x_u)) / T), through which no gradient goes

K. Sohn et al., "FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence", 2020. In place of the
fixed threshold τ, rows may count by how sure guesses are on the whole: `SoftThreshold` (SoftMatch), `FreeThreshold`
(FreeMatch).

`fixmatch` has the signature of `labeldp.learning.train.fit`, so every recipe with a `fit` argument can train by it: the
private labels enter through the objective alone, hard or soft, weighted, or by their likelihood.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from labeldp.features.augment import Augment, strong_view, weak_view
from labeldp.features.cache import content_key
from labeldp.learning.evidence import Objective
from labeldp.learning.optimisers import seven_sixteenths, weights_sgd
from labeldp.learning.train import Ahead, Averaged, Inputs, LoopOptions, computing, in_batches, minimise
from labeldp.models.zoo import checked_count
from labeldp.ranks import part_of


def fixmatch(
    model: nn.Module,
    inputs: Inputs,
    objective: Objective,
    *,
    epochs: int,
    rows: Tensor | None = None,
    batch_size: int = 64,
    ratio: int = 7,
    threshold: float | Sure = 0.95,
    temperature: float = 1.0,
    strength: float = 1.0,
    weak: Augment | None = None,
    strong: Augment | None = None,
    prior: Tensor | None = None,
    average: float = 0.999,
    apart: bool = False,
    settled: bool = False,
    compiled: bool = False,
    seed: int = 0,
    **loop: Unpack[LoopOptions],
) -> nn.Module:
    """Train by FixMatch; return the model, in place and in eval mode, with the averaged weights.

    Args:
        inputs: of all rows, labelled or not, on the model's device; an epoch goes over all of them once.
        objective: (logits, row numbers) → loss per row; called with labelled rows only.
        rows: the labelled rows (all when None), on the same device; a batch of them is drawn for every step.
        batch_size, ratio: labelled rows in a step, and how many times as many unlabelled ones (μ).
        threshold: τ, or `SoftThreshold()` or `FreeThreshold(K)`, which follow the guesses.
        temperature, strength: T and λ.
        weak, strong: views of the inputs, `weak_view()` and `strong_view()` when None, which are for images in [0, 1];
            for scaled images wrap them in `augment.scaled`.
        prior: class shares, (K,), to which guesses are held (distribution alignment, Berthelot et al. 2020): q times
            prior over the running mean of q, made to sum to 1. Public, or from a release. Not used when None.
        average: decay of the moving average of the weights, which is what comes back; 0 is off.
        apart: guess in a pass of its own, without gradients, at two thirds of the work. Batch norms then see weak
            views and the rest apart; published, they see all together.
        settled: at the end, take the running means of batch norms anew, from weak views under the weights that come
            back (`settle_norms`). While training they follow strong views, too, and other weights.
        compiled: run through torch.compile: the same losses, up to rounding, in half of the time on a GPU.
        seed: of order, labelled batches and views.
        loop: others of `minimise`. `weights_sgd(0.03)` and `seven_sixteenths()` unless given.
    """
    if not isinstance(inputs, Tensor):
        raise ValueError("inputs is a tuple; FixMatch changes views of one tensor, give that one")
    if not isinstance(threshold, Sure) and not 0 <= threshold <= 1:
        raise ValueError(f"threshold={threshold} is not a probability; 0.95 is usual")
    if not temperature > 0 or not strength >= 0:
        raise ValueError(f"temperature={temperature}, strength={strength}; give more than 0, and 0 or more")
    if not 0 <= average < 1:
        raise ValueError(f"average={average} is not in [0, 1); 0.999 is usual, for thousands of steps")
    labelled = torch.arange(len(inputs), device=inputs.device) if rows is None else rows
    if len(labelled) == 0:
        raise ValueError("rows is empty, so the classes are unknown; give at least one labelled row")
    network = Averaged(model, average, prior)
    if isinstance(threshold, Sure):
        threshold = copy.deepcopy(threshold).to(inputs.device)  # each training begins with what it was given
        network.add_module("sure", threshold)
    # Two shapes, each its own: kernels for any shape would be slower.
    forward: Any = torch.compile(model, dynamic=False) if compiled else model
    many = min(checked_count("batch_size", batch_size) * checked_count("ratio", ratio), len(inputs))
    views = (weak or weak_view(), strong or strong_view())

    def batches(unlabelled: Tensor, generator: Generator) -> list[tuple[Tensor, ...]]:
        """Return of each batch the labelled rows, and the three views."""
        few, most = part_of(batch_size), part_of(many)
        count = (len(unlabelled) // most) * few
        chosen = labelled[torch.randint(len(labelled), (count,), device=inputs.device, generator=generator)]
        parts = three_views(inputs, chosen, unlabelled, *views, generator)
        return in_batches((chosen, *parts), (few, few, most, most))

    ahead = Ahead(batches, many, inputs)

    def loss(chosen: Tensor, *seen: Tensor) -> Tensor:
        known, guess, aim = _outputs(forward, seen, apart)
        beliefs = network.aligned(torch.softmax(guess / temperature, dim=1))
        return objective(known, chosen).mean() + strength * consistency(aim, beliefs, threshold)

    usual: dict[str, Any] = {"optimizer": weights_sgd(0.03), "schedule": seven_sixteenths()}
    settings: Any = {**usual, **loop, "batch_size": many}
    run = content_key(
        "fixmatch", str((epochs, batch_size, ratio, threshold, temperature, strength, average, apart, seed)), labelled
    )
    minimise(
        network, loss, len(inputs), arguments=ahead, epochs=epochs, after=network.follow, seed=seed, run=run, **settings
    )
    made = network.finish()
    return settle_norms(made, inputs, views[0], batch_size=many, seed=seed) if settled else made


def _outputs(forward: Any, views: Sequence[Tensor], apart: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits of labelled rows, of guesses, through which no gradient goes, and of the strong views."""
    if not apart:
        known, guess, aim = forward(torch.cat(list(views))).float().split([len(view) for view in views])
        return known, guess.detach(), aim
    with torch.no_grad():
        guess = forward(views[1]).float()
    known, aim = forward(torch.cat((views[0], views[2]))).float().split((len(views[0]), len(views[2])))
    return known, guess, aim


def three_views(
    inputs: Tensor, labelled: Tensor, unlabelled: Tensor, weak: Augment, strong: Augment, generator: Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Return weak views of the labelled rows, weak and strong views of the others."""
    other = inputs[unlabelled]
    known, gentle = weak(torch.cat((inputs[labelled], other)), generator).split((len(labelled), len(other)))
    return known, gentle, strong(other, generator)


class Sure(nn.Module):
    """Guesses (b, K) → how much each row counts, (b,), from 0 to 1; what it has seen of guesses is in its buffers.

    Args:
        follow: the share of a step in running means; of the first steps, when 1 over their number is more, that.
    """

    steps: Tensor

    def __init__(self, follow: float = 0.001) -> None:
        super().__init__()
        self.follow = follow
        self.register_buffer("steps", torch.tensor(0.0))

    def share(self) -> Tensor:
        """Count a step, and return its share."""
        self.steps.add_(1)
        return self.steps.reciprocal().clamp_min(self.follow)

    def extra_repr(self) -> str:
        """Return what distinguishes two of them."""
        return f"follow={self.follow}"


class SoftThreshold(Sure):
    """SoftMatch: a row counts by a Gaussian of how far its confidence is below the running mean of confidences.

        w = exp(−(m − μ)² / (2σ²/4)) for m = max q below μ, else 1

    with running mean μ and variance σ² of m (Chen et al. 2023). No row is left out, and the unsure ones count little.

    >>> SoftThreshold()(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]]))
    tensor([1.0000, 1.0000, 0.1353])
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, follow: float = 0.001) -> None:
        super().__init__(follow)
        self.register_buffer("mean", torch.tensor(0.0))
        self.register_buffer("variance", torch.tensor(0.0))

    def forward(self, beliefs: Tensor) -> Tensor:
        """Move the running mean and variance, and weigh."""
        confidence, share = beliefs.amax(dim=1), self.share()
        variance, mean = torch.var_mean(confidence)
        self.mean.lerp_(mean, share)
        self.variance.lerp_(variance, share)
        below = (confidence - self.mean).clamp_max(0)
        return torch.exp(-below.square() / (self.variance / 2).clamp_min(1e-12))


class FreeThreshold(Sure):
    """FreeMatch: a row counts where its confidence is at least its class's own threshold.

        τ_c = τ · p_c / max p,  w = 1[max q ≥ τ_c], c the likeliest class

    with τ the running mean of confidences and p that of guesses (Wang et al. 2023): classes that are guessed less are
    let in sooner.

    >>> FreeThreshold(2)(torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6]]))
    tensor([1., 0., 1.])
    """

    mean: Tensor
    shares: Tensor

    def __init__(self, num_classes: int, follow: float = 0.001) -> None:
        super().__init__(follow)
        self.register_buffer("mean", torch.tensor(0.0))
        self.register_buffer("shares", torch.zeros(checked_count("num_classes", num_classes)))

    def forward(self, beliefs: Tensor) -> Tensor:
        """Move the running means, and weigh."""
        (confidence, classes), share = beliefs.max(dim=1), self.share()
        self.mean.lerp_(confidence.mean(), share)
        self.shares.lerp_(beliefs.mean(dim=0), share)
        return (confidence >= self.mean * (self.shares / self.shares.amax())[classes]).float()


def consistency(logits: Tensor, beliefs: Tensor, threshold: float | Sure) -> Tensor:
    """Return the mean cross-entropy to the likeliest class, over all rows, those below the threshold counting 0.

    >>> sure = torch.tensor([[0.97, 0.03], [0.6, 0.4]])
    >>> consistency(torch.zeros(2, 2), sure, 0.95)
    tensor(0.3466)
    """
    confidence, targets = beliefs.max(dim=1)
    weights = threshold(beliefs) if isinstance(threshold, Sure) else confidence >= threshold
    return (weights * cross_entropy(logits, targets, reduction="none")).mean()


def settle_norms(model: nn.Module, inputs: Tensor, view: Augment, *, batch_size: int = 448, seed: int = 0) -> nn.Module:
    """Set the running means of batch norms to the means over one pass of views, under the weights as they are.

    Running means follow the last steps of a training, of other views and other weights than those that come back
    ("precise" norms: Wu and Johnson 2021). No label is used. Returns the model, changed in place, in eval mode.
    """
    norms = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    usual = [norm.momentum for norm in norms]
    generator = Generator(inputs.device).manual_seed(seed)
    order = torch.randperm(len(inputs), device=inputs.device, generator=generator)
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean of all batches
    model.train()
    with torch.no_grad():
        for rows in order[: len(order) // batch_size * batch_size or None].split(batch_size):
            seen = view(inputs[rows], generator)
            with computing(inputs.device, None):
                model(seen)
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum
    return model.eval()
