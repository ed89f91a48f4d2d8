"""Loaders of CIFAR records, mosaics and folders of PNG files, on small ones."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest

from labeldp.data import files as facts
from labeldp.data.benchmarks import cifar10, cifar100, cinic10
from labeldp.data.files import CorruptDataError, MissingDataError, digest
from tests.data.benchmarkhelp import (
    cifar_records,
    images_hold_nothing_else,
    mosaic,
    png,
    put,
    random_bytes,
    tiny,
    truth,
)

CIFAR = [[7, 0], [1, 2], [9, 9], [3, 4], [5, 6], [8, 0]]


def put_cifar10(folder):
    named = zip(facts.CIFAR10.files, CIFAR, strict=True)
    records = {name: cifar_records(labels, seed) for seed, (name, labels) in enumerate(named)}
    for name, content in records.items():
        put(folder / name, content)
    return records


def pack(path, inside, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as bundle:
        for name, content in records.items():
            member = tarfile.TarInfo(f"{inside}/{name}")
            member.size = len(content)
            bundle.addfile(member, io.BytesIO(content))


def is_that_cifar10(found, records):
    first = np.frombuffer(records["data_batch_1.bin"], dtype=np.uint8)[1:3073].reshape(3, 32, 32)
    last = np.frombuffer(records["test_batch.bin"], dtype=np.uint8)[-3072:].reshape(3, 32, 32)
    assert found.train.shape == (10, 3, 32, 32)
    assert np.array_equal(found.train[0], first)
    assert np.array_equal(found.test[-1], last)
    assert found.test_labels.values.tolist() == CIFAR[-1]
    assert images_hold_nothing_else(found.train)
    assert truth(found) == [label for batch in CIFAR[:-1] for label in batch]


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin"])
def test_cifar10_binary_files(tmp_path, inside):
    records = put_cifar10(tmp_path / "cifar10" / inside)
    is_that_cifar10(cifar10(tmp_path, official=tiny(facts.CIFAR10, 10, 2)), records)


def test_cifar10_out_of_the_official_archive(tmp_path):
    records = put_cifar10(tmp_path / "elsewhere")
    archive = tmp_path / "cifar10" / "cifar-10-binary.tar.gz"
    pack(archive, "cifar-10-batches-bin", records)
    known = {archive.name: digest(archive.read_bytes(), "md5")}
    is_that_cifar10(cifar10(tmp_path, official=tiny(facts.CIFAR10, 10, 2, digests=known)), records)
    with pytest.raises(CorruptDataError, match=r"tar\.gz .* is not the official file"):
        cifar10(tmp_path)
    archive.write_bytes(archive.read_bytes()[:-2000])
    with pytest.raises(CorruptDataError, match="cannot be unpacked"):
        cifar10(tmp_path, official=tiny(facts.CIFAR10, 10, 2))


def put_mosaics(tmp_path, records):
    for (name, content), labels in zip(records.items(), CIFAR, strict=True):
        put(tmp_path / "cifar10" / name.replace(".bin", ".webp"), mosaic(content, columns=2))
        put(tmp_path / "cifar10" / name.replace(".bin", ".labels"), bytes(labels))


def test_cifar10_mosaics_must_rebuild_the_official_records(tmp_path):
    records = put_cifar10(tmp_path / "elsewhere")
    put_mosaics(tmp_path, records)
    known = {name: digest(content, "sha256") for name, content in records.items()}
    official = tiny(facts.CIFAR10, 10, 2, digests=known)
    is_that_cifar10(cifar10(tmp_path, official=official), records)
    put(tmp_path / "cifar10" / "data_batch_2.labels", bytes([1, 3]))
    with pytest.raises(CorruptDataError, match=r"data_batch_2\.bin .* is not the official file"):
        cifar10(tmp_path, official=official)


def test_broken_mosaics(tmp_path):
    put_mosaics(tmp_path, put_cifar10(tmp_path / "elsewhere"))
    official = tiny(facts.CIFAR10, 10, 2)
    put(tmp_path / "cifar10" / "data_batch_3.labels", bytes([1, 3, 5]))
    with pytest.raises(CorruptDataError, match=r"mosaic of data_batch_3.* 3 tiles"):
        cifar10(tmp_path, official=official)
    path = tmp_path / "cifar10" / "data_batch_1.webp"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CorruptDataError, match="mosaic of data_batch_1"):
        cifar10(tmp_path, official=official)
    path.unlink()
    with pytest.raises(MissingDataError, match=r"cifar10: data_batch_1\.webp not found"):
        cifar10(tmp_path, official=official)


@pytest.mark.parametrize(
    ("loader", "name", "trace"),
    [
        (cifar10, "cifar10", "data_batch_1"),
        (cifar10, "cifar10", "cifar-10-python.tar.gz"),
        (cifar100, "cifar100", "train"),
    ],
)
def test_pickles_are_refused_and_never_opened(tmp_path, loader, name, trace):
    put(tmp_path / name / trace, b"\x80\x04cos\nsystem\n")
    with pytest.raises(MissingDataError, match=f"Found {trace}: that is the Python version, a pickle.*binary version"):
        loader(tmp_path)


def test_cifar100_takes_the_fine_label(tmp_path):
    put(tmp_path / "cifar100" / "train.bin", cifar_records([(19, 99), (0, 7), (3, 42)]))
    put(tmp_path / "cifar100" / "test.bin", cifar_records([(1, 50), (2, 0)]), zipped=True)
    found = cifar100(tmp_path, official=tiny(facts.CIFAR100, 3, 2))
    assert found.num_classes == len(found.classes) == len(set(found.classes)) == 100
    assert found.classes == tuple(sorted(found.classes))
    assert found.train.shape == (3, 3, 32, 32)
    assert found.test_labels.values.tolist() == [50, 0]
    assert images_hold_nothing_else(found.train)
    assert truth(found) == [99, 7, 42]


def test_cifar_files_cut_short_or_changed(tmp_path):
    put(tmp_path / "cifar100" / "train.bin", cifar_records([(19, 99), (0, 7)])[:-1])
    put(tmp_path / "cifar100" / "test.bin", cifar_records([(1, 50)]))
    with pytest.raises(CorruptDataError, match=r"train\.bin has 6147 bytes, not whole records of 3074"):
        cifar100(tmp_path, official=tiny(facts.CIFAR100, 2, 1))
    with pytest.raises(CorruptDataError, match=r"train\.bin .*md5:6172c7755cfe09b2fe270c85cebc1b15 expected"):
        cifar100(tmp_path)


# -- CINIC-10 ---------------------------------------------------------------------------------------------------


def put_cinic(home, per_class=2):
    for part, start in (("train", 0), ("test", 1000)):
        for code, name in enumerate(facts.CINIC10.classes):
            for copy in range(per_class):
                seed = start + 10 * code + copy
                put(home / part / name / f"cifar10-{part}-{copy}.png", png(seed, "L" if seed == 11 else "RGB"))


@pytest.mark.parametrize("inside", ["", "CINIC-10"])
def test_cinic10_folders(tmp_path, inside):
    put_cinic(tmp_path / "cinic10" / inside)
    official = tiny(facts.CINIC10, 20, 20)
    found = cinic10(tmp_path, official=official)
    assert found.train.shape == found.test.shape == (20, 3, 32, 32)
    # Each picture still has its own label, and the order of rows is not the order of classes.
    seeds = {1000 + 10 * code + copy: code for code in range(10) for copy in (0, 1)}
    images = {random_bytes(32, 32, 3, seed=seed).tobytes(): code for seed, code in seeds.items()}
    assert [images[image.transpose(1, 2, 0).tobytes()] for image in found.test] == found.test_labels.values.tolist()
    labels = truth(found)
    assert sorted(labels) == sorted([*range(10), *range(10)])
    assert labels != sorted(labels)
    assert np.array_equal(cinic10(tmp_path, official=official).train, found.train)


def test_the_order_of_cinic10_says_nothing_about_the_labels(tmp_path):
    put_cinic(tmp_path / "cinic10")
    official = tiny(facts.CINIC10, 20, 20)
    before = cinic10(tmp_path, official=official)
    folder = tmp_path / "cinic10" / "train"
    (folder / "bird" / "cifar10-train-1.png").replace(folder / "truck" / "n04467665_1.png")
    after = cinic10(tmp_path, official=official)
    assert np.array_equal(before.train, after.train)
    assert sum(a != b for a, b in zip(truth(before), truth(after), strict=True)) == 1


def test_a_broken_picture_does_not_give_its_class_away(tmp_path):
    put_cinic(tmp_path / "cinic10")
    (tmp_path / "cinic10" / "train" / "horse" / "cifar10-train-1.png").write_bytes(b"no picture")
    with pytest.raises(CorruptDataError, match="1 of 20 files") as caught:
        cinic10(tmp_path, official=tiny(facts.CINIC10, 20, 20))
    assert "horse" not in str(caught.value)
    assert caught.value.__context__ is None


def test_cinic10_missing_or_incomplete(tmp_path):
    with pytest.raises(MissingDataError, match=r"train/, test/ not found.*CINIC-10\.tar\.gz.*Unpack"):
        cinic10(tmp_path)
    put_cinic(tmp_path / "cinic10", per_class=1)
    with pytest.raises(CorruptDataError, match="train part has 10 rows; the official one has 90000"):
        cinic10(tmp_path)
