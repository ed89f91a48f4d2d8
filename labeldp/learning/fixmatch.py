"""Train by FixMatch: rows without a label learn, under strong changes, what the model is sure of under weak ones.

    loss = mean_b objective(model(weak(x_b)), b)  +  λ · mean_u 1[max q_u ≥ τ] · CE(argmax q_u, model(strong(x_u)))
    with q_u = softmax(model(weak(x_u)) / T), through which no gradient goes

K. Sohn et al., "FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence", 2020. `fixmatch` has
the signature of `labeldp.learning.train.fit`, so every recipe with a `fit` argument can train by it: the private labels
enter through the objective alone, hard or soft, weighted, or by their likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from labeldp.features.augment import Augment, strong_view, weak_view
from labeldp.features.cache import content_key
from labeldp.learning.evidence import Objective
from labeldp.learning.optimisers import seven_sixteenths, weights_sgd
from labeldp.learning.train import Ahead, Averaged, Batch, Inputs, in_batches, minimise
from labeldp.models.zoo import checked_count


def fixmatch(
    model: nn.Module,
    inputs: Inputs,
    objective: Objective,
    *,
    epochs: int,
    rows: Tensor | None = None,
    batch_size: int = 64,
    ratio: int = 7,
    threshold: float = 0.95,
    temperature: float = 1.0,
    strength: float = 1.0,
    weak: Augment | None = None,
    strong: Augment | None = None,
    prior: Tensor | None = None,
    average: float = 0.999,
    apart: bool = False,
    compiled: bool = False,
    seed: int = 0,
    **loop: Any,
) -> nn.Module:
    """Train by FixMatch; return the model, in place and in eval mode, with the averaged weights.

    Args:
        inputs: of all rows, labelled or not, on the model's device; an epoch goes over all of them once.
        objective: (logits, row numbers) → loss per row; called with labelled rows only.
        rows: the labelled rows (all when None), on the same device; a batch of them is drawn for every step.
        batch_size, ratio: labelled rows in a step, and how many times as many unlabelled ones (μ).
        threshold, temperature, strength: τ, T and λ.
        weak, strong: views of the inputs, `weak_view()` and `strong_view()` when None, which are for images in [0, 1];
            for scaled images wrap them in `augment.scaled`.
        prior: class shares, (K,), to which guesses are held (distribution alignment, Berthelot et al. 2020): q times
            prior over the running mean of q, made to sum to 1. Public, or from a release. Not used when None.
        average: decay of the moving average of the weights, which is what comes back; 0 is off.
        apart: guess in a pass of its own, without gradients, at two thirds of the work. Batch norms then see weak
            views and the rest apart; published, they see all together.
        compiled: run through torch.compile.
        seed: of order, labelled batches and views.
        loop: others of `minimise`. `weights_sgd(0.03)` and `seven_sixteenths()` unless given.
    """
    if not isinstance(inputs, Tensor):
        raise ValueError("inputs is a tuple; FixMatch changes views of one tensor, give that one")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold={threshold} is not a probability; 0.95 is usual")
    if not temperature > 0 or not strength >= 0:
        raise ValueError(f"temperature={temperature}, strength={strength}; give more than 0, and 0 or more")
    if not 0 <= average < 1:
        raise ValueError(f"average={average} is not in [0, 1); 0.999 is usual, for thousands of steps")
    labelled = torch.arange(len(inputs), device=inputs.device) if rows is None else rows
    if len(labelled) == 0:
        raise ValueError("rows is empty, so the classes are unknown; give at least one labelled row")
    network = Averaged(model, average, prior)
    # Two shapes, each its own: kernels for any shape would be slower.
    forward: Any = torch.compile(model, dynamic=False) if compiled else model
    many = min(checked_count("batch_size", batch_size) * checked_count("ratio", ratio), len(inputs))
    views = (weak or weak_view(), strong or strong_view())

    def batches(unlabelled: Tensor, generator: Generator) -> list[tuple[Tensor, ...]]:
        """Return of each batch the labelled rows, and the three views."""
        count = (len(unlabelled) // many) * batch_size
        chosen = labelled[torch.randint(len(labelled), (count,), device=inputs.device, generator=generator)]
        parts = three_views(inputs, chosen, unlabelled, *views, generator)
        return in_batches((chosen, *parts), (batch_size, batch_size, many, many))

    ahead = Ahead(batches, many, inputs)

    def loss(batch: Batch) -> Tensor:
        chosen, *seen = ahead(batch)
        known, guess, aim = _outputs(forward, seen, apart)
        beliefs = network.aligned(torch.softmax(guess / temperature, dim=1))
        return objective(known, chosen).mean() + strength * consistency(aim, beliefs, threshold)

    usual: dict[str, Any] = {"optimizer": weights_sgd(0.03), "schedule": seven_sixteenths()}
    settings: Any = {**usual, **loop, "batch_size": many}
    run = content_key(
        "fixmatch", str((epochs, batch_size, ratio, threshold, temperature, strength, average, apart, seed)), labelled
    )
    minimise(network, loss, len(inputs), epochs=epochs, after=network.follow, seed=seed, run=run, **settings)
    return network.finish()


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


def consistency(logits: Tensor, beliefs: Tensor, threshold: float) -> Tensor:
    """Return the mean cross-entropy to the likeliest class, over all rows, those below the threshold counting 0.

    >>> sure = torch.tensor([[0.97, 0.03], [0.6, 0.4]])
    >>> consistency(torch.zeros(2, 2), sure, 0.95)
    tensor(0.3466)
    """
    confidence, targets = beliefs.max(dim=1)
    return ((confidence >= threshold) * cross_entropy(logits, targets, reduction="none")).mean()
