"""Let a fit be paid for: by the estimator's own budget, by a budget store, or with a warning where there is none.

What nobody can pay for is refused: a search that compares candidates with the true labels, and a score on the labels of
the fit. A process remembers the labels it has fitted to by a hash under a key that dies with it, never the labels.
"""

from __future__ import annotations

import math
import secrets
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labeldp.budgets.calibrate import SMALLEST_DELTA, check_delta, usual_delta
from labeldp.core.ledger import Budget, Ledger
from labeldp.core.vault import LabelVault
from labeldp.data.released import ReleasedLabels
from labeldp.mechanisms.values import ValueVault
from labeldp.ranks import agreed

if TYPE_CHECKING:
    from labeldp.budgets.store import Account


_KEY = secrets.token_bytes(32)
# Parts of scikit-learn that fit an estimator and do nothing else with the labels (`utils` runs its checks).
_ONLY_FIT = ("base", "pipeline", "utils")


class RepeatedFitWarning(UserWarning):
    """Labels were fitted to more than once in this process, and no budget store keeps count."""


class UnpaidSearchError(RuntimeError):
    """A search, or another estimator around this one, would use true labels that no certificate covers."""


# -- what this process has fitted to ---------------------------------------------------------------------------------


class _Memory:
    """Remember the fits of this process, and whether it was warned of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Begin as if nothing had been fitted; for tests."""
        with self._lock:
            self._labels: set[str] = set()
            self._paid: dict[str, int] = {}
            self._warned = False

    def remember(self, labels: str) -> None:
        """Keep the name of labels that are about to be fitted to."""
        with self._lock:
            self._labels.add(labels)

    def knows(self, labels: str) -> bool:
        """Return whether these labels were fitted to."""
        with self._lock:
            return labels in self._labels

    def repeats(self, *names: str) -> bool:
        """Count a fit that spends under each name; return whether one has had another, for the first time of all."""
        with self._lock:
            for name in names:
                self._paid[name] = self._paid.get(name, 0) + 1
            news = not self._warned and max(self._paid[name] for name in names) > 1
            self._warned |= news
            return news


MEMORY = _Memory()


def begin_fit(vault: LabelVault, family: str) -> CountedFit:
    """Refuse a fit that a search of scikit-learn asks for, else remember the labels and return what counts the fit.

    Nothing is spent here.

    `GridSearchCV`, `cross_val_score` and their kin fit to some rows and compare predictions of the others with the true
    labels, whichever way they score; calibration, stacking and feature selection use the labels likewise, and bagging
    repeats rows, whose labels would then pay once for several queries. All of them call `fit` from a module of
    scikit-learn, also in the processes of `n_jobs`. No argument tells: the labels come as a plain array, the estimator
    is a clone like any other, and a scorer needs `predict` only. So it is the callers that are looked at.
    """
    counted = CountedFit(vault, family)
    MEMORY.remember(counted.labels)
    for caller in _callers():
        home, _, module = caller.partition(".")
        if home == "sklearn" and not module.startswith(_ONLY_FIT):
            raise UnpaidSearchError(
                f"sklearn.{module} fits this estimator and uses the true labels beside it: what it chooses or reports "
                "would be covered by no certificate. Nothing was spent. Choose between candidates with "
                "labeldp.estimator.select, which pays for the choice, and measure a model on labels that are public: "
                "score(X, OpenLabels(y))"
            )
    return counted


def _callers() -> list[str]:
    """Return the modules that the running function was called through, beginning with its own."""
    found, frame = [], sys._getframe(1)
    while frame is not None:
        found.append(str(frame.f_globals.get("__name__")))
        frame = frame.f_back
    return found


def refuse_fitted(vault: LabelVault) -> None:
    """Refuse to measure with labels that some estimator of this process has fitted to."""
    if MEMORY.knows(vault.fingerprint(_KEY)):
        raise ValueError(
            "y are the labels that were fitted to, which are not open: a score on them is not private. Score on other "
            "rows, whose labels are public, or choose between candidates with labeldp.estimator.select"
        )


class CountedFit:
    """Stand in for a budget store: count a fit when it first spends, and warn if it is not the first.

    Fits are counted by the labels and by a family of estimators. A fit that is refused is not counted. A vault with a
    budget of its own keeps count itself, and refuses.
    """

    budget = None

    def __init__(self, vault: LabelVault, family: str) -> None:
        self.labels, self._family, self._begun = vault.fingerprint(_KEY), family, vault.budget is not None

    def __call__(self, ledger: Ledger) -> None:
        """Take note of a query that is about to be drawn."""
        if self._begun:
            return
        self._begun = True
        if MEMORY.repeats(f"labels {self.labels}", f"family {self._family}"):
            outside = [level for level, name in enumerate(_callers(), start=1) if not name.startswith("labeldp.")]
            warnings.warn(
                "these labels, or parts of them, were fitted to more than once in this process (a clone, a loop over "
                "settings): each fit spends its epsilon again, and the certificate of a model covers its own fit only. "
                "Give store= to keep count and to be refused past the budget, and choose between candidates with "
                "labeldp.estimator.select",
                RepeatedFitWarning,
                # The first line outside of this package is the one to look at.
                stacklevel=min(outside, default=1),
            )


