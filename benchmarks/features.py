"""Speed of label-free features: patch responses beside a plain convolution, k-means beside SciPy's.

On a GPU also an epoch of SimCLR: ResNet-18, 50,000 images (3, 32, 32), batches of 1,024; target ≤ 1.6 s on an H200.
Pictures are random numbers: nothing here depends on what they show.
"""

from __future__ import annotations

import json
import statistics
import sys
import warnings

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, conv2d

from benchmarks.timing import rates, show_rates
from labeldp.features.clusters import kmeans
from labeldp.features.contrastive import simclr
from labeldp.features.patches import PatchMap, local_spread, patch_features
from labeldp.models.zoo import resnet18_v2

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IMAGES, FILTERS = (20_000, 800) if DEVICE.type == "cuda" else (2_000, 200)


def by_convolution(found: PatchMap, images: Tensor, chunk: int = 64) -> Tensor:
    """The same features as anyone would write them: convolve, rectify twice, pool, standardise."""
    kernels = found.weight.T.reshape(len(found.bias), images.shape[1], found.size, found.size)
    parts = []
    for part in images.split(chunk):
        spread = local_spread(part, found.size, found.stride, found.floor)[:, None]
        z = conv2d(part, kernels) / spread + found.bias[:, None, None]
        sides = torch.cat(((z - found.threshold).relu(), (-z - found.threshold).relu()), dim=1)
        pooled = adaptive_avg_pool2d(sides, found.pool).permute(0, 2, 3, 1).flatten(1)
        parts.append(found.scaling(pooled) if found.scaling is not None else pooled)
    return torch.cat(parts)


def patches(as_json: bool) -> None:
    """Images per second of both, after a check that they agree."""
    images = torch.rand(IMAGES, 1, 28, 28, device=DEVICE)
    found = patch_features(images, filters=FILTERS, size=8, pool=3)
    assert torch.allclose(found.features(images[:64]), by_convolution(found, images[:64]), atol=1e-2)
    contestants = {
        "patches": lambda: wait(found.features(images)),
        "conv2d": lambda: wait(by_convolution(found, images)),
    }
    measured = rates(contestants, amount=len(images), repeats=5)
    show_rates(measured, "images/s", as_json, benchmark="patch_features", filters=FILTERS, device=DEVICE.type)


def clusters(as_json: bool) -> None:
    """Rows per second of five of Lloyd's steps with their seeding."""
    rows = torch.randn(20_000, 64, device=DEVICE)
    plain = rows.cpu().numpy()

    def scipys() -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of empty clusters, which ours repairs
            return kmeans2(plain, 100, iter=5, minit="++", rng=np.random.default_rng(0))[0]

    contestants = {"kmeans": lambda: wait(kmeans(rows, 100, iterations=5, tolerance=0).centers), "scipy": scipys}
    measured = rates(contestants, amount=5 * len(rows), repeats=5)
    show_rates(measured, "rows/s", as_json, benchmark="kmeans", k=100, device=DEVICE.type)


def epochs_of_simclr(as_json: bool) -> None:
    """Median seconds per epoch after the first two."""
    images, seconds = torch.randint(256, (50_000, 3, 32, 32), dtype=torch.uint8, device=DEVICE), []
    simclr(resnet18_v2(10).body, images, epochs=8, report=lambda progress: seconds.append(progress.seconds))
    print(f"SimCLR: {statistics.median(seconds[2:]):.2f} s per epoch ({min(seconds[2:]):.2f} – {max(seconds[2:]):.2f})")
    if as_json:
        print(json.dumps({"benchmark": "simclr_epoch", "seconds": seconds, "target": 1.6}))


def wait(result: Tensor) -> Tensor:
    """A GPU works on after the call returns."""
    if result.is_cuda:
        torch.cuda.synchronize()
    return result


def main() -> None:
    """All of them, on a GPU when there is one."""
    as_json = "--json" in sys.argv[1:]
    print(f"on {torch.cuda.get_device_name() if DEVICE.type == 'cuda' else f'{torch.get_num_threads()} CPU threads'}")
    patches(as_json)
    clusters(as_json)
    if DEVICE.type == "cuda":
        epochs_of_simclr(as_json)


if __name__ == "__main__":
    main()
