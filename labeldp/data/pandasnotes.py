"""The note pandas keeps in a Parquet file, rebuilt so that it says nothing about the original labels."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyarrow import types

KEY = b"pandas"
# Anything else (`attributes` above all) is free text of the user, which may describe the labels.
_KEPT = ("index_columns", "column_indexes", "columns", "creator", "pandas_version", "partition_columns")


def cleaned(schema: pa.Schema, label: int, kind: pa.DataType, num_classes: int) -> dict[bytes, bytes]:
    """The schema's pandas note with the label's entry made anew for type `kind`; nothing if there is none."""
    try:
        notes = json.loads((schema.metadata or {})[KEY])
        kept = {key: notes[key] for key in _KEPT if key in notes}
        name = schema.field(label).name
        known = [entry for entry in kept["columns"] if _field(entry) in schema.names]
        kept["columns"] = [_entry(entry, name, kind, num_classes) for entry in known]
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
    return {KEY: json.dumps(kept).encode()}


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
