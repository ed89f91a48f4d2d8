"""`labeldp budget`, and `labeldp privatize --store`: what a data owner types."""

import json
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labeldp.budgets.store import BudgetStore
from tests.commands import labeldp

ROWS = "age,who,income\n31,ann,low\n57,bob,high\n22,ann,low\n44,cid,high\n"
SECRET = "very-secret-class"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "t.csv").write_text(ROWS)
    return tmp_path


def create(folder, *more, name="incomes", epsilon=2, check=0):
    asked = ["--name", name, "--label", "income", "--classes", "low,high", "--epsilon", epsilon]
    return labeldp("budget", "create", "t.csv", *asked, *more, cwd=folder, check=check)


def privatize(folder, epsilon, out, *more, check=0):
    asked = ["--label", "income", "--classes", "low,high", "--epsilon", epsilon, "--out", out, "--quiet"]
    return labeldp("privatize", "t.csv", *asked, "--store", "budgets.db", *more, cwd=folder, check=check)


def shown(folder, *arguments):
    return json.loads(labeldp("budget", *arguments, "--json", cwd=folder, check=0).stdout)


def test_a_budget_is_made_spent_and_shown(folder):
    assert "4 labels in 2 classes" in create(folder).stdout
    privatize(folder, 1.5, "a.csv")
    refused = privatize(folder, 1.0, "b.csv", check=2)
    assert "nothing was charged" in refused.stderr
    assert not (folder / "b.csv").exists()
    privatize(folder, 0.5, "b.csv")
    (kept,) = shown(folder, "show")
    assert (kept["name"], kept["epsilon"], kept["spent"], kept["charges"], kept["rows"]) == ("incomes", 2.0, 2.0, 2, 4)
    first, second = shown(folder, "history", "incomes")
    assert first["event"] == {"kind": "PureDP", "epsilon": 1.5}
    assert (second["epsilon"], second["rows"], second["times"]) == (2.0, 4, 1)
    assert "a.csv" in first["note"]
    words = labeldp("budget", "history", "incomes", cwd=folder, check=0).stdout
    assert "epsilon so far 1.5" in words
    assert first["who"] in words
    assert "epsilon 2 of 2, in 2 charges" in labeldp("budget", "show", "incomes", cwd=folder, check=0).stdout


def test_parquet_and_csv_of_the_same_labels_share_their_budget(folder):
    create(folder)
    table = pa.table({"income": ["low", "high", "low", "high"], "x": [1, 2, 3, 4]})
    pq.write_table(table, folder / "t.parquet")
    asked = ["--label", "income", "--epsilon", 2, "--out", "p.parquet", "--store", "budgets.db", "--quiet"]
    # The classes in another order: the labels are the same.
    labeldp("privatize", "t.parquet", *asked, "--classes", "high,low", cwd=folder, check=0)
    privatize(folder, 0.1, "a.csv", check=2)


def test_users_are_protected_together(folder):
    assert "4 labels of 3 users" in create(folder, "--users", "who").stdout
    (kept,) = shown(folder, "show")
    assert (kept["protects"], kept["users"]) == ("all labels of one user", 3)
    assert "all labels of one user, not one label" in privatize(folder, 1.0, "a.csv", check=2).stderr


def test_making_it_again_changes_nothing_and_raising_it_is_refused(folder):
    create(folder)
    create(folder)
    assert "cannot become" in create(folder, epsilon=3, check=2).stderr
    assert "under the name 'incomes'" in create(folder, name="other", check=2).stderr


def test_a_shared_store_and_its_key(folder, database):
    labeldp("budget", "key", "team.key", cwd=folder, check=0)
    assert "left alone" in labeldp("budget", "key", "team.key", cwd=folder, check=2).stderr
    team = ["--store", database, "--key", "team.key"]
    create(folder, *team)
    asked = ["--label", "income", "--classes", "low,high", "--epsilon", 1, "--out", "a.csv", "--quiet"]
    labeldp("privatize", "t.csv", *asked, *team, cwd=folder, check=0)
    (kept,) = shown(folder, "show", *team)
    assert kept["spent"] == 1.0
    assert BudgetStore.open(database, key=folder / "team.key").epsilon("incomes") == 1.0


@pytest.mark.parametrize(
    ("table", "changes", "what"),
    [
        ("t.csv", {"--classes": None}, "--classes is missing"),
        ("t.csv", {"--classes": "low"}, "2 of 4 labels"),
        ("t.csv", {"--label": "pay"}, "'pay'"),
        ("t.csv", {"--name": ""}, "name"),
        ("t.csv", {"--epsilon": "-1"}, "epsilon"),
        ("t.csv", {"--delta": "2"}, "delta"),
        ("t.csv", {"--users": "nobody"}, "'nobody'"),
        ("t.xlsx", {}, "format"),
        ("u.csv", {}, "not a file"),
        ("t.csv", {"--store": "mysql://u@h/d"}, "mysql"),
        ("t.csv", {"--key": "missing.key"}, "missing"),
    ],
)
def test_mistakes_get_one_sentence(folder, table, changes, what):
    right = {"--name": "x", "--label": "income", "--classes": "low,high", "--epsilon": "1"}
    options = [text for name, value in (right | changes).items() if value is not None for text in (name, value)]
    run = labeldp("budget", "create", table, *options, cwd=folder, check=2)
    assert what in run.stderr
    assert run.stdout == ""


def test_where_there_is_no_store_none_is_made(folder):
    for command in (["show"], ["history", "incomes"]):
        assert "there is no budget store 'budgets.db'" in labeldp("budget", *command, cwd=folder, check=2).stderr
    assert [path.name for path in folder.iterdir()] == ["t.csv"]


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (["--journal", "j"], "--journal"),
        (["--budget", "1"], "--budget"),
        (["--key", "missing"], "missing"),
    ],
)
def test_one_place_for_the_spending(folder, more, what):
    create(folder)
    assert what in privatize(folder, 1.0, "a.csv", *more, check=2).stderr
    assert shown(folder, "show")[0]["charges"] == 0


def test_labels_without_a_budget_are_not_privatized(folder):
    create(folder)
    (folder / "t.csv").write_text(ROWS.replace("22,ann,low", "22,ann,high"))
    assert "labeldp budget create" in privatize(folder, 1.0, "a.csv", check=2).stderr
    assert not (folder / "a.csv").exists()


def test_no_label_is_said(folder):
    (folder / "t.csv").write_text(ROWS.replace("low", SECRET))
    run = create(folder, check=2)
    assert SECRET not in run.stdout + run.stderr
    assert re.search("2 of 4 labels", run.stderr)


def test_without_sqlalchemy_it_says_what_to_install(folder):
    code = "import sys; sys.modules['sqlalchemy'] = None; from labeldp.cli.app import main; main()"
    command = [sys.executable, "-c", code, "budget", "show"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert run.returncode == 2
    assert "pip install 'labeldp[store]'" in run.stderr
    for command in ([], ["create"], ["show"], ["history"], ["key"]):
        assert "Usage" in labeldp("budget", *command, "--help", check=0).stdout
