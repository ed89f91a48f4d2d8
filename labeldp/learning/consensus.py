"""Train again where prediction and label agree, and let both networks decide: consensus retraining.

    1. train a network on private labels
    2. keep the rows whose label it predicts; of noisy labels these are mostly the right ones
    3. train a second network on those rows, from weights of its own
    4. the prediction is the mean of both networks' probabilities

A network trained on noisy labels is right on many rows whose label is wrong: it has seen what holds for many rows. To
train once more where both say the same removes most of the noise and costs nothing (Das et al. 2025). The second
network may be larger, since less of what it learns by heart is wrong; and two networks that began elsewhere err
elsewhere.

`consensus` with its settings bound takes what `labeldp.learning.train.fit` takes: every recipe with a `fit` argument
can train by it. It sees objectives and public rows, so it is post-processing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from labeldp.features.cache import content_key
from labeldp.learning.dividemix import Pair
from labeldp.learning.evidence import Objective
from labeldp.learning.train import Inputs, predict


def consensus(
    model: nn.Module,
    inputs: Inputs,
    objective: Objective,
    *,
    fit: Callable[..., nn.Module],
    again: Callable[..., nn.Module],
    second: Callable[[], nn.Module],
    rows: Tensor | None = None,
    believe: Callable[[nn.Module, Inputs], Tensor] = predict,
    checkpoint: Path | None = None,
) -> nn.Module:
    """Train the model, then a second one on the rows whose label it predicts; return both as one, in eval mode.

    Args:
        model: the first network, trained in place; of a `Pair`, its first goes on.
        inputs: of all rows, on the model's device.
        objective: (logits, row numbers) → loss per row: of private labels, like that of any `fit`.
        fit, again: how either is trained, such as `learning.train.fit` with its settings bound.
        second: makes the second network, on the same device.
        rows: the labelled rows; all when None.
        believe: the scores of the first network that decide, such as a mean over mirrors.
        checkpoint: files of this name are written by both trainings, and resumed from where they exist.

    Where no row agrees, the first network is returned alone.

    >>> from functools import partial
    >>> from labeldp.learning.evidence import on_classes
    >>> from labeldp.learning.train import fit
    >>> x = torch.linspace(-1, 1, 64)[:, None]
    >>> labels = (x[:, 0] > 0).long()
    >>> labels[:4] = 1  # wrong
    >>> _ = torch.manual_seed(0)
    >>> plain = partial(fit, epochs=40, batch_size=16)
    >>> both = consensus(nn.Linear(1, 2), x, on_classes(labels), fit=plain, again=plain, second=lambda: nn.Linear(1, 2))
    >>> predict(both, torch.tensor([[-1.0], [1.0]])).argmax(dim=1)
    tensor([0, 1])
    """
    first = model.first if isinstance(model, Pair) else model
    first = fit(first, inputs, objective, **_given(rows=rows, checkpoint=checkpoint))
    scores = believe(first, inputs)
    labelled = torch.arange(len(scores), device=scores.device) if rows is None else rows
    kept = labelled[scores[labelled].argmax(dim=1) == pulled_to(objective, labelled, scores.shape[1])]
    if not len(kept):
        return first
    file = None if checkpoint is None else checkpoint.with_stem(f"{checkpoint.stem}-{content_key(kept)[:16]}")
    return Pair(first, again(second(), inputs, objective, **_given(rows=kept, checkpoint=file))).eval()


def _given(**settings: Tensor | Path | None) -> dict[str, Tensor | Path]:
    """Leave out what is None: not every training knows it."""
    return {name: value for name, value in settings.items() if value is not None}


def pulled_to(objective: Objective, rows: Tensor, num_classes: int) -> Tensor:
    """Return the class to which each row's loss pulls even scores most, (m,): its label, whatever the objective.

    At even scores the gradient of the cross-entropy to targets t is 1/K − t, and that of −log Σ_c softmax(z)_c·P(r | c)
    is 1/K − P(r | ·)/Σ_c P(r | c): least where target or likelihood is largest.

    >>> from labeldp.learning.evidence import on_classes
    >>> pulled_to(on_classes(torch.tensor([2, 0, 1])), torch.tensor([0, 2]), 3)
    tensor([2, 1])
    """
    scores = torch.zeros(len(rows), num_classes, device=rows.device, requires_grad=True)
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(objective(scores, rows).sum(), scores)
    return slope.argmin(dim=1)
