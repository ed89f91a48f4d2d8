"""Columns on the command line: how they were read is said before and after, and is overruled by name."""

import gzip
import io
import json
import sys
from types import SimpleNamespace

import pytest

from tests.commands import labeldp

pytest.importorskip("sklearn")
ROWS = 300
GIVEN = ("--label", "y", "--classes", "no,yes", "--epsilon", "2")


def table(seed=0):
    words = ["good", "bad", "film", "plot", "slow", "fun", "the", "very"]
    lines = ["id;age;when;review;same;y"]
    for i in range(ROWS):
        review = " ".join(words[(i * step + seed) % 8] for step in (1, 3, 5, 7)) + f" {i}"
        age = "?" if i % 100 == 0 else f"{i % 71},5"
        lines.append(f"u{seed}{i};{age};{i % 28 + 1:02d}.03.2020;{review};7;{'yes' if i % 2 else 'no'}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns")
    (folder / "t.csv").write_text(table())
    (folder / "new.csv.gz").write_bytes(gzip.compress(table(1).encode()))
    run = labeldp("train", "t.csv", *GIVEN, "--out", "model", "--method", "one_shot", cwd=folder, check=0)
    (folder / "said.txt").write_text(run.stdout)
    return folder


def test_a_plan_lists_every_column_and_no_label(place):
    said = labeldp("plan", "t.csv", *GIVEN, cwd=place, check=0).stdout
    listed = said[said.index("t.csv was read with ';' as delimiter.") :].splitlines()
    assert [line.split()[:2] for line in listed[2:]] == [
        ["id", "id"], ["age", "number"], ["when", "date"], ["review", "text"], ["same", "constant"],
    ]  # fmt: skip
    assert "decimal commas; read as missing: '?' (3)" in said
    found = json.loads(labeldp("plan", "t.csv", *GIVEN, "--drop", "id", "--json", cwd=place, check=0).stdout)
    assert found["columns"][-1] == {
        "name": "id", "read_as": "left out", "missing": None, "distinct": None, "note": "as requested",
    }  # fmt: skip


def test_training_says_it_shortly_and_a_dry_run_at_length(place):
    said = (place / "said.txt").read_text()
    assert "Public columns: 1 number, 1 date, 1 text; left out: id (tells rows apart), same (one value)." in said
    assert "Check how these were read: age (decimal commas; read as missing: '?' (3)), when (as DD.MM.YYYY)." in said
    dry = labeldp(
        "train", "t.csv", *GIVEN, "--out", "other", "--dry-run", "--category", "id", cwd=place, check=0
    ).stdout
    assert "id      category" in dry
    assert not (place / "other").exists()


def test_card_and_page_have_the_table(place):
    card = (place / "model" / "model_card.md").read_text()
    assert "| `age` | number | 1.0% | 71 | decimal commas; read as missing: '?' (3) |" in card
    labeldp("report", "model", "--out", "page.html", cwd=place, check=0)
    page = (place / "page.html").read_text()
    assert "How each public column was read" in page
    assert "tells rows apart" in page
    labeldp("verify", "model", cwd=place, check=0)


def test_predictions_read_text_dates_and_commas_again(place, monkeypatch):
    labeldp("predict", "model", "new.csv.gz", "--out", "p.csv", cwd=place, check=0)
    whole = (place / "p.csv").read_text()
    assert len(whole.splitlines()) == ROWS + 1
    for name, content in (("q.csv", table(1).encode()), ("r.csv", (place / "new.csv.gz").read_bytes())):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        labeldp("predict", "model", "-", "--out", name, cwd=place, check=0)
        assert (place / name).read_text() == whole


def test_a_table_from_standard_input_trains_and_leaves_no_copy(place, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(table().encode())))
    run = labeldp("train", "-", *GIVEN, "--out", "piped", "--method", "rr", "--drop", "review", cwd=place, check=0)
    assert "left out: id (tells rows apart), same (one value), review (as requested)" in run.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (("--number", "ages"), "number names 'ages', which is no column of t.csv; did you mean 'age'"),
        (("--drop", "y"), "drop names 'y', which is the label"),
        (("--date", "review"), "none of whose cells is a date"),
    ],
)
def test_bad_names_get_one_sentence(place, more, what):
    assert what in labeldp("train", "t.csv", *GIVEN, "--out", "no", *more, cwd=place, check=2).stderr
    assert what in labeldp("plan", "t.csv", *GIVEN, *more, cwd=place, check=2).stderr


def test_columns_belong_to_a_table():
    refused = labeldp("plan", "--rows", 10, "--classes", 2, "--epsilon", 1, "--drop", "a", check=2)
    assert "belong to a table" in refused.stderr
    refused = labeldp("train", "adult", "--epsilon", 1, "--out", "no", "--number", "age", check=2)
    assert "--number mean nothing with the data set 'adult'" in refused.stderr


def test_names_and_cells_are_no_commands_to_a_terminal(tmp_path):
    escape = "\x1b[2J"
    cells = "".join(f"{escape if i % 40 == 0 else i / 2},{i % 3},{'ny'[i % 2]}\n" for i in range(80))
    (tmp_path / "t.csv").write_text(f'a{escape},"b\nc",y\n{cells}')
    given = ("--label", "y", "--classes", "n,y", "--epsilon", "1")
    for command in (("plan", "t.csv", *given), ("train", "t.csv", *given, "--out", "m", "--method", "rr")):
        said = labeldp(*command, cwd=tmp_path, check=0).stdout
        assert "\x1b" not in said
        assert "read as missing" in said
