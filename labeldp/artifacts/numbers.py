"""An owner's own labels that are numbers, read in the clear: to train on, or to measure with where they are open.

Nothing here is private. What it returns stays on the owner's machine, and no message quotes it: errors give counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from labeldp.artifacts.columns import column_names, read_public
from labeldp.data.arrow import pc
from labeldp.data.request import TableError

# Arrow's own reader of numbers would quote in its message what it cannot read.
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


@dataclass(frozen=True, eq=False)
class OwnNumbers:
    """The true number of every row, (n,)."""

    values: npt.NDArray[np.float64] = field(repr=False)


def read_numbers(path: Path, label: str, *, delimiter: str | None = None) -> OwnNumbers:
    """The numbers of one column of a Parquet or CSV file; TableError, with counts only, if one is missing or none.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "t.csv"
    >>> _ = path.write_text("age,price\\n31,10.5\\n57,1e3\\n")
    >>> read_numbers(path, "price")
    OwnNumbers()
    """
    names = column_names(path, delimiter)
    if names.count(label) != 1:
        raise TableError(f"there is no single column {label!r} in {path.name}; check the spelling (case matters)")
    others = [name for name in names if name != label]
    column = read_public(path, others, delimiter, as_text=(label,)).column(0)
    found = _numbers(column, label)
    unusable = int(np.count_nonzero(~np.isfinite(found)))
    if unusable:
        raise TableError(
            f"of the {len(found)} labels in {path.name}, {unusable} are missing, infinite or not numbers; which ones "
            "is not shown because it is private. Drop or fill them by a rule fixed in advance, or declare --classes "
            "and leave out --task regression where the label is no number"
        )
    return OwnNumbers(found)


def _numbers(column: Any, label: str) -> npt.NDArray[np.float64]:
    """Floats; NaN where there is none."""
    kind = column.type
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        column = _parsed(column.cast(pa.large_string()))
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind)):
        raise TableError(f"the label {label!r} has type {kind}, which is no number; convert the column first")
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)


def _parsed(texts: Any) -> Any:
    trimmed = pc.utf8_trim_whitespace(texts)
    # A plus sign is not read, and what is no number must not get as far as the reader.
    plain = pc.replace_substring_regex(trimmed, r"^\+", "")
    good = pc.fill_null(pc.match_substring_regex(trimmed, _NUMBER), False)
    return pc.if_else(good, plain, pa.scalar(None, pa.large_string()))
