"""Criteo attribution: which clicked advertisement gets the credit for a purchase."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from labeldp.accounting.ledger import Budget
from labeldp.data import locate
from labeldp.data import official as facts
from labeldp.data.coding import Raw, coded
from labeldp.data.locate import CorruptDataError, Official
from labeldp.data.splits import Benchmark, Columns, IntArray, refusing
from labeldp.private.randomness import SecureRandom
from labeldp.private.users import UserVault

CATEGORICAL = ("campaign", *(f"cat{number}" for number in range(1, 10)))
NUMERIC = ("cost",)
SPLIT_SEED = 20240507
# click decides which rows are kept; conversion, click_pos and click_nb make the label. No other column is read.
_SECRET = ("conversion", "click_pos", "click_nb")
_TYPES = {
    **dict.fromkeys(("uid", "click", *_SECRET, *CATEGORICAL), pa.int32()),
    **dict.fromkeys(NUMERIC, pa.float64()),
}
LabelledColumns = tuple[Columns, npt.NDArray[Any]]
Table = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False, repr=False)
class UserBenchmark(Benchmark[Columns]):
    """A table whose training labels are sealed by user: the vault protects all labels of one of them together."""

    vault: UserVault


@refusing
def attribution_by_user(
    root: Path | str | None = None,
    *,
    train_users: int = 200_000,
    test_users: int = 50_000,
    rng: SecureRandom | None = None,
    budget: Budget | None = None,
    official: Official = facts.CRITEO_ATTRIBUTION,
) -> UserBenchmark:
    """`benchmarks.criteo_attribution`, its training labels in a vault of users."""
    parts = read_attribution(official, root, train_users=train_users, test_users=test_users)
    return sealed_by_user(official.name, official.classes, *parts, rng=rng, budget=budget)


def sealed_by_user(
    name: str,
    classes: tuple[str, ...],
    train: LabelledColumns,
    test: LabelledColumns,
    *,
    rng: SecureRandom | None,
    budget: Budget | None,
) -> UserBenchmark:
    """Move the training labels into a vault of the table's users."""
    features, labels = train
    if features.users is None:
        raise ValueError(f"{name} does not say whose each row is; give a table with users")
    vault = UserVault(labels, features.users, len(classes), budget, rng=rng)
    return UserBenchmark(name, features, vault, test[0], test[1].astype(np.int64), len(classes), classes)


def read_attribution(
    official: Official, root: Path | str | None, *, train_users: int, test_users: int
) -> tuple[LabelledColumns, LabelledColumns]:
    """Clicked rows of a random choice of people, split by person, in the order of the file.

    A label is 1 when the click led to a purchase and was the last one before it:
    conversion = 1 and click_pos = click_nb − 1.
    """
    clicked = _clicked(official, root)
    train, test = _split(clicked["uid"], train_users, test_users)
    users = clicked["uid"][train].astype(np.int64), clicked["uid"][test].astype(np.int64)
    first, second = coded(_raw(clicked, train), _raw(clicked, test), users)
    return (first, clicked["label"][train]), (second, clicked["label"][test])


def _raw(table: Table, rows: npt.NDArray[np.intp]) -> Raw:
    numeric, categorical = ([table[name][rows] for name in names] for names in (NUMERIC, CATEGORICAL))
    return np.stack(numeric, axis=1), np.stack(categorical, axis=1)


def _split(uid: IntArray, train_users: int, test_users: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Row numbers of both parts; people are drawn from those who clicked, which is public."""
    people, owner = np.unique(uid, return_inverse=True)
    if train_users < 1 or test_users < 1 or train_users + test_users > len(people):
        raise ValueError(
            f"train_users={train_users} and test_users={test_users} cannot be drawn: give at least 1 each and at most "
            f"{len(people)} together, the number of people who clicked"
        )
    place = np.random.default_rng(SPLIT_SEED).permutation(len(people))[owner]
    return np.flatnonzero(place < train_users), np.flatnonzero(
        (place >= train_users) & (place < train_users + test_users)
    )


def _clicked(official: Official, root: Path | str | None) -> Table:
    path = locate.find(locate.folders(official, root), official.files[0])
    if path is None:
        raise locate.missing(official, root)
    try:
        total, parts = _scan(path)
    except (pa.ArrowException, OSError) as error:
        kind = type(error).__name__
    else:
        locate.check_rows(official, "only", total, official.rows[0])
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    # Raised outside the handler: pyarrow quotes the value it cannot read, which may be a label.
    raise CorruptDataError(
        f"{official.name}: {path} is not tab-separated text with the official columns, or is cut short ({kind}; its "
        f"message is withheld because it could quote a label). Download it again from {official.site}"
    )


def _scan(path: Path) -> tuple[int, list[Table]]:
    # Empty fields stay errors instead of becoming nulls; the file is read in blocks because most rows go.
    convert = csv.ConvertOptions(column_types=_TYPES, include_columns=list(_TYPES), null_values=[])
    read, parse = csv.ReadOptions(block_size=1 << 24), csv.ParseOptions(delimiter="\t")
    total, parts = 0, []
    with pa.input_stream(path, compression="detect") as stream:
        for batch in csv.open_csv(stream, read, parse, convert):
            total += batch.num_rows
            parts.append(_with_labels({name: batch.column(name).to_numpy() for name in _TYPES}))
    return total, parts


def _with_labels(block: Table) -> Table:
    kept = block["click"] == 1
    credited = (block["conversion"] == 1) & (block["click_pos"] == block["click_nb"] - 1)
    features = {name: block[name][kept] for name in ("uid", *NUMERIC, *CATEGORICAL)}
    return {**features, "label": credited[kept].astype(np.uint8)}
