"""Read and write Parquet, files and folders: the label column is replaced; all others keep values, types and metadata.

Nothing of the original label column is copied: not its pages, dictionary, statistics, indexes or field
metadata. The file's own notes may describe the labels, so they are dropped, but for a pandas block
rebuilt without anything about the label. Chunks have a fixed number of rows, chosen from public sizes
only, so that not even the layout of the output depends on a label.

A folder is one table (`ParquetFolder`), read batch by batch. Files come in the order of their paths, folder by folder,
names compared character by character; rows in the order in which they stand in their file. So row i is the same row
every time, whatever wrote the files. Folders named `key=value` become columns, as Hive and Spark write them; files and
folders whose names begin with `_` or `.` are notes and are passed over. All files must have the same columns, in any
order, of the same types.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

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
ENDINGS = (".parquet", ".pq")
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
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


# -- a folder of files as one table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParquetFolder(ParquetTable):
    """Parquet files whose footers have been read, as one table; the top of this file says in which order its rows are.

    Args:
        files: each file, and the value of every partition column in it.
    """

    files: tuple[tuple[Path, dict[str, Any]], ...] = field(default=(), repr=False)

    def place(self, name: str, argument: str) -> int:
        """Return where the one column of this name is, or raise TableError."""
        if argument == "label":
            self.check_label(name)
        return super().place(name, argument)

    def check_label(self, name: str) -> None:
        """Refuse a label that the order of the rows would tell."""
        if any(name in parts for _, parts in self.files):
            raise TableError(
                f"label: {name!r} is in the names of the folders, so that the order of the rows tells it; write the "
                "table anew without that partition"
            )

    @property
    def release(self) -> dict[str, Any] | None:
        """Return nothing: what `privatize` writes is one file."""
        return None

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(path.stat().st_size for path, _ in self.files)

    def read(self, names: Sequence[str], as_text: Sequence[str] = ()) -> pa.Table:
        """Read these columns and no others, with the types that they have."""
        schema = pa.schema([self.schema.field(name) for name in names])
        return pa.Table.from_batches(list(self._batches(_BATCH_ROWS, list(names))), schema=schema)

    def released(self, request: Request) -> Any:
        """Refuse: what `privatize` writes is one file."""
        raise TableError(f"{str(self.path)!r} is a folder, and privatize writes one file; give that")

    def writer(self, request: Request) -> ParquetWriter:
        """Return what writes one file with private labels; codec and chunks are those of the first file with rows."""
        self.check_label(request.label)
        # Places are those of the whole table's columns.
        return replace(ParquetTable(self._first, self.schema, 0).writer(request), table=self)

    @property
    def _first(self) -> Path:
        for path, _ in self.files:
            with reading(path), opened(path) as file:
                if file.metadata.num_rows:
                    return path
        return self.files[0][0]

    def _batches(self, rows: int, columns: list[str] | None = None) -> Iterator[Any]:
        names = self.names if columns is None else columns
        schema = pa.schema([self.schema.field(name) for name in names])
        for path, parts in self.files:
            own = [name for name in names if name not in parts]
            for batch in ParquetTable(path, self.schema, 0)._batches(rows, own):
                found = [pa.repeat(parts[name], len(batch)) if name in parts else batch.column(name) for name in names]
                yield pa.RecordBatch.from_arrays(found, schema=schema)


def open_parquet_folder(path: Path) -> ParquetFolder | None:
    """Read the footers of all Parquet files in a folder and the folders in it; None where there is none."""
    seen = [
        file for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(path).parts)
    ]  # fmt: skip
    files = sorted((one for one in seen if one.suffix.lower() in ENDINGS), key=lambda one: one.relative_to(path).parts)
    if not files:
        return None
    if len(files) < len(seen):
        odd = sorted(str(one.relative_to(path)) for one in seen if one.suffix.lower() not in ENDINGS)
        raise TableError(
            f"{str(path)!r} holds {len(files)} Parquet files and others ({listed(odd)}); leave one kind there"
        )
    whole, rows, found = None, 0, []
    for file in files:
        with reading(file), opened(file) as one:
            schema, count = one.schema_arrow.remove_metadata(), one.metadata.num_rows
        inside = str(file.relative_to(path).as_posix())
        parts = dict(part.split("=", 1) for part in file.relative_to(path).parts[:-1] if "=" in part)
        twice = sorted(set(parts) & set(schema.names))
        if twice:
            raise TableError(f"{inside!r} has the columns {listed(twice)} in the file and in its folder; rename one")
        for name in sorted(parts):
            schema = schema.append(pa.field(name, pa.string()))
        whole = schema if whole is None else whole
        _check_alike(inside, schema, whole)
        values = {name: None if text == _HIVE_NULL else unquote(text) for name, text in parts.items()}
        found.append((file, {name: pa.scalar(value, pa.string()) for name, value in values.items()}))
        rows += count
    assert whole is not None
    return ParquetFolder(path, whole, rows, tuple(found))


def _check_alike(inside: str, schema: pa.Schema, whole: pa.Schema) -> None:
    """Raise TableError where a file's columns are not those of the first; types are named, no value is."""
    if set(schema.names) != set(whole.names) or len(schema.names) != len(whole.names):
        odd = sorted(set(schema.names) ^ set(whole.names))
        raise TableError(f"{inside!r} and the first file differ in the columns {listed(odd)}; give files that agree")
    for name in whole.names:
        if len(whole.get_all_field_indices(name)) > 1:
            raise TableError(f"{inside!r} has several columns named {name!r}; rename all but one")
        if schema.field(name).type != whole.field(name).type:
            raise TableError(
                f"{inside!r} has {schema.field(name).type} in the column {name!r} and the first file "
                f"{whole.field(name).type}; give files that agree"
            )
