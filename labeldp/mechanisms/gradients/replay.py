"""Record bounded gradient sums as CUDA graphs and replay them: one launch in place of hundreds.

A small network keeps a GPU busy for a tenth of the time that its host needs to launch the kernels of one step. Batches
drawn in secret have another size each time; they are filled up with rows of weight zero to one of a few sizes, each of
which is recorded when it is met for the second time. (A fixed set of sizes also hides how large a batch was from
whoever measures time.)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labeldp.mechanisms.gradients.layers import Columns, Loss, Parameters, pieces
from labeldp.mechanisms.gradients.per_example import (
    Factors,
    bounded,
    candidates_of,
    refuse_batch_norm,
    trainable,
    zeros,
)
from labeldp.mechanisms.gradients.plans import plan_for, rows_at_once

# Runs before a recording: libraries choose their algorithms and take their workspace then.
_WARM_UP = 3
# Sizes are eighths of a power of two, and never finer than this.
_FINEST = 32


class ReplayedSum:
    """Give `bounded_sum` of one model on a GPU. Call it with (columns, labels); None where it cannot be recorded.

    What is recorded belongs to these weights in this memory, this loss and these factors; it is recorded anew where the
    weights have moved. Which rows a batch had, and their labels, are wiped from its memory as soon as the sum is there.
    """

    def __init__(self, model: nn.Module, loss: Loss, factors: Factors, num_classes: int | None) -> None:
        self._model, self._loss, self._factors, self._num_classes = model, loss, factors, num_classes
        self._recorded: dict[int, _Recording] = {}
        self._met: set[int] = set()
        self._key: object = None

    def __call__(self, columns: Columns, labels: Tensor) -> Tensor | None:
        """Return Σ_i f_i g_i, (P,), not looked at: an entry may not be finite."""
        size = padded(len(labels))
        parameters = trainable(self._model)
        if not self._is_possible(columns, labels, size, parameters):
            return None
        if size not in self._met:
            self._met.add(size)
            return None
        if size not in self._recorded:
            self._recorded[size] = _Recording(self, size, columns, parameters)
        return self._recorded[size].replay(columns, labels)

    def _is_possible(self, columns: Columns, labels: Tensor, size: int, parameters: Parameters) -> bool:
        on_device = all(value.is_cuda for value in (*columns, labels, *parameters.values()))
        if not (on_device and parameters and len(labels)) or torch.is_autocast_enabled("cuda"):
            return False
        refuse_batch_norm(self._model)
        self.plan = plan_for(self._model, self._loss, columns, parameters)
        # Recordings are of addresses. A changed plan is another computation.
        key = (self.plan, *(value.data_ptr() for value in parameters.values()))
        if key != self._key:
            self._recorded, self._met, self._key = {}, set(), key
        return bool(self.plan.chain) and size <= rows_at_once(self.plan, parameters, self._num_classes or 1)

    def compute(self, columns: Columns, labels: Tensor, weights: Tensor, parameters: Parameters) -> Tensor:
        """Compute what is recorded."""
        every, choice = candidates_of(labels, self._num_classes)
        found = pieces(self.plan, self._model, self._loss, columns, every, parameters)
        return bounded(zeros(self._model), found, self._factors, choice, self._model, weights=weights)


class _Recording:
    """Hold a graph for batches of up to `size` rows, and the memory that it reads and writes."""

    def __init__(self, owner: ReplayedSum, size: int, columns: Columns, parameters: Parameters) -> None:
        device = columns[0].device
        self._columns = tuple(column.new_zeros(size, *column.shape[1:]) for column in columns)
        self._labels = torch.zeros(size, dtype=torch.int64, device=device)
        self._weights = torch.zeros(size, dtype=torch.float64, device=device)
        read = (self._columns, self._labels, self._weights, parameters)
        beside = torch.cuda.Stream(device)
        beside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(beside):
            for _ in range(_WARM_UP):
                owner.compute(*read)
        torch.cuda.current_stream(device).wait_stream(beside)
        self._graph = torch.cuda.CUDAGraph()
        # thread_local: noise is drawn beside this in another thread.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._total = owner.compute(*read)

    def replay(self, columns: Columns, labels: Tensor) -> Tensor:
        """Return the sum of these rows, and wipe them from the graph's memory."""
        rows = len(labels)
        for own, column in zip(self._columns, columns, strict=True):
            own[:rows].copy_(column)
        self._labels[:rows].copy_(labels)
        self._weights[:rows].fill_(1.0)
        self._graph.replay()
        for own in (*self._columns, self._labels, self._weights):
            own.zero_()
        return self._total.clone()


def padded(rows: int) -> int:
    """Return the size that a batch is filled up to: the next eighth of a power of two, at least a multiple of 32.

    >>> [padded(rows) for rows in (1, 100, 1000, 1030)]
    [32, 128, 1024, 1152]
    """
    step = max(_FINEST, 1 << max(0, rows.bit_length() - 4))
    return -(-rows // step) * step
