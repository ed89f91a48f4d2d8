"""A choice between candidates that is paid for: what a grid search does for nothing, and so without privacy.

    1. split the rows by a public seed into a part to fit on and a part held out
    2. fit every candidate to the first part, each at its own (ε_c, δ_c)
    3. ask once, about the held-out part, which candidate is right most often: permute-and-flip at ε

A row is in one part only. Rows of the first part pay for all candidates (sequential composition), rows held out pay ε
for the choice and nothing else (parallel composition): the certificate is the worse of the two, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.utils import _safe_indexing, check_random_state

from labeldp.budgets.tables import growth
from labeldp.core.certificate import Certificate
from labeldp.core.events import Event
from labeldp.core.ledger import Ledger
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelArray, LabelVault, checked_epsilon
from labeldp.estimator import inputs as lab
from labeldp.estimator import spending
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.estimator.inputs import is_frame
from labeldp.mechanisms.selection import BestCandidate


@dataclass(frozen=True, eq=False)
class Selection:
    """The winner, and what the whole search cost.

    Args:
        best: the winning candidate, fitted to the rows that were not held out.
        index: its number.
        certificate: of everything released: all candidates may be shown, not only the winner.
        candidates: all of them, fitted.
    """

    best: LabelDPClassifier
    index: int
    certificate: Certificate
    candidates: tuple[LabelDPClassifier, ...]


def select(
    candidates: Sequence[LabelDPClassifier],
    X: Any,  # noqa: N803
    y: Any,
    *,
    epsilon: float,
    delta: float | None = None,
    held_out: float = 0.2,
    classes: Any = None,
    store: Any = None,
    dataset: str | None = None,
    note: str | None = None,
    random_state: Any = None,
) -> Selection:
    """Fit the candidates and choose the one that is right most often on rows held out, privately.

    Args:
        candidates: unfitted; clones of them are fitted, each spends its own ε and δ on the rows that are not held out.
        X, y: as for `LabelDPClassifier.fit`.
        epsilon: of the choice itself. A candidate m rows behind wins with chance at most e^{-εm/2}: at ε = 1 twenty
            rows decide it.
        delta: of the certificate; the sum of the candidates' when None.
        held_out: share of the rows that the choice is made on.
        classes, store, dataset, note: as for `LabelDPClassifier`; they stand in for those of the candidates.
        random_state: of the split; public.

    >>> x = np.random.default_rng(0).normal(size=(3000, 4))
    >>> y = (x[:, 0] > 0).astype(int)
    >>> candidates = [LabelDPClassifier(epsilon, 1e-6, method="one_shot") for epsilon in (0.01, 0.9)]
    >>> found = select(candidates, x, y, epsilon=1.0, classes=[0, 1])
    >>> found.index, found.certificate.epsilon <= 1.0
    (1, True)
    """
    _check(candidates, held_out)
    checked_epsilon(epsilon)
    given = lab.as_array(y, "select")
    known, codes = lab.encode(given, classes if classes is not None else candidates[0].classes)
    account = spending.account(store, dataset, codes, len(known), note)
    if account is None:
        spending.note_fit(codes, "selection")
    vault = LabelVault(codes, len(known), store=account)
    fitted_on, held = _split(len(codes), held_out, random_state)
    part = _Part(vault, fitted_on)
    fitted = []
    for candidate in candidates:
        twin: Any = cast("Any", clone(candidate)).set_params(classes=list(known), store=None, dataset=None)
        fitted.append(twin._fit(_rows(X, fitted_on), given[fitted_on], part.begin()))
    said = np.stack([np.searchsorted(known, one.predict(_rows(X, held))) for one in fitted])
    winner = vault.release(BestCandidate(said, len(known), epsilon), rows=held)
    spent = sum(one.certificate_.delta for one in fitted) if delta is None else delta
    return Selection(fitted[winner], winner, vault.certificate(spent), tuple(fitted))


class _Part:
    """Vaults of some rows whose looks are charged to the vault of all rows, and so to its store."""

    def __init__(self, whole: LabelVault, rows: npt.NDArray[np.intp]) -> None:
        self._whole, self._rows = whole, rows

    def begin(self) -> Any:
        """The `store` of one more vault of these rows."""
        last = Ledger(len(self._rows))

        def charge(ledger: Ledger) -> None:
            nonlocal last
            for one in growth(last, ledger):
                rows = self._rows if one.rows is None else self._rows[one.rows]
                # Paid here, drawn by the vault of the part.
                self._whole.lease(_Paid(one.event), one.times, rows)
            last = ledger

        return charge


@dataclass(frozen=True)
class _Paid:
    """A look that another vault will draw: its price and nothing else."""

    cost: Event

    def fits(self, num_rows: int, num_classes: int) -> None:
        """The other vault has asked."""

    def event(self) -> Event:
        return self.cost

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> None:
        raise TypeError("this look is drawn elsewhere")


def _split(rows: int, held_out: float, random_state: Any) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    order = check_random_state(random_state).permutation(rows)
    held = max(1, math.floor(rows * held_out))
    return np.sort(order[held:]), np.sort(order[:held])


def _rows(inputs: Any, rows: npt.NDArray[np.intp]) -> Any:
    if hasattr(inputs, "detach") or isinstance(inputs, np.ndarray):
        return inputs[rows]
    # Arrow has `take`, polars takes a list of rows, pandas is left to scikit-learn.
    if is_frame(inputs) and hasattr(inputs, "column_names"):
        return inputs.take(rows)
    return _safe_indexing(inputs, rows)


def _check(candidates: Sequence[LabelDPClassifier], held_out: float) -> None:
    if not candidates or not all(isinstance(one, LabelDPClassifier) for one in candidates):
        raise ValueError("candidates must be a list of LabelDPClassifier, at least one")
    if not 0 < held_out < 1:
        raise ValueError(f"held_out={held_out} is not a share of the rows; give a number between 0 and 1")
