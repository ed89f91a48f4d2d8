"""Arrays and named tensors on disk, and the hash of what they were computed from. Reading them runs no code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from labeldp.atomic import replacing

# Raise it when the same settings come to mean other features.
_FORMAT = 1
_CHUNK = 1 << 26
_DIGEST = hashlib.sha256().digest_size


def content_key(*things: Any) -> str:
    """Return the SHA-256 of arrays (type, shape, numbers), strings and tuples of these, and the library's version.

    >>> content_key("raw", np.zeros(3)) == content_key("raw", torch.zeros(3, dtype=torch.float64))
    True
    >>> content_key("raw", np.zeros(3)) == content_key("raw", np.zeros((3, 1)))
    False
    """
    digest = hashlib.sha256(f"labeldp {version('labeldp')} features {_FORMAT}".encode())
    _feed(digest, things)
    return digest.hexdigest()


def load_array(path: Path) -> np.ndarray | None:
    """Return what `save_array` wrote, or None when there is no such file or its check sum is wrong."""
    try:
        with path.open("rb") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
            stored = file.read(_DIGEST + 1)
    except (OSError, ValueError, EOFError):
        return None
    return array if stored == _checksum(array) else None


def save_array(path: Path, array: np.ndarray) -> None:
    """Write a .npy file that `numpy.load` can read, with a check sum after it, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft, draft.open("wb") as file:
        np.lib.format.write_array(file, array, allow_pickle=False)
        file.write(_checksum(array))


def _checksum(array: np.ndarray) -> bytes:
    digest = hashlib.sha256()
    _feed(digest, array)
    return digest.digest()


def _feed(digest: Any, thing: Any) -> None:
    """Hash every part with its kind and length before it, so that two different things never read the same."""
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


def write_tensors(path: Path | str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write named tensors as a safetensors file, in one step: an older file stays until the new one is on the disk.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "two.safetensors"
    >>> write_tensors(file, {"weight": torch.ones(2), "bias": torch.zeros(())}, {"made": "here"})
    >>> read_tensors(file)["weight"], read_metadata(file)
    (tensor([1., 1.]), {'made': 'here'})
    """
    # Copies, because the library refuses tensors that share memory, as tied weights do.
    owned = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    try:
        content = safetensors.torch.save(owned, dict(metadata) if metadata else None)
    except KeyError as error:
        odd = [name for name, tensor in owned.items() if tensor.dtype == error.args[0]]
        raise ValueError(f"tensors {odd} are {error}, which safetensors cannot hold; convert them first") from None
    with replacing(Path(path)) as draft:
        draft.write_bytes(content)


def read_tensors(path: Path | str) -> dict[str, Tensor]:
    """Return every tensor of a safetensors file, on the CPU; raise ValueError when the file is not whole."""
    try:
        return safetensors.torch.load(Path(path).read_bytes())
    except SafetensorError as error:
        raise _damaged(path, error) from None


def read_metadata(path: Path | str) -> dict[str, str]:
    """Return what the writer noted beside the tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except SafetensorError as error:
        raise _damaged(path, error) from None


def _damaged(path: Path | str, error: SafetensorError) -> ValueError:
    return ValueError(f"{Path(path).name} is not a whole safetensors file ({error}); download or write it again")
