"""Data sets by name; and the official files themselves, where this machine has them ($LABELDP_DATA)."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from labeldp.data import benchmarks
from labeldp.data.benchmarks import MissingDataError, load
from labeldp.mechanisms.responses import RandomizedResponse

NAMES = [
    "adult", "cifar10", "cifar100", "cinic10", "criteo_attribution", "fashion_mnist", "kmnist", "mnist",
    "movielens_100k", "movielens_1m",
]  # fmt: skip


def test_load_knows_every_loader(tmp_path):
    assert set(NAMES) < set(benchmarks.__all__)
    for name in NAMES:
        with pytest.raises(MissingDataError, match=f"{name}: .* not found in .*LABELDP_DATA"):
            load(name, tmp_path)
    with pytest.raises(ValueError, match="name='svhn' is not a data set known here; give one of mnist, "):
        load("svhn")


def test_importing_the_loaders_needs_no_torch_and_no_pillow():
    heavy = "{'torch', 'PIL', 'pyarrow'}"
    code = f"import sys, labeldp.data.benchmarks, experiments.synthetic; print({heavy} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "set()"


# -- the official files ------------------------------------------------------------------------------------------

ROOT = Path(os.environ.get("LABELDP_DATA") or Path(__file__).parents[3] / "shared" / "data")


def loaded(name):
    try:
        return benchmarks.load(name, ROOT)
    except benchmarks.MissingDataError:
        pytest.skip(f"{name} is not in {ROOT}; set LABELDP_DATA to a folder that holds {name}/")


def start(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


# name, training shape, test labels per class, digest of the first training and test image
IMAGES = [
    ("mnist", (60_000, 1, 28, 28), [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
     "23ceaef5eb61f0e7", "8f6a418c9a639f9e"),
    ("fashion_mnist", (60_000, 1, 28, 28), [1000] * 10, "5bd44e331a6d6998", "ffc7351ed0f8bae5"),
    ("cifar10", (50_000, 3, 32, 32), [1000] * 10, "e052de7deb775f78", "73eefb0106f2b7a2"),
    ("kmnist", (60_000, 1, 28, 28), [1000] * 10, None, None),
    ("cifar100", (50_000, 3, 32, 32), [100] * 100, None, None),
    ("cinic10", (90_000, 3, 32, 32), [9000] * 10, None, None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "counts", "first", "first_test"), IMAGES, ids=[row[0] for row in IMAGES])
def test_images(name, shape, counts, first, first_test):
    found = loaded(name)
    assert found.train.shape == shape
    assert found.test.shape == (sum(counts), *shape[1:])
    assert found.train.dtype == found.test.dtype == np.uint8
    assert np.bincount(found.test_labels.values, minlength=found.num_classes).tolist() == counts
    assert len(found.vault) == shape[0]
    assert found.num_classes == len(found.classes) == len(counts)
    if first is not None:
        assert (start(found.train[0]), start(found.test[0])) == (first, first_test)
    responses = found.vault.release(RandomizedResponse(epsilon=1.0, num_classes=found.num_classes))
    assert len(responses) == shape[0]


def test_adult_from_official_files_equals_the_bundled_copy(monkeypatch, tmp_path):
    found = loaded("adult")
    monkeypatch.setenv("LABELDP_DATA", str(tmp_path))
    bundled = benchmarks.adult()
    for part in ("train", "test"):
        one, other = getattr(found, part), getattr(bundled, part)
        assert np.array_equal(one.numeric, other.numeric)
        assert np.array_equal(one.categorical, other.categorical)
        assert one.cardinalities == other.cardinalities == (9, 16, 7, 15, 6, 5, 2, 42)
    assert np.array_equal(found.test_labels.values, bundled.test_labels.values)
    why = "a test compares two copies of a public data set"
    assert np.array_equal(found.vault.reveal(why), bundled.vault.reveal(why))
    assert np.abs(found.train.numeric.mean(axis=0)).max() < 1e-5


def test_movielens_1m():
    found = loaded("movielens_1m")
    assert (len(found.train), len(found.test), found.num_classes) == (800_167, 200_042, 5)


def test_criteo_attribution():
    found = loaded("criteo_attribution")
    assert len(np.unique(found.train.users)) == 200_000
    assert len(np.unique(found.test.users)) == 50_000
