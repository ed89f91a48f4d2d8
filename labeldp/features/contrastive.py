"""Encoders trained on public images alone: SimCLR and BYOL. Two random views of an image are made to agree.

Images lie on the device, uint8 or float in [0, 1]; views are made there, for a batch at once. Both methods return an
`Encoder`: the trained body with the scaling of its inputs, ready for `extract`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from labeldp.features.augment import Augment, normalise, simclr_view
from labeldp.features.cache import content_key
from labeldp.features.encoders import Encoder
from labeldp.features.extract import as_float, checked_images, sample_rows
from labeldp.learning import train as schedules
from labeldp.learning.train import LoopSettings, Schedule, minimise, sgd
from labeldp.models.zoo import checked_count


def simclr(
    body: nn.Module,
    images: Tensor,
    *,
    epochs: int,
    temperature: float = 0.2,
    outputs: int = 128,
    view: Augment | None = None,
    compiled: bool = False,
    seed: int = 0,
    **loop: Unpack[LoopSettings],
) -> Encoder:
    """Views of one image together, views of different images apart: SimCLR (Chen et al. 2020).

    The body's features go through a projection, thrown away afterwards, to z of unit length. The loss of view i, whose
    partner is view j, over the 2B views of a batch, is − log exp(z_i·z_j / τ) / Σ_{k ≠ i} exp(z_i·z_k / τ).

    Args:
        body: (n, C, H, W) → (n, d), such as `resnet18_v2(10).body`; trained in place, on the images' device.
        images: (n, C, H, W), uint8 or float in [0, 1].
        temperature: τ.
        outputs: dimension of z.
        view: random changes of images in [0, 1], `simclr_view()` when None; scaling to zero mean comes after it.
        compiled: run body and projection through torch.compile.
        seed: of everything random; the body's first weights are the caller's.
        loop: see `minimise`. Batches of 1,024, SGD of rate 0.6 and a cosine with a short warm-up unless given.
    """
    if not temperature > 0:
        raise ValueError(f"temperature={temperature} is not positive; 0.1 to 0.5 are usual")
    data = _Images(body, images, view)
    network = nn.Sequential(body, data.head(outputs, hidden=data.dim, seed=seed))
    forward = _forward(network, compiled)

    def loss(rows: Tensor, generator: Generator) -> Tensor:
        return nt_xent(forward(data.views(rows, generator)), temperature)

    settings = _defaults(epochs, loop)
    run = content_key("simclr", epochs, settings["batch_size"], seed, temperature, outputs, data.images)
    minimise(network, loss, len(data.images), epochs=epochs, seed=seed, run=run, **settings)
    return data.encoder()


def byol(
    body: nn.Module,
    images: Tensor,
    *,
    epochs: int,
    decay: float = 0.99,
    hidden: int = 1024,
    outputs: int = 256,
    view: Augment | None = None,
    compiled: bool = False,
    seed: int = 0,
    **loop: Unpack[LoopSettings],
) -> Encoder:
    """One view predicts what a slow copy of the network makes of the other: BYOL (Grill et al. 2020).

    With projections z of the network, z' of its exponential moving average, and a predictor q, the loss of a pair of
    views is 2 − 2 cos(q(z_1), z'_2), and the same with the views exchanged. No gradient goes through z'. The decay of
    the average grows from `decay` to 1 by half a cosine.

    Args:
        body: (n, C, H, W) → (n, d); trained in place, on the images' device.
        images: (n, C, H, W), uint8 or float in [0, 1].
        decay: of the moving average at the start; 0.99 suits a hundred epochs and more.
        hidden, outputs: widths of projection and predictor.
        view, compiled, seed, loop: as for `simclr`.
    """
    if not 0 <= decay < 1:
        raise ValueError(f"decay={decay} is not in [0, 1); 0.99 is usual")
    data = _Images(body, images, view)
    online = nn.Sequential(body, data.head(outputs, hidden, seed))
    predictor = _mlp(outputs, hidden, outputs, seed + 1).to(data.images.device)
    target = copy.deepcopy(online).requires_grad_(False)
    network = nn.ModuleList((online, predictor, target))
    forward, follow = _forward(nn.Sequential(online, predictor), compiled), _forward(target, compiled)
    slow, fast = ([p.detach() for p in part.parameters()] for part in (target, online))

    def loss(rows: Tensor, generator: Generator) -> Tensor:
        views = data.views(rows, generator)
        with torch.no_grad():
            aims = follow(views).float()
        return agreement_loss(forward(views).float(), aims.roll(len(rows), dims=0))

    def after(share: float) -> None:
        step = (1 - decay) * (1 + math.cos(math.pi * share)) / 2
        torch._foreach_lerp_(slow, fast, step)  # pyright: ignore[reportPrivateImportUsage]

    settings = _defaults(epochs, loop)
    run = content_key("byol", epochs, settings["batch_size"], seed, decay, hidden, outputs, data.images)
    minimise(network, loss, len(data.images), epochs=epochs, after=after, seed=seed, run=run, **settings)
    return data.encoder()


def nt_xent(outputs: Tensor, temperature: float) -> Tensor:
    """Mean cross-entropy of finding each row's partner, B rows further on, among all other rows (Sohn 2016).

    >>> round(nt_xent(torch.eye(2).repeat(2, 1), temperature=0.01).item(), 3)
    0.0
    """
    with torch.autocast(outputs.device.type, enabled=False):
        z = normalize(outputs.float(), dim=1)
        logits = (z @ z.T / temperature).fill_diagonal_(-torch.inf)
        partners = torch.arange(len(z), device=z.device).roll(len(z) // 2)
        return cross_entropy(logits, partners)


def agreement_loss(predictions: Tensor, aims: Tensor) -> Tensor:
    """Mean of 2 − 2 cos, twice: for each view of a pair as the one that predicts."""
    return 2 * (2 - 2 * cosine_similarity(predictions, aims, dim=1)).mean()


class _Images:
    """Public images on the device, with the views made of them and the body they train."""

    def __init__(self, body: nn.Module, images: Tensor, view: Augment | None) -> None:
        self.images = checked_images(images)
        device = self.images.device
        # In place, so that the caller's body is the trained one; channels last is how a GPU convolves fastest.
        self.body = body.to(device).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.view = view or simclr_view()
        self.mean, self.spread = _channel_moments(self.images)
        self.scale = normalise(self.mean, self.spread)
        self.dim = self._features()

    def views(self, rows: Tensor, generator: Generator) -> Tensor:
        """Two views of each row, all first ones before all second ones."""
        batch = as_float(self.images[rows])
        # Changes of pixels in full precision: they are no matrix products, and cost little.
        with torch.autocast(batch.device.type, enabled=False):
            changed = self.view(torch.cat((batch, batch)), generator)
            return self.scale(changed, generator).contiguous(memory_format=torch.channels_last)

    def head(self, outputs: int, hidden: int, seed: int) -> nn.Module:
        return _mlp(self.dim, hidden, outputs, seed).to(self.images.device)

    def encoder(self) -> Encoder:
        return Encoder(self.body.eval(), self.mean, self.spread)

    def _features(self) -> int:
        training = self.body.training
        with torch.no_grad():
            shape = self.body.eval()(as_float(self.images[:2])).shape
        self.body.train(training)
        if len(shape) != 2:
            raise ValueError(f"the body's outputs have shape {tuple(shape)}; give one that ends in (n, d)")
        return shape[1]


def _mlp(before: int, hidden: int, after: int, seed: int) -> nn.Sequential:
    """Linear, batch norm, ReLU, linear; its first weights by the seed, the global random state as it was."""
    sizes = (checked_count("hidden", hidden), checked_count("outputs", after))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed: that reaches the GPUs' state too
        return nn.Sequential(
            nn.Linear(before, sizes[0], bias=False), nn.BatchNorm1d(sizes[0]), nn.ReLU(), nn.Linear(*sizes)
        )


def _channel_moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, from at most 4,096 images."""
    sample = as_float(images[sample_rows(len(images), 4096, seed=0).to(images.device)])
    spread, mean = torch.std_mean(sample.double(), dim=(0, 2, 3), correction=0)
    return tuple(mean.tolist()), tuple(spread.clamp(min=1e-6).tolist())


def _forward(network: nn.Module, compiled: bool) -> Callable[[Tensor], Tensor]:
    return torch.compile(network) if compiled else network


def _defaults(epochs: int, loop: LoopSettings) -> dict[str, Any]:
    """The settings of a loop with those left out filled in."""
    usual = {"batch_size": 1024, "optimizer": sgd(0.6, weight_decay=5e-4), "schedule": _warm_cosine(epochs)}
    return {**usual, **loop}


def _warm_cosine(epochs: int) -> Schedule:
    """Ten epochs of warm-up, or a tenth of a short training."""
    return schedules.cosine(warmup=min(10.0, epochs / 10) / max(1, epochs))
