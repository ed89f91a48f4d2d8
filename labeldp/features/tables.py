"""Turn tables into features: numbers standardised and binned, categories one-hot or hashed."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labeldp.features.extract import Scaling, principal_components, sample_rows
from labeldp.models.zoo import checked_count

Array = Tensor | np.ndarray
# Numeric columns (n, a) and categorical ones (n, b); either may have no columns.
Tables = tuple[Array, Array]

_CHUNK = 16_384


@dataclass(frozen=True)
class Table:
    """How to encode a table (numeric (n, a), categorical (n, b)).

    A number becomes (x − mean) / spread; a missing one (NaN) becomes 0, and a column with missing numbers gets a second
    one that marks it. With `bins` it becomes one-hot as well, so that a linear head can learn any curve: a value more
    frequent than one in `bins` has a bin to itself, the others share bins of about as many rows each. With `steps` it
    also becomes 0 or 1 for each of a few thresholds, x ≥ t: coarse, they are what can be learnt where noise is large.

    A category becomes one-hot, in a column of few values, all zero for a value not seen before; else ±1 at one of
    `buckets` places, place and sign from a hash of the column's number and the value (Weinberger et al. 2009), so that
    products of rows are unbiased and new values need no care.

    Args:
        one_hot: columns with at most this many values are one-hot, others hashed.
        buckets: places shared by all hashed columns.
        bins: of a numeric column; 0 for none.
        steps: thresholds of a numeric column, about one less than this; 0 for none.
        scale: factor on standardised numbers; below 1 where bins and steps hold the same.
        clip: standardised numbers beyond this are cut down to it; None for no limit.
        dims: principal components kept; None keeps all coordinates.
        seed: of the hash, and of the components.

    >>> table = (np.array([[1.0], [3.0]]), np.array([["red"], ["blue"]]))
    >>> Table().fit(table).features(table).tolist()
    [[-1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    """

    one_hot: int = 64
    buckets: int = 256
    bins: int = 0
    steps: int = 0
    scale: float = 1.0
    clip: float | None = None
    dims: int | None = None
    seed: int = 0

    def fit(self, inputs: Tables, device: torch.device | str | None = None) -> TableMap:
        """Find means, spreads and values of public rows."""
        numeric, categorical = checked_table(inputs)
        place = torch.device(device or "cpu")
        buckets, most = checked_count("buckets", self.buckets), checked_count("one_hot", self.one_hot, low=0)
        present = ~np.isnan(numeric)
        counts = np.maximum(present.sum(axis=0), 1)
        mean = np.where(present, numeric, 0).sum(axis=0) / counts
        spread = np.sqrt(np.where(present, (numeric - mean) ** 2, 0).sum(axis=0) / counts)
        found = (np.unique(column) for column in categorical.T)
        values = tuple(unique if len(unique) <= most else None for unique in found)
        hashed = buckets if any(kept is None for kept in values) else 0
        edges, steps = (_all_edges(numeric, name, getattr(self, name)) for name in ("bins", "steps"))
        missing, limits = np.asarray(~present.all(axis=0)), _checked_limits(self.clip, self.scale)
        plain = TableMap(mean, spread, missing, values, hashed, self.seed, place, edges, steps, *limits)
        if self.dims is None:
            return plain
        rows = sample_rows(len(numeric), 50_000, self.seed).numpy()
        sample = plain.features((numeric[rows], categorical[rows]))
        # Principal components of the columns as they are: zeros and ones are not scaled to like variance.
        centred = Scaling(sample.mean(dim=0), torch.ones(sample.shape[1], device=sample.device))
        components = principal_components(centred(sample), self.dims, seed=self.seed)
        return replace(plain, scaling=replace(centred, basis=components))


@dataclass(frozen=True, eq=False)
class TableMap:
    """An encoding ready for use.

    Args:
        mean, spread: of the numeric columns, missing numbers left out.
        missing: which numeric columns had missing numbers.
        values: per categorical column its values in order, or None when it is hashed.
        buckets: places for hashed columns, 0 when there are none.
        edges: per numeric column the first value of every bin but the lowest; none without bins.
        steps: per numeric column its thresholds.
        clip, scale: limit of standardised numbers, and the factor on them.
    """

    mean: np.ndarray
    spread: np.ndarray
    missing: np.ndarray
    values: tuple[np.ndarray | None, ...]
    buckets: int
    seed: int
    device: torch.device
    edges: tuple[np.ndarray, ...] = ()
    steps: tuple[np.ndarray, ...] = ()
    clip: float = math.inf
    scale: float = 1.0
    scaling: Scaling | None = None

    @property
    def dim(self) -> int:
        """Number of features."""
        if self.scaling is not None:
            return self.scaling.dim
        one_hot = sum(len(kept) for kept in self.values if kept is not None)
        one_hot += sum(len(edges) + 1 for edges in self.edges) + sum(map(len, self.steps))
        return len(self.mean) + int(self.missing.sum()) + one_hot + self.buckets

    @property
    def plain(self) -> np.ndarray:
        """Numbers of the features that say everything once: numbers as they are, and categories, no bins or steps."""
        if self.scaling is not None:
            return np.arange(self.dim)
        begin = len(self.mean) + int(self.missing.sum())
        again = sum(len(edges) + 1 for edges in self.edges) + sum(map(len, self.steps))
        return np.r_[:begin, begin + again : self.dim]

    def features(self, inputs: Tables) -> Tensor:
        """Return (n, dim)."""
        numeric, categorical = checked_table(inputs)
        if numeric.shape[1] != len(self.mean) or categorical.shape[1] != len(self.values):
            raise ValueError(
                f"inputs have {numeric.shape[1]} numeric and {categorical.shape[1]} categorical columns; "
                f"the table fitted had {len(self.mean)} and {len(self.values)}"
            )
        result = torch.empty(len(numeric), self.dim, device=self.device)
        for start in range(0, len(numeric), _CHUNK):
            span = slice(start, start + _CHUNK)
            rows = torch.from_numpy(self._encoded(numeric[span], categorical[span])).to(self.device)
            result[span] = rows if self.scaling is None else self.scaling(rows)
        return result

    def standardised(self, numeric: np.ndarray) -> np.ndarray:
        """Return (x − mean) / spread, 0 where missing, clipped and scaled, (n, a)."""
        inverse = np.divide(1.0, self.spread, out=np.zeros_like(self.spread), where=self.spread > 0)
        return np.clip(np.nan_to_num((numeric - self.mean) * inverse), -self.clip, self.clip) * self.scale

    def _encoded(self, numeric: np.ndarray, categorical: np.ndarray) -> np.ndarray:
        parts = [self.standardised(numeric), np.isnan(numeric)[:, self.missing]]
        parts += [_binned(column, edges) for column, edges in zip(numeric.T, self.edges, strict=False)]
        parts += [column[:, None] >= steps for column, steps in zip(numeric.T, self.steps, strict=False)]
        hashed = np.zeros((len(numeric), self.buckets))
        for number, (column, kept) in enumerate(zip(categorical.T, self.values, strict=True)):
            if kept is not None:
                check_alike(column, kept, number)
                parts.append(column[:, None] == kept)
            else:
                _add_hashed(hashed, column, number, self.seed)
        return np.concatenate([*parts, hashed], axis=1, dtype=np.float32)


def bin_edges(values: np.ndarray, bins: int) -> np.ndarray:
    """Return the first value of every bin but the lowest: about `bins` at most, none for a column without values.

    >>> bin_edges(np.array([0.0] * 6 + [1.0, 2.0, 3.0, 4.0]), 3)
    array([1., 3.])
    """
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= bins:
        return distinct[1:]
    heavy = counts > len(values) / bins
    light, free = np.where(heavy, 0, counts), max(1, bins - int(heavy.sum()))
    # The middle of a value's rows among those of light values, in [0, 1), decides which bin it falls into.
    middle = (np.cumsum(light) - light / 2) / max(int(light.sum()), 1)
    group = np.where(heavy, -1 - np.arange(len(distinct)), np.minimum(middle * free, free - 1).astype(np.int64))
    return distinct[1:][group[1:] != group[:-1]]


def _binned(column: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return one-hot (n, len(edges) + 1); all zero for a missing number."""
    place = np.searchsorted(edges, column, side="right")
    return (place[:, None] == np.arange(len(edges) + 1)) & ~np.isnan(column)[:, None]


def _all_edges(numeric: np.ndarray, name: str, bins: int) -> tuple[np.ndarray, ...]:
    if not checked_count(name, bins, low=0):
        return ()
    return tuple(bin_edges(column[~np.isnan(column)], bins) for column in numeric.T)


def _checked_limits(clip: float | None, scale: float) -> tuple[float, float]:
    if clip is not None and not clip > 0:
        raise ValueError(f"clip={clip} is not a limit of standardised numbers; give a number above 0, say 4, or None")
    if not 0 <= scale < math.inf:
        raise ValueError(f"scale={scale} is not a factor on standardised numbers; give a number of at least 0")
    return math.inf if clip is None else float(clip), float(scale)


def checked_table(inputs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return float64 numbers and an array of categories with as many rows, or raise ValueError."""
    if not isinstance(inputs, tuple | list) or len(inputs) != 2:
        raise ValueError("inputs is not a pair; give (numeric columns, categorical columns), either with no columns")
    numeric, categorical = (part.cpu().numpy() if isinstance(part, Tensor) else np.asarray(part) for part in inputs)
    if numeric.ndim != 2 or categorical.ndim != 2 or len(numeric) != len(categorical):
        raise ValueError(
            f"numeric has shape {numeric.shape}, categorical {categorical.shape}; give (n, a) and (n, b) of the same n"
        )
    numeric = numeric.astype(np.float64, copy=False)
    if np.isinf(numeric).any():
        raise ValueError("numeric has infinite values; leave missing numbers as NaN and cap the rest")
    if categorical.dtype.kind == "f":
        raise ValueError("categorical holds floats; give whole numbers or strings, and floats as numeric columns")
    return numeric, categorical.astype(str) if categorical.dtype == object else categorical


def check_alike(column: np.ndarray, values: np.ndarray, number: int) -> None:
    """Raise ValueError where text stands in place of whole numbers, or the other way round."""
    if (column.dtype.kind in "US") != (values.dtype.kind in "US"):
        raise ValueError(f"categorical column {number} is {column.dtype}, but the one fitted was {values.dtype}")


def _add_hashed(rows: np.ndarray, column: np.ndarray, number: int, seed: int) -> None:
    """Add ±1 to each row at the place of its value."""
    values, which = np.unique(column, return_inverse=True)
    places, positive = hashed_places(values, number, seed, rows.shape[1])
    rows[np.arange(len(rows)), places[which]] += np.where(positive[which], 1.0, -1.0)


def hashed_places(values: np.ndarray, number: int, seed: int, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the place of each value of a column, and whether its sign is positive."""
    # Python's own hash differs between processes.
    digests = [hashlib.blake2b(f"{seed} {number} {value}".encode(), digest_size=8).digest() for value in values]
    codes = np.array([int.from_bytes(digest, "little") for digest in digests], dtype=np.uint64)
    return ((codes >> np.uint64(1)) % np.uint64(buckets)).astype(np.int64), (codes & np.uint64(1)).astype(bool)
