"""Read images of your own: a folder with one folder for each class, or a table with a column of images.

The images come out open, as one array, and the labels sealed. In a folder the names of folders are the labels, so no
message names a file, and rows are in an order that depends on pixels alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.data.columns import read_one
from labeldp.data.door import PrivateData, seal_column
from labeldp.data.image_files import order_of_content
from labeldp.data.request import TableError, declared_classes, refusing

_ENDINGS = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
Pixels = npt.NDArray[np.uint8]


@refusing
def read_images(
    source: Path | str,
    label: str | None = None,
    classes: Sequence[str] = (),
    *,
    image: str = "image",
    side: int | None = None,
    rng: SecureRandom | None = None,
) -> PrivateData:
    """Read images as (n, channels, height, width) and seal their labels.

    Args:
        source: a folder with one folder of images for each class; or a Parquet or CSV file, or a folder of Parquet
            files, with a column of images.
        label: the secret column of a table; None where folders are the classes.
        classes: all values that a label can have; of a folder the names of the folders in it. Declared, never read off
            the data: which occur is private.
        image: the column of images: their bytes (Hugging Face's `{bytes, path}` as well), or the names of files,
            beginning where the table is.
        side: stretch every image to so many pixels a side; None where all are of one size.
        rng: the vault's noise; operating-system entropy when None.

    Raises:
        TableError: with one sentence, which names no image and no label.
    """
    path = Path(source)
    if label is None:
        return _folders(path, tuple(classes), side, rng)
    if image == label:
        raise TableError(f"label and image are both {label!r}; name the column that holds the images")
    contents = _column(path, image)
    images = _together(contents, path.name, side)
    return PrivateData(path.name, label, images, seal_column(path, label, classes, rng=rng), tuple(classes))


def _folders(home: Path, classes: tuple[str, ...], side: int | None, rng: SecureRandom | None) -> PrivateData:
    names = declared_classes("folder", classes)
    if not home.is_dir():
        raise TableError(f"there is no folder {str(home)!r}; give one that has a folder of images for each class")
    others = sum(place.is_dir() and place.name not in names for place in home.iterdir())
    if others:
        raise TableError(
            f"{home.name} has {others} folders that are none of the declared classes; name them all in classes, also "
            "those that are empty"
        )
    groups = [sorted(path for path in (home / name).glob("*") if path.suffix.lower() in _ENDINGS) for name in names]
    paths = [path for group in groups for path in group]
    images = _together([path.read_bytes for path in paths], home.name, side)
    labels = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    # The order of files is the order of classes, and would be the labels themselves.
    order = order_of_content(images)
    return PrivateData(home.name, "", images[order], LabelVault(labels[order], len(names), rng=rng), names)


def _column(path: Path, name: str) -> list[Callable[[], bytes]]:
    """Return what reads each image of a column: of bytes, of structs with bytes in them, or of names of files."""
    found = read_one(path, name)
    if pa.types.is_struct(found.type):
        parts = [found.type.field(place).name for place in range(found.type.num_fields)]
        if "bytes" not in parts:
            raise TableError(f"the column {name!r} of {path.name} has the parts {parts}, and none that is 'bytes'")
        found = pa.chunked_array([chunk.field("bytes") for chunk in found.chunks], pa.binary())
    home = path if path.is_dir() else path.parent
    if pa.types.is_string(found.type) or pa.types.is_large_string(found.type):
        return [partial(_of_file, home, value) for value in found.to_pylist()]
    if not (pa.types.is_binary(found.type) or pa.types.is_large_binary(found.type)):
        raise TableError(f"the column {name!r} of {path.name} is of {found.type}; images are bytes, or names of files")
    return [partial(bytes, value or b"") for value in found.to_pylist()]


def _of_file(home: Path, name: str | None) -> bytes:
    try:
        return b"" if name is None else (home / name).read_bytes()
    except OSError:
        return b""


def _together(contents: Sequence[Callable[[], bytes]], what: str, side: int | None) -> Pixels:
    """Decode images into one array: grey if all are, and in colour otherwise."""
    if side is not None and side < 1:
        raise TableError(f"side={side} is no number of pixels; give one of at least 1")
    if not contents:
        raise TableError(f"{what} has no images ({', '.join(sorted(_ENDINGS))}); see that it is the right folder")
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(partial(_decoded, side=side), contents))
    known = [pixels for pixels in found if pixels is not None]
    if len(known) < len(found):
        raise TableError(
            f"{len(found) - len(known)} of {len(found)} images of {what} cannot be read; which is not shown, since a "
            "place can give a label away. Take them out, or write them again"
        )
    sizes = {pixels.shape[:2] for pixels in known}
    if len(sizes) > 1:
        raise TableError(f"the images of {what} have {len(sizes)} different sizes; give a side to stretch them all to")
    grey = all(pixels.ndim == 2 for pixels in known)
    if grey:
        return np.stack(known)[:, None]
    colour = [pixels if pixels.ndim == 3 else np.repeat(pixels[:, :, None], 3, axis=2) for pixels in known]
    return np.ascontiguousarray(np.stack(colour).transpose(0, 3, 1, 2))


def _decoded(read: Callable[[], bytes], side: int | None) -> Pixels | None:
    """Return (height, width) or (height, width, 3) pixels, or None for what is no image: Pillow may name it."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise TableError("images need Pillow, which is not installed: pip install 'labeldp[images]'") from None
    try:
        with Image.open(io.BytesIO(read())) as image:
            shown: Any = image.convert("L" if image.mode in ("1", "L") else "RGB")
            if side is not None and shown.size != (side, side):
                shown = shown.resize((side, side), Image.Resampling.BILINEAR)
            return np.array(shown)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
