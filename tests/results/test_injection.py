"""Names that come with a table stay names: in cards, pages, config files, spreadsheets and on a terminal."""

import csv
import dataclasses
import io
import re
import tomllib

import pyarrow as pa
import pytest

from labeldp.cli.app import run
from labeldp.cli.predict import for_spreadsheets
from labeldp.results.card import code, in_markdown
from labeldp.results.facts import gather
from labeldp.results.folder import drafting
from labeldp.results.report import page
from labeldp.results.verify import verify_folder
from tests.commands import labeldp
from tests.results.resulthelp import result

EVIL = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "a | b | c",
    "`code` and ```fence```",
    "line\n# heading\r\n---\n| x |",
    "**bold** &lt; \\",
    "\x1b[2J\u202egnp.exe",
)


def saved(place, name, evil):
    made = result()
    column = {"name": evil, "read_as": evil, "missing": 0.5, "distinct": 3, "note": evil}
    story = dataclasses.replace(
        made.story,
        data=evil,
        label=evil,
        classes=(evil, "yes"),
        features=(evil, "town"),
        reason=evil,
        columns=(column,),
    )
    run = {"train": {"table": evil, "label": evil, "classes": [evil, "yes"], "epsilon": 1.0}}
    with drafting(place / name) as draft:
        draft.write(dataclasses.replace(made, story=story, run=run))
    return place / name


@pytest.mark.parametrize("evil", EVIL)
def test_a_name_is_no_tag_no_link_no_cell_and_no_line_of_a_card(tmp_path, evil):
    """The old card had column names as they were: `<script>` in a column ran wherever the card was shown."""
    folder = saved(tmp_path, "model", evil)
    card = (folder / "model_card.md").read_text()
    plain = (saved(tmp_path, "plain", "name") / "model_card.md").read_text()
    assert re.search(r"<(script|img)", card) is None
    assert len(card.splitlines()) == len(plain.splitlines())
    assert "](" not in card.replace("\\](", "")
    assert card.count("```") == plain.count("```")
    assert all(sign.isprintable() or sign == "\n" for sign in card)
    assert verify_folder(folder) == ()


@pytest.mark.parametrize("evil", EVIL)
def test_a_name_is_no_tag_of_a_page(tmp_path, evil):
    text = page(gather(saved(tmp_path, "model", evil)))
    assert re.search(r"<(script|img)\b", text) is None
    assert "onerror=alert" not in re.sub(r"&lt;img src=x onerror=alert", "", text)


@pytest.mark.parametrize("name", ["a\nseed = 7", "x`y", "a b", "<b>", "-rf"])
def test_the_name_of_the_folder_is_no_line_of_its_files(tmp_path, name):
    folder = saved(tmp_path, name, "name")
    assert tomllib.loads((folder / "config.toml").read_text())["train"].keys() == {
        "table",
        "label",
        "classes",
        "epsilon",
    }
    card = (folder / "model_card.md").read_text()
    assert "<b>" not in card
    assert verify_folder(folder) == ()


def test_the_escapes():
    assert str(in_markdown("a_b (c)")) == "a_b (c)"
    assert str(code("occupation")) == "`occupation`"
    assert str(code("")) == "“”"


# -- spreadsheets ----------------------------------------------------------------------------------------------------

FORMULAS = ("=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "=cmd|' /C calc'!A0", "＝1+1", "-", "=")
HARMLESS = ("-1", "+3.5", "-1e-5", ".5", "a=1", "", " =1", "'=1", "5", "yes")


def test_a_text_is_no_formula_and_a_number_stays():
    texts = [*FORMULAS, *HARMLESS, None]
    table = pa.table({"=x": texts, "n": [-1.0] * len(texts), "c": pa.array(texts).dictionary_encode()})
    found = for_spreadsheets(table).to_pydict()
    expected = [*(f"'{text}" for text in FORMULAS), *HARMLESS, None]
    assert found == {"'=x": expected, "n": [-1.0] * len(texts), "c": expected}


def test_predictions_open_in_a_spreadsheet_without_running_anything(tmp_path, capfd):
    """The old predictions had kept columns and classes as they were."""
    pytest.importorskip("sklearn")
    classes = ("=HYPERLINK(0)", "-1")
    rows = [(i % 60, classes[i % 60 > 30], f'=cmd{i}|"x"') for i in range(120)]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("age", "y", "@id"), *rows])
    declared = ",".join(classes)
    labeldp(
        "train", tmp_path / "t.csv", "--label", "y", "--classes", declared, "--epsilon", 50, "--drop", "@id",
        "--method", "rr", "--out", tmp_path / "model", check=0,
    )  # fmt: skip
    asked = ("predict", tmp_path / "model", tmp_path / "t.csv", "--keep", "@id", "--probabilities")
    capfd.readouterr()
    assert run([str(word) for word in asked]) == 0
    shown = capfd.readouterr().out
    labeldp(*asked, "--out", tmp_path / "now.csv", "--quiet", check=0)
    for text in (shown, (tmp_path / "now.csv").read_text()):
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        assert "'=HYPERLINK(0)" in cells
        assert "-1" in cells
        assert not [cell for cell in cells if cell[:1] in "=+-@\t\r" and cell not in ("-1", "")]
    labeldp(*asked, "--out", tmp_path / "raw.csv", "--raw-text", check=0)
    assert '"=HYPERLINK(0)"' in (tmp_path / "raw.csv").read_text()
    labeldp(*asked, "--out", tmp_path / "now.parquet", check=0)
    import pyarrow.parquet as pq

    assert set(pq.read_table(tmp_path / "now.parquet").column("prediction").to_pylist()) <= set(classes)
