"""Find out how each public column is read, from its type and its values, and say so before anything is spent.

    number     floats; a missing one is NaN              (numbers, decimals, booleans; times and durations in seconds)
    date       seconds since 1970                        (dates and timestamps)
    category   text; a missing one is a value too        (text, dictionaries)
    text       sentences, of which the words count       (text of many different values, several words each)
    vector     several numbers: a list of fixed size     (embeddings, in files)

A column of text whose cells are nearly all numbers, or nearly all dates, is one of those: what else stands there is
missing, and the report says what it was. A column that tells rows apart (an id) or that holds one value is set aside.
Whatever is found can be overruled by name. The label is never among these columns: nothing here could be about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from labeldp.data.labels import pc
from labeldp.data.request import TableError

KINDS = ("number", "category", "text", "date")
# Cells that stand for nothing, in any case; Arrow knows some of them in columns that are numbers throughout.
ABSENT = frozenset(
    {"?", "-", "--", "–", ".", "..", "na", "n/a", "n.a.", "#n/a", "nan", "nil", "null", "none", "missing", "unknown"}
)
# So much of a column's cells must be numbers, or dates, for the others to be slips.
_NEARLY_ALL = 0.95
# Fewer rows cannot show that a column tells rows apart, nor fewer values that they are sentences.
_ID_ROWS, _TEXT_VALUES, _TEXT_WORDS = 100, 64, 3.0
_MOST_STRAYS = 100
_ID_NAME = re.compile(r"(?i:(^|[_\s.-])(id|ids|uuid|guid|index|rowid)$)|[a-z](Id|ID)$|^Unnamed: 0$")
_IMAGE = r"(?i)\.(png|jpe?g|gif|bmp|tiff?|webp)$"
# By decimal sign: digits with or without groups of three, a fraction, an exponent.
_NUMBER = {
    sign: rf"^[+-]?(\d+|\d{{1,3}}({re.escape(group)}\d{{3}})+)({re.escape(sign)}\d*)?([eE][+-]?\d+)?$"
    rf"|^[+-]?{re.escape(sign)}\d+([eE][+-]?\d+)?$"
    for sign, group in ((".", ","), (",", "."))
}
_DAY = r"(?P<day>\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4})"
_DATE = rf"^{_DAY}(?P<time>[T ]\d{{1,2}}:\d\d(?:(?::\d\d)(?:\.\d+)?)?)?Z?$"
DATE_FORMATS = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")


@dataclass(frozen=True)
class Column:
    """A public column as a model reads it.

    Args:
        name, kind: see above.
        size: how many numbers a vector has.
        decimal: of numbers that are written as text.
        format: of dates that are written as text, as strptime has it; empty for others.
        absent: what stood in cells for missing numbers or dates, besides the usual (`ABSENT`).
        missing: the category that a cell without one is.
    """

    name: str
    kind: str
    size: int = 1
    decimal: str = "."
    format: str = ""
    absent: tuple[str, ...] = ()
    missing: str = ""

    @property
    def as_text(self) -> bool:
        """Return whether a CSV file's cells are taken as they are written, whatever they look like."""
        return self.kind in ("category", "text") or self.decimal != "." or bool(self.format)

    def to_json(self) -> dict[str, Any]:
        """Return plain values; how text is written only where it matters."""
        usual = {"decimal": ".", "format": "", "absent": (), "missing": ""}
        return {name: value for name, value in asdict(self).items() if usual.get(name) != value}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Column:
        """Return the column of plain values."""
        return cls(**{**fields, "absent": tuple(fields.get("absent", ()))})


