"""Choose between candidates and pay for it: what a grid search does for nothing, and so without privacy.

    1. split the rows by a public seed into a part to fit on and a part held out
    2. fit every candidate to the first part, each at its own (ε_c, δ_c)
    3. ask once, about the held-out part, which candidate is right most often: permute-and-flip at ε

A row is in one part only. Rows of the first part pay for all candidates (sequential composition), rows held out pay ε
for the choice and nothing else (parallel composition): the certificate is the worse of the two, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.utils import check_random_state

from labeldp.core.certificate import Certificate
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.data.columns import take_rows
from labeldp.data.door import seal_classes
from labeldp.estimator import spending
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.mechanisms.common import checked_epsilon
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
    known, vault = seal_classes(y, _declared(candidates, classes), "select")
    checked_epsilon(epsilon)
    if not 0 < held_out < 1:
        raise ValueError(f"held_out={held_out} is not a share of the rows; give a number between 0 and 1")
    counted = spending.CountedFit(vault, "selection")
    whole = vault.part(store=spending.account(store, dataset, vault, note, counted))
    order = check_random_state(random_state).permutation(len(whole))
    chosen = max(1, math.floor(len(whole) * held_out))
    fitted_on, held = np.sort(order[chosen:]), np.sort(order[:chosen])
    twins = [_twin(candidate, known) for candidate in candidates]
    # A mistake in the second candidate must not cost what the first one spends: all but the first, which is checked by
    # its own fit, are brought to where they would pay, with a budget that refuses.
    for twin in twins[1:]:
        with suppress(BudgetExceededError):
            _twin(twin, known, report=None)._fit(take_rows(X, fitted_on), vault.part(fitted_on, Budget(0.0)), paid=True)
    fitted = [twin._fit(take_rows(X, fitted_on), whole.part(fitted_on), paid=True) for twin in twins]
    guesses = np.stack([one.predict_proba(take_rows(X, held)).argmax(axis=1) for one in fitted])
    winner = whole.release(BestCandidate(guesses, len(known), epsilon), rows=held)
    spent = sum(one.certificate_.delta for one in fitted) if delta is None else delta
    return Selection(fitted[winner], winner, whole.certificate(spent), tuple(fitted))


def _twin(candidate: LabelDPClassifier, known: npt.NDArray[Any], **settings: Any) -> Any:
    """Return an unfitted copy that has these classes, and pays to nobody else."""
    twin = cast("Any", clone(candidate)).set_params(
        classes=list(known), store=None, dataset=None, holdout=0, **settings
    )
    twin.classes_ = known
    return twin


def _declared(candidates: Sequence[LabelDPClassifier], classes: Any) -> Any:
    """Return the list of classes, as given or as the first candidate has it."""
    if not candidates or not all(isinstance(one, LabelDPClassifier) for one in candidates):
        raise ValueError("candidates must be a list of LabelDPClassifier, at least one")
    return candidates[0].classes if classes is None else classes
