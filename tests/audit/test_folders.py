"""`labeldp audit FOLDER`: the recipe again, on the folder's features, with made-up labels."""

import json
import shutil

import numpy as np
import pyarrow.csv as pacsv
import pytest

from labeldp.audit.folders import WitnessVault, audit_folder, by_moments, by_responses
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.data import door
from labeldp.data.door import PrivateData
from labeldp.estimator import spending
from labeldp.mechanisms.counts import GaussianNoise
from labeldp.mechanisms.moments import Moments
from labeldp.mechanisms.responses import RandomizedResponse, SetResponse
from labeldp.mechanisms.values import BinnedResponse
from labeldp.recipes.holdout import rows_set_aside
from labeldp.releases import NoisyLabels
from labeldp.results.folder import drafting
from labeldp.results.model import result_of, trained
from labeldp.results.verify import verify_folder
from tests.cli.clihelp import HEADER, labeldp, rows, train, write_csv
from tests.marks import mostly_slow
from tests.results.test_images import images

pytest.importorskip("torch")
pytest.importorskip("sklearn")


COUNT = 1000
# An honest recipe is accused by these tests once in 10⁹ runs at most.
SURE = 1 - 1e-9


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A table and models of it: by answers, by one look, and of a number."""
    folder = tmp_path_factory.mktemp("place")
    write_csv(folder / "t.csv", rows(COUNT))
    numbers = [[*line[:4], str(len(line[2]) + 0.1 * number)] for number, line in enumerate(rows(COUNT))]
    write_csv(folder / "numbers.csv", numbers)
    spending.MEMORY.forget()
    quiet = ("--drop", "id", "--quiet")
    assert train(folder / "t.csv", folder / "rr", *quiet, epsilon="1", method="rr") == 0
    spending.MEMORY.forget()
    assert train(folder / "t.csv", folder / "one", *quiet, epsilon="1") == 0
    number = ("--task", "regression", "--range", "0", "110", "--method", "binned_regression", "--label", "y")
    out = ("--epsilon", "1", "--out", folder / "number", *quiet)
    assert labeldp("train", folder / "numbers.csv", *number, *out) == 0
    return folder


def copied(place, name, target):
    shutil.copytree(place / name, target)
    return target


# --- honest ---------------------------------------------------------------------------------------------------------


def test_an_honest_folder_is_not_accused_and_its_report_says_so(place, tmp_path, capsys):
    folder = copied(place, "rr", tmp_path / "model")
    assert labeldp("audit", folder, "--rows", 450, "--confidence", SURE) == 0
    said = capsys.readouterr().out
    assert said.startswith("No contradiction")
    assert "and 1 is claimed" in said
    assert "nothing here comes from a true label" in said
    kept = json.loads((folder / "audit.json").read_text())
    assert 0.1 < kept["bound"] < 1.0
    assert kept["canaries"] == 450
    assert kept["of"]["method"] == "rr"
    assert verify_folder(folder) == ()
    assert labeldp("report", folder, "--out", tmp_path / "page.html") == 0
    page = (tmp_path / "page.html").read_text()
    assert "No contradiction" in page
    assert "No true label was used" in page
    assert "another claim" not in page
    assert sorted(path.name for path in folder.iterdir() if path.name.endswith(".part")) == []


@pytest.mark.slow
def test_json_is_one_object(place, tmp_path, capsys):
    folder = copied(place, "rr", tmp_path / "model")
    assert labeldp("audit", folder, "--json", "--confidence", SURE) == 0
    told = json.loads(capsys.readouterr().out)
    # A tenth of the rows was set aside and not trained on.
    assert told["canaries"] == COUNT * 9 // 10
    assert 0.3 < told["bound"] < 1.0
    assert told == json.loads((folder / "audit.json").read_text())


def test_a_gaussian_look_is_held_against_its_own_curve(place):
    """The ledger's looks at δ = 1e-7: a larger ε than at the folder's δ, and what the bound stands beside."""
    from labeldp.core.certificate import read
    from labeldp.core.ledger import worst_epsilon

    found = audit_folder(place / "one", seed=0, confidence=SURE)
    certificate = read(place / "one" / "certificate.json")
    assert (found.epsilon, found.delta) == (certificate.epsilon, certificate.delta)
    assert found.result.delta == 1e-7 < found.delta
    assert found.result.epsilon == worst_epsilon(certificate.groups, 1e-7) > found.epsilon
    assert not found.result.contradicts
    assert "which is what one run can be held against" in found.verdict


@pytest.mark.slow
def test_numbers_are_audited_at_the_ends_of_their_range(place):
    found = audit_folder(place / "number", seed=0, confidence=SURE).result
    assert 0.1 < found.bound < 1.0
    assert found.attack.startswith("the responses' likelihood")


@pytest.mark.parametrize(
    "method", mostly_slow(["dp_sgd", "one_shot+linear", "lp_mst", "one_shot_prior", "alibi", "cluster_votes"], quick=2)
)
def test_every_kind_of_method_can_be_run_again(tmp_path, method):
    write_csv(tmp_path / "t.csv", rows(300))
    options = ("--drop", "id", "--quiet")
    assert train(tmp_path / "t.csv", tmp_path / "model", *options, epsilon="2", method=method) == 0
    found = audit_folder(tmp_path / "model", seed=0, confidence=SURE)
    assert not found.result.contradicts
    assert found.method == method


@pytest.mark.slow
def test_images_are_audited_too(tmp_path, monkeypatch):
    features, labels = images(400, 0)
    own = PrivateData("mnist", "", features, LabelVault(labels, 2), ("up", "down"))
    result = result_of(own, trained(own, 2.0, method="rr"), 2.0, None, {"table": "mnist", "seed": 0})
    with drafting(tmp_path / "model") as draft:
        draft.write(result)
    monkeypatch.setattr(door, "read", lambda _: own)
    found = audit_folder(tmp_path / "model", seed=0, confidence=SURE).result
    assert 0.5 < found.bound < 2.0


# --- no true label --------------------------------------------------------------------------------------------------


def counted():
    """Noise that is repeatable as a whole, and other in every run."""
    seeds = iter(range(100, 200))
    return lambda: SecureRandom(next(seeds))


@pytest.mark.slow
def test_labels_of_the_table_change_nothing(place, tmp_path):
    """Other labels, or none: the same result to the bit."""
    other = [[*line[:4], "nonsense"] for line in rows(COUNT)]
    write_csv(tmp_path / "other.csv", other)
    write_csv(tmp_path / "bare.csv", [line[:4] for line in rows(COUNT)], header=HEADER[:4])
    tables = (None, tmp_path / "other.csv", tmp_path / "bare.csv")
    found = [audit_folder(place / "rr", table, seed=1, noise=counted()) for table in tables]
    assert found[0] == found[1] == found[2]


def test_no_label_is_read(place, monkeypatch):
    def refuse(*_, **__):
        pytest.fail("a label was read")

    for name in ("read", "seal_column", "_class_column", "_number_column"):
        monkeypatch.setattr(door, name, refuse)
    audit_folder(place / "one", seed=0)


@pytest.mark.slow
def test_rows_that_are_no_canaries_have_the_labels_that_the_model_predicts(place, monkeypatch):
    from labeldp.audit import folders
    from labeldp.results.model import load

    sealed, honest = [], folders.WitnessVault

    def watched(labels, *given, **more):
        sealed.append(np.array(labels))
        return honest(labels, *given, **more)

    monkeypatch.setattr(folders, "WitnessVault", watched)
    audit_folder(place / "rr", canaries=100, seed=0)
    model, table = load(place / "rr"), pacsv.read_csv(place / "t.csv")
    usual = np.array([model.classes.index(name) for name in model.predict(table)])
    # Those set aside were not trained on, and are not audited.
    held = rows_set_aside(COUNT, None, int(np.random.RandomState(0).randint(2**31 - 1)))
    usual = np.delete(usual, held)
    moved = [np.flatnonzero(labels != usual) for labels in sealed]
    assert len(sealed) == 3
    assert len(set(np.concatenate(moved))) <= 100
    assert 20 < len(moved[0]) < 80


# --- planted bugs ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_half_the_noise_is_caught(place, tmp_path, monkeypatch, capsys):
    honest = SetResponse.sample

    def planted(self, labels, rng):
        return NoisyLabels(self, honest(RandomizedResponse(2 * self.epsilon, self.num_classes), labels, rng).responses)

    monkeypatch.setattr(RandomizedResponse, "sample", planted)
    folder = copied(place, "rr", tmp_path / "model")
    assert labeldp("audit", folder) == 1
    assert capsys.readouterr().out.startswith("THE CLAIM IS BROKEN")
    assert labeldp("report", folder, "--out", tmp_path / "page.html") == 0
    assert "THE CLAIM IS BROKEN" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
def test_noise_that_repeats_itself_is_caught(place):
    found = audit_folder(place / "rr", seed=0, noise=lambda: SecureRandom(5)).result
    assert found.contradicts
    assert "a repeated run" in found.attack


@pytest.mark.slow
def test_half_the_noise_on_numbers_is_caught(place, monkeypatch):
    honest = BinnedResponse.sample

    def planted(self, labels, rng):
        from dataclasses import replace

        louder = BinnedResponse(2.5 * self.epsilon, self.bins, self.outputs)
        return replace(honest(louder, labels, rng), channel=honest(self, labels, rng).channel)

    monkeypatch.setattr(BinnedResponse, "sample", planted)
    assert audit_folder(place / "number", seed=0).result.contradicts


def test_a_recipe_that_spends_otherwise_is_not_taken_for_the_folders(place, monkeypatch):
    from labeldp.recipes import per_row

    honest = per_row.rr

    def cheaper(model, inputs, vault, *, epsilon, fit):
        return honest(model, inputs, vault, epsilon=epsilon / 2, fit=fit)

    monkeypatch.setattr(per_row, "rr", cheaper)
    with pytest.raises(ValueError, match="made by another version"):
        audit_folder(place / "rr")


# --- what a vault gave away -----------------------------------------------------------------------------------------


def test_answers_of_parts_add_up():
    vault = WitnessVault([0, 1, 1, 0], 2)
    channel = RandomizedResponse(1.0, 2)
    first, second = vault.release(channel), vault.release(channel, rows=[2, 0])
    found = by_responses(vault.seen, 4, [0, 1])
    expected = first.log_likelihood()
    expected[[2, 0]] += second.log_likelihood()
    assert found == pytest.approx(expected)
    assert by_responses([], 4, [0, 1]) is None


@pytest.mark.parametrize("canaries", [60, 40])
def test_a_moment_with_little_noise_gives_every_row_away(canaries):
    """As many directions as rows: the coins can be solved for; the rows that are known are taken off."""
    rng = np.random.default_rng(0)
    labels, phi = rng.integers(3, size=60), rng.normal(size=(60, 60)) / 10
    canary = np.arange(60) < canaries
    for noise, right in ((1e-3, 1.0), (30.0, 0.6)):
        vault = WitnessVault(labels, 3)
        vault.release(Moments(phi, 3, GaussianNoise(noise), radius=2.0))
        scores = by_moments(vault.seen, [0, 1, 2], np.eye(3)[labels], canary)
        share = (scores.argmax(axis=1) == labels)[canary].mean()
        assert share == right if right == 1 else share < right
    assert by_moments([], [0, 1, 2], np.eye(3)[labels], canary) is None


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["FOLDER", "--labels", "t.csv"], "--labels mean nothing with a folder"),
        (["FOLDER", "--epsilon", "1"], "--epsilon mean nothing with a folder"),
        (["FOLDER", "--table", "gone.csv"], "give it with --table"),
        (["FOLDER", "--table", "short.csv"], "has 10 rows and the folder was trained on 1000"),
        (["FOLDER", "--table", "odd.csv"], "Give a table with the same columns"),
        (["FOLDER", "--rows", "5000"], "canaries=5000 of 900 rows"),
        (["FOLDER", "--device", "cuda:99"], "leave out --device"),
        (["empty"], "a whole folder that labeldp train wrote"),
        (["damaged"], "audit a folder that holds"),
        (["--recipe", "rr", "--epsilon", "1", "--table", "t.csv"], "--table mean nothing with --recipe"),
    ],
)
def test_one_sentence_says_what_to_do(place, tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    folder = copied(place, "rr", tmp_path / "FOLDER")
    (copied(place, "rr", tmp_path / "damaged") / "metrics.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    write_csv(tmp_path / "short.csv", rows(10))
    write_csv(tmp_path / "odd.csv", [["1"]], header=("z",))
    assert labeldp("audit", *arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert len(said.err.splitlines()) == 1
    assert not (folder / "audit.json").exists()
