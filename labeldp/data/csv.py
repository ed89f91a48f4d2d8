"""Read and write CSV and TSV: label cells are cut out and new ones spliced in; every other byte stays as it was.

Where records and fields begin and end is found without parsing the fields. The rules are those of RFC 4180, strictly:
a field either holds no quote at all, or starts and ends with one and doubles those inside. Records end with a line
feed, or a carriage return and a line feed. Then a byte lies inside quotes exactly when an odd number of quotes precedes
it, which numpy can tell for a whole block.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv
from pyarrow import types as kinds

from labeldp.data.kinds import written_dates
from labeldp.data.labels import arrow_bytes, arrow_numbers, arrow_pieces, numpy_numbers, pc, places_in
from labeldp.data.request import Codes, Report, Request, Sealer, TableError, check_prior, column_advice
from labeldp.releases import FloatArray, IntArray

BLOCK_BYTES = 2 << 20
MAX_RECORD_BYTES = 64 << 20
# Records that Arrow reads at once.
_ARROW_BYTES = 16 << 20
BOM = b"\xef\xbb\xbf"
_QUOTE, _NEWLINE, _RETURN = b'"'[0], b"\n"[0], b"\r"[0]
_NO_BYTES = arrow_bytes([b""])

Positions = npt.NDArray[np.intp]


# -- records and cells -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Header:
    """The first record: its raw bytes (byte order mark and line end included) and its cells, unquoted."""

    raw: bytes
    cells: tuple[bytes, ...]


@dataclass(frozen=True)
class Records:
    """Whole records. `ends` is (n, fields): the place of the delimiter or line feed that ends each field.

    `added` counts bytes at the end of `data` that are not in the file: the line feed a last record lacks.
    """

    data: bytes
    ends: Positions
    added: int = 0

    def __len__(self) -> int:
        return len(self.ends)

    def spans(self, column: int) -> tuple[Positions, Positions]:
        """Return start and end of this column's cell in every record, quotes included, line ends left out."""
        stops = self.ends[:, column]
        if column:
            starts = self.ends[:, column - 1] + 1
        else:
            starts = np.concatenate((np.zeros(1, np.intp), self.ends[:-1, -1] + 1))
        if column == self.ends.shape[1] - 1:
            before = np.frombuffer(self.data, np.uint8)[stops - 1]
            stops = stops - ((before == _RETURN) & (stops > starts))
        return starts, stops

    def cut(self, column: int) -> tuple[Any, Any]:
        """Return what lies around this column's cells (n + 1 pieces) and the cells themselves (n), as Arrow arrays."""
        starts, stops = self.spans(column)
        offsets = np.zeros(2 * len(starts) + 2, np.int64)
        offsets[1:-1:2], offsets[2:-1:2], offsets[-1] = starts, stops, len(self.data)
        pieces, places = arrow_pieces(self.data, offsets), np.arange(len(offsets) - 1)
        return pieces.take(arrow_numbers(places[0::2])), pieces.take(arrow_numbers(places[1::2]))


def read_header(file: IO[bytes], delimiter: bytes) -> Header:
    """Read the first record, from the start of a file."""
    data, start = b"", 0
    while chunk := file.read(1 << 16):
        data += chunk
        start = len(BOM) if data.startswith(BOM) else 0
        if data.startswith(b"PK\x03\x04"):
            raise TableError("the file is an Excel workbook or a ZIP archive, whatever its name says; save it as CSV")
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise TableError("the file is not UTF-8 text but UTF-16; convert it to UTF-8")
        separators = _separators(data[start:], delimiter[0], -1)
        ends = separators[np.frombuffer(data[start:], np.uint8)[separators] == _NEWLINE]
        if len(ends):
            data = data[: start + int(ends[0]) + 1]
            break
        _refuse_endless(data, -1)
    text = data[start:].rstrip(b"\r\n")
    _refuse_nul(text, -1)
    if not text:
        raise TableError("the file has no header; its first line must name the columns")
    _refuse_unclosed(text, -1)
    ends = [*_separators(text, delimiter[0], -1).tolist(), len(text)]
    cells = (text[a:b] for a, b in zip([0, *(end + 1 for end in ends)], ends, strict=False))
    return Header(data, tuple(c[1:-1].replace(b'""', b'"') if c[:1] == b'"' else c for c in cells))


