"""Turn public inputs into rows of features, without a label: nothing here has an argument that could hold one.

An extractor is a frozen value of settings; `fit` reads public inputs and gives a map; the map's `features` turns
inputs, old or new, into float32 rows (n, dim) on its device.

    Raw          pixels, or embeddings made elsewhere, standardised
    Patches      a dictionary of small image patches (patches.py)
    Table        standardised numbers, one-hot or hashed categories (tables.py)
    Text         words and pairs of words of prose, by tf-idf, projected (text.py)
    Projected    wide sparse rows on their leading directions (sparse.py)
    Encoder      a network from self-supervision (contrastive.py) or from a file (encoders.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Generator, Tensor

from labeldp.features.cache import content_key, load_array, save_array
from labeldp.learning.progress import tell
from labeldp.models.zoo import checked_count
from labeldp.ranks import shared_rows

Device = torch.device | str | None
Images = Tensor | np.ndarray
# Rows that mean, spread and principal components are estimated from, and rows turned into features at once.
_SAMPLE, _CHUNK = 50_000, 8192
Part = TypeVar("Part")
Out = TypeVar("Out")


class FeatureMap(Protocol):
    """Inputs ↦ features, fitted."""

    @property
    def dim(self) -> int:
        """Number of features."""
        ...

    def features(self, inputs: Any) -> Tensor:
        """Return (n, dim), float32, on the map's device."""
        ...


class Extractor(Protocol):
    """Settings of a feature map. Its `repr` shows all of them, or it has a `fingerprint()` that does."""

    def fit(self, inputs: Any, device: Device = None) -> FeatureMap:
        """Learn from public inputs; on their own device unless another is named."""
        ...


def extract(
    extractor: Extractor, train: Any, *others: Any, device: Device = None, cache: Path | str | None = None
) -> tuple[Tensor, ...]:
    """Fit on `train`; return the features of `train` and of each of `others` (a test set).

    Args:
        train, others: public inputs, arrays or tensors or tuples of them, as the extractor takes them.
        device: where to compute; that of `train` when None.
        cache: a folder. Features are kept there under a hash of inputs, settings and version, and only read the next
            time; a damaged file is noticed and computed again.

    >>> train, test = extract(Raw(), np.eye(4), np.zeros((2, 4)))
    >>> train.shape, test.shape
    (torch.Size([4, 4]), torch.Size([2, 4]))
    """
    # Arrays are on the CPU.
    first = train[0] if isinstance(train, Sequence) and not isinstance(train, str) else train
    place = torch.device(device or (first.device if isinstance(first, Tensor) else "cpu"))
    wanted = (train, *others)
    if cache is None:
        found = extractor.fit(train, place)
        return tuple(features_of(found, inputs) for inputs in wanted)
    base = content_key(fingerprint(extractor), place.type, train)
    paths = [Path(cache) / f"{content_key(base, inputs)}.npy" for inputs in wanted]
    kept: list[Any] = [load_array(path) for path in paths]
    found = extractor.fit(train, place) if any(rows is None for rows in kept) else None
    for position, (path, inputs) in enumerate(zip(paths, wanted, strict=True)):
        if kept[position] is None and found is not None:
            kept[position] = features_of(found, inputs).cpu().numpy()
            save_array(path, kept[position])
    return tuple(torch.as_tensor(rows).to(place) for rows in kept)


def features_of(found: FeatureMap, inputs: Any) -> Tensor:
    """Return the features of all inputs; of images, ranks that work together make each its share (`labeldp.ranks`).

    Columns of a table are not worth sending: making their features takes less time.
    """
    images = isinstance(inputs, Tensor) and inputs.ndim > 2
    return shared_rows(found.features, inputs) if images else found.features(inputs)


def fingerprint(extractor: Extractor) -> str:
    """Return text that is equal only for extractors that give equal features."""
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
        """Find mean, spread and components of at most 50,000 rows."""
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
        """Return (n, dim)."""
        rows, place = checked_rows(inputs), self.scaling.mean.device
        result = torch.empty(len(rows), self.dim, device=place)
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK].to(place)
            result[start : start + _CHUNK] = self.scaling(_flat(part, self.unit))
        return result


def sample_rows(count: int, most: int, seed: int) -> Tensor:
    """Return the numbers of at most `most` rows, all when there are no more; the same ones for every device."""
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=Generator().manual_seed(seed))[:most]


def checked_rows(inputs: Tensor | np.ndarray) -> Tensor:
    """Return a tensor of rows with at least one more dimension, or raise ValueError."""
    tensor = torch.as_tensor(inputs)
    if tensor.ndim < 2 or 0 in tensor.shape[1:]:
        raise ValueError(f"inputs has shape {tuple(tensor.shape)}; give rows of features (n, …)")
    return tensor


def checked_images(images: Images) -> Tensor:
    """Return a tensor (n, channels, height, width) of at least one image, or raise ValueError."""
    tensor = torch.as_tensor(images)
    if tensor.ndim != 4 or 0 in tensor.shape:
        raise ValueError(f"images has shape {tuple(tensor.shape)}; give (n, channels, height, width)")
    return tensor


def as_float(images: Tensor) -> Tensor:
    """Return float32; whole numbers are bytes, and 255 becomes 1."""
    return images.float() if images.is_floating_point() else images.float() / 255


def _flat(rows: Tensor, unit: bool) -> Tensor:
    flat = as_float(rows).flatten(1)
    return flat / flat.norm(dim=1, keepdim=True).clamp_(min=1e-12) if unit else flat


