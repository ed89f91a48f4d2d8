"""Queries as plain messages, to send what `RemoteVault` never would."""

import secrets

import numpy as np

from labeldp.service import wire
from labeldp.service.source import texts
from tests.service.servicehelp import NAME, names


def bound(connection, rows):
    """The service's name of all rows."""
    import pyarrow as pa

    schema = pa.schema([pa.field("id", pa.large_string(), nullable=False)])
    batch = pa.RecordBatch.from_arrays([texts(names(rows))], schema=schema)
    return connection.exchange({"do": "bind", "dataset": NAME}, schema, lambda: [batch])[0]["rows"]


def header(named, mechanism, **more):
    """The message that asks for a mechanism, and its columns."""
    question = wire.encode(mechanism)
    told = {
        "do": "ask", "dataset": NAME, "request": secrets.token_hex(8), "rows": named, "verb": question.verb,
        "settings": question.settings, "plan_id": None, "plan": None, **more,
    }  # fmt: skip
    columns = dict(question.columns)
    if question.stream is not None:
        columns = {wire.FEATURES: np.concatenate([np.asarray(chunk) for chunk in question.stream.read()])}
        inner = question.settings.get("inner", {"settings": question.settings})["settings"]
        columns = {name: column.astype(inner["kind"]) for name, column in columns.items()}
    return told, columns


def ask(connection, told, columns=None):
    """Send a message; what comes back."""
    schema, batches = wire.arrow_schema({}), list
    if columns:
        declared = {
            name: (column.dtype.name, None if column.ndim == 1 else column.shape[1]) for name, column in columns.items()
        }
        schema = wire.arrow_schema(declared)
        batches = lambda: [wire.to_batch(schema, columns)]  # noqa: E731
    answer, content = connection.exchange(told, schema, batches)
    return answer, bytes(content)
