"""An owner's own labels, read in the clear: to audit what was made of them, or to give them a budget.

Nothing here is private. What it returns stays on the owner's machine, and no message quotes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.data import csvfile, labelcolumn, parquetfile
from labeldp.data.request import Request, TableError, checked

_TEXT = (".csv", ".tsv", ".txt")
_PARQUET = (".parquet", ".pq")


@dataclass(frozen=True, eq=False)
class OwnLabels:
    """The true classes of a table's rows, 0 … K − 1 in declared order, and one public column where it was asked for."""

    codes: npt.NDArray[np.int64] = field(repr=False)
    num_classes: int
    public: npt.NDArray[Any] | None = field(default=None, repr=False)


def read_labels(
    path: Path, label: str, classes: Iterable[object], *, delimiter: str | None = None, public: str | None = None
) -> OwnLabels:
    """The labels of a Parquet or CSV file; TableError, with counts only, if one is missing or undeclared.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "t.csv"
    >>> _ = path.write_text("age,income\\n31,low\\n57,high\\n")
    >>> read_labels(path, "income", ["low", "high"])
    OwnLabels(num_classes=2)
    """
    request, kind = checked(label, classes, 0.0), path.suffix.lower()
    if kind not in _TEXT + _PARQUET:
        raise TableError(f"{str(path)!r} has no known format; its name must end in {', '.join(_PARQUET + _TEXT)}")
    if not path.is_file():
        raise TableError(f"{str(path)!r} is not a file; give the path of one Parquet or CSV file")
    if kind in _PARQUET and delimiter is not None:
        raise TableError(f"delimiter={delimiter!r} has no meaning for Parquet; leave it out")
    codes, column = _of_text(path, request, delimiter, public) if kind in _TEXT else _of_parquet(path, request, public)
    return OwnLabels(codes, len(request.classes), column)


def _of_text(path: Path, request: Request, delimiter: str | None, public: str | None) -> tuple[Any, Any]:
    table = csvfile.open_csv(path, request, delimiter)
    table.check_labels(request)
    features, codes, _ = csvfile.read_csv(path, request, table.delimiter.decode("ascii"))
    return codes.astype(np.int64), None if public is None else _column(features, public)


def _of_parquet(path: Path, request: Request, public: str | None) -> tuple[Any, Any]:
    parquetfile.open_parquet(path, request).check_labels(request)
    with parquetfile.opened(path) as file:
        column = file.read(columns=[request.label]).column(0)
        names = _column(file.read(columns=[public] if public in file.schema_arrow.names else []), public)
    codes, _ = labelcolumn.encode(column, column.type, request.classes)
    return codes, names


def _column(table: Any, name: str | None) -> npt.NDArray[Any] | None:
    if name is None:
        return None
    if table.column_names.count(name) != 1:
        raise TableError(f"there is no single column {name!r} beside the label")
    return np.array(table.column(name).to_pylist(), dtype=object)
