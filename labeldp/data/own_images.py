"""Read images of your own: a folder with one folder for each class, or a table with a column of images.

The images come out open, as one array, and the labels sealed. In a folder the names of folders are the labels, so no
message names a file in it, and rows are in an order that follows from what is in the files.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.data.columns import open_table, read_one
from labeldp.data.door import PrivateData, open_column, read_ids, seal_column
from labeldp.data.open_rows import OpenLabels, OpenRows
from labeldp.data.request import TableError, declared_classes, refusing

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
Pixels = npt.NDArray[np.uint8]
Read = Callable[[], bytes]
# Bytes that all images together may take, and rows between two reports.
_MOST_BYTES, _EVERY = 8 << 30, 500
# Pixels of a side, and numbers of an image, beyond which a file that says so is damaged or hostile.
_LONGEST, _MOST_NUMBERS = 1 << 16, 1 << 28
# Of photographs that were taken with the camera on its side (EXIF 2.3): width and height change places.
_ORIENTATION, _ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)
# Files that a message names.
_NAMED = 3


@dataclass(frozen=True)
class ImageFormat:
    """How images are read: grey or in colour, their size, and where they are.

    Args:
        channels: 1 for grey, 3 for colour.
        height, width: in pixels; images of other sizes are stretched.
        column: of a table that holds them, as bytes or as names of files; empty where they are the files of a folder.

    >>> print(ImageFormat(3, 32, 48))
    3 × 32 × 48 pixels
    """

    channels: int
    height: int
    width: int
    column: str = ""

    def __post_init__(self) -> None:
        numbers = (self.channels, self.height, self.width)
        sizes = all(type(number) is int and 1 <= number <= _LONGEST for number in numbers)
        colours = self.channels in (1, 3) and math.prod(numbers) <= _MOST_NUMBERS
        if not sizes or not colours or not isinstance(self.column, str):
            raise ValueError(f"{numbers} and {self.column!r} are no format of images")

    def __str__(self) -> str:
        return f"{self.channels} × {self.height} × {self.width} pixels"


@refusing
def read_images(
    source: Path | str,
    label: str | None = None,
    classes: Sequence[str] = (),
    *,
    image: str | None = None,
    side: int | None = None,
    bounds: tuple[float, float] | None = None,
    users: str | None = None,
    ids: str | None = None,
    delimiter: str | None = None,
    test: Path | str | None = None,
    rng: SecureRandom | None = None,
    report: Callable[[int], None] | None = None,
) -> PrivateData:
    """Read images as (n, channels, height, width) and seal their labels.

    Args:
        source: a folder with one folder of images for each class; or a Parquet or CSV file, or a folder of Parquet
            files, with a column of images.
        label: the secret column of a table; None where folders are the classes.
        classes: all values that a label can have; of a folder the names of the folders in it. Declared, never read off
            the data: which occur is private.
        image: the column of images, "image" when None: their bytes (Hugging Face's `{bytes, path}` as well), or the
            names of files, beginning where the table is.
        side: stretch every image to so many pixels a side; None where all are of one size.
        bounds, users, ids, delimiter: of a table, as for `labeldp.data.read`.
        test: images like the first, of which the labels are public.
        rng: the vault's noise; operating-system entropy when None.
        report: gets how many images were read so far.

    Raises:
        TableError: with one sentence, which names no label, and no file of a folder.
    """
    path = Path(source)
    if side is not None and side < 1:
        raise TableError(f"side={side} is no number of pixels; give one of at least 1")
    if label is None:
        given = {"image": image, "bounds": bounds, "users": users, "ids": ids}
        idle = [name for name, value in given.items() if value is not None]
        if idle:
            raise TableError(f"{' and '.join(idle)} belong to a table, and {path.name} is a folder of classes")
        names = declared_classes("folder", classes)
        files, codes = _files_of(path, names)
        found, column, known = [partial(_bytes_of, file) for file in files], "", None
    else:
        names, column = tuple(str(name) for name in classes), image or "image"
        if column == label:
            raise TableError(f"label and image are both {label!r}; name the column that holds the images")
        if label in (users, ids):
            raise TableError(f"the label {label!r} cannot say whose or which a row is; name a public column for that")
        found, codes = _column(path, column, delimiter, names), None
        known = None if ids is None else read_ids(path, ids, delimiter)
    if codes is not None:
        vault = LabelVault(codes, len(names), rng=rng)
    else:
        vault = seal_column(path, str(label), names, bounds=bounds, users=users, delimiter=delimiter, rng=rng)
    if len(vault) != len(found):
        raise TableError(f"{path.name} has {len(vault)} labels in {len(found)} rows; remove blank lines")
    form, note = _format(found, path.name, side, column)
    images = _pixels(found, form, path.name, report)
    opened = None if test is None else _opened(Path(test), label, names, form, bounds is not None, delimiter)
    if opened is not None:
        opened = opened.without_training_rows(images)
    return PrivateData(
        path.name, label or "", images, vault, names, bounds, test=opened, ids=known, note=note, images=form
    )  # fmt: skip


@refusing
def seal_folders(home: Path | str, classes: Sequence[str], *, rng: SecureRandom | None = None) -> LabelVault:
    """Seal the labels of a folder that has one folder for each class, as `read_images` does, and decode no image."""
    names = declared_classes("folder", classes)
    return LabelVault(_files_of(Path(home), names)[1], len(names), rng=rng)


@refusing
def images_like(
    source: Path | str,
    form: ImageFormat,
    *,
    delimiter: str | None = None,
    keep: Sequence[str] = (),
    classes: Sequence[str] | None = None,
) -> tuple[Pixels, pa.Table]:
    """Read images as a model's were, without a label; return what else is to be known of each, by column.

    Args:
        source: one image, a folder of them, or a table with a column of images.
        form: how they are read.
        delimiter: of a CSV file.
        keep: columns of a table that are returned as they are.
        classes: of a folder that has a folder for each: its images in the order of `read_images`, without their names.

    Raises:
        TableError: as `read_images`.
    """
    path = Path(source)
    if classes is not None:
        found, beside = [partial(_bytes_of, file) for file in _files_of(path, tuple(classes))[0]], pa.table({})
    elif path.suffix.lower() in ENDINGS or (path.is_dir() and not any(path.rglob("*.parquet"))):
        if keep:
            raise TableError(f"{', '.join(keep)} cannot be kept: {path.name} has no columns; leave it out")
        files = [path] if path.is_file() else _images_in(path, path.glob("*"))
        if not files:
            raise TableError(
                f"{path.name} has no images ({', '.join(ENDINGS)}); images in folders inside it are not read, since "
                "the names of these may be labels: put those to be predicted into one folder"
            )
        found, beside = [partial(_bytes_of, file) for file in files], pa.table({"file": [file.name for file in files]})
    else:
        found = _column(path, form.column or "image", delimiter)
        beside = open_table(path, delimiter).read(list(keep), list(keep)) if keep else pa.table({})
    return _pixels(found, form, path.name), beside


def is_folder_of_classes(table: Path | str, label: str | None) -> bool:
    """Return whether this names a folder in which folders are the classes, rather than a table or a data set."""
    return label is None and Path(table).is_dir() and not any(Path(table).rglob("*.parquet"))


# -- which images there are, and in which order ------------------------------------------------------------------------


def _files_of(home: Path, names: tuple[str, ...]) -> tuple[list[Path], npt.NDArray[np.intp]]:
    """Return the images of a folder of classes and their classes' numbers, in an order that says nothing about these.

    File order would be class order, and so the labels themselves. Rows follow a hash of what is in the file, and those
    of equal files a hash of their names without the folder: moved to another class, a file stays where it was. The
    order is the same every time, so that a run which was stopped, or a budget store, finds the same rows again.
    """
    if not home.is_dir():
        raise TableError(f"there is no folder {str(home)!r}; give one that has a folder of images for each class")
    others = sum(place.is_dir() and place.name not in names and place.name[0] != "." for place in home.iterdir())
    if others:
        raise TableError(
            f"{home.name} has {others} folders that are none of the declared classes; name them all in classes, also "
            "those that are empty"
        )
    groups = [_images_in(home / name, (home / name).rglob("*")) for name in names]
    files = [file for group in groups for file in group]
    if not files:
        raise TableError(
            f"{home.name} has no images ({', '.join(ENDINGS)}) in folders that are named as the declared classes; see "
            "that it is the right folder"
        )
    inside = [str(file.relative_to(home / name)) for name, group in zip(names, groups, strict=True) for file in group]
    with ThreadPoolExecutor() as pool:
        keys = list(pool.map(_place, files, inside))
    twice = sum(times - 1 for times in Counter(keys).values())
    if twice:
        raise TableError(
            f"{home.name} has {twice} files more than once, with the same name and content: as rows they cannot be "
            "told apart. Leave the copies out, or give them names of their own"
        )
    order = sorted(range(len(files)), key=keys.__getitem__)
    codes = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    return [files[place] for place in order], codes[order]


def _place(file: Path, name: str) -> bytes:
    content, called = hashlib.sha256(_bytes_of(file)), hashlib.sha256(name.encode(errors="surrogateescape"))
    return content.digest() + called.digest()


def _images_in(home: Path, found: Iterator[Path]) -> list[Path]:
    """Return those of the files that are images by their names, and not hidden."""
    return sorted(
        file
        for file in found
        if file.suffix.lower() in ENDINGS and not any(part[0] == "." for part in file.relative_to(home).parts)
    )


def _bytes_of(file: Path) -> bytes:
    """Return what is in a file; nothing where it cannot be read, as an image that cannot be is counted."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _column(path: Path, name: str, delimiter: str | None = None, classes: Sequence[str] = ()) -> list[Read]:
    """Return what reads each image of a column: of bytes, of structs with bytes in them, or of names of files."""
    found = read_one(path, name, delimiter)
    if pa.types.is_dictionary(found.type):
        found = found.cast(found.type.value_type)
    if pa.types.is_struct(found.type):
        parts = [found.type.field(place).name for place in range(found.type.num_fields)]
        if "bytes" not in parts:
            raise TableError(f"the column {name!r} of {path.name} has the parts {parts}, and none that is 'bytes'")
        found = pa.chunked_array([chunk.field("bytes") for chunk in found.chunks], pa.binary())
    if pa.types.is_string(found.type) or pa.types.is_large_string(found.type):
        home = path if path.is_dir() else path.parent
        files = [home / (value or "") for value in found.to_pylist()]
        _refuse_missing(files, f"the column {name!r} of {path.name}", home, classes)
        return [partial(_bytes_of, file) for file in files]
    if not (pa.types.is_binary(found.type) or pa.types.is_large_binary(found.type)):
        raise TableError(f"the column {name!r} of {path.name} is of {found.type}; images are bytes, or names of files")
    return [partial(bytes, value or b"") for value in found.to_pylist()]


def _refuse_missing(files: Sequence[Path], column: str, home: Path, classes: Sequence[str]) -> None:
    """Refuse names of files that are not there. A few are shown, without folders and where they name no class."""
    missing = [file for file in files if not file.is_file()]
    if missing:
        plain = [file.name for file in missing if not any(each.casefold() in file.name.casefold() for each in classes)]
        shown = f", such as {', '.join(map(repr, plain[:_NAMED]))}" if plain else ""
        raise TableError(
            f"{len(missing)} of {len(files)} files that {column} names are not there{shown}; the names begin in "
            f"{str(home)!r}, where the table is. Put the images there, or leave their rows out"
        )


# -- from files to pixels ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    """What the beginning of an image says: its size, and whether it is grey. `deep` has more than 8 bits a channel."""

    height: int
    width: int
    grey: bool
    deep: bool


def _format(found: Sequence[Read], what: str, side: int | None, column: str) -> tuple[ImageFormat, str]:
    """Return how these images are read: grey if all are, and in colour otherwise; and a word on what is stretched."""
    if not found:
        raise TableError(f"{what} has no images: it has no rows")
    with ThreadPoolExecutor() as pool:
        seen = list(pool.map(_seen, found))
    known = [one for one in seen if one is not None]
    _refuse_unreadable(len(seen) - len(known), len(seen), what)
    deep = sum(one.deep for one in known)
    if deep:
        raise TableError(
            f"{deep} of {len(seen)} images of {what} have more than 8 bits a channel; write them again with 8"
        )
    sizes = {(one.height, one.width) for one in known}
    if len(sizes) > 1 and side is None:
        raise TableError(
            f"the images of {what} have {len(sizes)} different sizes; give a side to stretch them all to, say "
            "side=64 (--side 64)"
        )
    height, width = next(iter(sizes)) if side is None else (side, side)
    channels = 1 if all(one.grey for one in known) else 3
    each = channels * height * width
    if each > _MOST_NUMBERS or each * len(known) > _MOST_BYTES:
        raise TableError(
            f"{len(known):,} images of {channels} × {height} × {width} pixels take {each * len(known) / 2**30:.0f} GiB;"
            " give a side to bring them down to, say side=64 (--side 64)"
        )
    form = ImageFormat(channels, height, width, column)
    changed = sum((one.height, one.width) != (height, width) for one in known)
    return form, f"{changed:,} of {len(known):,} images were stretched to {form}." if changed else ""


def _refuse_unreadable(count: int, total: int, what: str) -> None:
    if count:
        raise TableError(
            f"{count} of {total} images of {what} cannot be read; which is not shown, since a place can give a label "
            "away. Take them out, or write them again"
        )


def _pixels(found: Sequence[Read], form: ImageFormat, what: str, report: Callable[[int], None] | None = None) -> Pixels:
    """Decode images into one array, (n, channels, height, width)."""
    total = len(found) * form.channels * form.height * form.width
    if total > _MOST_BYTES:
        raise TableError(f"{len(found):,} images of {form} take {total / 2**30:.0f} GiB; give fewer of them at a time")
    images, broken = np.zeros((len(found), form.channels, form.height, form.width), dtype=np.uint8), 0
    with ThreadPoolExecutor() as pool:
        for row, pixels in enumerate(pool.map(_decoded, found, repeat(form))):
            if pixels is None:
                broken += 1
            else:
                images[row] = pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
            if report is not None and row % _EVERY == 0:
                report(row)
    _refuse_unreadable(broken, len(found), what)
    return images


def _decoded(read: Read, form: ImageFormat) -> Pixels | None:
    """Return (height, width) or (height, width, 3) pixels, or None for what is no image: Pillow may name it."""
    pillow, operations = _pillow()
    try:
        with pillow.open(io.BytesIO(read())) as image:
            upright: Any = operations.exif_transpose(image) if _may_be_turned(image) else image
            shown = upright.convert("L" if form.channels == 1 else "RGB")
            if shown.size != (form.width, form.height):
                shown = shown.resize((form.width, form.height), pillow.Resampling.BILINEAR)
            return np.array(shown)
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError):
        return None


