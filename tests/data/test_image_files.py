"""Loaders of images on small files: idx, CIFAR, mosaics, PNG folders; and what every loader says of bad files."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from labeldp.core.ledger import Budget
from labeldp.core.random import SecureRandom
from labeldp.data import files as facts
from labeldp.data.benchmarks import cifar10, cifar100, cinic10, fashion_mnist, kmnist, mnist
from labeldp.data.files import CorruptDataError, MissingDataError, digest
from tests.data.made import (
    cifar_records,
    images_hold_nothing_else,
    mosaic,
    png,
    put,
    put_idx,
    random_bytes,
    tiny,
    truth,
)

# -- idx ---------------------------------------------------------------------------------------------------------

IDX = [(mnist, facts.MNIST), (fashion_mnist, facts.FASHION_MNIST), (kmnist, facts.KMNIST)]
LABELS, TEST_LABELS = [3, 1, 4, 1, 5, 9], [2, 6, 0]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(("loader", "official"), IDX)
def test_idx_files(tmp_path, loader, official, zipped):
    images, test_images = put_idx(tmp_path, official.name, LABELS, TEST_LABELS, zipped=zipped)
    found = loader(tmp_path, official=tiny(official, 6, 3))
    assert (found.name, found.num_classes, found.classes) == (official.name, 10, official.classes)
    assert np.array_equal(found.train[:, 0], images)
    assert np.array_equal(found.test[:, 0], test_images)
    assert found.train.dtype == np.uint8
    assert found.test_labels.values.dtype == np.int64
    assert found.test_labels.values.tolist() == TEST_LABELS
    assert truth(found) == LABELS
    assert images_hold_nothing_else(found.train)
    assert found.train.flags.writeable


def test_noise_and_budget_reach_the_vault(tmp_path):
    put_idx(tmp_path, "mnist", LABELS, TEST_LABELS)
    found = mnist(tmp_path, rng=SecureRandom(seed=1), budget=Budget(2.0), official=tiny(facts.MNIST, 6, 3))
    assert found.vault.budget == Budget(2.0)
    assert found.vault.certificate().seeded


def test_the_folder_comes_from_the_environment(tmp_path, monkeypatch):
    put_idx(tmp_path, "mnist", LABELS, TEST_LABELS)
    monkeypatch.setenv("LABELDP_DATA", str(tmp_path))
    assert len(mnist(official=tiny(facts.MNIST, 6, 3)).vault) == 6
    monkeypatch.delenv("LABELDP_DATA")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(MissingDataError, match=r"\.cache/labeldp/mnist"):
        mnist()


def test_another_place_counts_only_without_a_root(tmp_path, monkeypatch):
    monkeypatch.setenv("LABELDP_DATA", str(tmp_path / "empty"))
    put_idx(tmp_path, "debian", LABELS, TEST_LABELS)
    there = tiny(facts.FASHION_MNIST, 6, 3, elsewhere=(str(tmp_path / "debian"),))
    assert len(fashion_mnist(official=there).vault) == 6
    with pytest.raises(MissingDataError, match="dataset-fashion-mnist"):
        fashion_mnist(tmp_path / "empty", official=there)


def test_missing_files_are_named_with_the_remedy(tmp_path):
    put_idx(tmp_path, "mnist", LABELS, TEST_LABELS)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(MissingDataError) as caught:
        mnist(tmp_path)
    message = str(caught.value)
    assert isinstance(caught.value, FileNotFoundError)
    assert "t10k-labels-idx1-ubyte not found" in message
    assert "train-images" not in message
    for part in (str(tmp_path / "mnist"), "LABELDP_DATA", "yann.lecun.com"):
        assert part in message


@pytest.mark.parametrize(("loader", "official"), IDX)
def test_files_that_are_not_the_official_ones_are_refused(tmp_path, loader, official):
    put_idx(tmp_path, official.name, LABELS, TEST_LABELS)
    with pytest.raises(CorruptDataError, match=r"train-images-idx3-ubyte.* is not the official file"):
        loader(tmp_path)


def test_a_digest_is_of_the_content_not_of_its_compression(tmp_path):
    put_idx(tmp_path, "mnist", LABELS, TEST_LABELS, zipped=False)
    known = {name: digest((tmp_path / "mnist" / name).read_bytes(), "sha256") for name in facts.MNIST.files}
    official = tiny(facts.MNIST, 6, 3, digests=known)
    assert truth(mnist(tmp_path, official=official)) == LABELS
    for name in known:
        path = tmp_path / "mnist" / name
        put(path, path.read_bytes(), zipped=True)
        path.unlink()
    assert truth(mnist(tmp_path, official=official)) == LABELS
    put_idx(tmp_path, "mnist", [*LABELS[:-1], 8], TEST_LABELS)
    with pytest.raises(CorruptDataError, match="train-labels-idx1-ubyte") as caught:
        mnist(tmp_path, official=official)
    # The digest of what was found would be a statement about labels.
    assert str(caught.value).count("sha256:") == 1
    assert known["train-labels-idx1-ubyte"] in str(caught.value)


@pytest.mark.parametrize("keep", [0, 3, 10, 1000])
def test_a_file_cut_short_is_refused(tmp_path, keep):
    put_idx(tmp_path, "mnist", LABELS, TEST_LABELS, zipped=False)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptDataError, match=f"{keep} bytes.* cut short"):
        mnist(tmp_path, official=tiny(facts.MNIST, 6, 3))


DAMAGE = [lambda raw: raw[:-9], lambda raw: b"no gzip", lambda raw: raw[:30] + b"??" + raw[32:]]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_gzip_is_refused_in_one_sentence(tmp_path, damage):
    put_idx(tmp_path, "mnist", LABELS, TEST_LABELS)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptDataError, match="cut short or damaged") as caught:
        mnist(tmp_path, official=tiny(facts.MNIST, 6, 3))
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_another_number_of_rows_is_refused(tmp_path):
    put_idx(tmp_path, "mnist", LABELS, TEST_LABELS)
    with pytest.raises(CorruptDataError, match="training part has 6 rows; the official one has 7"):
        mnist(tmp_path, official=tiny(facts.MNIST, 7, 3))


def test_labels_outside_the_declared_classes_are_counted_not_shown(tmp_path):
    put_idx(tmp_path, "mnist", [3, 1, 4, 1, 77, 9], TEST_LABELS)
    with pytest.raises(ValueError, match="1 out of range") as caught:
        mnist(tmp_path, official=tiny(facts.MNIST, 6, 3))
    assert "77" not in str(caught.value)


def test_fewer_labels_than_images_are_refused(tmp_path):
    put_idx(tmp_path, "mnist", LABELS, TEST_LABELS)
    put_idx(tmp_path, "other", LABELS[:-1], TEST_LABELS)
    name = "train-labels-idx1-ubyte.gz"
    (tmp_path / "other" / name).replace(tmp_path / "mnist" / name)
    with pytest.raises(CorruptDataError, match="6 training rows have 5 labels"):
        mnist(tmp_path, official=tiny(facts.MNIST, 6, 3))


def test_labels_are_in_no_repr_and_no_attribute(tmp_path):
    put_idx(tmp_path, "mnist", LABELS, TEST_LABELS)
    found = mnist(tmp_path, official=tiny(facts.MNIST, 6, 3))
    assert repr(found) == "Benchmark(mnist: 6 training rows, labels sealed; 3 test rows; 10 classes)"
    held = [getattr(value, "values", value) for key, value in vars(found).items() if key != "vault"]
    assert not any(np.shape(value) == (6,) for value in held)


def frames(error):
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def test_no_frame_of_a_refusal_holds_labels(tmp_path):
    # Whatever prints the variables of a traceback must find no labels there.
    put_idx(tmp_path, "mnist", [3, 1, 4, 1, 77, 9], TEST_LABELS)
    with pytest.raises(ValueError, match="1 out of range") as caught:
        mnist(tmp_path, official=tiny(facts.MNIST, 6, 3))
    names = [frame.f_code.co_name for frame in frames(caught.value)]
    assert names == ["test_no_frame_of_a_refusal_holds_labels", "refuse"]
    assert caught.value.__context__ is None


def test_facts_cannot_be_changed_in_place():
    with pytest.raises(AttributeError):
        facts.MNIST.rows = (1, 1)
    assert replace(facts.MNIST, rows=(1, 1)).digests == facts.MNIST.digests


# -- CIFAR and CINIC ---------------------------------------------------------------------------------------------

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
    # Each image still has its own label, and the order of rows is not the order of classes.
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


def test_a_broken_image_does_not_give_its_class_away(tmp_path):
    put_cinic(tmp_path / "cinic10")
    (tmp_path / "cinic10" / "train" / "horse" / "cifar10-train-1.png").write_bytes(b"no image")
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
