"""Numbers instead of classes: from a CSV file to a certified model and its predictions, by the commands alone."""

import json
import math
import shutil
import tomllib

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from labeldp.core.certificate import read as read_certificate
from labeldp.data.door import _number_column, seal_column
from labeldp.data.request import TableError
from labeldp.estimator import spending
from labeldp.results.card import promise
from labeldp.results.model import load
from labeldp.results.verify import verify_folder
from tests.cli.clihelp import labeldp, write_csv

pytest.importorskip("torch")
pytest.importorskip("sklearn")


# No feature and no bound has these digits, so that a leak can be searched for.
SECRET = 873.25
HEADER = ("id", "area", "town", "rent")


def flats(count=400, seed=0, first=0):
    rng = np.random.default_rng(seed)
    area, town = rng.integers(20, 120, count), rng.choice(["Ulm", "Bonn"], count)
    rent = 8 * area + 150 * (town == "Ulm") + 40 * rng.normal(size=count)
    rent[3] = SECRET
    return [list(map(str, row)) for row in zip(range(first, first + count), area, town, rent.round(2), strict=True)]


def train(table, out, *more, bounds=("0", "1200"), task="regression", method="one_shot", epsilon="4"):
    given = ["--label", "rent", "--epsilon", epsilon, "--out", out, "--method", method, "--task", task]
    return labeldp("train", table, *given, *(() if bounds is None else ("--range", *bounds)), *more)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    write_csv(folder / "t.csv", flats(), HEADER)
    write_csv(folder / "open.csv", flats(200, seed=1, first=1000), HEADER)
    spending.MEMORY.forget()
    assert train(folder / "t.csv", folder / "model", "--id", "id", "--test", folder / "open.csv", "--quiet") == 0
    return folder


def copied(place, target):
    shutil.copytree(place / "model", target)
    return target


def test_the_folder_holds_and_says_what_was_done(place):
    folder = place / "model"
    assert verify_folder(folder) == ()
    run = tomllib.loads((folder / "config.toml").read_text())["train"]
    assert (run["task"], run["range"], run["method"]) == ("regression", [0.0, 1200.0], "one_shot")
    metrics = json.loads((folder / "metrics.json").read_text())
    certificate = read_certificate(folder / "certificate.json")
    assert metrics["epsilon"] == certificate.epsilon <= 4.0
    assert metrics["test"]["rows"] == 200
    assert metrics["test"]["r2"] > 0.7
    assert metrics["test"]["mean_absolute_error"] <= metrics["test"]["root_mean_squared_error"]
    card = (folder / "model_card.md").read_text()
    assert promise(certificate) in card
    for words in ("`rent` (a number from 0 to 1200)", "tabular-regression", "400 rows of t.csv", "R² 0.", "bounds of"):
        assert words in card
    assert "classes" not in card


def test_the_claim_is_the_price_of_what_was_asked(place):
    """One Gaussian look at all rows, and the ε that the accountant gives it at the δ that was settled on."""
    from labeldp.core import accountant

    certificate = read_certificate(place / "model" / "certificate.json")
    (group,) = certificate.groups
    (query,) = group.queries
    assert (group.rows, query.times) == (400, 1)
    # Two of three sides change by one row of norm 1 each.
    assert query.event.diameter == pytest.approx(math.sqrt(2))
    assert certificate.epsilon == accountant.epsilon(group.queries, certificate.delta)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_predictions_are_numbers_within_the_range(place, tmp_path, kind):
    assert labeldp("predict", place / "model", place / "open.csv", "--out", tmp_path / f"p.{kind}", "--keep", "id") == 0
    found = pacsv.read_csv(tmp_path / "p.csv") if kind == "csv" else pq.read_table(tmp_path / "p.parquet")
    assert found.column_names == ["id", "prediction"]
    predicted, truth = found["prediction"].to_numpy(), np.array([float(line[3]) for line in flats(200, seed=1)])
    assert np.corrcoef(predicted, truth)[0, 1] > 0.85
    assert (predicted >= 0).all()
    assert (predicted <= 1200).all()
    again = load(place / "model").predict(pacsv.read_csv(place / "open.csv"))
    assert np.allclose(predicted, again, rtol=1e-12)


def test_answers_per_row_cost_no_delta(place, tmp_path, capsys):
    assert train(place / "t.csv", tmp_path / "model", "--json", method="binned_regression") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["certificate"]["claim"]["delta"] == 0
    assert told["certificate"]["claim"]["epsilon"] <= 4.0
    assert told["metrics"]["bounds"] == [0.0, 1200.0]
    assert verify_folder(tmp_path / "model") == ()
    assert labeldp("predict", tmp_path / "model", place / "open.csv", "--out", tmp_path / "p.csv", "--quiet") == 0


