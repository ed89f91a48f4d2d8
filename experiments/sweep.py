"""Many runs, one after the other or in several processes, with news while they go on."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from experiments.settings import Run


@dataclass(frozen=True)
class News:
    """What a sweep tells: a run began (epoch 0), an epoch is over, the run is over (with its line), or it failed."""

    run: Run
    epoch: int = 0
    loss: float = float("nan")
    record: dict[str, Any] | None = None
    failure: str = ""


Tell = Callable[[News], None]
Train = Callable[[Run, Tell], dict[str, Any]]


def sweep(runs: list[Run], train: Train, *, jobs: int, tell: Tell, until: float = float("inf")) -> None:
    """Train every run; start none after the time `until`. The first failure ends the sweep."""
    jobs = min(jobs, len(runs))
    if jobs > 1:
        _in_processes(runs, train, jobs, tell, until)
        return
    for run in runs:
        if time.time() <= until:
            _one(run, train, tell)


def _one(run: Run, train: Train, tell: Tell) -> None:
    tell(News(run))
    tell(News(run, epoch=run.epochs, record=train(run, tell)))


def _in_processes(runs: list[Run], train: Train, jobs: int, tell: Tell, until: float) -> None:
    context = multiprocessing.get_context("spawn")
    todo, news = context.Queue(), context.Queue()
    for item in [*runs, *[None] * jobs]:
        todo.put(item)
    workers = [context.Process(target=_work, args=(todo, news, train, until)) for _ in range(jobs)]
    try:
        for worker in workers:
            worker.start()
        _listen(news, workers, tell)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


def _work(todo: Any, news: Any, train: Train, until: float) -> None:
    """One process: train until there is nothing left, the time is up or whoever waits for the results is gone."""
    # Ctrl-C reaches every process of a terminal; the one that waits for the results ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    while (run := todo.get()) is not None and (parent is None or parent.is_alive()):
        if time.time() > until:
            continue
        try:
            _one(run, train, news.put)
        except Exception as error:
            if os.environ.get("LABELDP_DEBUG"):
                traceback.print_exc()
            news.put(News(run, failure=failed(error)))
            return


def _listen(news: Any, workers: list[Any], tell: Tell) -> None:
    while True:
        # Asked before the queue is looked at: whatever a process said before it ended is then found there.
        over = not any(worker.is_alive() for worker in workers)
        try:
            message = news.get(timeout=0.2)
        except queue.Empty:
            if over:
                break
            continue
        if message.failure:
            raise ValueError(f"{message.run.name}: {message.failure}")
        tell(message)
    codes = {worker.exitcode for worker in workers} - {0}
    if codes:
        raise ValueError(f"a training process ended with code {sorted(codes)}, perhaps out of memory; try fewer jobs")


def failed(error: Exception) -> str:
    """What may be said about a failure: the messages of refusals are made for it, others could quote a label."""
    if isinstance(error, (ValueError, FileNotFoundError, ModuleNotFoundError)):
        return str(error)
    return f"unexpected {type(error).__name__}; its message is withheld because it could quote a label"
