"""Keep after the draw: whatever stops a run, it goes on from what it paid for, and pays for nothing twice."""

import errno
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from labeldp.core.events import PureDP
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.learning.train import fit
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.recipes import cluster_votes, labeldp_pro, lp_mst, one_shot, per_row
from labeldp.recipes.kept import planned, release_labels
from tests.recipes.stopping import CASES, attempt, left, note_draws

# Each keeps its releases in another way: responses, gradients; a moment, a plan of both, counts and values are slower.
QUICK = [("rr", "classes"), ("dp_sgd", "classes")]
every_case = pytest.mark.parametrize(
    ("key", "task"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES if case not in QUICK)],
)
X, CLASSES = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), 3
TRAIN = functools.partial(fit, epochs=1)


def network():
    torch.manual_seed(0)
    return nn.Linear(4, CLASSES)


def vault(seed=None):
    return LabelVault(np.arange(60) % CLASSES, CLASSES, rng=None if seed is None else SecureRandom(seed=seed))


class FullDisk:
    """From the n-th write on, the disk is full: no file grows, and what fills room that was taken succeeds."""

    def __init__(self, monkeypatch, after):
        self.left, self.struck = after, False
        for name in ("posix_fallocate", "pwrite", "fsync"):
            monkeypatch.setattr(os, name, self.watched(name, getattr(os, name)))

    def watched(self, name, real):
        def call(descriptor, *args):
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            free = os.path.isdir(path) or (path.endswith(".room") and name != "posix_fallocate")
            if not free:
                self.left -= 1
                self.struck |= self.left < 0
                if self.left < 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            return real(descriptor, *args)

        return call


@every_case
def test_a_disk_that_is_full_from_any_write_on(key, task, tmp_path, monkeypatch):
    """At every write point of a run: nothing is lost, and the run goes on when there is room again."""
    whole = tmp_path / "whole"
    whole.mkdir()
    with monkeypatch.context() as patched:
        note_draws(whole, patched.setattr)
        stated, clean = attempt(key, task, whole), left(whole)
    # Of many gradients, which are kept alike, not every write.
    point, step = 0, 1 if clean["counted"] < 5 else 60
    while True:
        place = tmp_path / f"point-{point}"
        place.mkdir()
        with monkeypatch.context() as patched:
            note_draws(place, patched.setattr)
            with patched.context() as filled:
                disk = FullDisk(filled, point)
                try:
                    attempt(key, task, place)
                except (OSError, ValueError):
                    assert disk.struck
            assert attempt(key, task, place) == stated
        assert {**left(place), "ids": clean["ids"]} == clean, point
        if not disk.struck:
            break
        point += step
    assert point > 4


# --- the mark of a seed -------------------------------------------------------------------------------------------

KEEPERS = {
    "responses": lambda box, folder: per_row.rr(network(), X, box, epsilon=1.0, fit=TRAIN, folder=folder),
    "stages": lambda box, folder: lp_mst.train(network(), X, box, epsilon=1.0, fit=TRAIN, folder=folder),
    "votes": lambda box, folder: cluster_votes.label(np.arange(60) % 3, box, epsilon=1.0, folder=folder),
    "moment": lambda box, folder: one_shot.train(X, box, epsilon=1.0, delta=1e-3, folder=folder),
}


@pytest.mark.parametrize("keeper", KEEPERS)
def test_what_a_seed_drew_stays_marked(keeper, tmp_path):
    """Kept in a folder and taken over by a vault of operating-system noise, and by the one after that."""
    KEEPERS[keeper](vault(seed=3), tmp_path)
    for _ in range(2):
        later = vault()
        assert not later.certificate(1e-3).seeded
        KEEPERS[keeper](later, tmp_path)
        assert later.certificate(1e-3).seeded
    honest = vault()
    KEEPERS[keeper](honest, tmp_path / "another")
    assert not honest.certificate(1e-3).seeded


def test_gradients_of_a_seed_are_not_continued_by_another_vault(tmp_path):
    settings = {"epsilon": 1.0, "delta": 1e-3, "steps": 4, "batch_size": 20, "folder": tmp_path}
    labeldp_pro.train(network(), X, vault(seed=3), **settings)
    with pytest.raises(ValueError, match="seeded"):
        labeldp_pro.train(network(), X, vault(), **settings)


# --- what is kept -------------------------------------------------------------------------------------------------


