"""Read public columns, of files and of frames in memory, and bring them to the few kinds that a model takes.

`labeldp.data.kinds` decides how a column is read. A model keeps names and kinds, so that the columns of a new table are
found by name, in any order, among others, and are read as they were when it was trained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from labeldp.data.csv import CsvTable, open_csv
from labeldp.data.kinds import (
    ABSENT,
    Column,
    Reading,
    best_format,
    is_prose,
    is_text,
    kept_columns,
    kind_of,
    readings_of,
    written_dates,
    written_numbers,
)
from labeldp.data.labels import is_missing, pc
from labeldp.data.parquet import ParquetTable, open_parquet, open_parquet_folder
from labeldp.data.request import TableError, column_advice, listed

TEXT, PARQUET = (".csv", ".tsv", ".txt"), (".parquet", ".pq")
# Compressed text files, by how their names end, after .csv or the like.
COMPRESSED = (".gz", ".zst")
# What a missing category of a frame is called: a value like any other.
MISSING = "(missing)"
# What people give that is no table here, and what to do about it.
_SHEET, _ARCHIVE, _OTHER = (
    "a spreadsheet; save it as CSV (UTF-8), and give that file",
    "an archive; unpack it, and give the file inside",
    "a format that is not read here; convert it to Parquet or CSV",
)
_OTHER_KINDS = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods"), _SHEET),
    **dict.fromkeys((".zip", ".7z", ".rar", ".tar"), _ARCHIVE),
    **dict.fromkeys((".json", ".jsonl", ".feather", ".arrow", ".pkl", ".pickle", ".h5", ".sav", ".dta", ".db"), _OTHER),
}
# Where a field of an Arrow table says how its text is to be read, and the table that its columns have been read.
_KIND, _READ = b"labeldp.kind", {b"labeldp.read": b"1"}


# -- values ----------------------------------------------------------------------------------------------------------


def numbers(values: Any, name: str, like: Column | None = None, strays: bool = False) -> npt.NDArray[np.float64]:
    """Return a column's numbers, NaN where one is missing; dates, times and durations in seconds.

    Text is numbers or dates where it is written `like` a column that a model was trained on. What else stands there is
    missing: the usual words for that, those met in training and, where `strays` may be, any.
    """
    kind = values.type
    column = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    plain = kind.value_type if types.is_dictionary(kind) else kind
    if like is not None and is_text(plain):
        column = _written(column.cast(plain), like, strays)
    try:
        if types.is_dictionary(column.type):
            column = column.cast(plain)
        if types.is_temporal(column.type):
            # Since 1970, or since midnight.
            clock = pa.time64("us") if types.is_time(column.type) else pa.timestamp("us")
            unit = pa.duration("us") if types.is_duration(column.type) else clock
            column = pc.divide(column.cast(unit, safe=False).cast(pa.int64()).cast(pa.float64()), pa.scalar(1e6))
        elif types.is_boolean(column.type):
            column = column.cast(pa.int8())
        found = np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    except (pa.ArrowException, ValueError):
        found = None
    if found is None:
        raise TableError(f"column {name!r} has type {kind}, but the model reads numbers there; check the table")
    refuse_infinite(found, f"column {name!r}")
    return found


_BOOLEANS = {"true": 1.0, "false": 0.0}


def _written(values: Any, like: Column, strays: bool) -> Any:
    """Return the numbers or dates that texts are, NaN for cells that are none."""
    coded = pc.utf8_trim_whitespace(values.cast(pa.large_string())).combine_chunks().dictionary_encode()
    texts = coded.dictionary
    if like.kind == "date":
        found = written_dates(texts, like.format or best_format(texts, np.ones(len(texts), np.int64)))
    else:
        found = written_numbers(texts, like.decimal)
        # Booleans are numbers, and some files hold them as words.
        words = np.array([_BOOLEANS.get(text.casefold(), np.nan) for text in texts.to_pylist()])
        found = np.where(np.isnan(found), words, found)
    known = {"", *like.absent}
    others = [text for text, one in zip(texts.to_pylist(), found, strict=True) if np.isnan(one) and text not in known]
    odd = [text for text in others if text.casefold() not in ABSENT]
    if odd and not strays:
        raise TableError(
            f"column {like.name!r} has type {values.type} and holds {odd[0][:24]!r}, but the model reads "
            f"{like.kind}s there; leave cells empty where none is known, and check the table"
        )
    return pa.chunked_array([pa.array(found).take(coded.indices)]).fill_null(np.nan)


def refuse_infinite(found: npt.NDArray[Any], where: str) -> None:
    """Raise TableError where numbers are infinite."""
    if found.dtype.kind == "f" and np.isinf(found).any():
        raise TableError(
            f"{where} has infinite values; cap infinity and what is too large, and leave cells empty where nothing is "
            "known"
        )


def texts(values: Any, name: str, missing: str) -> Any:
    """Return a column's texts; `missing` where there is none. Numbers are written out."""
    if kind_of(name, values.type) == "vector":
        raise TableError(f"column {name!r} has type {values.type}, but the model was trained on text; check the table")
    return pc.fill_null(values.cast(pa.string()), missing)