@dataclass(frozen=True)
class Reading:
    """How a public column was read.

    Args:
        name: of the column.
        read_as: its kind; "id" or "constant" where it was set aside, "left out" where that was requested.
        missing: the share of cells in which nothing is known; None where it was not read.
        distinct: how many values there are, missing ones left out; None where they were not counted.
        note: what else was found, in words.
        column: for a model; None where there is nothing for it.
    """

    name: str
    read_as: str
    missing: float | None = None
    distinct: int | None = None
    note: str = ""
    column: Column | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what a report shows, as plain values."""
        share = None if self.missing is None else round(self.missing, 6)
        return {
            "name": self.name,
            "read_as": self.read_as,
            "missing": share,
            "distinct": self.distinct,
            "note": self.note,
        }


def kind_of(name: str, kind: pa.DataType) -> str:
    """Decide by its type how a column is read: "number", "date", "category" or "vector"; refuse what no model reads.

    >>> kind_of("when", pa.date32()), kind_of("who", pa.string()), kind_of("face", pa.list_(pa.float32(), 64))
    ('date', 'category', 'vector')
    """
    plain = kind.value_type if types.is_dictionary(kind) else kind
    if _is_number(plain):
        return "date" if types.is_date(plain) or types.is_timestamp(plain) else "number"
    # A column without any value is a category that is always missing.
    if is_text(plain) or types.is_null(plain):
        return "category"
    if types.is_fixed_size_list(plain) and _is_number(plain.value_type):
        return "vector"
    if types.is_binary(plain) or types.is_large_binary(plain):
        raise TableError(
            f"column {name!r} is not UTF-8 text; save the file as UTF-8, learn from the column with --image {name} if "
            "it holds images, or leave it out with --drop"
        )
    raise TableError(
        f"column {name!r} holds {kind}, which no model reads; give numbers, text, dates or true/false, or leave it out "
        "with --drop"
    )


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds text."""
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def is_prose(distinct: int, words: float) -> bool:
    """Return whether a column of text with so many values, of so many words on average, is read for its words."""
    return distinct > _TEXT_VALUES and words >= _TEXT_WORDS


def _is_number(kind: pa.DataType) -> bool:
    plain = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)
    return plain or (types.is_temporal(kind) and not types.is_interval(kind))


# -- numbers and dates that are written as text ------------------------------------------------------------------------


def written_numbers(texts: Any, decimal: str) -> npt.NDArray[np.float64]:
    """Return the numbers that texts without spaces around them are, NaN where one is none.

    >>> written_numbers(pa.array(["1.5", "-2e3", "1,234", "?"]), "."), written_numbers(pa.array(["3,14"]), ",")
    (array([ 1.500e+00, -2.000e+03,  1.234e+03,        nan]), array([3.14]))
    """
    plain = pc.if_else(pc.match_substring_regex(texts, _NUMBER[decimal]), texts, None)
    plain = pc.replace_substring(plain, "," if decimal == "." else ".", "")
    plain = pc.replace_substring_regex(pc.replace_substring(plain, ",", "."), r"^\+", "")
    return np.array([np.nan if text is None else float(text) for text in plain.to_pylist()], dtype=np.float64)


def written_dates(texts: Any, format: str) -> npt.NDArray[np.float64]:
    """Return seconds since 1970 of texts that are dates of this format, with or without a time; NaN for others.

    >>> written_dates(pa.array(["02.01.1970", "01.01.1970 00:01", "soon"]), "%d.%m.%Y").tolist()
    [86400.0, 60.0, nan]
    """
    parts = pc.extract_regex(texts, _DATE)
    day, time = pc.struct_field(parts, "day"), pc.utf8_ltrim(pc.struct_field(parts, "time"), "T ")
    time = pc.replace_substring_regex(pc.if_else(pc.equal(time, ""), "00:00:00", time), r"\.\d+$", "")
    time = pc.replace_substring_regex(time, r"^(\d+:\d+)$", r"\1:00")
    joined = pc.binary_join_element_wise(day, time, pa.scalar(" ", day.type))
    found = pc.strptime(joined, format=f"{format} %H:%M:%S", unit="s", error_is_null=True)
    return np.asarray(found.cast(pa.int64()).cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)


def best_format(texts: Any, counts: npt.NDArray[np.int64]) -> str:
    """Return the format by which most cells are dates; of equal ones the first, which puts the day before the month."""
    return max(DATE_FORMATS, key=lambda one: int(counts[~np.isnan(written_dates(texts, one))].sum()))


