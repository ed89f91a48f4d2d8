"""Tables and data sets: public features out, labels straight into a vault.

>>> from labeldp import data
>>> data.read("adult")
PrivateData('adult.parquet', 32561 rows, labels sealed)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labeldp.data.door import (
        LEVELS,
        OpenLabels,
        PrivateData,
        read,
        read_columns,
        seal_classes,
        seal_column,
        seal_numbers,
    )
    from labeldp.data.own_images import read_images
    from labeldp.data.released import ReleasedLabels
    from labeldp.data.tables import read_private, read_released

__all__ = [
    "LEVELS", "OpenLabels", "PrivateData", "ReleasedLabels", "read", "read_columns", "read_images",
    "read_private", "read_released", "seal_classes", "seal_column", "seal_numbers",
]  # fmt: skip
_ELSEWHERE = {
    "ReleasedLabels": "released", "read_images": "own_images", "read_private": "tables", "read_released": "tables",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    # Fetched when first used: pyarrow takes a while to load.
    if name in __all__:
        return getattr(import_module(f"labeldp.data.{_ELSEWHERE.get(name, 'door')}"), name)
    raise AttributeError(f"module 'labeldp.data' has no attribute {name!r}")
