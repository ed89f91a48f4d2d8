"""Many runs in one process or several: news in order, failures in one sentence, nothing started too late."""

import os
import signal
import time

import pytest

from experiments.run import _print
from experiments.settings import Run
from experiments.sweep import News, sweep

SECRET = "the label of row 7 is 3"
RUNS = [Run("g", "m", 1.0, seed, {"dataset": "d", "epochs": 2}) for seed in range(4)]


def counts(run, tell):
    for epoch in (1, 2):
        tell(News(run, epoch=epoch, loss=0.5))
    return {"seed": run.seed, "process": os.getpid()}


def refuses(run, tell):
    raise ValueError("give more rows")


def breaks(run, tell):
    raise RuntimeError(SECRET)


def dies(run, tell):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_run_is_told_from_beginning_to_end(jobs):
    heard = []
    sweep(RUNS, counts, jobs=jobs, tell=heard.append)
    for run in RUNS:
        mine = [news for news in heard if news.run == run]
        assert [news.epoch for news in mine] == [0, 1, 2, 2]
        assert [news.record is None for news in mine] == [True, True, True, False]
    elsewhere = {news.record["process"] for news in heard if news.record} - {os.getpid()}
    assert (len(elsewhere) > 0) == (jobs > 1)


@pytest.mark.parametrize("jobs", [1, 2])
def test_nothing_is_started_after_the_time_is_up(jobs):
    heard = []
    sweep(RUNS, counts, jobs=jobs, tell=heard.append, until=time.time() - 1)
    assert heard == []


@pytest.mark.parametrize(("train", "said"), [(refuses, "give more rows"), (breaks, "RuntimeError"), (dies, "code")])
def test_a_failure_in_another_process_is_one_sentence_without_labels(train, said):
    with pytest.raises(ValueError, match=said) as caught:
        sweep(RUNS, train, jobs=2, tell=lambda news: None)
    assert SECRET not in str(caught.value)


def test_no_runs_are_no_work():
    sweep([], breaks, jobs=3, tell=lambda news: pytest.fail("news of nothing"))


def test_every_so_many_epochs_are_printed(capsys):
    one = Run("group", "method", 1.0, 1, {"epochs": 3})
    for epoch in range(4):
        _print(News(one, epoch=epoch, loss=0.5), every=2)
    assert capsys.readouterr().out.count("epoch 2, loss 0.5000") == 1
    _print(News(one, epoch=2, loss=0.5), every=0)
    assert not capsys.readouterr().out