# -- what a fit may spend --------------------------------------------------------------------------------------------


def checked_epsilon(epsilon: Any) -> float:
    """Return ε as a float, or raise ValueError where it is no budget."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float, np.number)) or not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon={epsilon!r} is not a budget; give a finite number above 0, say 1.0")
    return float(epsilon)


def checked_delta(delta: Any, rows: int, most: float | None) -> float:
    """Return δ as given, else a tenth of one over the rows, at most 1e-5 and at most what a store allows.

    >>> checked_delta(None, 100, None), checked_delta(None, 100, 1e-9), checked_delta(None, 100, 0.0)
    (1e-05, 1e-09, 0.0)
    """
    if delta is None:
        usual = usual_delta(rows)
        return usual if most is None or most >= usual else (most if most >= SMALLEST_DELTA else 0.0)
    if isinstance(delta, bool) or not isinstance(delta, (int, float, np.number)):
        raise ValueError(f"delta={delta!r} is not a number; give 0, say 1e-5, or None for one that suits the rows")
    if delta != 0 and not SMALLEST_DELTA <= delta < 1:
        raise ValueError(f"delta={delta} must be 0, or from {SMALLEST_DELTA:g} to below 1; 1e-5 is usual")
    return float(delta)


def limited(
    vault: LabelVault, epsilon: float, delta: Any, payer: Account | CountedFit | None
) -> tuple[LabelVault, float]:
    """Return a vault that holds a fit to ε and δ and is charged to the payer, and δ as it was settled."""
    allowed = None if payer is None or payer.budget is None else payer.budget.delta
    # Where ranks work together, what the first one's store allows holds for all.
    settled = agreed(checked_delta(delta, len(vault), allowed))
    if delta is not None:
        check_delta(settled, vault.ledger.num_rows, vault.unit.counted)
    # What the vault itself would refuse is refused by the part, which recipes ask before they begin.
    most = vault.budget or Budget(epsilon, settled)
    budget = Budget(min(epsilon, most.epsilon), min(settled, most.delta))
    return vault.part(budget=budget, store=payer), settled


def pay_apart(vault: LabelVault) -> bool:
    """Return whether rows pay each for themselves: no store charges a row for what another one meets."""
    return all(getattr(store, "by_row", True) for store in vault.stores)


def refuse_together(vault: LabelVault, method: str) -> None:
    """Refuse a method that asks rows different things where a store charges several of them together."""
    if not pay_apart(vault):
        raise ValueError(
            f"method={method!r} asks some rows for one thing and the others for another, and the store charges all of "
            "them together (a part of a data set, or ids that repeat), so that each would pay twice; choose another "
            "method"
        )


def released(vault: ReleasedLabels, epsilon: float) -> float:
    """Return the ε by which responses were drawn, or raise ValueError where their claim is more than ε allows.

    Nothing is spent: no budget is charged, and no fit is counted.
    """
    claimed = vault.certificate().epsilon
    if claimed > epsilon:
        raise ValueError(
            f"epsilon={epsilon:g} is less than the {claimed:g} at which the responses were released; allow that much, "
            "or learn from responses that are more private"
        )
    return vault.epsilon


def account(
    store: Any, dataset: str | None, vault: LabelVault, note: str | None, counted: CountedFit | None
) -> Account | CountedFit | None:
    """Return the account that pays for these labels, or for the data set they are a part of.

    Args:
        store: a `BudgetStore`, or where to open one; None where this process only counts.
        dataset: the name of the data set. Labels that are not the whole of it are charged as a part: to every row.
        note: what the store's history says the fit was for.
        counted: counts the fit where there is no store.
    """
    if store is None:
        return counted
    from labeldp.budgets.keys import shown_address
    from labeldp.budgets.store import BudgetStore, UnknownDataSetError

    if not isinstance(store, (BudgetStore, str, Path)):
        raise ValueError(f"store is a {type(store).__name__}; give a path, a postgresql:// address or a BudgetStore")
    opened = store if isinstance(store, BudgetStore) else BudgetStore.open(store, create=False)
    try:
        return opened.account(vault, dataset=dataset, note=note)
    except UnknownDataSetError:
        if dataset is None:
            ranged = " --range" if isinstance(vault, ValueVault) else ""
            raise UnknownDataSetError(
                f"these labels have no budget in {shown_address(store)!r}; give them one with: labeldp budget "
                f"create{ranged} (or BudgetStore.create, with a vault of them), and where they are a part of a data "
                "set, a fold for example, name it with dataset="
            ) from None
        return opened.part_of(dataset, note=note)
