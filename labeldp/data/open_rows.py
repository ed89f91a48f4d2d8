"""Hold public rows to measure with: their labels are open, and no training row is among them.

An accuracy is a sum over labels, exact and without noise. On rows whose labels are public it costs nothing; on training
rows, a few such sums (accuracy, AUC and log loss of a known model) can single out labels that the certificate protects.
Rows are compared by what is public, so which ones match says nothing about a label.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from labeldp.data.request import TableError

if TYPE_CHECKING:
    import pyarrow as pa

# Images need no pyarrow, which takes a while to load.
Features: TypeAlias = "pa.Table | npt.NDArray[np.uint8]"
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class OpenLabels:
    """Public labels of a test table, (n,): class numbers or numbers. For measuring; nothing can be trained on them.

    >>> len(OpenLabels(np.array([0, 1, 1])))
    3
    """

    values: npt.NDArray[Any] = field(repr=False)

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("OpenLabels are for measuring, not for training; bring training labels in by labeldp.data.read")


@dataclass(frozen=True, eq=False)
class OpenRows:
    """Public features and their open labels, without the `left_out` rows that were trained on."""

    features: Features = field(repr=False)
    labels: OpenLabels
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.features)

    def without_training_rows(self, training: Features, ids: tuple[Any, Any] | None = None) -> OpenRows:
        """Return the rows that were not trained on; refuse rows that mostly were, as `others` does."""
        kept = others(self.features, training, ids)
        if kept.all():
            return self
        rows: Any = self.features
        features = rows.filter(kept) if hasattr(rows, "column_names") else rows[kept]
        return OpenRows(features, OpenLabels(self.labels.values[kept]), int(np.count_nonzero(~kept)))


def others(rows: Any, training: Any, ids: tuple[Any, Any] | None = None) -> npt.NDArray[np.bool_]:
    """Return which rows were not trained on, (m,); refuse a table that is mostly made of training rows.

    Without ids a row counts as a training row if it equals one in every feature. With ids these decide who is who: two
    people may be alike. A table is refused when more of its rows are alike than halfway between all of them and the
    share that chance would give (and four standard deviations above it), which is that of the training rows with a
    twin among themselves: so a training table that was shuffled, saved in another format or given new ids is refused,
    and other people of few kinds are not.

    Args:
        rows: a table as `labeldp.data.columns.conformed` returns it, or images (m, …).
        training: the same of the training rows.
        ids: of the rows and of the training rows, as texts.

    >>> import pyarrow as pa
    >>> ages = pa.table({"age": [31.0, 57.0, 64.0]})
    >>> others(pa.table({"age": [57.0, 18.0, 19.0]}), ages).tolist()
    [False, True, True]
    """
    if hasattr(training, "parts"):
        # Texts are told apart as far as `rows` has them: that is enough to find these rows again.
        seen, known = _hashes(rows, rows), np.concatenate([_hashes(part, rows) for part in training.parts()])
    else:
        seen, known = _hashes(rows, training), _hashes(training, training)
    _, twin, times = np.unique(known, return_inverse=True, return_counts=True)
    alike, chance = np.isin(seen, known), float((times[twin] > 1).mean())
    same = alike if ids is None else np.isin(np.asarray(ids[0]), np.asarray(ids[1]))
    if ids is not None and same.mean() > 1 / 2:
        raise _refusal(same, "have the id of")
    spread = math.sqrt(chance * (1 - chance) * (1 / len(seen) + 1 / len(known)))
    if alike.mean() > max((1 + chance) / 2, chance + 4 * spread) or same.all():
        raise _refusal(alike, "are in every feature like")
    return ~same


def _refusal(which: npt.NDArray[np.bool_], how: str) -> TableError:
    return TableError(
        f"test: {int(which.sum())} of {len(which)} rows {how} rows that are trained on, whose labels are secret; leave "
        "it out, or give other rows, whose labels are public (where people are others but alike, name a column that "
        "tells them apart by --id)"
    )


def _hashes(rows: Any, training: Any) -> Hashes:
    """Return 64 bits for each row: equal rows have equal ones, and two others with chance 2⁻⁶⁴."""
    if not hasattr(rows, "column_names"):
        digests = (hashlib.blake2b(row, digest_size=8).digest() for row in np.ascontiguousarray(rows))
        return np.frombuffer(b"".join(digests), np.uint64)
    found = np.zeros(len(rows), np.uint64)
    for name in training.column_names:
        # One step of splitmix64 (Steele, Lea and Flood 2014) for each column; products wrap around.
        found = (found ^ _coded(rows.column(name), training.column(name))) + np.uint64(0x9E3779B97F4A7C15)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found ^= found >> np.uint64(31)
    return found


def _coded(values: Any, training: Any) -> Hashes:
    """Return a number for each value: equal ones have equal numbers, in both tables."""
    if str(values.type) == "string":
        from labeldp.data.labels import places_in

        # A text that no training row has may share its number with others of that kind.
        return places_in(values, training.unique()).astype(np.uint64)
    # In single precision, or a table saved in it would be another. One bit pattern for all NaNs, and for both zeros.
    single = values.to_numpy().astype(np.float32) + np.float32(0)
    return np.where(np.isnan(single), np.float32(np.nan), single).view(np.uint32).astype(np.uint64)


def same_file(one: Path, other: Path) -> bool:
    """Return whether both are one file, or hold the same bytes."""
    if not (one.is_file() and other.is_file()) or one.stat().st_size != other.stat().st_size:
        return False
    if one.samefile(other):
        return True
    digests = []
    for path in (one, other):
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").digest())
    return digests[0] == digests[1]
