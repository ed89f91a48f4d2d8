"""One look for numbers: the moment Σ v(y_i)·φ_i, v from −1 to 1, as the moment of two sides.

A number between two bounds is rounded at random, without bias, to −1, 0 or 1 (`labeldp.private.rounding`), and the
moment of these three classes is released. Its noise on Σ v·φ is the same as two classes would have, at a quarter of
their rounding error. Everything after the look is then that of two classes, low and high: P(high | x) is the mean of
the number, brought to [0, 1].
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from labeldp.accounting.ledger import Budget, Ledger
from labeldp.private.moments import Moments
from labeldp.private.realvault import ValueVault
from labeldp.private.rounding import Rounded
from labeldp.releases import NoisyMoments

_SIDES = 3


class TwoSided:
    """A vault of numbers that answers moments as if its labels were two classes, low and high."""

    num_classes = 2

    def __init__(self, vault: ValueVault) -> None:
        self._vault = vault

    def __len__(self) -> int:
        return len(self._vault)

    @property
    def id(self) -> str:
        """The vault's."""
        return self._vault.id

    @property
    def ledger(self) -> Ledger:
        """The vault's."""
        return self._vault.ledger

    @property
    def budget(self) -> Budget | None:
        """The vault's."""
        return self._vault.budget

    def release(self, question: Any, rows: Any = None) -> NoisyMoments:
        """Ask for the moment of three rounded classes; fold it into two."""
        if not isinstance(question, Moments):
            raise ValueError(f"{question!r} is not a moment; numbers answer moments only")
        asked = Moments(question.chunks, _SIDES, question.noise, question.radius)
        return folded(self._vault.release(Rounded(asked, self._vault.num_classes, _SIDES), rows))


def folded(noisy: NoisyMoments) -> NoisyMoments:
    """(3, d) → (2, d): with S = Σ v·φ = S₂ − S₀ and the public total T, the rows (T − S)/2 and (T + S)/2.

    S has noise of deviation √2·s, as the difference of two classes has: the deviation per entry stays s.

    >>> three = NoisyMoments(np.array([[1.0], [2.0], [4.0]]), np.array([7.0]), 7, "none", 0.0, 1.0)
    >>> folded(three).value.ravel()
    array([2., 5.])
    """
    difference = noisy.value[2] - noisy.value[0]
    return replace(noisy, value=np.stack([noisy.total - difference, noisy.total + difference]) / 2)
