"""Small public tables that ship with the library."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

ADULT_CLASSES = ("<=50K", ">50K")


def adult_path(split: str = "train") -> Path:
    """The bundled Adult census table as a Parquet file; its label column is `income`.

    Barry Becker and Ronny Kohavi (1996), Adult, UCI Machine Learning Repository, CC BY 4.0.
    """
    names = {"train": "adult.parquet", "test": "adult-test.parquet"}
    if split not in names:
        raise ValueError(f"split={split!r} is not a split of Adult; give one of {sorted(names)}")
    return Path(str(resources.files("labeldp.data") / "adult" / names[split]))
