"""Images in files: folders that are classes, tables with a column; trained, predicted and audited; nothing named."""

import csv
import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from labeldp.data import read
from labeldp.results.folder import read as read_folder
from labeldp.results.model import load
from tests.commands import labeldp

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install labeldp[images]")
# Class names that no message may have unless they were declared.
UP, DOWN = "zz-upper-secret", "qq-lower-secret"
CLASSES = f"{UP},{DOWN}"
USUAL = ("--classes", CLASSES, "--epsilon", "8", "--method", "one_shot", "--quiet")


def images(count, seed=0, side=8):
    """Bright in the upper or in the lower half."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    found = rng.integers(0, 100, (count, side, side)).astype(np.uint8)
    for image, label in zip(found, labels, strict=True):
        image[label * side // 2 : (label + 1) * side // 2] += 100
    return found, labels


def written(image, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def folders(home, count=150, seed=0):
    for number, (image, label) in enumerate(zip(*images(count, seed), strict=True)):
        written(image, home / (UP, DOWN)[label] / f"{number}.png")
    return home


def table(home, count=150, seed=0, classes=(UP, DOWN)):
    found, labels = images(count, seed)
    for number, image in enumerate(found):
        written(image, home / "files" / f"{number}.png")
    with (home / "t.csv").open("w", newline="") as sink:
        lines = [(f"files/{number}.png", classes[label], number) for number, label in enumerate(labels)]
        csv.writer(sink).writerows([("file", "kind", "number"), *lines])
    return home / "t.csv"


def predicted(model, source, *more):
    """What is written: the names of columns, and the rows."""
    out = model.with_name(f"p{len(list(model.parent.glob('p*.csv')))}.csv")
    labeldp("predict", model, source, *more, "--out", out, "--quiet", check=0)
    with out.open() as sink:
        names, *rows = csv.reader(sink)
    return names, rows


@pytest.fixture
def photos(tmp_path):
    return folders(tmp_path / "photos")


def test_a_folder_of_classes_is_trained_on_and_its_model_predicts_new_files(photos, tmp_path):
    out = tmp_path / "m"
    labeldp("train", photos, *USUAL, "--out", out, check=0)
    labeldp("verify", out, check=0)
    for number, image in enumerate(images(40, 1)[0]):
        written(image, tmp_path / "new" / f"{number}.png")
    # Another size than the training images had.
    written(np.kron(images(1, 1)[0][0], np.ones((2, 2), np.uint8)), tmp_path / "new" / "0.png")
    names, rows = predicted(out, tmp_path / "new")
    assert names == ["file", "prediction", "probability"]
    found = {row[0]: row[1] for row in rows}
    truth = {f"{number}.png": (UP, DOWN)[label] for number, label in enumerate(images(40, 1)[1])}
    assert found.keys() == truth.keys()
    assert sum(found[name] == truth[name] for name in truth) > 30
    (one,) = predicted(out, tmp_path / "new" / "7.png")[1]
    assert one[:2] == ["7.png", found["7.png"]]
    described = read_folder(out).model["images"]
    assert described == {"channels": 1, "height": 8, "width": 8, "column": ""}
    assert "1 × 8 × 8 pixels" in (out / "model_card.md").read_text()
    labeldp("report", out, "--out", tmp_path / "page.html", check=0)


def test_a_table_of_files_and_a_table_of_bytes_are_the_same_data(tmp_path):
    path = table(tmp_path)
    with path.open() as source:
        rows = list(csv.DictReader(source))
    content = [(tmp_path / row["file"]).read_bytes() for row in rows]
    pq.write_table(pa.table({"image": content, "kind": [row["kind"] for row in rows]}), tmp_path / "t.parquet")
    first = read(path, "kind", (UP, DOWN), image="file")
    second = read(tmp_path / "t.parquet", "kind", (UP, DOWN), image="image")
    assert (first.features == second.features).all()
    out = tmp_path / "m"
    labeldp("train", path, "--image", "file", "--label", "kind", *USUAL, "--out", out, check=0)
    names, rows = predicted(out, path, "--keep", "number")
    assert names == ["number", "prediction", "probability"]
    assert [row[0] for row in rows] == list(map(str, range(150)))
    assert [row[1:] for row in rows] == predicted(out, tmp_path / "t.parquet", "--image", "image")[1]


def test_open_images_measure_the_model(photos, tmp_path):
    folders(tmp_path / "others", 60, seed=2)
    labeldp("train", photos, *USUAL, "--test", tmp_path / "others", "--out", tmp_path / "m", check=0)
    test = read_folder(tmp_path / "m").metrics["test"]
    assert (test["rows"], test["accuracy"] > 0.8) == (60, True)
    said = labeldp("train", photos, *USUAL, "--test", photos, "--out", tmp_path / "n", check=2).stderr
    assert "trained on, whose labels are secret" in said


def test_no_folder_and_no_file_is_in_a_message(photos, tmp_path):
    """Folders are labels, and so may be the names of the files in them."""
    wanted = ("--epsilon", "1", "--out", tmp_path / "m")
    said = [labeldp("train", photos, *wanted, check=2).stderr]
    said += [labeldp("train", photos, "--classes", "a,b", *wanted, check=2).stderr]
    said += [labeldp("predict", tmp_path / "m", photos, check=2).stderr]
    (photos / UP / "planted-secret.png").write_bytes(b"no image")
    said += [labeldp("train", photos, "--classes", CLASSES, *wanted, check=2).stderr]
    assert "1 of 151 images of photos cannot be read" in said[-1]
    written(images(1, side=9)[0][0], photos / UP / "planted-secret.png")
    said += [labeldp("train", photos, "--classes", CLASSES, *wanted, check=2).stderr]
    assert "2 different sizes" in said[-1]
    assert "--side 64" in said[-1]
    said += [labeldp("train", photos, "--classes", CLASSES, "--side", "8", "--dry-run", *wanted).stdout]
    assert "1 of 151 images were stretched" in said[-1]
    assert not any("secret" in one.replace("whose labels are secret", "").replace("secret column", "") for one in said)
    assert not (tmp_path / "m").exists()


def test_files_that_are_missing_are_named_unless_their_names_are_classes(tmp_path):
    path = table(tmp_path, 20, classes=("up", "down"))
    (tmp_path / "files" / "7.png").unlink()
    path.write_text(path.read_text().replace("files/8.png", "files/up/up-8.png"))
    wanted = ("--image", "file", "--label", "kind", "--classes", "up,down", "--epsilon", "1", "--out", tmp_path / "m")
    said = labeldp("train", path, *wanted, check=2).stderr
    assert "2 of 20 files that the column 'file' of t.csv names are not there, such as '7.png'" in said
    assert "up" not in said


def test_a_broken_image_costs_nothing_and_a_whole_folder_is_charged(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labeldp(
        "budget",
        "create",
        photos,
        "--name",
        "photos",
        "--classes",
        CLASSES,
        "--epsilon",
        "20",
        "--delta",
        "1e-5",
        check=0,
    )

    def spent():
        (one,) = json.loads(labeldp("budget", "show", "--json").stdout)
        return one["spent"]

    whole = photos / UP / "new.png"
    wanted = ("train", photos, *USUAL, "--store", "budgets.db", "--out")
    whole.write_bytes(b"no image")
    labeldp(*wanted, "m", check=2)
    assert spent() == 0
    whole.unlink()
    # In another size, and from another order of files: the same labels.
    labeldp(*wanted, "m", "--side", "6", check=0)
    assert 0 < spent() <= 8


def test_without_pillow_the_hint_names_an_extra_that_exists(photos, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    said = labeldp("train", photos, *USUAL, "--out", tmp_path / "m", check=2).stderr
    assert "pip install 'labeldp[images]'" in said


class Means(nn.Module):
    """Means of the upper and the lower half, and a number of one's own."""

    def __init__(self, more=0.0):
        super().__init__()
        self.more = nn.Parameter(torch.tensor(more))

    def forward(self, images):
        halves = images.mean((1, 3)).unflatten(1, (2, -1)).mean(2)
        return torch.cat((halves, halves[:, :1] * halves[:, 1:] + self.more), 1)


