"""Train with several processes that torchrun started: on one machine or many, on processors (gloo) or GPUs (NCCL).

Every rank runs the same program on the same table. Inside `with ranks():`

- DP-SGD and LabelDP-Pro share the rows: each rank samples its own in secret, clips and adds them up as integers; the
  sums are added and noised once (`labeldp.mechanisms.gradients.ranks`, with the proof and who is trusted with what).
- Everything trained by batches (`labeldp.learning.train.minimise`: plain training, FixMatch, self-supervision) shares
  every batch, and gradients are averaged. Features of images are made by shares.
- All other queries are drawn by the first rank alone, and what was released is sent to the others.
- Recipes without a network (a solve, trees) are run by the first rank; the others are done when features are.

The first rank pays, draws noise, keeps the folder and writes; there is one ledger and one certificate. A run that
stopped goes on with any number of ranks, one included.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist

# Its functions have the group of all ranks as a default argument. Loaded later, by torch.compile say, they would keep
# the group, whose threads then outlive the interpreter, and abort it now and then.
import torch.distributed.nn.functional

from labeldp.data.door import PrivateData
from labeldp.ranks import LeftError, RankError, Ranks, working
from labeldp.results.folder import features_digest

Out = TypeVar("Out")
# What torchrun tells every process.
_TOLD = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_START = "start it with torchrun, as in: torchrun --nproc-per-node 2 -m labeldp train …"


@contextmanager
def ranks(
    device: str = "cpu",
    *,
    noise: Literal["once", "each"] = "once",
    meet: str = "env://",
    rank: int | None = None,
    size: int | None = None,
    patience: timedelta = timedelta(days=1),
) -> Iterator[Ranks]:
    """Work in step with the other processes of this job inside the block.

    Args:
        device: where the models are: "cpu", or "cuda" for the GPU that is this rank's (`device_of_rank`).
        noise: who adds the noise of a gradient sum. "once": the first rank, to the sum of all; ranks and links are
            trusted with sums that have none yet. "each": every rank its part, before its sum leaves it; who reads a
            link then faces noise of deviation s/√W. The certificate says which. The release costs the same.
        meet: how ranks find each other: as torchrun says, or "file:///a/path/that/all/reach".
        rank, size: which of how many this is; as torchrun says when None.
        patience: how long one may wait for another. One that dies is noticed at once.
    """
    given = {"RANK": rank, "WORLD_SIZE": size}
    found = {name: os.environ.get(name) if given.get(name) is None else given[name] for name in _TOLD}
    needed = _TOLD if meet == "env://" else _TOLD[:2]
    missing = [name for name in needed if found[name] is None]
    if missing:
        raise RankError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set; {_START}")
    own, many = _whole("RANK", found["RANK"]), _whole("WORLD_SIZE", found["WORLD_SIZE"])
    if not 0 <= own < many:
        raise RankError(f"RANK is {own} and WORLD_SIZE {many}; ranks are 0 … {many - 1}: {_START}")
    place = device_of_rank(device)
    joined = dist.is_initialized()
    if not joined:
        # Messages are always on the processor; tensors travel between the devices that hold them.
        backend = "cpu:gloo,cuda:nccl" if place.startswith("cuda") else "gloo"
        try:
            dist.init_process_group(backend, init_method=meet, rank=own, world_size=many, timeout=patience)
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise RankError(f"rank {own} cannot reach the others: {reason}; {_START}") from None
    team = Ranks(dist.group.WORLD, own, many, noise)
    try:
        # One rank has nobody to work in step with.
        with working(team if many > 1 else None):
            yield team
    finally:
        # Others that still wait for this rank are told so by a link that is closed.
        team.close()
        if not joined:
            dist.destroy_process_group()


def _whole(name: str, value: Any) -> int:
    try:
        return int(value)
    except ValueError:
        raise RankError(f"{name}={value!r} is not a whole number; {_START}") from None


def device_of_rank(device: str) -> str:
    """Return the device of this rank: of the machine's GPUs, the one with its number there.

    >>> device_of_rank("cpu")
    'cpu'
    """
    if device != "cuda":
        return device
    local, there = _whole("LOCAL_RANK", os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= there:
        raise RankError(
            f"this machine has {there} GPUs and a rank {local}; start one rank for each GPU: --nproc-per-node {there}"
        )
    # Where collectives and graphs look for their memory.
    torch.cuda.set_device(local)
    return f"cuda:{local}"


def same_table(team: Ranks, read: Callable[[], PrivateData]) -> PrivateData:
    """Read a table on every rank; raise RankError on all of them, unpaid, where one cannot or has another table.

    Compared are the public features, by a hash, and the number of rows. Labels are not: a rank uses those of its own
    rows, though it has read them all, and no hash of labels leaves a process.
    """
    data, problem = None, ""
    try:
        data = read()
    except (ValueError, OSError) as error:
        problem = str(error) if isinstance(error, ValueError) else f"{error.filename}: {error.strerror}"
    for rank, found in enumerate(team.gather(problem)):
        if found:
            raise RankError(found if rank == 0 else f"rank {rank}: {found}")
    assert data is not None
    team.check_same("a table", f"{features_digest(data.features)} {len(data)}")
    if len(data) < team.size:
        raise RankError(f"there are {team.size} ranks for {len(data)} rows; start at most one for each row")
    return data


def helped(work: Callable[[], Out]) -> Out | None:
    """Return what the work returns; None on a rank that has only helped and is no longer needed.

    >>> helped(lambda: 1)
    1
    """
    try:
        return work()
    except LeftError:
        return None
