"""Between Arrow and numpy by way of buffers: `pyarrow.array` and `to_numpy` import pandas where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

# Arrow makes these functions at import time, where no type checker sees them.
pc: Any = pyarrow.compute


def of_numbers(values: npt.NDArray[Any]) -> Any:
    """The same numbers as an Arrow array, without a copy where they lie in a row."""
    flat = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(flat.dtype), len(flat), [None, pa.py_buffer(flat)])


def of_bytes(values: Sequence[bytes]) -> Any:
    """Byte strings as a large binary array."""
    offsets = np.concatenate(([0], np.cumsum([len(value) for value in values]))).astype(np.int64)
    return of_pieces(b"".join(values), offsets)


def of_pieces(data: bytes, offsets: npt.NDArray[np.int64]) -> Any:
    """The pieces of `data` between one offset and the next, as a large binary array that copies nothing."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def to_numbers(values: Any, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An Arrow array of this type, which has no nulls, as a numpy array."""
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if not len(whole):
        return np.empty(0, dtype)
    return np.frombuffer(whole.buffers()[1], dtype, whole.offset + len(whole))[whole.offset :]


MINUS_ONE = of_numbers(np.array([-1], np.int32))[0]
ZERO = of_numbers(np.array([0.0]))[0]
NAN = of_numbers(np.array([np.nan]))[0]
NO_BYTES = of_bytes([b""])
