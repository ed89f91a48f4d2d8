"""Parquet: the label column is replaced chunk by chunk; all other columns keep values, types and metadata.

Nothing of the original label column is copied: not its pages, dictionary, statistics, indexes or field
metadata. The file's own notes may describe the labels, so they are dropped, but for a pandas block
rebuilt without anything about the label. Chunks have a fixed number of rows, chosen from public sizes
only, so that not even the layout of the output depends on a label.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from labeldp.data import labels
from labeldp.data.arrow import NAN, pc, to_numbers
from labeldp.data.request import Codes, Report, Request, Sealer, TableError, check_prior, listed, usable
from labeldp.releases import FloatArray, IntArray

KEY = b"labeldp"
CHUNK_ROWS = 1 << 18
CHUNK_BYTES = 64 << 20
_FEWEST_ROWS = 64
_BUFFER = 1 << 16
PANDAS_KEY = b"pandas"
# Kept of the note of pandas: anything else (`attributes` above all) is free text, which may describe the labels.
_KEPT = ("index_columns", "column_indexes", "columns", "creator", "pandas_version", "partition_columns")


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file whose schema has been checked against a request."""

    path: Path
    schema: pa.Schema
    label: int
    priors: tuple[int, ...]
    num_rows: int
    codec: str
    chunk_rows: int

    @property
    def public(self) -> dict[str, Any]:
        """What a reader must know besides the request: nothing, the file says it."""
        return {}

    def check_labels(self, request: Request) -> None:
        """Refuse labels that cannot be sealed, before anything is spent."""
        for _ in usable(self._codes(request), request.classes):
            pass

    def codes(self, request: Request) -> Codes:
        """Return the class number of every row, for sealing; refuse them as `check_labels` does, in the same pass."""
        return np.concatenate([np.empty(0, np.int64), *usable(self._codes(request), request.classes)])

    def _codes(self, request: Request) -> Iterator[tuple[Codes, int]]:
        """Class numbers batch by batch, and how many labels are missing."""
        kind = self.schema.field(self.label).type
        for batch in _batches(self, columns=[request.label]):
            yield labels.encode(pa.chunked_array([batch.column(0)]), kind, request.classes)

    def privatize(self, draft: Path, sealer: Sealer, report: Report) -> None:
        """Write the table with private labels to `draft`, chunk by chunk."""
        privatize_parquet(self, draft, sealer, report)


def open_parquet(path: Path, request: Request) -> ParquetTable:
    """Read the footer and find the columns. No label is read, nor what the footer says about labels."""
    with reading(path), opened(path) as file:
        schema = file.schema_arrow
        label = _find(schema, request.label, "label")
        labels.class_values(request.classes, schema.field(label).type)
        priors = tuple(_find(schema, name, "prior_columns") for name in request.prior_columns)
        for place in priors:
            name, kind = schema.field(place).name, schema.field(place).type
            if not (types.is_floating(kind) or types.is_integer(kind) or types.is_decimal(kind)):
                raise TableError(f"prior_columns: column {name!r} has type {kind}; a prior needs numbers")
        used = _public_columns(file, request.label)
        rows = _rows_at_once(file.metadata, used, request)
        return ParquetTable(path, schema, label, priors, file.metadata.num_rows, _codec(used), rows)


def opened(path: Path) -> pq.ParquetFile:
    """The file, set up to read page by page: memory stays flat even when one row group is everything."""
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER, page_checksum_verification=True)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Reader's errors as one sentence that quotes nothing of the file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        # The reader's own message may quote what it stumbled over.
        kind = type(error).__name__
    else:
        return
    damaged = "it is damaged, encrypted or not Parquet; restore it"
    hint = "it is encrypted; decrypt it first" if _is_encrypted(path) else damaged
    raise TableError(f"source={str(path)!r} cannot be read as Parquet ({kind}): {hint}")