# -- scaling, fitted on public rows ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Scaling:
    """x ↦ Bᵀ ((x − mean) · inverse): standardised coordinates, then principal components when there is a basis.

    Args:
        mean: (d,).
        inverse: (d,) one over the standard deviation.
        basis: (d, r), orthonormal columns, or None to keep all coordinates.
    """

    mean: Tensor
    inverse: Tensor
    basis: Tensor | None = None

    @property
    def dim(self) -> int:
        """Number of coordinates that come out."""
        return len(self.mean) if self.basis is None else self.basis.shape[1]

    def __call__(self, rows: Tensor) -> Tensor:
        """Map (n, d) → (n, r)."""
        standard = (rows - self.mean).mul_(self.inverse)
        return standard if self.basis is None else standard @ self.basis


def fit_scaling(sample: Tensor, *, dims: int | None = None, floor: float = 0.01, seed: int = 0) -> Scaling:
    """Standardise by the sample's mean and √(variance + floor · mean variance), then keep `dims` components.

    The floor keeps coordinates that hardly vary from being blown up (Coates and Ng 2011); one that never varies
    becomes zero. Components are eigenvectors of the sample's covariance, largest first, and at most d.

    >>> scaling = fit_scaling(torch.tensor([[0.0, 5.0], [2.0, 5.0]]), floor=0.0)
    >>> scaling(torch.tensor([[2.0, 5.0]])).tolist()
    [[1.0, 0.0]]
    """
    if not bool(torch.isfinite(sample.sum(dtype=torch.float64))):
        raise ValueError("inputs have values that are not finite; fill in or drop missing features")
    variance, mean = torch.var_mean(sample.double(), dim=0, correction=0)
    spread = (variance + floor * variance.mean()).sqrt()
    # A constant column has a variance of rounding errors only.
    varies = variance > 1e-12 * (mean.square() + variance.max())
    inverse = torch.where(varies, 1 / spread.clamp(min=torch.finfo(torch.float32).tiny), 0.0)
    scaling = Scaling(mean.float(), inverse.float())
    if dims is None:
        return scaling
    return Scaling(scaling.mean, scaling.inverse, principal_components(scaling(sample), dims, seed=seed))


def standardiser(rows: Tensor) -> Tensor:
    """Return the factor on each column, (p,): to variance 1, and 1 where the column is zeros and ones, or constant."""
    spread, marks = rows.std(dim=0, correction=0), ((rows == 0) | (rows == 1)).all(dim=0)
    return torch.where(marks | (spread < 1e-6), 1.0, 1.0 / spread)


def principal_components(sample: Tensor, dims: int, *, seed: int = 0) -> Tensor:
    """Return orthonormal directions (d, r) of most variance of the rows about zero, largest first; r = min(dims, d).

    Exact (eigenvectors of XᵀX) unless few of many are wanted; then by subspace iteration from random directions with
    oversampling (Halko, Martinsson and Tropp 2011, Algorithm 4.4), whose cost grows with r and not with d².

    >>> principal_components(torch.tensor([[3.0, 0.0], [-3.0, 0.1]]), 1).abs().round().flatten().tolist()
    [1.0, 0.0]
    """
    d, dims = sample.shape[1], min(checked_count("dims", dims), sample.shape[1])
    wide = dims + max(16, dims // 8)
    if 4 * wide < d and d > 2048:
        return _subspace(sample, dims, wide, seed)
    # Double: eigenvectors of small eigenvalues need the digits.
    vectors = torch.linalg.eigh(gram_of(sample, 4096)).eigenvectors
    return vectors[:, -dims:].flip(1).float().contiguous()


def _subspace(sample: Tensor, dims: int, wide: int, seed: int, passes: int = 6) -> Tensor:
    generator = Generator(sample.device).manual_seed(seed)
    basis = torch.randn(sample.shape[1], wide, device=sample.device, generator=generator)
    for _ in range(passes):
        basis = torch.linalg.qr(sample.T @ (sample @ torch.linalg.qr(basis).Q)).Q
    # Turn within the subspace, so that columns are components, largest first.
    turned = torch.linalg.eigh(gram_of(sample @ basis, 4096)).eigenvectors
    return (basis @ turned[:, -dims:].flip(1).float()).contiguous()


def gram_of(rows: Tensor, chunk: int = 8192) -> Tensor:
    """Return XᵀX in float64 from float32 products of chunks, (d, d)."""
    total = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64, device=rows.device)
    for part in rows.split(chunk):
        total += part.T @ part
    return total


# -- one part of the rows per thread -----------------------------------------------------------------------------------


def map_parts(
    function: Callable[[Part], Out], parts: Sequence[Part], device: torch.device, what: str = ""
) -> list[Out]:
    """Return `function` of each part, in order. On a CPU, as many at once as torch has threads, each on one thread.

    torch splits every operation over its threads and waits for all of them before the next. Where other programs use
    the same cores, most of the time goes into that waiting. Parts that do not depend on each other wait only once.
    Where `what` is done is named, the share of it is told to whoever listens.

    >>> map_parts(lambda part: part.sum().item(), torch.arange(6).split(2), torch.device("cpu"))
    [1, 5, 9]
    """
    threads = min(torch.get_num_threads(), len(parts))
    if device.type != "cpu" or threads < 2:
        return list(_told(map(function, parts), len(parts), what))
    with one_thread(), ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(_told(pool.map(function, parts), len(parts), what))


def _told(results: Iterable[Out], count: int, what: str) -> Iterator[Out]:
    for number, one in enumerate(results, 1):
        if what:
            tell("features", what, number / count)
        yield one


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's operations on one thread inside the block: for sequences of short ones."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        # Also what threads started later begin with.
        torch.set_num_threads(before)
