"""DP-SGD and plain training on two ranks of one thread each, against one rank of one thread, taking turns in one run.

All contestants run in the same processes: the first rank by itself while the second waits; both together; and both
"apart", each with its share of the rows and without a message, which is the most that two processes can reach on this
machine, whose cores share caches, memory and whatever else runs. A step of DP-SGD is the whole of it: a secret batch,
clipped sums, noise from the cryptographic stream, and the weights sent to the other rank. Ratios are taken within a
round. Beside wall time stands the ratio of processor time, of one rank alone to the busiest of all.

Target: 1.6 times one rank. Run: python benchmarks/distributed.py [--ranks 2] [--rounds 9] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from labeldp.core.vault import LabelVault
from labeldp.engines.distributed import ranks
from labeldp.learning.optimisers import sgd
from labeldp.learning.train import fit
from labeldp.mechanisms.gradients.per_example import load_parameter_vector, parameter_vector
from labeldp.mechanisms.gradients.ranks import over_ranks
from labeldp.mechanisms.gradients.sums import GradientSum, NormBound
from labeldp.models.zoo import mnist_cnn
from labeldp.ranks import Message, Ranks, working

ROWS, BATCH, TARGET = 8192, 1024, 1.6
HOW = ("one", "all", "apart")


def descent(images: Tensor, labels: Tensor, steps: int) -> Callable[[str, Ranks], None]:
    """Return `steps` steps of DP-SGD: by one rank, by all, or by each on its own with smaller batches."""
    model, vault = mnist_cnn(10), LabelVault(labels.numpy(), 10)

    def leased(team: Ranks | None, share: int) -> Any:
        rate = BATCH / len(images) / share
        whole = GradientSum(model, images, NormBound(1.0), noise_std=1.0, rate=rate)
        return vault.lease(whole if team is None else over_ranks(whole, team), 1_000_000)

    kept: dict[str, Any] = {}

    def run(how: str, team: Ranks) -> None:
        if how not in kept:
            kept[how] = leased(team if how == "all" else None, team.size if how == "apart" else 1)
        for _ in range(steps):
            if how == "all" and not team.first:
                team.hear(Message.DRAW)
            noisy = kept[how]()
            if noisy is not None:
                load_parameter_vector(model, parameter_vector(model) - 0.01 * noisy.value)

    return run


def epoch(images: Tensor, labels: Tensor) -> Callable[[str, Ranks], None]:
    """Return an epoch of plain training: by one rank, by all, or by each on its own with its share of the rows."""
    model = mnist_cnn(10)

    def run(how: str, team: Ranks) -> None:
        share = team.size if how == "apart" else 1
        with working(team if how == "all" else None):
            rows = images[: len(images) // share]
            fit(model, rows, objective, epochs=1, batch_size=512 // share, optimizer=sgd(0.01))

    def objective(logits: Tensor, rows: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits, labels[rows], reduction="none")

    return run


def measure(rank: int, size: int, folder: str, rounds: int, steps: int) -> None:
    """Run all contestants in turn on this rank; the first one writes seconds to a file."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = torch.rand(ROWS, 1, 28, 28), torch.randint(10, (ROWS,))
    works = {"DP-SGD": (descent(images, labels, steps), steps * BATCH), "plain training": (epoch(images, labels), ROWS)}
    found: dict[str, Any] = {
        name: {"rows": rows, **{f"{how} {what}": [] for how in HOW for what in ("wall", "cpu")}}
        for name, (_, rows) in works.items()
    }
    with ranks(meet=f"file://{folder}/meet", rank=rank, size=size) as team:
        for number in range(rounds + 1):
            for name, (work, _) in works.items():
                for how in HOW:
                    team.gather("ready")
                    begun, used = time.perf_counter(), time.process_time()
                    if how != "one" or team.first:
                        with working(None):
                            work(how, team)
                    took, used = time.perf_counter() - begun, time.process_time() - used
                    every = [tuple(map(float, told.split())) for told in team.gather(f"{took} {used}")]
                    # The first round finds plans and warms up.
                    if number:
                        both = every[:1] if how == "one" else every
                        found[name][f"{how} wall"].append(max(wall for wall, _ in both))
                        found[name][f"{how} cpu"].append(max(cpu for _, cpu in both))
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))


def ratios(times: dict[str, Any], how: str, what: str) -> str:
    """Return one rank's time divided by that of a contestant, in words: median, least and most over rounds."""
    within = [one / every for one, every in zip(times[f"one {what}"], times[f"{how} {what}"], strict=True)]
    return f"{statistics.median(within):.2f} ({min(within):.2f} – {max(within):.2f})"


def main() -> None:
    """Start the ranks, and print what the first one found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spawn(measure, (given.ranks, folder, given.rounds, given.steps), nprocs=given.ranks)
        found = json.loads((Path(folder) / "found.json").read_text())
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end")
    for name, times in found.items():
        best = {how: min(times[f"{how} wall"]) for how in HOW}
        print(
            f"{name}, {given.rounds} rounds, best {times['rows'] / best['one']:,.0f} rows/s on one rank and "
            f"{times['rows'] / best['all']:,.0f} on {given.ranks}\n"
            f"  together, wall: {ratios(times, 'all', 'wall')}, of the best {best['one'] / best['all']:.2f} "
            f"(target {TARGET}); processor: {ratios(times, 'all', 'cpu')}\n"
            f"  apart,    wall: {ratios(times, 'apart', 'wall')}, of the best {best['one'] / best['apart']:.2f}; "
            f"processor: {ratios(times, 'apart', 'cpu')}"
        )
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
