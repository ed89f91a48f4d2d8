"""Share between commands that read a table: options that say how columns are read, words for how they were, and `-`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labeldp.cli.options import Names
from labeldp.results.card import column_cells, one_line

if TYPE_CHECKING:
    from labeldp.data.kinds import Reading

_PLURAL = {"category": "categories", "text": "texts"}
# How files begin that are not plain text, and how their names then end.
_MAGIC = {b"PAR1": ".parquet", b"\x1f\x8b": ".csv.gz", b"\x28\xb5\x2f\xfd": ".csv.zst"}
# Columns that a summary has something to say about; --dry-run lists all.
_MOST = 4


def with_columns(command: Any) -> Any:
    """Add the options by which columns are left out, or read as what they are declared to be."""
    for kind in ("date", "text", "category", "number"):
        words = f"Columns to read as a {kind}, comma-separated, whatever they look like."
        command = click.option(f"--{kind}", type=Names(), help=words)(command)
    return click.option("--drop", type=Names(), help="Columns to leave out, comma-separated.")(command)


@contextmanager
def table_file(given: str) -> Iterator[str]:
    """Yield the path of a table. For `-`, standard input is kept in a private temporary file inside the block."""
    if given != "-":
        yield given
        return
    source = sys.stdin.buffer
    with tempfile.TemporaryDirectory(prefix="labeldp-") as folder:
        begin = source.read(4)
        kind = next((ending for magic, ending in _MAGIC.items() if begin.startswith(magic)), ".csv")
        path = Path(folder) / f"stdin{kind}"
        with path.open("wb") as sink:
            sink.write(begin)
            shutil.copyfileobj(source, sink)
        yield str(path)


def summary(readings: Sequence[Reading], note: str = "") -> list[str]:
    """Return a line or two: what the columns were read as, and what is odd about them."""
    counts = Counter(one.read_as for one in readings if one.column is not None)
    kinds = ", ".join(f"{n} {kind if n == 1 else _PLURAL.get(kind, kind + 's')}" for kind, n in counts.most_common())
    aside = [f"{one.name} ({one.note})" for one in readings if one.column is None]
    left = f"; left out: {_few(aside)}" if aside else ""
    odd = [f"{one.name} ({one.note})" for one in readings if one.read_as in ("number", "date") and one.note]
    lines = [note] if note else []
    lines.append(f"Public columns: {kinds}{left}.")
    lines += [f"Check how these were read: {_few(odd)}."] if odd else []
    return [one_line(line) for line in lines]


def _few(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - _MOST} more" if len(parts) > _MOST else ""
    return ", ".join(parts[:_MOST]) + more


def listing(readings: Sequence[Reading], note: str = "") -> str:
    """Return all columns as a table: what each was read as, the share that is missing, how many values it has."""
    rows = [("column", "read as", "missing", "values", ""), *column_cells(one.to_json() for one in readings)]
    rows = [tuple(map(one_line, row)) for row in rows]
    name, kind, share, count = (max(len(row[place]) for row in rows) for place in range(4))
    lines = [f"{a:<{name}}  {b:<{kind}}  {c:>{share}}  {d:>{count}}  {e}".rstrip() for a, b, c, d, e in rows]
    return "\n".join([one_line(note), *lines] if note else lines)
