"""Record a step of training as a CUDA graph and replay it: the host launches one graph in place of a thousand kernels.

A step of a small network takes the device less time than the host needs to launch it. Loss and gradients are the same
kernels on the same memory each time, so they are recorded once, and what differs between steps is copied into the
recorded arguments. Rates, optimisers and moving averages stay outside, in plain Python.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

# Arguments ↦ the loss; the gradients are left in the parameters.
Step = Callable[..., Tensor]
# Steps before recording, in which kernels are compiled and libraries take their memory.
_PLAIN = 3


class Repeated:
    """A step that always reads its arguments from the same memory: what recording needs, on any device.

    Args:
        step: maps tensors, of the same shapes each time, to a loss. Whatever else it writes must stay where it is.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._given: tuple[Tensor, ...] = ()

    def __call__(self, *given: Tensor) -> Tensor:
        """Take the step; the loss that is returned may be overwritten by the next call."""
        if not self._given:
            self._given = tuple(torch.empty_like(value) for value in given)
        shapes, known = ([tuple(value.shape) for value in each] for each in (given, self._given))
        if shapes != known:
            raise ValueError(f"a recorded step of shapes {known} was given {shapes}; make all batches of one size")
        for place, value in zip(self._given, given, strict=True):
            place.copy_(value)
        return self._take()

    def _take(self) -> Tensor:
        return self._step(*self._given)


class Recorded(Repeated):
    """A step on a GPU whose first calls are plain and whose later ones replay a recording.

    Nothing in the step may wait for the device, branch on a value or draw from a generator of its own. Where CUDA
    refuses to record it, a warning says so, and every call is plain.
    """

    def __init__(self, step: Step, device: torch.device) -> None:
        super().__init__(step)
        # Plain steps go there, too: what autograd and libraries keep for a stream is then there when it is recorded.
        self._stream = torch.cuda.Stream(device)
        self._calls = 0
        self._replay: Callable[[], Tensor] | None = None

    def _take(self) -> Tensor:
        self._calls += 1
        if self._calls == _PLAIN + 1:
            try:
                self._replay = self._recording()
            except RuntimeError as error:
                reason = (str(error).splitlines() or [""])[0]
                warnings.warn(f"steps are not recorded but launched one by one, slower: {reason}", stacklevel=2)
        return self._plain() if self._replay is None else self._replay()

    def _plain(self) -> Tensor:
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            loss = self._step(*self._given)
        current.wait_stream(self._stream)
        return loss

    def _recording(self) -> Callable[[], Tensor]:
        """Record the step, which runs nothing, and return what replays it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            loss = self._step(*self._given)

        def replay() -> Tensor:
            graph.replay()
            return loss

        return replay


def repeated(step: Step, device: torch.device) -> Repeated:
    """Return the step as its device repeats it fastest."""
    return Recorded(step, device) if device.type == "cuda" else Repeated(step)
