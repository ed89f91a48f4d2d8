"""Tutorials run as they stand: Python and commands in the order of the page, in an empty folder, one session each."""

import re

import pytest

from tests.docs.pages import ROOT, command_lines, run_command

PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
# The others train for some seconds, several times.
QUICK = ("images", "team_budget")
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.S | re.M)
pytest.importorskip("sklearn")
pytest.importorskip("pandas")


def test_there_is_one_for_each_kind_of_reader():
    assert {page.stem for page in PAGES} >= {"conversions", "medical", "images", "text", "own_model", "team_budget"}


@pytest.mark.filterwarnings("default::UserWarning")
@pytest.mark.parametrize(
    "page", [page if page.stem in QUICK else pytest.param(page, marks=pytest.mark.slow) for page in PAGES],
    ids=lambda page: page.stem,
)  # fmt: skip
def test_it_runs_as_it_stands(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for number, (kind, block) in enumerate(BLOCK.findall(page.read_text("utf-8"))):
        if kind == "console":
            for line in command_lines(block):
                run_command(line, tmp_path)
            continue
        capsys.readouterr()
        exec(compile(block, f"{page.name}, block {number + 1}", "exec"), names)
        out = capsys.readouterr().out
        said = re.findall(r"^ *print\(.*\)  # (.+)$", block, re.M)
        assert [words for words in said if words not in out] == []
