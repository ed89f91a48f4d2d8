"""`labeldp train --holdout`: what is printed, written, shown and refused."""

import json
import re

import pytest

from labeldp.core.certificate import read as read_certificate
from labeldp.estimator import spending
from labeldp.mechanisms.evaluation import ScoreCounts
from labeldp.recipes.kept import load
from labeldp.results import model
from labeldp.results.evaluation import evaluation_of
from labeldp.results.verify import verify_folder
from tests.cli.clihelp import SECRET, fresh_memory, labeldp, rows, train, write_csv  # noqa: F401

pytest.importorskip("torch")
pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    write_csv(folder / "t.csv", rows(2000))
    assert train(folder / "t.csv", folder / "model", "--id", "id", "--quiet") == 0
    return folder


def test_a_tenth_is_set_aside_and_the_folder_verifies(place):
    found = evaluation_of(json.loads((place / "model" / "metrics.json").read_text()))
    assert found.rows == 200
    assert found.classes == ("no", SECRET)
    assert found.measures["accuracy"].value > 0.7
    certificate = read_certificate(place / "model" / "certificate.json")
    assert sorted(group.rows for group in certificate.groups) == [200, 1800]
    assert certificate.epsilon <= 4
    assert verify_folder(place / "model") == ()


def test_the_card_says_it_with_error_bars(place):
    card = (place / "model" / "model_card.md").read_text()
    assert "Trained on 1,800 rows" in card
    assert re.search(r"Measured on 200 other rows, .* set aside .* accuracy \d+\.\d% ± \d", card)
    assert re.search(rf"\| `{SECRET}` \| \d+\.\d% ± \d", card)
    assert "Not measured" not in card


def test_the_report_draws_it(place, tmp_path):
    assert labeldp("report", place / "model", "--out", tmp_path / "page.html") == 0
    page = (tmp_path / "page.html").read_text()
    for title in ("Confusion matrix", "ROC curve", "Reliability diagram"):
        assert f"<title>{title}</title>" in page
    assert "of 200 rows that were set aside." in page
    assert "By class, on rows set aside" in page
    assert "Trained on 1,800 secret labels" in page


def test_the_summary_says_it(place, tmp_path, capsys):
    assert train(place / "t.csv", tmp_path / "some", "--holdout", "150") == 0
    said = capsys.readouterr().out
    assert "trained on 1,850 secret labels" in said
    assert re.search(
        r"Measured on 150 rows that were set aside, at no further cost: accuracy \d+\.\d% ± \d+\.\d, AUC", said
    )


def test_none_where_it_is_not_wanted(place, tmp_path, capsys):
    assert train(place / "t.csv", tmp_path / "none", "--holdout", "0") == 0
    said = capsys.readouterr().out
    assert "Measured on" not in said
    assert "The model was not measured: no rows were set aside (--holdout)" in said
    card = (tmp_path / "none" / "model_card.md").read_text()
    assert "Trained on 2,000 rows" in card
    assert "no rows were set aside (--holdout)" in card
    assert [group.rows for group in read_certificate(tmp_path / "none" / "certificate.json").groups] == [2000]


@pytest.mark.parametrize("holdout", ["-1", "half", "1.5", "2000", "2"])
def test_what_is_no_part_is_refused_in_one_sentence(place, tmp_path, capsys, holdout):
    assert train(place / "t.csv", tmp_path / "refused", "--holdout", holdout) == 2
    assert "holdout=" in capsys.readouterr().err
    assert not (tmp_path / "refused").exists()


def test_numbers_are_measured(tmp_path, capsys):
    lines = [[*line[:4], str(len(line[2]) + 0.01 * number)] for number, line in enumerate(rows(1500))]
    table = write_csv(tmp_path / "numbers.csv", lines)
    options = (
        "--label",
        "y",
        "--task",
        "regression",
        "--range",
        "0",
        "20",
        "--epsilon",
        "4",
        "--out",
        tmp_path / "model",
    )
    assert labeldp("train", table, *options) == 0
    assert re.search(
        r"Measured on 150 rows that were set aside, .*: R² -?\d.* ± .*, mean absolute error", capsys.readouterr().out
    )
    assert labeldp("report", tmp_path / "model", "--out", tmp_path / "page.html") == 0
    assert "root mean squared error" in (tmp_path / "page.html").read_text()


def test_a_run_that_is_stopped_after_the_measurement_goes_on_with_it(place, tmp_path, monkeypatch, capsys):
    def stopped(*_):
        raise KeyboardInterrupt

    options = (place / "t.csv", tmp_path / "again", "--holdout", "0.25", "--json")
    with monkeypatch.context() as patch:
        patch.setattr(model, "metrics_of", stopped)
        assert train(*options) != 0
    (kept,) = tmp_path.rglob("evaluation.npz")
    drawn = load(kept).right
    spending.MEMORY.forget()
    monkeypatch.setattr(ScoreCounts, "sample", lambda *_: pytest.fail("drawn twice"))
    capsys.readouterr()
    assert train(*options) == 0
    found = json.loads(capsys.readouterr().out)["metrics"]["evaluation"]
    assert found["rows"] == 500
    assert found["measures"]["accuracy"]["value"] == pytest.approx(min(max(drawn, 0), 500) / 500)
