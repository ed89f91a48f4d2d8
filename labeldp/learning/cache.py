"""Arrays on disk by the hash of what they were computed from. A file that is not whole counts as missing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Raise it when the same settings come to mean other features.
_FORMAT = 1
_CHUNK = 1 << 26
_DIGEST = hashlib.sha256().digest_size


def content_key(*things: Any) -> str:
    """SHA-256 over arrays (type, shape, numbers), strings and tuples of these, and the library's version.

    >>> content_key("raw", np.zeros(3)) == content_key("raw", torch.zeros(3, dtype=torch.float64))
    True
    >>> content_key("raw", np.zeros(3)) == content_key("raw", np.zeros((3, 1)))
    False
    """
    digest = hashlib.sha256(f"labeldp {version('labeldp')} features {_FORMAT}".encode())
    _feed(digest, things)
    return digest.hexdigest()


def load_array(path: Path) -> np.ndarray | None:
    """What `save_array` wrote, or None when there is no such file or its check sum is wrong."""
    try:
        with path.open("rb") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
            stored = file.read(_DIGEST + 1)
    except (OSError, ValueError, EOFError):
        return None
    return array if stored == _checksum(array) else None


def save_array(path: Path, array: np.ndarray) -> None:
    """A .npy file that `numpy.load` can read, with a check sum after it, written in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            np.lib.format.write_array(file, array, allow_pickle=False)
            file.write(_checksum(array))
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _checksum(array: np.ndarray) -> bytes:
    digest = hashlib.sha256()
    _feed(digest, array)
    return digest.digest()


def _feed(digest: Any, thing: Any) -> None:
    """Every part with its kind and length before it, so that two different things never read the same."""
    if isinstance(thing, Tensor | np.ndarray):
        array = thing.detach().cpu() if isinstance(thing, Tensor) else thing
        digest.update(f"array {str(array.dtype).removeprefix('torch.')} {tuple(array.shape)};".encode())
        for part in _raw_bytes(array):
            digest.update(part)
    elif isinstance(thing, tuple | list):
        digest.update(f"tuple {len(thing)};".encode())
        for part in thing:
            _feed(digest, part)
    else:
        text = str(thing).encode()
        digest.update(f"text {len(text)};".encode() + text)


def _raw_bytes(array: Tensor | np.ndarray) -> Iterable[memoryview]:
    if isinstance(array, Tensor):
        array = array.contiguous().reshape(-1).view(torch.uint8).numpy() if array.numel() else np.empty(0, np.uint8)
    if array.dtype == object:
        raise ValueError("inputs are an array of Python objects; convert it to numbers or fixed-length strings")
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
    for start in range(0, len(flat), _CHUNK):
        yield flat[start : start + _CHUNK].data