# -- files -----------------------------------------------------------------------------------------------------------


def open_table(path: Path, delimiter: str | None = None, argument: str = "") -> CsvTable | ParquetTable:
    """Open a Parquet or CSV file, or a folder of Parquet files: footers or the header are read, and nothing else.

    `argument` is for messages.
    """
    where = f"{argument}={str(path)!r}" if argument else repr(str(path))
    if path.is_dir():
        found = open_parquet_folder(path)
        if found is not None and delimiter is None:
            return found
        raise TableError(
            f"{where} is a folder without Parquet files; give one with them, or one Parquet or CSV file. If it has a "
            "folder of images for each class, leave out --label"
        )
    if re.match(r"[a-z][a-z0-9+.-]+:/", str(path), re.I):
        raise TableError(f"{where} is an address; download the file first, and give its path")
    kind = Path(path.stem if path.suffix.lower() in COMPRESSED else path).suffix.lower()
    if advice := _OTHER_KINDS.get(kind):
        raise TableError(f"{where} is {advice}")
    if kind not in TEXT + PARQUET or (kind in PARQUET and path.suffix.lower() != kind):
        raise TableError(
            f"{where} has no known format; give a file whose name ends in {', '.join(PARQUET + TEXT)} (the last three "
            "may be followed by .gz or .zst)"
        )
    if not path.is_file():
        raise TableError(f"{where} is not a file; give the path of one Parquet or CSV file")
    if kind in TEXT:
        return open_csv(path, delimiter)
    if delimiter is not None:
        raise TableError(f"delimiter={delimiter!r} has no meaning for Parquet; leave it out")
    return open_parquet(path)


def read_public(
    path: Path, without: Sequence[str] = (), delimiter: str | None = None, as_text: Sequence[str] = ()
) -> pa.Table:
    """Read a Parquet or CSV file but for the columns `without`, which must be there and stay unread."""
    source = open_table(path, delimiter)
    return _with_rows(source.read(public_names(path, source.names, without), as_text), path)


def public_names(path: Path, names: list[str], without: Sequence[str]) -> list[str]:
    """Return the columns of a file but for those `without`, which must be there; TableError where none is left."""
    missing = [name for name in without if names.count(name) != 1]
    if missing:
        advice = column_advice(missing[0], names)
        raise TableError(f"there is no single column {missing[0]!r} in {path.name}; {advice}")
    kept = [name for name in names if name not in without]
    twice = sorted({name for name in kept if names.count(name) > 1})
    if twice:
        raise TableError(f"{path.name} has several columns named {listed(twice)}; rename all but one of each")
    if not kept:
        raise TableError(f"{path.name} has no column beside {listed(without)}; give a table with public features")
    return kept