def stopped_after_the_draw(monkeypatch, tmp_path):
    """A process that died when its responses were drawn, and not written."""
    box = vault()
    with monkeypatch.context() as patched:
        patched.setattr(np, "savez_compressed", lambda *args, **kwargs: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            release_labels(box, RandomizedResponse(1.0, CLASSES), kept=tmp_path / "responses.npz")
    return box


def test_one_that_was_begun_and_lost_is_paid_for_again(tmp_path, monkeypatch):
    box = stopped_after_the_draw(monkeypatch, tmp_path)
    assert box.certificate().epsilon == 1.0
    release_labels(box, RandomizedResponse(1.0, CLASSES), kept=tmp_path / "responses.npz")
    assert box.certificate().epsilon == 2.0
    assert sorted(path.suffix for path in tmp_path.iterdir() if ".lost-" not in path.name) == [".counter", ".npz"]
    assert sum(".lost-" in path.name for path in tmp_path.iterdir()) == 1


def test_one_that_was_written_and_not_named_is_found(tmp_path, monkeypatch):
    box, kept = vault(), tmp_path / "responses.npz"
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            release_labels(box, RandomizedResponse(1.0, CLASSES), kept=kept)
    assert not kept.exists()
    later = vault()
    release_labels(later, RandomizedResponse(1.0, CLASSES), kept=kept)
    assert (later.certificate().epsilon, kept.exists()) == (1.0, True)
    assert not any(".lost-" in path.name for path in tmp_path.iterdir())


def test_half_a_release_is_thrown_away(tmp_path, monkeypatch):
    stopped_after_the_draw(monkeypatch, tmp_path)
    whole = tmp_path / "whole.npz"
    release_labels(vault(), RandomizedResponse(1.0, CLASSES), kept=whole)
    (tmp_path / ".responses.npz.room").write_bytes(whole.read_bytes()[:-40])
    later = vault()
    release_labels(later, RandomizedResponse(1.0, CLASSES), kept=tmp_path / "responses.npz")
    assert later.certificate().epsilon == 1.0
    assert sum(".lost-" in path.name for path in tmp_path.iterdir()) == 1


def test_two_processes_do_not_share_a_folder(tmp_path, monkeypatch):
    """What another process has begun and not kept yet is not taken for lost."""
    kept, box = tmp_path / "responses.npz", vault()
    real = np.savez_compressed

    def second(*args, **kwargs):
        monkeypatch.setattr(np, "savez_compressed", real)
        with pytest.raises(ValueError, match="in use"):
            release_labels(vault(), RandomizedResponse(1.0, CLASSES), kept=kept)
        return real(*args, **kwargs)

    monkeypatch.setattr(np, "savez_compressed", second)
    release_labels(box, RandomizedResponse(1.0, CLASSES), kept=kept)
    assert box.certificate().epsilon == 1.0


@pytest.mark.slow
def test_killed_runs(tmp_path):
    """A few of the kills that `make stress` has a thousand of."""
    script = Path(__file__).parents[1] / "stress" / "killing_recipes.py"
    command = [sys.executable, "-W", "error", str(script), str(tmp_path), "8", "0", "forward:classes", "lp_mst:classes"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(case["kills"] >= 8 for case in json.loads(done.stdout).values())


# -- whose release it is -----------------------------------------------------------------------------------------------


def test_a_release_of_some_rows_is_not_taken_for_one_of_others(tmp_path):
    """In a new process nothing else knows which rows have paid for it."""
    half = np.arange(60) < 30
    rr = RandomizedResponse(1.0, CLASSES)
    release_labels(vault().part(half), rr, kept=tmp_path / "responses.npz")
    for other in (vault().part(~half), vault().part(half).part(np.arange(30)[::-1])):
        with pytest.raises(ValueError, match="rows of the whole"):
            release_labels(other, rr, kept=tmp_path / "responses.npz")
        assert other.certificate().epsilon == 0.0
    whole = vault()
    release_labels(whole.part(half), rr, kept=tmp_path / "responses.npz")
    assert [group.rows for group in whole.ledger.groups()] == [30, 30]


def test_what_comes_second_in_a_plan_is_fixed_before_the_first_is_seen(tmp_path):
    """Composed as one plan, queries must not have been chosen by what one of them released."""
    files, events = [tmp_path / "a.npz", tmp_path / "b.npz"], [PureDP(0.5), PureDP(0.25)]

    def plan(box, *asked):
        return planned(box, *((event, None, file) for event, file in zip(asked, files, strict=True)))

    release_labels(plan(vault(), *events), RandomizedResponse(0.5, CLASSES), kept=files[0])
    with pytest.raises(ValueError, match="another plan"):
        plan(vault(), events[0], PureDP(0.3))
    again = vault()
    box = plan(again, *events)
    for event, file in zip(events, files, strict=True):
        release_labels(box, RandomizedResponse(event.epsilon, CLASSES), kept=file)
    assert (again.certificate().epsilon, len(again.ledger.groups()[0].plans)) == (0.75, 1)


def test_two_plans_in_a_folder_are_charged_under_two_ids(tmp_path):
    """The second was charged to no store, because the first had paid under its id."""
    first = planned(vault(), (PureDP(0.5), None, tmp_path / "a.npz"))
    release_labels(first, RandomizedResponse(0.5, CLASSES), kept=tmp_path / "a.npz")
    planned(vault(), (PureDP(0.5), None, tmp_path / "b.npz"), (PureDP(0.25), None, None))
    assert len({path.read_text() for path in tmp_path.glob("plan-*.id")}) == 2
