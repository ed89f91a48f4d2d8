"""Read a folder of Parquet files as one table: partitioned data sets, in a fixed order of rows, batch by batch.

Files come in the order of their paths, folder by folder, names compared character by character; rows in the order in
which they stand in their file. So row i is the same row every time, whatever wrote the files. Folders named `key=value`
become columns, as Hive and Spark write them; files and folders whose names begin with `_` or `.` are notes and are
passed over. All files must have the same columns, in any order, of the same types.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from labeldp.data.parquet import ParquetTable, ParquetWriter, opened, reading
from labeldp.data.request import Request, TableError, listed

ENDINGS = (".parquet", ".pq")
_BATCH_ROWS = 1 << 16
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class ParquetFolder(ParquetTable):
    """Parquet files whose footers have been read, as one table; see above for its rows.

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