def read_one(path: Path, name: str, delimiter: str | None = None) -> Any:
    """Read one column of a Parquet or CSV file, and nothing else; that of a CSV file as the text that stands there."""
    source = open_table(path, delimiter)
    if source.names.count(name) != 1:
        raise TableError(f"there is no single column {name!r} in {path.name}; {column_advice(name, source.names)}")
    return source.read([name], as_text=[name]).column(0)


def read_like(
    path: Path, columns: Sequence[Column], delimiter: str | None = None, keep: Sequence[str] = ()
) -> tuple[pa.Table, pa.Table]:
    """Read the columns that a model was trained on, conformed, and those to `keep` as they are; no others are read."""
    source = open_table(path, delimiter)
    check_like(path, source.names, columns, keep)
    written = [column.name for column in columns if column.as_text]
    wanted = dict.fromkeys([*(column.name for column in columns), *keep])
    table = _with_rows(source.read(list(wanted), (*written, *keep)), path)
    return conformed(table, columns), table.select(list(keep))


def check_like(path: Path, names: list[str], columns: Sequence[Column], keep: Sequence[str]) -> None:
    """Raise TableError unless all columns of a model, and all that are to be kept, are among the names."""
    for name in keep:
        if name not in names:
            raise TableError(f"--keep: there is no column {name!r} in {path}; check the spelling (case matters)")
    _check_present(columns, names)


def conformed(table: pa.Table, columns: Sequence[Column], strays: bool = False) -> pa.Table:
    """Return these columns of a table, in this order: float64 (NaN where missing) and text ('' where missing).

    Fields of text say whether they are categories or prose, for `read_frame`; `strays` as for `numbers`.
    """
    _check_present(columns, table.column_names)
    found: dict[str, Any] = {}
    kinds = {column.name: column.kind for column in columns if column.kind in ("category", "text")}
    for column in columns:
        name, values = column.name, table.column(column.name)
        if column.kind in ("number", "date"):
            found[name] = pa.array(numbers(values, name, column, strays))
        elif column.kind in ("category", "text"):
            # In a CSV file an empty cell is an empty text.
            words = texts(values, name, column.missing)
            found[name] = pc.if_else(pc.equal(words, ""), column.missing, words) if column.missing else words
        else:
            kind = values.type
            if not types.is_fixed_size_list(kind) or kind.list_size != column.size or values.null_count:
                raise TableError(
                    f"column {name!r} must hold lists of {column.size} numbers, none missing; check the table"
                )
            flat = numbers(values.combine_chunks().flatten(), name).reshape(-1, column.size)
            found |= {f"{name}[{i}]": pa.array(np.ascontiguousarray(flat[:, i])) for i in range(column.size)}
    made = pa.table(found)
    marked = [
        field.with_metadata({_KIND: kinds[field.name]}) if field.name in kinds else field for field in made.schema
    ]
    return made.cast(pa.schema(marked, metadata=_READ))


def is_read(frame: Any) -> bool:
    """Return whether it is a table that `conformed` made: nothing is to be found out about its columns."""
    return isinstance(frame, pa.Table) and _READ.keys() <= (frame.schema.metadata or {}).keys()


def _check_present(columns: Sequence[Column], names: list[str]) -> None:
    twice = [column.name for column in columns if names.count(column.name) > 1]
    if twice:
        raise TableError(f"the table has several columns named {listed(twice)}; rename all but one of each")
    missing = [column.name for column in columns if column.name not in names]
    if missing:
        raise TableError(
            f"the table lacks {listed(missing)}, which the model was trained on, among {len(names)} columns. Give a "
            "table with the same columns, named alike (case matters)"
        )


def _with_rows(table: pa.Table, path: Path) -> pa.Table:
    if not table.num_rows:
        raise TableError(f"{path.name} has no rows; give a table with some")
    return table


