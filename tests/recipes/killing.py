"""Trains in processes that are killed: `python killing.py FOLDER DENOISER KILLS LOOKS`. Prints what is left as JSON.

This process imports and calibrates everything once and forks one child for each attempt. A child is killed from outside
at a random moment, or from inside just before or after a random system call that writes, so that every gap between two
writes is hit. The queries that are really drawn are noted by the children themselves, apart from what is tested.
"""

import functools
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from labeldp.budgets.journal import Journal
from labeldp.core.ledger import Budget
from labeldp.core.vault import LabelVault
from labeldp.learning.optimisers import sgd
from labeldp.learning.train import predict
from labeldp.mechanisms.gradients.sums import GradientSum
from labeldp.recipes import labeldp_pro

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.budgets.journalstore import JournalStore

BUDGET = Budget(3.0, 1e-5)
# Calls that write, and after how many of them a process may die; checkpoints are rare.
WRITES = {"fsync": 24, "pwrite": 24, "replace": 2, "ftruncate": 3}


def problem():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, size=90)
    return torch.from_numpy(3 * np.eye(3, 4)[labels] + generator.normal(size=(90, 4))).float(), labels


def train(folder, denoiser, queries):
    """One attempt: a new vault, as in a new process, and the journal that all of them share."""
    x, labels = problem()
    torch.manual_seed(os.getpid())
    journal = Journal.open(folder.with_suffix(".journal"), BUDGET)
    vault = LabelVault(labels, 3, BUDGET, store=JournalStore(journal))
    model = labeldp_pro.train(
        nn.Linear(4, 3), x, vault, epsilon=BUDGET.epsilon, delta=BUDGET.delta, steps=queries, batch_size=30,
        denoiser=getattr(labeldp_pro, denoiser)(), optimizer=sgd(0.5, 0.9, 0.0), average=0.9, folder=folder,
    )  # fmt: skip
    certificate = vault.certificate()
    return {
        "epsilon": certificate.epsilon,
        "ledger": [[group.rows, [query.times for query in group.queries]] for group in certificate.groups],
        "journal": [query.times for query in journal.queries()],
        "charges": len(journal.notes()),
        "journal epsilon": journal.epsilon(BUDGET.delta),
        "finite": bool(torch.isfinite(predict(model, x)).all()),
    }


def begun_in(folder):
    """How many queries the count on disk says were begun."""
    return sum(line.isdigit() for line in (folder / "gradients.counter").read_bytes().splitlines())


def note_draws(folder):
    """Every draw leaves a line: how many queries the count on disk had when it began, and that it ended."""
    notes = os.open(folder.with_suffix(".notes"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    sample = GradientSum.sample

    def noted(self, labels, rng):
        counted = begun_in(folder)
        os.write(notes, b"begun %d\n" % counted)
        response = sample(self, labels, rng)
        os.write(notes, b"ended %d\n" % counted)
        return response

    GradientSum.sample = noted


def die_at(owner, name, number, before):
    """Kill this process at its `number`-th call of a function, before or after it."""
    real, calls = getattr(owner, name), iter(range(number, -(10**9), -1))

    @functools.wraps(real)
    def deadly(*args, **kwargs):
        last = next(calls) == 0
        if last and before:
            os.kill(os.getpid(), signal.SIGKILL)
        response = real(*args, **kwargs)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return response

    setattr(owner, name, deadly)


def attempt(folder, denoiser, queries, way):
    """Fork one attempt; returns its exit code."""
    child = os.fork()
    if child == 0:
        note_draws(folder)
        if way and way[0] == "call":
            die_at(os, *way[1:])
        result = train(folder, denoiser, queries)
        folder.with_suffix(".json").write_text(json.dumps(result))
        os._exit(0)
    if way and way[0] == "time":
        wait_for(folder / "gradients.counter", way[1])
        time.sleep(way[2])
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def wait_for(path, queries):
    """Until so many queries more have been begun, or a second has passed: counted, because the machine may be busy."""
    size, end = path.stat().st_size if path.exists() else 0, time.monotonic() + 1
    while queries and time.monotonic() < end and (path.stat().st_size if path.exists() else 0) < size + 2 * queries:
        time.sleep(0.0005)


def random_way(choose):
    if choose.random() < 0.5:
        return ("time", choose.randrange(12), choose.uniform(0.0, 0.01))
    name = choose.choice(list(WRITES))
    return ("call", name, choose.randrange(WRITES[name]), choose.random() < 0.5)


def main(folder, denoiser, kills, queries):
    torch.set_num_threads(1)
    choose = random.Random(0)
    # What the accountant finds out is remembered, here and so in every child.
    train(folder / "first", denoiser, queries)
    whole = folder / "whole"
    whole.mkdir()
    assert attempt(whole / "run", denoiser, queries, None) == 0
    run, killed = folder / "run", 0
    for _ in range(3 * kills):
        code = attempt(run, denoiser, queries, random_way(choose))
        assert code in (0, -signal.SIGKILL), code
        killed += code != 0
        if killed == kills:
            break
    before_the_last = len(run.with_suffix(".notes").read_text().splitlines()) // 2
    assert attempt(run, denoiser, queries, None) == 0
    left = {}
    for name, place in (("whole", whole / "run"), ("killed", run)):
        notes = [line.split() for line in place.with_suffix(".notes").read_text().splitlines()]
        left[name] = {
            **json.loads(place.with_suffix(".json").read_text()),
            "counted": begun_in(place),
            "begun": [int(number) for what, number in notes if what == "begun"],
            "ended": [int(number) for what, number in notes if what == "ended"],
        }
    print(json.dumps({**left, "kills": killed, "drawn in killed processes": before_the_last}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
