"""MovieLens ratings: who rated what is public, the rating is the label."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from labeldp.data import locate
from labeldp.data.locate import CorruptDataError, Official
from labeldp.data.splits import IntArray, Pairs

NUM_USERS = 6040
NUM_ITEMS = 3952
SPLIT_SEED = 20211206
_FIELDS = 4
LabelledPairs = tuple[Pairs, IntArray]


def read_ratings(official: Official, root: Path | str | None) -> tuple[LabelledPairs, LabelledPairs]:
    """A random 80/20 split of ratings.dat (user::item::rating::time). Ratings 1 … 5 become classes 0 … 4.

    The split is a seeded shuffle of the rows in order of user and item, so it cannot depend on a rating.
    """
    table = _table(official, locate.contents(official, root)[official.files[0]])
    locate.check_rows(official, "only", len(table), official.rows[0])
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    order = np.random.default_rng(SPLIT_SEED).permutation(len(table))
    cut = len(table) * 8 // 10
    train, test = (_pairs(table[rows]) for rows in (order[:cut], order[cut:]))
    return train, test


def _pairs(table: IntArray) -> LabelledPairs:
    # Copies: a view would carry the ratings along behind the users.
    users, items = table[:, 0] - 1, table[:, 1] - 1
    return Pairs(users, items, NUM_USERS, NUM_ITEMS), table[:, 2] - 1


def _table(official: Official, content: bytes) -> IntArray:
    lines = content.splitlines()
    odd = sum(line.count(b"::") != _FIELDS - 1 for line in lines)
    table = None if odd else _numbers(content)
    if table is None or table.shape != (len(lines), _FIELDS) or not _in_range(table):
        raise CorruptDataError(
            f"{official.name}: {official.files[0]} is not made of lines user::item::rating::time with users 1 … "
            f"{NUM_USERS} and items 1 … {NUM_ITEMS} ({odd} of {len(lines)} lines have other fields); download it "
            f"again from {official.site}"
        )
    return table


def _numbers(content: bytes) -> IntArray | None:
    # int() quotes what it cannot read, and that may be a rating: its message goes no further.
    try:
        flat = np.array(content.replace(b"::", b" ").split(), dtype=np.int64)
    except (ValueError, OverflowError):
        return None
    return flat.reshape(-1, _FIELDS) if flat.size % _FIELDS == 0 else None


def _in_range(table: IntArray) -> bool:
    users, items = table[:, 0], table[:, 1]
    return bool(((users >= 1) & (users <= NUM_USERS) & (items >= 1) & (items <= NUM_ITEMS)).all())