# -- frames and arrays in memory -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Which columns are numbers and which are prose, in the order in which they come; the others are categories."""

    numeric: tuple[bool, ...]
    prose: tuple[bool, ...] = ()

    @classmethod
    def of(cls, columns: list[npt.NDArray[Any]], prose: bool = True) -> Layout:
        """Return which of these columns are numbers and, unless it is to be categories, which are prose."""
        found = tuple(prose and column.dtype.kind == "O" for column in columns)
        return cls(tuple(column.dtype.kind == "f" for column in columns), found if any(found) else ())

    def split(self, columns: list[npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], ...]:
        """Return numbers, (n, a), and categories, (n, b), each column as it was when the model was fitted.

        Where there is prose, (n, c), it comes third.
        """
        rows, floats, words, prose = len(columns[0]) if columns else 0, [], [], []
        for number, (given, numeric) in enumerate(zip(columns, self.numeric, strict=True)):
            column = given
            if numeric and column.dtype.kind != "f":
                # All missing: a frame cannot tell what it would have been.
                if (column != MISSING).any():
                    raise TableError(f"X: column {number} holds text; it held numbers when the model was fitted")
                floats.append(np.full(len(column), np.nan))
            elif numeric:
                floats.append(column)
            else:
                if column.dtype.kind == "f":
                    # Postcodes, say, that happen to be all digits.
                    written = (str(int(value)) if value == np.floor(value) else str(value) for value in column.tolist())
                    column = np.array([MISSING if text == "nan" else text for text in written])
                if self.prose and self.prose[number]:
                    prose.append(column.astype(object))
                else:
                    words.append(column.astype(str, copy=False))
        tables = (
            np.stack(floats, axis=1) if floats else np.empty((rows, 0)),
            np.stack(words, axis=1) if words else np.empty((rows, 0), dtype="U1"),
        )
        return (*tables, np.stack(prose, axis=1)) if prose else tables

    def factors(self, columns: list[Any]) -> tuple[npt.NDArray[Any], list[Any]] | None:
        """Return numbers, (n, a), and categories, as `read_frame` has them with `factors`; None where kinds changed."""
        if any(isinstance(one, tuple) == numeric for one, numeric in zip(columns, self.numeric, strict=True)):
            return None
        floats, words = ([one for one in columns if isinstance(one, tuple) is kind] for kind in (False, True))
        return np.stack(floats, axis=1) if floats else np.empty((len(words[0][1]), 0)), words


def is_frame(inputs: object) -> bool:
    """Return whether it is a table with named columns: pandas, polars or Arrow; none is imported to find out."""
    module = type(inputs).__module__.split(".")[0]
    return module in {"pandas", "polars", "pyarrow"} and hasattr(inputs, "columns") and not hasattr(inputs, "name")


def names_of(frame: Any) -> list[Any]:
    """Return the names of a frame's columns."""
    # An Arrow table's `columns` are the data.
    return list(frame.column_names if hasattr(frame, "column_names") else frame.columns)


def arrow_table(frame: Any) -> pa.Table:
    """Return a pandas, polars or Arrow table as an Arrow table."""
    if isinstance(frame, pa.Table):
        return frame
    return pa.table({str(name): _arrow_column(frame[name]) for name in names_of(frame)})


def columns_of_frame(frame: Any, of: int | None = None) -> tuple[tuple[Reading, ...], tuple[Column, ...]]:
    """Return how each column of a frame is read, as that of a file is, and those that a model learns from.

    Columns of a categorical type are categories, whatever they hold: a frame can say so, and a file cannot. Where the
    frame is a random part of one that has more rows, `of` says how many.
    """
    table = arrow_table(frame)
    declared = {field.name: "category" for field in table.schema if types.is_dictionary(field.type)}
    readings = readings_of(table, declared, of)
    # Of a frame, what is missing is a value of a category like any other.
    return readings, tuple(
        replace(one, missing=MISSING) if one.kind in ("category", "text") else one for one in kept_columns(readings)
    )


