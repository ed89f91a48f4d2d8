"""Who pays for a fit: a vault with the estimator's own budget, a budget store where one is given, and warnings where
none is, so that `clone`, `cross_val_score` and `GridSearchCV` cannot spend in silence.

A process remembers the labels it has fitted to by a hash under a key that dies with it, never the labels.
"""

from __future__ import annotations

import secrets
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labeldp.core.vault import LabelVault
from labeldp.mechanisms.values import ValueVault

if TYPE_CHECKING:
    from labeldp.budgets.store import Account, BudgetStore


_KEY = secrets.token_bytes(32)


class RepeatedFitWarning(UserWarning):
    """Labels were fitted to more than once in this process, and no budget store keeps count."""


class PublicClassesWarning(UserWarning):
    """The list of classes was read off the labels."""


class UnpaidScoreWarning(UserWarning):
    """A score was computed from labels that are being protected."""


class _Memory:
    """What this process has done, and which warnings it has given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fits: dict[str, int] = {}
        self._told: set[type[Warning]] = set()

    def count(self, *names: str) -> int:
        """The most fits that one of these names has had, this one included."""
        with self._lock:
            for name in names:
                self._fits[name] = self._fits.get(name, 0) + 1
            return max(self._fits[name] for name in names)

    def knows(self, name: str) -> bool:
        with self._lock:
            return name in self._fits

    def warn(self, category: type[Warning], text: str) -> None:
        """Once per process, whatever the warning filters say."""
        with self._lock:
            if category in self._told:
                return
            self._told.add(category)
        warnings.warn(text, category, stacklevel=4)

    def forget(self) -> None:
        """For tests."""
        with self._lock:
            self._fits.clear()
            self._told.clear()


MEMORY = _Memory()


def note_fit(vault: LabelVault, family: str) -> None:
    """Count a fit that no store is charged for; warn at the second of the same labels or of the same clones.

    A vault with a budget of its own keeps count itself, and refuses.
    """
    if MEMORY.count(f"labels {vault.fingerprint(_KEY)}", f"family {family}") > 1 and vault.budget is None:
        MEMORY.warn(
            RepeatedFitWarning,
            "these labels, or parts of them, were fitted to more than once in this process (a clone, a fold of "
            "cross_val_score, a grid): each fit spends its epsilon again, the certificate of a model covers its own "
            "fit only, and scores on true labels are paid for by nobody. Give store= to keep count and to be refused "
            "past the budget, and choose between candidates with labeldp.estimator.select",
        )


def note_score(vault: LabelVault) -> None:
    """Warn where a score is about to be computed from labels that some estimator here has fitted to."""
    if MEMORY.knows(f"labels {vault.fingerprint(_KEY)}"):
        MEMORY.warn(
            UnpaidScoreWarning,
            "score compares with the true labels the model was fitted to: that number is not private. Score on labels "
            "that are open, or choose between candidates with labeldp.estimator.select",
        )


def note_classes() -> None:
    """Warn that the list of classes came from the labels."""
    MEMORY.warn(
        PublicClassesWarning,
        "classes was not given, so the list of classes was read off the labels and is taken to be public: a class that "
        "a single row has would show. Declare it, say classes=['no', 'yes']",
    )


def account(store: Any, dataset: str | None, vault: LabelVault, note: str | None) -> Account | None:
    """Return the account that pays for these labels, or for the data set they are a part of; None without a store.

    Args:
        store: None, a `BudgetStore`, or where to open one.
        dataset: the name of the data set. Labels that are not the whole of it are charged as a part: to every row.
    """
    if store is None:
        return None
    from labeldp.budgets.store import UnknownDataSetError

    opened = open_store(store)
    try:
        found = opened.account(vault, vault.num_classes, users=getattr(vault, "users", None), note=note)
    except UnknownDataSetError:
        if dataset is None:
            ranged = " --range" if isinstance(vault, ValueVault) else ""
            raise UnknownDataSetError(
                f"these labels have no budget in {store!r}; give them one with: labeldp budget create{ranged} (or "
                "BudgetStore.create, with a vault of them), and where they are a part of a data set, a fold for "
                "example, name it with dataset="
            ) from None
        return opened.part_of(dataset, note=note)
    if dataset is not None and found.dataset.name != dataset:
        raise ValueError(f"dataset={dataset!r}, but the store knows these labels as {found.dataset.name!r}")
    return found


def open_store(store: Any) -> BudgetStore:
    """A store that exists already."""
    from labeldp.budgets.store import BudgetStore

    if isinstance(store, BudgetStore):
        return store
    if not isinstance(store, (str, Path)):
        raise ValueError(f"store is a {type(store).__name__}; give a path, a postgresql:// address or a BudgetStore")
    return BudgetStore.open(store, create=False)
