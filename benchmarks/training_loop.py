"""What `labeldp.learning.fit` adds to a bare PyTorch loop: the same model, data, optimiser and steps, one run.

Target: at most 1.05 times the bare loop.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from labeldp.learning.fit import fit, sgd
from labeldp.learning.objectives import on_classes
from labeldp.models.zoo import mnist_cnn

ROWS, BATCH, EPOCHS = 8192, 256, 1


def bare(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """The loop anyone would write."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
    model.train()
    for _ in range(EPOCHS):
        order = torch.randperm(len(images))
        for start in range(0, len(images), BATCH):
            rows = order[start : start + BATCH]
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()


def ours(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """The same through the library."""
    fit(model, images, on_classes(labels), epochs=EPOCHS, batch_size=BATCH, optimizer=sgd(0.05))


def seconds(train: Callable[[nn.Module, Tensor, Tensor], None], images: Tensor, labels: Tensor) -> float:
    """One training of a fresh model."""
    torch.manual_seed(0)
    model = mnist_cnn()
    begun = time.perf_counter()
    train(model, images, labels)
    return time.perf_counter() - begun


def main() -> None:
    """Alternate the two, report medians, spread and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    images, labels = torch.randn(ROWS, 1, 28, 28), torch.randint(10, (ROWS,))
    seconds(bare, images, labels)  # first touch of memory and kernels
    pairs = [(seconds(ours, images, labels), seconds(bare, images, labels)) for _ in range(arguments.repeats)]
    mine, plain = (sorted(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"fit        median {statistics.median(mine):.3f} s   [{mine[0]:.3f} … {mine[-1]:.3f}]")
    print(f"bare loop  median {statistics.median(plain):.3f} s   [{plain[0]:.3f} … {plain[-1]:.3f}]")
    print(f"ratio of pairs, median {ratio:.3f}   (target ≤ 1.05)")
    if arguments.json:
        print(json.dumps({"fit_s": mine, "bare_s": plain, "ratio": ratio, "target": 1.05}))


if __name__ == "__main__":
    main()
