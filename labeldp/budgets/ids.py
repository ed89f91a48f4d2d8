"""Know rows by a keyed hash of a public id: a table that was reordered, filtered or exported meets its spending.

An id is kept as HMAC-SHA256 under the store's key, cut to 128 bits. Ids are the data owner's: rows without a history
start at zero, so whoever may invent ids may invent budgets.
"""

from __future__ import annotations

import re
import unicodedata
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from labeldp.budgets.keys import Key, StoreError
from labeldp.core.events import Event, of_group
from labeldp.core.ledger import Ledger, RowIndex
from labeldp.core.vault import LabelVault

Ids = npt.ArrayLike | Sequence[Any]
# One hash of 16 bytes for each.
Hashes = npt.NDArray[np.bytes_]

KIND = "S16"
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
# Beyond it a float is not one whole number but many.
_EXACT = 1 << 53


class Charge(NamedTuple):
    """`times` queries of one event at these rows; None is all of them."""

    event: Event
    times: int = 1
    rows: RowIndex | None = None


Plan = Sequence[Charge]


def hashed(key: Key, ids: Ids, vault: LabelVault) -> Hashes:
    """Return the hash of every line of the vault's ledger: of each row's id, or of each user's.

    Where the vault counts users, ids must be those of the users.
    """
    # A list stays as it is: numpy would turn numbers among text into text, and whole numbers into floats.
    column = cast("Sequence[Any]", ids) if isinstance(ids, (list, tuple)) else np.asarray(ids).tolist()
    values: list[Any] = list(column)
    if len(values) != len(vault):
        raise StoreError(f"ids has {len(values)} entries for {len(vault)} labels; give one for each row")
    texts = [canonical(value) for value in values]
    if None in texts:
        raise StoreError(f"ids has {texts.count(None)} missing entries; every row that is charged needs one")
    digests = {text: key.digest("id/1", str(text))[:16] for text in set(texts)}
    found = np.array([digests[text] for text in texts], dtype=KIND)
    grouping = getattr(vault, "users", None)
    if grouping is None:
        return found
    owner = cast("RowIndex", grouping.owner)
    of_user = found[np.unique(owner, return_index=True)[1]]
    if len(np.unique(of_user)) != len(of_user) or np.any(of_user[owner] != found):
        raise StoreError("ids are not those of the users: where all labels of a user are protected, its id is the user")
    return of_user


def canonical(value: object) -> str | None:
    """Return an id as text, the same whatever file it comes from; None where it is missing.

    Numbers and text that says a whole number are alike, leading zeros or not: a reader of CSV files takes one for the
    other, and two ids taken for one can only be charged too much.

    >>> canonical(7), canonical("007"), canonical(7.0), canonical(" a-1 "), canonical("7.5")
    ('7', '7', '7', 'a-1', '7.5')
    """
    if value is None or type(value).__name__ in {"NAType", "NaTType"} or value != value:  # noqa: PLR0124
        return None
    if isinstance(value, float) and abs(value) >= _EXACT:
        raise StoreError(
            "ids has floating-point numbers of 2^53 or more, which are not exact; give whole numbers or text"
        )
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal, uuid.UUID)):
        raise StoreError(f"ids has entries of type {type(value).__name__}; give whole numbers or text")
    text = unicodedata.normalize("NFC", str(value)).strip()
    if _WHOLE.fullmatch(text):
        return str(int(text.partition(".")[0]))
    return text or None


def numbered(known: Hashes, given: Hashes) -> tuple[RowIndex, Hashes]:
    """Return the place of every given hash among the known ones, and those that come after them because they are new.

    >>> places, new = numbered(np.array([b"a", b"b"], KIND), np.array([b"b", b"c", b"c"], KIND))
    >>> places.tolist(), new.tolist()
    ([1, 2, 2], [b'c'])
    """
    places = {each: number for number, each in enumerate(known.tolist())}
    numbers = np.fromiter((places.setdefault(each, len(places)) for each in given.tolist()), np.intp, len(given))
    return numbers, np.array(list(places)[len(known) :], KIND)


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


def extended(ledger: Ledger, num_rows: int) -> Ledger:
    """Return the ledger with more rows, which have met nothing."""
    if num_rows == ledger.num_rows:
        return ledger
    histories = ledger.histories if () in ledger.histories else (*ledger.histories, ())
    of_row = np.full(num_rows, histories.index(()), dtype=np.int32)
    of_row[: ledger.num_rows] = 0 if ledger.history_of_row is None else ledger.history_of_row
    return Ledger(num_rows, histories, of_row if len(histories) > 1 else None)
