"""Make features of images from a dictionary of small patches: no labels, no training loop, seconds.

Patches p are brought to zero mean and unit variance, whitened, and compared with D, unit-length whitened patches:

    z = D W ((p − mean p) / √(var p + c) − m)        W = U (Λ + w)^(−1/2) Uᵀ, m and UΛUᵀ of the normalised patches

Both sides of every response are kept, max(0, z − t) and max(0, −z − t), and averaged over the cells of a grid. Since
D W has its row means removed, the whole is one matrix product per patch, scaled by one over the patch's spread.

A. Coates, A. Ng and H. Lee, "An Analysis of Single-Layer Networks in Unsupervised Feature Learning", 2011;
A. Coates and A. Ng, "The Importance of Encoding Versus Training with Sparse Coding and Vector Quantization", 2011.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise, product

import torch
from torch import Generator, Tensor
from torch.nn.functional import avg_pool2d

from labeldp.features.clusters import kmeans
from labeldp.features.extract import Images, Scaling, as_float, checked_images, fit_scaling, map_parts
from labeldp.learning.progress import tell
from labeldp.models.zoo import checked_count

# Responses held at once, in floats: 4 MB stay near a CPU's cache, 1 GB keeps a GPU busy.
_CPU_BLOCK, _GPU_BLOCK = 1 << 20, 1 << 28
# Images whose features are standardised together.
_ROWS = 1024
# Rows that mean, spread and principal components are estimated from.
_SCALING_ROWS = 10_000


@dataclass(frozen=True)
class Patches:
    """How to make a dictionary; `fit` makes it. None means a default by image size, rows and device.

    Args:
        filters: size of the dictionary; the features are 2 · filters · pool² before `dims`.
        size: side of a patch in pixels.
        pool: responses are averaged over a grid of pool × pool cells.
        stride: pixels between neighbouring patches.
        clustered: whether D is centres of spherical k-means, or patches drawn at random.
        threshold: t above.
        contrast: c above, as a share of the mean variance of a patch.
        whitening: w above.
        dims: principal components kept; None keeps all coordinates, standardised.
        seed: of patches, k-means and the rows that are standardised by.
    """

    filters: int | None = None
    size: int | None = None
    pool: int | None = None
    stride: int = 1
    clustered: bool = True
    threshold: float = 0.25
    contrast: float = 0.01
    whitening: float = 0.1
    dims: int | None = None
    seed: int = 0

    def fit(self, inputs: Images, device: torch.device | str | None = None) -> PatchMap:
        """Learn the dictionary from public images (n, channels, height, width), uint8 or float."""
        images = checked_images(inputs)
        device = torch.device(device) if device is not None else images.device
        size, pool = self._shape(images)
        generator = Generator().manual_seed(self.seed)
        filters = checked_count("filters", self.filters or default_filters(images, device))
        tell("features", f"a dictionary of {filters} patches")
        patches = _random_patches(images, size, max(50_000, 250 * filters), generator).to(device)
        weight, bias, floor = _dictionary(self, patches, filters)
        plain = PatchMap(weight, bias, floor, size, self.stride, pool, self.threshold, None)
        rows = torch.randperm(len(images), generator=generator)[:_SCALING_ROWS]
        sample = plain.features(images[rows.to(images.device)])
        return replace(plain, scaling=fit_scaling(sample, dims=self.dims, seed=self.seed))

    def _shape(self, images: Tensor) -> tuple[int, int]:
        """Return the sides of a patch and of the grid, checked against the images."""
        channels, height, width = images.shape[1:]
        side = min(height, width)
        size = checked_count("size", self.size or min(8 if channels == 1 else 6, max(1, side // 2)))
        places = (side - size) // checked_count("stride", self.stride) + 1
        if size > side:
            raise ValueError(f"size={size} is larger than the images, {height} × {width}; give at most {side}")
        pool = checked_count("pool", self.pool or min(3 if channels == 1 else 2, places))
        if pool > places:
            raise ValueError(f"pool={pool} cells per side for {places} patches per side; give at most {places}")
        return size, pool


def patch_features(
    images: Images,
    *,
    filters: int | None = None,
    size: int | None = None,
    pool: int | None = None,
    dims: int | None = None,
    clustered: bool = True,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> PatchMap:
    """Learn a dictionary of patches of these images, with defaults by their size and number; see `Patches`.

    >>> images = torch.rand(64, 1, 12, 12)
    >>> found = patch_features(images, filters=10, size=4, pool=2)
    >>> found.features(images).shape
    torch.Size([64, 80])
    """
    settings = Patches(filters, size, pool, clustered=clustered, dims=dims, seed=seed)
    return settings.fit(images, device)


def default_filters(images: Tensor, device: torch.device) -> int:
    """Return 800 for one channel and 1,600 for colour on a GPU, 200 on a CPU; fewer where rows are few.

    There is little use in many more features than rows, and a CPU does 200 filters on 70,000 small images in well
    under a minute.
    """
    most = (800 if images.shape[1] == 1 else 1600) if device.type == "cuda" else 200
    return max(16, min(most, len(images) // 16))


@dataclass(frozen=True, eq=False)
class PatchMap:
    """A dictionary ready for use: images (n, C, H, W) ↦ features (n, d), standardised.

    Args:
        weight: (C·size², filters), D W with row means removed, transposed.
        bias: (filters,) − D W m.
        floor: c above, in units of the images' variance.
        scaling: applied last; None leaves plain cell means.
    """

    weight: Tensor
    bias: Tensor
    floor: float
    size: int
    stride: int
    pool: int
    threshold: float
    scaling: Scaling | None

    @property
    def dim(self) -> int:
        """Number of features."""
        return self.scaling.dim if self.scaling is not None else 2 * len(self.bias) * self.pool * self.pool

    def features(self, inputs: Images) -> Tensor:
        """Return (n, dim) float32 on the dictionary's device. Chunk by chunk: memory beyond the result is bounded."""
        images, device = checked_images(inputs), self.weight.device
        result = torch.empty(len(images), self.dim, device=device)

        def fill(start: int) -> None:
            result[start : start + _ROWS] = self._block(images[start : start + _ROWS].to(device))

        map_parts(fill, range(0, len(images), _ROWS), device, f"{len(images):,} images")
        return result

    def _block(self, images: Tensor) -> Tensor:
        places = math.prod(side // self.stride // self.pool + 1 for side in images.shape[2:])
        responses = _GPU_BLOCK if images.is_cuda else _CPU_BLOCK
        chunk = max(1, responses // (places * len(self.bias)))
        pooled = torch.cat([self._pooled(as_float(part)) for part in images.split(chunk)])
        return pooled if self.scaling is None else self.scaling(pooled)

    def _pooled(self, images: Tensor) -> Tensor:
        """Return the mean two-sided responses of every cell, (n, cells · 2 · filters)."""
        spread = local_spread(images, self.size, self.stride, self.floor)
        # Runs of places, as even as can be.
        edges = ([length * cell // self.pool for cell in range(self.pool + 1)] for length in spread.shape[1:])
        rows, columns = (list(pairwise(each)) for each in edges)
        cells = [self._cell(images, spread, *r, *c) for r, c in product(rows, columns)]
        return torch.cat(cells, dim=1)

    def _cell(self, images: Tensor, spread: Tensor, top: int, bottom: int, left: int, right: int) -> Tensor:
        views = images.unfold(2, self.size, self.stride).unfold(3, self.size, self.stride)
        patches = views[:, :, top:bottom, left:right].permute(0, 2, 3, 1, 4, 5).reshape(-1, len(self.weight))
        patches.div_(spread[:, top:bottom, left:right].reshape(-1, 1))
        responses = (patches @ self.weight).view(len(images), -1, len(self.bias))
        # With z = response + b: mean max(0, z − t) = mean max(response, t − b) + b − t, one clamp and one sum.
        below = torch.clamp(responses, max=-self.threshold - self.bias).mean(dim=1) + self.bias
        above = responses.clamp_(min=self.threshold - self.bias).mean(dim=1) + self.bias
        return torch.cat((above, -below), dim=1).sub_(self.threshold).clamp_(min=0)


def local_spread(images: Tensor, size: int, stride: int, floor: float) -> Tensor:
    """Return √(var p + floor) of every patch p, (n, places, places)."""
    # About the batch's own mean: squares of a large offset would swallow the variance.
    centred = images - images.mean()
    moments = torch.stack((centred.mean(dim=1), centred.square().mean(dim=1)), dim=1)
    # Rows, then columns: 2·size additions per patch and not size².
    means = avg_pool2d(avg_pool2d(moments, (size, 1), (stride, 1)), (1, size), (1, stride))
    return ((means[:, 1] - means[:, 0].square()).clamp_(min=0) + floor).sqrt_()


def _random_patches(images: Tensor, size: int, count: int, generator: Generator) -> Tensor:
    """Draw (count, channels · size²) from random places of random images."""
    n, channels, height, width = images.shape
    which, top, left = (
        torch.randint(bound, (count, 1, 1, 1), generator=generator).to(images.device)
        for bound in (n, height - size + 1, width - size + 1)
    )
    steps = torch.arange(size, device=images.device)
    channel = torch.arange(channels, device=images.device)[:, None, None]
    patches = images[which, channel, top + steps[:, None], left + steps]
    return as_float(patches).flatten(1)


def _dictionary(settings: Patches, patches: Tensor, filters: int) -> tuple[Tensor, Tensor, float]:
    """Return weight, bias and contrast floor of a `PatchMap`."""
    patches = patches - patches.mean(dim=1, keepdim=True)
    variance = patches.square().mean(dim=1)
    floor = settings.contrast * variance.mean().item()
    normal = patches / (variance + floor).sqrt()[:, None]
    # Flat patches have no direction; a dictionary of them would respond to noise.
    normal = normal[variance > floor]
    if len(normal) < filters:
        raise ValueError(f"filters={filters} but only {len(normal)} of {len(patches)} patches are not flat; give fewer")
    mean = normal.mean(dim=0)
    whitener = _zca(normal - mean, settings.whitening)
    white = (normal - mean) @ whitener
    if settings.clustered:
        atoms = kmeans(white, filters, iterations=30, tolerance=1e-3, spherical=True, seed=settings.seed).centers
    else:
        atoms = white[:filters] / white[:filters].norm(dim=1, keepdim=True)
    weight = atoms @ whitener
    bias = -(weight @ mean)
    return (weight - weight.mean(dim=1, keepdim=True)).T.contiguous(), bias, floor


def _zca(centred: Tensor, ridge: float) -> Tensor:
    """Return U (Λ + ridge)^(−1/2) Uᵀ for the covariance UΛUᵀ of the rows (Bell and Sejnowski 1997)."""
    covariance = centred.double().T @ centred.double() / len(centred)
    values, vectors = torch.linalg.eigh(covariance)
    return ((vectors * (values.clamp(min=0) + ridge).rsqrt()) @ vectors.T).float()
