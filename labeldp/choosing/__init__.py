"""Which recipe for which problem, from public numbers alone: `labeldp.choose` and `labeldp plan`."""

from labeldp.choosing.choice import Choice, choose
from labeldp.choosing.predict import Ranked

__all__ = ["Choice", "Ranked", "choose"]
