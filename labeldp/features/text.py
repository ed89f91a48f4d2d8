"""Turn columns of prose into features: words and pairs of words, weighted by how rare they are, projected.

Nothing is downloaded and nothing is learnt from a label. Where you have a sentence encoder (`Encoded`), its outputs
take the place of words: it knows more about them than your rows do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labeldp.features.extract import Device
from labeldp.features.sparse import Projected, ProjectedMap
from labeldp.features.tables import Table, TableMap
from labeldp.models.zoo import checked_count

# All columns of prose share so many features.
_MOST_DIMS = 512


@dataclass(frozen=True)
class Text:
    """How to encode columns of prose (n, c), each for itself.

    Words, and pairs of words that follow each other, are counted at `buckets` places by a hash without a seed
    (Weinberger et al. 2009), so that no list of words is kept and new words need no care. A count k becomes
    (1 + ln k) · idf, idf = 1 + ln((1 + n)/(1 + rows with it)) (Spärck Jones 1972), a row is scaled to length 1, and
    rows are projected on their leading singular vectors (`Projected`).

    Args:
        buckets: places for words and pairs.
        dims: features of a column; fewer where there are many columns.
        seed: of the projection.

    >>> texts = np.array([["a good day"], ["a bad day"], ["the plot is thin"]], dtype=object)
    >>> Text(dims=2).fit(texts).features(texts).shape
    torch.Size([3, 2])
    """

    buckets: int = 1 << 14
    dims: int = 128
    seed: int = 0

    def fit(self, inputs: Any, device: Device = None) -> TextMap:
        """Find weights and directions of public rows."""
        from sklearn.feature_extraction.text import TfidfTransformer

        texts = _checked(inputs)
        buckets, maps = checked_count("buckets", self.buckets), []
        how = Projected(max(1, min(self.dims, _MOST_DIMS // max(texts.shape[1], 1))), seed=self.seed)
        for column in texts.T:
            counts = _counted(column, buckets)
            idf = TfidfTransformer().fit(counts).idf_
            maps.append((idf.astype(np.float32), how.fit(_weighted(counts, idf), device)))
        return TextMap(tuple(idf for idf, _ in maps), tuple(found for _, found in maps))


@dataclass(frozen=True, eq=False)
class TextMap:
    """An encoding of prose ready for use: per column the weights of places, (buckets,), and the projection."""

    idf: tuple[np.ndarray, ...]
    maps: tuple[ProjectedMap, ...]
    scaling: None = None

    @property
    def dim(self) -> int:
        """Number of features."""
        return sum(found.dim for found in self.maps)

    def features(self, inputs: Any) -> Tensor:
        """Return (n, dim)."""
        texts = _checked(inputs)
        if texts.shape[1] != len(self.maps):
            raise ValueError(f"inputs have {texts.shape[1]} columns of text; those fitted had {len(self.maps)}")
        columns = zip(texts.T, self.idf, self.maps, strict=True)
        parts = [found.features(_weighted(_counted(column, len(idf)), idf)) for column, idf, found in columns]
        return torch.cat(parts, dim=1)


# What sentences an encoder is known by again, and how far its outputs may be from what they were.
_PROBES = ("a", "The quick brown fox jumps over the lazy dog.")
_ALIKE = 1e-2
# Root mean square length of a row of an encoder's outputs, as of `Projected`, and how many texts it is given at once.
_LENGTH, _AT_ONCE = 2.0, 1024
Encode = Callable[[list[str]], Any]


@dataclass(frozen=True)
class Encoded:
    """How to encode columns of prose (n, c) by a sentence encoder of yours, each for itself: its outputs, centred.

    Args:
        encode: from a list of texts to one row of numbers for each, (m, d); a missing text is an empty one. Whatever it
            is run on, it is yours: no library of encoders is needed here, and nothing is downloaded.

    >>> lengths = Encoded(lambda texts: [[len(text), text.count(" ")] for text in texts])
    >>> texts = np.array([["a good day"], ["bad"], ["the plot is thin"]], dtype=object)
    >>> lengths.fit(texts).features(texts).shape
    torch.Size([3, 2])
    """

    encode: Encode

    def fit(self, inputs: Any, device: Device = None) -> EncodedMap:
        """Find the mean and length of outputs for public rows."""
        texts, place = _checked(inputs), torch.device(device or "cpu")
        outputs = [_outputs(self.encode, column) for column in texts.T]
        means = tuple(part.mean(axis=0) for part in outputs)
        squares = [float(np.square(part - mean).sum(axis=1).mean()) for part, mean in zip(outputs, means, strict=True)]
        factors = tuple(_LENGTH / square**0.5 if square > 0 else 0.0 for square in squares)
        return EncodedMap(means, factors, _outputs(self.encode, np.array(_PROBES, dtype=object)), self.encode, place)


@dataclass(frozen=True, eq=False)
class EncodedMap:
    """An encoder of the user's, ready for use: (outputs − mean) · factor, per column.

    `probes` are its outputs for two fixed sentences, by which it is known again; `encode` is in no file.
    """

    means: tuple[np.ndarray, ...]
    factors: tuple[float, ...]
    probes: np.ndarray
    encode: Encode = field(repr=False)
    device: torch.device
    scaling: None = None

    @property
    def dim(self) -> int:
        """Number of features."""
        return sum(map(len, self.means))

    def features(self, inputs: Any) -> Tensor:
        """Return (n, dim)."""
        texts = _checked(inputs)
        if texts.shape[1] != len(self.means):
            raise ValueError(f"inputs have {texts.shape[1]} columns of text; those fitted had {len(self.means)}")
        columns = zip(texts.T, self.means, self.factors, strict=True)
        parts = [(_outputs(self.encode, column, len(mean)) - mean) * factor for column, mean, factor in columns]
        return torch.from_numpy(np.concatenate(parts, axis=1)).to(self.device)

    def knows(self, encode: Encode) -> bool:
        """Return whether this encoder gives what the one that was fitted with gave."""
        found = _outputs(encode, np.array(_PROBES, dtype=object))
        return found.shape == self.probes.shape and np.allclose(found, self.probes, rtol=_ALIKE, atol=_ALIKE)


def _outputs(encode: Encode, texts: np.ndarray, width: int | None = None) -> np.ndarray:
    """Return the encoder's rows of numbers, (n, d) in float32, or raise ValueError that says what it gave."""
    parts = []
    for start in range(0, len(texts), _AT_ONCE):
        some = ["" if text is None else str(text) for text in texts[start : start + _AT_ONCE]]
        given: Any = encode(some)
        rows = np.asarray(given.detach().cpu() if isinstance(given, Tensor) else given, dtype=np.float32)
        if rows.ndim != 2 or len(rows) != len(some) or width not in (None, rows.shape[1]):
            wanted = "d" if width is None else str(width)
            raise ValueError(
                f"encoder gave an array of shape {rows.shape} for {len(some)} texts; give a function from a list of "
                f"texts to one row of numbers for each, ({len(some)}, {wanted})"
            )
        if not np.isfinite(rows).all():
            raise ValueError("encoder gave numbers that are not finite; give a function whose outputs all are")
        parts.append(rows)
        width = rows.shape[1]
    return np.concatenate(parts) if parts else np.zeros((0, width or 0), dtype=np.float32)


