"""The one-shot moment: public features, one noisy label-feature moment, a linear head. No loop, nothing to tune.

    1. features x_i of public inputs, found without a label
    2. label-free tuning on clusters: which directions φ_i = A(x_i − x̄), |φ_i| ≤ 1, the noise of (ε, δ) leaves
    3. S̃ = Σ_i onehot(y_i) ⊗ φ_i + noise, released once
    4. a head from S̃ and the φ_i; probabilities from the head and S̃

The labels enter softmax regression and least squares through Σ onehot(y_i) ⊗ φ_i alone; a replaced label moves it by
√2·|φ_i|. So one Gaussian query with μ = √2/σ (Laplace noise where δ = 0) is all that is paid for; the rest is
post-processing, and no choice in it sees a true label. At small ε this is ahead of all methods with one response per
row, because the noise is spread over all rows of a class; see docs/one_shot.md for where it stops being so.

Where a table has so many rows that its features do not fit in memory (`Coded`), they are made chunk by chunk. Only the
moment needs all n rows, and it is a sum. Tuning and head see m random public rows, and the head the moment of these,
estimated without bias and with the right sum over the classes (difference estimator; Särndal et al. 1992):

    S̃_m = (m/n)·(S̃ − P_n) + P_m,    P = Σ_i p_i ⊗ φ_i.

First with p_i = 1/K; the head would then know as much as one of d weights and m rows, and lose some d/m in likelihood.
Then with the probabilities p_i that this head gives all n rows, which are post-processing: what it has learnt no longer
depends on which rows were drawn, and what is lost is of the order of (d/m)² (the surrogate likelihood of Jordan, Lee
and Yang 2019). The noise is that of one query over n labels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Generator, Tensor, nn

from labeldp.core.events import Event
from labeldp.core.vault import LabelVault
from labeldp.features.extract import Device, Extractor, FeatureMap, gram_of
from labeldp.features.kernels import Streamed
from labeldp.learning.heads import (
    Axes,
    EstimatedMoments,
    Head,
    Scale,
    eigenbasis,
    honest_scale,
    levelled,
    ridge_head,
    softmax_head,
)
from labeldp.learning.progress import Progress, Report
from labeldp.learning.tuning import Basis, Scored, Tuning, compare_heads, load_plan, save_plan, tune
from labeldp.mechanisms.counts import GaussianNoise, LaplaceNoise
from labeldp.mechanisms.moments import Moments, RowChunks
from labeldp.mechanisms.users import UserVault
from labeldp.recipes.arguments import checked
from labeldp.recipes.kept import check_affordable, digest, in_folder, query_note, release_once
from labeldp.releases import NoisyMoments

HEADS: tuple[Head, ...] = (ridge_head, softmax_head)
# Where a table has more features in all (1 GiB), they are made as they are needed, and so many are held at once.
MOST_CELLS, HELD_CELLS = 1 << 28, 1 << 26
_ROWS_AT_ONCE = 8192
Noise = GaussianNoise | LaplaceNoise


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
        """Return the plan for features (n, p), K classes and noise by the number of directions."""
        ...


@dataclass(frozen=True, eq=False)
class OneShot:
    """A head, all it was made of, and how confident it is. Holds no label; may be kept and published.

    Args:
        layer: the head on plain features x, for its decisions: `layer(x).argmax(dim=1)`.
        tuning: what was chosen before the release, and why.
        noisy: the release.
        head: how the weights were found from it.
        weight: t·W, (K, d), for the tuning's φ: softmax(t·Wφ) are the probabilities.
        scale: t.
        confidence: the mean largest probability over the rows: the share it expects to have right.
    """

    layer: nn.Linear
    tuning: Tuning
    noisy: NoisyMoments
    head: Head
    weight: Tensor
    scale: float
    confidence: float

    def logits(self, features: Tensor) -> Tensor:
        """Return t·Wφ of plain features, (m, K), of which softmax are `probabilities`; chunk by chunk."""
        turned = self.weight.T
        parts = features.to(self.weight.device).split(_ROWS_AT_ONCE)
        return torch.cat([self.tuning.basis(part) @ turned for part in parts])

    def probabilities(self, features: Tensor) -> Tensor:
        """Return honest class probabilities of plain features, old or new, (m, K); see `honest_scale`."""
        return torch.softmax(self.logits(features), dim=1)

    def predict(self, features: Tensor) -> Tensor:
        """Return the likeliest class of each row, (m,)."""
        return self.logits(features).argmax(dim=1)


@checked
def train(
    features: Tensor | Streamed,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    tune: Tune = tune,
    heads: Sequence[Head] = HEADS,
    most: int | None = None,
    weighted: bool = False,
    rows: npt.NDArray[np.intp] | None = None,
    seed: int = 0,
    folder: Path | None = None,
    report: Report | None = None,
) -> OneShot:
    """Tune, release one moment, solve the head: (`epsilon`, `delta`) in all.

    Args:
        features: public, (n, p), in the vault's order, on the device where the work is to be done; `Coded` for a
            table whose features do not fit in memory.
        epsilon, delta: δ = 0 takes Laplace noise, which is larger: it has to hide the row's length in the norm of
            order 1. Give 1e-5, or less than one over the number of rows, for Gaussian noise.
        tune: `labeldp.learning.tuning.tune`, or that with settings bound (for `Coded`, `num_rows` among them).
        heads: which to choose among, without a label.
        most, seed: for `Coded`, the number m of rows that tuning and head see (as many as have a quarter of a gibibyte
            of features when None), and the seed that draws them. With m = n the result is that of plain features.
        weighted: whether classes will be weighed against each other by their probabilities, which then have to be right
            for rare ones, too: softmax regression, with a level of every class (`labeldp.learning.heads`).
        rows: of which of the vault's rows the features are, and whose labels are in the moment; all when None.
        folder: keeps plan and moment, so that a killed run goes on and draws nothing twice.
        report: gets every step.

    >>> x = torch.randn(3000, 8, generator=torch.Generator().manual_seed(0))
    >>> vault = LabelVault((x[:, 0] > 0).long(), num_classes=2)
    >>> shot = train(x, vault, epsilon=0.5, delta=1e-6)
    >>> bool((shot.predict(x) == (x[:, 0] > 0)).float().mean() > 0.8), vault.certificate(1e-6).epsilon <= 0.5
    (True, True)
    """
    clock = Clock(report)
    noise, heads = noise_for(epsilon, delta), (softmax_head,) if weighted else heads
    if isinstance(features, Streamed):
        if rows is not None:
            raise ValueError(
                f"rows are {len(rows)} of a table that is read part by part; leave rows out, or give it whole"
            )
        check_count(len(features), "features", vault)
    else:
        check_features(features, vault, rows)
    check_affordable(vault, (event_of(noise), rows, in_folder(folder, "moment.npz")))
    if isinstance(features, Streamed):
        return _of_coded(features, vault, noise, tune, heads, most, weighted, seed, folder, clock)
    found = tuned(features, vault.num_classes, noise, tune, heads, folder, clock)
    clock("moment", f"the sum over rows of {found.basis.width} directions is computed")
    turned = found.basis(features)
    mechanism = Moments(turned.detach().cpu().numpy(), vault.num_classes, noise, _radius(turned, noise))
    noisy = _released(mechanism, turned.shape[1], vault, folder, lambda: turned.sum(dim=0, dtype=torch.float64), rows)
    clock("query", f"{noisy.num_classes} × {turned.shape[1]} numbers, noise {noisy.noise_std:.3g}")
    return fitted(found, heads, noisy, turned, clock, weighted)


@dataclass(frozen=True, eq=False)
class OnInputs:
    """A map from inputs to features and the head on them."""

    map: FeatureMap
    shot: OneShot

    def probabilities(self, inputs: Any) -> Tensor:
        """Return honest class probabilities of inputs, old or new, (m, K)."""
        return self.shot.probabilities(self.map.features(inputs))

    def predict(self, inputs: Any) -> Tensor:
        """Return the likeliest class of each row, (m,)."""
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
    """Extract features and `train` on them: the whole way from public inputs to predictions.

    Args:
        extractor: `Patches()` for images, `Table()`, `Raw()` or an encoder; see `labeldp.features.extract`.
        inputs: public, as the extractor takes them, in the vault's order.
        device: where to compute; that of the inputs when None.

    The other arguments are those of `train`.
    """
    clock = Clock(report)
    check_affordable(vault, (event_of(noise_for(epsilon, delta)), None, in_folder(folder, "moment.npz")))
    check_count(len(inputs[0] if isinstance(inputs, tuple) else inputs), "inputs", vault)
    found = extractor.fit(inputs, device)
    features = found.features(inputs)
    clock("features", f"{len(features)} × {features.shape[1]}")
    settings: dict[str, Any] = {"tune": tune, "heads": heads, "folder": folder, "report": report}
    return OnInputs(found, train(features, vault, epsilon=epsilon, delta=delta, **settings))


# --- before the query -------------------------------------------------------------------------------------------


def noise_for(epsilon: float, delta: float) -> Noise:
    """Return the least noise for one moment at (ε, δ): Gaussian, or Laplace where δ is 0."""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon={epsilon} is not a budget for a noisy moment; give a finite number above 0")
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta} is not a probability below 1; give 0 or, say, 1e-5")
    return GaussianNoise.for_budget(epsilon, delta) if delta > 0 else LaplaceNoise(epsilon)


def noise_by_width(noise: Noise) -> Callable[[int], float]:
    """Return the deviation of the noise on rows of length 1, by the number of directions d: for label-free tuning.

    Gaussian noise is σ whatever d. Laplace noise hides the norm of order 1, at most √d: its scale is 2√d/ε.
    """
    if isinstance(noise, GaussianNoise):
        return lambda width: noise.std
    return lambda width: math.sqrt(2.0) * 2.0 * math.sqrt(width) / noise.epsilon


def event_of(noise: Noise) -> Event:
    """Return what the moment will cost, whatever the features."""
    return Moments(np.zeros((1, 1)), 1, noise, 1.0).event()


def check_features(features: Tensor, vault: LabelVault, rows: npt.NDArray[np.intp] | None = None) -> None:
    """Raise ValueError unless there is one row of finite floats per label, and labels are protected one by one.

    The labels are those of these rows of the vault; of all when None.
    """
    if isinstance(vault, UserVault):
        raise ValueError(
            "vault protects all labels of a user, and this moment one label; release Moments(..., users=...)"
        )
    if not isinstance(features, Tensor) or features.ndim != 2 or not features.is_floating_point():
        kind = f"{features.dtype} {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"features is {kind}; give a tensor of floats, (n, p)")
    if rows is None:
        check_count(len(features), "features", vault)
    elif len(features) != len(rows):
        raise ValueError(f"features has {len(features)} rows and rows {len(rows)}; give one per label asked for")
    if not math.isfinite(float(features.sum(dtype=torch.float64))):
        raise ValueError("features has values that are not finite; fill in or drop missing ones")


def check_count(count: int, name: str, vault: LabelVault) -> None:
    """Raise ValueError unless there are as many as labels."""
    if count != len(vault):
        raise ValueError(f"{name} has {count} rows and the vault {len(vault)}; give one per label")


def tuned(
    features: Tensor,
    num_classes: int,
    noise: Noise,
    tune: Tune,
    heads: Sequence[Head],
    folder: Path | None,
    clock: Clock,
) -> Tuning:
    """Return the tuning at this noise, or its winner as the folder has it from a run that was killed."""
    kept = in_folder(folder, "plan.npz")
    # The plan follows from these and from settings of the tuning, none of which can hold a label.
    names = [_name(head) for head in heads]
    note = {"features": list(features.shape), "classes": num_classes, "noise": repr(noise), "heads": names}
    if kept is not None and kept.exists():
        found = load_plan(kept, note, features.device)
        clock("tuning", f"kept from an earlier run: {found.plan}")
        return found

    def scored(one: Scored) -> None:
        clock("tuning", f"rank {one.plan.rank}, power {one.plan.power:g}: {one.score:.3f}", one.share)

    found = tune(features, num_classes, noise_by_width(noise), heads=heads, report=scored)
    if kept is not None:
        save_plan(kept, found, note)
    return found


# --- the query and the head -------------------------------------------------------------------------------------


def _released(
    mechanism: Moments,
    width: int,
    vault: LabelVault,
    folder: Path | None,
    total: Callable[[], Tensor],
    rows: npt.NDArray[np.intp] | None = None,
) -> NoisyMoments:
    """Release the moment, or return the one that is kept if it is of features with this total."""
    kept, note = in_folder(folder, "moment.npz"), {**query_note(vault, mechanism), "width": width}
    if rows is not None:
        note["rows queried"] = digest(rows)
    found = kept is not None and kept.exists()
    numbers = (vault.num_classes + 1) * width
    noisy = release_once(vault, mechanism, kept, note, rows, numbers=numbers)
    # Not a hash of the rows: a GPU may round them otherwise the next time.
    near = 1e-2 * math.sqrt(len(vault)) + 1e-3 * len(vault)
    if found and not np.allclose(noisy.total, total().cpu().numpy(), rtol=1e-2, atol=near):
        raise ValueError(f"{folder} holds the moment of other features than these; use a new folder")
    return noisy


def _radius(rows: Tensor, noise: Noise) -> float:
    """Return the length of the longest row, which is public; a little more, so that rounding scales no row down."""
    order = 2 if isinstance(noise, GaussianNoise) else 1
    return float(torch.linalg.vector_norm(rows, ord=order, dim=1).amax()) * (1 + 1e-6)


def fitted(
    found: Tuning,
    heads: Sequence[Head],
    noisy: NoisyMoments,
    rows: Tensor,
    clock: Clock,
    weighted: bool = False,
    axes: Axes | None = None,
) -> OneShot:
    """Return the head that does better on labels drawn from the first one, with honest probabilities.

    `axes` are `eigenbasis(gram_of(rows))`, if at hand.
    """
    axes, constant = axes or eigenbasis(gram_of(rows)), found.basis.constant_column
    settled = _solved(heads[0], found.scales[0], noisy, rows, axes, constant)
    if len(heads) > 1:
        shares = compare_heads(heads, noisy.noise_std, rows, rows @ settled[1].T, constant=constant)
        best = max(range(len(heads)), key=shares.__getitem__)
        listed = ", ".join(f"{_name(head)} {100 * share:.1f}%" for head, share in zip(heads, shares, strict=True))
        clock("head", f"of labels drawn from the first head's probabilities: {listed}")
        settled = settled if best == 0 else _solved(heads[best], found.scales[best], noisy, rows, axes, constant)
    head, logits_weight, scale = settled
    if weighted and constant is not None:
        logits_weight, scale = levelled(head, noisy, rows, axes, constant)
    likely = [torch.softmax(part @ logits_weight.T, dim=1).amax(dim=1) for part in rows.split(_ROWS_AT_ONCE)]
    confidence = float(torch.cat(likely).mean())
    clock("head", f"{_name(head)}, expects to be right on {100 * confidence:.1f}%")
    return OneShot(found.basis.linear(logits_weight), found, noisy, head, logits_weight, scale, confidence)


def _solved(
    head: Head, tuned: Scale, noisy: NoisyMoments, rows: Tensor, axes: Axes, constant: int | None
) -> tuple[Head, Tensor, float]:
    """Return the head, its weights for logits, and the factor that is in them."""
    scale = honest_scale(head, noisy, rows, axes, tuned, constant=constant)
    return head, scale * head(noisy, rows, axes, constant=constant).to(rows), scale


def _name(head: Head) -> str:
    return getattr(head, "__name__", "head")


class Clock:
    """Reports with the seconds since it was made."""

    def __init__(self, report: Report | None) -> None:
        self._report, self._begun = report, time.perf_counter()

    def __call__(self, phase: str, detail: str, share: float | None = None) -> None:
        """Report a step, and the share of its phase that is done."""
        if self._report is not None:
            self._report(Progress(phase, detail, time.perf_counter() - self._begun, share))


# --- tables of many rows ----------------------------------------------------------------------------------------


def _of_coded(
    rows: Streamed,
    vault: LabelVault,
    noise: Noise,
    tune: Tune,
    heads: Sequence[Head],
    most: int | None,
    weighted: bool,
    seed: int,
    folder: Path | None,
    clock: Clock,
) -> OneShot:
    held = rows_held(rows, most, seed)
    clock("tuning", f"on {len(held):,} of {len(rows):,} rows")
    found = tuned(held.features(), vault.num_classes, noise, tune, heads, folder, clock)
    # φ of the rows held, (m, d); not by joining chunks, which would hold them twice.
    some, done = torch.empty(len(held), found.basis.width, device=held.device), 0
    for part in _turned(held, found.basis):
        some[done : done + len(part)] = part
        done += len(part)

    def chunks() -> Iterator[np.ndarray]:
        """Yield φ of all rows; how many were added up is public, and is reported now and then."""
        added = reported = 0
        for part in _turned(rows, found.basis):
            yield part.cpu().numpy()
            added += len(part)
            if added - reported >= len(rows) // 100:
                reported = added
                # What was paid for is not lost to whoever is told about it.
                with suppress(Exception):
                    clock("query", f"{added:,} of {len(rows):,} rows added up", added / len(rows))

    # The longest of the rows held: what is longer is scaled down to it.
    asked = RowChunks(len(rows), found.basis.width, chunks)
    mechanism = Moments(asked, vault.num_classes, noise, _radius(some, noise))
    parts = (part.sum(dim=0, dtype=torch.float64) for part in _turned(rows, found.basis))
    noisy = _released(mechanism, found.basis.width, vault, folder, lambda: torch.stack(list(parts)).sum(dim=0))
    clock("query", f"{noisy.num_classes} × {found.basis.width} numbers, noise {noisy.noise_std:.3g}")
    axes = eigenbasis(gram_of(some))
    shot = fitted(found, heads, moment_of(some, noisy), some, clock, weighted, axes)
    if len(held) < len(rows):
        expected = _expected(_turned(rows, found.basis), shot.weight, clock, len(rows)), _expected([some], shot.weight)
        place = list(heads).index(shot.head)
        own = replace(found, scales=found.scales[place : place + 1])
        shot = fitted(own, (shot.head,), moment_of(some, noisy, expected), some, clock, weighted, axes)
    return replace(shot, tuning=found, noisy=noisy)


def rows_held(rows: Streamed, most: int | None, seed: int) -> Any:
    """Return the random public rows that tuning and head see, all where they are no more."""
    count = max(1, HELD_CELLS // rows.shape[1]) if most is None else most
    if count >= len(rows):
        return rows
    return rows.take(torch.randperm(len(rows), generator=Generator().manual_seed(seed))[:count].sort().values)


def _turned(rows: Streamed, basis: Basis) -> Iterator[Tensor]:
    """Yield φ of all rows, chunk by chunk."""
    return (basis.from_turned(part) for _, part in rows.mapped(basis.matrix))


def moment_of(some: Tensor, noisy: NoisyMoments, expected: tuple[Tensor, Tensor] | None = None) -> NoisyMoments:
    """Estimate the moment of some rows from that of all.

    Args:
        some: φ of these rows, (m, d).
        noisy: the moment of all.
        expected: moments that a model of the labels gives all rows and these, (K, d) each; none: every class is as
            likely as any other.
    """
    share, classes = len(some) / noisy.num_rows, noisy.num_classes
    total = some.sum(dim=0, dtype=torch.float64).cpu().numpy()
    if expected is None:
        value = share * (noisy.value - noisy.total / classes) + total / classes
    else:
        of_all, of_some = (one.cpu().numpy() for one in expected)
        value = share * (noisy.value - of_all) + of_some
    own = {"value": value, "total": total, "num_rows": len(some), "noise_std": share * noisy.noise_std}
    # Of many labels, scaled down, the scatter is that of many; and that of the rows drawn is left while p says nothing.
    return EstimatedMoments(**{**vars(noisy), **own}, scatter=1.0 if expected is None else share)


def _expected(parts: Iterable[Tensor], weight: Tensor, clock: Clock | None = None, rows: int = 0) -> Tensor:
    """Return Σ_i softmax(t·Wφ_i) ⊗ φ_i, (K, d)."""
    found, done, reported = torch.zeros(weight.shape, dtype=torch.float64, device=weight.device), 0, 0
    for whole in parts:
        for part in whole.split(_ROWS_AT_ONCE):
            found += torch.softmax(part @ weight.T, dim=1).T @ part
            done += len(part)
            if clock is not None and done - reported >= rows // 100:
                clock("head", f"{done:,} of {rows:,} rows", done / rows)
                reported = done
    return found
