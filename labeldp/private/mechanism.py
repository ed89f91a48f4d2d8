"""The Mechanism protocol: the only kind of question a vault answers."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from labeldp.accounting.events import Event
from labeldp.private.randomness import SecureRandom

Out_co = TypeVar("Out_co", covariant=True)

LabelArray = npt.NDArray[np.unsignedinteger[Any]]


class Mechanism(Protocol[Out_co]):
    """A question about labels. A frozen dataclass: every field is public, secrets are only arguments.

    The vault calls the three methods in this order: `fits` (refuse before anything is spent), `event` (what
    one answer costs the worst row), `sample` (draw it). Only the vault calls `sample`, or a mechanism made of others.
    """

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError if the mechanism's public settings do not fit these rows. Sees no label."""
        ...

    def event(self) -> Event:
        """What one answer costs, under the replacement of one label."""
        ...

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> Out_co:
        """Draw one answer. `labels` is read-only and must not be kept; all noise comes from `rng`."""
        ...
