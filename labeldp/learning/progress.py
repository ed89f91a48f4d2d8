"""What long work reports: one kind of message for training loops, recipes and estimators. Light: it needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Where work stands. Nothing in it comes from a label that was not paid for.

    Args:
        phase: what goes on: "training" for loops, or a step of a recipe such as "features" or "head".
        detail: in words.
        seconds: since the work that reports began.
        share: of the phase that is done, 0 to 1; None where it is not known.
        epsilon: spent so far, never too small; None before there is anything to spend from.
        queries: on the label that was queried most; None where only the recipe knows.
        step, steps: where descent on noisy gradients stands.
        epoch, epochs, loss: where a training loop stands, and its mean loss on private targets.
        passes: over the data, by descent on noisy gradients.
        gap: duality gap of the last projection of a gradient.
        believed: share of the labels that co-refinement took for right; nan while it warms up.
    """

    phase: str
    detail: str
    seconds: float
    share: float | None = None
    epsilon: float | None = None
    queries: int | None = None
    step: int | None = None
    steps: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    loss: float | None = None
    passes: float | None = None
    gap: float | None = None
    believed: float | None = None


Report = Callable[[Progress], None]
_LISTENER: ContextVar[Report | None] = ContextVar("listener", default=None)


@contextmanager
def listening(report: Report | None) -> Iterator[None]:
    """Let long work inside the block that takes no `report` of its own, such as features of images, `tell` this one."""
    before = _LISTENER.set(report)
    try:
        yield
    finally:
        _LISTENER.reset(before)


def tell(phase: str, detail: str, share: float | None = None) -> None:
    """Report to whoever listens, if anybody does.

    >>> with listening(lambda progress: print(progress.phase, progress.share)):
    ...     tell("features", "patches", 0.5)
    features 0.5
    """
    report = _LISTENER.get()
    if report is not None:
        report(Progress(phase, detail, 0.0, share))
