"""Label-free features for the runs that look once: computed once per data set, settings and seed, kept in memory.

The runner hands out scaled images. Features are made of pixels, so the scaling is undone first, for training and test
images alike.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labeldp.data import benchmarks, synthetic
from labeldp.learning.clusters import Clusters, kmeans
from labeldp.learning.encoders import load_encoder
from labeldp.learning.features import Extractor, FeatureMap, Patches, Raw
from labeldp.learning.rehearsal import Stage
from labeldp.models.zoo import resnet18_v2

_ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, eq=False)
class Public:
    """A data set's features (n, p), the map that made them, and rows and pseudo-labels to rehearse on."""

    map: FeatureMap
    pixels: Pixels
    features: Tensor
    seed: int

    def on_images(self, head: nn.Module) -> nn.Module:
        """A head on features as a model on scaled images."""
        return _OnImages(self, head)

    @functools.cached_property
    def _stages(self) -> dict[int, Stage]:
        return {}

    def stage(self, num_classes: int) -> Stage:
        """What all rehearsals on these features share, whatever their noise."""
        if num_classes not in self._stages:
            self._stages[num_classes] = Stage(self.features, num_classes, seed=self.seed)
        return self._stages[num_classes]

    def clusters(self, count: int) -> Clusters:
        """k-means on the features."""
        return kmeans(self.features, count, seed=self.seed)


def public(dataset: str, images: Tensor, settings: Mapping[str, Any], seed: int) -> Public:
    """Features of the runner's training images by these settings; see `extractor`."""
    known = (dataset, str(images.device), json.dumps(dict(settings), sort_keys=True), seed)
    if known not in _KEPT:
        # One run of a GPU needs few; more would only fill it.
        while len(_KEPT) >= 4:
            _KEPT.pop(next(iter(_KEPT)))
        pixels = Pixels(dataset)
        raw = pixels(images)
        found = extractor(settings, images.shape[1], seed).fit(raw, images.device)
        _KEPT[known] = Public(found, pixels, found.features(raw), seed)
    return _KEPT[known]


_KEPT: dict[Any, Public] = {}


def extractor(settings: Mapping[str, Any], channels: int, seed: int) -> Extractor:
    """{patches = 800, dims = 2048}, {encoder = "experiments/artifacts/….safetensors"} or {raw = true}."""
    dims = settings.get("dims")
    if set(settings) <= {"patches", "dims", "size", "pool"} and "patches" in settings:
        return Patches(settings["patches"], settings.get("size"), settings.get("pool"), dims=dims, seed=seed)
    if set(settings) <= {"encoder", "dims"} and "encoder" in settings:
        path = _ROOT / settings["encoder"]
        if not path.exists():
            raise ValueError(f"features.encoder={settings['encoder']!r} is not there; make it by experiments.encoder")
        body = resnet18_v2(10, channels=channels).get_submodule("body")
        return replace(load_encoder(path, body), dims=dims, seed=seed)
    if settings.get("raw") is True and set(settings) <= {"raw", "dims"}:
        return Raw(dims=dims, seed=seed)
    raise ValueError(f"features={dict(settings)} are not known here; give patches, encoder or raw, and dims")


class Pixels(nn.Module):
    """The runner's scaled images ↦ bytes: (x − mean)/spread undone, and rounding with it."""

    def __init__(self, dataset: str) -> None:
        super().__init__()
        self.mean, self.spread = _scaling(dataset)

    def forward(self, images: Tensor) -> Tensor:
        """(n, C, H, W) uint8, chunk by chunk."""
        mean, spread = (part.to(images.device) for part in (self.mean, self.spread))
        parts = [(part.float() * spread + mean).round().clamp(0, 255).byte() for part in images.split(10_000)]
        return torch.cat(parts).contiguous()


class _OnImages(nn.Module):
    def __init__(self, public: Public, head: nn.Module) -> None:
        super().__init__()
        self.public, self.head = public, head

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, enabled=False):
            return self.head(self.public.map.features(self.public.pixels(images)))


@functools.cache
def _scaling(dataset: str) -> tuple[Tensor, Tensor]:
    """Mean and spread of the training pixels, per channel, as the runner scales by."""
    made_up = dataset == synthetic.NAME
    found = synthetic.synthetic_stand_in(200, 50, 10) if made_up else benchmarks.load(dataset)
    if not isinstance(found.train, np.ndarray):
        raise ValueError(f"dataset={dataset!r} is no set of images, and the runner knows no other inputs yet")
    pixels = torch.from_numpy(found.train).float()
    return pixels.mean(dim=(0, 2, 3), keepdim=True), pixels.std(dim=(0, 2, 3), keepdim=True)