def test_without_delta_the_noise_is_pure(place, tmp_path):
    assert train(place / "t.csv", tmp_path / "model", "--delta", "0", "--quiet") == 0
    certificate = read_certificate(tmp_path / "model" / "certificate.json")
    assert (certificate.delta, certificate.epsilon <= 4.0) == (0.0, True)


def test_a_run_is_repeated_from_its_config(place, tmp_path):
    assert labeldp("train", "--config", place / "model" / "config.toml", "--out", tmp_path / "again", "--quiet") == 0
    first, second = (tomllib.loads((f / "config.toml").read_text()) for f in (place / "model", tmp_path / "again"))
    assert first == second


def test_the_summary_and_the_report_speak_of_numbers(place, tmp_path, capsys):
    assert train(place / "t.csv", tmp_path / "model", "--test", place / "open.csv") == 0
    assert "rows with public labels: R² 0." in capsys.readouterr().out
    options = ("--beside", place / "model", "--non-private", 0.95, "--out", tmp_path / "page.html")
    assert labeldp("report", tmp_path / "model", *options) == 0
    text = (tmp_path / "page.html").read_text()
    for words in (
        "a number from 0 to 1200", "R² against epsilon", "Without privacy: 0.950", "mean absolute error", "Verified.",
        "a noisy sum over all rows", "low end, the middle or the high end", "bounds of the label",
    ):  # fmt: skip
        assert words in text
    for words in ("list of classes", "Accuracy against", "accuracy</th>"):
        assert words not in text


def test_no_number_of_a_row_is_in_the_folder(place):
    from labeldp.results.folder import read

    result = read(place / "model")
    assert all(400 not in tensor.shape for tensor in result.tensors.values())
    for file in (place / "model").iterdir():
        assert str(SECRET).encode() not in file.read_bytes()


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("config.toml", "1200.0", "1300.0", "differ in range"),
        ("config.toml", '"regression"', '"classification"', "differ in task"),
        ("metrics.json", "1200.0", "1300.0", "metrics.json was changed"),
    ],
)
def test_a_folder_that_tells_two_stories_does_not_verify(place, tmp_path, file, old, new, words):
    path = copied(place, tmp_path / "model") / file
    path.write_text(path.read_text().replace(old, new))
    assert words in " ".join(verify_folder(tmp_path / "model"))


def test_a_store_is_charged(place, tmp_path):
    from labeldp.budgets.store import BudgetStore
    from labeldp.core.ledger import Budget
    from labeldp.data.door import seal_numbers

    store = BudgetStore.open(tmp_path / "b.db")
    store.create("flats", seal_numbers([float(line[3]) for line in flats()], (0, 1200)), Budget(5.0, 1e-4))
    assert train(place / "t.csv", tmp_path / "model", "--store", tmp_path / "b.db", "--quiet") == 0
    assert [entry.note for entry in store.history("flats")] == ["train model"]
    assert train(place / "t.csv", tmp_path / "more", "--store", tmp_path / "b.db", "--quiet") == 2
    assert not (tmp_path / "more").exists()


# --- reading --------------------------------------------------------------------------------------------------------


def test_numbers_are_read_alike_from_every_kind_of_column(tmp_path):
    texts = ["1", "+2.5", " -3e2 ", ".5", "7.", "1E-3"]
    truth = [1, 2.5, -300, 0.5, 7, 0.001]
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"0,{text}\n" for text in texts))
    pq.write_table(pa.table({"x": [0] * 6, "y": texts}), tmp_path / "texts.parquet")
    pq.write_table(pa.table({"x": [0] * 6, "y": truth}), tmp_path / "floats.parquet")
    decimals = pa.array(truth).cast(pa.decimal128(12, 6))
    pq.write_table(pa.table({"x": [0] * 6, "y": decimals}), tmp_path / "decimals.parquet")
    for name in ("t.csv", "texts.parquet", "floats.parquet", "decimals.parquet"):
        assert _number_column(tmp_path / name, "y", None) == pytest.approx(truth)
        assert repr(seal_column(tmp_path / name, "y", bounds=(0, 9))).startswith("ValueVault(6 labels, Grid(")


@pytest.mark.parametrize("odd", ["", "many", "nan", "inf", "1e999", "3,5", "0x10", "1_000", str(SECRET) + "x"])
def test_what_is_no_number_is_counted_and_not_quoted(tmp_path, odd):
    write_csv(tmp_path / "t.csv", [["1", "2.0"], ["1", odd], ["1", "3.0"]], header=("x", "y"))
    with pytest.raises(
        TableError, match=r"of the 3 labels in t\.csv, 1 are missing, infinite or not numbers"
    ) as caught:
        seal_column(tmp_path / "t.csv", "y", bounds=(0, 9))
    assert not odd or f"{odd!r}" not in str(caught.value)
    assert str(SECRET) not in str(caught.value)


