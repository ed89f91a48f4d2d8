import inspect
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labeldp.features import cache
from labeldp.features import extract as features
from labeldp.features.cache import content_key, load_array, save_array
from labeldp.features.encoders import Encoder
from labeldp.features.extract import Raw, extract, fingerprint
from labeldp.features.graph import Neighbours
from labeldp.features.patches import Patches
from labeldp.features.tables import Table


def images(n=60, seed=0):
    return torch.rand(n, 1, 10, 10, generator=torch.Generator().manual_seed(seed))


class Counting:
    """An extractor that counts how often it is fitted and asked."""

    def __init__(self, inner):
        self.inner, self.fitted, self.asked = inner, 0, 0

    def __repr__(self):
        return repr(self.inner)

    def fit(self, inputs, device=None):
        self.fitted += 1
        self.found = self.inner.fit(inputs, device)
        return self

    def features(self, inputs):
        self.asked += 1
        return self.found.features(inputs)


def test_raw_is_flattened_and_standardised():
    train, test = extract(Raw(floor=0.0), images(500), images(20, seed=1))
    assert train.shape == (500, 100)
    assert test.shape == (20, 100)
    assert torch.allclose(train.mean(0), torch.zeros(100), atol=1e-5)
    assert torch.allclose(train.var(0, correction=0), torch.ones(100), atol=1e-4)


def test_embeddings_as_given_to_unit_length():
    embeddings = np.random.default_rng(0).normal(size=(50, 6))
    map_ = Raw(unit=True, dims=3).fit(embeddings)
    assert map_.dim == 3
    assert torch.allclose(map_.features(embeddings), map_.features(5 * embeddings), atol=1e-5)
    assert not torch.allclose(map_.features(embeddings), map_.features(5 * embeddings + 1), atol=1e-2)


@pytest.mark.parametrize(
    "extractor",
    [Raw(dims=5), Patches(filters=4, size=3, dims=7), Neighbours(Raw(), dims=6, near=5)],
    ids=["raw", "patches", "neighbours"],
)
def test_maps_agree_with_extract_and_know_their_dimension(extractor):
    map_ = extractor.fit(images())
    (train,) = extract(extractor, images())
    assert train.shape == (60, map_.dim)
    assert torch.equal(train, map_.features(images()))


def test_the_second_call_computes_nothing(tmp_path):
    extractor = Counting(Patches(filters=4, size=3))
    first = extract(extractor, images(), images(seed=1), cache=tmp_path)
    again = extract(extractor, images(), images(seed=1), cache=tmp_path)
    assert (extractor.fitted, extractor.asked) == (1, 2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(
        torch.equal(a, b) for a, b in zip(first, extract(extractor.inner, images(), images(seed=1)), strict=True)
    )


def test_only_what_is_missing_is_computed(tmp_path):
    extractor = Counting(Raw())
    extract(extractor, images(), cache=tmp_path)
    extract(extractor, images(), images(seed=1), cache=tmp_path)
    assert (extractor.fitted, extractor.asked) == (2, 2)


def _flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-40]),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"not an array"),
        _flip_a_bit,
    ],
    ids=["cut", "cut-checksum", "longer", "empty", "other", "bit"],
)
def test_damage_is_noticed_and_repaired(tmp_path, change):
    extractor = Counting(Raw())
    (first,) = extract(extractor, images(), cache=tmp_path)
    (path,) = tmp_path.iterdir()
    change(path)
    (again,) = extract(extractor, images(), cache=tmp_path)
    assert extractor.fitted == 2
    assert torch.equal(first, again)
    extract(extractor, images(), cache=tmp_path)
    assert extractor.fitted == 2


def test_another_setting_input_or_version_is_another_key(tmp_path, monkeypatch):
    extract(Raw(), images(), cache=tmp_path)
    extract(Raw(dims=3), images(), cache=tmp_path)
    extract(Raw(), images(seed=2), cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    monkeypatch.setattr(cache, "_FORMAT", 2)
    extract(Raw(), images(), cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def test_the_same_test_set_after_another_training_set_is_another_key(tmp_path):
    _, first = extract(Raw(), images(), images(seed=9), cache=tmp_path)
    _, second = extract(Raw(), 2 * images(seed=1), images(seed=9), cache=tmp_path)
    assert not torch.allclose(first, second)


arrays = st.one_of(
    st.lists(st.integers(0, 3), max_size=4).map(lambda values: np.array(values, dtype=np.uint8)),
    st.lists(st.integers(0, 3), max_size=4).map(lambda values: np.array(values, dtype=np.int8)),
    st.text("ab;", max_size=4),
)


@given(first=st.lists(arrays, max_size=3), second=st.lists(arrays, max_size=3))
def test_keys_are_equal_only_for_equal_things(first, second):
    def plain(things):
        return [t if isinstance(t, str) else (str(t.dtype), t.shape, t.tobytes()) for t in things]

    assert (content_key(*first) == content_key(*second)) == (plain(first) == plain(second))


def test_a_key_is_the_same_for_any_layout():
    table = np.arange(12.0).reshape(3, 4)
    assert content_key(table.T) == content_key(torch.from_numpy(table).T.contiguous())


@pytest.mark.slow
def test_a_key_is_the_same_in_another_process():
    code = "import numpy as np; from labeldp.features.cache import content_key; print(content_key('a', np.arange(5)))"
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.strip() == content_key("a", np.arange(5))


def test_arrays_are_readable_by_numpy_and_no_draft_is_left(tmp_path):
    save_array(tmp_path / "new" / "x.npy", np.arange(6.0).reshape(2, 3))
    assert np.array_equal(np.load(tmp_path / "new" / "x.npy"), np.arange(6.0).reshape(2, 3))
    assert np.array_equal(load_array(tmp_path / "new" / "x.npy"), np.arange(6.0).reshape(2, 3))
    assert len(list((tmp_path / "new").iterdir())) == 1
    assert load_array(tmp_path / "missing.npy") is None


def test_arrays_of_objects_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert load_array(tmp_path / "x.npy") is None
    with pytest.raises(ValueError, match="Python objects"):
        content_key(np.array(["a", None], dtype=object))


def test_fingerprints_tell_weights_apart():
    torch.manual_seed(0)
    first, second = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    assert fingerprint(Encoder(first)) == fingerprint(Encoder(first))
    assert fingerprint(Encoder(first)) != fingerprint(Encoder(second))
    assert fingerprint(Encoder(first)) != fingerprint(Encoder(first, unit=True))
    assert fingerprint(Raw()) != fingerprint(Table())


@pytest.mark.parametrize("extractor", [Raw, Patches, Table, Encoder])
def test_no_argument_could_hold_a_label(extractor):
    names = {*inspect.signature(extractor).parameters, *inspect.signature(extractor.fit).parameters}
    names |= set(inspect.signature(extract).parameters)
    assert not names & {"labels", "y", "targets", "vault", "classes", "num_classes"}


def test_refusals():
    with pytest.raises(ValueError, match="shape"):
        Raw().fit(np.zeros(5))
    with pytest.raises(ValueError, match="not finite"):
        Raw().fit(np.array([[1.0, np.nan]]))


def test_very_many_rows_are_sampled(monkeypatch):
    monkeypatch.setattr(features, "_SAMPLE", 40)
    map_ = Raw(seed=1).fit(images(500))
    chosen = features.sample_rows(500, 40, 1)
    assert len(set(chosen.tolist())) == 40
    assert torch.allclose(map_.scaling.mean, images(500).flatten(1)[chosen].mean(0), atol=1e-6)
