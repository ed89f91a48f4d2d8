"""Where the records and fields of a delimited text file begin and end, found without parsing the fields.

The rules are those of RFC 4180, strictly: a field either holds no quote at all, or starts and ends with one
and doubles those inside. Records end with a line feed, or a carriage return and a line feed. Then a byte lies
inside quotes exactly when an odd number of quotes precedes it, which numpy can answer for a whole block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt

from labeldp.data.request import TableError

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
        _refuse_row(row + _first_gap(filled), "is blank; remove it")
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


def _first_gap(sorted_numbers: Positions) -> int:
    return int(np.flatnonzero(sorted_numbers != np.arange(len(sorted_numbers)))[0])


def _refuse_nul(data: bytes, row: int) -> None:
    if b"\0" in data:
        where = "the header" if row < 0 else f"data row {row + 1} or a later one"
        raise TableError(f"{where} holds a NUL byte: the file is not UTF-8 text (UTF-16 perhaps); convert it to UTF-8")


def _refuse_unclosed(data: bytes, row: int) -> None:
    if data.count(b'"') % 2:
        _refuse_row(row, "or a later one has a quote that is never closed; close it or double it")


def _refuse_endless(data: bytes, row: int) -> None:
    if len(data) > MAX_RECORD_BYTES:
        _refuse_row(row, f"is longer than {MAX_RECORD_BYTES >> 20} MiB; look for a quote that is never closed")


def _refuse_row(row: int, wrong: str) -> None:
    raise TableError(f"{'the header' if row < 0 else f'data row {row + 1}'} {wrong}")
