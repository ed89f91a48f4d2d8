"""From raw public columns to `Columns`: standardised numbers, coded categories."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.data.splits import Columns, IntArray

Raw = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def coded(train: Raw, test: Raw, users: tuple[IntArray, IntArray] | None = None) -> tuple[Columns, Columns]:
    """Both parts from (numeric (n, d), categorical (n, c)).

    Mean and deviation are those of the training features; the vocabulary of a column is every value it takes in
    either part, sorted. Features are public, so neither costs any privacy.
    """
    centre, spread = train[0].mean(axis=0), train[0].std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    cut = len(train[1])
    both = [np.unique(column, return_inverse=True) for column in np.concatenate([train[1], test[1]]).T]
    codes = np.stack([inverse for _, inverse in both], axis=1).astype(np.int64)
    sizes = tuple(len(values) for values, _ in both)
    owners = users or (None, None)
    first, second = (
        Columns(((raw[0] - centre) / spread).astype(np.float32), part.copy(), sizes, owner)
        for raw, part, owner in zip((train, test), (codes[:cut], codes[cut:]), owners, strict=True)
    )
    return first, second
