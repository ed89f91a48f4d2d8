"""What a ledger has more than an earlier one, as charges that a store can write down and read back."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from labeldp.accounting.events import Event, Looks
from labeldp.accounting.ledger import Ledger, RowIndex
from labeldp.accounting.store_key import StoreError


@dataclass(frozen=True, eq=False)
class Charge:
    """`times` looks of one event at these rows; None is all of them."""

    event: Event
    times: int
    rows: RowIndex | None = None


def charged(ledger: Ledger, charges: Sequence[Charge]) -> Ledger:
    """The ledger after all of these."""
    return reduce(lambda before, charge: before.charge(charge.event, charge.times, charge.rows), charges, ledger)


def growth(before: Ledger, after: Ledger) -> tuple[Charge, ...]:
    """The charges that lead from one ledger to the other, row by row.

    >>> from labeldp.accounting.events import PureDP
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
        for event, times in _more(old, new):
            parts.setdefault((event, times), []).append(rows)
    return tuple(Charge(*what, _together(rows, after.num_rows)) for what, rows in parts.items())


def largest_growth(before: Ledger, after: Ledger) -> tuple[Charge, ...]:
    """The same as charges against all rows: how much the most that any row has met of every event has grown.

    Summed over the life of a ledger, no row has met more than was charged.
    """
    old, new = _most(before), _most(after)
    return tuple(Charge(event, times - old.get(event, 0)) for event, times in new.items() if times > old.get(event, 0))


def pack(rows: RowIndex | None, num_rows: int) -> bytes | None:
    """Row numbers in little space; they are public."""
    if rows is None:
        return None
    mask = np.zeros(num_rows, dtype=bool)
    mask[rows] = True
    return zlib.compress(np.packbits(mask).tobytes())


def unpack(packed: bytes | None, num_rows: int) -> RowIndex | None:
    """What `pack` packed; ValueError if it cannot be."""
    if packed is None:
        return None
    try:
        bits = np.frombuffer(zlib.decompress(packed), dtype=np.uint8)
    except zlib.error:
        raise ValueError("the rows cannot be read") from None
    return np.flatnonzero(np.unpackbits(bits, count=num_rows))


def _changed(before: Ledger, after: Ledger) -> Iterator[tuple[RowIndex, Looks, Looks]]:
    """The rows of every pair of histories (old, new) that occurs and differs."""
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


def _more(old: Looks, new: Looks) -> list[tuple[Event, int]]:
    before, after = ({look.event: look.times for look in looks} for looks in (old, new))
    if any(after.get(event, 0) < times for event, times in before.items()):
        raise StoreError("the ledger has fewer looks than before: it is another vault's; open one account per vault")
    return [(event, times - before.get(event, 0)) for event, times in after.items() if times > before.get(event, 0)]


def _together(parts: list[RowIndex], num_rows: int) -> RowIndex | None:
    rows = np.sort(np.concatenate(parts))
    return None if len(rows) == num_rows else rows


def _most(ledger: Ledger) -> dict[Event, int]:
    most: dict[Event, int] = {}
    for group in ledger.groups():
        for look in group.looks:
            most[look.event] = max(most.get(look.event, 0), look.times)
    return most
