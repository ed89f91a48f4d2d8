"""Read the published images: idx files, CIFAR's binary records, WebP mosaics of them, folders of PNG files. No pickle.

Each reader returns both parts as (public images, labels); whoever calls it seals the training labels at once.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.data import files as locate
from labeldp.data.files import CorruptDataError, Official

Images = npt.NDArray[np.uint8]
LabelledImages = tuple[Images, npt.NDArray[Any]]
_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


def read_idx(official: Official, root: Path | str | None) -> tuple[LabelledImages, LabelledImages]:
    """Read both parts of a data set in MNIST's layout: images (n, 1, height, width) and labels (n,)."""
    found = locate.contents(official, root)
    images, labels, test_images, test_labels = (_idx(official, name, found[name]) for name in official.files)
    for part, count, expected in zip(("training", "test"), (images, test_images), official.rows, strict=True):
        locate.check_rows(official, part, len(count), expected)
    return (images[:, None], labels), (test_images[:, None], test_labels)


def _idx(official: Official, name: str, content: bytes) -> npt.NDArray[np.uint8]:
    # Big-endian: two zero bytes, the type (8: unsigned byte), the number of axes, one uint32 per axis, the data.
    axes = 3 if "idx3" in name else 1
    shape = (
        tuple(np.frombuffer(content[4 : 4 + 4 * axes], dtype=">u4").tolist()) if len(content) >= 4 + 4 * axes else ()
    )
    if content[:4] != bytes([0, 0, 8, axes]) or len(content) != 4 + 4 * axes + math.prod(shape):
        raise CorruptDataError(
            f"{official.name}: {name} ({len(content)} bytes) is not an idx file of unsigned bytes with {axes} axes, or "
            f"is cut short; download it again from {official.site}"
        )
    # A copy, because torch refuses memory that cannot be written.
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape).copy()


def read_cifar(
    official: Official, root: Path | str | None, *, label_bytes: int
) -> tuple[LabelledImages, LabelledImages]:
    """Read both parts of a data set of CIFAR records: label bytes, the last of which counts, then planar RGB."""
    found, length = _mosaics(official, root) or locate.contents(official, root), label_bytes + _PIXELS
    for name in official.files:
        if len(found[name]) % length:
            raise CorruptDataError(
                f"{official.name}: {name} has {len(found[name])} bytes, not whole records of {length}; it is cut short "
                f"or not the binary version. Download it again from {official.site}"
            )
    parts = [np.frombuffer(found[name], dtype=np.uint8).reshape(-1, length) for name in official.files]
    train, test = _joined(parts[:-1], label_bytes), _joined(parts[-1:], label_bytes)
    for part, (images, _), expected in zip(("training", "test"), (train, test), official.rows, strict=True):
        locate.check_rows(official, part, len(images), expected)
    return train, test


def _joined(parts: list[npt.NDArray[np.uint8]], label_bytes: int) -> LabelledImages:
    # concatenate copies: a view of the records would carry the labels along behind the images.
    images = np.concatenate([records[:, label_bytes:] for records in parts])
    labels = np.concatenate([records[:, label_bytes - 1] for records in parts])
    return images.reshape(-1, 3, _SIDE, _SIDE), labels


def _mosaics(official: Official, root: Path | str | None) -> dict[str, bytes]:
    """Return the official records, rebuilt from NAME.webp and NAME.labels; empty without them, or beside .bin files."""
    places = locate.folders(official, root)
    if all(locate.find(places, name) for name in official.files):
        return {}
    names = {name: [name.replace(".bin", suffix) for suffix in (".webp", ".labels")] for name in official.files}
    paths = {name: [locate.find(places, part) for part in pair] for name, pair in names.items()}
    if not any(path for pair in paths.values() for path in pair):
        return {}
    if not all(path for pair in paths.values() for path in pair):
        raise locate.missing(official, root, tuple(part for pair in names.values() for part in pair))
    rebuilt: dict[str, bytes] = {}
    for name, pair in paths.items():
        mosaic, labels = (locate.read(official, path) for path in pair if path)
        rebuilt[name] = locate.checked(official, name, _rebuilt(official, name, mosaic, labels))
    return rebuilt


def _rebuilt(official: Official, name: str, mosaic: bytes, labels: bytes) -> bytes:
    pixels = _decoded(mosaic)
    rows, columns = (0, 0) if pixels is None else (pixels.shape[0] // _SIDE, pixels.shape[1] // _SIDE)
    if pixels is None or pixels.shape[:2] != (rows * _SIDE, columns * _SIDE) or rows * columns != len(labels):
        raise CorruptDataError(
            f"{official.name}: the mosaic of {name} cannot be read or does not hold {len(labels)} tiles of "
            f"{_SIDE}×{_SIDE}; copy it again or use the official binary version from {official.site}"
        )
    # (tile row, y, tile column, x, channel) to (tile row, tile column, channel, y, x)
    planar = pixels.reshape(rows, _SIDE, columns, _SIDE, 3).transpose(0, 2, 4, 1, 3).reshape(-1, _PIXELS)
    return np.column_stack([np.frombuffer(labels, dtype=np.uint8), planar]).tobytes()


def read_folders(official: Official, root: Path | str | None) -> tuple[LabelledImages, LabelledImages]:
    """Read both parts of a data set of PNG files in train/CLASS/ and test/CLASS/."""
    places = locate.folders(official, root)
    home = next((place for place in places if (place / "train").is_dir() and (place / "test").is_dir()), None)
    if home is None:
        raise locate.missing(official, root, ("train/", "test/"))
    train, test = (
        _png_part(official, home / part, expected)
        for part, expected in zip(("train", "test"), official.rows, strict=True)
    )
    return train, test


def _png_part(official: Official, folder: Path, expected: int) -> LabelledImages:
    groups = [sorted((folder / name).glob("*.png")) for name in official.classes]
    paths = [path for group in groups for path in group]
    locate.check_rows(official, folder.name, len(paths), expected)
    images, broken = np.empty((len(paths), 3, _SIDE, _SIDE), dtype=np.uint8), 0
    with ThreadPoolExecutor() as pool:
        for row, pixels in enumerate(pool.map(lambda path: _decoded(path.read_bytes()), paths)):
            if pixels is None or pixels.shape != (_SIDE, _SIDE, 3):
                broken += 1
            else:
                images[row] = pixels.transpose(2, 0, 1)
    if broken:
        raise CorruptDataError(
            f"{official.name}: {broken} of {len(paths)} files in {folder} are not readable {_SIDE}×{_SIDE} images. "
            "Which ones is not shown: their folders and names give the class away. Unpack the archive again"
        )
    order = order_of_content(images)
    return images[order], np.repeat(np.arange(len(groups)), [len(group) for group in groups])[order]


def order_of_content(images: Iterable[npt.NDArray[np.uint8]]) -> npt.NDArray[np.intp]:
    """Return an order that depends on the images only: file order is class order, and would be the labels themselves.

    Equal images are put in random order, because any fixed rule would follow their folders.
    """
    keys = np.array([int.from_bytes(hashlib.sha256(image.tobytes()).digest()[:8]) for image in images], dtype=np.uint64)
    mixed = np.random.default_rng().permutation(len(keys))
    return mixed[np.argsort(keys[mixed], kind="stable")]


def _decoded(content: bytes) -> npt.NDArray[np.uint8] | None:
    """Return RGB pixels (height, width, 3), or None for what is no image: Pillow's own message may name the file."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "WebP and PNG files need Pillow, which is not installed: pip install 'labeldp[images]'"
        ) from None
    try:
        with Image.open(io.BytesIO(content)) as image:
            return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
