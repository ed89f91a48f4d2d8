"""Run commands under torchrun: one rank speaks and writes, and the others help with training; see `engines`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from labeldp.cli.options import OptionError, check_device, needed_training
from labeldp.recipes.catalogue import BY_KEY

if TYPE_CHECKING:
    from labeldp.data.door import PrivateData
    from labeldp.ranks import Ranks


def launched() -> bool:
    """Return whether torchrun started this process as one of several ranks."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


@contextmanager
def in_step(device: str, table: str) -> Iterator[tuple[Ranks | None, str]]:
    """Work in step with the other ranks inside the block, if there are any; yield them and this one's device."""
    check_device(device)
    if not launched():
        yield None, device
        return
    if table == "-":
        raise OptionError("TABLE is -, and standard input reaches one rank only; name a file that all of them can read")
    from labeldp.engines.distributed import device_of_rank, ranks

    with ranks(device) as team:
        yield team, device_of_rank(device)


def read_by_all(team: Ranks | None, read: Callable[[], PrivateData]) -> PrivateData:
    """Read a table; where there are ranks, on all of them, who must find the same."""
    if team is None:
        return read()
    from labeldp.engines.distributed import same_table

    return same_table(team, read)


def help_out(
    team: Ranks,
    read: Callable[[], PrivateData],
    dry_run: bool,
    epsilon: float,
    weights: Callable[[Any], Mapping[str, float] | None],
    settings: Mapping[str, Any],
) -> None:
    """Do this rank's share of what the first one trains: it charges no store, writes nothing and prints nothing."""
    from labeldp.engines.distributed import helped

    data = read_by_all(team, read)
    if not dry_run:
        helped(lambda: needed_training().trained(data, epsilon, weights=weights(data.classes), **settings))


def who_trained(team: Ranks | None, method: str) -> str:
    """Return a line on what ranks did; nothing where there was one process."""
    if team is None:
        return ""
    if BY_KEY[method].shards:
        return f"\n{team.size} ranks trained it together."
    return f"\nRank 0 trained it alone: {method} has nothing to share but the features of images."