def test_dates_are_no_numbers(tmp_path):
    pq.write_table(pa.table({"x": [1], "y": pa.array([5], pa.date32())}), tmp_path / "t.parquet")
    with pytest.raises(TableError, match="has type date32"):
        seal_column(tmp_path / "t.parquet", "y", bounds=(0, 9))


# --- mistakes -------------------------------------------------------------------------------------------------------


def changed(place, value):
    lines = flats()
    lines[5][3] = value
    return write_csv(place / "t.csv", lines, HEADER)


MISTAKES = {
    "no range": ({"bounds": None}, "--range is missing: say between which numbers"),
    "a falling range": ({"bounds": ("5", "5")}, "give two numbers, the smaller one first"),
    "an endless range": ({"bounds": ("0", "inf")}, "give two numbers, the smaller one first"),
    "a range for classes": ({"task": "classification"}, "add --task regression if the label is a number"),
    "classes for a number": ({"more": ("--classes", "a,b")}, "--classes mean nothing with --task regression"),
    "a method for classes": ({"method": "rr"}, "choose one of auto, one_shot, binned_regression"),
    "a method for numbers": (
        {"task": "classification", "bounds": None, "method": "binned_regression"}, "is not for --task classification",
    ),
    "a range of one": ({"bounds": ("5",), "more": ()}, "--range"),
    "a range of words": ({"bounds": ("low", "high")}, "'low' is not a valid float"),
    "text for a number": ({"value": "expensive"}, "1 are missing, infinite or not numbers"),
    "a missing number": ({"value": ""}, "Drop or fill them by a rule fixed in advance"),
    "a misspelt label": ({"more": ("--label", "rents")}, "did you mean 'rent'?"),
    "a data set of classes": ({"table": "adult", "more": ()}, "leave out --task and --range"),
    "no budget": ({"more": ("--store", "budgets.db")}, "labeldp budget create --range"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_one_sentence_says_what_to_do(mistake, tmp_path, monkeypatch, capsys):
    from labeldp.budgets.store import BudgetStore

    monkeypatch.chdir(tmp_path)
    BudgetStore.open("budgets.db")
    given, words = dict(MISTAKES[mistake][0]), MISTAKES[mistake][1]
    table = given.pop("table", changed(tmp_path, given.pop("value", "500")))
    assert train(table, "out", *given.pop("more", ()), **given) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1, said.err
    assert words in said.err
    assert str(SECRET) not in said.err
    assert "expensive" not in said.err
    assert not (tmp_path / "out").exists()


def test_a_number_has_no_probabilities(place, capsys):
    assert labeldp("predict", place / "model", place / "open.csv", "--probabilities") == 2
    assert "leave out --probabilities" in capsys.readouterr().err


def test_a_class_and_a_number_do_not_stand_beside_each_other(place, tmp_path, capsys):
    lines = [[line[1], line[2], "dear" if float(line[3]) > 700 else "cheap"] for line in flats()]
    write_csv(tmp_path / "c.csv", lines, ("area", "town", "price"))
    options = ("--label", "price", "--classes", "cheap,dear", "--epsilon", 4, "--out", tmp_path / "classes")
    assert labeldp("train", tmp_path / "c.csv", *options, "--method", "one_shot", "--quiet") == 0
    assert labeldp("report", place / "model", "--beside", tmp_path / "classes", "--out", tmp_path / "p.html") == 2
    assert "one predicts a class and one a number" in capsys.readouterr().err


def test_numbers_have_a_budget_of_their_own(place, tmp_path, capsys):
    store = tmp_path / "budgets.db"
    asked = ("budget", "create", place / "t.csv", "--name", "flats", "--label", "rent", "--store", store)
    assert labeldp(*asked, "--epsilon", 2, "--delta", 1e-5, "--range", 0, 1200) == 0
    train = ("train", place / "t.csv", "--label", "rent", "--task", "regression", "--range", 0, 1200, "--quiet")
    paid = ("--store", store, "--delta", 1e-6, "--method", "one_shot")
    assert labeldp(*train, *paid, "--epsilon", 1.5, "--out", tmp_path / "first") == 0
    capsys.readouterr()
    assert labeldp(*train, *paid, "--epsilon", 1.9, "--out", tmp_path / "second") == 2
    assert "nothing was charged" in capsys.readouterr().err
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--range", 5, 5), "the smaller one first"),
        (("--range", 0, 9, "--classes", "a,b"), "--range is for numbers"),
    ],
)
def test_ranges_that_cannot_be_meant(place, tmp_path, capsys, options, said):
    store = tmp_path / "budgets.db"
    asked = ("budget", "create", place / "t.csv", "--name", "flats", "--label", "rent", "--store", store)
    assert labeldp(*asked, "--epsilon", 2, *options) == 2
    assert said in capsys.readouterr().err
    assert not store.exists()
