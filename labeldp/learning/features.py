"""Public inputs to rows of features, without a label: nothing here has an argument that could hold one.

An extractor is a frozen value of settings; `fit` looks at public inputs and gives a map; the map's `features` turns
inputs, old or new, into float32 rows (n, dim) on its device.

    Raw          pixels, or embeddings made elsewhere, standardised
    Patches      a dictionary of small image patches (patches.py)
    Table        standardised numbers, one-hot or hashed categories (tabular.py)
    Encoder      a network from self-supervision (selfsupervised.py) or from a file (encoders.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Generator, Tensor

from labeldp.learning.cache import content_key, load_array, save_array
from labeldp.learning.patches import Patches, PatchMap, as_float, patch_features
from labeldp.learning.scaling import Scaling, fit_scaling

__all__ = ["Extractor", "FeatureMap", "PatchMap", "Patches", "Raw", "RawMap", "extract", "patch_features"]

Device = torch.device | str | None
# Rows that mean, spread and principal components are estimated from, and rows turned into features at once.
_SAMPLE, _CHUNK = 50_000, 8192


class FeatureMap(Protocol):
    """Inputs ↦ features, fitted."""

    @property
    def dim(self) -> int:
        """Number of features."""
        ...

    def features(self, inputs: Any) -> Tensor:
        """(n, dim), float32, on the map's device."""
        ...


class Extractor(Protocol):
    """Settings of a feature map. Its `repr` says all of them, or it has a `fingerprint()` that does."""

    def fit(self, inputs: Any, device: Device = None) -> FeatureMap:
        """Learn from public inputs; on their own device unless another is named."""
        ...


def extract(
    extractor: Extractor, train: Any, *others: Any, device: Device = None, cache: Path | str | None = None
) -> tuple[Tensor, ...]:
    """Fit on `train`; the features of `train` and of each of `others` (a test set).

    Args:
        train, others: public inputs, arrays or tensors or tuples of them, as the extractor takes them.
        device: where to compute; that of `train` when None.
        cache: a folder. Features are kept there under a hash of inputs, settings and version, and only read the next
            time; a damaged file is noticed and computed again.

    >>> train, test = extract(Raw(), np.eye(4), np.zeros((2, 4)))
    >>> train.shape, test.shape
    (torch.Size([4, 4]), torch.Size([2, 4]))
    """
    place = torch.device(device) if device is not None else _device_of(train)
    wanted = (train, *others)
    if cache is None:
        found = extractor.fit(train, place)
        return tuple(found.features(inputs) for inputs in wanted)
    base = content_key(fingerprint(extractor), place.type, train)
    paths = [Path(cache) / f"{content_key(base, inputs)}.npy" for inputs in wanted]
    kept: list[Any] = [load_array(path) for path in paths]
    found = extractor.fit(train, place) if any(rows is None for rows in kept) else None
    for position, (path, inputs) in enumerate(zip(paths, wanted, strict=True)):
        if kept[position] is None and found is not None:
            kept[position] = found.features(inputs).cpu().numpy()
            save_array(path, kept[position])
    return tuple(torch.as_tensor(rows).to(place) for rows in kept)


def fingerprint(extractor: Extractor) -> str:
    """Text that is equal only for extractors that give equal features."""
    own = getattr(extractor, "fingerprint", None)
    return own() if own is not None else f"{type(extractor).__module__}.{extractor!r}"


@dataclass(frozen=True)
class Raw:
    """The inputs themselves, flattened: pixels, or embeddings of text made elsewhere.

    Args:
        unit: scale each row to length 1 first, as suits embeddings that were trained by cosine.
        floor: of the variance, as a share of its mean over columns; see `fit_scaling`.
        dims: principal components kept; None keeps all coordinates.
        seed: of the rows that are standardised by, when there are very many.
    """

    unit: bool = False
    floor: float = 0.01
    dims: int | None = None
    seed: int = 0

    def fit(self, inputs: Tensor | np.ndarray, device: Device = None) -> RawMap:
        """Mean, spread and components of at most 50,000 rows."""
        rows = checked_rows(inputs)
        place = torch.device(device) if device is not None else rows.device
        chosen = rows[sample_rows(len(rows), _SAMPLE, self.seed).to(rows.device)]
        sample = _flat(chosen.to(place), self.unit)
        return RawMap(fit_scaling(sample, dims=self.dims, floor=self.floor, seed=self.seed), self.unit)


@dataclass(frozen=True, eq=False)
class RawMap:
    """Flattened, standardised inputs."""

    scaling: Scaling
    unit: bool

    @property
    def dim(self) -> int:
        """Number of features."""
        return self.scaling.dim

    def features(self, inputs: Tensor | np.ndarray) -> Tensor:
        """(n, dim)."""
        rows, place = checked_rows(inputs), self.scaling.mean.device
        result = torch.empty(len(rows), self.dim, device=place)
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK].to(place)
            result[start : start + _CHUNK] = self.scaling(_flat(part, self.unit))
        return result


def sample_rows(count: int, most: int, seed: int) -> Tensor:
    """Numbers of at most `most` rows, all when there are no more; drawn on the CPU, so alike for every device."""
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=Generator().manual_seed(seed))[:most]


def checked_rows(inputs: Tensor | np.ndarray) -> Tensor:
    """A tensor with a first dimension of rows and at least one more, or ValueError."""
    tensor = torch.as_tensor(inputs)
    if tensor.ndim < 2 or 0 in tensor.shape[1:]:
        raise ValueError(f"inputs has shape {tuple(tensor.shape)}; give rows of features (n, …)")
    return tensor


def _flat(rows: Tensor, unit: bool) -> Tensor:
    flat = as_float(rows).flatten(1)
    return flat / flat.norm(dim=1, keepdim=True).clamp_(min=1e-12) if unit else flat


def _device_of(inputs: Any) -> torch.device:
    """Of the first tensor; arrays are on the CPU."""
    first = inputs[0] if isinstance(inputs, Sequence) and not isinstance(inputs, str) else inputs
    return first.device if isinstance(first, Tensor) else torch.device("cpu")
