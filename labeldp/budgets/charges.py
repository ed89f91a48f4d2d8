"""What a ledger has more than an earlier one, as charges: row by row, or id by id.

A *plan* is the charges that were fixed together before anything was drawn (`labeldp.core.filter`).
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from labeldp.budgets.keys import StoreError
from labeldp.core.events import Event, Queries, of_group
from labeldp.core.filter import Plans
from labeldp.core.ledger import Ledger, RowIndex


class Charge(NamedTuple):
    """`times` queries of one event at these rows; None is all of them."""

    event: Event
    times: int = 1
    rows: RowIndex | None = None


Plan = Sequence[Charge]


def growth(before: Ledger, after: Ledger) -> Plan:
    """Return the plan that leads from one ledger to the other, as charges row by row.

    >>> from labeldp.core.events import PureDP
    >>> empty = Ledger(4)
    >>> [(c.times, c.rows) for c in growth(empty, empty.charge(PureDP(1.0)))]
    [(1, None)]
    >>> [(c.times, c.rows) for c in growth(empty, empty.charge(PureDP(1.0), rows=[2, 3]))]
    [(1, array([2, 3]))]
    """
    if before.num_rows != after.num_rows:
        raise StoreError(f"the ledger has {after.num_rows} lines where {before.num_rows} are expected")
    parts: dict[tuple[Event, int], list[RowIndex]] = {}
    for rows, old, new in _changed(before, after):
        if new[: len(old)] != old:
            raise StoreError(
                "the ledger has other queries than before: it is another vault's; open one account per vault"
            )
        if len(new) > len(old) + 1:
            raise StoreError("the ledger has several plans more than before; a vault stores one at a time")
        for query in new[-1]:
            parts.setdefault((query.event, query.times), []).append(rows)
    asked = {what: np.sort(np.concatenate(rows)) for what, rows in parts.items()}
    return [Charge(*what, None if len(rows) == after.num_rows else rows) for what, rows in asked.items()]


def largest_growth(before: Ledger, after: Ledger) -> list[Plan]:
    """Return the same as plans against all rows: how much the most that any row has met of every plan has grown.

    Over the life of a ledger every plan that a row has met was charged as one, and not as parts of a larger one: what
    was fixed in advance together may not be taken apart and chosen bit by bit.
    """
    grown = _most(after) - _most(before)
    return [[Charge(query.event, query.times) for query in plan] for plan in grown.elements()]


def by_unit(plan: Plan, unit_of_row: RowIndex) -> Plan:
    """Return the plan as charges of units, where several rows may be one unit's: it then pays for each of them.

    A query of m rows of a unit costs it what m replaced labels cost (`of_group`), not m queries: Gaussian noise that
    hides one of them hides their sum m times worse, and not √m times. Where rows of a unit met an event a different
    number of times, which of them met it together is not known: all are taken to have met it together.

    >>> from labeldp.core.events import PureDP
    >>> [(c.event.epsilon, c.rows.tolist()) for c in by_unit([Charge(PureDP(1.0))], np.array([5, 7, 5]))]
    [(1.0, [7]), (2.0, [5])]
    """
    found: list[Charge] = []
    for event in dict.fromkeys(charge.event for charge in plan):
        asked = [(unit_of_row if c.rows is None else unit_of_row[c.rows], c.times) for c in plan if c.event == event]
        units, place, rows = np.unique(
            np.concatenate([units for units, _ in asked]), return_inverse=True, return_counts=True
        )
        times = np.zeros(len(units), dtype=np.int64)
        np.maximum.at(times, place, np.repeat([n for _, n in asked], [len(units) for units, _ in asked]))
        for m, n in np.unique(np.stack([rows, times], axis=1), axis=0):
            found.append(Charge(of_group(event, int(m)), int(n), units[(rows == m) & (times == n)]))
    return found


def pack(rows: RowIndex | None, num_rows: int) -> bytes | None:
    """Return row numbers in little space; they are public."""
    if rows is None:
        return None
    mask = np.zeros(num_rows, dtype=bool)
    mask[rows] = True
    return zlib.compress(np.packbits(mask).tobytes())


def unpack(packed: bytes | None, num_rows: int) -> RowIndex | None:
    """Return what `pack` packed, when there may have been fewer rows; ValueError if it cannot be."""
    if packed is None:
        return None
    try:
        bits = np.frombuffer(zlib.decompress(packed), dtype=np.uint8)
    except zlib.error:
        raise ValueError("the rows cannot be read") from None
    return np.flatnonzero(np.unpackbits(bits, count=num_rows))


def _changed(before: Ledger, after: Ledger) -> Iterator[tuple[RowIndex, Plans, Plans]]:
    """Yield the rows of every pair of histories (old, new) that occurs and differs."""
    width = len(after.histories)
    pairs = _numbers(before) * width + _numbers(after)
    for pair in map(int, np.flatnonzero(np.bincount(pairs))):
        was, now = before.histories[pair // width], after.histories[pair % width]
        if was != now:
            yield np.flatnonzero(pairs == pair), was, now


def _numbers(ledger: Ledger) -> npt.NDArray[np.int64]:
    if ledger.history_of_row is None:
        return np.zeros(ledger.num_rows, dtype=np.int64)
    return ledger.history_of_row.astype(np.int64)


def _most(ledger: Ledger) -> Counter[Queries]:
    """Return for every plan how often the row that met it most often did."""
    most: Counter[Queries] = Counter()
    for group in ledger.groups():
        most |= Counter(group.plans)
    return most


def extended(ledger: Ledger, num_rows: int) -> Ledger:
    """Return the ledger with more rows, which have met nothing."""
    if num_rows == ledger.num_rows:
        return ledger
    histories = ledger.histories if () in ledger.histories else (*ledger.histories, ())
    of_row = np.full(num_rows, histories.index(()), dtype=np.int32)
    of_row[: ledger.num_rows] = _numbers(ledger)
    return Ledger(num_rows, histories, of_row if len(histories) > 1 else None)
