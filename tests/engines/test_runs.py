"""The folder of a release: what is there when, who may read it, and what a run that was stopped goes on with."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from labeldp.budgets.journal import Journal
from labeldp.core.events import PureDP
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.vault import LabelVault
from labeldp.data.request import TableError
from labeldp.engines import runs
from labeldp.engines.runs import Run, running
from tests.processes import exit_code

SETTINGS = {"epsilon": 1.0, "classes": ["a", "b"]}
CHARGES, BUDGET = [(PureDP(1.0), 4)], Budget(1.0)


class Killed(BaseException):
    """What no handler expects."""


def begin(run):
    run.snapshot.mkdir(exist_ok=True)
    (run.snapshot / "part").write_text("labels")
    run.kept("checked", lambda: {"rows": 4})


def test_a_run_that_ends_well_leaves_its_output_and_nothing_else(tmp_path):
    with running(tmp_path / "out", SETTINGS) as run:
        begin(run)
        groups = run.pay(None, CHARGES, BUDGET, "test")
        key = run.folder / "key"
        assert (run.folder.stat().st_mode & 0o777, key.stat().st_mode & 0o777) == (0o700, 0o600)
        assert len(run.key()) == 32
        assert run.key() == run.key()
        run.output.mkdir()
        run.finish()
    assert [group.rows for group in groups] == [4]
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(tmp_path / "out") == []


def test_the_key_is_overwritten_before_it_is_deleted(tmp_path, monkeypatch):
    seen = []
    unlink = type(tmp_path).unlink
    monkeypatch.setattr(
        type(tmp_path),
        "unlink",
        lambda self, **how: (self.name == "key" and seen.append(self.read_bytes()), unlink(self, **how)),
    )
    with running(tmp_path / "out", SETTINGS) as run:
        run.pay(None, CHARGES, BUDGET, "test")
        run.output.mkdir()
        run.finish()
    assert seen == [bytes(32)]


def test_a_run_that_was_not_paid_for_leaves_nothing(tmp_path):
    def stopped():
        with running(tmp_path / "out", SETTINGS) as run:
            begin(run)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stopped()
    assert os.listdir(tmp_path) == []


def test_a_budget_that_does_not_allow_it_leaves_nothing_and_is_not_charged(tmp_path):
    journal = Journal.open(tmp_path / "j", Budget(0.5))

    def asked():
        with running(tmp_path / "out", SETTINGS) as run:
            begin(run)
            run.pay(journal, CHARGES, BUDGET, "test")

    with pytest.raises(BudgetExceededError):
        asked()
    assert journal.epsilon(0) == 0
    assert not (tmp_path / ".out.run").exists()


def payer_of(which, folder):
    if which == "journal":
        return Journal.open(folder / "journal")
    from labeldp.budgets.store import BudgetStore

    return BudgetStore.open(folder / "budgets.db").part_of("lake")


def die(*_, **__):
    os._exit(9)


def once(folder, which, kill):
    """A run, ended at a moment as kill -9 would end it; every key that it had is noted."""
    with pytest.MonkeyPatch.context() as patch, running(folder / "out", SETTINGS) as run:
        if not run.done:
            if not run.snapshot.exists():
                begin(run)
            if kill == "charged, not marked":
                kept = Run.kept
                patch.setattr(
                    Run, "kept", lambda self, name, make: die() if name == "charged" else kept(self, name, make)
                )
            run.pay(payer_of(which, folder), CHARGES, BUDGET, "test")
            with (folder / "keys").open("a") as file:
                file.write(f"{run.release} {run.key().hex()}\n")
            if kill == "charged":
                die()
            run.output.mkdir(exist_ok=True)
        if kill == "done":
            patch.setattr(runs.shutil, "rmtree", die)
        if kill == "named":
            patch.setattr("labeldp.atomic.flush", lambda path: path == folder and die())
        run.finish()


@pytest.mark.parametrize("which", ["journal", "store"])
@pytest.mark.parametrize("moment", ["charged, not marked", "charged", "done", "named"])
def test_a_killed_run_goes_on_under_its_key_without_a_second_charge(which, moment, tmp_path):
    if which == "journal":
        Journal.open(tmp_path / "journal", Budget(5.0))
    else:
        pytest.importorskip("sqlalchemy")
        from labeldp.budgets.store import BudgetStore

        BudgetStore.open(tmp_path / "budgets.db").create("lake", LabelVault([0, 1, 1, 0], 2), Budget(5.0))
    assert exit_code(once, tmp_path, which, moment) == 9
    assert payer_of(which, tmp_path).epsilon(0) == 1.0
    left = tmp_path / ".out.run" / "key"
    earlier = left.read_bytes() if left.exists() else None
    assert (earlier is None) == (moment in ("done", "named"))
    if moment == "named":
        with pytest.raises(TableError, match="exists already"):
            once(tmp_path, which, "")
    else:
        once(tmp_path, which, "")
    assert payer_of(which, tmp_path).epsilon(0) == 1.0
    assert (tmp_path / "out").is_dir()
    assert not (tmp_path / ".out.run").exists()
    used = set((tmp_path / "keys").read_text().split("\n")[:-1])
    assert len(used) == 1
    assert earlier is None or earlier.hex() in used.pop()


def test_other_settings_do_not_go_on_with_what_was_paid_for(tmp_path):
    def stopped():
        with running(tmp_path / "out", SETTINGS) as run:
            begin(run)
            run.pay(None, CHARGES, BUDGET, "test")
            raise Killed

    with pytest.raises(Killed):
        stopped()
    assert (tmp_path / ".out.run" / "key").exists()
    with (
        pytest.raises(TableError, match="keeps what another call has paid for \\(epsilon differ\\)"),
        running(tmp_path / "out", {**SETTINGS, "epsilon": 2.0}),
    ):
        pass
    assert json.loads((tmp_path / ".out.run" / "settings.json").read_text()) == SETTINGS


def test_one_process_at_a_time(tmp_path):
    with (
        running(tmp_path / "out", SETTINGS),
        pytest.raises(TableError, match="another process"),
        running(tmp_path / "out", SETTINGS),
    ):
        pass


def test_an_output_that_exists_is_never_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(TableError, match="exists already"), running(tmp_path / "out", SETTINGS):
        pass


def test_too_little_disk_is_found_before_anything_is_spent(tmp_path, monkeypatch):
    journal = Journal.open(tmp_path / "journal", Budget(5.0))

    def asked():
        with running(tmp_path / "out", SETTINGS) as run:
            begin(run)
            (run.snapshot / "large").write_bytes(bytes(1000))
            room = shutil.disk_usage(tmp_path)._replace(free=(1 << 20) + 1000)
            monkeypatch.setattr(shutil, "disk_usage", lambda _: room)
            run.check_room(0)
            run.pay(journal, CHARGES, BUDGET, "test")

    with pytest.raises(TableError, match="has room for 1 MiB and this run needs 1"):
        asked()
    assert journal.epsilon(0) == 0
    assert not (tmp_path / ".out.run").exists()


def test_a_full_disk_is_left_as_it_was(tmp_path, monkeypatch):
    full = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(TableError, match="has room for 0 MiB"), running(tmp_path / "out", SETTINGS):
        pass
    assert os.listdir(tmp_path) == []


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TableError, match="out="), running(tmp_path / "file" / "out", SETTINGS):
        pass
