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


def create(folder, *more, name="incomes", epsilon=2, delta=0, check=0):
    asked = ["--name", name, "--label", "income", "--classes", "low,high", "--epsilon", epsilon]
    asked += [] if delta is None else ["--delta", delta]
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
    assert "4 labels of 3 users" in create(folder, "--user", "who").stdout
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
        ("t.xlsx", {}, "is a spreadsheet; save it as CSV"),
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


# --- which store, which delta, which rows ---------------------------------------------------------------------------


def plainly(folder, epsilon, out, *more, table="t.csv", check=0):
    """`labeldp privatize` without --store."""
    asked = ["--label", "income", "--classes", "low,high", "--epsilon", epsilon, "--out", out]
    return labeldp("privatize", table, *asked, *more, cwd=folder, check=check)


def test_a_store_beside_the_table_is_used_or_said_to_be_left_out(folder):
    """Issue 18, 17: a run without --store spent what no store ever saw, and said nothing."""
    create(folder)
    assert "the budget 'incomes' in budgets.db beside the table pays" in plainly(folder, 1.5, "a.csv", "--quiet").stderr
    assert "nothing was charged" in plainly(folder, 1.0, "b.csv", check=2).stderr
    assert shown(folder, "show")[0]["spent"] == 1.5
    (folder / "u.csv").write_text(ROWS.replace("22,ann,low", "22,ann,high"))
    left_out = plainly(folder, 1.0, "b.csv", "--quiet", table="u.csv")
    assert "has no budget for these labels: nothing is charged to it" in left_out.stderr
    assert shown(folder, "show")[0]["spent"] == 1.5


def test_the_store_of_the_environment_is_used(folder, tmp_path, monkeypatch):
    (tmp_path / "team").mkdir()
    monkeypatch.setenv("LABELDP_STORE", str(tmp_path / "team" / "b.db"))
    create(folder)
    plainly(folder, 1.5, "a.csv")
    assert shown(folder, "show")[0]["spent"] == 1.5
    (folder / "u.csv").write_text(ROWS.replace("22,ann,low", "22,ann,high"))
    assert "labeldp budget create" in plainly(folder, 1.0, "b.csv", table="u.csv", check=2).stderr


def test_where_a_journal_is_charged_a_store_is_said_to_be_left_out(folder):
    create(folder)
    run = plainly(folder, 1.0, "a.csv", "--journal", "j", "--quiet")
    assert "no store" in run.stderr
    assert shown(folder, "show")[0]["charges"] == 0


def test_a_budget_has_the_delta_that_training_needs(folder):
    """Issue 18, 17: δ was 0, and everything that adds Gaussian noise was then refused without bound."""
    create(folder, delta=None)
    assert shown(folder, "show")[0]["delta"] == 1e-5
    # A budget that was made with another δ is not refused for the default.
    create(folder, "--store", "pure.db", delta=0)
    create(folder, "--store", "pure.db", delta=None)
    assert shown(folder, "show", "--store", "pure.db")[0]["delta"] == 0.0


def test_what_delta_zero_costs_is_said(folder):
    assert "With delta 0 nothing that adds Gaussian noise can be paid for" in create(folder, delta=0).stdout
    assert "delta 0 nothing" not in create(folder, "--store", "other.db", delta=1e-6).stdout


def test_tables_sorted_filtered_and_exported_again_share_a_budget(folder):
    header, *rows = ROWS.splitlines()
    numbered = [f"{number:03},{row}" for number, row in enumerate(rows, start=1)]
    texts = {
        "t": numbered,
        "sorted": sorted(numbered, reverse=True),
        "some": numbered[1:3],
        "plain numbers": [row.lstrip("0") for row in numbered[::2]],
    }
    for name, lines in texts.items():
        (folder / f"{name}.csv").write_text("\n".join([f"number,{header}", *lines]) + "\n")
    exported = pa.table({"number": [4, 2, 1], "income": ["high", "high", "low"]})
    pq.write_table(exported, folder / "exported.parquet")
    create(folder, "--id", "number", epsilon=1)
    plainly(folder, 1.0, "out.csv", "--id", "number")
    for name in [f"{name}.csv" for name in texts] + ["exported.parquet"]:
        refused = plainly(folder, 0.1, f"again-{name}", "--id", "number", table=name, check=2)
        assert "nothing was charged" in refused.stderr
    (kept,) = shown(folder, "show")
    assert (kept["spent"], kept["known_by_ids"], kept["rows"]) == (1.0, True, 4)
    assert "known by their ids" in labeldp("budget", "show", cwd=folder, check=0).stdout


def test_an_id_is_public(folder):
    assert "--id names 'income', which is the label and secret" in create(folder, "--id", "income", check=2).stderr
    assert "'nobody'" in create(folder, "--id", "nobody", check=2).stderr


def test_a_journal_that_is_not_sealed_says_so(folder):
    (folder / "j").write_text('{"format": "labeldp-journal/1", "budget": {"epsilon": 3.0, "delta": 0.0}}\n')
    assert "not sealed" in plainly(folder, 1.0, "a.csv", "--journal", "j").stderr
    assert "not sealed" not in plainly(folder, 1.0, "b.csv", "--journal", "new").stderr


def test_a_store_beside_the_table_that_cannot_be_opened_is_named(folder, monkeypatch):
    """Whoever asked for no store must be told which one is meant."""
    create(folder)
    monkeypatch.setitem(sys.modules, "labeldp.budgets.store", None)
    asked = ["--label", "income", "--classes", "low,high", "--epsilon", 1, "--out", "a.csv"]
    run = labeldp("privatize", "t.csv", *asked, cwd=folder, check=2)
    assert "labeldp: budgets.db lies beside the table, and" in run.stderr