def _is_encrypted(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return file.read(4) == b"PARE"
    return False


def _find(schema: pa.Schema, name: str, argument: str) -> int:
    found = schema.get_all_field_indices(name)
    if len(found) != 1:
        seen = "is not in the file" if not found else f"is in the file {len(found)} times"
        raise TableError(
            f"{argument}: column {name!r} {seen}; the columns are {listed(schema.names)}. Name a top-level one that "
            "occurs once (case matters)"
        )
    return found[0]


def _public_columns(file: pq.ParquetFile, label: str) -> list[Any]:
    """The column chunks of the first row group, the label's left out."""
    if not file.metadata.num_row_groups:
        return []
    # Asking for the metadata of an encrypted column ends the process, so try to read the features first.
    names = [name for name in file.schema_arrow.names if name != label]
    next(file.iter_batches(batch_size=1, columns=names), None)
    group = file.metadata.row_group(0)
    return [group.column(i) for i in range(group.num_columns) if file.schema.column(i).path != label]


def _codec(columns: list[Any]) -> str:
    """The codec most columns use; zstd where this build of Arrow cannot write it."""
    names = Counter(column.compression for column in columns)
    codec = names.most_common(1)[0][0] if names else "SNAPPY"
    if codec == "UNCOMPRESSED":
        return "NONE"
    known = codec in {"SNAPPY", "GZIP", "BROTLI", "ZSTD", "LZ4", "LZ4_RAW"}
    return codec if known and pa.Codec.is_available(codec.split("_")[0].lower()) else "ZSTD"


def _rows_at_once(metadata: Any, columns: list[Any], request: Request) -> int:
    """How many rows make a chunk: by the width of the public columns and of what the mechanism needs."""
    per_class = 16 if request.is_vector or request.needs_prior else 0
    width = 1.0 + per_class * len(request.classes)
    if columns:
        # A damaged footer may say anything.
        total = max(sum(column.total_uncompressed_size for column in columns), 0)
        width += total / max(metadata.row_group(0).num_rows, 1)
    return int(min(CHUNK_ROWS, max(_FEWEST_ROWS, CHUNK_BYTES / width)))


def privatize_parquet(table: ParquetTable, draft: Path, sealer: Sealer, report: Report) -> None:
    """Write the table with private labels to `draft`, chunk by chunk."""
    schema = _new_schema(table, sealer)
    with _writer(draft, schema, table.codec) as writer:
        for chunk in _chunks(table):
            column = _responses(chunk, table, sealer)
            columns = [column if i == table.label else old for i, old in enumerate(chunk.columns)]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=table.chunk_rows)
            report(sealer.rows, sealer.rows / max(table.num_rows, 1))
    if sealer.rows != table.num_rows:
        raise TableError(
            f"source={str(table.path)!r} is damaged: {sealer.rows} rows where {table.num_rows} were announced"
        )


def _new_schema(table: ParquetTable, sealer: Sealer) -> pa.Schema:
    request = sealer.request
    old = table.schema.field(table.label)
    kind = labels.response_type(old.type, request)
    new = pa.field(old.name, kind, nullable=old.nullable)
    notes = cleaned(table.schema, table.label, kind, len(request.classes))
    public = json.dumps(request.public(sealer.rng), ensure_ascii=False)
    return table.schema.set(table.label, new).with_metadata({**notes, KEY: public.encode()})


@contextmanager
def _writer(path: Path, schema: pa.Schema, codec: str) -> Iterator[pq.ParquetWriter]:
    writer = pq.ParquetWriter(path, schema, compression=codec)
    try:
        yield writer
    except BaseException:
        # Closing writes the footer, which may fail again; the first failure is the one to report.
        with suppress(Exception):
            writer.close()
        raise
    writer.close()


def _chunks(table: ParquetTable) -> Iterator[pa.Table]:
    """The table in chunks of exactly `chunk_rows`, whatever batches the reader (so the labels) makes."""
    held: list[Any] = []
    count = 0
    for batch in _batches(table):
        rest = batch
        while count + len(rest) >= table.chunk_rows:
            wanted = table.chunk_rows - count
            yield _joined([*held, rest.slice(0, wanted)])
            rest, held, count = rest.slice(wanted), [], 0
        if len(rest):
            held.append(rest)
            count += len(rest)
    if held:
        yield _joined(held)


