import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labeldp.data.files import adult_path
from tests.commands import labeldp

SECRET = "very-secret-class"
NUMBERS = ["--rows", "60000", "--classes", "10", "--epsilon", "0.1", "--features", "784"]


def plan(*arguments, check=0):
    run = labeldp("plan", *arguments, check=check)
    assert SECRET not in run.stdout + run.stderr
    return run


def as_json(*arguments):
    return json.loads(plan(*arguments, "--json").stdout)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.parquet"
    columns = {
        "age": pa.array([30.0, 40.0, 50.0] * 400),
        "town": pa.array(["a", "b", "c"] * 400),
        "vector": pa.array([[0.0] * 32] * 1200, pa.list_(pa.float32(), 32)),
        "diagnosis": pa.array([SECRET, "x", "y"] * 400),
    }
    pq.write_table(pa.table(columns), path)
    return path


def test_people_get_a_sentence_a_promise_and_a_ranking():
    said = plan(*NUMBERS).stdout
    assert "one_shot" in said.splitlines()[0]
    for words in ("clean labels", "1.11×", "noise multiplier = 49.807", "lp_mst", "labeldp_pro", "rests on"):
        assert words in said


def test_json_is_the_same_choice():
    from labeldp.choosing.choice import choose

    # δ as labeldp train settles it: a tenth of one over the rows.
    found = as_json(*NUMBERS)
    # Without a GPU it takes no network for images.
    expected = choose(60_000, 10, 0.1, 1.6e-6, feature_dim=784, network=False)
    assert found == json.loads(json.dumps(expected.to_json()))
    assert found["recipe"] == "one_shot+linear"


def test_options_reach_the_choice():
    assert as_json(*NUMBERS, "--device", "cuda", "--hours", "1")["notes"] == []
    assert as_json(*NUMBERS, "--delta", "0")["settings"]["delta"] == 0
    assert as_json("--rows", "100", "--regression", "--epsilon", "1")["recipe"] == "binned_regression"
    assert as_json(*NUMBERS, "--rows-per-user", "3")["recipe"] == "labeldp_pro"
    assert as_json(*NUMBERS, "--modality", "embeddings")["alike"] == ["cifar10 byol embeddings", "cifar10 embeddings"]


def test_the_command_knows_what_the_function_knows():
    from labeldp.choosing.choice import DEVICES
    from labeldp.cli import app
    from labeldp.recipes.worth import MODALITIES

    options = {option.name: option.type for option in app.plan.params}
    assert tuple(options["modality"].choices) == MODALITIES
    assert tuple(options["device"].choices) == DEVICES


def test_a_table_is_counted_and_its_label_not_read(table):
    found = as_json(table, "--label", "diagnosis", "--classes", "3", "--epsilon", "1")
    named = as_json(table, "--label", "diagnosis", "--classes", "none,mild,severe", "--epsilon", "1")
    # One number, one column of three categories, one vector of 32; a tenth of the rows is set aside.
    numbers = as_json("--rows", 1080, "--features", 36, "--classes", 3, "--epsilon", 1, "--modality", "table")
    assert found == named
    columns = found.pop("columns")
    assert found == numbers
    assert [(one["name"], one["read_as"], one["distinct"]) for one in columns] == [
        ("age", "number", 3), ("town", "category", 3), ("vector", "vector", None),
    ]  # fmt: skip


def test_labels_do_not_change_the_plan(table, tmp_path):
    other = tmp_path / "other.parquet"
    whole = pq.read_table(table)
    pq.write_table(whole.set_column(3, "diagnosis", pa.array(["z"] * 1200)), other)
    ask = ["--label", "diagnosis", "--classes", "3", "--epsilon", "1"]
    assert plan(table, *ask).stdout == plan(other, *ask).stdout


