"""What a model is trained on and measured on: tables of the user's, or data sets by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from labeldp.data import csv, files, labels, parquet
from labeldp.data.arrow import pc
from labeldp.data.csv import checked_delimiter, read_header
from labeldp.data.files import ADULT_CLASSES, MissingDataError, Official, adult_path
from labeldp.data.image_files import read_cifar, read_folders, read_idx
from labeldp.data.request import Request, TableError, checked, listed

# --- columns --------------------
#
# Public columns of a table, brought to the few kinds a model reads, the same way for training and for predicting.
#
#     number     floats; a missing one is NaN                        (numbers, decimals, dates and times, booleans)
#     category   text; a missing one is the empty text               (text, dictionaries)
#     vector     several numbers: a list of fixed size               (embeddings)
#
# A model keeps names and kinds, so that the columns of a new table are found by name, in any order, among others.


TEXT, PARQUET = (".csv", ".tsv", ".txt"), (".parquet", ".pq")


@dataclass(frozen=True)
class Column:
    """A public column by name and kind; `size` numbers for a vector."""

    name: str
    kind: str
    size: int = 1

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "kind": self.kind, "size": self.size}


def read_public(
    path: Path, without: Sequence[str] = (), delimiter: str | None = None, as_text: Sequence[str] = ()
) -> pa.Table:
    """A Parquet or CSV file less some columns, which are not read; `as_text` are not guessed to be numbers."""
    names = column_names(path, delimiter)
    missing = [name for name in without if names.count(name) != 1]
    if missing:
        near = difflib.get_close_matches(missing[0], names, 1)
        advice = f"did you mean {near[0]!r}?" if near else f"the columns are {listed(names)} (case matters)"
        raise TableError(f"there is no single column {missing[0]!r} in {path.name}; {advice}")
    kept = [name for name in names if name not in without]
    if not kept:
        raise TableError(f"{path.name} has no column beside {listed(without)}; give a table with public features")
    table = _csv(path, kept, delimiter, as_text) if path.suffix.lower() in TEXT else _parquet(path, kept)
    if not table.num_rows:
        raise TableError(f"{path.name} has no rows; give a table with some")
    return table


def column_names(path: Path, delimiter: str | None = None) -> list[str]:
    """The names of all columns, from the header or the footer."""
    kind = path.suffix.lower()
    if not path.is_file():
        raise TableError(f"{str(path)!r} is not a file; give the path of one Parquet or CSV file")
    if kind not in TEXT + PARQUET:
        raise TableError(f"{str(path)!r} has no known format; its name must end in {', '.join(PARQUET + TEXT)}")
    if kind in PARQUET:
        if delimiter is not None:
            raise TableError(f"delimiter={delimiter!r} has no meaning for Parquet; leave it out")
        with parquet.reading(path), parquet.opened(path) as file:
            return list(file.schema_arrow.names)
    return _header(path, checked_delimiter(delimiter, path))


def columns_of(table: pa.Table) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """The columns a model can learn from, and the names of those left out because all their values are the same."""
    found = [_column(field, table.column(place)) for place, field in enumerate(table.schema)]
    kept = tuple(column for column in found if column.kind != "constant")
    if not kept:
        raise TableError(
            f"no public column says anything: {listed(table.column_names) or 'there is none'} "
            "each have one value in all rows; give at least one feature that varies"
        )
    return kept, tuple(column.name for column in found if column.kind == "constant")


def conformed(table: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """These columns of a table, in this order: float64 (NaN where missing) and text ('' where missing)."""
    names = table.column_names
    missing = [column.name for column in columns if names.count(column.name) != 1]
    if missing:
        raise TableError(
            f"the table lacks {listed(missing)}, which the model was trained on; its columns are {listed(names)}. Give "
            "a table with the same columns, named alike (case matters)"
        )
    parts: dict[str, Any] = {}
    for column in columns:
        parts |= _values(table.column(column.name), column)
    return pa.table(parts)


def _column(field: pa.Field, values: Any) -> Column:
    kind = field.type
    if types.is_fixed_size_list(kind) and _is_number(kind.value_type):
        return Column(field.name, "vector", kind.list_size)
    if types.is_binary(kind) or types.is_large_binary(kind):
        raise TableError(
            f"column {field.name!r} is not UTF-8 text; save the file as UTF-8, or leave the column out with --drop"
        )
    if not (types.is_null(kind) or _is_number(kind) or _is_text(kind)):
        raise TableError(f"column {field.name!r} has type {kind}, which no model reads; leave it out with --drop")
    if types.is_dictionary(kind):
        values = values.cast(kind.value_type)
    if len(pc.unique(values)) < 2:
        return Column(field.name, "constant")
    return Column(field.name, "category" if _is_text(kind) else "number")


def _values(values: Any, column: Column) -> dict[str, Any]:
    if column.kind == "vector":
        return _spread(values, column)
    if column.kind == "category":
        return {column.name: _texts(values, column.name)}
    return {column.name: pa.array(_numbers(values, column.name))}


def _spread(values: Any, column: Column) -> dict[str, Any]:
    if not types.is_fixed_size_list(values.type) or values.type.list_size != column.size or values.null_count:
        raise TableError(
            f"column {column.name!r} must hold lists of {column.size} numbers, none missing; check the table"
        )
    flat = _numbers(pa.chunked_array([values.combine_chunks().flatten()]), column.name).reshape(-1, column.size)
    return {f"{column.name}[{place}]": pa.array(np.ascontiguousarray(flat[:, place])) for place in range(column.size)}


def _texts(values: Any, name: str) -> Any:
    kind = values.type
    if not (_is_text(kind) or _is_number(kind) or types.is_null(kind)):
        raise TableError(f"column {name!r} has type {kind}, but the model was trained on text; check the table")
    return pc.fill_null(values.cast(pa.string()), "")


def _numbers(values: Any, name: str) -> np.ndarray:
    try:
        if types.is_temporal(values.type) and not types.is_duration(values.type):
            values = _seconds(values)
        if types.is_boolean(values.type):
            values = values.cast(pa.int8())
        found = np.asarray(values.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    except (pa.ArrowException, ValueError):
        found = None
    if found is None:
        raise TableError(f"column {name!r} has type {values.type}, but the model reads numbers there; check the table")
    if np.isinf(found).any():
        raise TableError(f"column {name!r} has infinite values; cap them, or leave cells empty where nothing is known")
    return found


def _seconds(values: Any) -> Any:
    """Dates and times as seconds since 1970, or since midnight."""
    if types.is_time(values.type):
        return pc.divide(values.cast(pa.time64("us")).cast(pa.int64()).cast(pa.float64()), pa.scalar(1e6))
    return pc.divide(values.cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.float64()), pa.scalar(1e6))


def _is_number(kind: Any) -> bool:
    plain = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)
    return plain or types.is_date(kind) or types.is_timestamp(kind) or types.is_time(kind)


def _is_text(kind: Any) -> bool:
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _parquet(path: Path, names: Sequence[str]) -> pa.Table:
    with parquet.reading(path), parquet.opened(path) as file:
        return file.read(columns=list(names))


def _csv(path: Path, names: Sequence[str], delimiter: str | None, as_text: Sequence[str]) -> pa.Table:
    import pyarrow.csv as pacsv

    separator = checked_delimiter(delimiter, path)
    how = pacsv.ParseOptions(delimiter=separator.decode("ascii"), newlines_in_values=True)
    asked = pacsv.ConvertOptions(
        include_columns=list(names),
        column_types={name: pa.string() for name in as_text if name in names},
    )
    try:
        # Arrow's own block of 1 MiB would refuse a longer record.
        return pacsv.read_csv(path, pacsv.ReadOptions(block_size=16 << 20), how, asked)
    except (pa.ArrowException, UnicodeError):
        # Its message may quote a whole line, label included.
        raise TableError(
            f"{path.name} cannot be read as CSV; check that every line has as many fields as the header, give the "
            "--delimiter, and save it as UTF-8"
        ) from None


def _header(path: Path, separator: bytes) -> list[str]:
    with path.open("rb") as file:
        cells = read_header(file, separator).cells
    try:
        return [cell.decode("utf-8") for cell in cells]
    except UnicodeDecodeError:
        raise TableError(f"the header of {str(path)!r} is not UTF-8; save the file as UTF-8") from None


# --- numbers --------------------
#
# An owner's own labels that are numbers, read in the clear: to train on, or to measure with where they are open.
#
# Nothing here is private. What it returns stays on the owner's machine, and no message quotes it: errors give counts.


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
    found = _floats(column, label)
    unusable = int(np.count_nonzero(~np.isfinite(found)))
    if unusable:
        raise TableError(
            f"of the {len(found)} labels in {path.name}, {unusable} are missing, infinite or not numbers; which ones "
            "is not shown because it is private. Drop or fill them by a rule fixed in advance, or declare --classes "
            "and leave out --task regression where the label is no number"
        )
    return OwnNumbers(found)


def _floats(column: Any, label: str) -> npt.NDArray[np.float64]:
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


# --- labels --------------------
#
# An owner's own labels, read in the clear: to audit what was made of them, or to give them a budget.
#
# Nothing here is private. What it returns stays on the owner's machine, and no message quotes it.


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
    table = csv.open_csv(path, request, delimiter)
    table.check_labels(request)
    features, codes, _ = csv.read_csv(path, request, table.delimiter.decode("ascii"))
    return codes.astype(np.int64), None if public is None else _label_column(features, public)


def _of_parquet(path: Path, request: Request, public: str | None) -> tuple[Any, Any]:
    parquet.open_parquet(path, request).check_labels(request)
    with parquet.opened(path) as file:
        column = file.read(columns=[request.label]).column(0)
        names = _label_column(file.read(columns=[public] if public in file.schema_arrow.names else []), public)
    codes, _ = labels.encode(column, column.type, request.classes)
    return codes, names


def _label_column(table: Any, name: str | None) -> npt.NDArray[Any] | None:
    if name is None:
        return None
    if table.column_names.count(name) != 1:
        raise TableError(f"there is no single column {name!r} beside the label")
    return np.array(table.column(name).to_pylist(), dtype=object)


Features = pa.Table | npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Rows:
    """Public features, and labels: secret ones to train on, or open ones to measure with."""

    features: Features = field(repr=False)
    # OwnLabels, or OwnNumbers; which of them, the source says.
    labels: Any = field(repr=False)

    def __len__(self) -> int:
        return len(self.features)

    @property
    def given(self) -> npt.NDArray[Any]:
        """The labels as an estimator is given them: class numbers, or numbers."""
        return self.labels.values if isinstance(self.labels, OwnNumbers) else self.labels.codes


@dataclass(frozen=True, eq=False)
class Source:
    """Rows to train on, open ones to measure with where there are some, and what their columns are.

    Args:
        name: for people.
        label: the secret column; empty for pictures.
        classes: as declared, or as published; empty where the label is a number.
        columns: of a table; None for pictures.
        left_out: public columns that hold one value.
        bounds: of a label that is a number, as declared; None for classes.
    """

    name: str
    label: str
    classes: tuple[str, ...]
    train: Rows
    test: Rows | None
    columns: tuple[Column, ...] | None
    left_out: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None

    @property
    def described(self) -> tuple[str, ...]:
        """The features in a few words."""
        if self.columns is not None:
            return tuple(column.name for column in self.columns)
        return (" × ".join(map(str, self.train.features.shape[1:])) + " pixels",)


def table_source(
    path: Path,
    label: str,
    classes: Sequence[str] = (),
    *,
    bounds: tuple[float, float] | None = None,
    drop: Sequence[str] = (),
    delimiter: str | None = None,
    test: Path | None = None,
) -> Source:
    """A table of the user's. Features are read without the label column; of its labels, errors give counts only.

    Labels are among `classes` or, where there are none, numbers with these declared `bounds`.
    """
    if bool(classes) == (bounds is not None):
        raise TableError(f"classes={classes!r} and bounds={bounds!r}: give the classes, or bounds for numbers")
    if label in drop:
        raise TableError(f"drop names {label!r}, which is the label and is never a feature; leave it out of --drop")
    table = read_public(path, (label, *drop), delimiter)
    columns, left_out = columns_of(table)
    train = Rows(conformed(table, columns), _labels(path, label, classes, delimiter))
    open_rows = None if test is None else open_table(test, label, classes, columns, delimiter)
    return Source(path.name, label, tuple(classes), train, open_rows, columns, left_out, bounds)


def open_table(
    path: Path, label: str, classes: Sequence[str], columns: Sequence[Column], delimiter: str | None = None
) -> Rows:
    """A table like the one trained on, whose labels are public: numbers where there are no classes."""
    return Rows(new_rows(path, columns, delimiter), _labels(path, label, classes, delimiter))


def _labels(path: Path, label: str, classes: Sequence[str], delimiter: str | None) -> OwnLabels | OwnNumbers:
    if not classes:
        return read_numbers(path, label, delimiter=delimiter)
    return read_labels(path, label, classes, delimiter=delimiter)


def new_rows(path: Path, columns: Sequence[Column], delimiter: str | None = None) -> pa.Table:
    """The columns that a model reads, from a table that may have others."""
    texts = [column.name for column in columns if column.kind == "category"]
    return conformed(read_public(path, delimiter=delimiter, as_text=texts), columns)


# -- data sets by name -----------------------------------------------------------------------------------------------

Labelled = tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]
Reader = Callable[[Official, Path | None], tuple[Labelled, Labelled]]


def _cifar(label_bytes: int) -> Reader:
    return lambda official, root: read_cifar(official, root, label_bytes=label_bytes)


_IMAGES: dict[str, tuple[Official, Reader]] = {
    "mnist": (files.MNIST, read_idx),
    "fashion_mnist": (files.FASHION_MNIST, read_idx),
    "kmnist": (files.KMNIST, read_idx),
    "cifar10": (files.CIFAR10, _cifar(1)),
    "cifar100": (files.CIFAR100, _cifar(2)),
    "cinic10": (files.CINIC10, read_folders),
}
NAMES = ("adult", *_IMAGES)


def named_source(name: str) -> Source:
    """A data set by name: pictures found through $LABELDP_DATA, or the bundled Adult table."""
    if name == "adult":
        return table_source(adult_path(), "income", ADULT_CLASSES, test=adult_path("test"))
    official, reader = _IMAGES[name]
    try:
        train, test = (_images(part, len(official.classes)) for part in reader(official, None))
    except MissingDataError as error:
        raise TableError(str(error)) from None
    return Source(name, "", official.classes, train, test, None)


def new_images(name: str) -> npt.NDArray[np.uint8]:
    """The test pictures of a data set."""
    return np.asarray(named_source(name).test.features)  # type: ignore[union-attr]


def _images(part: Labelled, num_classes: int) -> Rows:
    images, labels = part
    return Rows(images, OwnLabels(np.asarray(labels, dtype=np.int64), num_classes))
