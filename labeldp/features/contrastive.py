"""Train encoders on public images alone, by SimCLR and BYOL: two random views of an image are made to agree.

Images lie on the device, uint8 or float in [0, 1]; views are made there, for a batch at once. Both methods return an
`Encoder`: the trained body with the scaling of its inputs, ready for `extract`.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Unpack

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from labeldp.features.augment import Augment, normalise, simclr_view
from labeldp.features.cache import content_key
from labeldp.features.encoders import Encoder
from labeldp.features.extract import as_float, checked_images, sample_rows
from labeldp.learning.optimisers import cosine, sgd
from labeldp.learning.train import Ahead, LoopSettings, in_batches, minimise
from labeldp.models.zoo import checked_count
from labeldp.ranks import part_of


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
    """Bring views of one image together and views of different images apart: SimCLR (Chen et al. 2020).

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
    data, settings = _Images(body, images), _settings(epochs, loop)
    network = nn.Sequential(body, data.head(data.dim, outputs, seed))
    forward: Any = torch.compile(network) if compiled else network
    views = data.pairs(settings["batch_size"], view or simclr_view())

    def loss(pairs: Tensor) -> Tensor:
        return nt_xent(forward(pairs), temperature)

    run = content_key("simclr", epochs, settings["batch_size"], seed, temperature, outputs, data.images)
    minimise(
        network, loss, len(data.images), arguments=lambda batch: (views(batch),), epochs=epochs, seed=seed, run=run,
        **settings,
    )  # fmt: skip
    return data.encoder()