def test_csv_is_counted_too(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text('age,town,diagnosis\n31,"a\nb",' + SECRET + "\n57,c,x\n")
    found = as_json(path, "--label", "diagnosis", "--classes", "3", "--epsilon", "1")
    assert [one["read_as"] for one in found.pop("columns")] == ["number", "category"]
    assert found == as_json("--rows", 2, "--features", 3, "--classes", 3, "--epsilon", 1, "--modality", "table")
    tabs = tmp_path / "table.tsv"
    tabs.write_text("age\tdiagnosis\n31\tx\n57\ty\n")
    assert as_json(tabs, "--label", "diagnosis", "--classes", "3", "--epsilon", "1")["recipe"]


def test_the_bundled_table():
    said = plan(adult_path(), "--label", "income", "--classes", "2", "--epsilon", "1").stdout
    assert "29,305 labels" in said
    # Nothing of the kind was compared: a column of dashes would say nothing.
    assert "behind by" in plan(*NUMBERS).stdout
    assert "behind by" not in said
    assert "accuracy  " not in said
    # By the name that labeldp train takes, too.
    assert plan("adult", "--epsilon", "1").stdout == said


def test_plan_card_and_report_give_one_worth(tmp_path):
    """For the same rows, features, δ and machine: what is said before a run is what it was chosen by."""
    pytest.importorskip("sklearn")
    from labeldp.results.facts import gather

    rng, path = np.random.default_rng(0), tmp_path / "t.csv"
    lines = [
        f"{'' if number % 9 == 0 else round(x, 2)},{town},{'yes' if x > 0 else 'no'},{mark}"
        for number, (x, town, mark) in enumerate(
            zip(rng.normal(size=1500), rng.choice(["a", "b", ""], 1500), rng.integers(0, 99, 1500), strict=True)
        )
    ]
    path.write_text("\n".join(["x,town,y,mark", *lines, ""]))
    asked = ("--label", "y", "--classes", "no,yes", "--epsilon", 0.3, "--category", "mark")
    planned = as_json(path, *asked)
    assert labeldp("train", path, *asked, "--out", tmp_path / "model", check=0).returncode == 0
    card, found = (tmp_path / "model/model_card.md").read_text("utf-8"), gather(tmp_path / "model")
    assert planned["worth"] in card
    assert planned["reason"] in card
    assert found.choice.worth == planned["worth"]
    assert found.choice.problem == {**planned["problem"], "num_classes": 2}
    assert found.case.num_rows == 1350


def test_classes_are_not_counted_in_the_data(table):
    refused = plan(table, "--label", "diagnosis", "--epsilon", "1", check=2)
    assert "itself private" in refused.stderr
    assert refused.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--classes", "3", "--epsilon", "1"], "--rows"),
        (["--rows", "10", "--classes", "3", "--epsilon", "0"], "epsilon=0 cannot be used"),
        (["--rows", "10", "--classes", "one", "--epsilon", "1"], "num_classes=1"),
        (["--rows", "10", "--classes", "3", "--epsilon", "1", "--label", "y"], "belong to a table"),
        (["--rows", "10", "--classes", "3", "--regression", "--epsilon", "1"], "--regression"),
        (["--rows", "10", "--classes", "3"], "--epsilon"),
        (["missing.parquet", "--classes", "3", "--epsilon", "1", "--label", "y"], "there is no file 'missing.parquet'"),
        (["mnist", "--epsilon", "1"], "mnist is a data set of images; give its numbers in place of its name"),
    ],
)
def test_bad_requests_get_one_sentence(arguments, words):
    assert words in plan(*arguments, check=2).stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--epsilon", "1", "--classes", "3"], "--label is missing"),
        (["--epsilon", "1", "--classes", "3", "--label", "Diagnosis"], "did you mean 'diagnosis'?"),
        (["--epsilon", "1", "--classes", "3", "--label", "diagnosis", "--rows", "7"], "--rows means nothing"),
        (["--epsilon", "1", "--classes", "3", "--label", "diagnosis", "--delimiter", ";"], "delimiter"),
    ],
)
def test_bad_requests_about_a_table(table, more, words):
    assert words in plan(table, *more, check=2).stderr


def test_what_is_no_table_is_refused(tmp_path):
    path = tmp_path / "broken.parquet"
    path.write_text(SECRET)
    assert "cannot be read" in plan(path, "--label", "y", "--classes", "2", "--epsilon", "1", check=2).stderr
    path = tmp_path / "empty.csv"
    path.write_text("a,y\n")
    assert "no rows" in plan(path, "--label", "y", "--classes", "2", "--epsilon", "1", check=2).stderr


def test_a_folder_of_parquet_files_is_planned_and_one_of_images_is_told_the_way(table, tmp_path):
    many = tmp_path / "many"
    many.mkdir()
    for part in range(2):
        pq.write_table(pq.read_table(table).slice(600 * part, 600), many / f"{part}.parquet")
    asked = ["--label", "diagnosis", "--classes", "3", "--epsilon", "1"]
    assert as_json(str(many), *asked)["problem"] == as_json(str(table), *asked)["problem"]
    images = tmp_path / "images"
    (images / "cat").mkdir(parents=True)
    assert "leave out --label" in plan(str(images), *asked, check=2).stderr
    assert "give --rows" in plan(str(images), *asked[2:], check=2).stderr
