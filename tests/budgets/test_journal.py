import os

import pytest

from labeldp.budgets.journal import Journal, JournalError
from labeldp.core.events import Gaussian, PureDP
from labeldp.core.ledger import Budget, BudgetExceededError
from tests.processes import CONTEXT


def test_charges_add_up_and_survive_reopening(tmp_path):
    journal = Journal.open(tmp_path / "j", Budget(2.0))
    journal.charge(PureDP(0.5), note="a")
    journal.charge(PureDP(0.5), times=2, note="b")
    assert Journal.open(tmp_path / "j").epsilon(0) == 1.5
    assert Journal.open(tmp_path / "j").budget == Budget(2.0)


def test_opening_twice_writes_one_header(tmp_path):
    Journal.open(tmp_path / "j", Budget(1.0))
    Journal.open(tmp_path / "j", Budget(1.0))
    assert len((tmp_path / "j").read_text().splitlines()) == 1


def test_a_refused_charge_leaves_no_trace(tmp_path):
    journal = Journal.open(tmp_path / "j", Budget(1.0))
    journal.charge(PureDP(0.75))
    before = (tmp_path / "j").read_bytes()
    with pytest.raises(BudgetExceededError):
        journal.charge(PureDP(0.5))
    assert (tmp_path / "j").read_bytes() == before


def test_gaussian_looks_are_kept_exactly(tmp_path):
    journal = Journal.open(tmp_path / "j", Budget(1.0, 1e-5))
    journal.charge(Gaussian(0.1 + 0.2 + 10, 1.0))
    assert journal.queries()[0].event == Gaussian(0.1 + 0.2 + 10, 1.0)


def test_a_budget_cannot_be_changed_later(tmp_path):
    Journal.open(tmp_path / "j", Budget(1.0))
    with pytest.raises(JournalError, match="cannot become"):
        Journal.open(tmp_path / "j", Budget(2.0))


def test_a_journal_that_vanished_is_not_started_anew(tmp_path):
    journal = Journal.open(tmp_path / "j", Budget(2.0))
    (tmp_path / "j").unlink()
    with pytest.raises(FileNotFoundError):
        journal.charge(PureDP(1.5))


def test_the_budget_in_the_file_counts(tmp_path):
    Journal.open(tmp_path / "j", Budget(2.0))
    with pytest.raises(BudgetExceededError):
        Journal(tmp_path / "j", None).charge(PureDP(9.0))


@pytest.mark.parametrize("times", [0, -1, 1.5])
def test_looks_are_whole_and_at_least_one(tmp_path, times):
    journal = Journal.open(tmp_path / "j")
    with pytest.raises(ValueError, match="times"):
        journal.charge(PureDP(1.0), times=times)
    assert journal.queries() == ()


def test_a_torn_last_line_was_never_drawn_and_is_replaced(tmp_path):
    journal = Journal.open(tmp_path / "j", None)
    journal.charge(PureDP(1.0))
    whole = (tmp_path / "j").read_bytes()
    for cut in range(len(whole)):
        (tmp_path / "j").write_bytes(whole + whole.splitlines(keepends=True)[1][:-1][:cut])
        assert Journal.open(tmp_path / "j").epsilon(0) == 1.0
    Journal.open(tmp_path / "j").charge(PureDP(2.0))
    assert Journal.open(tmp_path / "j").epsilon(0) == 3.0


def test_a_torn_header_is_written_again(tmp_path):
    Journal.open(tmp_path / "whole", Budget(1.0))
    header = (tmp_path / "whole").read_bytes()
    for cut in range(len(header)):
        (tmp_path / "j").write_bytes(header[:cut])
        assert Journal.open(tmp_path / "j", Budget(1.0)).budget == Budget(1.0)


def test_damage_before_the_last_line_is_refused(tmp_path):
    journal = Journal.open(tmp_path / "j")
    journal.charge(PureDP(1.0))
    journal.charge(PureDP(1.0))
    text = (tmp_path / "j").read_text().splitlines()
    (tmp_path / "j").write_text("\n".join([text[0], text[1][:-5], text[2]]) + "\n")
    with pytest.raises(JournalError, match="line 2"):
        journal.epsilon(0)


@pytest.mark.parametrize("content", ["hello", "hello\n", '{"format": "other"}\n', "[1]\n"])
def test_another_file_is_refused_and_untouched(tmp_path, content):
    (tmp_path / "notes").write_text(content)
    with pytest.raises(JournalError):
        Journal.open(tmp_path / "notes", Budget(1.0))
    assert (tmp_path / "notes").read_text() == content


def _try_to_spend(path, wins):
    for _ in range(5):
        try:
            Journal.open(path).charge(PureDP(0.1))
        except BudgetExceededError:
            continue
        wins.put(os.getpid())


def test_processes_at_once_cannot_overspend(tmp_path):
    Journal.open(tmp_path / "j", Budget(1.0))
    wins = CONTEXT.Queue()
    processes = [CONTEXT.Process(target=_try_to_spend, args=(tmp_path / "j", wins)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sum(1 for _ in iter(lambda: None if wins.empty() else wins.get(), None)) == 10
    assert Journal.open(tmp_path / "j").epsilon(0) == pytest.approx(1.0)
