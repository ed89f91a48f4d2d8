"""Adult, the census income table: from UCI's own files or from the copy that ships with the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.data import locate
from labeldp.data.coding import Raw, coded
from labeldp.data.locate import CorruptDataError, Official
from labeldp.data.samples import adult_path
from labeldp.data.splits import Columns, IntArray

NUMERIC = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
CATEGORICAL = (
    "workclass", "education", "marital_status", "occupation", "relationship", "race", "sex", "native_country",
)  # fmt: skip
_LABEL = "income"
_ORDER = (
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship",
    "race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", _LABEL,
)  # fmt: skip
LabelledColumns = tuple[Columns, IntArray]
Table = dict[str, npt.NDArray[Any]]


def read_adult(official: Official, root: Path | str | None) -> tuple[LabelledColumns, LabelledColumns]:
    """Both official parts. Without a root, the bundled copy stands in for files that are not there."""
    tables = _tables(official, root)
    for part, table, expected in zip(("training", "test"), tables, official.rows, strict=True):
        locate.check_rows(official, part, len(table[_LABEL]), expected)
    train, test = coded(_features(official, tables[0]), _features(official, tables[1]))
    labels = [_labels(official, table) for table in tables]
    return (train, labels[0]), (test, labels[1])


def _tables(official: Official, root: Path | str | None) -> list[Table]:
    try:
        found = locate.contents(official, root)
    except locate.MissingDataError:
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
        numeric = np.stack([table[name].astype(np.float64) for name in NUMERIC], axis=1)
    except ValueError:
        numeric = None
    if numeric is None:
        raise CorruptDataError(f"{official.name}: a numeric column holds text; download it again from {official.site}")
    return numeric, np.stack([table[name].astype(str) for name in CATEGORICAL], axis=1)


def _labels(official: Official, table: Table) -> IntArray:
    # The official test file puts a dot after each label. What is no class becomes −1, which sealing refuses.
    codes = {name: code for code, name in enumerate(official.classes)}
    return np.array([codes.get(value.removesuffix("."), -1) for value in table[_LABEL]], dtype=np.int64)
