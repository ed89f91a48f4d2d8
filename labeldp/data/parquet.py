"""Read and write Parquet: the label column is replaced; all other columns keep values, types and metadata.

Nothing of the original label column is copied: not its pages, dictionary, statistics, indexes or field
metadata. The file's own notes may describe the labels, so they are dropped, but for a pandas block
rebuilt without anything about the label. Chunks have a fixed number of rows, chosen from public sizes
only, so that not even the layout of the output depends on a label.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from labeldp.data.labels import (
    arrow_numbers,
    class_values,
    column_codes,
    column_responses,
    numpy_numbers,
    pc,
    response_column,
    response_type,
)
from labeldp.data.request import Codes, Report, Request, Sealer, TableError, check_prior, listed
from labeldp.releases import FloatArray, IntArray

KEY = b"labeldp"
CHUNK_ROWS = 1 << 18
CHUNK_BYTES = 64 << 20
_FEWEST_ROWS = 64
_BATCH_ROWS = 1 << 16
_BUFFER = 1 << 16
_NAN = arrow_numbers(np.array([np.nan]))[0]
PANDAS_KEY = b"pandas"
# Kept of the note of pandas: anything else (`attributes` above all) is free text, which may describe the labels.
_KEPT = ("index_columns", "column_indexes", "columns", "creator", "pandas_version", "partition_columns")


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file whose footer has been read: its schema, and how many rows it announces."""

    path: Path
    schema: pa.Schema
    num_rows: int

    @property
    def names(self) -> list[str]:
        """Return the names of all top-level columns."""
        return list(self.schema.names)

    def has_rows(self) -> bool:
        """Return whether the file announces a row."""
        return self.num_rows > 0

    @property
    def public(self) -> dict[str, Any]:
        """Return what a reader must know besides the request: nothing, the file says it."""
        return {}

    @property
    def release(self) -> dict[str, Any] | None:
        """Return the parameters that `privatize` kept in the file itself; None when it has none."""
        text = (self.schema.metadata or {}).get(KEY)
        try:
            return None if text is None else dict(json.loads(text))
        except (ValueError, TypeError):
            where = str(self.path)
        raise TableError(f"{where!r} has labeldp metadata that is no JSON object; the file was changed")

    def place(self, name: str, argument: str) -> int:
        """Return where the one top-level column of this name is, or raise TableError."""
        found = self.schema.get_all_field_indices(name)
        if len(found) != 1:
            seen = "is not in the file" if not found else f"is in the file {len(found)} times"
            raise TableError(
                f"{argument}: column {name!r} {seen}; the columns are {listed(self.names)}. Name a top-level one that "
                "occurs once (case matters)"
            )
        return found[0]

    def count_rows(self) -> int:
        """Return the number of rows by the footer."""
        return self.num_rows

    def read(self, names: Sequence[str], as_text: Sequence[str] = ()) -> pa.Table:
        """Read these columns and no others, with the types that they have."""
        with reading(self.path), opened(self.path) as file:
            return file.read(columns=list(names))

    def batches(self, names: Sequence[str], types: Any = None) -> Iterator[pa.Table]:
        """Yield these columns and no others, with the types that they have, some ten thousand rows at a time."""
        for batch in self._batches(_BATCH_ROWS, list(names)):
            yield pa.Table.from_batches([batch])

    @property
    def size(self) -> int:
        """Return how many bytes there are."""
        return self.path.stat().st_size

    def codes(self, label: str, classes: tuple[str, ...]) -> Iterator[tuple[Codes, int]]:
        """Yield class numbers batch by batch, and how many labels are missing; no other column is read."""
        class_values(classes, self.schema.field(self.place(label, "label")).type)
        for batch in self._batches(CHUNK_ROWS, [label]):
            yield column_codes(pa.chunked_array([batch.column(0)]), classes)

    def released(self, request: Request) -> tuple[pa.Table, IntArray, FloatArray | None]:
        """Return the features, the private responses, and the prior if the request has one."""
        with reading(self.path), opened(self.path) as file:
            table = file.read()
        place = self.place(request.label, "label")
        expected = response_type(table.schema.field(place).type, request)
        if table.schema.field(place).type != expected:
            raise TableError(f"label: column {request.label!r} is not of type {expected}; the file was changed")
        priors = tuple(self.place(name, "prior_columns") for name in request.prior_columns)
        responses = column_responses(table.column(place), request)
        return table.remove_column(place), responses, _prior(table, priors, 0) if priors else None

    def writer(self, request: Request) -> ParquetWriter:
        """Return what writes the table with private labels; refuse a request that does not fit its columns."""
        label = self.place(request.label, "label")
        class_values(request.classes, self.schema.field(label).type)
        priors = tuple(self.place(name, "prior_columns") for name in request.prior_columns)
        for place in priors:
            name, kind = self.schema.field(place).name, self.schema.field(place).type
            if not (types.is_floating(kind) or types.is_integer(kind) or types.is_decimal(kind)):
                raise TableError(f"prior_columns: column {name!r} has type {kind}; a prior needs numbers")
        with reading(self.path), opened(self.path) as file:
            used = _public_columns(file, request.label)
            rows = _rows_at_once(file.metadata, used, request)
        return ParquetWriter(self, label, priors, _codec(used), rows)

    def _batches(self, rows: int, columns: list[str] | None = None) -> Iterator[Any]:
        with reading(self.path):
            file = opened(self.path)
        with file:
            batches = file.iter_batches(batch_size=rows, columns=columns)
            while True:
                # Only the reading is guarded: what goes wrong at the yield is the writer's.
                with reading(self.path):
                    batch = next(batches, None)
                if batch is None:
                    return
                yield batch