def _seen(read: Read) -> _Seen | None:
    """Read the beginning of an image; None for what is none."""
    pillow, _ = _pillow()
    try:
        with pillow.open(io.BytesIO(read())) as image:
            width, height = image.size
            if _may_be_turned(image) and image.getexif().get(_ORIENTATION) in _ON_ITS_SIDE:
                width, height = height, width
            deep = image.mode in ("I", "F") or image.mode.startswith("I;")
            return _Seen(height, width, image.mode in ("1", "L", "LA"), deep)
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError):
        return None


def _may_be_turned(image: Any) -> bool:
    # Cameras write no PNG, of which all would have to be decoded to know.
    return image.format != "PNG"


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError:
        raise TableError("images need Pillow, which is not installed: pip install 'labeldp[images]'") from None
    return Image, ImageOps


def _opened(
    path: Path, label: str | None, classes: tuple[str, ...], form: ImageFormat, numbers: bool, delimiter: str | None
) -> OpenRows:
    """Read public images to measure with, and their labels, which are open."""
    if label is None:
        files, labels = _files_of(path, classes)
        found = [partial(_bytes_of, file) for file in files]
    else:
        found = _column(path, form.column, delimiter)
        labels: Any = open_column(path, label, () if numbers else classes, delimiter)
    return OpenRows(_pixels(found, form, path.name), OpenLabels(labels))
