"""Images of one's own: folders of classes, tables with bytes or names of files; labels sealed, nothing named."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labeldp.data import read_images
from labeldp.data.request import TableError

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install labeldp[images]")
CLASSES = ("cat", "dog")


def pixels(rows: int, colour: bool = False, side: int = 6) -> Any:
    shape = (rows, side, side, 3) if colour else (rows, side, side)
    return np.random.default_rng(0).integers(0, 256, size=shape, dtype=np.uint8)


def written(image: Any) -> bytes:
    place = io.BytesIO()
    Image.fromarray(image).save(place, "PNG")
    return place.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, image in enumerate(pixels(20)):
        home = tmp_path / "images" / CLASSES[number % 2]
        home.mkdir(parents=True, exist_ok=True)
        (home / f"{number}.png").write_bytes(written(image))
    return tmp_path / "images"


def labels_of(data: Any) -> Any:
    return data.vault.reveal("a test, with labels that it made itself")


def test_a_folder_of_classes(folder: Path) -> None:
    data = read_images(folder, classes=CLASSES)
    assert data.features.shape == (20, 1, 6, 6)
    known = {image.tobytes(): number % 2 for number, image in enumerate(pixels(20))}
    assert [known[image.tobytes()] for image in data.features[:, 0]] == labels_of(data).tolist()


def test_the_order_of_rows_says_nothing_about_classes(folder: Path) -> None:
    """Another naming of the classes gives the same order; file order would put one class first."""
    first = read_images(folder, classes=CLASSES)
    (folder / "cat").rename(folder / "zebra")
    second = read_images(folder, classes=("dog", "zebra"))
    assert (first.features == second.features).all()
    assert 0 < labels_of(first)[:10].sum() < 10


@pytest.mark.parametrize("kind", ["bytes", "struct", "names", "csv"])
def test_a_table_with_a_column_of_images(kind: str, tmp_path: Path) -> None:
    images = pixels(8, colour=True)
    contents, names = [written(image) for image in images], [f"{number}.png" for number in range(8)]
    for name, content in zip(names, contents, strict=True):
        (tmp_path / name).write_bytes(content)
    labels = ["cat", "dog"] * 4
    structs = [{"bytes": content, "path": None} for content in contents]
    column = {"bytes": contents, "struct": structs, "names": names, "csv": names}[kind]
    if kind == "csv":
        path = tmp_path / "t.csv"
        path.write_text("image,kind\n" + "".join(f"{a},{b}\n" for a, b in zip(names, labels, strict=True)))
    else:
        path = tmp_path / "t.parquet"
        pq.write_table(pa.table({"image": column, "kind": labels}), path)
    data = read_images(path, "kind", CLASSES)
    assert (data.features == images.transpose(0, 3, 1, 2)).all()
    assert labels_of(data).tolist() == [0, 1] * 4


def test_sizes_and_colours_are_made_alike(folder: Path) -> None:
    (folder / "dog" / "large.png").write_bytes(written(pixels(1, colour=True, side=9)[0]))
    with pytest.raises(TableError, match=r"have 2 different sizes; give a side"):
        read_images(folder, classes=CLASSES)
    assert read_images(folder, classes=CLASSES, side=8).features.shape == (21, 3, 8, 8)


def test_what_is_wrong_is_counted_and_not_named(folder: Path) -> None:
    (folder / "dog" / "secret.png").write_bytes(b"no image")
    with pytest.raises(TableError, match=r"^1 of 21 images of images cannot be read") as caught:
        read_images(folder, classes=CLASSES)
    assert "secret" not in str(caught.value)
    assert "dog" not in str(caught.value)
    with pytest.raises(TableError, match=r"has 1 folders that are none of the declared classes"):
        read_images(folder, classes=("cat", "horse"))
    with pytest.raises(TableError, match=r"there is no folder"):
        read_images(folder / "nothing", classes=CLASSES)
    with pytest.raises(TableError, match=r"has no images"):
        read_images(folder.parent, classes=("images",))
    with pytest.raises(TableError, match=r"classes is empty"):
        read_images(folder)


def test_a_column_that_holds_no_images_is_refused(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2], "s": [{"a": 1}, {"a": 2}], "kind": ["cat", "dog"]})
    pq.write_table(table, tmp_path / "t.parquet")
    for column, message in {"n": "is of int64", "s": r"none that is 'bytes'", "kind": "are both 'kind'"}.items():
        with pytest.raises(TableError, match=message):
            read_images(tmp_path / "t.parquet", "kind", CLASSES, image=column)
