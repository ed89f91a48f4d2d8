"""Images of one's own: folders of classes, tables with bytes or names of files; labels sealed, nothing named."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labeldp.data import read, read_images
from labeldp.data.own_images import ImageFormat, images_like, seal_folders
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
    (empty := folder.parent / "empty" / "cat").mkdir(parents=True)
    with pytest.raises(TableError, match=r"has no images"):
        read_images(empty.parent, classes=("cat",))
    with pytest.raises(TableError, match=r"classes is empty"):
        read_images(folder)


def test_a_column_that_holds_no_images_is_refused(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2], "s": [{"a": 1}, {"a": 2}], "kind": ["cat", "dog"]})
    pq.write_table(table, tmp_path / "t.parquet")
    for column, message in {"n": "is of int64", "s": r"none that is 'bytes'", "kind": "are both 'kind'"}.items():
        with pytest.raises(TableError, match=message):
            read_images(tmp_path / "t.parquet", "kind", CLASSES, image=column)


def test_the_order_is_the_same_however_images_are_read(folder: Path) -> None:
    """A budget store, or a run that goes on, finds the same labels in the same rows."""
    key = b"k" * 32
    first = read(folder, classes=CLASSES)
    other = [read(folder, classes=CLASSES, side=3).vault, seal_folders(folder, CLASSES)]
    assert {vault.fingerprint(key) for vault in other} == {first.vault.fingerprint(key)}
    again = images_like(folder, ImageFormat(1, 6, 6), classes=CLASSES)[0]
    assert (again == first.features).all()


def test_a_file_that_is_moved_to_another_class_stays_where_it_was(tmp_path: Path) -> None:
    """Also among equal files, which are told apart by their names: rows are the same whatever the labels are."""
    image, (other,) = written(pixels(1)[0]), pixels(2)[1:]
    for name in ("a", "b", "c", "d"):
        (home := tmp_path / "t" / CLASSES[name in "ab"]).mkdir(parents=True, exist_ok=True)
        (home / f"{name}.png").write_bytes(image)
    (tmp_path / "t" / "cat" / "e.png").write_bytes(written(other))
    before = labels_of(read(tmp_path / "t", classes=CLASSES))
    for name in "ab":
        (tmp_path / "t" / "dog" / f"{name}.png").rename(tmp_path / "t" / "cat" / f"{name}.png")
    (tmp_path / "t" / "cat" / "c.png").rename(tmp_path / "t" / "dog" / "c.png")
    after = labels_of(read(tmp_path / "t", classes=CLASSES))
    assert (before != after).sum() == 3
    assert before.sum() == 2
    assert after.sum() == 1
    (tmp_path / "t" / "cat" / "c.png").write_bytes(image)
    with pytest.raises(TableError, match=r"^t has 1 files more than once, with the same name and content"):
        read(tmp_path / "t", classes=CLASSES)


def test_photographs_are_brought_upright_and_deep_ones_are_refused(tmp_path: Path) -> None:
    image = np.zeros((8, 16, 3), dtype=np.uint8)
    image[:, 8:] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    (home := tmp_path / "t" / "cat").mkdir(parents=True)
    Image.fromarray(image).save(home / "turned.jpg", exif=exif, quality=95)
    found = read(tmp_path / "t", classes=CLASSES).features[0]
    assert found.shape == (3, 16, 8)
    assert found[:, :7].max() < 30 < 220 < found[:, 9:].min()
    Image.fromarray(np.full((16, 8), 1000, dtype=np.uint16)).save(home / "deep.png")
    with pytest.raises(TableError, match=r"1 of 2 images of t have more than 8 bits a channel"):
        read(tmp_path / "t", classes=CLASSES)


def test_images_that_would_fill_the_memory_are_refused_before_they_are_decoded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labeldp.data.own_images._MOST_BYTES", 700)
    with pytest.raises(TableError, match=r"20 images of 1 × 6 × 6 pixels take 0 GiB; give a side"):
        read(folder, classes=CLASSES)
    assert len(read(folder, classes=CLASSES, side=5)) == 20
    # A model of somebody else's says itself how large its images are.
    with pytest.raises(TableError, match=r"20 images of 3 × 6 × 6 pixels take 0 GiB; give fewer of them at a time"):
        images_like(folder, ImageFormat(3, 6, 6), classes=CLASSES)


@pytest.mark.parametrize(
    "numbers", [(0, 6, 6), (1, 6, 1 << 20), (1, 6.0, 6), (True, 6, 6), (2, 6, 6), (3, 1 << 14, 1 << 14)]
)
def test_a_format_of_a_stranger_is_none(numbers: Any) -> None:
    with pytest.raises(ValueError, match="no format of images"):
        ImageFormat(*numbers)