def byol(
    body: nn.Module,
    images: Tensor,
    *,
    epochs: int,
    decay: float = 0.99,
    hidden: int = 1024,
    outputs: int = 256,
    predictor_hidden: int | None = None,
    view: Augment | tuple[Augment, Augment] | None = None,
    compiled: bool = False,
    seed: int = 0,
    **loop: Unpack[LoopSettings],
) -> Encoder:
    """Let one view predict what a slow copy of the network makes of the other: BYOL (Grill et al. 2020).

    With projections z of the network, z' of its exponential moving average, and a predictor q, the loss of a pair of
    views is 2 − 2 cos(q(z_1), z'_2), and the same with the views exchanged. No gradient goes through z'. The decay of
    the average grows from `decay` to 1 by half a cosine.

    Args:
        body: (n, C, H, W) → (n, d); trained in place, on the images' device.
        images: (n, C, H, W), uint8 or float in [0, 1].
        decay: of the moving average at the start; 0.99 suits a hundred epochs and more.
        hidden, outputs: widths of the projection.
        predictor_hidden: width of the predictor's hidden layer, `hidden` when None; its outputs are the projection's.
        view: as for `simclr`, or two, one for each side of a pair, such as `byol_views()`.
        compiled, seed, loop: as for `simclr`; `lars` is the published optimiser.
    """
    if not 0 <= decay < 1:
        raise ValueError(f"decay={decay} is not in [0, 1); 0.99 is usual")
    data, settings = _Images(body, images), _settings(epochs, loop)
    online = nn.Sequential(body, data.head(hidden, outputs, seed))
    widths = (hidden, outputs, hidden if predictor_hidden is None else predictor_hidden)
    predictor = _mlp(outputs, widths[2], outputs, seed + 1).to(data.images.device)
    target = copy.deepcopy(online).requires_grad_(False)
    network, both = nn.ModuleList((online, predictor, target)), nn.Sequential(online, predictor)
    forward, follow = (torch.compile(part) if compiled else part for part in (both, target))
    slow, fast = ([p.detach() for p in part.parameters()] for part in (target, online))
    views = data.pairs(settings["batch_size"], view or simclr_view())

    def loss(pairs: Tensor) -> Tensor:
        with torch.no_grad():
            aims = follow(pairs).float()
        return agreement_loss(forward(pairs).float(), aims.roll(len(pairs) // 2, dims=0))

    def after(share: float) -> None:
        step = (1 - decay) * (1 + math.cos(math.pi * share)) / 2
        torch._foreach_lerp_(slow, fast, step)  # pyright: ignore[reportPrivateImportUsage]

    given = (epochs, settings["batch_size"], seed, decay, *widths, isinstance(view, tuple))
    run = content_key("byol", *given, data.images)
    minimise(
        network, loss, len(data.images), arguments=lambda batch: (views(batch),), epochs=epochs, after=after, seed=seed,
        run=run, **settings,
    )  # fmt: skip
    return data.encoder()


def nt_xent(outputs: Tensor, temperature: float) -> Tensor:
    """Return the mean cross-entropy of finding each row's partner, B rows further on, among all others (Sohn 2016).

    >>> round(nt_xent(torch.eye(2).repeat(2, 1), temperature=0.01).item(), 3)
    0.0
    """
    with torch.autocast(outputs.device.type, enabled=False):
        z = normalize(outputs.float(), dim=1)
        logits = (z @ z.T / temperature).fill_diagonal_(-torch.inf)
        partners = torch.arange(len(z), device=z.device).roll(len(z) // 2)
        return cross_entropy(logits, partners)


def agreement_loss(predictions: Tensor, aims: Tensor) -> Tensor:
    """Return the mean of 2 − 2 cos, twice: for each view of a pair as the one that predicts."""
    return 2 * (2 - 2 * cosine_similarity(predictions, aims, dim=1)).mean()


class _Images:
    """Public images on the device, with the views made of them and the body they train."""

    def __init__(self, body: nn.Module, images: Tensor) -> None:
        self.images = checked_images(images)
        if len(self.images) < 2:
            raise ValueError(f"images has {len(self.images)} rows, too few to compare views of; give at least two")
        # In place, so that the caller's body is the trained one; channels last is how a GPU convolves fastest.
        device = self.images.device
        self.body = body.to(device).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        sample = as_float(self.images[sample_rows(len(self.images), 4096, seed=0).to(device)])
        spread, mean = torch.std_mean(sample.double(), dim=(0, 2, 3), correction=0)
        self.mean, self.spread = tuple(mean.tolist()), tuple(spread.clamp(min=1e-6).tolist())
        training = body.training
        with torch.no_grad():
            shape = body.eval()(sample[:2]).shape
        body.train(training)
        if len(shape) != 2:
            raise ValueError(f"the body's outputs have shape {tuple(shape)}; give one that ends in (n, d)")
        self.dim = shape[1]

    def pairs(self, batch_size: int, view: Augment | tuple[Augment, Augment]) -> Ahead[Tensor]:
        """Return what makes two views of each row of a batch, all first ones before all second ones."""
        size = min(checked_count("batch_size", batch_size), len(self.images))
        scale = normalise(self.mean, self.spread)

        def make(rows: Tensor, generator: Generator) -> list[Tensor]:
            images = as_float(self.images[rows])
            if isinstance(view, tuple):
                sides = [side(images, generator) for side in view]
            else:
                sides = view(torch.cat((images, images)), generator).chunk(2)
            together = (scale(torch.cat(pair), generator) for pair in in_batches(sides, (part_of(size),) * 2))
            return [pair.contiguous(memory_format=torch.channels_last) for pair in together]

        return Ahead(make, size, self.images)

    def head(self, hidden: int, outputs: int, seed: int) -> nn.Module:
        """Return a projection of the body's features."""
        return _mlp(self.dim, hidden, outputs, seed).to(self.images.device)

    def encoder(self) -> Encoder:
        return Encoder(self.body.eval(), self.mean, self.spread)


def _mlp(before: int, hidden: int, after: int, seed: int) -> nn.Sequential:
    """Make linear, batch norm, ReLU, linear; first weights by the seed, the global random state as it was."""
    sizes = (checked_count("hidden", hidden), checked_count("outputs", after))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed: that reaches the GPUs' state too
        return nn.Sequential(
            nn.Linear(before, sizes[0], bias=False), nn.BatchNorm1d(sizes[0]), nn.ReLU(), nn.Linear(*sizes)
        )


def _settings(epochs: int, loop: LoopSettings) -> dict[str, Any]:
    """Fill in the loop's settings that were left out; the warm-up is ten epochs, or a tenth of a short training."""
    warm = cosine(warmup=min(10.0, epochs / 10) / max(1, epochs))
    return {"batch_size": 1024, "optimizer": sgd(0.6, weight_decay=5e-4), "schedule": warm, **loop}