def open_parquet(path: Path) -> ParquetTable:
    """Read the footer. No label is read, nor what the footer says about labels."""
    with reading(path), opened(path) as file:
        return ParquetTable(path, file.schema_arrow, file.metadata.num_rows)


def opened(path: Path) -> pq.ParquetFile:
    """Open the file, set up to read page by page: memory stays flat even when one row group is everything."""
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER, page_checksum_verification=True)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the reader's errors into one sentence that quotes nothing of the file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        # The reader's own message may quote what it stumbled over.
        kind = type(error).__name__
    else:
        return
    damaged = "it is damaged, encrypted or not Parquet; restore it"
    with suppress(OSError), path.open("rb") as file:
        if file.read(4) == b"PARE":
            damaged = "it is encrypted; decrypt it first"
    raise TableError(f"source={str(path)!r} cannot be read as Parquet ({kind}): {damaged}")


def _public_columns(file: pq.ParquetFile, label: str) -> list[Any]:
    """Return the column chunks of the first row group, the label's left out."""
    if not file.metadata.num_row_groups:
        return []
    # Asking for the metadata of an encrypted column ends the process, so try to read the features first.
    names = [name for name in file.schema_arrow.names if name != label]
    next(file.iter_batches(batch_size=1, columns=names), None)
    group = file.metadata.row_group(0)
    return [group.column(i) for i in range(group.num_columns) if file.schema.column(i).path != label]


def _codec(columns: list[Any]) -> str:
    """Return the codec that most columns use; zstd where this build of Arrow cannot write it."""
    names = Counter(column.compression for column in columns)
    codec = names.most_common(1)[0][0] if names else "SNAPPY"
    if codec == "UNCOMPRESSED":
        return "NONE"
    known = codec in {"SNAPPY", "GZIP", "BROTLI", "ZSTD", "LZ4", "LZ4_RAW"}
    return codec if known and pa.Codec.is_available(codec.split("_")[0].lower()) else "ZSTD"


def _rows_at_once(metadata: Any, columns: list[Any], request: Request) -> int:
    """Return how many rows make a chunk, by the width of the public columns and of what the mechanism needs."""
    per_class = 16 if request.is_vector or request.needs_prior else 0
    width = 1.0 + per_class * len(request.classes)
    if columns:
        # A damaged footer may say anything.
        total = max(sum(column.total_uncompressed_size for column in columns), 0)
        width += total / max(metadata.row_group(0).num_rows, 1)
    return int(min(CHUNK_ROWS, max(_FEWEST_ROWS, CHUNK_BYTES / width)))


