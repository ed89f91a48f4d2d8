"""Small files in the official layouts, and the facts that go with them. Labels are chosen by the test."""

from __future__ import annotations

import gzip
import io
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np

from labeldp.data import files as facts

_COLUMNS = """
timestamp uid campaign conversion conversion_timestamp conversion_id attribution click click_pos click_nb cost cpo
time_since_last_click cat1 cat2 cat3 cat4 cat5 cat6 cat7 cat8 cat9
"""
CRITEO_HEADER = _COLUMNS.split()


def tiny(official, *rows, **changes):
    """The facts of a made-up copy: other row counts, no digests unless given."""
    return replace(official, rows=rows, **{"digests": {}, **changes})


def truth(benchmark):
    """What the vault holds. Only a test may ask."""
    return benchmark.vault.reveal("a test compares it with what it wrote").tolist()


def images_hold_nothing_else(images):
    """No memory behind the images but their own: a view could carry label bytes along."""
    owner = images
    while owner.base is not None:
        owner = owner.base
    return isinstance(owner, np.ndarray) and owner.nbytes == images.nbytes


def put(path: Path, content: bytes, *, zipped: bool = False) -> Path:
    path = path.with_name(path.name + ".gz") if zipped else path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if zipped else content)
    return path


def random_bytes(*shape, seed=0):
    return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def put_idx(root: Path, name: str, labels, test_labels, *, zipped: bool = True):
    images, test_images = random_bytes(len(labels), 28, 28), random_bytes(len(test_labels), 28, 28, seed=1)
    arrays = (images, np.array(labels), test_images, np.array(test_labels))
    for file, array in zip(facts.MNIST.files, arrays, strict=True):
        put(root / name / file, idx(array), zipped=zipped)
    return images, test_images


def cifar_records(labels, seed=0) -> bytes:
    """Records of label bytes and planar RGB; each label is an int, or a tuple (coarse, fine)."""
    heads = np.array(labels, dtype=np.uint8).reshape(len(labels), -1)
    return np.hstack([heads, random_bytes(len(labels), 3072, seed=seed)]).tobytes()


def mosaic(records: bytes, columns: int) -> bytes:
    """The images of CIFAR-10 records as one lossless WebP."""
    from PIL import Image

    planar = np.frombuffer(records, dtype=np.uint8).reshape(-1, 3073)[:, 1:]
    tiles = planar.reshape(-1, columns, 3, 32, 32).transpose(0, 3, 1, 4, 2)
    pixels = tiles.reshape(tiles.shape[0] * 32, columns * 32, 3)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "WEBP", lossless=True, exact=True)
    return stream.getvalue()


def png(seed: int, mode: str = "RGB") -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(random_bytes(32, 32, 3, seed=seed)).convert(mode).save(stream, "PNG")
    return stream.getvalue()


def criteo(rows: list[dict]) -> bytes:
    """A table with the official columns; what a row does not say is −1."""
    lines = [CRITEO_HEADER, *([str(row.get(name, -1)) for name in CRITEO_HEADER] for row in rows)]
    return "".join("\t".join(line) + "\n" for line in lines).encode()
