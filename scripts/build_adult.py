"""Rebuild the bundled Adult table from the official files:  python scripts/build_adult.py FOLDER

FOLDER holds adult.data and adult.test (plain or .gz) as the UCI repository ships them.
"""

from __future__ import annotations

import csv
import gzip
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

NUMBERS = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship",
    "race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income",
)  # fmt: skip
TARGET = Path(__file__).parent.parent / "labeldp" / "data" / "adult"


def read_rows(path: Path) -> list[list[str]]:
    """The records of one official file, without comments and the dot after test labels."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="ascii") as file:
        rows = [row for row in csv.reader(file, skipinitialspace=True) if len(row) == len(COLUMNS)]
    return [[*row[:-1], row[-1].rstrip(".")] for row in rows]


def table(rows: list[list[str]]) -> pa.Table:
    """Typed columns: six int32, nine strings; "?" stays as it is."""
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
    arrays = {
        name: pa.array(list(map(int, values)), pa.int32()) if name in NUMBERS else pa.array(values, pa.string())
        for name, values in columns.items()
    }
    return pa.table(arrays)


def main() -> None:
    """Write adult.parquet (32,561 training rows) and adult-test.parquet (16,281 rows)."""
    folder = Path(sys.argv[1])
    for source, target in (("adult.data", "adult.parquet"), ("adult.test", "adult-test.parquet")):
        path = folder / source if (folder / source).exists() else folder / f"{source}.gz"
        pq.write_table(table(read_rows(path)), TARGET / target, compression="zstd", compression_level=22)
        print(target, pq.read_metadata(TARGET / target).num_rows, (TARGET / target).stat().st_size)


if __name__ == "__main__":
    main()
