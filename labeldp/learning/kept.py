"""Released gradients and a checkpoint in a folder, so that a run killed at any moment goes on where it was.

A gradient is written and flushed before it is used. The checkpoint is replaced in one step; after it, older gradients
are dropped. Going on is: load the checkpoint, repeat the steps whose gradients are kept, ask for the next. What is
kept are releases and weights made from them: nothing that asks a vault.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Step, number of values, bytes per value, check sum of the values.
_HEAD = struct.Struct("<qqII")


class Kept:
    """The gradients and the checkpoint of one run.

    Args:
        folder: where they are; made when there is none.
        run: the public name of the run. Another run's checkpoint is refused.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with Kept(folder, "demo") as kept:
    ...     kept.add(0, torch.tensor([1.0, 2.0]))
    >>> with Kept(folder, "demo") as kept:
    ...     kept.gradient(0), kept.gradient(1)
    (tensor([1., 2.]), None)
    """

    def __init__(self, folder: Path, run: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._run = folder, run
        self._log = os.open(folder / "gradients.log", os.O_RDWR | os.O_CREAT, 0o600)
        self._gradients, self._end = _read(self._log)
        os.ftruncate(self._log, self._end)

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._log)

    def gradient(self, step: int) -> Tensor | None:
        """The gradient that was released for this step, if it is kept."""
        return self._gradients.get(step)

    def add(self, step: int, gradient: Tensor) -> None:
        """Keep the gradient of a step; returns when it is on the disk."""
        exact = gradient.dtype == torch.float64
        values = gradient.detach().to("cpu", torch.float64 if exact else torch.float32).numpy()
        content = values.tobytes()
        record = _HEAD.pack(step, values.size, values.itemsize, zlib.crc32(content)) + content
        _write(self._log, record, self._end)
        self._end += len(record)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Replace the checkpoint by the state before `step`, then forget the gradients of earlier steps."""
        draft = self._path.with_name(self._path.name + ".part")
        with draft.open("wb") as file:
            torch.save({"run": self._run, "step": step, "state": state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self._path)
        self._flush_folder()
        os.ftruncate(self._log, 0)
        self._gradients, self._end = {}, 0

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """Step and state of the checkpoint; None when there is none yet."""
        if not self._path.exists():
            return None
        # weights_only: a checkpoint is data, it cannot run code.
        found = torch.load(self._path, map_location="cpu", weights_only=True)
        if found["run"] != self._run:
            raise ValueError(f"{self._path} is the checkpoint of another run; use a new folder")
        return int(found["step"]), found["state"]

    @property
    def _path(self) -> Path:
        return self._folder / "checkpoint.pt"

    def _flush_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write(file: int, record: bytes, at: int) -> None:
    rest, place = memoryview(record), at
    while rest:
        done = os.pwrite(file, rest, place)
        rest, place = rest[done:], place + done
    os.fsync(file)


def _read(log: int) -> tuple[dict[int, Tensor], int]:
    """The gradients that were written whole, and where the last one ends: a kill may have cut the next one short."""
    gradients: dict[int, Tensor] = {}
    end = 0
    with os.fdopen(os.dup(log), "rb") as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            step, size, width, check = _HEAD.unpack(head)
            content = file.read(width * size) if size >= 0 and width in (4, 8) else b""
            if len(content) != width * size or zlib.crc32(content) != check:
                break
            gradients[step] = torch.from_numpy(np.frombuffer(content, dtype=f"<f{width}").copy())
            end += len(head) + len(content)
    return gradients, end