def scan(file: IO[bytes], delimiter: bytes, fields: int, block_bytes: int = BLOCK_BYTES) -> Iterator[Records | bytes]:
    """Yield the records from here to the end of the file in blocks; last, as bytes, the blank lines that end it.

    Blank lines are allowed at the end of the file only. Whatever is yielded, put together, is the file.
    """
    row, rest = 0, b""
    while chunk := file.read(block_bytes):
        rest += chunk
        records = _complete_records(rest, delimiter[0], fields, row)
        if len(records):
            yield records
        elif len(rest) > MAX_RECORD_BYTES:
            _refuse_endless(rest, row)
        row += len(records)
        rest = rest[len(records.data) :]
    _refuse_unclosed(rest, row)
    last = rest.rstrip(b"\r\n")
    tail = rest[len(last) :]
    if tail.replace(b"\r\n", b"").strip(b"\n"):
        _refuse_row(row, "ends with a carriage return alone; convert the line ends to LF or CRLF")
    if last:
        whole = _complete_records(last + b"\n", delimiter[0], fields, row)
        yield Records(whole.data, whole.ends, added=1)
    yield tail


def _complete_records(data: bytes, delimiter: int, fields: int, row: int) -> Records:
    """Return the whole records at the start of `data`, less blank lines at their end (the file may end there)."""
    _refuse_nul(data, row)
    buffer, separators = np.frombuffer(data, np.uint8), _separators(data, delimiter, row)
    record_ends = np.flatnonzero(buffer[separators] == _NEWLINE)
    stops = separators[record_ends]
    sizes = np.diff(stops, prepend=-1) - 1
    blank = (sizes == 0) | ((sizes == 1) & (buffer[np.maximum(stops - 1, 0)] == _RETURN))
    filled = np.flatnonzero(~blank)
    if not len(filled):
        return Records(b"", np.empty((0, fields), np.intp))
    count = int(filled[-1]) + 1
    if len(filled) < count:
        _refuse_row(row + int(np.flatnonzero(blank)[0]), "is blank; remove it")
    found = np.diff(record_ends[:count], prepend=-1)
    wrong = np.flatnonzero(found != fields)
    if len(wrong):
        number = int(wrong[0])
        _refuse_row(row + number, f"has {found[number]} fields where the header has {fields}; mend the row")
    return Records(data[: int(stops[count - 1]) + 1], separators[: count * fields].reshape(count, fields))


def _separators(data: bytes, delimiter: int, row: int) -> Positions:
    """Return delimiters and line feeds outside quotes. Quotes and carriage returns out of place are refused."""
    buffer = np.frombuffer(data, np.uint8)
    special, quotes = (buffer == delimiter) | (buffer == _NEWLINE), np.empty(0, np.intp)
    if b'"' not in data:
        marks = np.flatnonzero(special)
    else:
        places = np.flatnonzero(special | (buffer == _QUOTE))
        is_quote = buffer[places] == _QUOTE
        # Only the parity counts, so the sum may wrap around.
        outside = np.cumsum(is_quote, dtype=np.uint8) & 1 == 0
        marks, quotes = places[outside & ~is_quote], places[is_quote]
        stray = _stray_quote(buffer, quotes, delimiter)
        if stray is not None:
            before = np.count_nonzero(buffer[marks[marks < stray]] == _NEWLINE)
            _refuse_row(row + int(before), "has a quote inside an unquoted field; quote the field")
    if b"\r" in data:
        returns = np.flatnonzero(buffer[:-1] == _RETURN)
        lone = returns[buffer[returns + 1] != _NEWLINE]
        lone = lone[np.searchsorted(quotes, lone) % 2 == 0]
        if len(lone):
            before = np.count_nonzero(buffer[marks[marks < lone[0]]] == _NEWLINE)
            wrong = "has a carriage return that ends no line; convert the line ends to LF or CRLF"
            _refuse_row(row + int(before), wrong)
    return marks


def _stray_quote(buffer: npt.NDArray[np.uint8], quotes: Positions, delimiter: int) -> int | None:
    """Return the first quote that neither opens nor closes a field nor is doubled inside one."""
    opening, closing = quotes[0::2], quotes[1::2]
    before = buffer[opening[opening > 0] - 1]
    # A closing quote at the very end of the block is judged when the next byte is there.
    inner = closing[closing + 1 < len(buffer)]
    after = buffer[inner + 1]
    bad_before = (before != delimiter) & (before != _NEWLINE) & (before != _QUOTE)
    bad_after = (after != delimiter) & (after != _NEWLINE) & (after != _QUOTE) & (after != _RETURN)
    stray = np.concatenate((opening[opening > 0][bad_before], inner[bad_after]))
    return int(stray.min()) if len(stray) else None


