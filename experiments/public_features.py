"""Label-free features for the runs of one moment: computed once per data set, settings and seed, kept in memory.

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

from experiments import synthetic
from labeldp.data import benchmarks
from labeldp.features.cache import content_key
from labeldp.features.clusters import Clusters, SoftClusters, kmeans, scan
from labeldp.features.encoders import Encoder, OverCrops, load_encoder, unit_outputs
from labeldp.features.extract import Extractor, FeatureMap, Raw, extract
from labeldp.features.graph import NeighbourMap, Neighbours
from labeldp.features.patches import Patches
from labeldp.learning.tuning import Stage
from labeldp.models.zoo import resnet18_v2

_ROOT = Path(__file__).parent.parent
# Of a crop, as a share of the image's.
_SIDE = 0.75
# Images from which on outputs computed on a processor are kept on the disk, how many in a file, and where.
_MANY, _PART = 500, 2_500
_KEPT_OUTPUTS = _ROOT / "build" / "outputs"


@dataclass(frozen=True, eq=False)
class Seen:
    """Features made of others, and what tuning on them shares."""

    features: Tensor
    stage: Stage


@dataclass(frozen=True, eq=False)
class Public:
    """A data set's features (n, p), the map that made them, and rows and pseudo-labels to tune on."""

    map: FeatureMap
    pixels: Pixels
    inputs: Tensor
    features: Tensor
    seed: int

    def on_images(self, head: nn.Module) -> nn.Module:
        """A head on features as a model on scaled images."""
        return _OnImages(self.map, self.pixels, head)

    @property
    def plain(self) -> Public:
        """The features that the graph was made of, in place of the graph's."""
        if not isinstance(self.map, NeighbourMap):
            raise ValueError("features have no graph; a student on plain features would learn what the head knows")
        return replace(self, map=self.map.base, features=self.map.base.features(self.inputs))

    @functools.cached_property
    def _stages(self) -> dict[int, Stage]:
        return {}

    def stage(self, num_classes: int) -> Stage:
        """What all tuning on these features shares, whatever the noise."""
        if num_classes not in self._stages:
            self._stages[num_classes] = Stage(self.features, num_classes, seed=self.seed)
        return self._stages[num_classes]

    @functools.cached_property
    def _graphs(self) -> dict[tuple[int, int], Seen]:
        return {}

    def graph(self, dims: int, num_classes: int) -> Seen:
        """So many eigenvectors of the graph of nearest rows by the features' first 256 components."""
        known = dims, num_classes
        if known not in self._graphs:
            found = Neighbours(Raw(dims=256, seed=self.seed), dims=dims, seed=self.seed).fit(self.features)
            seen = found.features(self.features)
            self._graphs[known] = Seen(seen, Stage(seen, num_classes, seed=self.seed))
        return self._graphs[known]

    def clusters(self, count: int) -> Clusters:
        """k-means on the features."""
        return kmeans(self.features, count, seed=self.seed)

    def scan(self, count: int) -> SoftClusters:
        """Clusters by a network on the features that puts near rows together."""
        return scan(self.features, count, seed=self.seed)


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
        _KEPT[known] = Public(found, pixels, raw, found.features(raw), seed)
    return _KEPT[known]


_KEPT: dict[Any, Public] = {}