def read_frame(frame: Any, factors: bool = False) -> list[Any]:
    """Return one array per column: float64 for numbers, text for categories, text as objects for prose.

    With `factors` texts come as their values and, per row, which it is: soon done, and all that categories need.
    """
    found: list[Any] = []
    for name in names_of(frame):
        column = _arrow_column(frame[name])
        kind = kind_of(str(name), column.type)
        if kind == "vector":
            raise TableError(f"X: column {str(name)!r} holds {column.type}; give its numbers as columns of their own")
        if kind in ("number", "date"):
            found.append(numbers(column, str(name)))
            continue
        said = (frame.schema.field(name).metadata or {}).get(_KIND) if isinstance(frame, pa.Table) else None
        values = texts(column, str(name), MISSING)
        if factors:
            coded = pc.dictionary_encode(values)
            coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
            known = np.asarray(coded.dictionary.to_pylist(), dtype=str)
            found.append((known, np.asarray(coded.indices)))
            continue
        prose = said == b"text" if said else _is_prose(values)
        found.append(np.asarray(values.to_pylist(), dtype=object if prose else str))
    return found


def _is_prose(texts: Any) -> bool:
    different = pc.unique(texts)
    return is_prose(len(different), float(pc.mean(pc.count_substring_regex(texts, r"\S+")).as_py() or 0.0))


def _arrow_column(column: Any) -> Any:
    if type(column).__module__.startswith("pandas"):
        try:
            return pa.array(column, from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return pa.array([None if is_missing(value) else str(value) for value in column], pa.string())
    if hasattr(column, "to_arrow"):
        column = column.to_arrow()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def read_array(inputs: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Return one array per column of a plain array (n, p); a column of objects is numeric where all of it is."""
    if inputs.dtype.kind in "biuf":
        refuse_infinite(inputs, "X")
        return list(inputs.astype(np.float64).T)
    return [_object_column(f"X: column {number}", column) for number, column in enumerate(inputs.astype(object).T)]


def _object_column(where: str, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    missing = np.array([is_missing(value) for value in column], dtype=bool)
    given = column[~missing]
    if all(
        isinstance(value, (bool, int, float, np.generic)) and not isinstance(value, (str, bytes)) for value in given
    ):
        found = np.full(len(column), np.nan)
        found[~missing] = [float(value) for value in given]
        refuse_infinite(found, where)
        return found
    odd = next((type(value).__name__ for value in given if not isinstance(value, str)), None)
    if odd is not None:
        raise TableError(f"{where} mixes text with {odd}; an argument must be a string or a number")
    filled = np.where(missing, MISSING, column)
    return filled if _is_prose(pa.array(filled, pa.large_string())) else filled.astype(str)


def comes_in_parts(inputs: Any) -> bool:
    """Return whether some rows are read as all would be: types are the columns', not found in their values."""
    if hasattr(inputs, "parts"):
        return True
    if isinstance(inputs, np.ndarray):
        return inputs.ndim == 2 and inputs.dtype.kind in "biuf"
    # A pandas column of objects may hold anything.
    return is_frame(inputs) and not any(str(kind).lower() == "object" for kind in getattr(inputs, "dtypes", ()))


def parts_of(inputs: Any, at_once: int) -> Iterator[Any]:
    """Yield all rows, so many at a time; none is copied. Rows that lie in files come as they are read."""
    if hasattr(inputs, "parts"):
        yield from inputs.parts()
        return
    for start in range(0, len(inputs), at_once):
        if hasattr(inputs, "slice"):
            yield inputs.slice(start, at_once)
        else:
            yield (inputs.iloc if hasattr(inputs, "iloc") else inputs)[start : start + at_once]


def take_rows(inputs: Any, rows: npt.NDArray[np.intp]) -> Any:
    """Return these rows of a table, array, sparse matrix, tensor or list."""
    if is_frame(inputs) and hasattr(inputs, "take"):
        return inputs.take(rows)
    if hasattr(inputs, "tocsr"):
        # Sparse; not every kind of it can be indexed.
        return inputs.tocsr()[rows]
    return [inputs[row] for row in rows] if isinstance(inputs, (list, tuple)) else inputs[rows]
