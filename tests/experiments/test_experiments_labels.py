"""How right private labels are: the scripts' figures on made-up images, each beside what it must be."""

import functools
import sys

import numpy as np
import pytest
import torch

from experiments import kept_labels, private_labels, synthetic
from experiments.posteriors import posteriors
from labeldp.features.encoders import Encoder, save_encoder
from labeldp.learning.teachers import one_shot_teachers
from labeldp.models.zoo import resnet18_v2
from labeldp.recipes.pate import Ballot

TRUTH = np.repeat(np.arange(4), 500)
FEATURES = torch.eye(4).repeat_interleave(500, dim=0)


def voted(features=FEATURES, epsilon=8.0, **settings):
    ballot = functools.partial(
        Ballot, **{"teachers": 200, "queries": 60, "responses": 30, "threshold": 0.5, **settings}
    )
    teachers = functools.partial(one_shot_teachers, features, num_classes=4)
    return private_labels.votes(features, TRUTH, 4, teachers, lambda seed: ballot(seed=seed), 1e-5)(epsilon, 1)


def test_answers_are_as_right_as_expected():
    """A standard deviation of the share is 0.0112; beyond 7 of them is a false alarm in 10¹¹."""
    line = private_labels.responses(TRUTH, 4)(1.0, 1)
    assert line["expected"] == pytest.approx(np.e / (np.e + 3))
    assert line["right"] == pytest.approx(line["expected"], abs=7 * 0.0112)


def test_votes_of_sure_teachers():
    """Features that are the class: the vote is right, and so are its answers and what a student makes of them."""
    line = voted()
    assert line["vote right"] == line["right"] == line["all rows right"] == 1.0
    assert line["answered"] == 30
    # Ten labels of four classes: now and then one is missing.
    assert 0.9 < line["teacher right"] <= 1.0


def test_votes_without_a_threshold_answer_all():
    assert voted(threshold=None, responses=60)["answered"] == 60


def test_votes_of_teachers_who_know_nothing():
    """Shuffled features: teachers are at chance, and the vote finds no more than the commonest class of a quarter."""
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(0))
    line = voted(FEATURES[order], queries=1000, responses=1000, threshold=None)
    assert line["teacher right"] == pytest.approx(0.25, abs=0.05)
    assert line["right"] < 0.4


def test_votes_that_are_drowned_by_noise_are_worse():
    line = voted(epsilon=0.01, queries=500, responses=500, threshold=None)
    assert line["vote right"] == 1.0
    assert line["right"] < 0.5


def test_the_surest_of_a_head():
    """Half of the rows cannot be told: the surest tenth are the others."""
    blurred = FEATURES.clone()
    blurred[::2] = 0.25
    noise = torch.randn(2000, 4, generator=torch.Generator().manual_seed(0))
    line = private_labels.sure(blurred + 0.05 * noise, TRUTH, 4, [50], 1e-5)(4.0, 1)
    assert line["of 50/class"] == 200
    assert line["right, 50"] > 0.97
    assert 0.5 < line["all rows right"] < 0.75


@pytest.mark.slow
def test_posteriors_under_a_head_are_honest_and_a_learners_own_are_not():
    """Features that are mostly noise, few enough to be learnt by heart: three hundred epochs end in false certainty.

    Of 1,000 rows a share has a standard deviation of at most 0.016, and what is expected of it has less.
    """
    truth = np.arange(1000) % 4
    noise = torch.randn(1000, 64, generator=torch.Generator().manual_seed(0))
    rows = noise + 1.5 * torch.eye(64)[torch.as_tensor(truth)]
    line = posteriors(rows, truth, 4, [300], 0.3, 1e-5)(2.0, 1)
    assert line["under the head: right"] > line["head right"]
    assert abs(line["under the head: expects"] - line["under the head: right"]) < 0.1
    assert line["own, epoch 300: expects"] - line["own, epoch 300: right"] > 0.2


@pytest.mark.slow
def test_both_scripts_print_their_tables(monkeypatch, capsys, tmp_path):
    """An encoder's outputs are computed once: the second script reads them."""
    encoder = tmp_path / "body.safetensors"
    save_encoder(encoder, Encoder(resnet18_v2(10, channels=1).get_submodule("body")))
    common = ["--dataset", synthetic.NAME, "--encoder", str(encoder), "--dims", "8", "--cache", str(tmp_path / "kept")]
    few = ["--epsilon", "2", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["kept_labels", *common, *few, "--clusters", "5"])
    kept_labels.main()
    assert "kept right" in capsys.readouterr().out
    monkeypatch.setattr("labeldp.features.encoders.EncoderMap.features", None)
    sizes = [
        "--epochs",
        "1",
        "--teachers",
        "40",
        "--queries",
        "30",
        "--answers",
        "10",
        "--agreement",
        "0",
        "--ridge",
        "0.01",
    ]
    monkeypatch.setattr(
        sys, "argv", ["private_labels", *common, *few, *sizes, "--kinds", "answers", "votes", "posterior"]
    )
    private_labels.main()
    tables = capsys.readouterr().out
    assert tables.startswith("answers")
    assert "teachers/min" in tables
    assert "own, epoch 1: expects" in tables
