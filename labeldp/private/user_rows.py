"""Whose each row is, and which rows of a user are used: public, and chosen without a label."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from labeldp.accounting.ledger import RowIndex
from labeldp.private.shared import checked_integer


@dataclass(frozen=True, eq=False, init=False)
class Users:
    """Whose each row is. Users are numbered 0 … U − 1 in the order of their first rows.

    `ids` may be anything hashable: numbers, text, tuples. They are public.

    >>> users = Users(["ann", "bob", "ann"])
    >>> len(users), users.owner.tolist(), users.sizes.tolist()
    (2, [0, 1, 0], [2, 1])
    """

    ids: npt.NDArray[Any] = field(repr=False)
    owner: RowIndex = field(repr=False)

    def __init__(self, ids: npt.ArrayLike | Sequence[Any]) -> None:
        found, owner = _numbered(_id_column(ids))
        owner.setflags(write=False)
        object.__setattr__(self, "ids", found)
        object.__setattr__(self, "owner", owner)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Users({len(self)} users, {len(self.owner)} rows)"

    @property
    def sizes(self) -> RowIndex:
        """How many rows each user has, (U,)."""
        return np.bincount(self.owner, minlength=len(self)).astype(np.intp)

    def take(self, rows: npt.ArrayLike | None) -> Users:
        """The users of these rows (indices or a mask; all when None), numbered anew."""
        return self if rows is None else Users(self.ids[self.owner[np.asarray(rows)]])

    def digest(self) -> str:
        """A short public name of the grouping, whatever the ids."""
        return digest(self.owner)

    def same_as(self, others: Users) -> bool:
        """Whether both group as many rows in the same way, whatever the ids."""
        return np.array_equal(self.owner, others.owner)


@dataclass(frozen=True, eq=False)
class KeptRows:
    """At most k rows of each user, chosen without their labels.

    Args:
        rows: the distinct rows kept, ascending. Ask the vault about these: each label is then drawn once.
        repeats: how often each counts, (len(rows),): 1, or more where a user with fewer than k rows was resampled.
    """

    rows: RowIndex
    repeats: RowIndex

    def listed(self) -> RowIndex:
        """Positions in `rows`, each as often as it counts: the resampled data set, made after the answers are drawn."""
        return np.repeat(np.arange(len(self.rows)), self.repeats)


def cap_rows(users: Users, k: int, *, resample: bool = True, seed: int = 0) -> KeptRows:
    """At most k rows of every user, at random; with `resample`, users with fewer count some of theirs repeatedly, to k.

    The choice sees users only, so it costs nothing and its seed is public. The procedure of Ghazi et al. 2024
    (LabelDP-Pro, section 6), except that a repeated row keeps its one private answer instead of getting a second one.

    >>> kept = cap_rows(Users(["ann", "bob", "ann", "ann"]), k=2)
    >>> len(kept.rows), kept.repeats.sum()
    (3, np.int64(4))
    """
    k = checked_integer("k", k, 1, 1 << 31)
    chance, sizes = np.random.default_rng(seed), users.sizes
    order = np.lexsort((chance.random(len(users.owner)), users.owner))
    first = np.cumsum(sizes) - sizes
    rank = np.arange(len(order)) - first[users.owner[order]]
    counts = np.zeros(len(order), dtype=np.intp)
    counts[order[rank < k]] = 1
    if resample:
        short = np.repeat(np.arange(len(users)), np.maximum(k - sizes, 0))
        drawn = first[short] + (chance.random(len(short)) * sizes[short]).astype(np.intp)
        np.add.at(counts, order[drawn], 1)
    rows = np.flatnonzero(counts)
    return KeptRows(rows, counts[rows])


def digest(numbers: RowIndex) -> str:
    """A short public name of a list of row or user numbers."""
    return hashlib.sha256(numbers.astype(np.int64).tobytes()).hexdigest()[:16]


def _id_column(ids: npt.ArrayLike | Sequence[Any]) -> npt.NDArray[Any]:
    """One id per row as an array; what numpy would take apart or mix (tuples, numbers with text) stays as it is."""
    if isinstance(ids, np.ma.MaskedArray):
        column = _objects(cast("Any", ids).tolist())
    elif isinstance(ids, np.ndarray):
        column = cast("npt.NDArray[Any]", ids)
    elif hasattr(ids, "__array__"):
        column = np.asarray(ids)
    else:
        column = _objects(list(cast("Sequence[Any]", ids)))
    if column.ndim != 1:
        raise ValueError(f"users has shape {column.shape}; give one id per row, shape (n,)")
    missing = int(np.count_nonzero([_is_missing(value) for value in column])) if column.dtype.kind in "fOM" else 0
    if missing:
        raise ValueError(f"users has {missing} missing ids; give every row one: it must be known whose labels change")
    return column


def _objects(values: list[Any]) -> npt.NDArray[Any]:
    return np.fromiter(values, dtype=object, count=len(values))


def _is_missing(value: object) -> bool:
    # NaN and NaT are the values that differ from themselves; pandas.NA refuses to say.
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
        return True
    return isinstance(value, (float, np.floating, np.datetime64)) and value != value  # noqa: PLR0124


def _numbered(column: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], RowIndex]:
    """The distinct ids in the order of their first rows, and the number of each row's id."""
    if column.dtype.kind == "O":
        return _numbered_objects(column)
    found, first, code = np.unique(column, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return found[order], place[code.reshape(-1)].astype(np.intp)


def _numbered_objects(column: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], RowIndex]:
    numbers: dict[Any, int] = {}
    try:
        owner = np.fromiter((numbers.setdefault(value, len(numbers)) for value in column), np.intp, len(column))
    except TypeError:
        raise ValueError("users has ids that cannot be hashed (lists, say); give numbers, text or tuples") from None
    return _objects(list(numbers)), owner
