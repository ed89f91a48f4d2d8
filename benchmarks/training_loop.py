"""What `labeldp.learning.train` adds to a bare PyTorch loop: the same model, data, optimiser and steps, one run.

Target: at most 1.05 times the bare loop.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.timing import rates, show_rates
from labeldp.learning.evidence import on_classes
from labeldp.learning.optimisers import sgd
from labeldp.learning.train import fit
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


def fresh(train: Callable[[nn.Module, Tensor, Tensor], None], images: Tensor, labels: Tensor) -> None:
    """One training of a fresh model."""
    torch.manual_seed(0)
    train(mnist_cnn(), images, labels)


def main() -> None:
    """Alternate the two on one thread; the ratio of rates is the bare loop's time over ours (target ≥ 1 / 1.05)."""
    torch.set_num_threads(1)
    images, labels = torch.randn(ROWS, 1, 28, 28), torch.randint(10, (ROWS,))
    fresh(bare, images, labels)  # first touch of memory and kernels
    contestants = {"fit": lambda: fresh(ours, images, labels), "bare loop": lambda: fresh(bare, images, labels)}
    found = rates(contestants, amount=EPOCHS * ROWS, repeats=9)
    overhead = statistics.median(b / a for a, b in zip(found["fit"], found["bare loop"], strict=True))
    print(f"fit takes {overhead:.3f} times as long as the bare loop (target ≤ 1.05)")
    show_rates(found, "images/s", "--json" in sys.argv[1:], benchmark="training_loop", overhead=overhead, target=1.05)


if __name__ == "__main__":
    main()
