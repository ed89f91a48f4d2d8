"""One look: public features, one noisy moment, a linear head. No training loop, and nothing to tune.

    1. features x_i of public inputs, found without a label
    2. rehearse on clusters which directions φ_i = A(x_i − x̄), |φ_i| ≤ 1, to ask about at the noise of (ε, δ)
    3. S̃ = Σ_i onehot(y_i) ⊗ φ_i + noise, once
    4. a head from S̃ and the φ_i; probabilities from the head and S̃

The labels enter softmax regression and least squares through Σ onehot(y_i) ⊗ φ_i alone; a replaced label moves it by
√2·|φ_i|. So one Gaussian look with μ = √2/σ (Laplace noise where δ = 0) is all that is paid for; the rest is
post-processing, and no choice in it sees a true label. At small ε this is ahead of all methods that answer row by row,
because the noise is spread over all rows of a class; see docs/one_look.md for where it stops being so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from labeldp.core.vault import LabelVault
from labeldp.data.storage import load_moments, save_moments
from labeldp.features.extract import Device, Extractor, FeatureMap
from labeldp.learning.heads import Axes, Head, Scale, eigenbasis, honest_scale, ridge_head, softmax_head
from labeldp.learning.tuning import Scored, Tuning, compare_heads, gram_of, load_plan, save_plan, tune
from labeldp.mechanisms.counts import GaussianNoise
from labeldp.mechanisms.moments import Moments
from labeldp.recipes.common import ask_once, in_folder, question_note
from labeldp.recipes.groups import check_affordable
from labeldp.recipes.moment_noise import Noise, check_count, check_features, event_of, noise_by_width, noise_for
from labeldp.releases import NoisyMoments

HEADS: tuple[Head, ...] = (ridge_head, softmax_head)
_ROWS_AT_ONCE = 8192


@dataclass(frozen=True)
class Progress:
    """What `report` is told: which of features, rehearsal, look and head goes on or is done, and the seconds so far."""

    phase: str
    detail: str
    seconds: float


Report = Callable[[Progress], None]


class Tune(Protocol):
    """`labeldp.learning.tuning.tune`, its settings bound."""

    def __call__(
        self,
        features: Tensor,
        num_classes: int,
        noise: Callable[[int], float],
        /,
        *,
        heads: Sequence[Head],
        report: Callable[[Scored], None] | None,
    ) -> Tuning:
        """The plan for features (n, p), K classes and noise by the number of directions."""
        ...


@dataclass(frozen=True, eq=False)
class OneShot:
    """A head, all it was made of, and how sure it is. Holds no label; may be kept and published.

    Args:
        layer: the head on plain features x, for its decisions: `layer(x).argmax(dim=1)`.
        rehearsal: what was chosen before the look, and why.
        noisy: the release.
        head: how the weights were found from it.
        weight: t·W, (K, d), for the rehearsal's φ: softmax(t·Wφ) are the probabilities.
        scale: t.
        confidence: the mean largest probability over the rows asked: the share it expects to have right.
    """

    layer: nn.Linear
    tuning: Tuning
    noisy: NoisyMoments
    head: Head
    weight: Tensor
    scale: float
    confidence: float

    def logits(self, features: Tensor) -> Tensor:
        """t·Wφ of plain features, (m, K), of which softmax are `probabilities`; chunk by chunk."""
        turned = self.weight.T
        parts = features.to(self.weight.device).split(_ROWS_AT_ONCE)
        return torch.cat([self.tuning.basis(part) @ turned for part in parts])

    def probabilities(self, features: Tensor) -> Tensor:
        """Honest class probabilities of plain features, old or new, (m, K); see `honest_scale`."""
        return torch.softmax(self.logits(features), dim=1)

    def predict(self, features: Tensor) -> Tensor:
        """The likeliest class of each row, (m,)."""
        return self.logits(features).argmax(dim=1)


def train(
    features: Tensor,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    tune: Tune = tune,
    heads: Sequence[Head] = HEADS,
    folder: Path | None = None,
    report: Report | None = None,
) -> OneShot:
    """Rehearse, look once, fit: (`epsilon`, `delta`) in all.

    Args:
        features: public, (n, p), in the vault's order, on the device where the work is to be done.
        epsilon, delta: δ = 0 takes Laplace noise, which is larger: it has to hide the row's length in the norm of
            order 1. Give 1e-5, or less than one over the number of rows, for Gaussian noise.
        rehearse: `labeldp.learning.tuning.tune`, or that with settings bound.
        heads: which to choose among, without a label.
        folder: keeps the plan and the moment, so that a killed run goes on and does not ask again.
        report: told of every step.

    >>> x = torch.randn(3000, 8, generator=torch.Generator().manual_seed(0))
    >>> vault = LabelVault((x[:, 0] > 0).long(), num_classes=2)
    >>> shot = train(x, vault, epsilon=0.5, delta=1e-6)
    >>> bool((shot.predict(x) == (x[:, 0] > 0)).float().mean() > 0.8), vault.certificate(1e-6).epsilon <= 0.5
    (True, True)
    """
    tell = Clock(report)
    noise = noise_for(epsilon, delta)
    check_features(features, vault)
    check_affordable(vault, [(event_of(noise), in_folder(folder, "moment.npz"))])
    found = tuned(features, vault.num_classes, noise, tune, heads, folder, tell)
    rows = found.basis(features)
    noisy = _query(rows, vault, noise, folder)
    tell("look", f"{noisy.num_classes} × {rows.shape[1]} numbers, noise {noisy.noise_std:.3g}")
    return fitted(found, heads, noisy, rows, tell)


@dataclass(frozen=True, eq=False)
class OnInputs:
    """A map from inputs to features and the head on them."""

    map: FeatureMap
    shot: OneShot

    def probabilities(self, inputs: Any) -> Tensor:
        """Honest class probabilities of inputs, old or new, (m, K)."""
        return self.shot.probabilities(self.map.features(inputs))

    def predict(self, inputs: Any) -> Tensor:
        """The likeliest class of each row, (m,)."""
        return self.probabilities(inputs).argmax(dim=1)


def train_on_inputs(
    extractor: Extractor,
    inputs: Any,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    device: Device = None,
    tune: Tune = tune,
    heads: Sequence[Head] = HEADS,
    folder: Path | None = None,
    report: Report | None = None,
) -> OnInputs:
    """The whole way in one call, from public inputs to predictions.

    Args:
        extractor: `Patches()` for images, `Table()`, `Raw()` or an encoder; see `labeldp.features.extract`.
        inputs: public, as the extractor takes them, in the vault's order.
        device: where to compute; that of the inputs when None.

    The other arguments are those of `train`.
    """
    tell = Clock(report)
    check_affordable(vault, [(event_of(noise_for(epsilon, delta)), in_folder(folder, "moment.npz"))])
    check_count(len(inputs[0] if isinstance(inputs, tuple) else inputs), "inputs", vault)
    found = extractor.fit(inputs, device)
    features = found.features(inputs)
    tell("features", f"{len(features)} × {features.shape[1]}")
    settings: dict[str, Any] = {"rehearse": tune, "heads": heads, "folder": folder, "report": report}
    return OnInputs(found, train(features, vault, epsilon=epsilon, delta=delta, **settings))


# -- the steps ----------------------------------------------------------------------------------------------------


def tuned(
    features: Tensor,
    num_classes: int,
    noise: Noise,
    tune: Tune,
    heads: Sequence[Head],
    folder: Path | None,
    tell: Clock,
) -> Tuning:
    """The rehearsal at this noise, or its winner as the folder has it from a run that was killed."""
    kept = in_folder(folder, "plan.npz")
    # The plan follows from these and from settings of the rehearsal, none of which can hold a label.
    names = [_name(head) for head in heads]
    note = {"features": list(features.shape), "classes": num_classes, "noise": repr(noise), "heads": names}
    if kept is not None and kept.exists():
        found = load_plan(kept, note, features.device)
        tell("rehearsal", f"kept from an earlier run: {found.plan}")
        return found

    def told(scored: Scored) -> None:
        tell("rehearsal", f"rank {scored.plan.rank}, power {scored.plan.power:g}: {scored.score:.3f}")

    found = tune(features, num_classes, noise_by_width(noise), heads=heads, report=told)
    if kept is not None:
        save_plan(kept, found, note)
    return found


def _query(rows: Tensor, vault: LabelVault, noise: Noise, folder: Path | None) -> NoisyMoments:
    order = 2 if isinstance(noise, GaussianNoise) else 1
    # Public: the longest row. A little more, so that rounding scales no row down.
    radius = float(torch.linalg.vector_norm(rows, ord=order, dim=1).amax()) * (1 + 1e-6)
    question = Moments(rows.detach().cpu().numpy(), vault.num_classes, noise, radius)
    note = {**question_note(vault, question), "width": rows.shape[1]}
    noisy = ask_once(vault, question, in_folder(folder, "moment.npz"), note, save_moments, load_moments)
    total = rows.sum(dim=0, dtype=torch.float64).cpu().numpy()
    # Not a hash of the rows: a GPU may round them otherwise the next time.
    if not np.allclose(noisy.total, total, rtol=1e-2, atol=1e-2 * math.sqrt(len(rows)) + 1e-3 * len(rows)):
        raise ValueError(f"{folder} holds the moment of other features than these; use a new folder")
    return noisy


def fitted(found: Tuning, heads: Sequence[Head], noisy: NoisyMoments, rows: Tensor, tell: Clock) -> OneShot:
    """The head that does better on labels drawn from the first one, with honest probabilities."""
    axes, constant = eigenbasis(gram_of(rows)), found.basis.constant_column
    settled = _head(heads[0], found.scales[0], noisy, rows, axes, constant)
    if len(heads) > 1:
        shares = compare_heads(heads, noisy.noise_std, rows, rows @ settled[1].T, constant=constant)
        best = max(range(len(heads)), key=shares.__getitem__)
        told = ", ".join(f"{_name(head)} {100 * share:.1f}%" for head, share in zip(heads, shares, strict=True))
        tell("head", f"of labels drawn from the first head's probabilities: {told}")
        settled = settled if best == 0 else _head(heads[best], found.scales[best], noisy, rows, axes, constant)
    head, logits_weight, scale = settled
    likely = [torch.softmax(part @ logits_weight.T, dim=1).amax(dim=1) for part in rows.split(_ROWS_AT_ONCE)]
    confidence = float(torch.cat(likely).mean())
    tell("head", f"{_name(head)}, expects to be right on {100 * confidence:.1f}%")
    return OneShot(found.basis.linear(logits_weight), found, noisy, head, logits_weight, scale, confidence)


def _head(
    head: Head, tuned: Scale, noisy: NoisyMoments, rows: Tensor, axes: Axes, constant: int | None
) -> tuple[Head, Tensor, float]:
    """The head, its weights for logits, and the factor that is in them."""
    scale = honest_scale(head, noisy, rows, axes, tuned, constant=constant)
    return head, scale * head(noisy, rows, axes, constant=constant).to(rows), scale


def _name(head: Head) -> str:
    return getattr(head, "__name__", "head")


class Clock:
    """Reports with the seconds since it was made."""

    def __init__(self, report: Report | None) -> None:
        self._report, self._begun = report, time.perf_counter()

    def __call__(self, phase: str, detail: str) -> None:
        """Report a step."""
        if self._report is not None:
            self._report(Progress(phase, detail, time.perf_counter() - self._begun))
