"""Hold what an owner allows jobs: they run beside the labels, on the owner's machine."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Limits:
    """The most that a job may ask for; what asks for more is refused before it is paid for.

    Args:
        at_once: jobs that run at a time, of all analysts together; none are taken where it is 0.
        rows: that a job may be about.
        parameters: of its network.
        steps: of its descent, or teachers.
        seconds: that it may run. What runs longer is stopped; its analyst may have the weights so far.
        memory: bytes that its process may hold.

    >>> Limits(at_once=2).told()["at_once"]
    2
    """

    at_once: int = 1
    rows: int = 2_000_000
    parameters: int = 20_000_000
    steps: int = 20_000
    seconds: float = 3600.0
    memory: int = 8 << 30

    def told(self) -> dict[str, float]:
        """Return the limits as plain values, for analysts."""
        return {each.name: getattr(self, each.name) for each in fields(self)}