def extractor(settings: Mapping[str, Any], channels: int, seed: int) -> Extractor:
    """{patches = 800, dims = 2048}, {encoder = "experiments/artifacts/….safetensors"} or {raw = true}.

    With `crops = 3` beside the encoder alone: its outputs averaged over 3 × 3 crops of three quarters of the side, and
    their mirrors.
    With `graph = 64` as well: so many eigenvectors of the graph of nearest rows by those features.
    """
    if "graph" in settings:
        plain = {name: value for name, value in settings.items() if name != "graph"}
        return Neighbours(extractor(plain, channels, seed), dims=settings["graph"], seed=seed)
    dims = settings.get("dims")
    if set(settings) <= {"patches", "dims", "size", "pool"} and "patches" in settings:
        return Patches(settings["patches"], settings.get("size"), settings.get("pool"), dims=dims, seed=seed)
    if {"encoder"} <= set(settings) <= {"encoder", "crops"}:
        _kept(settings["encoder"])
        return _Outputs(settings["encoder"], channels, seed, settings.get("crops"))
    if set(settings) == {"encoder", "dims"}:
        return replace(encoder(settings["encoder"], channels), dims=dims, seed=seed)
    if settings.get("raw") is True and set(settings) <= {"raw", "dims"}:
        return Raw(dims=dims, seed=seed)
    raise ValueError(f"features={dict(settings)} are not known here; give patches, encoder or raw, and dims")


def fill(model: nn.Module, name: str, images: Tensor) -> None:
    """The weights of a kept encoder, outputs scaled, for all of the model but its last layer."""
    load_encoder(_kept(name), model.get_submodule("body"))
    unit_outputs(model.get_submodule("body"), images[:2048])


def encoder(name: str, channels: int) -> Encoder:
    """A kept encoder of images of so many channels."""
    return load_encoder(_kept(name), resnet18_v2(10, channels=channels).get_submodule("body"))


def _kept(name: str) -> Path:
    path = _ROOT / name
    if not path.exists():
        raise ValueError(f"encoder {name!r} is not there; make it by experiments.encoder, or see results/README.md")
    return path


@dataclass(frozen=True)
class _Outputs:
    """An encoder's outputs, standardised; the outputs themselves are computed once for all seeds."""

    encoder: str
    channels: int
    seed: int
    crops: int | None = None

    def fit(self, inputs: Any, device: Any = None) -> _OutputsMap:
        kept = replace(encoder(self.encoder, self.channels), standardise=False)
        if self.crops is not None:
            kept = replace(kept, model=OverCrops(kept.model, side=_SIDE, grid=self.crops))
        return _OutputsMap(kept, Raw(seed=self.seed).fit(_once(kept, inputs)))


@dataclass(frozen=True, eq=False)
class _OutputsMap:
    encoder: Encoder
    scaled: FeatureMap

    @property
    def dim(self) -> int:
        return self.scaled.dim

    def features(self, inputs: Any) -> Tensor:
        return self.scaled.features(_once(self.encoder, inputs))


def _once(kept: Encoder, inputs: Tensor) -> Tensor:
    """Outputs for all inputs, kept in memory; on the disk as well, part by part, where a processor takes minutes."""
    key = content_key(kept.fingerprint(), inputs)
    if key not in _OUTPUTS:
        folder = _KEPT_OUTPUTS if len(inputs) >= _MANY and not inputs.is_cuda else None
        _OUTPUTS[key] = torch.cat([extract(kept, part, cache=folder)[0] for part in inputs.split(_PART)])
    return _OUTPUTS[key]


_OUTPUTS: dict[str, Tensor] = {}


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
    def __init__(self, found: FeatureMap, pixels: Pixels, head: nn.Module) -> None:
        super().__init__()
        self.found, self.pixels, self.head = found, pixels, head

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, enabled=False):
            return self.head(self.found.features(self.pixels(images)))


@functools.cache
def _scaling(dataset: str) -> tuple[Tensor, Tensor]:
    """Mean and spread of the training pixels, per channel, as the runner scales by."""
    made_up = dataset == synthetic.NAME
    found = synthetic.synthetic_stand_in(200, 50, 10) if made_up else benchmarks.load(dataset)
    if not isinstance(found.train, np.ndarray):
        raise ValueError(f"dataset={dataset!r} is no set of images, and the runner knows no other inputs yet")
    pixels = torch.from_numpy(found.train).float()
    return pixels.mean(dim=(0, 2, 3), keepdim=True), pixels.std(dim=(0, 2, 3), keepdim=True)
