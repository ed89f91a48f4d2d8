"""CSV and TSV: the label cells are cut out and new ones spliced in; every other byte stays as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from labeldp.data.arrow import MINUS_ONE, NO_BYTES, of_bytes, of_numbers, of_pieces, pc, to_numbers
from labeldp.data.csvscan import BLOCK_BYTES, Header, Positions, Records, read_header, scan
from labeldp.data.request import Codes, LabelCheck, Report, Request, Sealer, TableError, check_prior, listed
from labeldp.releases import FloatArray, IntArray


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
        check = LabelCheck(request.classes)
        with _opened(self.path) as source:
            for part in _parts(source, self, BLOCK_BYTES):
                if isinstance(part, Records):
                    check.add(*encode(_cut(part.data, *part.spans(self.label))[1], request.classes))
        check.judge()

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
        raise TableError(f"mechanism={request.mechanism!r} answers with a vector, which CSV cannot hold; use Parquet")
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
        seen = "is not in the header" if not found else f"is in the header {len(found)} times"
        columns = listed([cell.decode(errors="replace") for cell in cells])
        raise TableError(
            f"{argument}: column {name!r} {seen}; the columns are {columns}. Name one that occurs once (case matters), "
            "or give the delimiter if these are not your columns"
        )
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
    answers = sealer.answer(codes, missing, prior).answers
    # One segment more than cells: what follows the last label closes the block.
    new = pa.concat_arrays([texts.take(of_numbers(answers)), NO_BYTES])
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


def count_rows(path: Path, delimiter: str) -> int:
    """The number of records after the header."""
    separator = checked_delimiter(delimiter, path)
    with _opened(path) as file:
        header = read_header(file, separator)
        parts = scan(file, separator, len(header.cells))
        return sum(len(part) for part in parts if isinstance(part, Records))


def read_csv(path: Path, request: Request, delimiter: str) -> tuple[pa.Table, IntArray, FloatArray | None]:
    """The features with the types Arrow infers, the private answers, and the prior if the request has one."""
    table = open_csv(path, request, delimiter)
    codes, priors = [np.empty(0, np.int64)], [np.empty((0, len(table.priors)))]
    with _opened(path) as file:
        for part in _parts(file, table, BLOCK_BYTES):
            if isinstance(part, Records):
                codes.append(encode(_cut(part.data, *part.spans(table.label))[1], request.classes)[0])
                prior = read_prior(part, table.priors, 0)
                priors += [] if prior is None else [prior]
    answers = np.concatenate(codes)
    if (answers < 0).any():
        raise TableError(f"label: column {request.label!r} holds values outside the declared classes; it was changed")
    weights = np.concatenate(priors) if request.prior_columns else None
    return _features(table), answers.astype(np.min_scalar_type(len(request.classes) - 1)), weights


def _features(table: CsvTable) -> pa.Table:
    how = pacsv.ParseOptions(delimiter=table.delimiter.decode("ascii"), newlines_in_values=True)
    # Arrow's own block of 1 MiB would refuse a longer record.
    blocks = pacsv.ReadOptions(block_size=16 << 20)
    try:
        return pacsv.read_csv(table.path, blocks, how).remove_column(table.label)
    except pa.ArrowInvalid:
        raise TableError(f"path={str(table.path)!r}: the features cannot be read as CSV; are they UTF-8?") from None
