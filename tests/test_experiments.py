"""The experiment runner, on made-up data: settings expand, runs are recorded and certified, finished ones skipped."""

import json
import sys

import pytest

from experiments import report, run
from experiments.settings import runs
from labeldp.accounting import certificate
from labeldp.data.synthetic import synthetic_stand_in

SETTINGS = """
[[group]]
name = "tiny"
dataset = "stand-in"
model = "mnist_cnn"
epochs = 1
batch_size = 32
optimizer = "adam"
learning_rate = 1e-3
weight_decay = 0.0
schedule = "linear"
augment = ["small crop", "flip"]
seeds = [1, 2]

  [[group.run]]
  recipe = "rr"
  epsilon = [2, "inf"]
  mixup = 1
  by_epsilon = { "inf" = { mixup = 0 } }

  [[group.run]]
  label = "two stages"
  recipe = "lp_mst"
  learn = "likelihood"
  epsilon = [2]
  shares = [0.5, 0.5]
  temperature = 1.0
  mixup = [4, 1]
"""


@pytest.fixture
def settings(tmp_path, monkeypatch):
    (tmp_path / "tiny.toml").write_text(SETTINGS)
    monkeypatch.setattr(run.benchmarks, "load", lambda name: synthetic_stand_in(200, 50, 10))
    run.data.cache_clear()
    yield tmp_path / "tiny.toml"
    run.data.cache_clear()


def test_settings_expand_to_runs(settings):
    found = runs(settings, [])
    assert [(r.label, r.epsilon, r.seed) for r in found] == [
        ("rr", 2.0, 1), ("rr", 2.0, 2), ("rr", float("inf"), 1), ("rr", float("inf"), 2),
        ("two stages", 2.0, 1), ("two stages", 2.0, 2),
    ]  # fmt: skip
    assert found[0].settings["mixup"] == 1
    assert found[2].settings["mixup"] == 0
    assert runs(settings, ["another group"]) == []
    assert [r.seed for r in runs(settings, [], seeds=[7])] == [7, 7, 7]


def test_every_run_leaves_a_verified_record_and_is_not_repeated(settings, tmp_path, monkeypatch, capsys):
    out = tmp_path / "results.jsonl"
    monkeypatch.setattr(sys, "argv", ["run", str(settings), "--out", str(out), "--device", "cpu", "--seed", "1"])
    run.main()
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(records) == 3
    for record in records:
        assert 0 <= record["test_accuracy"] <= 100
        claim = certificate.parse(json.dumps(record["certificate"]))
        assert certificate.verify(claim) == ()
        assert claim.epsilon == float(record["epsilon"])
    run.main()
    assert len(out.read_text().splitlines()) == 3
    assert "0 runs to do, 3 done before" in capsys.readouterr().out
    table = report.table([out])
    assert "| tiny | two stages | 2.0 |" in table
