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

__all__ = ["LEVELS", "OpenLabels", "PrivateData", "read", "read_columns", "seal_classes", "seal_column", "seal_numbers"]


def __getattr__(name: str) -> Any:
    # Fetched when first used: pyarrow takes a while to load.
    if name in __all__:
        return getattr(import_module("labeldp.data.door"), name)
    raise AttributeError(f"module 'labeldp.data' has no attribute {name!r}")
