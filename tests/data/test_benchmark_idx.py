"""Loaders of idx files, on small ones; and what every loader says about missing and damaged files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labeldp.core.ledger import Budget
from labeldp.core.random import SecureRandom
from labeldp.data import files as facts
from labeldp.data.benchmarks import fashion_mnist, kmnist, mnist
from labeldp.data.files import CorruptDataError, MissingDataError, digest
from tests.data.benchmarkhelp import images_hold_nothing_else, put, put_idx, tiny, truth

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
