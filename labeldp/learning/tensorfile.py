"""Named tensors in one file, in the safetensors format: a JSON header and raw numbers. Reading it can run no code.

8 bytes     length of the header, little-endian
header      {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [from, to]}, …, "__metadata__": {…}}
the rest    the tensors' bytes, row by row, little-endian
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
