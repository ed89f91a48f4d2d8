"""Models of images: by a head on features found in them, or by a network, and back from a folder."""

import numpy as np
import pytest

from labeldp.choosing.choice import choose
from labeldp.core.vault import LabelVault
from labeldp.data.benchmarks import _LOADERS
from labeldp.data.door import NAMES, OpenLabels, OpenRows, PrivateData, read
from labeldp.data.request import TableError
from labeldp.estimator import spending
from labeldp.results.folder import ArtifactError, drafting
from labeldp.results.model import load, method_for_images, network_for, result_of, trained
from labeldp.results.verify import verify_folder

pytest.importorskip("torch")
pytest.importorskip("sklearn")


def images(count, seed, side=28, channels=1):
    """Bright in the upper or in the lower half."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    found = rng.integers(0, 100, (count, channels, side, side)).astype(np.uint8)
    for image, label in zip(found, labels, strict=True):
        image[:, label * side // 2 : (label + 1) * side // 2] += 100
    return found, labels


def halves():
    (train, labels), (test, opened) = images(160, 0), images(100, 1)
    vault = LabelVault(labels, 2)
    return PrivateData("halves", "", train, vault, ("up", "down"), test=OpenRows(test, OpenLabels(opened)))


@pytest.mark.parametrize(
    ("method", "network"),
    [("one_shot", None), ("rr", "mnist_cnn"), pytest.param("one_shot+student", "mnist_cnn", marks=pytest.mark.slow)],
)
def test_a_model_of_images_comes_back(tmp_path, method, network):
    spending.MEMORY.forget()
    own = halves()
    model = trained(own, 8.0, method=method)
    result = result_of(own, model, 8.0, None, {"table": "halves"})
    with drafting(tmp_path / "model") as draft:
        draft.write(result)
    assert verify_folder(tmp_path / "model") == ()
    again = load(tmp_path / "model")
    assert (again.network, again.columns) == (network, None)
    shown = own.test.features
    assert np.allclose(again.probabilities(shown), model.probabilities(shown), atol=1e-5)
    assert result.metrics["test"]["accuracy"] > 0.8
    assert set(again.predict(shown)) == {"up", "down"}
    assert "1 × 28 × 28 pixels" in (tmp_path / "model" / "model_card.md").read_text()


def test_auto_is_chosen_from_public_numbers():
    method, why, _ = method_for_images(halves(), 0.05, None, "auto", "cuda")
    expected = choose(160, 2, 0.05, 1e-5, feature_dim=784, modality="images", device="cuda")
    assert (method, why) == (expected.recipe, expected.reason)
    # Without a GPU, and on features of an encoder, the estimator chooses, among heads.
    assert method_for_images(halves(), 0.05, None, "auto", "cpu")[0] == "auto"
    assert method_for_images(halves(), 0.05, None, "auto", "cuda", encoded=True)[0] == "auto"
    assert method_for_images(halves(), 1.0, None, "rr", "cpu")[0] == "rr"


def test_shapes_without_a_network_are_refused():
    with pytest.raises(ArtifactError, match="one_shot"):
        network_for((5, 3, 64, 64))


def test_names_are_those_of_the_loaders():
    assert set(NAMES) <= set(_LOADERS)


def test_what_is_not_there_says_where_to_put_it(monkeypatch, tmp_path):
    monkeypatch.setenv("LABELDP_DATA", str(tmp_path))
    with pytest.raises(TableError, match="set LABELDP_DATA"):
        read("mnist")