def _refuse_nul(data: bytes, row: int) -> None:
    if b"\0" in data:
        where = "the header" if row < 0 else f"data row {row + 1} or a later one"
        raise TableError(f"{where} holds a NUL byte: the file is not UTF-8 text (UTF-16 perhaps); convert it to UTF-8")


def _refuse_unclosed(data: bytes, row: int) -> None:
    if data.count(b'"') % 2:
        _refuse_row(row, "or a later one has a quote that is never closed; close it or double it")


def _refuse_endless(data: bytes, row: int) -> None:
    if len(data) > MAX_RECORD_BYTES:
        _refuse_row(row, f"is longer than {MAX_RECORD_BYTES >> 20} MiB; check for a quote that is never closed")


def _refuse_row(row: int, wrong: str) -> NoReturn:
    raise TableError(f"{'the header' if row < 0 else f'data row {row + 1}'} {wrong}")


# -- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CsvTable:
    """A delimited text file whose header has been read."""

    path: Path
    delimiter: bytes
    header: Header
    # Whether the delimiter is neither given nor the usual one.
    sniffed: bool = False

    @property
    def names(self) -> list[str]:
        """Return the names of all columns."""
        try:
            return [cell.decode("utf-8") for cell in self.header.cells]
        except UnicodeDecodeError:
            raise TableError(f"the header of {str(self.path)!r} is not UTF-8; save the file as UTF-8") from None

    @property
    def public(self) -> dict[str, Any]:
        """Return what a reader must know besides the request."""
        return {"delimiter": self.delimiter.decode("ascii")}

    def place(self, name: str, argument: str) -> int:
        """Return where the one column of this name is, or raise TableError; other names may be in any encoding."""
        names = [cell.decode(errors="replace") for cell in self.header.cells]
        if names.count(name) != 1:
            raise TableError(f"{argument}: there is no single column {name!r}; {column_advice(name, names)}")
        return names.index(name)

    def has_rows(self) -> bool:
        """Return whether there is a record after the header; no more is read than it takes."""
        return any(isinstance(part, Records) for part, _ in self._parts())

    def count_rows(self) -> int:
        """Return the number of records after the header."""
        return sum(len(records) for records, _ in self._parts() if isinstance(records, Records))

    def read(self, names: Sequence[str] = (), as_text: Sequence[str] = ()) -> pa.Table:
        """Read these columns and no others, or all of them, by Arrow; those of `as_text` stay text."""
        parse = pacsv.ParseOptions(delimiter=self.delimiter.decode("ascii"), newlines_in_values=True)
        texts = {name: pa.string() for name in as_text if name in names}
        convert = pacsv.ConvertOptions(include_columns=list(names), column_types=texts)
        try:
            # Arrow's own block of 1 MiB would refuse a longer record.
            return pacsv.read_csv(self.path, pacsv.ReadOptions(block_size=16 << 20), parse, convert)
        except (pa.ArrowException, UnicodeError, OSError):
            # Its message may quote a whole line, label included; ours has the number of the row, where that is it.
            wrong = True
        if wrong:
            raise TableError(self._wrong())

    def _wrong(self) -> str:
        """Say what is wrong with the file, and in which row where that can be told."""
        wrong = (
            "cannot be read as CSV; check that every line has as many fields as the header, give the --delimiter, and "
            "save it as UTF-8"
        )
        try:
            self.count_rows()
        except TableError as error:
            wrong = str(error)
        return f"{self.path.name}: {wrong}"

    @property
    def size(self) -> int:
        """Return how many bytes there are."""
        return self.path.stat().st_size

    def batches(self, names: Sequence[str], types: Mapping[str, pa.DataType] | None = None) -> Iterator[pa.Table]:
        """Yield these columns and no others, block by block: as text, or of these types where every cell is.

        A column of another block that has other cells is text there, and is read as `typed` would.
        """
        texts = dict.fromkeys(names, pa.string())
        wanted = texts if types is None else {name: _widest(types[name]) for name in names}
        for block in self._blocks():
            found = None if types is None else self._block(block, wanted)
            if found is None:
                found = self._block(block, texts)
            if found is None:
                raise TableError(self._wrong())
            if types is not None and found.schema.types != list(wanted.values()):
                found = pa.table({name: _of_type(found.column(name), wanted[name], name) for name in names})
            if len(found):
                yield found

    def _block(self, block: bytes, wanted: Mapping[str, pa.DataType]) -> pa.Table | None:
        """Return the columns of some records, of these types; None where a cell is not, or a line is no record."""
        parse = pacsv.ParseOptions(delimiter=self.delimiter.decode("ascii"), newlines_in_values=b'"' in block)
        convert = pacsv.ConvertOptions(include_columns=list(wanted), column_types=dict(wanted))
        options = pacsv.ReadOptions(block_size=max(1 << 20, len(block) // 4), column_names=self.names)
        try:
            return pacsv.read_csv(pa.BufferReader(block), options, parse, convert).combine_chunks()
        except (pa.ArrowException, UnicodeError):
            return None

    def _blocks(self) -> Iterator[bytes]:
        """Yield what follows the header in whole records, some megabytes at a time."""
        with _reading(self.path), _opened(self.path) as source:
            source.read(len(self.header.raw))
            rest = b""
            while chunk := source.read(_ARROW_BYTES):
                rest += chunk
                end = rest.rfind(b"\n")
                # A line feed inside quotes ends no record.
                while end >= 0 and b'"' in rest and rest.count(b'"', 0, end) % 2:
                    end = rest.rfind(b"\n", 0, end)
                if end >= 0:
                    yield rest[: end + 1]
                    rest = rest[end + 1 :]
            if rest.strip():
                yield rest

    def lines(self, fewest: int = 0) -> int:
        """Return the number of records, counted by their line ends where no cell is quoted.

        Where even empty cells would leave room for fewer than `fewest` cells, nothing is counted, and it is 0.
        """
        if self.path.suffix.lower() in (".csv", ".tsv", ".txt") and self.size < fewest:
            return 0
        rows, last = 0, b"\n"
        with _reading(self.path), _opened(self.path) as source:
            source.read(len(self.header.raw))
            while chunk := source.read(_ARROW_BYTES):
                if b'"' in chunk:
                    break
                rows, last = rows + chunk.count(b"\n"), chunk[-1:]
            else:
                return rows + (last != b"\n")
        return self.count_rows()

    def codes(self, label: str, classes: tuple[str, ...]) -> Iterator[tuple[Codes, int]]:
        """Yield class numbers block by block, and how many labels are missing; no other cell is looked at."""
        place = self.place(label, "label")
        for records, _ in self._parts():
            if isinstance(records, Records):
                yield cell_codes(records.cut(place)[1], classes)

    def released(self, request: Request) -> tuple[pa.Table, IntArray, FloatArray | None]:
        """Return the features with the types Arrow infers, the private responses, and the prior if there is one."""
        writer = self.writer(request)
        codes, priors = [np.empty(0, np.int64)], [np.empty((0, len(writer.priors)))]
        for records, _ in self._parts():
            if isinstance(records, Records):
                codes.append(cell_codes(records.cut(writer.label)[1], request.classes)[0])
                priors += [_prior(records, writer.priors, 0)] if writer.priors else []
        responses = np.concatenate(codes)
        if (responses < 0).any():
            raise TableError(
                f"label: column {request.label!r} holds values outside the declared classes; it was changed"
            )
        features = self.read().remove_column(writer.label)
        prior = np.concatenate(priors) if writer.priors else None
        return features, responses.astype(np.min_scalar_type(len(request.classes) - 1)), prior

    def writer(self, request: Request) -> CsvWriter:
        """Return what writes the table with private labels; refuse a request that does not fit its columns."""
        if request.is_vector:
            raise TableError(f"mechanism={request.mechanism!r} releases a vector, which CSV cannot hold; use Parquet")
        priors = tuple(self.place(name, "prior_columns") for name in request.prior_columns)
        return CsvWriter(self, self.place(request.label, "label"), priors)

    def _parts(self, block_bytes: int = BLOCK_BYTES) -> Iterator[tuple[Records | bytes, float]]:
        """Yield what follows the header as `scan` finds it, and the share of the file that was read so far."""
        with _reading(self.path):
            source = _opened(self.path)
            size = max(os.stat(self.path).st_size, 1)
        with source:
            with _reading(self.path):
                source.read(len(self.header.raw))
            parts = scan(source, self.delimiter, len(self.header.cells), block_bytes)
            while True:
                # Only the reading is guarded: what goes wrong at the yield is the writer's.
                with _reading(self.path):
                    part = next(parts, None)
                if part is None:
                    return
                # How far a compressed file is read cannot be told.
                yield part, source.tell() / size if source.seekable() else 0.0


@dataclass(frozen=True)
class CsvWriter:
    """A table and the places of its label and of the columns of its prior."""

    table: CsvTable
    label: int
    priors: tuple[int, ...]

    def write(self, draft: Path, sealer: Sealer, report: Report, block_bytes: int = BLOCK_BYTES) -> None:
        """Write the table with private labels to `draft`, block by block."""
        texts = arrow_bytes([cell_text(name, self.table.delimiter) for name in sealer.request.classes])
        with draft.open("wb") as sink:
            sink.write(self.table.header.raw)
            for part, share in self.table._parts(block_bytes):
                sink.write(self._spliced(part, sealer, texts) if isinstance(part, Records) else part)
                report(sealer.rows, share)

    def _spliced(self, records: Records, sealer: Sealer, texts: Any) -> memoryview:
        prior = _prior(records, self.priors, sealer.rows) if self.priors else None
        around, cells = records.cut(self.label)
        responses = sealer.response(*cell_codes(cells, sealer.request.classes), prior).responses
        # One segment more than cells: what follows the last label closes the block.
        new = pa.concat_arrays([texts.take(arrow_numbers(responses)), _NO_BYTES])
        joined = pc.binary_join_element_wise(around, new, _NO_BYTES[0])
        size = int(np.frombuffer(joined.buffers()[1], np.int64)[len(joined)])
        return memoryview(joined.buffers()[2])[: size - records.added]


def typed(texts: pa.Table, as_text: Sequence[str] = ()) -> pa.Table:
    """Return columns of texts with the types that Arrow finds in them, as in a file; those of `as_text` stay text.

    >>> typed(pa.table({"a": ["1", ""], "b": ["x", "2"]})).schema.types
    [DataType(int64), DataType(string)]
    """
    sink = pa.BufferOutputStream()
    pacsv.write_csv(texts, sink)
    wanted = {name: pa.string() for name in as_text if name in texts.column_names}
    parse = pacsv.ParseOptions(newlines_in_values=True)
    # One block: types are those of all rows.
    options = pacsv.ReadOptions(block_size=max(1 << 20, len(sink.getvalue()) + 1))
    return pacsv.read_csv(pa.BufferReader(sink.getvalue()), options, parse, pacsv.ConvertOptions(column_types=wanted))


def _widest(kind: pa.DataType) -> pa.DataType:
    """Return the type of which a column is read: whole numbers may have fractions elsewhere; empty ones are text."""
    return pa.float64() if kinds.is_integer(kind) else pa.string() if kinds.is_null(kind) else kind


def _of_type(texts: Any, kind: pa.DataType, name: str) -> Any:
    """Return a column of texts as its type where every cell is of it; else as text, or missing where it is none."""
    if kind == texts.type:
        return texts
    # What Arrow takes for a missing cell in a column that is no text.
    nothing = pa.array(pacsv.ConvertOptions().null_values)
    filled = pc.if_else(pc.is_in(texts, value_set=nothing), None, texts)
    try:
        return filled.cast(kind)
    except pa.ArrowInvalid:
        pass
    if kinds.is_boolean(kind):
        lower = pc.utf8_lower(filled)
        true, false = (pc.is_in(lower, value_set=pa.array(words)) for words in (["true", "1"], ["false", "0"]))
        return pc.if_else(true, True, pc.if_else(false, False, None))
    if kinds.is_date(kind) or kinds.is_timestamp(kind):
        # As Arrow reads them elsewhere; not by the format that fits these cells best.
        seconds = written_dates(pc.utf8_trim_whitespace(filled), "%Y-%m-%d")
        missing = np.isnan(seconds)
        return pa.array(np.where(missing, 0, seconds).astype(np.int64), mask=missing).cast(pa.timestamp("s"))
    if kinds.is_floating(kind):
        return texts
    raise TableError(f"column {name!r} is {kind} in most rows, and something else in others; mend them, or --drop it")


def open_csv(path: Path, delimiter: str | None = None) -> CsvTable:
    """Read the header. No label is looked at.

    Where no delimiter is given and the usual one does not divide the header, another one that does is taken.
    """
    usual = checked_delimiter(delimiter, path)
    tried: dict[bytes, Header | TableError] = {}
    for separator in (usual,) if delimiter is not None else dict.fromkeys((usual, b";", b"\t", b"|", b",")):
        with _reading(path), _opened(path) as file:
            try:
                tried[separator] = found = read_header(file, separator)
            except TableError as error:
                tried[separator] = error
                continue
        if len(found.cells) > 1:
            return CsvTable(path, separator, found, separator != usual)
    first = tried[usual]
    if isinstance(first, TableError):
        raise first
    return CsvTable(path, usual, first)


def checked_delimiter(delimiter: str | None, path: Path) -> bytes:
    """Return the delimiter as one byte; when none is given, a tab for `.tsv` and a comma otherwise."""
    if delimiter is None:
        return b"\t" if ".tsv" in [suffix.lower() for suffix in path.suffixes[-2:]] else b","
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
        raise TableError(f"delimiter={delimiter!r} cannot separate fields; give one ASCII character such as ',' or ';'")
    return delimiter.encode("ascii")


def _opened(path: Path) -> Any:
    """Open a file to read its bytes, those of a compressed one as they were; nothing of it is written anywhere."""
    kind = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix.lower())
    return path.open("rb") if kind is None else pa.input_stream(str(path), compression=kind)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or "it is damaged, or not compressed as its name says"
        raise TableError(f"source={str(path)!r} cannot be read ({reason})") from None


def cell_text(name: str, delimiter: bytes) -> bytes:
    """Return a class as a cell: quoted only where it must be, never because the original cell was."""
    raw = name.encode()
    needs_quotes = not raw or any(byte in raw for byte in (delimiter, b'"', b"\r", b"\n"))
    return _quoted(raw) if needs_quotes else raw


def _quoted(raw: bytes) -> bytes:
    return b'"' + raw.replace(b'"', b'""') + b'"'


def cell_codes(cells: Any, classes: tuple[str, ...]) -> tuple[Codes, int]:
    """Return the class numbers of raw cells, −1 where undeclared, and how many cells are missing.

    A field has one plain and one quoted spelling, so comparing with both is as good as unquoting. A number may be
    written in other ways than its class is: 1.0 is 1, as it is in Parquet.
    """
    found = places_in(cells, _spellings(classes))
    codes = np.where(found >= len(classes), found - len(classes), found)
    values = _values(classes)
    if values and (codes < 0).any():
        for cell in pc.unique(cells.filter(arrow_numbers(codes < 0).cast(pa.bool_()))).to_pylist():
            if (code := values.get(_number(cell))) is not None:
                codes[numpy_numbers(pc.equal(cells, pa.scalar(cell, cells.type)).cast(pa.uint8()), np.uint8) > 0] = code
    empty = pc.is_in(cells, value_set=arrow_bytes([b"", b'""'])).cast(pa.uint8())
    return codes, int(np.count_nonzero(numpy_numbers(empty, np.uint8) & (codes < 0)))


@lru_cache(maxsize=8)
def _values(classes: tuple[str, ...]) -> dict[float | None, int]:
    """Return the number of each class by its value, where all are different finite numbers; else nothing."""
    found = {_number(name.encode()): code for code, name in enumerate(classes)}
    return found if len(found) == len(classes) and None not in found else {}


def _number(cell: bytes) -> float | None:
    """Return the finite number that stands in a cell, or None."""
    try:
        value = float(cell.strip(b'" '))
    except ValueError:
        return None
    return value if np.isfinite(value) and b"_" not in cell else None


@lru_cache(maxsize=8)
def _spellings(classes: tuple[str, ...]) -> Any:
    names = [name.encode() for name in classes]
    # A name with a quote has no plain spelling; a NUL stands there, which no file that is read here holds.
    plain = [b"\0" if b'"' in raw else raw for raw in names]
    return arrow_bytes(plain + [_quoted(raw) for raw in names])


def _prior(records: Records, columns: tuple[int, ...], rows_before: int) -> FloatArray:
    """Return the prior columns as an array (n, K)."""
    texts = (pc.ascii_trim(records.cut(c)[1].cast(pa.large_string()), characters=' "') for c in columns)
    try:
        weights = [numpy_numbers(text.cast(pa.float64()), np.float64) for text in texts]
    except pa.ArrowInvalid:
        weights = None
    if weights is None:
        where = f"data rows {rows_before + 1} to {rows_before + len(records)}"
        raise TableError(f"prior_columns: {where} hold a cell that is no number; give one weight ≥ 0 per class")
    return check_prior(np.stack(weights, axis=1), rows_before)
