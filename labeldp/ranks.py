"""Work in step with other processes, the ranks of one job: messages, sums and shared tensors, and nothing about labels.

One rank, the first, decides: it pays, draws the noise, takes the steps and writes. The others hold the same public
inputs, do their share of the arithmetic, and follow its messages. Learning and gradient sums read `current()`, which is
None in a process that works alone; `labeldp.engines.distributed` sets it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum
from typing import Any, Literal

import torch
from torch import Tensor, nn

# Bytes of what every rank tells all others: a digest, or a sentence.
_TOLD = 1024
_LOST = (
    "another rank has stopped, so this one stops too: see what it said. What was paid for is kept where the run has a "
    "folder: give the same command again to go on, with any number of ranks"
)


class RankError(ValueError):
    """A rank that has stopped, or ranks that do not fit together."""


class LeftError(Exception):
    """The first rank needs no more help from this one."""


class Message(IntEnum):
    """What the first rank tells the others to do."""

    DONE = 0
    READY = 1
    DRAW = 2
    CONTENT = 3


class Ranks:
    """The ranks of a job, as one of them sees it.

    Args:
        group: a torch process group: gloo, with NCCL beside it for tensors on a GPU.
        rank, size: which of how many this is.
        noise: who adds the noise of a gradient sum, the first rank ("once") or each a part of it ("each").
    """

    def __init__(self, group: Any, rank: int, size: int, noise: Literal["once", "each"] = "once") -> None:
        if noise not in ("once", "each"):
            raise ValueError(f"noise={noise!r} is not known; give 'once' or 'each'")
        self._group: Any = group
        self.rank, self.size, self.noise = rank, size, noise
        # Whether another rank is known to have stopped, and whether this one works alone from now on.
        self.lost, self.left = False, False

    @property
    def first(self) -> bool:
        """Whether this rank decides."""
        return self.rank == 0

    def block(self, count: int, rank: int | None = None) -> slice:
        """Return the rows, of so many, that are this rank's share; shares differ by one row at most.

        >>> [Ranks(None, rank, 3).block(7) for rank in range(3)]
        [slice(0, 2, None), slice(2, 4, None), slice(4, 7, None)]
        """
        rank = self.rank if rank is None else rank
        return slice(count * rank // self.size, count * (rank + 1) // self.size)

    # -- tensors ----------------------------------------------------------------------------------------------------

    def share(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Overwrite a tensor by that of the first rank, or of another; return it."""
        self._wait(lambda: self._group.broadcast(tensor, source))
        return tensor

    def add(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Begin to add up a tensor over all ranks; call the result for the sum, which only the first rank has.

        What others find in theirs afterwards has no meaning. Sums of integers are the same in any order.
        """
        work = self._try(lambda: self._group.reduce(tensor, 0))

        def finish() -> Tensor:
            self._wait(lambda: work)
            return tensor

        return finish

    def align(self, module: nn.Module) -> None:
        """Give a module, of the same shapes on all ranks, the first rank's weights and buffers."""
        for value in module.state_dict().values():
            # Laid out otherwise, or empty: collectives take neither.
            whole = value.detach().contiguous()
            if whole.numel():
                value.copy_(self.share(whole))

    # -- messages ---------------------------------------------------------------------------------------------------

    def say(self, message: Message, value: int = 0) -> None:
        """Tell all others what to do next; for the first rank."""
        self.share(torch.tensor([message, value], dtype=torch.int64))

    def hear(self, *expected: Message) -> tuple[Message, int]:
        """Wait for what the first rank says; raise RankError if it stopped, or said something else."""
        message, value = self.share(torch.zeros(2, dtype=torch.int64)).tolist()
        if message not in expected:
            raise RankError(
                f"rank {self.rank} is out of step with the first: it was told {Message(message).name}, and expected "
                f"{' or '.join(one.name for one in expected)}; are version and settings the same on all ranks?"
            )
        return Message(message), value

    def send(self, content: bytes) -> None:
        """Send bytes to all others; for the first rank."""
        self.say(Message.CONTENT, len(content))
        if content:
            self.share(torch.frombuffer(bytearray(content), dtype=torch.uint8))

    def receive(self) -> bytes:
        """Wait for the bytes that the first rank sends."""
        _, length = self.hear(Message.CONTENT)
        return self.share(torch.zeros(length, dtype=torch.uint8)).numpy().tobytes() if length else b""

    def gather(self, text: str) -> list[str]:
        """Return what each rank tells all others, in their order: short texts."""
        own = text.encode()[:_TOLD].ljust(_TOLD)
        every = [torch.zeros(_TOLD, dtype=torch.uint8) for _ in range(self.size)]
        self._wait(lambda: self._group.allgather(every, torch.frombuffer(bytearray(own), dtype=torch.uint8)))
        return [one.numpy().tobytes().decode(errors="replace").strip() for one in every]

    def check_same(self, what: str, told: str) -> None:
        """Raise RankError, on all ranks, where one has something else than the first."""
        every = self.gather(told)
        odd = [rank for rank, one in enumerate(every) if one != every[0]]
        if odd:
            raise RankError(
                f"rank {odd[0]} has {what} other than rank 0 ({every[odd[0]][:12]} and {every[0][:12]}); give all "
                "ranks the same. Nothing was spent"
            )

    def close(self) -> None:
        """Let go of the group: this rank works alone from now on."""
        self.left, self._group = True, None

    # -- failures ---------------------------------------------------------------------------------------------------

    def _try(self, begin: Callable[[], Any]) -> Any:
        try:
            return begin()
        except RuntimeError:
            self.lost = True
            raise RankError(_LOST) from None

    def _wait(self, begin: Callable[[], Any]) -> None:
        self._try(lambda: begin().wait())


_current: ContextVar[Ranks | None] = ContextVar("ranks", default=None)


def current() -> Ranks | None:
    """Return the ranks that this process works in step with; None where it works alone."""
    found = _current.get()
    return None if found is None or found.left else found


@contextmanager
def working(ranks: Ranks | None) -> Iterator[Ranks | None]:
    """Work in step with these ranks, or alone, inside the block."""
    token = _current.set(ranks)
    try:
        yield ranks
    finally:
        _current.reset(token)


@contextmanager
def explained(ranks: Ranks | None) -> Iterator[None]:
    """Raise RankError in place of what fails in the block because another rank has stopped."""
    try:
        yield
    except Exception:
        if ranks is not None and ranks.lost:
            raise RankError(_LOST) from None
        raise


def agreed(value: Any) -> Any:
    """Return the first rank's value, plain JSON, on every rank; the value itself in a process that works alone.

    >>> agreed({"delta": 1e-5})
    {'delta': 1e-05}
    """
    ranks = current()
    if ranks is None:
        return value
    if ranks.first:
        ranks.send(json.dumps(value).encode())
        return value
    return json.loads(ranks.receive())


def leave() -> None:
    """End the work in step, if there is any: the first rank goes on alone, the others raise LeftError."""
    ranks = current()
    if ranks is not None:
        ranks.left = True
        if not ranks.first:
            raise LeftError


def part_of(size: int) -> int:
    """Return how many rows of a batch are this rank's: all of them where there are fewer than ranks.

    >>> part_of(64)
    64
    """
    ranks = current()
    if ranks is None or size < ranks.size:
        return size
    own = ranks.block(size)
    return own.stop - own.start


def shared_rows(function: Callable[[Any], Tensor], rows: Tensor) -> Tensor:
    """Return `function` of all rows, each rank having done its share; it must map every row on its own.

    >>> shared_rows(lambda rows: rows + 1, torch.zeros(2, 1)).tolist()
    [[1.0], [1.0]]
    """
    ranks = current()
    if ranks is None or len(rows) < ranks.size:
        return function(rows)
    own = function(rows[ranks.block(len(rows))])
    result = own.new_empty(len(rows), *own.shape[1:])
    result[ranks.block(len(rows))] = own
    for source in range(ranks.size):
        ranks.share(result[ranks.block(len(rows), source)], source)
    return result


def begin_together(ranks: Ranks | None, network: nn.Module, done: int) -> int:
    """Give a network the first rank's weights; return how much of its training the first rank found done."""
    if ranks is None:
        return done
    ranks.align(network)
    return int(ranks.share(torch.tensor(done)))


def step_together(
    ranks: Ranks | None, parameters: Sequence[nn.Parameter], loss: Tensor, weight: float, step: Callable[[], Any]
) -> Tensor:
    """Take one optimiser step down the weighted sum of all ranks' gradients; return that of their losses.

    Where there are no ranks, take the step.
    The first rank takes the step, so that only it has an optimiser's state, and the others get its weights: all ranks
    have the same ones, bit by bit. A parameter that no rank's loss depends on has no gradient, as in a single process.
    """
    if ranks is None:
        step()
        return loss
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    known = torch.tensor([float(p.grad is not None) for p in parameters], device=loss.device)
    flat = torch.cat([*(part.flatten() * weight for part in found), loss.flatten() * weight, known])
    summed = ranks.add(flat)()
    if ranks.first:
        sizes = [p.numel() for p in parameters]
        *pieces, mean, counts = summed.split([*sizes, 1, len(sizes)])
        for parameter, piece, count in zip(parameters, pieces, counts.tolist(), strict=True):
            parameter.grad = piece.view_as(parameter).to(parameter) if count else None
        step()
    else:
        mean = loss
    with torch.no_grad():
        weights = ranks.share(torch.cat([p.detach().flatten() for p in parameters]))
        if not ranks.first:
            for parameter, piece in zip(parameters, weights.split([p.numel() for p in parameters]), strict=True):
                parameter.copy_(piece.view_as(parameter))
    return mean.reshape(())
