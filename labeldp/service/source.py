"""Know where the labels of a data set come from, so that the process of a job can seal them again.

A job runs in a process of its own, which reads the owner's table itself: no label travels between processes. That it
has read the same labels is checked by their hash under a key that is made for this one comparison.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from labeldp.core.ledger import RowIndex
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.data.door import read_ids, seal_column


@dataclass(frozen=True)
class Source:
    """A table on the owner's disk.

    Args:
        table: Parquet or CSV.
        label: its secret column.
        ids: the column that tells rows apart.
        classes, bounds: as declared.
        users: the column that says whose each row is, where all labels of a user are protected together.
        delimiter: of a CSV file.
        seed: of the noise, for tests; whatever it draws is marked.
    """

    table: str
    label: str
    ids: str
    classes: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None
    delimiter: str | None = None
    users: str | None = None
    seed: int | None = None

    def seal(self, rows: RowIndex | None = None) -> LabelVault:
        """Seal the labels; those of these rows, in this order, where some are named."""
        rng = None if self.seed is None else SecureRandom(seed=self.seed)
        return seal_column(
            Path(self.table), self.label, self.classes, bounds=self.bounds, users=self.users,
            delimiter=self.delimiter, rng=rng, rows=rows,
        )  # fmt: skip

    def read_ids(self) -> pa.Array:
        """Return the ids of the rows, as texts."""
        return texts(read_ids(Path(self.table), self.ids, self.delimiter))

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)

    @classmethod
    def parsed(cls, plain: dict[str, Any]) -> Source:
        """Return what `plain` gave."""
        bounds = plain["bounds"]
        return cls(**{**plain, "classes": tuple(plain["classes"]), "bounds": None if bounds is None else tuple(bounds)})


def texts(ids: Any) -> pa.Array:
    """Return ids as texts, whole numbers in decimal digits; ValueError where some are missing or neither."""
    found: Any = ids if isinstance(ids, (pa.Array, pa.ChunkedArray)) else pa.array(ids)
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    kind = found.type.value_type if pa.types.is_dictionary(found.type) else found.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise ValueError(f"ids are of type {kind}; give whole numbers or texts")
    if found.null_count:
        raise ValueError(f"{found.null_count} of {len(found)} ids are missing; every row needs one")
    return found.cast(pa.large_string())