def saved(path, more=0.0):
    torch.jit.trace(Means(more), torch.rand(2, 1, 8, 8)).save(path)
    return path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_encoder_in_a_file_makes_the_features_and_is_given_again_to_predict(photos, tmp_path):
    file, out = saved(tmp_path / "e.pt"), tmp_path / "m"
    labeldp("train", photos, *USUAL, "--encoder", file, "--out", out, check=0)
    known = [row[1] for row in predicted(out, photos / UP, "--encoder", file)[1]]
    assert known.count(UP) > 0.9 * len(known) > 30
    assert "--encoder FILE" in labeldp("predict", out, photos / UP, check=2).stderr
    other = saved(tmp_path / "other.pt", 1.0)
    assert "not the one" in labeldp("predict", out, photos / UP, "--encoder", other, check=2).stderr
    assert "cannot be read" in labeldp("predict", out, photos / UP, "--encoder", tmp_path / "no.pt", check=2).stderr
    (tmp_path / "odd.pt").write_bytes(b"no network")
    said = labeldp("predict", out, photos / UP, "--encoder", tmp_path / "odd.pt", check=2).stderr
    assert "is no network that can be used here" in said
    said = labeldp("train", "adult", "--epsilon", "1", "--encoder", file, "--out", tmp_path / "n", check=2).stderr
    assert "--encoder makes features of images" in said
    audited = json.loads(labeldp("audit", out, "--encoder", file, "--json", check=0).stdout)
    assert 7 < audited["of"]["epsilon"] <= 8


def test_numbers_of_images_are_learnt_from_a_table(tmp_path):
    path = table(tmp_path, 300, classes=("0", "1"))
    out = tmp_path / "m"
    wanted = ("--image", "file", "--label", "kind", "--task", "regression", "--range", "0", "1", "--epsilon", "8")
    labeldp("train", path, *wanted, "--out", out, "--quiet", check=0)
    found = load(out).predict(read(path, "kind", bounds=(0, 1), image="file").features)
    assert np.corrcoef(found, images(300)[1])[0, 1] > 0.7


def test_options_that_mean_nothing_are_refused(photos, tmp_path):
    path, wanted = table(tmp_path, 12), ("--epsilon", "1", "--out", tmp_path / "m")
    for more, message in {
        ("--classes", CLASSES, "--drop", "x"): "drop mean nothing with images",
        ("--classes", CLASSES, "--id", "x"): "ids belong to a table",
        ("--task", "regression", "--range", "0", "1"): "--range is for labels that are numbers",
    }.items():
        assert message in labeldp("train", photos, *more, *wanted, check=2).stderr
    both = ("--label", "kind", "--classes", CLASSES, *wanted)
    assert "side=8 is for images" in labeldp("train", path, "--side", "8", *both, check=2).stderr
    assert "label and image are both" in labeldp("train", path, "--image", "kind", *both, check=2).stderr
