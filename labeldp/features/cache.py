"""Arrays on disk by the hash of what they were computed from. A file that is not whole counts as missing."""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
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


# --- tensorfile --------------------
#
# Named tensors in one file, in the safetensors format: a JSON header and raw numbers. Reading it can run no code.
#
# 8 bytes     length of the header, little-endian
# header      {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [from, to]}, …, "__metadata__": {…}}
# the rest    the tensors' bytes, row by row, little-endian


_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


def write_tensors(path: Path | str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write in one step: an older file stays until the new one is whole.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "two.safetensors"
    >>> write_tensors(file, {"weight": torch.ones(2), "bias": torch.zeros(())}, {"made": "here"})
    >>> read_tensors(file)["weight"], read_metadata(file)
    (tensor([1., 1.]), {'made': 'here'})
    """
    path, header, start = Path(path), {}, 0
    if metadata:
        header["__metadata__"] = dict(metadata)
    for name, tensor in sorted(tensors.items()):
        if tensor.dtype not in _NAMES:
            raise ValueError(f"tensor {name!r} is {tensor.dtype}; convert it to one of {', '.join(_TYPES)}")
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of 8
    draft = path.with_name(path.name + ".part")
    with draft.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in sorted(tensors.items()):
            file.write(_bytes(tensor))
    os.replace(draft, path)


def read_tensors(path: Path | str) -> dict[str, Tensor]:
    """Every tensor of the file, on the CPU. ValueError when it is not whole."""
    header, data = _parts(Path(path))
    return {name: _tensor(Path(path), name, entry, data) for name, entry in header.items() if name != "__metadata__"}


def read_metadata(path: Path | str) -> dict[str, str]:
    """What the writer noted beside the tensors."""
    return {str(key): str(value) for key, value in _parts(Path(path))[0].get("__metadata__", {}).items()}


def _parts(path: Path) -> tuple[dict[str, Any], memoryview]:
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0] if len(content) >= 8 else 0
    if not 2 <= length <= len(content) - 8:
        raise ValueError(f"{path.name} is not a safetensors file, or is cut short; download or write it again")
    try:
        header = json.loads(content[8 : 8 + length])
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise ValueError(f"{path.name} has no readable header; download or write it again")
    return header, memoryview(content)[8 + length :]


def _tensor(path: Path, name: str, entry: Any, data: memoryview) -> Tensor:
    try:
        dtype, shape, (start, end) = _TYPES[entry["dtype"]], [int(n) for n in entry["shape"]], entry["data_offsets"]
        fits = 0 <= start <= end <= len(data) and end - start == math.prod(shape) * dtype.itemsize
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path.name}: the header's entry for {name!r} cannot be read; write the file again") from None
    if not fits or min(shape, default=0) < 0:
        raise ValueError(f"{path.name}: tensor {name!r} is not whole; download or write the file again")
    if start == end:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data[start:end]), dtype=dtype).reshape(shape)


def _bytes(tensor: Tensor) -> bytes:
    # Through bytes, since numpy has no bfloat16.
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
