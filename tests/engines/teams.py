"""Ranks of a job as threads of this process: the real gloo over the loopback device, without starting anything."""

import threading
from datetime import timedelta

import torch.distributed as dist

from labeldp.ranks import Ranks, working


def together(job, size=2, noise="once", seconds=60):
    """What `job(ranks)` returns, or raises, on each rank."""
    store, found = dist.HashStore(), [None] * size

    def work(rank):
        try:
            group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=seconds))
            ranks = Ranks(group, rank, size, noise)
            with working(ranks):
                found[rank] = job(ranks)
        except BaseException as error:
            found[rank] = error
            if "ranks" in locals():
                ranks.stop()

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
