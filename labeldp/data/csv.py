"""CSV and TSV: the label cells are cut out and new ones spliced in; every other byte stays as it was.

Where records and fields begin and end is found without parsing the fields. The rules are those of RFC 4180, strictly:
a field either holds no quote at all, or starts and ends with one and doubles those inside. Records end with a line
feed, or a carriage return and a line feed. Then a byte lies inside quotes exactly when an odd number of quotes precedes
it, which numpy can tell for a whole block.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

from labeldp.data.arrow import MINUS_ONE, NO_BYTES, of_bytes, of_numbers, of_pieces, pc, to_numbers
from labeldp.data.request import Codes, Report, Request, Sealer, TableError, check_prior, column_advice, usable
from labeldp.releases import FloatArray, IntArray

BLOCK_BYTES = 2 << 20
MAX_RECORD_BYTES = 64 << 20
BOM = b"\xef\xbb\xbf"
_QUOTE, _NEWLINE, _RETURN = b'"'[0], b"\n"[0], b"\r"[0]

Positions = npt.NDArray[np.intp]


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
        """Start and end of this column's cell in every record, quotes included, line ends left out."""
        stops = self.ends[:, column]
        if column:
            starts = self.ends[:, column - 1] + 1
        else:
            starts = np.concatenate((np.zeros(1, np.intp), self.ends[:-1, -1] + 1))
        if column == self.ends.shape[1] - 1:
            before = np.frombuffer(self.data, np.uint8)[stops - 1]
            stops = stops - ((before == _RETURN) & (stops > starts))
        return starts, stops


def read_header(file: IO[bytes], delimiter: bytes) -> Header:
    """Read the first record and leave the file positioned after it."""
    data = b""
    while chunk := file.read(1 << 16):
        data += chunk
        start = len(BOM) if data.startswith(BOM) else 0
        separators = _separators(data[start:], delimiter[0], -1)
        ends = np.flatnonzero(_at(data[start:], separators) == _NEWLINE)
        if len(ends):
            file.seek(start + int(separators[ends[0]]) + 1)
            return _header(data[: start + int(separators[ends[0]]) + 1], start, delimiter)
        _refuse_endless(data, -1)
    return _header(data, len(BOM) if data.startswith(BOM) else 0, delimiter)


def _header(raw: bytes, start: int, delimiter: bytes) -> Header:
    text = raw[start:].rstrip(b"\r\n")
    _refuse_nul(text, -1)
    if not text:
        raise TableError("the file has no header; its first line must name the columns")
    _refuse_unclosed(text, -1)
    ends = [*_separators(text, delimiter[0], -1).tolist(), len(text)]
    cells = (text[a:b] for a, b in zip([0, *(end + 1 for end in ends)], ends, strict=False))
    return Header(raw, tuple(_unquoted(cell) for cell in cells))


def _unquoted(cell: bytes) -> bytes:
    return cell[1:-1].replace(b'""', b'"') if cell[:1] == b'"' else cell


