"""How right, and how confident, posteriors of responses are: under a prior that has not seen them, and a learner's own.

A network that learns from the posteriors of its own beliefs remembers single rows in time. Its belief in a row then
holds the row's response already, Bayes' rule counts it again, and the network learns that: posteriors get surer
and less right. Under the head of a moment, which knows the response of no row, they stay as right as they expect to be.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor, nn

from labeldp.core.vault import LabelVault
from labeldp.learning.evidence import evidence, forward_loss, posterior
from labeldp.learning.mean_teacher import mean_teacher
from labeldp.learning.optimisers import adam, constant
from labeldp.learning.train import fit, predict
from labeldp.learning.tuning import Stage, tune
from labeldp.mechanisms.responses import TopKResponse
from labeldp.recipes import one_shot
from labeldp.recipes.budget import split_budget
from labeldp.recipes.denoise_ssl import Classes
from labeldp.recipes.distil import on_probabilities
from labeldp.recipes.one_shot_prior import informative_sets

# Of the learner: its width, its batches, and the noise on standardised features that stands in for views of images.
_WIDTH, _BATCH, _NOISE = 1024, 512, 0.3
_FIRST_EPOCHS = 2


def posteriors(
    features: Tensor, truth: Classes, num_classes: int, epochs: Sequence[int], share: float, delta: float
) -> Callable[[float, int], dict[str, float]]:
    """Of the one-shot moment and responses under its head; then of a network that teaches itself for so many epochs.

    Args:
        epochs: after how many, growing.
        share: of ε for the moment.
    """
    stage = functools.cache(lambda: Stage(features, num_classes, seed=0))
    labels = torch.as_tensor(truth, device=features.device)

    def measure(epsilon: float, repeat: int) -> dict[str, float]:
        first, second = split_budget(epsilon, delta, (share, 1 - share), last_pure=True)
        vault = LabelVault(truth, num_classes)
        plan = functools.partial(tune, stage=stage(), seed=repeat)
        shot = one_shot.train(features, vault, epsilon=first, delta=delta, tune=plan)
        head = shot.logits(features)
        sets = informative_sets(head.softmax(dim=1).cpu().double().numpy(), second)
        likelihoods = evidence(vault.release(TopKResponse(second, sets)), features.device).float()
        fixed = posterior(likelihoods, head.log_softmax(dim=1))
        line = {"epsilon": epsilon, "head right": _right(head, labels), **_judged("under the head", fixed, labels)}
        model = _learner(features, fixed, repeat)
        for before, count in zip([0, *epochs], epochs, strict=False):
            model = _go_on(model, features, likelihoods, count - before, seed=repeat)
            own = posterior(likelihoods, predict(model, features).log_softmax(dim=1))
            line |= _judged(f"own, epoch {count}", own, labels)
        return line

    return measure


def _learner(features: Tensor, targets: Tensor, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Linear(features.shape[1], _WIDTH), nn.ReLU(), nn.Dropout(0.3), nn.Linear(_WIDTH, targets.shape[1])
    model = nn.Sequential(*layers).to(features.device)
    size = min(_BATCH, len(features))
    return fit(
        model, features, on_probabilities(targets), epochs=_FIRST_EPOCHS, batch_size=size, augment=_shaken,
        optimizer=adam(1e-3, weight_decay=0.01), schedule=constant(), average=0.99, seed=seed,
    )  # fmt: skip


def _go_on(model: nn.Module, features: Tensor, likelihoods: Tensor, epochs: int, seed: int) -> nn.Module:
    return mean_teacher(
        model, features, lambda logits, rows: forward_loss(logits, likelihoods[rows]), epochs=epochs, batch_size=_BATCH,
        strength=1.0, ramp=0.0, weak=lambda rows, _: rows, strong=_shaken, average=0.99, seed=seed,
        optimizer=adam(1e-3, weight_decay=0.01), schedule=constant(),
    )  # fmt: skip


def _shaken(rows: Tensor, generator: Generator) -> Tensor:
    noise = torch.randn(rows.shape, device=rows.device, generator=generator)
    return rows + _NOISE * noise


def _judged(name: str, probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    expected = float(probabilities.amax(dim=1).mean())
    return {f"{name}: right": _right(probabilities, labels), f"{name}: expects": expected}


def _right(scores: Tensor, labels: Tensor) -> float:
    return float((scores.argmax(dim=1) == labels).float().mean())
