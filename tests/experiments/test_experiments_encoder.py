"""Encoders for experiments: trained, paused, resumed, measured and kept."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from experiments import encoder
from labeldp.core.vault import LabelVault
from labeldp.data import benchmarks


def small_network(channels: int) -> nn.Module:
    layers = nn.Conv2d(channels, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return nn.Sequential(*layers)


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command with a small network, on pictures whose class is where they are bright."""
    generator = np.random.default_rng(0)

    def pictures(rows: int) -> tuple[Any, Any]:
        labels = generator.integers(4, size=rows)
        images = generator.integers(0, 40, size=(rows, 1, 16, 16), dtype=np.uint8)
        for row, label in enumerate(labels):
            high, wide = divmod(int(label), 2)
            images[row, :, 8 * high : 8 * high + 8, 8 * wide : 8 * wide + 8] += 150
        return images, labels

    (train, labels), (test, test_labels) = pictures(256), pictures(100)
    found = benchmarks.Benchmark(
        "made-up", train, LabelVault(labels, 4), test, benchmarks.OpenLabels(test_labels), 4, ("a", "b", "c", "d")
    )
    monkeypatch.setattr(encoder, "network", small_network)
    monkeypatch.setattr(encoder.benchmarks, "load", lambda name: found)

    def run(*arguments: str) -> Path:
        out = tmp_path / "artifacts" / "small"
        usual = ["made-up", "--epochs", "3", "--batch-size", "64", "--device", "cpu", "--out", str(out)]
        monkeypatch.setattr(sys, "argv", ["encoder", *usual, *arguments])
        encoder.main()
        return out

    return run


def test_the_encoder_is_kept_with_settings_log_hash_and_probe(trained: Any) -> None:
    out = trained()
    record = json.loads(out.with_suffix(".json").read_text())
    content = out.with_suffix(".safetensors").read_bytes()
    assert record["sha256"] == hashlib.sha256(content).hexdigest()
    assert record["bytes"] == len(content)
    assert [entry["epoch"] for entry in record["log"]] == [1, 2, 3]
    assert record["settings"]["method"] == "simclr"
    # Four corners, and features that keep them apart: far above chance.
    assert record["linear_probe"] > 80


def test_a_training_out_of_time_goes_on_where_it_was(trained: Any, capsys: pytest.CaptureFixture[str]) -> None:
    out = trained("--minutes", "0")
    assert "paused after epoch 1" in capsys.readouterr().out
    assert not out.with_suffix(".safetensors").exists()
    record = json.loads(trained().with_suffix(".json").read_text())
    assert [entry["epoch"] for entry in record["log"]] == [1, 2, 3]


def test_byol_is_trained_by_the_same_command(trained: Any) -> None:
    record = json.loads(trained("--method", "byol").with_suffix(".json").read_text())
    assert record["settings"]["method"] == "byol"
    assert all(torch.isfinite(torch.tensor(entry["loss"])) for entry in record["log"])


def test_byol_as_published(trained: Any) -> None:
    given = ("--optimizer", "lars", "--rate", "0.5", "--asymmetric", "--hidden", "32", "--outputs", "16")
    record = json.loads(trained("--method", "byol", *given).with_suffix(".json").read_text())
    assert {name: record["settings"][name] for name in ("optimizer", "asymmetric", "hidden", "outputs")} == {
        "optimizer": "lars", "asymmetric": True, "hidden": 32, "outputs": 16,
    }  # fmt: skip
    assert "decay" not in record["settings"]
    with pytest.raises(SystemExit):
        trained("--method", "simclr", "--hidden", "32")