def scan(file: IO[bytes], delimiter: bytes, fields: int, block_bytes: int = BLOCK_BYTES) -> Iterator[Records | bytes]:
    """The records from here to the end of the file in blocks; last, as bytes, the blank lines that end it.

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
    yield from _last_record(rest, delimiter[0], fields, row)


def _complete_records(data: bytes, delimiter: int, fields: int, row: int) -> Records:
    """The whole records at the start of `data`, less blank lines at their end (the file may end there)."""
    _refuse_nul(data, row)
    separators = _separators(data, delimiter, row)
    is_end = _at(data, separators) == _NEWLINE
    stops = separators[is_end]
    filled = np.flatnonzero(~_blank(data, stops))
    count = int(filled[-1]) + 1 if len(filled) else 0
    if len(filled) < count:
        gaps = np.flatnonzero(filled != np.arange(len(filled)))
        _refuse_row(row + int(gaps[0]), "is blank; remove it")
    used = int(np.flatnonzero(is_end)[count - 1]) + 1 if count else 0
    _check_fields(np.flatnonzero(is_end[:used]), fields, row)
    size = int(stops[count - 1]) + 1 if count else 0
    return Records(data[:size], separators[:used].reshape(count, fields))


def _last_record(rest: bytes, delimiter: int, fields: int, row: int) -> Iterator[Records | bytes]:
    _refuse_unclosed(rest, row)
    body = rest.rstrip(b"\r\n")
    tail = rest[len(body) :]
    if tail.replace(b"\r\n", b"").strip(b"\n"):
        _refuse_row(row, "ends with a carriage return alone; convert the line ends to LF or CRLF")
    if body:
        whole = _complete_records(body + b"\n", delimiter, fields, row)
        yield Records(whole.data, whole.ends, added=1)
    yield tail


def _separators(data: bytes, delimiter: int, row: int) -> Positions:
    """Delimiters and line feeds outside quotes. Quotes and carriage returns out of place are refused."""
    buffer = np.frombuffer(data, np.uint8)
    marks, quotes = _marks(buffer, delimiter, b'"' in data)
    if len(quotes):
        stray = _stray_quote(buffer, quotes, delimiter)
        if stray is not None:
            _refuse_row(
                row + _ends_before(buffer, marks, stray),
                "has a quote inside an unquoted field; quote the field",
            )
    if b"\r" in data:
        lone = _lone_return(buffer, quotes)
        if lone is not None:
            wrong = "has a carriage return that ends no line; convert the line ends to LF or CRLF"
            _refuse_row(row + _ends_before(buffer, marks, lone), wrong)
    return marks


def _marks(buffer: npt.NDArray[np.uint8], delimiter: int, quoted: bool) -> tuple[Positions, Positions]:
    """Delimiters and line feeds outside quotes, and all quotes."""
    special = (buffer == delimiter) | (buffer == _NEWLINE)
    if not quoted:
        return np.flatnonzero(special), np.empty(0, np.intp)
    places = np.flatnonzero(special | (buffer == _QUOTE))
    is_quote = buffer[places] == _QUOTE
    # Only the parity counts, so the sum may wrap around.
    outside = np.cumsum(is_quote, dtype=np.uint8) & 1 == 0
    return places[outside & ~is_quote], places[is_quote]


def _stray_quote(buffer: npt.NDArray[np.uint8], quotes: Positions, delimiter: int) -> int | None:
    """The first quote that neither opens nor closes a field nor is doubled inside one."""
    opening, closing = quotes[0::2], quotes[1::2]
    before = buffer[opening[opening > 0] - 1]
    # A closing quote at the very end of the block is judged when the next byte is there.
    inner = closing[closing + 1 < len(buffer)]
    after = buffer[inner + 1]
    bad_before = (before != delimiter) & (before != _NEWLINE) & (before != _QUOTE)
    bad_after = (after != delimiter) & (after != _NEWLINE) & (after != _QUOTE) & (after != _RETURN)
    stray = np.concatenate((opening[opening > 0][bad_before], inner[bad_after]))
    return int(stray.min()) if len(stray) else None


def _lone_return(buffer: npt.NDArray[np.uint8], quotes: Positions) -> int | None:
    returns = np.flatnonzero(buffer[:-1] == _RETURN)
    lone = returns[buffer[returns + 1] != _NEWLINE]
    lone = lone[np.searchsorted(quotes, lone) % 2 == 0]
    return int(lone[0]) if len(lone) else None


def _blank(data: bytes, stops: Positions) -> npt.NDArray[np.bool_]:
    """Which records are empty but for their line end."""
    sizes = np.diff(stops, prepend=-1) - 1
    return (sizes == 0) | ((sizes == 1) & (_at(data, np.maximum(stops - 1, 0)) == _RETURN))


def _check_fields(record_ends: Positions, fields: int, row: int) -> None:
    counts = np.diff(record_ends, prepend=-1)
    wrong = np.flatnonzero(counts != fields)
    if len(wrong):
        number = int(wrong[0])
        _refuse_row(row + number, f"has {counts[number]} fields where the header has {fields}; mend the row")


def _at(data: bytes, positions: Positions) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)[positions]


def _ends_before(buffer: npt.NDArray[np.uint8], marks: Positions, place: int) -> int:
    return int(np.count_nonzero(buffer[marks[marks < place]] == _NEWLINE))


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


def _refuse_row(row: int, wrong: str) -> None:
    raise TableError(f"{'the header' if row < 0 else f'data row {row + 1}'} {wrong}")


@dataclass(frozen=True)
class CsvTable:
    """A delimited text file whose header has been read and checked against a request."""

    path: Path
    delimiter: bytes
    header: Header
    label: int
    priors: tuple[int, ...]

    @property
    def public(self) -> dict[str, Any]:
        """What a reader must know besides the request."""
        return {"delimiter": self.delimiter.decode("ascii")}

    def check_labels(self, request: Request) -> None:
        """Refuse labels that cannot be sealed, before anything is spent."""
        for _ in usable(self._codes(request), request.classes):
            pass

    def codes(self, request: Request) -> Codes:
        """Return the class number of every row, for sealing; refuse them as `check_labels` does, in the same pass."""
        return np.concatenate([np.empty(0, np.int64), *usable(self._codes(request), request.classes)])

    def _codes(self, request: Request) -> Iterator[tuple[Codes, int]]:
        """Class numbers block by block, and how many labels are missing."""
        with _opened(self.path) as source:
            for part in _parts(source, self, BLOCK_BYTES):
                if isinstance(part, Records):
                    yield encode(_cut(part.data, *part.spans(self.label))[1], request.classes)

    def privatize(self, draft: Path, sealer: Sealer, report: Report, block_bytes: int = BLOCK_BYTES) -> None:
        """Write the table with private labels to `draft`, block by block."""
        texts = of_bytes([cell_text(name, self.delimiter) for name in sealer.request.classes])
        with _opened(self.path) as source, draft.open("wb") as sink:
            size = max(os.fstat(source.fileno()).st_size, 1)
            sink.write(self.header.raw)
            for part in _parts(source, self, block_bytes):
                sink.write(part if isinstance(part, bytes) else _spliced(part, self, sealer, texts))
                report(sealer.rows, source.tell() / size)


def open_csv(path: Path, request: Request, delimiter: str | None = None) -> CsvTable:
    """Read the header and find the columns. No label is looked at."""
    if request.is_vector:
        raise TableError(f"mechanism={request.mechanism!r} releases a vector, which CSV cannot hold; use Parquet")
    separator = checked_delimiter(delimiter, path)
    with _opened(path) as file, _reading(path):
        header = read_header(file, separator)
    label = _find(header.cells, request.label, "label")
    priors = tuple(_find(header.cells, name, "prior_columns") for name in request.prior_columns)
    return CsvTable(path, separator, header, label, priors)


def checked_delimiter(delimiter: str | None, path: Path) -> bytes:
    """The delimiter as one byte; when none is given, a tab for `.tsv` and a comma otherwise."""
    if delimiter is None:
        return b"\t" if path.suffix.lower() == ".tsv" else b","
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
        raise TableError(f"delimiter={delimiter!r} cannot separate fields; give one ASCII character such as ',' or ';'")
    return delimiter.encode("ascii")


def _find(cells: Sequence[bytes], name: str, argument: str) -> int:
    found = [place for place, cell in enumerate(cells) if cell == name.encode()]
    if len(found) != 1:
        names = [cell.decode(errors="replace") for cell in cells]
        raise TableError(f"{argument}: there is no single column {name!r}; {column_advice(name, names)}")
    return found[0]


def _opened(path: Path) -> IO[bytes]:
    with _reading(path):
        return path.open("rb")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TableError(f"source={str(path)!r} cannot be read ({error.strerror})") from None


def _parts(source: IO[bytes], table: CsvTable, block_bytes: int) -> Iterator[Records | bytes]:
    """What follows the header, as `scan` finds it."""
    source.seek(len(table.header.raw))
    parts = scan(source, table.delimiter, len(table.header.cells), block_bytes)
    while True:
        # Only the reading is guarded: what goes wrong at the yield is the writer's.
        with _reading(table.path):
            part = next(parts, None)
        if part is None:
            return
        yield part


def _spliced(records: Records, table: CsvTable, sealer: Sealer, texts: Any) -> memoryview:
    prior = read_prior(records, table.priors, sealer.rows)
    around, cells = _cut(records.data, *records.spans(table.label))
    codes, missing = encode(cells, sealer.request.classes)
    responses = sealer.response(codes, missing, prior).responses
    # One segment more than cells: what follows the last label closes the block.
    new = pa.concat_arrays([texts.take(of_numbers(responses)), NO_BYTES])
    joined = pc.binary_join_element_wise(around, new, NO_BYTES[0])
    size = int(np.frombuffer(joined.buffers()[1], np.int64)[len(joined)])
    return memoryview(joined.buffers()[2])[: size - records.added]


def _cut(data: bytes, starts: Positions, stops: Positions) -> tuple[Any, Any]:
    """What lies around the cells (n + 1 pieces) and the cells themselves (n)."""
    offsets = np.zeros(2 * len(starts) + 2, np.int64)
    offsets[1:-1:2], offsets[2:-1:2], offsets[-1] = starts, stops, len(data)
    pieces, places = of_pieces(data, offsets), np.arange(len(offsets) - 1)
    return pieces.take(of_numbers(places[0::2])), pieces.take(of_numbers(places[1::2]))


def cell_text(name: str, delimiter: bytes) -> bytes:
    """A class as a cell: quoted only where it must be, never because the original cell was."""
    raw = name.encode()
    needs_quotes = not raw or any(byte in raw for byte in (delimiter, b'"', b"\r", b"\n"))
    return _quoted(raw) if needs_quotes else raw


def _quoted(raw: bytes) -> bytes:
    return b'"' + raw.replace(b'"', b'""') + b'"'


def encode(cells: Any, classes: tuple[str, ...]) -> tuple[Codes, int]:
    """Class numbers of raw cells, −1 where undeclared, and how many cells are missing.

    A field has one plain and one quoted spelling, so comparing with both is as good as unquoting.
    """
    found = to_numbers(pc.coalesce(pc.index_in(cells, value_set=_spellings(classes)), MINUS_ONE), np.int32)
    codes = np.where(found >= len(classes), found - len(classes), found).astype(np.int64)
    empty = pc.is_in(cells, value_set=of_bytes([b"", b'""'])).cast(pa.uint8())
    return codes, int(np.count_nonzero(to_numbers(empty, np.uint8) & (codes < 0)))


@lru_cache(maxsize=8)
def _spellings(classes: tuple[str, ...]) -> Any:
    names = [name.encode() for name in classes]
    # A name with a quote has no plain spelling; a NUL stands there, which no file that is read here holds.
    plain = [b"\0" if b'"' in raw else raw for raw in names]
    return of_bytes(plain + [_quoted(raw) for raw in names])


def read_prior(records: Records, columns: tuple[int, ...], rows_before: int) -> FloatArray | None:
    """The prior columns as an array (n, K); None when there are none."""
    if not columns:
        return None
    weights = [_numbers(records, column, rows_before) for column in columns]
    return check_prior(np.stack(weights, axis=1), rows_before)


def _numbers(records: Records, column: int, rows_before: int) -> FloatArray:
    _, cells = _cut(records.data, *records.spans(column))
    try:
        text = pc.ascii_trim(cells.cast(pa.large_string()), characters=' "')
        return to_numbers(text.cast(pa.float64()), np.float64)
    except pa.ArrowInvalid:
        where = f"data rows {rows_before + 1} to {rows_before + len(records)}"
    raise TableError(f"prior_columns: {where} hold a cell that is no number; give one weight ≥ 0 per class")


def count_rows(path: Path, delimiter: str | None) -> int:
    """The number of records after the header."""
    separator = checked_delimiter(delimiter, path)
    with _opened(path) as file:
        header = read_header(file, separator)
        parts = scan(file, separator, len(header.cells))
        return sum(len(part) for part in parts if isinstance(part, Records))


def read_csv(path: Path, request: Request, delimiter: str) -> tuple[pa.Table, IntArray, FloatArray | None]:
    """Return the features with the types Arrow infers, the private responses, and the prior if the request has one."""
    table = open_csv(path, request, delimiter)
    codes, priors = [np.empty(0, np.int64)], [np.empty((0, len(table.priors)))]
    with _opened(path) as file:
        for part in _parts(file, table, BLOCK_BYTES):
            if isinstance(part, Records):
                codes.append(encode(_cut(part.data, *part.spans(table.label))[1], request.classes)[0])
                prior = read_prior(part, table.priors, 0)
                priors += [] if prior is None else [prior]
    responses = np.concatenate(codes)
    if (responses < 0).any():
        raise TableError(f"label: column {request.label!r} holds values outside the declared classes; it was changed")
    weights = np.concatenate(priors) if request.prior_columns else None
    return _features(table), responses.astype(np.min_scalar_type(len(request.classes) - 1)), weights


def _features(table: CsvTable) -> pa.Table:
    how = pacsv.ParseOptions(delimiter=table.delimiter.decode("ascii"), newlines_in_values=True)
    # Arrow's own block of 1 MiB would refuse a longer record.
    blocks = pacsv.ReadOptions(block_size=16 << 20)
    try:
        return pacsv.read_csv(table.path, blocks, how).remove_column(table.label)
    except pa.ArrowInvalid:
        raise TableError(f"path={str(table.path)!r}: the features cannot be read as CSV; are they UTF-8?") from None
