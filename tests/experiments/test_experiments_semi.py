"""The semi-supervised runs, on made-up images: every family leaves a certified line, and the settings file is read."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import (
    adapters,
    kept_distillations,
    kept_labels,
    networks,
    public_features,
    records,
    run,
    semi,
    synthetic,
)
from experiments.settings import Run, runs
from labeldp.features.cache import read_tensors
from tests.marks import mostly_slow

SETTINGS = Path(adapters.__file__).parent / "semisupervised.toml"
COMMON = {
    "dataset": synthetic.NAME, "model": "mnist_cnn", "batch_size": 16, "learning_rate": 0.01, "weight_decay": 1e-4,
    "padding": 2, "flip": False,
}  # fmt: skip
MATCH = {**COMMON, "epochs": 1, "ratio": 2, "cut": 6}
TEACHER = {**COMMON, "epochs": 1, "algorithm": "mean teacher"}
REFINE = {**COMMON, "epochs": 2, "warmup": 1, "switch": 1}
HEAD = {"features": {"patches": 16, "dims": 20}, "delta": 1e-5}


STUDIED = {
    "recipe": "one_shot_studied", "epochs": 1, "learn": ["posterior_of_model"], "share": 0.3, "shares": [0.5, 0.5],
    "student": {"epochs": 1}, "study": {"epochs": 1, "per_class": 5, "ratio": 2, "cut": 6},
}  # fmt: skip
LINEAR = {"recipe": "one_shot_fixmatch", "per_class": 5, "linear": True, "student": {"epochs": 1}}
CLUSTERS = {
    "recipe": "noise_cluster", "dataset": synthetic.NAME, "model": "head", "epochs": 0, "features": HEAD["features"],
}  # fmt: skip
# The same with the look's own epsilon.
STUDIED_AFTER = {name: value for name, value in {**STUDIED, "first": 0.5}.items() if name != "share"}


CROSSFIT = {"epochs": 1, "rounds": 1, "folds": 2, "batch_size": 16}
CONSENSUS = {"model": "small_inception", "epochs": 1, "learning_rate": 0.02, "mixup": 0.2, "cutout": 4}


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch):
    monkeypatch.setattr(public_features, "_KEPT", {})


@pytest.mark.parametrize(
    "settings",
    mostly_slow(
        [
            {**MATCH, "recipe": "ldp_ssl"},
            {**MATCH, "recipe": "ldp_ssl", "objective": "likelihood", "aligned": True, "threshold": 0.5},
            {**MATCH, "recipe": "denoise_ssl", "features": HEAD["features"], "clusters": 12},
            {**MATCH, **HEAD, "recipe": "denoise_ssl", "share": 0.3},
            {**REFINE, "recipe": "aug_descent", "known_noise": True, "history": 2},
            {**MATCH, **HEAD, "recipe": "one_shot_fixmatch", "per_class": 5},
            {
                **MATCH,
                **HEAD,
                "recipe": "one_shot_fixmatch",
                "per_class": 5,
                "student": {"epochs": 1},
                "mirrored": True,
            },
            {**MATCH, **HEAD, "recipe": "one_shot_fixmatch", "per_class": 5, "linear": True, "threshold": "soft"},
            {**MATCH, **HEAD, **LINEAR, "graph": 8, "threshold": "free", "settled": True},
            {**COMMON, **HEAD, **STUDIED, "linear": True},
            {**COMMON, **HEAD, **STUDIED},
            {**COMMON, **HEAD, **STUDIED_AFTER, "mirrored": True},
            {**COMMON, **HEAD, **STUDIED_AFTER, "consensus": CONSENSUS, "recorded": True},
            {**COMMON, **HEAD, **STUDIED_AFTER, "linear": True, "part": 0.4, "crossfit": CROSSFIT, "shares": [1.0]},
            {**REFINE, **HEAD, "recipe": "one_shot_aug_descent", "strength": 0.0},
            {**MATCH, "recipe": "ldp_ssl", "apart": True, "schedule": "one_cycle"},
            {**TEACHER, "recipe": "ldp_ssl", "objective": "likelihood", "ramp": 0.0, "aligned": True},
            {**MATCH, "recipe": "ldp_ssl", "probe": True},
            {**CLUSTERS, "clusters": 12},
            {**CLUSTERS, "clusters": 12, "by": "scan"},
            {
                **TEACHER,
                **HEAD,
                "recipe": "one_shot_answers",
                "share": 0.5,
                "learn": ["posterior_of_model", "likelihood"],
            },
        ],
        quick=2,
    ),
    ids=lambda settings: settings["recipe"],
)
def test_every_family_leaves_a_certified_line(settings):
    line = run.run_one(Run("tiny", "semi", 2.0, 1, settings), "cpu")
    assert records.check(line) == []
    assert line["delta"] == settings.get("delta", 0.0)
    assert 0 <= line["value"] <= 100


def test_the_file_is_read():
    found = runs(SETTINGS, [])
    for each in found:
        adapters.check_settings(each)
    assert {each.settings["recipe"] for each in found} == {
        "ldp_ssl", "denoise_ssl", "aug_descent", "one_shot_fixmatch", "one_shot_aug_descent",
        "one_shot_answers", "one_shot_student", "one_shot_studied", "noise_cluster",
    }  # fmt: skip


def test_views_are_of_pixels():
    """A weak view that does nothing but unscale and scale again gives the images back."""
    images = run.data(synthetic.NAME, "cpu")[0][:4]
    weak, _ = semi.views({"dataset": synthetic.NAME, "padding": 0, "flip": False}, lambda images, generator: images)
    assert torch.allclose(weak(images, torch.Generator()), images, atol=1e-4)


def test_a_graph_is_of_a_linear_teacher():
    settings = {**MATCH, **HEAD, **LINEAR, "linear": False, "graph": 8}
    with pytest.raises(ValueError, match="linear = true"):
        run.run_one(Run("tiny", "semi", 2.0, 1, settings), "cpu")


def test_an_unknown_objective_is_refused():
    settings = {**MATCH, "recipe": "ldp_ssl", "objective": "hope"}
    with pytest.raises(ValueError, match="objective='hope'"):
        run.run_one(Run("tiny", "semi", 2.0, 1, settings), "cpu")


@pytest.mark.parametrize("part", ["student", "study", "consensus", "crossfit"])
def test_a_misspelt_setting_of_a_part_is_refused(part):
    settings = {**COMMON, **HEAD, **STUDIED, part: {"epoch": 1}}
    with pytest.raises(ValueError, match=rf"{part} has settings .* does not read: \['epoch'\]"):
        run.run_one(Run("tiny", "semi", 2.0, 1, settings), "cpu")


def studied(epsilon, kept, monkeypatch, **changes):
    """A line of a run that may share its study, and how many networks were trained by FixMatch for it."""
    trained, settings = [], {**COMMON, **HEAD, **STUDIED_AFTER, **changes}
    learner = semi.ALGORITHMS["fixmatch"]

    def counted(job):
        made = learner(job)
        return lambda *given, **more: trained.append(1) or made(*given, **more)

    monkeypatch.setitem(semi.ALGORITHMS, "fixmatch", counted)
    line = run.run_one(Run("tiny", "semi", epsilon, 1, settings), "cpu", kept=kept)
    assert records.check(line) == []
    return line, len(trained)


@pytest.mark.slow
def test_runs_share_a_study_and_each_is_certified_whole(tmp_path, monkeypatch):
    """One look and one network for three budgets; the look is in every certificate, the network trained once."""
    lines, trained = zip(*(studied(epsilon, tmp_path, monkeypatch) for epsilon in (0.5, 2.0, 8.0)), strict=True)
    assert trained == (1, 0, 0)
    assert [line["study"]["shared"] for line in lines] == [False, True, True]
    assert len({line["study"]["seconds"] for line in lines}) == 1
    spent = [line["certificate"]["claim"]["epsilon"] for line in lines]
    assert spent[0] == pytest.approx(0.5, rel=1e-2)
    assert 1.5 < spent[1] <= 2.0
    assert 7.5 < spent[2] <= 8.0


# The third is the student's, too, as it has no rate of its own.
@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"first": 0.4}, {"study": {**STUDIED["study"], "per_class": 4}}, {"learning_rate": 0.02}, {"padding": 1}],
)
def test_another_study_is_not_shared(tmp_path, monkeypatch, change):
    studied(0.5, tmp_path, monkeypatch)
    line, trained = studied(change.get("first", 0.5), tmp_path, monkeypatch, **change)
    assert trained == 1
    assert not line["study"]["shared"]


def test_rows_outside_of_the_moment_have_not_paid_for_it():
    settings = {**COMMON, **HEAD, **STUDIED_AFTER, "linear": True, "part": 0.4, "crossfit": CROSSFIT, "shares": [1.0]}
    line = run.run_one(Run("tiny", "semi", 2.0, 1, settings), "cpu")
    assert line["certificate"]["claim"]["epsilon"] == pytest.approx(2.0, rel=1e-4)
    assert sorted(group["rows"] for group in line["certificate"]["ledger"]) == [80, 120]
    assert set(line["crossfit"]) == {"0", "1"}


@pytest.mark.slow
def test_a_study_of_another_commit_is_not_shared(tmp_path, monkeypatch):
    studied(0.5, tmp_path, monkeypatch)
    monkeypatch.setattr(run, "commit", lambda: "another")
    assert not studied(0.5, tmp_path, monkeypatch)[0]["study"]["shared"]


def test_the_runner_hands_on_what_is_kept(tmp_path):
    wanted = [Run("tiny", "semi", epsilon, 1, {**COMMON, **HEAD, **STUDIED_AFTER}) for epsilon in (0.5, 2.0)]
    run.train_missing(wanted, tmp_path / "out.jsonl", "cpu", tell=lambda news: None, kept=tmp_path / "kept")
    lines = records.read(tmp_path / "out.jsonl")
    assert [line["study"]["shared"] for line in lines] == [False, True]


@pytest.mark.slow
def test_a_run_that_failed_goes_on_and_both_networks_are_kept(tmp_path, monkeypatch):
    """Killed in its last training: neither look, answers, student nor first network are made again."""
    settings = {**COMMON, **HEAD, **STUDIED_AFTER, "shares": [1.0], "consensus": CONSENSUS, "mirrored": True}
    one = Run("tiny", "semi", 4.0, 1, settings)

    def failing(*_):
        raise ArithmeticError

    with monkeypatch.context() as patch:
        patch.setattr(networks, "MODELS", {**networks.MODELS, "small_inception": failing})
        with pytest.raises(ArithmeticError):
            run.run_one(one, "cpu", kept=tmp_path)
    (place,) = tmp_path.iterdir()
    (own,) = place.glob("run-*")
    releases = {name: (own / name).read_bytes() for name in ("moment.npz", "responses-1.npz")}
    told = []

    def spied(folder, *rest):
        assert releases == {name: (own / name).read_bytes() for name in releases}
        return keep(folder, *rest)

    keep = networks.keep
    monkeypatch.setattr(networks, "keep", spied)
    line = run.run_one(one, "cpu", tell=told.append, kept=tmp_path)
    assert records.check(line) == []
    assert len(told) == 1
    assert line["study"]["shared"]
    assert set(line["networks"]) == {"student", "first", "second"}
    assert not list(own.glob("*.safetensors"))
    assert releases == {name: (own / name).read_bytes() for name in releases}
    rows = len(run.data(synthetic.NAME, "cpu")[0])
    for name in line["networks"]:
        scores = read_tensors(place / "networks" / f"semi-epsilon-4-seed-1-{name}.logits.safetensors")
        assert (scores["train"].dtype, scores["train"].shape[0], len(scores["test"])) == (torch.float16, rows, 50)
        assert (place / "networks" / f"semi-epsilon-4-seed-1-{name}.weights.safetensors").exists()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    words = [str(SETTINGS), "--out", str(tmp_path / "out.jsonl"), "--kept", str(tmp_path / "file")]
    monkeypatch.setattr("sys.argv", ["run", *words])
    with pytest.raises(SystemExit):
        run.main()
    assert "is a file; name a folder" in capsys.readouterr().err


def test_rows_get_the_majority_label_of_their_cluster():
    """At a large ε: what `kmeans` and true labels say by hand."""
    settings = {**CLUSTERS, "clusters": 12}
    images, _, sealed, _ = run.data(synthetic.NAME, "cpu")
    each = Run("tiny", "clusters", 1000.0, 1, settings)
    made = adapters.train(each, images, run.fresh_vault(sealed), None)
    groups = public_features.public(synthetic.NAME, images, settings["features"], 1).clusters(12).members.numpy()
    truth = np.asarray(sealed.reveal("made-up images"))
    votes = np.stack([np.bincount(truth[groups == group], minlength=sealed.num_classes) for group in range(12)])
    said = made(images).argmax(dim=1).numpy()
    assert np.array_equal(votes[groups, said], votes.max(axis=1)[groups])


def use_study(folder, value, began, failing=False, notes=None):
    """Study by filling a weight with the value; the weight of the network that comes back, this run's or another's."""
    with kept_distillations.distillation(folder, "same", value, {} if notes is None else notes) as mine:
        for name in ("plan.npz", "moment.npz"):
            (mine.folder / name).write_text(str(value))

        def train():
            began.touch()
            # Long enough for the other to come, on a busy machine as well.
            time.sleep(1.0)
            if failing:
                raise ArithmeticError
            model = torch.nn.Linear(1, 1)
            torch.nn.init.constant_(model.weight, value)
            return model

        return next(mine.once(torch.nn.Linear(1, 1), train).parameters()).item()


def side_by_side(folder, **first):
    """What a second run gets that comes while the first one studies."""
    began = folder / "began"
    other = threading.Thread(target=use_study, args=(folder / "kept", 1.0, began), kwargs=first)
    other.start()
    while not began.exists():
        time.sleep(0.01)
    notes = {}
    found = use_study(folder / "kept", 2.0, began, notes=notes)
    other.join()
    assert 0.05 < notes["study"]["waited"] < 60
    return found


def test_a_run_waits_for_another_that_studies_the_same(tmp_path):
    assert side_by_side(tmp_path) == 1.0
    assert use_study(tmp_path / "kept", 3.0, tmp_path / "began") == 1.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_study_that_failed_is_left_to_the_next(tmp_path):
    assert side_by_side(tmp_path, failing=True) == 2.0


@pytest.mark.parametrize("change", [{"first": 3.0}, {"share": 0.3}])
def test_a_look_that_does_not_fit_the_budget_is_refused(change):
    settings = {**COMMON, **HEAD, **STUDIED_AFTER, **change}
    with pytest.raises(ValueError, match=r"of epsilon=2\.0"):
        run.run_one(Run("tiny", "semi", 2.0, 1, settings), "cpu")


def test_a_mirrored_model_says_the_same_of_mirrors():
    settings = {**MATCH, "recipe": "ldp_ssl", "mirrored": True}
    images, _, sealed, _ = run.data(synthetic.NAME, "cpu")
    made = adapters.train(Run("tiny", "semi", 2.0, 1, settings), images, run.fresh_vault(sealed), None).eval()
    with torch.no_grad():
        assert torch.allclose(made(images[:8]), made(images[:8].flip(-1)), atol=1e-5)


def test_shifts_weigh_half_and_keep_what_is_the_same_everywhere():
    pixels = torch.arange(12.0).reshape(1, 1, 3, 4)
    found = networks.OverShifts(torch.nn.Identity(), 1)(pixels)
    # The row above the first is the second, the column left of the first the second, and so at the other borders.
    there = torch.tensor([[5.0, 4, 5, 6], [1, 0, 1, 2], [5, 4, 5, 6]])
    back = torch.tensor([[5.0, 6, 7, 6], [9, 10, 11, 10], [5, 6, 7, 6]])
    assert torch.equal(found, pixels / 2 + (there + back) / 4)


def test_a_shifted_model_is_measured_beside_the_same_without_shifts(monkeypatch):
    settings = {**MATCH, "recipe": "ldp_ssl", "mirrored": True, "shifted": 1}
    values = iter([0.5, 0.25])
    monkeypatch.setitem(adapters.METRICS, "accuracy", lambda network, images, labels: next(values))
    line = run.run_one(Run("tiny", "semi", 2.0, 1, settings), "cpu")
    assert (line["value"], line["without_shifts"]) == (0.5, 0.25)


def test_kept_labels_beside_the_formula():
    """Pure groups of a thousand rows: all guesses are right, and so are all kept labels."""
    truth = np.repeat(np.arange(4), 1000)
    line = kept_labels.measured(truth, truth, 4, 1.5, others_only=True)
    assert line["guesses right"] == line["formula"] == line["kept right"] == 1.0
    assert line["kept"] == pytest.approx(line["answers right"])
    assert line["estimated"] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("settings", "unread"),
    [
        ({**MATCH, "recipe": "ldp_ssl", "ramp": 0.5}, "ramp"),
        ({**TEACHER, "recipe": "ldp_ssl", "cut": 6}, "cut"),
        ({**REFINE, "recipe": "aug_descent", "probe": True}, "probe"),
    ],
)
def test_settings_without_effect_are_refused(settings, unread):
    with pytest.raises(ValueError, match=rf"does not read \['{unread}'\]"):
        run.run_one(Run("tiny", "semi", 2.0, 1, settings), "cpu")
