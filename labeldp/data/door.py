"""Let labels in by the one door: features come out open, labels come out sealed in a vault.

    read           a table, or a data set by name: public features, a vault, and what the columns are
    seal_column    one column of a file, and nothing else of it
    seal_classes   classes in memory
    seal_or_take   classes in memory, or responses that were released before, which hold no label
    seal_numbers   numbers in memory
    read_columns   the public columns alone, and how each is read; no label
    read_open      a public table to measure with: its labels are `OpenLabels`, which no vault and no estimator takes
    open_column    the labels of such a table

Outside of `labeldp.data`, `labeldp.core` and `labeldp.mechanisms` no training label is ever open. No message quotes a
label: errors give counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.data.columns import conformed, open_table, public_names, read_like, read_one, read_public
from labeldp.data.csv import CsvTable
from labeldp.data.files import ADULT_CLASSES, MissingDataError, adult_path
from labeldp.data.kinds import Column, Reading, kept_columns, readings_of
from labeldp.data.labels import (
    OBSERVED,
    as_array,
    as_codes,
    as_numbers,
    checked_classes,
    column_numbers,
    declared_by_type,
)
from labeldp.data.open_rows import Features, OpenLabels, OpenRows, same_file
from labeldp.data.parquet import ParquetFolder
from labeldp.data.released import ReleasedLabels
from labeldp.data.request import TableError, column_advice, declared_classes, refusing, usable
from labeldp.data.stored import MANY_CELLS, StoredTable, is_big, read_sample
from labeldp.mechanisms.users import UserVault
from labeldp.mechanisms.values import Grid, ValueVault
from labeldp.releases import NoisyLabels

if TYPE_CHECKING:
    from labeldp.data.own_images import ImageFormat

# Data sets that `read` knows by name.
NAMES = ("adult", "mnist", "fashion_mnist", "kmnist", "cifar10", "cifar100", "cinic10")
# Numbers between declared bounds are rounded to so many levels.
LEVELS = 256


@dataclass(frozen=True, eq=False, repr=False)
class PrivateData:
    """Public features, their labels in a vault, and what is declared about both.

    Args:
        name: for people.
        label: the secret column; empty for images.
        features: public, one row per label: a table, or images (n, channels, height, width).
        vault: the labels; or responses that were released before, where that is all there is (`read_released`).
        classes: as declared, or as published; empty where the label is a number.
        bounds: of a label that is a number, as declared; None for classes.
        columns: of a table; None for images.
        test: public rows to measure with, where there are some.
        ids: of the rows, as texts, where a column of them was named.
        readings: how each public column was read, those that were set aside included.
        note: what else is to be known of how the file was read; empty where nothing is.
        images: how images were read from files; None for tables and named data sets.
    """

    name: str
    label: str
    features: Features | StoredTable
    vault: LabelVault | ReleasedLabels
    classes: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None
    columns: tuple[Column, ...] | None = None
    test: OpenRows | None = None
    ids: tuple[str, ...] | None = field(default=None, repr=False)
    readings: tuple[Reading, ...] = ()
    note: str = ""
    images: ImageFormat | None = None

    def __len__(self) -> int:
        return len(self.vault)

    def __repr__(self) -> str:
        return f"PrivateData({self.name!r}, {len(self)} rows, labels sealed)"

    @property
    def described(self) -> tuple[str, ...]:
        """Return the features in a few words."""
        if self.columns is not None:
            return tuple(column.name for column in self.columns)
        return (" × ".join(map(str, self.features.shape[1:])) + " pixels",)


@dataclass(frozen=True, eq=False)
class PublicColumns:
    """The public columns of a table as a model takes them, how each was read, and a note on how the file was."""

    features: pa.Table | StoredTable = field(repr=False)
    columns: tuple[Column, ...]
    readings: tuple[Reading, ...]
    note: str = ""


@refusing
def read(
    table: Path | str,
    label: str | None = None,
    classes: Sequence[str] = (),
    *,
    bounds: tuple[float, float] | None = None,
    users: str | None = None,
    ids: str | None = None,
    drop: Sequence[str] = (),
    number: Sequence[str] = (),
    category: Sequence[str] = (),
    text: Sequence[str] = (),
    date: Sequence[str] = (),
    image: str | None = None,
    side: int | None = None,
    delimiter: str | None = None,
    test: Path | str | None = None,
    rng: SecureRandom | None = None,
    report: Callable[[int], None] | None = None,
) -> PrivateData:
    """Read public features and seal their labels.

    A CSV file is read twice: once for the features, by Arrow, and once for the labels, by a scanner that reads no
    other cell and whose messages quote none. A Parquet file is read column by column.

    Args:
        table: a Parquet or CSV file; or the name of a data set (NAMES), which knows its label and classes itself; or
            without a label, a folder with one folder of images for each class (`labeldp.data.read_images`).
        label: the secret column.
        classes: all values that a label can have. Declared, never read off the data: which occur is private.
        bounds: instead of classes, the range of a label that is a number.
        users: a column that says whose each row is; the vault then protects all labels of a user together.
        ids: a public column by which rows are known again, in a test table and in a budget store; it is no feature.
        drop: columns that are not features.
        number, category, text, date: columns to be read as these, whatever their cells look like.
        image: a column of images, which alone are then the features; see `read_images`, also for `side`.
        delimiter: of CSV files; when None, a tab for `.tsv` and a comma otherwise, or what the header is divided by.
        test: a table like the first whose labels are public. Rows that are trained on are left out of it, and a table
            made of them is refused; see `labeldp.data.open_rows`.
        rng: the vault's noise; operating-system entropy when None.
        report: gets how many rows of a big table were read so far.

    Raises:
        TableError: with one sentence, which quotes no label.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "t.csv"
    >>> _ = path.write_text("age,income\\n31,low\\n57,high\\n")
    >>> data = read(path, "income", ["low", "high"])
    >>> data, data.vault, data.features.column_names
    (PrivateData('t.csv', 2 rows, labels sealed), LabelVault(2 labels, num_classes=2, budget=None), ['age'])
    """
    path, kinds = Path(table), {"number": number, "category": category, "text": text, "date": date}
    if image is not None or (label is None and path.is_dir()):
        from labeldp.data.own_images import read_images

        idle = [name for name, names in {"drop": drop, **kinds}.items() if names]
        if idle:
            raise TableError(f"{' and '.join(idle)} mean nothing with images, which alone are the features")
        own: dict[str, Any] = {"image": image, "side": side, "bounds": bounds, "users": users, "ids": ids}
        return read_images(path, label, classes, **own, delimiter=delimiter, test=test, rng=rng, report=report)
    if side is not None:
        raise TableError(f"side={side} is for images; name their column as well (image)")
    if label is None:
        return _named(str(table), rng)
    _check_declared(classes, bounds)
    seal = partial(seal_column, path, label, classes, bounds=bounds, users=users, delimiter=delimiter, rng=rng)
    return beside(
        path, label, classes, seal, bounds,
        users=users, ids=ids, drop=drop, kinds=kinds, delimiter=delimiter, test=test, report=report,
    )  # fmt: skip


def beside(
    path: Path,
    label: str,
    classes: Sequence[str],
    labels: Callable[[], LabelVault | ReleasedLabels],
    bounds: tuple[float, float] | None = None,
    *,
    users: str | None,
    ids: str | None,
    drop: Sequence[str],
    kinds: Mapping[str, Sequence[str]],
    delimiter: str | None,
    test: Path | str | None,
    report: Callable[[int], None] | None = None,
    apart: bool = False,
) -> PrivateData:
    """Read the public features of a table, and then its labels, which are sealed or were released before.

    `kinds` are columns to be read as numbers, categories, text or dates; where labels lie `apart`, in another table or
    process, the table has no such column. Other arguments are those of `read`.
    """
    if label in (users, ids):
        raise TableError(f"the label {label!r} cannot say whose or which a row is; name a public column for that")
    with _about(path):
        if apart and label in open_table(path, delimiter).names:
            raise TableError(f"the table has a column {label!r}, which is the label and lies elsewhere; take it out")
        how: dict[str, Any] = {**kinds, "delimiter": delimiter, "report": report}
        public = read_columns(path, None if apart else label, users=users, ids=ids, drop=drop, **how)
        features, columns, vault = public.features, public.columns, labels()
        if len(vault) != len(features):
            raise TableError(
                f"{path.name} has {len(vault)} labels in {len(features)} rows; remove blank lines, and check the quotes"
            )
        known = None if ids is None else read_ids(path, ids, delimiter)
    opened = None
    if test is not None:
        if same_file(path, Path(test)):
            raise TableError(
                f"test={str(test)!r} holds the rows that are trained on, and their labels are secret; leave it out, or "
                "give other rows, whose labels are public"
            )
        with _about(Path(test), "test"):
            rows, both = read_open(Path(test), label, classes, columns, delimiter), None
            if ids is not None and ids in open_table(Path(test), delimiter).names:
                both = read_ids(Path(test), ids, delimiter), known
        opened = rows.without_training_rows(features, both)
    found = {"readings": public.readings, "note": public.note}
    return PrivateData(path.name, label, features, vault, tuple(classes), bounds, columns, opened, known, **found)


@refusing
def read_columns(
    table: Path | str,
    label: str | None,
    *,
    users: str | None = None,
    ids: str | None = None,
    drop: Sequence[str] = (),
    number: Sequence[str] = (),
    category: Sequence[str] = (),
    text: Sequence[str] = (),
    date: Sequence[str] = (),
    delimiter: str | None = None,
    report: Callable[[int], None] | None = None,
) -> PublicColumns:
    """Read all columns of a file but the label, if it has one, and say how each was read; arguments as for `read`.

    >>> found = read_columns(adult_path(), "income")
    >>> [(one.name, one.read_as, one.missing, one.distinct) for one in found.readings[:2]]
    [('age', 'number', 0.0, 73), ('workclass', 'category', 0.0, 9)]
    """
    path, kinds = Path(table), {"number": number, "category": category, "text": text, "date": date}
    with _about(path):
        source = open_table(path, delimiter)
        _check_named(path, source.names, label, {"drop": drop, **kinds})
        without = dict.fromkeys((*(name for name in (label, users, ids) if name is not None), *drop))
        if isinstance(source, ParquetFolder) and label is not None:
            source.check_label(label)
        wanted = {name: kind for kind, names in kinds.items() for name in names}
        rows = source.lines(MANY_CELLS) if isinstance(source, CsvTable) else source.num_rows
        sampled = is_big(rows, len(source.names) - len(without))
        if sampled:
            names = public_names(path, source.names, tuple(without))
            public, types, rows = read_sample(
                source, names, (*category, *text, *date), report=report or (lambda _: None)
            )
        else:
            public, types = read_public(path, tuple(without), delimiter, (*category, *text, *date)), {}
        readings = readings_of(public, wanted, rows if sampled else None)
        columns = kept_columns(readings)
        features: Any = conformed(public, columns, strays=True)
        if sampled:
            features = StoredTable(source, columns, features, types, rows)
    reasons = {users: "says whose a row is", ids: "says which a row is"}
    aside = (Reading(name, "left out", note=reasons.get(name, "as requested")) for name in without if name != label)
    shown = source.delimiter.decode() if isinstance(source, CsvTable) and source.sniffed else ""
    note = f"{path.name} was read with {shown!r} as delimiter." if shown else ""
    if sampled:
        drawn = f"How columns are read was found on {len(public):,} of {rows:,} rows, drawn at random."
        note = f"{note} {drawn}".strip()
    return PublicColumns(features, columns, (*readings, *aside), note)


def columns_of(public: pa.Table, kinds: Mapping[str, Sequence[str]], rows: int | None = None) -> PublicColumns:
    """Say how each column of a table without labels is read; `kinds` are columns to be read as these.

    `rows` is how many there are where the table is a random part of them.
    """
    wanted = {name: kind for kind, names in kinds.items() for name in names}
    readings = readings_of(public, wanted, rows if rows != len(public) else None)
    columns = kept_columns(readings)
    return PublicColumns(conformed(public, columns, strays=True), columns, readings)


def _check_named(path: Path, names: list[str], label: str | None, given: dict[str, Sequence[str]]) -> None:
    """Raise TableError where an argument names a column that is not there, is the label, or was named before."""
    before: dict[str, str] = {}
    for argument, columns in given.items():
        for name in columns:
            if name == label:
                raise TableError(f"{argument} names {name!r}, which is the label and is never a feature; leave it out")
            if name not in names:
                raise TableError(
                    f"{argument} names {name!r}, which is no column of {path.name}; {column_advice(name, names)}"
                )
            if before.setdefault(name, argument) != argument:
                raise TableError(f"{before[name]} and {argument} both name {name!r}; leave it out of one of them")


@contextmanager
def _about(path: Path, argument: str = "") -> Iterator[None]:
    """Let refusals begin with the file they are about, and the argument that names it, unless they say so anyway."""
    what = f"{argument}={str(path)!r}" if argument else path.name
    try:
        yield
    except TableError as error:
        said = str(error)
        if what in said:
            raise
        if repr(str(path)) in said:
            raise TableError(said.replace(repr(str(path)), what, 1)) from None
        raise TableError(f"{what}: {said.removeprefix(f'{path.name}: ')}") from None


def read_ids(path: Path, column: str, delimiter: str | None = None) -> tuple[str, ...]:
    """Return the public ids in this column, of rows or of users, one text per row; TableError where some are missing.

    In a CSV file an id is the text that stands there, in a Parquet file its value written as text.
    """
    try:
        found = read_one(path, column, delimiter).cast(pa.string()).to_pylist()
    except pa.ArrowException:
        raise TableError(f"the column {column!r} of {path.name} holds no ids: it cannot be written as text") from None
    missing = found.count("") + found.count(None)
    if missing:
        raise TableError(
            f"the column {column!r} of {path.name} is empty in {missing} of {len(found)} rows; name a column that has "
            "an id in every row"
        )
    return tuple(found)


def _named(name: str, rng: SecureRandom | None) -> PrivateData:
    """Read a data set by name: images found through $LABELDP_DATA, or the bundled Adult table."""
    if name == "adult":
        return read(adult_path(), "income", ADULT_CLASSES, test=adult_path("test"), rng=rng)
    from labeldp.data import benchmarks

    if name not in NAMES:
        raise TableError(f"table={name!r} is not one of the data sets {', '.join(NAMES)}; for a file, name its label")
    try:
        found = benchmarks.load(name, rng=rng)
    except MissingDataError as error:
        raise TableError(str(error)) from None
    opened = OpenRows(found.test, found.test_labels).without_training_rows(found.train)
    return PrivateData(name, "", found.train, found.vault, found.classes, test=opened)


@refusing
def read_open(
    path: Path, label: str, classes: Sequence[str], columns: Sequence[Column], delimiter: str | None = None
) -> OpenRows:
    """Read a table like the one trained on, whose labels are public: numbers where there are no classes."""
    features, _ = read_like(path, columns, delimiter)
    return OpenRows(features, OpenLabels(open_column(path, label, classes, delimiter)))


def open_column(path: Path, label: str, classes: Sequence[str], delimiter: str | None = None) -> npt.NDArray[Any]:
    """Return the labels of a public table: numbers of the classes, or numbers where there are none."""
    return _class_column(path, label, classes, delimiter) if classes else _number_column(path, label, delimiter)


@refusing
def seal_column(
    path: Path,
    label: str,
    classes: Iterable[object] = (),
    *,
    bounds: tuple[float, float] | None = None,
    users: str | None = None,
    delimiter: str | None = None,
    rng: SecureRandom | None = None,
    rows: npt.NDArray[np.intp] | None = None,
) -> LabelVault:
    """Seal one column of a Parquet or CSV file; arguments as for `read`. No feature is read.

    `rows` names some rows of the file, and their order; all when None.

    >>> seal_column(adult_path(), "income", ADULT_CLASSES)
    LabelVault(32561 labels, num_classes=2, budget=None)
    """
    names = tuple(str(name) for name in classes)
    _check_declared(names, bounds)
    if bounds is not None:
        if users is not None:
            raise TableError(f"users={users!r} cannot be used with bounds: numbers are protected one by one")
        numbers = _number_column(path, label, delimiter)
        return seal_numbers(numbers if rows is None else numbers[rows], bounds, rng=rng)
    codes = _class_column(path, label, names, delimiter)
    codes = codes if rows is None else codes[rows]
    if users is None:
        return LabelVault(codes, len(names), rng=rng)
    if users == label:
        raise TableError(f"users={users!r} is the label itself; name the column that says whose each row is")
    whose = read_ids(path, users, delimiter)
    return UserVault(codes, whose if rows is None else [whose[row] for row in rows], len(names), rng=rng)


def seal_or_take(
    y: Any, classes: Any, name: str, users: Any = None
) -> tuple[npt.NDArray[Any], LabelVault | ReleasedLabels]:
    """Take responses that were released before, `NoisyLabels` or `ReleasedLabels`, as they are; seal anything else.

    Arguments are those of `seal_classes`; of responses class c is `classes[c]`, too.

    >>> from labeldp import RandomizedResponse
    >>> noisy = LabelVault([0, 1], num_classes=2).release(RandomizedResponse(1.0, 2))
    >>> seal_or_take(noisy, ["no", "yes"], "the example")
    (array(['no', 'yes'], dtype='<U3'), ReleasedLabels(2 responses, num_classes=2, epsilon=1.0))
    """
    if not isinstance(y, (NoisyLabels, ReleasedLabels)):
        return seal_classes(y, classes, name, users)
    released = ReleasedLabels(y) if isinstance(y, NoisyLabels) else y
    if users is not None:
        raise ValueError("users is given with responses that were released before; leave it out")
    return _classes_of(released, classes), released


def _classes_of(vault: LabelVault | ReleasedLabels, classes: Any) -> npt.NDArray[Any]:
    """Return the list of classes, of which the vault declared how many there are."""
    unnamed = classes is None or (isinstance(classes, str) and classes == OBSERVED)
    known = checked_classes(range(vault.num_classes) if unnamed else classes)
    if len(known) != vault.num_classes:
        raise ValueError(f"classes names {len(known)} classes and the vault has {vault.num_classes}; declare the same")
    return known


def seal_classes(y: Any, classes: Any, name: str, users: Any = None) -> tuple[npt.NDArray[Any], LabelVault]:
    """Seal classes that are held in memory; return their list and the vault. A vault passes unopened.

    Args:
        y: one class per row: a list, NumPy array, Series, Arrow column or tensor; or a vault.
        classes: the list of classes, in any order; None where the type of y declares it (pandas categories, a polars
            Enum, an Arrow dictionary, true/false); "observed" declares that those which occur are public. The vault's
            certificates state the last two. For a vault, class c is `classes[c]`.
        name: who asks, for messages.
        users: whose each row is; the vault then protects all labels of a user together.

    >>> seal_classes(["no", "yes", "no"], ["yes", "no"], "the example")
    (array(['no', 'yes'], dtype='<U3'), LabelVault(3 labels, num_classes=2, budget=None))
    """
    observed = isinstance(classes, str) and classes == OBSERVED
    if isinstance(y, LabelVault):
        if users is not None:
            raise ValueError("users is given with a vault, which knows whose its labels are; leave it out")
        return _classes_of(y, classes), y
    raw = as_array(y, name)
    found = declared_by_type(y) if classes is None else classes
    if found is None:
        raise ValueError(
            f"classes is not given to {name}, and is not read off the labels: which classes occur is private. If a "
            "label can be no or yes, write classes=['no', 'yes']; or give y a type that declares its values (pandas "
            'categories, a polars Enum, an Arrow dictionary, true/false); or write classes="observed" where the list '
            "is public anyway, which the certificate then states"
        )
    known, codes = as_codes(raw, found)
    vault = LabelVault(codes, len(known)) if users is None else UserVault(codes, users, len(known))
    if observed:
        vault.assume("The list of classes was read off the labels and declared public: it is not protected.")
    elif classes is None and known.dtype.kind != "b":
        # A frame's `astype("category")` makes such a type from the labels, and nothing tells it from a declared one.
        vault.assume(
            "The list of classes is that of the type of the labels and was declared public: where the type was made "
            "from the labels, which classes occur is not protected."
        )
    return known, vault


def seal_numbers(y: Any, bounds: Any, *, name: str = "seal_numbers", rng: SecureRandom | None = None) -> ValueVault:
    """Seal numbers that are held in memory, clipped to `bounds` and rounded to LEVELS levels. A vault passes unopened.

    >>> seal_numbers([0.0, 50.0, 1e9], (0, 100))
    ValueVault(3 labels, Grid(low=-1.0, high=1.0, levels=256), budget=None)
    """
    grid = grid_of(bounds)
    if not isinstance(y, LabelVault):
        return ValueVault(scaled(as_numbers(as_array(y, name)), bounds), grid, rng=rng)
    if not isinstance(y, ValueVault) or y.grid != grid:
        raise ValueError(f"y is {y!r}, which holds no numbers of {name}'s; seal them with labeldp.data.seal_numbers")
    return y


def grid_of(bounds: Any) -> Grid:
    """Return the levels that numbers between these bounds are rounded to, when the bounds lie at −1 and 1."""
    try:
        low, high = bounds
        Grid(low, high, LEVELS)
    except TypeError:
        raise ValueError(f"bounds={bounds!r} is not a range; give (low, high), two numbers") from None
    return Grid(-1.0, 1.0, LEVELS)


def scaled(numbers: npt.NDArray[np.float64], bounds: tuple[float, float]) -> npt.NDArray[np.float64]:
    """Return the numbers in units where the bounds are −1 and 1."""
    low, high = map(float, bounds)
    return 2 * (numbers - low) / (high - low) - 1


def open_labels(y: Any, name: str) -> npt.NDArray[Any]:
    """Return labels to measure with, (n,), which must be declared public: `OpenLabels`."""
    if not isinstance(y, OpenLabels):
        raise TypeError(
            f"score compares with labels openly, so y must be declared public, and is a {type(y).__name__}: write "
            "score(X, OpenLabels(y)), with OpenLabels from labeldp.data. Secret labels are compared by "
            "labeldp.estimator.select, which pays for it"
        )
    return as_array(y.values, name)


def _class_column(
    path: Path, label: str, classes: Iterable[object], delimiter: str | None
) -> npt.NDArray[np.signedinteger[Any]]:
    """Return the class number of every row; TableError, with counts only, if one is missing or undeclared."""
    names = declared_classes(label, classes)
    return np.concatenate([np.empty(0, np.int64), *usable(open_table(path, delimiter).codes(label, names), names)])


def _number_column(path: Path, label: str, delimiter: str | None) -> npt.NDArray[np.float64]:
    """Return the number of every row; TableError, with counts only, if one is missing or none."""
    if isinstance(source := open_table(path, delimiter), ParquetFolder):
        source.check_label(label)
    found = column_numbers(read_one(path, label, delimiter), label)
    unusable = int(np.count_nonzero(~np.isfinite(found)))
    if unusable:
        raise TableError(
            f"of the {len(found)} labels in {path.name}, {unusable} are missing, infinite or not numbers; which ones "
            "is not shown because it is private. Drop or fill them by a rule fixed in advance, or declare --classes "
            "and leave out --task regression where the label is no number"
        )
    if not len(found):
        raise TableError(f"{path.name} has no rows; give a table with some")
    return found


def _check_declared(classes: Sequence[str], bounds: tuple[float, float] | None) -> None:
    if bool(classes) == (bounds is not None):
        raise TableError(f"classes={classes!r} and bounds={bounds!r}: give the classes, or bounds for numbers")