# -- how columns are read ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cells:
    """The different texts of a column, trimmed, and how often each occurs."""

    texts: Any
    counts: npt.NDArray[np.int64]
    rows: int

    @classmethod
    def of(cls, values: Any) -> _Cells:
        plain = pc.utf8_trim_whitespace(values.cast(pa.large_string()))
        found = pc.value_counts(plain.combine_chunks() if isinstance(plain, pa.ChunkedArray) else plain)
        texts, counts = found.field("values"), np.asarray(found.field("counts"), dtype=np.int64)
        filled = np.array([text not in (None, "") for text in texts.to_pylist()], dtype=bool)
        return cls(texts.filter(pa.array(filled)), counts[filled], len(values))

    @cached_property
    def absent(self) -> npt.NDArray[np.bool_]:
        """Return which texts stand for nothing."""
        return np.array([text.casefold() in ABSENT for text in self.texts.to_pylist()], dtype=bool)

    def share(self, which: npt.NDArray[np.bool_]) -> float:
        """Return the share of these among the cells that say something."""
        said = int(self.counts[~self.absent].sum())
        return float(self.counts[which & ~self.absent].sum() / said) if said else 0.0

    def matching(self, pattern: str) -> npt.NDArray[np.bool_]:
        return np.asarray(pc.match_substring_regex(self.texts, pattern).to_pylist(), dtype=bool)

    def words(self) -> float:
        """Return the mean number of words in a cell that is not empty."""
        found = np.asarray(pc.count_substring_regex(self.texts, r"\S+").to_pylist(), dtype=np.float64)
        return float(found @ self.counts / max(int(self.counts.sum()), 1))

    def strays(self, fits: npt.NDArray[np.bool_]) -> tuple[str, ...]:
        """Return texts that do not fit, the usual words for nothing left out; as many as a model can well keep."""
        return tuple(pc.cast(self.texts.filter(pa.array(~fits & ~self.absent)), pa.string()).to_pylist()[:_MOST_STRAYS])

    def named(self, which: npt.NDArray[np.bool_], most: int = 3) -> str:
        """Return these texts, the most frequent first, for people."""
        order = np.argsort(-self.counts, kind="stable")
        places = [int(place) for place in order if which[place]]
        shown = ", ".join(f"{str(self.texts[place])[:24]!r} ({self.counts[place]:,})" for place in places[:most])
        return shown + (f" and {len(places) - most:,} others" if len(places) > most else "")


def readings_of(
    table: pa.Table, declared: Mapping[str, str] | None = None, of: int | None = None
) -> tuple[Reading, ...]:
    """Return how each column of a public table is read; `declared` are kinds by name, which go before what is found.

    Where the table is a random part of one that has more rows, `of` says how many.
    """
    wanted = declared or {}
    fields = zip(table.schema, table.columns, strict=True)
    return tuple(_reading(field, values, wanted.get(field.name), of) for field, values in fields)


def _reading(field: pa.Field, values: Any, wanted: str | None, of: int | None) -> Reading:
    name, kind, rows = field.name, kind_of(field.name, field.type), max(len(values), 1)
    if kind == "vector":
        if wanted is not None:
            raise TableError(f"{wanted} names {name!r}, which holds lists of numbers and is read as them; leave it out")
        note = f"{field.type.list_size} numbers"
        return Reading(name, kind, values.null_count / rows, None, note, Column(name, kind, field.type.list_size))
    if types.is_dictionary(field.type):
        values = values.cast(field.type.value_type)
    different = pc.unique(values)
    distinct = len(different) - different.null_count
    if len(different) < 2:
        empty = distinct == 0 or different.to_pylist() == [""]
        return Reading(name, "constant", float(empty), 0 if empty else distinct, "empty" if empty else "one value")
    if is_text(values.type):
        return _read_text(name, values, wanted)
    found = Reading(name, wanted or kind, values.null_count / rows, distinct, "", Column(name, wanted or kind))
    if wanted == "date" and kind != "date":
        raise TableError(f"date names {name!r}, which holds {values.type}; give dates, or text that is dates")
    if wanted is None and types.is_integer(values.type) and _tells_rows_apart(name, values, distinct, of):
        return Reading(name, "id", found.missing, distinct, "tells rows apart")
    return found


