"""What an estimator tells while it fits: one kind of message for all recipes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Progress:
    """Where a fit stands. Nothing in it comes from a label that was not paid for.

    Args:
        phase: features, choice, rehearsal, look, head, training or done.
        detail: in words.
        seconds: since the fit began.
        share: of the phase that is done, 0 to 1; None where it is not known.
        epsilon: spent so far; None where the recipe does not say.
    """

    phase: str
    detail: str
    seconds: float
    share: float | None = None
    epsilon: float | None = None


Report = Callable[[Progress], None]
# What recipes call: with their own kind of message.
Tell = Callable[[Any], None]


class Teller:
    """Turns the messages of recipes and of the training loop into `Progress`."""

    def __init__(self, report: Report | None) -> None:
        self._report, self._begun = report, time.perf_counter()

    def __call__(self, told: Any) -> None:
        """A message of a recipe: `one_shot`'s, `labeldp_pro`'s or the training loop's."""
        if hasattr(told, "phase"):
            self.say(told.phase, told.detail)
        elif hasattr(told, "steps"):
            self.say("training", f"step {told.step} of {told.steps}", told.step / told.steps, told.epsilon)
        else:
            self.say("training", f"epoch {told.epoch} of {told.epochs}, loss {told.loss:.4g}", told.epoch / told.epochs)

    def say(self, phase: str, detail: str, share: float | None = None, epsilon: float | None = None) -> None:
        """A message of the estimator."""
        if self._report is not None:
            self._report(Progress(phase, detail, time.perf_counter() - self._begun, share, epsilon))
