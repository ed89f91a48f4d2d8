"""DP-SGD and plain training on two ranks of one thread each, against one rank of one thread, taking turns in one run.

Both contestants run in the same processes: the first rank by itself while the second waits, then both together. A step
of DP-SGD is the whole of it: a secret batch, clipped sums, noise from the cryptographic stream, and the weights sent to
the other rank. Ratios are taken within a round. Where other programs use the same cores, wall time says more about
them than about us: beside it stands the ratio of processor time, of one rank alone to the busiest of all, which is what
wall time comes to on idle cores, less what sending takes (some milliseconds a step within one machine).

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


def descent(images: Tensor, labels: Tensor, steps: int) -> Callable[[Ranks | None], None]:
    """Return `steps` steps of DP-SGD, by one rank or by several."""
    model, vault = mnist_cnn(10), LabelVault(labels.numpy(), 10)
    whole = GradientSum(model, images, NormBound(1.0), noise_std=1.0, rate=BATCH / len(images))
    alone = vault.lease(whole, 1_000_000)
    shared: dict[int, Any] = {}

    def run(team: Ranks | None) -> None:
        if team is not None and not shared:
            shared[0] = vault.lease(over_ranks(whole, team), 1_000_000)
        draw: Any = alone if team is None else shared[0]
        for _ in range(steps):
            if team is not None and not team.first:
                team.hear(Message.DRAW)
            noisy = draw()
            if noisy is not None:
                load_parameter_vector(model, parameter_vector(model) - 0.01 * noisy.value)

    return run


def epoch(images: Tensor, labels: Tensor) -> Callable[[Ranks | None], None]:
    """Return an epoch of plain training, by one rank or by several."""
    model = mnist_cnn(10)

    def run(team: Ranks | None) -> None:
        with working(team):
            fit(model, images, objective, epochs=1, batch_size=512, optimizer=sgd(0.01))

    def objective(logits: Tensor, rows: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits, labels[rows], reduction="none")

    return run


def measure(rank: int, size: int, folder: str, rounds: int, steps: int) -> None:
    """Run both contestants in turn on this rank; the first one writes seconds to a file."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = torch.rand(ROWS, 1, 28, 28), torch.randint(10, (ROWS,))
    works = {"DP-SGD": (descent(images, labels, steps), steps * BATCH), "plain training": (epoch(images, labels), ROWS)}
    found: dict[str, Any] = {name: {"rows": rows, "one": [], "all": [], "cpu": []} for name, (_, rows) in works.items()}
    with ranks(meet=f"file://{folder}/meet", rank=rank, size=size) as team:
        for number in range(rounds + 1):
            for name, (work, _) in works.items():
                for who in ("one", "all"):
                    team.gather("ready")
                    begun, used = time.perf_counter(), time.process_time()
                    if who == "all" or team.first:
                        with working(None):
                            work(team if who == "all" else None)
                    took, used = time.perf_counter() - begun, time.process_time() - used
                    every = list(map(float, team.gather(str(used))))
                    # The first round finds plans and warms up.
                    if number:
                        found[name][who].append(took)
                        found[name]["cpu"] += [every[0]] if who == "one" else [max(every)]
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))


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
        spent = sorted(one / every for one, every in zip(times["cpu"][::2], times["cpu"][1::2], strict=True))
        ratios = sorted(one / every for one, every in zip(times["one"], times["all"], strict=True))
        print(
            f"{name:>15}: {times['rows'] / min(times['one']):,.0f} rows/s on one rank, "
            f"{times['rows'] / min(times['all']):,.0f} on {given.ranks} (best of {len(ratios)}); ratio within a round: "
            f"median {statistics.median(ratios):.2f}, {ratios[0]:.2f} – {ratios[-1]:.2f}; of the best: "
            f"{min(times['one']) / min(times['all']):.2f} (target {TARGET}); of processor time: median "
            f"{statistics.median(spent):.2f}, {spent[0]:.2f} – {spent[-1]:.2f}"
        )
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
