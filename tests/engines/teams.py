"""Ranks of a job as threads of this process: the real gloo over the loopback device, without starting anything."""

import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from labeldp.ranks import Ranks, working


def together(job, size=2, noise="once", seconds=60, group=None):
    """What `job(ranks)` returns, or raises, on each rank; `group(rank)` in place of gloo."""
    store, found = dist.HashStore(), [None] * size
    make = group or (lambda rank: dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=seconds)))

    def work(rank):
        ranks = Ranks(make(rank), rank, size, noise)
        try:
            with working(ranks):
                found[rank] = job(ranks)
        except BaseException as error:
            # Frames hold the group, and a link is closed when nobody does: as when a process ends.
            error.__traceback__ = error.__context__ = None
            found[rank] = error

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5 * seconds)
        assert not thread.is_alive(), "a rank hangs"
    return found


def results(job, size=2, noise="once"):
    """The same, where nothing may be raised."""
    found = together(job, size, noise)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


class Lockstep:
    """A group of threads that says when its ranks are not at the same call; there gloo ends the process."""

    def __init__(self, size, seconds):
        self.barrier, self.given = threading.Barrier(size, timeout=seconds), [None] * size

    def __call__(self, rank):
        return _Member(self, rank)


class _Member:
    def __init__(self, group, rank):
        self.group, self.rank = group, rank

    def broadcast(self, tensor, root):
        return self._meet("broadcast", tensor, lambda given: given[root])

    def reduce(self, tensor, root):
        return self._meet("reduce", tensor, lambda given: torch.stack(given).sum(0))

    def _meet(self, call, tensor, combine):
        group = self.group
        try:
            group.given[self.rank] = (call, tensor.clone())
            group.barrier.wait()
            if len({(name, value.shape, value.dtype) for name, value in group.given}) > 1:
                raise RuntimeError("ranks are not at the same call")
            found = combine([value for _, value in group.given])
            group.barrier.wait()
        except threading.BrokenBarrierError:
            raise RuntimeError("a rank does not come") from None
        except RuntimeError:
            group.barrier.abort()
            raise
        tensor.copy_(found)
        return self

    def wait(self, timeout=None):
        return True
