"""The count of prepaid looks: nothing forgotten, nothing counted that was not begun, one process at a time."""

import json
import os

import pytest

from labeldp.budgets.counter import CounterError, QueryCounter
from labeldp.core.ledger import BudgetExceededError

QUESTION = {"recipe": "test", "epsilon": 1.0, "shape": (3, 4)}


def test_counts_and_receipt_survive(tmp_path):
    with QueryCounter(tmp_path / "t", QUESTION) as counter:
        query_id = counter.query_id
        counter.bind({"times": 3})
        counter.count()
        counter.count(2)
        counter.count(2)
    with QueryCounter(tmp_path / "t", QUESTION) as counter:
        assert (counter.query_id, counter.drawn(), counter.drawn(1), counter.drawn(2), counter.total) == (
            query_id,
            1,
            0,
            2,
            3,
        )
        assert counter.charge == {"times": 3}
    with QueryCounter(tmp_path / "other", QUESTION) as other:
        assert other.query_id != query_id
        assert other.charge is None


@pytest.mark.parametrize(
    ("question", "what"),
    [
        ({**QUESTION, "epsilon": 2.0}, r"\(epsilon differs\)"),
        ({**QUESTION, "epsilon": 2.0, "shape": (3, 5)}, r"\(epsilon, shape differ\)"),
        ({**QUESTION, "more": 1}, r"\(more differs\)"),
        ({"recipe": "test", "epsilon": 1.0}, r"\(shape differs\)"),
    ],
)
def test_another_question_is_refused(tmp_path, question, what):
    QueryCounter(tmp_path / "t", QUESTION).close()
    with pytest.raises(CounterError, match=f"another question {what}"):
        QueryCounter(tmp_path / "t", question)
    QueryCounter(tmp_path / "t", QUESTION).close()  # and the refusal let go of the file


def test_other_looks_are_refused(tmp_path):
    with QueryCounter(tmp_path / "t", QUESTION) as counter:
        counter.bind({"times": 3, "event": "a"})
        counter.bind({"times": 3, "event": "a"})
        with pytest.raises(CounterError, match="times differs"):
            counter.bind({"times": 4, "event": "a"})


def test_one_run_at_a_time(tmp_path):
    with QueryCounter(tmp_path / "t", QUESTION), pytest.raises(CounterError, match="in use"):
        QueryCounter(tmp_path / "t", QUESTION)


def test_a_closed_tally_counts_nothing(tmp_path):
    counter = QueryCounter(tmp_path / "t", QUESTION)
    counter.close()
    counter.close()
    with pytest.raises(CounterError, match="closed"):
        counter.count()


def test_no_more_than_the_most(tmp_path):
    with QueryCounter(tmp_path / "t", QUESTION) as counter:
        counter.count(1, most=2)
        counter.count(1, most=2)
        counter.count(0, most=2)
        with pytest.raises(BudgetExceededError, match="all 2 queries"):
            counter.count(1, most=2)
        assert counter.drawn(1) == 2


def test_a_line_cut_short_anywhere_is_a_look_that_never_began(tmp_path):
    """A kill while a line is written leaves any prefix of the file; every prefix opens, with the whole lines in it."""
    path = tmp_path / "t"
    with QueryCounter(path, QUESTION) as counter:
        counter.bind({"times": 30})
        for _ in range(12):
            counter.count(10)
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        begun = max(0, whole[:cut].count(b"\n") - 2)
        with QueryCounter(path, QUESTION) as counter:
            assert counter.drawn(10) == begun
            counter.bind({"times": 30})
            counter.count(10)
        with QueryCounter(path, QUESTION) as counter:
            assert counter.drawn(10) == begun + 1


@pytest.mark.parametrize("content", [b"hello", b"hello\n", b"[1]\n", b'{"format": "labeldp-journal/1"}\n'])
def test_other_files_are_left_alone(tmp_path, content):
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(CounterError, match="not a counter"):
        QueryCounter(tmp_path / "t", QUESTION)
    assert (tmp_path / "t").read_bytes() == content


@pytest.mark.parametrize("line", [b"x\n", b'"1"\n', b"true\n", b"1.5\n", b"{}\n", b"null\n"])
def test_damage_is_named(tmp_path, line):
    path = tmp_path / "t"
    with QueryCounter(path, QUESTION) as counter:
        counter.count()
    path.write_bytes(path.read_bytes() + line + b"0\n")
    with pytest.raises(CounterError, match="line 3 of t is damaged"):
        QueryCounter(path, QUESTION)


def test_a_look_whose_line_is_not_on_the_disk_does_not_begin(tmp_path, monkeypatch):
    path = tmp_path / "t"
    with QueryCounter(path, QUESTION) as counter:

        def full(file, data, at):
            os.write(os.open(path, os.O_WRONLY | os.O_APPEND), data[:1])
            return 1

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="disk full"):
            counter.count(77)
        monkeypatch.undo()
        assert counter.drawn(77) == 0
        counter.count(5)
    assert [json.loads(line) for line in path.read_text().splitlines()[1:]] == [5]


def test_every_count_is_flushed(tmp_path, monkeypatch):
    """Order: written, flushed, only then counted as begun."""
    flushed = []
    real = os.fsync
    with QueryCounter(tmp_path / "t", QUESTION) as counter:
        monkeypatch.setattr(os, "fsync", lambda file: (flushed.append(os.fstat(file).st_size), real(file))[1])
        before = (tmp_path / "t").stat().st_size
        counter.count()
        counter.count()
        assert flushed == [before + 2, before + 4]
