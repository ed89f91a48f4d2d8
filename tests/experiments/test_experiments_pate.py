"""The runs of PATE-FM, on made-up images: every family leaves a certified line, and the settings file is read."""

from pathlib import Path

import pytest
import torch

from experiments import adapters, public_features, records, run, synthetic
from experiments.settings import Run, runs
from labeldp.recipes import pate, per_row
from tests.marks import mostly_slow

SETTINGS = Path(adapters.__file__).parent / "pate.toml"
COMMON = {
    "dataset": synthetic.NAME, "model": "mnist_cnn", "batch_size": 16, "learning_rate": 0.01, "weight_decay": 1e-4,
    "padding": 2, "flip": False, "features": {"patches": 16, "dims": 20}, "delta": 1e-5, "teachers": 60, "queries": 30,
    "answers": 10, "cut": 6, "agreement": 0.1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch):
    monkeypatch.setattr(public_features, "_KEPT", {})


@pytest.mark.parametrize(
    "settings",
    mostly_slow([
        {**COMMON, "recipe": "pate_fm", "epochs": 1, "ratio": 2, "heads": "ridge", "at_once": 20},
        {
            **COMMON, "recipe": "pate_aug_descent", "epochs": 2, "warmup": 1, "switch": 1,
            "ridge": 0.01, "student": {"epochs": 1},
        },
        {**COMMON, "recipe": "pate_ldp_ssl", "epochs": 1, "ratio": 2, "student": {"epochs": 2}},
        {**COMMON, "recipe": "pate_denoise_ssl", "epochs": 1, "ratio": 2, "clusters": 5, "student": {"epochs": 2}},
    ], quick=1),
    ids=lambda settings: settings["recipe"],
)  # fmt: skip
def test_every_family_leaves_a_certified_line(settings):
    line = run.run_one(Run("tiny", "pate", 20.0, 1, settings), "cpu")
    assert records.check(line) == []
    assert line["delta"] == 1e-5
    assert 0 <= line["value"] <= 100


def test_the_file_is_read():
    found = runs(SETTINGS, [])
    for each in found:
        adapters.check_settings(each)
    assert {each.settings["recipe"] for each in found} == {
        "pate_fm", "pate_aug_descent", "pate_ldp_ssl", "pate_denoise_ssl",
    }  # fmt: skip


@pytest.mark.parametrize("recipe", ["pate_ldp_ssl", "pate_denoise_ssl"])
def test_labels_of_the_student_are_learnt_from(recipe, monkeypatch):
    """All of them, or those that are their cluster's majority."""
    images, _, sealed, _ = run.data(synthetic.NAME, "cpu")
    said = torch.arange(len(images)) % sealed.num_classes
    seen = []

    def learn(model, inputs, private, **_):
        seen.append(private)
        return model

    monkeypatch.setattr(pate, "relabel", lambda student, inputs: said)
    monkeypatch.setattr(per_row, "learn", learn)
    more = {"clusters": 5} if recipe == "pate_denoise_ssl" else {}
    settings = {**COMMON, "recipe": recipe, "epochs": 1, "ratio": 2, "student": {"epochs": 1}, **more}
    adapters.train(Run("tiny", "pate", 20.0, 1, settings), images, run.fresh_vault(sealed), None)
    (private,) = seen
    assert torch.equal(private.targets.argmax(dim=1), said)
    kept = torch.ones(len(images), dtype=torch.bool)
    if more:
        groups = public_features.public(synthetic.NAME, images, COMMON["features"], 1).clusters(5).members
        votes = torch.stack([torch.bincount(said[groups == group], minlength=sealed.num_classes) for group in range(5)])
        kept = votes.argmax(dim=1)[groups] == said
    assert torch.equal(private.weights > 0, kept)
