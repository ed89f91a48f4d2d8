"""Kill −9 while recipes run: `python killing_recipes.py FOLDER KILLS SEED [KEY:TASK …]`. Prints what is left as JSON.

This process imports everything once and forks a child for each attempt. A child dies at a random moment, or just before
or after a random call that writes, charges or draws, so that every gap between two of them is hit. When enough were
killed, one more is left alone, and what it finds and makes is compared with a run that nobody killed.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from labeldp.budgets.store import BudgetStore
from labeldp.core import vault as vaults
from tests.recipes.killing import die_at
from tests.recipes.stopping import CASES, MORE_CASES, attempt, left, note_draws, read_result, write_result

# Where a process may die: a module or class, and the name of its function.
POINTS = [(os, "fsync"), (os, "replace"), (os, "pwrite"), (os, "posix_fallocate"), (os, "ftruncate"),
          (BudgetStore, "reserve"), (BudgetStore, "begin"), (vaults, "draw")]  # fmt: skip


def forked(key, task, place, way=None):
    """Run one attempt in a child; return its exit code and how long it lived."""
    begun, child = time.monotonic(), os.fork()
    if child == 0:
        code = 1
        try:
            note_draws(place)
            if way is not None and way[0] == "call":
                die_at(*way[1:])
            write_result(place, attempt(key, task, place))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if way is not None and way[0] == "time":
        time.sleep(way[1])
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, time.monotonic() - begun


def campaign(key, task, folder, kills, choose):
    """Kill runs of one recipe so many times; return counts, after every promise was checked."""
    whole = folder / f"{key}-{task}-whole"
    whole.mkdir()
    attempt(key, task, whole)  # what is calibrated once is remembered in every child
    shutil.rmtree(whole)
    whole.mkdir()
    code, seconds = forked(key, task, whole)
    assert code == 0
    stated, clean = read_result(whole), left(whole)
    found = {"kills": 0, "runs": 0, "draws": 0, "in flight": 0}
    while found["kills"] < kills:
        place = folder / f"{key}-{task}-{found['runs']}"
        place.mkdir()
        here = 0
        while here < 5 and found["kills"] + here < kills:
            way = ("time", choose.uniform(0, 1.2 * seconds))
            if choose.random() < 0.7:
                most = 4 if choose.random() < 0.7 else 60
                way = ("call", *choose.choice(POINTS), choose.randrange(most), choose.random() < 0.5)
            code, _ = forked(key, task, place, way)
            assert code in (0, -signal.SIGKILL), (key, task, way, code)
            if code == 0:
                break
            here += 1
        assert forked(key, task, place)[0] == 0, (key, task, place)
        check(key, left(place), clean, here)
        assert read_result(place) == stated, (key, task, place)
        counts = left(place)
        found["kills"] += here
        found["runs"] += 1
        found["draws"] += counts["begun"]
        found["in flight"] += max(counts["lost"], clean["counted"] - counts["ended"])
        shutil.rmtree(place)
    return found


def check(key, found, clean, kills):
    """Raise AssertionError unless nothing was drawn twice, and at most one query lost to each kill."""
    # Every draw was counted before it began, and every count is one that a draw may begin under, once.
    assert clean["begun"] == clean["ended"] == clean["counted"], clean
    assert found["ended"] <= found["begun"] <= found["counted"], (key, found)
    # What is counted more than the run needs was begun, lost with its process, and paid for again.
    assert found["counted"] - clean["counted"] == found["lost"] <= kills, (key, found, clean)
    assert clean["begun"] - found["begun"] <= kills, (key, found, clean)
    # And nothing else was paid for again: a query alone, or the plan that it was of.
    most = clean["charges"] + found["lost"] * (clean["charges"] if len(clean["ids"]) == 1 else 1)
    assert clean["charges"] <= found["charges"] <= most, (key, found, clean)
    assert found["lost"] or found["charges"] == clean["charges"], (key, found, clean)


def main(folder, kills, seed, cases):
    torch.set_num_threads(1)
    choose = random.Random(seed)
    counts = {}
    for key, task in cases:
        counts[f"{key} ({task})"] = campaign(key, task, folder, kills, choose)
        print(key, task, counts[f"{key} ({task})"], file=sys.stderr, flush=True)
    print(json.dumps(counts))


if __name__ == "__main__":
    named = [tuple(case.split(":")) for case in sys.argv[4:]] or [*CASES, *MORE_CASES]
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), named)
