"""The same command again goes on from what was paid for: whatever stopped it, a label is charged once."""

import errno
import os

import pytest

from labeldp.budgets.store import BudgetStore
from labeldp.core.certificate import read as read_certificate
from labeldp.results.folder import Draft
from labeldp.results.verify import verify_folder
from tests.cli.clihelp import SECRET, labeldp, rows, train, write_csv

pytest.importorskip("torch")
pytest.importorskip("sklearn")


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A folder whose `labeldp train` found the disk full when it came to write its model."""
    write_csv(tmp_path / "t.csv", rows())
    options = ("--label", "y", "--classes", f"no,{SECRET}", "--store", tmp_path / "budgets.db")
    assert (
        labeldp("budget", "create", tmp_path / "t.csv", "--name", "t", *options, "--epsilon", 4, "--delta", 1e-4) == 0
    )
    with monkeypatch.context() as patched:
        patched.setattr(Draft, "write", full)
        assert again(tmp_path) != 0
    return tmp_path


def again(folder, *more, **changed):
    return train(folder / "t.csv", folder / "model", "--store", folder / "budgets.db", "--quiet", *more, **changed)


def test_a_command_given_again_goes_on(stopped, capsys):
    """The budget pays for one training only: paid for again, the second would be refused."""
    assert (stopped / ".model.run" / "moment.npz").exists()
    assert not (stopped / "model").exists()
    assert again(stopped) == 0, capsys.readouterr().err
    assert verify_folder(stopped / "model") == ()
    assert not (stopped / ".model.run").exists()
    store = BudgetStore.open(stopped / "budgets.db", create=False)
    assert len(store.history("t")) == 1
    assert store.epsilon("t", 1e-5) == read_certificate(stopped / "model" / "certificate.json").epsilon


def test_the_user_is_told_and_another_command_is_refused(stopped, capsys):
    capsys.readouterr()
    assert again(stopped, epsilon="2") != 0
    said = capsys.readouterr().err
    assert "keeps what another command has paid for (epsilon differ)" in said
    assert "give the same command again" in said
    assert (stopped / ".model.run" / "moment.npz").exists()
    write_csv(stopped / "t.csv", rows(seed=5))
    assert again(stopped) != 0
    assert len(BudgetStore.open(stopped / "budgets.db", create=False).history("t")) == 1


def test_nothing_is_kept_of_a_run_that_paid_for_nothing(tmp_path):
    write_csv(tmp_path / "t.csv", rows())
    assert train(tmp_path / "t.csv", tmp_path / "model", "--quiet", method="lp_mst", epsilon="-1") != 0
    assert train(tmp_path / "t.csv", tmp_path / "model", "--quiet", "--store", tmp_path / "none.db") != 0
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_a_run_goes_on_with_other_certificates_of_a_service(tmp_path, monkeypatch, capsys):
    """They are renewed by their dates: what was paid for must not be lost by that."""
    from labeldp.cli import train as command
    from labeldp.data.door import read
    from labeldp.estimator import spending

    write_csv(tmp_path / "t.csv", rows())
    # In place of a service: the run does not know the difference.
    monkeypatch.setattr(command, "_behind", lambda *_: (read(tmp_path / "t.csv", "y", ["no", SECRET]), 1e-5))

    def asked(*own):
        # Each in a process of its own.
        spending.MEMORY.forget()
        options = ("--vault", "grpc+tls://host:1", "--token", "t", "--epsilon", "4", "--method", "one_shot")
        return labeldp("train", tmp_path / "t.csv", "--out", tmp_path / "model", *options, *own, "--quiet")

    with monkeypatch.context() as patched:
        patched.setattr(Draft, "write", full)
        assert asked("--client-cert", tmp_path / "old.pem", "--root-certs", tmp_path / "ca.pem") != 0
    assert (tmp_path / ".model.run" / "moment.npz").exists()
    capsys.readouterr()
    assert asked("--client-cert", tmp_path / "new.pem") == 0, capsys.readouterr().err
    assert verify_folder(tmp_path / "model") == ()
