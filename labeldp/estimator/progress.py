"""Report while an estimator fits: one kind of message for all recipes, logged, of which curves are kept.

The logger "labeldp" gets every message: phases as INFO, steps and epochs as DEBUG. It is silent until somebody sets it
up (`logging.basicConfig(level=logging.INFO)`). No message has a label in it: phases, counts of rows, prices, losses on
private targets.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from typing import Any

from labeldp.core.ledger import Ledger, worst_epsilon
from labeldp.core.vault import LabelVault
from labeldp.data.released import ReleasedLabels
from labeldp.learning.progress import Progress, Report

LOGGER = logging.getLogger("labeldp")
LOGGER.addHandler(logging.NullHandler())


def words(progress: Progress) -> str:
    """Return a message as one line of text."""
    spent = "" if progress.epsilon is None else f" (epsilon {progress.epsilon:.6g})"
    return progress.phase + (f": {progress.detail}" if progress.detail else "") + spent


class Reporter:
    """Pass the messages of recipes and of the training loop on, with ε as the vault's ledger has it; keep curves.

    Args:
        report: gets them; None for nobody.
        verbose: 1 or true prints a line for every phase, more than that every message.
        vault: whose queries are priced.
        delta: at which they are (at 0 where they need none).
        begun: when the fit began, by `time.perf_counter`.

    >>> show = Reporter(None, 1, LabelVault([0, 1], 2), 0.0, time.perf_counter())
    >>> show.phase("features", "90 rows")
    [   0.0 s] features: 90 rows (epsilon 0)
    """

    def __init__(
        self, report: Report | None, verbose: Any, vault: LabelVault | ReleasedLabels, delta: float, begun: float
    ) -> None:
        level = int(bool(verbose)) if isinstance(verbose, bool) or verbose is None else verbose
        if not isinstance(level, int) or level < 0:
            raise ValueError(f"verbose={verbose!r} is none of 0 (silent), 1 (phases) and 2 (every message)")
        self._report, self._verbose, self._vault, self._delta, self._begun = report, level, vault, delta, begun
        self._priced = Ledger(0), 0.0, 0
        self._recorder, self._phase = Recorder(), ""

    def __call__(self, progress: Progress) -> None:
        """Pass a message of a recipe or of the training loop on, with the seconds of the whole fit.

        ε is the ledger's where the message has none. A recipe that pays for all steps before the first is drawn reports
        what those drawn so far cost by themselves.
        """
        progress = replace(progress, seconds=time.perf_counter() - self._begun)
        if progress.epsilon is None:
            epsilon, queries = self._spent()
            progress = replace(progress, epsilon=epsilon, queries=queries)
        self._recorder.add(progress)
        new, self._phase = progress.phase != self._phase, progress.phase
        LOGGER.log(logging.INFO if new else logging.DEBUG, "%s", words(progress))
        if self._verbose > 1 or (self._verbose and new):
            print(f"[{progress.seconds:6.1f} s] {words(progress)}", flush=True)
        if self._report is not None:
            self._report(progress)

    def features(self, shape: Any, as_needed: bool) -> None:
        """Report the public features, (rows, numbers), and whether they are made as they are needed."""
        made = ", made as they are needed" if as_needed else ""
        self.phase("features", f"{shape[0]:,} rows, {shape[1]} public features{made}")

    def done(self, epsilon: float) -> tuple[dict[str, Any], ...]:
        """Report that the fit is done at this ε, and return its learning curves; see `Recorder`."""
        self.phase("done", f"epsilon {epsilon:.6g}", 1.0, epsilon)
        return tuple(self._recorder.curves())

    def phase(self, name: str, detail: str, share: float | None = None, epsilon: float | None = None) -> None:
        """Report a phase of the estimator itself."""
        self(Progress(name, detail, 0.0, share, epsilon))

    def _spent(self) -> tuple[float, int]:
        """Return ε and the number of queries of the worst row, computed anew only where the ledger is a new one."""
        ledger = self._vault.ledger
        if ledger is not self._priced[0]:
            groups = ledger.groups()
            pure = worst_epsilon(groups, 0.0)
            spent = pure if math.isfinite(pure) else worst_epsilon(groups, self._delta)
            queries = max((sum(query.times for query in group.queries) for group in groups), default=0)
            self._priced = ledger, spent, queries
        return self._priced[1], self._priced[2]


class Recorder:
    """Keep what becomes a learning curve.

    A training loop sees public rows and what a vault released, never a true label. Its loss, on these private targets,
    is a function of both, and so are curves of it: they cost nothing beyond what the certificate counts. (A loss on
    true labels would be a query that nobody paid for.) ε and queries come from the ledger, which holds no label.
    """

    def __init__(self) -> None:
        self._losses: list[list[tuple[int, float]]] = []
        self._steps: list[tuple[int, float]] = []
        self._queries: dict[int, float] = {}

    def add(self, progress: Progress) -> None:
        """Keep what a message says of a loss, or of ε."""
        if progress.epoch is not None and progress.loss is not None:
            # An epoch that does not follow the last one begins another training: a second student, a second stage.
            if not self._losses or progress.epoch <= self._losses[-1][-1][0]:
                self._losses.append([])
            self._losses[-1].append((progress.epoch, float(f"{progress.loss:.6g}")))
        if progress.step is not None and progress.epsilon is not None:
            self._steps.append((progress.step, progress.epsilon))
        elif progress.queries and progress.epsilon is not None:
            self._queries[progress.queries] = progress.epsilon

    def curves(self) -> list[dict[str, Any]]:
        """Return {"name", "x_name", "x", "y"} of each curve that has two points or more, as `metrics.json` keeps them.

        >>> recorder = Recorder()
        >>> for epoch, loss in ((1, 0.7), (2, 0.5)):
        ...     recorder.add(Progress("training", "", 0.0, epoch=epoch, loss=loss))
        >>> recorder.curves()
        [{'name': 'training loss on private targets', 'x_name': 'epoch', 'x': [1, 2], 'y': [0.7, 0.5]}]
        """
        name, many = "training loss on private targets", len(self._losses) > 1
        found = [
            _curve(f"{name}, training {number}" if many else name, "epoch", points)
            for number, points in enumerate(self._losses, start=1)
        ]
        if self._steps:
            found.append(_curve("ε spent", "step", [(0, 0.0), *self._steps]))
        elif len(self._queries) > 1:
            found.append(_curve("ε spent", "query", [(0, 0.0), *sorted(self._queries.items())]))
        return [curve for curve in found if len(curve["x"]) > 1]


def _curve(name: str, x_name: str, points: list[tuple[int, float]]) -> dict[str, Any]:
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    return {"name": name, "x_name": x_name, "x": [x for x, _ in finite], "y": [y for _, y in finite]}
