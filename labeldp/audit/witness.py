"""A vault that remembers what it released, and what that says of every row: more than a trained model shows.

The promise is about all that leaves a vault, so an attack may use all of it. From answers per row it takes their
likelihood, which is the best there is. From a noisy moment S = Σ_i v_i φ_i + noise of deviation s, whose v_i are fair
coins, it takes the best linear guess of each coin,

    v̂_i = φ_iᵀ (Σ_j φ_j φ_jᵀ + s² I)⁻¹ S,

with the sum over canaries, the known part of the others taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.private.realvault import ValueVault
from labeldp.private.rounding import Rounded
from labeldp.private.vault import LabelVault
from labeldp.releases import FloatArray, NoisyLabels, NoisyMoments

# As sure as any answer needs to be; keeps differences finite.
_CERTAIN = 1e3


@dataclass(frozen=True, eq=False)
class Released:
    """One answer of a vault: what was asked, about which rows (all when None), and what came out."""

    question: Any = field(repr=False)
    rows: Any = field(repr=False)
    answer: Any = field(repr=False)


class _Remembers:
    """Keeps every answer beside handing it out."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.seen: list[Released] = []

    def release(self, mechanism: Any, rows: Any = None) -> Any:
        """As the vault's."""
        answer = super().release(mechanism, rows)  # type: ignore[misc]
        self.seen.append(Released(mechanism, rows, answer))
        return answer


class WitnessVault(_Remembers, LabelVault):
    """A vault of classes that remembers its answers; for made-up labels only.

    >>> from labeldp import RandomizedResponse
    >>> vault = WitnessVault([0, 1, 1], 2)
    >>> _ = vault.release(RandomizedResponse(1.0, 2))
    >>> len(vault.seen), vault.certificate().epsilon
    (1, 1.0)
    """


class WitnessValues(_Remembers, ValueVault):
    """The same for numbers."""


def by_answers(seen: Sequence[Released], num_rows: int, classes: Sequence[int]) -> FloatArray | None:
    """log P(answers | class) of every row and each of these classes, (n, c); None where no row was answered by itself.

    Rows may be answered several times; what was answered about a row adds up.
    """
    asked = [one for one in seen if isinstance(one.answer, NoisyLabels)]
    total = np.zeros((num_rows, len(classes)))
    for one in asked:
        index = np.arange(num_rows) if one.rows is None else np.arange(num_rows)[np.asarray(one.rows)]
        total[index] += np.clip(one.answer.log_likelihood()[:, list(classes)], -_CERTAIN, _CERTAIN)
    return total if asked else None


def by_moments(
    seen: Sequence[Released], classes: Sequence[int], known: FloatArray, canary: npt.NDArray[np.bool_]
) -> FloatArray | None:
    """How much noisy moments speak for each of these classes in every row, (n, c); None where there are none.

    Args:
        classes: rows of the moments.
        known: what the other rows, whose labels are made up, added to each of these classes in the mean, (n, c).
        canary: which rows' labels are to be guessed.
    """
    found = [one for one in seen if isinstance(one.answer, NoisyMoments) and one.rows is None]
    if not found:
        return None
    return np.sum([_unmixed(one, classes, known, canary) for one in found], axis=0)


def _unmixed(one: Released, classes: Sequence[int], known: FloatArray, canary: npt.NDArray[np.bool_]) -> FloatArray:
    question: Any = one.question.inner if isinstance(one.question, Rounded) else one.question
    left = one.answer.value[list(classes)].astype(np.float64)
    gram, done = np.zeros((left.shape[1],) * 2), 0
    for block in question.chunks.read():
        rows = np.asarray(block, dtype=np.float64)
        here = slice(done, done := done + len(rows))
        left -= np.where(canary[here, None], 0.0, known[here]).T @ rows
        gram += rows[canary[here]].T @ rows[canary[here]]
    gram[np.diag_indices_from(gram)] += max(one.answer.noise_std, 1e-6) ** 2
    weight = np.linalg.solve(gram, left.T)
    return np.concatenate([np.asarray(block, dtype=np.float64) @ weight for block in question.chunks.read()])