def _joined(batches: list[Any]) -> pa.Table:
    table = pa.Table.from_batches(batches)
    return table if len(batches) == 1 else table.combine_chunks()


def _batches(table: ParquetTable, columns: list[str] | None = None) -> Iterator[Any]:
    with reading(table.path):
        file = opened(table.path)
    with file:
        batches = file.iter_batches(batch_size=table.chunk_rows, columns=columns)
        while True:
            # Only the reading is guarded: what goes wrong at the yield is the writer's.
            with reading(table.path):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


def _responses(chunk: pa.Table, table: ParquetTable, sealer: Sealer) -> Any:
    prior = read_prior(chunk, table.priors, sealer.rows)
    kind = table.schema.field(table.label).type
    codes, missing = labels.encode(chunk.column(table.label), kind, sealer.request.classes)
    private = sealer.response(codes, missing, prior)
    return labels.decode(private.responses, kind, sealer.request)


def read_prior(chunk: pa.Table, columns: tuple[int, ...], rows_before: int) -> FloatArray | None:
    """The prior columns as an array (n, K); None when there are none."""
    if not columns:
        return None
    weights = [to_numbers(pc.coalesce(chunk.column(i).cast(pa.float64()), NAN), np.float64) for i in columns]
    return check_prior(np.stack(weights, axis=1), rows_before)


def read_public(path: Path) -> dict[str, Any] | None:
    """The parameters kept in the file itself; None when it has none."""
    with reading(path), opened(path) as file:
        text = (file.schema_arrow.metadata or {}).get(KEY)
    try:
        return None if text is None else dict(json.loads(text))
    except (ValueError, TypeError):
        raise TableError(f"{str(path)!r} has labeldp metadata that is no JSON object; the file was changed") from None


def count_rows(path: Path) -> int:
    """The number of rows by the footer."""
    with reading(path), opened(path) as file:
        return file.metadata.num_rows


def read_parquet(path: Path, request: Request) -> tuple[pa.Table, IntArray, FloatArray | None]:
    """Return the features, the private responses, and the prior if the request has one."""
    with reading(path), opened(path) as file:
        table = file.read()
    place = _find(table.schema, request.label, "label")
    expected = labels.response_type(table.schema.field(place).type, request)
    if table.schema.field(place).type != expected:
        raise TableError(f"label: column {request.label!r} is not of type {expected}; the file was changed")
    priors = tuple(_find(table.schema, name, "prior_columns") for name in request.prior_columns)
    responses = labels.responses_of(table.column(place), request)
    return table.remove_column(place), responses, read_prior(table, priors, 0)


def cleaned(schema: pa.Schema, label: int, kind: pa.DataType, num_classes: int) -> dict[bytes, bytes]:
    """Return the note of pandas without anything about the original labels; nothing if there is none.

    The label's entry is made anew, for type `kind`.
    """
    try:
        notes = json.loads((schema.metadata or {})[PANDAS_KEY])
        kept = {key: notes[key] for key in _KEPT if key in notes}
        name = schema.field(label).name
        known = [entry for entry in kept["columns"] if _field(entry) in schema.names]
        kept["columns"] = [_entry(entry, name, kind, num_classes) for entry in known]
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
    return {PANDAS_KEY: json.dumps(kept).encode()}


def _field(entry: dict[str, Any]) -> Any:
    return entry.get("field_name", entry.get("name"))


def _entry(entry: dict[str, Any], label: str, kind: pa.DataType, num_classes: int) -> dict[str, Any]:
    if _field(entry) != label:
        return entry
    pandas_type, numpy_type = _type_names(kind)
    categories = {"num_categories": num_classes, "ordered": kind.ordered} if types.is_dictionary(kind) else None
    same = {key: entry[key] for key in ("name", "field_name") if key in entry}
    return {**same, "pandas_type": pandas_type, "numpy_type": numpy_type, "metadata": categories}


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