@dataclass(frozen=True)
class TableAndText:
    """How to encode a table that has prose: (numeric (n, a), categorical (n, b), prose (n, c))."""

    table: Table
    text: Text | Encoded

    def fit(self, inputs: Any, device: Device = None) -> TableAndTextMap:
        """Fit both to public rows."""
        numeric, categorical, prose = inputs
        return TableAndTextMap(self.table.fit((numeric, categorical), device), self.text.fit(prose, device))


@dataclass(frozen=True, eq=False)
class TableAndTextMap:
    """The features of a table, then those of its prose."""

    table: TableMap
    text: TextMap | EncodedMap
    scaling: None = None

    @property
    def dim(self) -> int:
        """Number of features."""
        return self.table.dim + self.text.dim

    @property
    def plain(self) -> np.ndarray:
        """Numbers of the features that say everything once: those of the table, and all of the prose."""
        return np.r_[self.table.plain, self.table.dim : self.dim]

    def features(self, inputs: Any) -> Tensor:
        """Return (n, dim)."""
        numeric, categorical, prose = inputs
        return torch.cat([self.table.features((numeric, categorical)), self.text.features(prose)], dim=1)


def _counted(column: np.ndarray, buckets: int) -> Any:
    """Return how often each place is met by a row's words and pairs of words, a sparse array (n, buckets)."""
    from sklearn.feature_extraction.text import HashingVectorizer

    # Counts, without the lengths and signs that it gives otherwise.
    plain: Any = {"norm": None, "alternate_sign": False}
    words = HashingVectorizer(n_features=buckets, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", **plain)
    return words.transform(column)


def _weighted(counts: Any, idf: np.ndarray) -> Any:
    """Return (1 + ln k) · idf in place of counts, rows of length 1; a row without words stays zero."""
    from sklearn.preprocessing import normalize

    rows = counts.copy()
    rows.data = (1 + np.log(rows.data)) * idf[rows.indices]
    return normalize(rows, copy=False)


def _checked(inputs: Any) -> np.ndarray:
    texts = np.asarray(inputs, dtype=object)
    if texts.ndim != 2:
        raise ValueError(f"texts have shape {texts.shape}; give columns of text (n, c)")
    return texts
