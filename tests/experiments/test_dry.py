"""Settings are tried small, at every depth, on the first rows of a data set, and no line is written."""

import sys

import pytest

from experiments import dry, run, synthetic


def test_sizes_are_cut_at_every_depth_and_nothing_else():
    settings = {
        "epochs": 400,
        "learning_rate": 0.03,
        "ratio": 1,
        "study": {"epochs": 1, "per_class": 2500},
        "learn": ["x"],
    }
    small = {"epochs": 1, "learning_rate": 0.03, "ratio": 1, "study": {"epochs": 1, "per_class": 2}, "learn": ["x"]}
    assert dry.shortened(settings) == small


def test_a_group_is_tried_and_a_misspelt_setting_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "benchmark_of", lambda name: synthetic.synthetic_stand_in(100, 70, 4))
    file = tmp_path / "s.toml"
    text = (
        '[[group]]\nname = "g"\nprovenance = "ours"\ndataset = "made up"\nmodel = "mnist_cnn"\nepochs = 300\n'
        'batch_size = 512\noptimizer = "adam"\nlearning_rate = 0.002\nweight_decay = 0.0\nschedule = "linear"\n'
        'augment = []\nseeds = [1, 2]\n[[group.run]]\nmethod = "rr"\nrecipe = "rr"\nepsilon = [1, 2]\n'
    )
    file.write_text(text)
    monkeypatch.setattr(sys, "argv", ["dry", str(file), "--device", "cpu"])
    run.data.cache_clear()
    dry.main()
    # Two budgets and two seeds of the same settings are one trial.
    assert capsys.readouterr().out.count("of no worth") == 1
    assert len(run.benchmark_of("made up").vault) == dry.ROWS
    assert run.benchmark_of("made up").train.shape == (dry.ROWS, 1, 28, 28)
    file.write_text(text.replace("augment = []", "augment = []\nmixupp = 1"))
    with pytest.raises(ValueError, match=r"does not read.*mixupp"):
        dry.main()
    run.data.cache_clear()
    assert [path.name for path in tmp_path.iterdir()] == ["s.toml"]
