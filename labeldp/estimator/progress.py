"""What an estimator tells while it fits: one kind of message for all recipes, and what is left of them as curves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from labeldp.core.ledger import Ledger, worst_epsilon


@dataclass(frozen=True)
class Progress:
    """Where a fit stands. Nothing in it comes from a label that was not paid for.

    Args:
        phase: features, choice, rehearsal, look, head, training or done.
        detail: in words.
        seconds: since the fit began.
        share: of the phase that is done, 0 to 1; None where it is not known.
        epsilon: spent so far; None before there is anything to spend from.
        looks: at the label that was looked at most, so far; None where only the recipe knows.
        step, epoch, loss: where descent on noisy gradients stands, or the training loop and its loss; None elsewhere.
    """

    phase: str
    detail: str
    seconds: float
    share: float | None = None
    epsilon: float | None = None
    queries: int | None = None
    step: int | None = None
    epoch: int | None = None
    loss: float | None = None


Report = Callable[[Progress], None]
# What recipes call: with their own kind of message.
Tell = Callable[[Any], None]


class Paying(Protocol):
    """What has a ledger: a vault."""

    @property
    def ledger(self) -> Ledger:
        """What was paid for so far."""
        ...


class Teller:
    """Turns the messages of recipes and of the training loop into `Progress`, with ε as the vault's ledger has it."""

    def __init__(self, report: Report | None) -> None:
        self._report, self._begun = report, time.perf_counter()
        self._vault: Paying | None = None
        self._delta, self._priced = 0.0, (Ledger(0), 0.0, 0)

    def watch(self, vault: Paying, delta: float) -> None:
        """From now on say what this vault's looks have cost, at this δ (at 0 where they need none)."""
        self._vault, self._delta = vault, delta

    def __call__(self, told: Any) -> None:
        """A message of a recipe: `one_shot`'s, `labeldp_pro`'s or the training loop's."""
        if hasattr(told, "phase"):
            self.say(told.phase, told.detail)
        elif hasattr(told, "steps"):
            # All steps are paid for before the first is drawn; this is what those drawn so far cost by themselves.
            shown = f"step {told.step} of {told.steps}"
            self.say("training", shown, told.step / told.steps, told.epsilon, step=told.step)
        else:
            shown = f"epoch {told.epoch} of {told.epochs}, loss {told.loss:.4g}"
            self.say("training", shown, told.epoch / told.epochs, epoch=told.epoch, loss=told.loss)

    def say(
        self, phase: str, detail: str, share: float | None = None, epsilon: float | None = None, **more: Any
    ) -> None:
        """A message of the estimator; ε from the ledger where none is given."""
        if self._report is None:
            return
        if epsilon is None and self._vault is not None:
            epsilon, more["looks"] = self._spent(self._vault.ledger)
        self._report(Progress(phase, detail, time.perf_counter() - self._begun, share, epsilon, **more))

    def _spent(self, ledger: Ledger) -> tuple[float, int]:
        """ε and looks of the worst row, reckoned anew only where the ledger is a new one."""
        if ledger is not self._priced[0]:
            groups = ledger.groups()
            pure = worst_epsilon(groups, 0.0)
            spent = pure if math.isfinite(pure) else worst_epsilon(groups, self._delta)
            queries = max((sum(query.times for query in group.queries) for group in groups), default=0)
            self._priced = ledger, spent, queries
        return self._priced[1], self._priced[2]


class Recorder:
    """Keeps what becomes a learning curve, and passes every message on.

    A training loop sees public rows and what a vault released, never a true label. Its loss, on these private targets,
    is a function of both, and so are curves of it: they cost nothing beyond what the certificate counts. (A loss on
    true labels would be a look that nobody paid for.) ε and looks come from the ledger, which holds no label.
    """

    def __init__(self, report: Report | None = None) -> None:
        self._report = report
        self._losses: list[list[tuple[int, float]]] = []
        self._steps: list[tuple[int, float]] = []
        self._queries: dict[int, float] = {}

    def __call__(self, told: Progress) -> None:
        """Keep and pass on."""
        if told.epoch is not None and told.loss is not None:
            # An epoch that does not follow the last one begins another training: a second student, a second stage.
            if not self._losses or told.epoch <= self._losses[-1][-1][0]:
                self._losses.append([])
            self._losses[-1].append((told.epoch, float(f"{told.loss:.6g}")))
        if told.step is not None and told.epsilon is not None:
            self._steps.append((told.step, told.epsilon))
        elif told.queries and told.epsilon is not None:
            self._queries[told.queries] = told.epsilon
        if self._report is not None:
            self._report(told)

    def curves(self) -> list[dict[str, Any]]:
        """{"name", "x_name", "x", "y"} of each curve that has two points or more, as `metrics.json` keeps them.

        >>> recorder = Recorder()
        >>> for epoch, loss in ((1, 0.7), (2, 0.5)):
        ...     recorder(Progress("training", "", 0.0, epoch=epoch, loss=loss))
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
            found.append(_curve("ε spent", "look", [(0, 0.0), *sorted(self._queries.items())]))
        return [curve for curve in found if len(curve["x"]) > 1]


def _curve(name: str, x_name: str, points: list[tuple[int, float]]) -> dict[str, Any]:
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    return {"name": name, "x_name": x_name, "x": [x for x, _ in finite], "y": [y for _, y in finite]}