def _tells_rows_apart(name: str, values: Any, distinct: int, of: int | None) -> bool:
    """Return whether whole numbers are ids: by name and nearly all different, or the rows' numbers in any order.

    A random part of the numbers 0 … n − 1 spans nearly all of them, and none comes twice.
    """
    rows = len(values) - values.null_count
    if rows < _ID_ROWS:
        return False
    ends = pc.min_max(values).as_py()
    span = ends["max"] - ends["min"] + 1
    numbered = span == rows if of is None else 0.99 * of <= span <= of
    return (distinct == rows and numbered) or (_ID_NAME.search(name) is not None and distinct >= _NEARLY_ALL * rows)


def _read_text(name: str, values: Any, wanted: str | None) -> Reading:
    """Return how a column of text is read: as numbers or dates where it is nearly all of them, else by its words."""
    cells = _Cells.of(values)
    filled, distinct = int(cells.counts.sum()), len(cells.texts)
    empty = 1 - filled / cells.rows

    def parsed(kind: str, parse: Callable[[Any], npt.NDArray[np.float64]], how: str, like: Column) -> Reading:
        fits = ~np.isnan(parse(cells.texts))
        if not fits.any():
            raise TableError(f"{kind} names {name!r}, none of whose cells is a {kind}; leave it out")
        lost = int(cells.counts[~fits].sum())
        others = f"read as missing: {cells.named(~fits)}" if lost else ""
        share, note = empty + lost / cells.rows, "; ".join(part for part in (how, others) if part)
        return Reading(name, kind, share, int(fits.sum()), note, replace(like, absent=cells.strays(fits)))

    decimal = max(_NUMBER, key=lambda sign: cells.share(cells.matching(_NUMBER[sign])))
    numeric = cells.share(cells.matching(_NUMBER[decimal])) >= _NEARLY_ALL
    codes = cells.matching(r"^0\d").any()
    if wanted == "number" or (wanted is None and numeric and not codes):
        commas = cells.matching(",").any() or decimal == ","
        how = "" if not commas else "decimal commas" if decimal == "," else "commas between thousands"
        return parsed(
            "number", lambda texts: written_numbers(texts, decimal), how, Column(name, "number", decimal=decimal)
        )
    if wanted == "date" or (wanted is None and cells.share(cells.matching(_DATE)) >= _NEARLY_ALL):
        format = best_format(cells.texts, cells.counts)
        if wanted == "date" or cells.share(~np.isnan(written_dates(cells.texts, format))) >= _NEARLY_ALL:
            how = "as " + format.replace("%d", "DD").replace("%m", "MM").replace("%Y", "YYYY")
            turned = format.replace("%d", "%M").replace("%m", "%d").replace("%M", "%m")
            if turned in DATE_FORMATS and not np.isnan(written_dates(cells.texts, turned)).any():
                how += ", though the month may as well come first"
            return parsed("date", lambda texts: written_dates(texts, format), how, Column(name, "date", format=format))
    if wanted is None and cells.share(cells.matching(_IMAGE)) >= _NEARLY_ALL and filled:
        raise TableError(
            f"column {name!r} names image files; learn from these with --image {name}, or leave the column out with "
            "--drop"
        )
    words, named = cells.words(), _ID_NAME.search(name) is not None
    if wanted is None and filled >= _ID_ROWS and words < _TEXT_WORDS and distinct >= (0.8 if named else 0.95) * filled:
        return Reading(name, "id", empty, distinct, "tells rows apart")
    kind = wanted or ("text" if is_prose(distinct, words) else "category")
    # "none" may well be a category.
    absent = np.array([text.casefold() in ABSENT - {"none"} for text in cells.texts.to_pylist()], dtype=bool)
    note = f"kept as values: {cells.named(absent)}" if kind == "category" and absent.any() else ""
    note = "codes with leading zeros" if codes and numeric and not note else note
    return Reading(name, kind, empty, distinct, note, Column(name, kind))


def kept_columns(readings: Sequence[Reading]) -> tuple[Column, ...]:
    """Return what a model learns from, or raise TableError where nothing is left."""
    kept = tuple(reading.column for reading in readings if reading.column is not None)
    if not kept:
        aside = ", ".join(f"{one.name!r} ({one.note or one.read_as})" for one in readings[:8]) or "there is none"
        raise TableError(
            f"no public column says anything: {aside}; give at least one feature that varies, or say by --number or "
            "--category how one of these is to be read"
        )
    return kept
