"""Bound what a stranger's certificate can make its reader hold and compute: a mistake costs time, no wrong claim."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

from labeldp.core.events import PureDP
from labeldp.core.ledger import Group

# What is read at most: characters, and levels of nesting.
MOST_TEXT, DEEPEST = 1 << 24, 32
# How many events `verify` composes on a grid, over all histories: some tenths of a second each, at worst.
MOST_WORK = 64


def composed_events(groups: Iterable[Group], delta: float) -> float:
    """Return about how many events have to be composed on a grid; closed forms take next to nothing."""
    exact, pure = delta == 0, PureDP
    return math.fsum(
        1e-3 if exact else 1e-2 if all(q.event.mu is not None for q in plan) else
        1e-2 if len(plan) == 1 and plan[0].times == 1 and isinstance(plan[0].event, pure) else len(plan)
        for plans in {group.plans for group in groups} for plan in plans
    )  # fmt: skip


def depth(value: object) -> int:
    """Return how deep lists and objects are nested.

    >>> depth({"a": [1, []]})
    3
    """
    inner = cast("dict[str, Any]", value).values() if isinstance(value, dict) else value
    return 1 + max(map(depth, cast("list[Any]", inner)), default=0) if isinstance(value, (dict, list)) else 0
