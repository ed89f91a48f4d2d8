"""One part of the rows per thread, in place of many threads per operation.

torch splits every operation over its threads and waits for all of them before the next. Where other programs use the
same cores, most of the time goes into that waiting. Parts that do not depend on each other need to wait only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Part = TypeVar("Part")
Out = TypeVar("Out")


def map_parts(function: Callable[[Part], Out], parts: Sequence[Part], device: torch.device) -> list[Out]:
    """`function` of each part, in order. On a CPU, as many at once as torch has threads, each on one thread.

    >>> map_parts(lambda part: part.sum().item(), torch.arange(6).split(2), torch.device("cpu"))
    [1, 5, 9]
    """
    threads = min(torch.get_num_threads(), len(parts))
    if device.type != "cpu" or threads < 2:
        return [function(part) for part in parts]
    with one_thread(), ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(function, parts))


@contextmanager
def one_thread() -> Iterator[None]:
    """torch's operations on one thread inside the block: for sequences of short ones."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        # Also what threads started later begin with.
        torch.set_num_threads(before)
