"""The runs that look once, on made-up images: every family leaves a certified line, and features are shared."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments import adapters, networks, public_features, records, run, synthetic
from experiments.settings import Run, runs
from labeldp.features.encoders import Encoder, save_encoder
from labeldp.models.zoo import resnet18_v2
from tests.marks import mostly_slow

SETTINGS = Path(adapters.__file__).parent / "one_look.toml"
FIT = {
    "batch_size": 64, "optimizer": "adam", "learning_rate": 1e-3, "weight_decay": 0.0, "schedule": "linear",
    "augment": [],
}  # fmt: skip
HEAD = {"dataset": synthetic.NAME, "model": "head", "epochs": 0, "delta": 1e-5, "features": {"patches": 16, "dims": 20}}
GRAPH = {"raw": True, "graph": 12}
NETWORK = {**HEAD, "model": "mnist_cnn", "epochs": 1, **FIT}


def made_up(epsilon=2.0, seed=1, **settings):
    return Run("tiny", "one-shot", epsilon, seed, settings)


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch):
    monkeypatch.setattr(public_features, "_KEPT", {})


@pytest.mark.parametrize(
    "settings",
    mostly_slow(
        [
            {**HEAD, "recipe": "one_shot"},
            {**HEAD, "recipe": "one_shot", "features": {"raw": True, "dims": 10}},
            {**NETWORK, "recipe": "one_shot_student", "generations": 2, "confidence": 0.5},
            {**HEAD, "recipe": "one_shot", "features": {"patches": 16, "dims": 20, "graph": 12}},
            {**HEAD, **FIT, "epochs": 1, "recipe": "one_shot_linear_student", "surest": 0.8, "features": GRAPH},
            {**HEAD, "recipe": "linear_student"},
            {**HEAD, "recipe": "linear_student", "graph": 12},
            {**NETWORK, "recipe": "one_shot_prior", "share": 0.3, "shares": [0.6, 0.4]},
            {**NETWORK, "recipe": "one_shot_prior", "share": 0.3, "shares": [1.0], "learn": "likelihood"},
            {**HEAD, **FIT, "epochs": 1, "delta": 0.0, "recipe": "linear_answers"},
            {**HEAD, **FIT, "epochs": 1, "recipe": "linear_one_shot_prior", "share": 0.3, "shares": [1.0]},
            {**NETWORK, "recipe": "rounds", "shares": [0.5, 0.5]},
            {**NETWORK, "recipe": "ssl_prior", "clusters": 12, "delta": 0.0, "part": "fitted"},
        ],
        quick=4,
    ),
    ids=lambda settings: settings["recipe"],
)
def test_every_family_leaves_a_certified_line(settings):
    line = run.run_one(made_up(**settings), "cpu")
    assert records.check(line) == []
    assert line["delta"] == settings["delta"]
    assert 0 <= line["value"] <= 100


def test_one_look_learns_from_pixels():
    """Two hundred noisy pictures of ten classes at ε = 8: far more than one in ten is right."""
    line = run.run_one(made_up(8.0, recipe="one_shot", **HEAD), "cpu")
    assert line["value"] > 50


@pytest.mark.slow
def test_features_and_stage_are_made_once_per_seed(monkeypatch):
    made, fit = [], public_features.extractor

    def counted(settings, channels, seed):
        made.append(seed)
        return fit(settings, channels, seed)

    monkeypatch.setattr(public_features, "extractor", counted)
    for epsilon in (1.0, 2.0):
        for seed in (1, 2):
            run.run_one(made_up(epsilon, seed, recipe="one_shot", **HEAD), "cpu")
    assert made == [1, 2]
    assert len({id(kept.stage(10)) for kept in public_features._KEPT.values()}) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pixels_come_back(dtype):
    images = run.data(synthetic.NAME, "cpu")[0].to(dtype)
    raw = torch.from_numpy(synthetic.synthetic_stand_in(200, 50, 10).train)
    off = (public_features.Pixels(synthetic.NAME)(images).int() - raw.int()).abs()
    assert int(off.max()) <= (0 if dtype == torch.float32 else 1)


def test_an_encoder_from_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(public_features, "_ROOT", tmp_path)
    torch.manual_seed(0)
    save_encoder(tmp_path / "tiny.safetensors", Encoder(resnet18_v2(10, channels=1).body, (0.5,), (0.25,)))
    settings = {"encoder": "tiny.safetensors", "dims": 8}
    found = public_features.extractor(settings, 1, seed=3)
    assert (found.mean, found.dims, found.seed) == ((0.5,), 8, 3)
    assert found.fit(torch.zeros(30, 1, 28, 28, dtype=torch.uint8).random_(256)).dim == 8
    with pytest.raises(ValueError, match="is not there"):
        public_features.extractor({"encoder": "other.safetensors"}, 1, seed=0)


@pytest.mark.slow
def test_an_encoder_over_crops(tmp_path, monkeypatch):
    """Nine crops and their mirrors: features other than the encoder's own, and a mirror has the same."""
    monkeypatch.setattr(public_features, "_ROOT", tmp_path)
    monkeypatch.setattr(public_features, "_OUTPUTS", {})
    torch.manual_seed(0)
    save_encoder(tmp_path / "tiny.safetensors", Encoder(resnet18_v2(10, channels=1).body, (0.5,), (0.25,)))
    raw = torch.zeros(6, 1, 16, 16, dtype=torch.uint8).random_(256)
    plain, crops = (
        public_features.extractor({"encoder": "tiny.safetensors", **more}, 1, seed=0).fit(raw)
        for more in ({}, {"crops": 3})
    )
    assert not torch.allclose(plain.features(raw), crops.features(raw), atol=0.1)
    assert torch.allclose(crops.features(raw.flip(-1)), crops.features(raw), atol=1e-2)


@pytest.mark.parametrize("features", [{}, {"patch": 3}, {"patches": 3, "raw": True}, {"raw": False}])
def test_features_that_nobody_knows_are_refused(features):
    with pytest.raises(ValueError, match="not known here"):
        public_features.extractor(features, 1, seed=0)


def test_the_settings_file_can_be_run():
    """Every run of it: known recipe, network and settings, a provenance, and no ε twice."""
    found = runs(SETTINGS, [])
    assert len({one.name for one in found}) == len(found)
    for one in found:
        adapters.check_settings(one)
        assert one.settings["model"] in networks.MODELS
        assert one.settings["features"].keys() <= {"patches", "encoder", "dims", "graph", "crops"}
    with pytest.raises(ValueError, match="sharse"):
        adapters.check_settings(replace(found[0], settings={**found[0].settings, "sharse": 1}))
