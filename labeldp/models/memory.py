"""Keep memory that was freed: what a step of training gives back, the next step asks for again."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

# As in malloc.h. Blocks up to 32 MiB, the most that can be said, are taken from memory that is kept.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_BLOCK, _KEPT = 1 << 25, 1 << 28
# Where one of them is set, it stays as it was set.
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@functools.cache
def keep_freed_memory() -> bool:
    """Keep up to 256 MiB of freed memory in this process, and return whether the allocator does.

    Left alone, the allocator of Linux (glibc) may hand memory back after every step and take it again page by page,
    each of them cleared by the system: 40,000 pages in a step of a small network, and a third of its time. Whether it
    does depends on what happened to be allocated before. Nothing changes under another allocator, nor where the
    environment sets its thresholds.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _SETTINGS):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    return bool(set_option(_MMAP_THRESHOLD, _LARGEST_BLOCK)) and bool(set_option(_TRIM_THRESHOLD, _KEPT))