@dataclass(frozen=True)
class ParquetWriter:
    """A table, the places of its label and of the columns of its prior, and the layout of what is written."""

    table: ParquetTable
    label: int
    priors: tuple[int, ...]
    codec: str
    chunk_rows: int

    def write(self, draft: Path, sealer: Sealer, report: Report) -> None:
        """Write the table with private labels to `draft`, chunk by chunk."""
        schema, kind = self._schema(sealer), self.table.schema.field(self.label).type
        with _closing(pq.ParquetWriter(draft, schema, compression=self.codec)) as file:
            for chunk in self._chunks():
                prior = _prior(chunk, self.priors, sealer.rows) if self.priors else None
                codes, missing = column_codes(chunk.column(self.label), sealer.request.classes)
                private = sealer.response(codes, missing, prior)
                columns = list(chunk.columns)
                columns[self.label] = response_column(private.responses, kind, sealer.request)
                file.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=self.chunk_rows)
                report(sealer.rows, sealer.rows / max(self.table.num_rows, 1))
        if sealer.rows != self.table.num_rows:
            raise TableError(
                f"source={str(self.table.path)!r} is damaged: {sealer.rows} rows where {self.table.num_rows} were "
                "announced"
            )

    def _schema(self, sealer: Sealer) -> pa.Schema:
        request, old = sealer.request, self.table.schema.field(self.label)
        kind = response_type(old.type, request)
        notes = cleaned(self.table.schema, self.label, kind, len(request.classes))
        public = json.dumps(request.public(sealer.rng), ensure_ascii=False)
        new = self.table.schema.set(self.label, pa.field(old.name, kind, nullable=old.nullable))
        return new.with_metadata({**notes, KEY: public.encode()})

    def _chunks(self) -> Iterator[pa.Table]:
        """Yield the table in chunks of exactly `chunk_rows`, whatever batches the reader (so the labels) makes."""
        held: list[Any] = []
        count = 0
        for batch in self.table._batches(self.chunk_rows):
            rest = batch
            while count + len(rest) >= self.chunk_rows:
                wanted = self.chunk_rows - count
                yield _joined([*held, rest.slice(0, wanted)])
                rest, held, count = rest.slice(wanted), [], 0
            if len(rest):
                held.append(rest)
                count += len(rest)
        if held:
            yield _joined(held)


@contextmanager
def _closing(writer: pq.ParquetWriter) -> Iterator[pq.ParquetWriter]:
    try:
        yield writer
    except BaseException:
        # Closing writes the footer, which may fail again; the first failure is the one to report.
        with suppress(Exception):
            writer.close()
        raise
    writer.close()


def _joined(batches: list[Any]) -> pa.Table:
    table = pa.Table.from_batches(batches)
    return table if len(batches) == 1 else table.combine_chunks()


def _prior(chunk: pa.Table, columns: tuple[int, ...], rows_before: int) -> FloatArray:
    """Return the prior columns as an array (n, K)."""
    weights = [numpy_numbers(pc.coalesce(chunk.column(i).cast(pa.float64()), _NAN), np.float64) for i in columns]
    return check_prior(np.stack(weights, axis=1), rows_before)


def cleaned(schema: pa.Schema, label: int, kind: pa.DataType, num_classes: int) -> dict[bytes, bytes]:
    """Return the note of pandas without anything about the original labels; nothing if there is none.

    The label's entry is made anew, for type `kind`.
    """
    name, (pandas_type, numpy_type) = schema.field(label).name, _type_names(kind)
    categories = {"num_categories": num_classes, "ordered": kind.ordered} if types.is_dictionary(kind) else None
    new = {"pandas_type": pandas_type, "numpy_type": numpy_type, "metadata": categories}
    try:
        notes = json.loads((schema.metadata or {})[PANDAS_KEY])
        kept = {key: notes[key] for key in _KEPT if key in notes}
        entries = [(entry.get("field_name", entry.get("name")), entry) for entry in kept["columns"]]
        kept["columns"] = [
            entry if field != name else {key: entry[key] for key in ("name", "field_name") if key in entry} | new
            for field, entry in entries
            if field in schema.names
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
    return {PANDAS_KEY: json.dumps(kept).encode()}


def _type_names(kind: pa.DataType) -> tuple[str, str]:
    if types.is_dictionary(kind):
        return "categorical", str(kind.index_type)
    if types.is_fixed_size_list(kind):
        return f"list[{kind.value_type}]", "object"
    if types.is_boolean(kind) or types.is_integer(kind):
        return str(kind), str(kind)
    if types.is_floating(kind):
        return (name := {2: "float16", 4: "float32", 8: "float64"}[kind.byte_width]), name
    return ("bytes" if "binary" in str(kind) else "unicode"), "object"
