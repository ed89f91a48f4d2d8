"""Nothing but what a mechanism draws depends on a label: with blind mechanisms two sets of labels leave the same bytes.

Every mechanism is given zeros in place of labels, and noise, names and keys are repeatable. Whatever then differs
between two runs whose tables differ in their labels alone has come from a label by another way: what is printed, which
files there are, what is in them, in what order rows are read.
"""

import hashlib
import itertools
import re
import secrets
import shutil

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from safetensors import safe_open

from labeldp.core import random as randomness
from labeldp.core import vault as vaults
from labeldp.data import own_images
from labeldp.estimator import spending
from labeldp.results.folder import Draft
from tests.commands import labeldp

ROWS = 1100
# When, how long, and hashes of files, which are compared themselves.
_TIMES = re.compile(
    rb'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+:\d]*|"(?:checksum|sha256)": "\w+"|in \d+ s|"(?:inode|device)": \d+'
)


@pytest.fixture
def blind(monkeypatch):
    """Zeros for all mechanisms; begins the chance of a process anew when it is called."""
    numbers = [itertools.count()]

    def key(size=32):
        return hashlib.shake_256(str(next(numbers[0])).encode()).digest(size or 32)

    drawn = vaults.draw
    monkeypatch.setattr(vaults, "draw", lambda ask, labels, *more: drawn(ask, np.zeros_like(labels), *more))
    monkeypatch.setattr(randomness, "system_key", key)
    monkeypatch.setattr(secrets, "token_bytes", key)
    monkeypatch.setattr(secrets, "token_hex", lambda size=32: key(size).hex())

    def begin():
        numbers[0] = itertools.count()
        spending.MEMORY.forget()

    return begin


def classes(folder, chance, fixed=None):
    public, fixed = np.random.default_rng(0).normal(size=(ROWS, 2)).round(3), fixed or np.random.default_rng(1)
    # Quoted now and then: how a cell is written may go with what is in it.
    answers = [f'"{one}"' if one == "yes" else one for one in chance.choice(["no", "yes"], ROWS)]
    sizes = fixed.uniform(0, 10, ROWS).round(3)
    rows = enumerate(zip(public, answers, sizes, strict=True))
    lines = [f"{a},{b},{row // 3},{answer},{size}" for row, ((a, b), answer, size) in rows]
    (folder / "t.csv").write_text("\n".join(["a,b,who,y,z", *lines]) + "\n")


def numbers(folder, chance):
    classes(folder, np.random.default_rng(1), chance)


def images(folder, chance):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (120, 6, 6), dtype=np.uint8)
    # Of some files there are others with the same content.
    pixels[::7] = 0
    for name in ("cat", "dog"):
        (folder / "photos" / name).mkdir(parents=True)
    for row, where in enumerate(chance.choice(["cat", "dog"], len(pixels))):
        Image.fromarray(pixels[row]).save(folder / "photos" / where / f"{row}.png")


def content(path):
    """Return what is in a file, times apart; of tensors without their order, which follows from nothing."""
    if path.suffix == ".safetensors":
        with safe_open(path, "numpy") as file:
            return file.metadata(), {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
    return path.is_file() and _TIMES.sub(b"", path.read_bytes())


def left(folder, make, blind, command, seed, stop):
    """Run a command on labels of this seed; return its exit code, what it has said and all files that it leaves."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    make(folder, np.random.default_rng(seed))
    given = set(folder.rglob("*"))
    blind()
    with pytest.MonkeyPatch.context() as stopping:
        if stop:
            stopping.setattr(Draft, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        done = labeldp(*command, cwd=folder)
    made = sorted(path for path in folder.rglob("*") if path not in given)
    files = {str(path.relative_to(folder)): content(path) for path in made}
    return done.returncode, _TIMES.sub(b"", done.stdout.encode()), _TIMES.sub(b"", done.stderr.encode()), files


TRAIN = ("train", "t.csv", "--epsilon", "1", "--out", "m")
TABLE = (*TRAIN, "--label", "y", "--classes", "no,yes", "--drop", "z,who")
USERS = (*TRAIN, "--label", "y", "--classes", "no,yes", "--drop", "z", "--user", "who")
NUMBER = (*TRAIN, "--label", "z", "--task", "regression", "--range", "0", "10", "--drop", "y,who")
COLUMN = ("privatize", "t.csv", "--label", "y", "--classes", "no,yes", "--epsilon", "1", "--out", "p.csv")
PHOTOS = ("train", "photos", "--classes", "cat,dog", "--epsilon", "1", "--out", "m")
WAYS = {
    "classes": (classes, TABLE, False),
    "responses": (classes, (*TABLE, "--method", "rr+learner"), False),
    "users": (classes, USERS, False),
    "stopped": (classes, TABLE, True),
    "numbers": (numbers, NUMBER, False),
    "column": (classes, COLUMN, False),
    "images": (images, (*PHOTOS, "--holdout", "30"), False),
    "images, stopped": (images, (*PHOTOS, "--holdout", "30"), True),
    "images, tried": (images, (*PHOTOS, "--dry-run"), False),
}
SLOW = [pytest.param(way, marks=pytest.mark.slow) if way in ("responses", "users") else way for way in WAYS]


@pytest.mark.parametrize("way", SLOW)
def test_what_is_left_does_not_depend_on_labels(way, tmp_path, blind):
    make, command, stop = WAYS[way]
    one, other = (left(tmp_path / "work", make, blind, command, seed, stop) for seed in (1, 2))
    assert one[0] == other[0] == (2 if stop else 0), one[2]
    for name in sorted({*one[3], *other[3]}):
        assert one[3].get(name) == other[3].get(name), name
    assert one[1:3] == other[1:3]
    # What depends on the labels by the mechanism is there.
    assert one[3] or way == "images, tried"


@pytest.mark.parametrize("planted", ["order", "words"])
def test_labels_that_go_another_way_are_found(planted, tmp_path, blind, monkeypatch):
    """Rows in the order of their folders, and a sentence that counts a class."""
    real = own_images._files_of

    def leaking(home, names):
        files, codes = real(home, names)
        order = np.argsort(codes, kind="stable") if planted == "order" else np.arange(len(codes))
        if planted == "words":
            print(int(codes.sum()), "of them are dogs")
        return [files[place] for place in order], codes[order]

    monkeypatch.setattr(own_images, "_files_of", leaking)
    one, other = (
        left(tmp_path / "work", *WAYS["images"][:1], blind, WAYS["images"][1], seed, False) for seed in (1, 2)
    )
    assert one != other
