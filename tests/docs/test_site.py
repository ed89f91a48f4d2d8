"""The pages of the site: commands run, figures are those of the results, and the site builds without a warning."""

import importlib.util
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.docs.pages import ROOT, command_lines, run_command, text

# Pages whose commands need nothing but what the page itself has made.
PAGES = ("start", "choosing_epsilon", "results", "choose")
SITE = (
    "index",
    "coming_from",
    "reference",
    "versions",
    "tutorials/medical",
    "start",
    "choosing_epsilon",
    "recipes",
    "extend",
    "threat_model",
    "pitfalls",
    "results",
)
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.S | re.M)


# The longest is a slow one: its three commands are README's, too, which are always tried.
@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one == "start")) for one in PAGES])
def test_commands_run_as_they_stand(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = BLOCK.findall(text(name))
    assert any(kind == "console" for kind, _ in found)
    for kind, block in found:
        # Other Python of a page is run by test_docs.py; here it only makes what commands need.
        if kind == "python" and "open(" in block:
            exec(compile(block, name, "exec"), {})
        for line in command_lines(block) if kind == "console" else ():
            run_command(line, tmp_path)
    if name == "start":
        assert {"model", "model.html", "predictions.csv", "private.csv", "again.csv"} <= set(os.listdir(tmp_path))


@pytest.mark.parametrize("name", SITE)
def test_every_block_is_of_a_kind_that_is_tested(name):
    kinds = re.findall(r"^```(\w*)\n.*?^```", text(name), re.S | re.M)
    assert set(kinds) <= {"python", "console", "text"}
    assert "console" not in kinds or name in PAGES or name.startswith("tutorials/")


def test_figures_are_those_of_the_results():
    source = (ROOT / "experiments/results/README.md").read_text(encoding="utf-8")
    known = set(re.findall(r"\d+\.\d+", source))
    rows = [line for line in text("results").splitlines() if line.startswith("|") and "ε =" not in line]
    figures = [figure for line in rows for figure in re.findall(r"\d+\.\d+", line)]
    assert len(figures) > 60
    assert [figure for figure in figures if figure not in known] == []


@pytest.mark.slow
@pytest.mark.skipif(find_spec("material") is None, reason="mkdocs-material is not installed; make docs installs it")
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path):
    # Not --quiet: mkdocs then counts no warning at all.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING -" not in done.stdout + done.stderr
    # An example is a block of code; as plain text it would be a quotation.
    assert "<blockquote" not in (tmp_path / "site" / "reference.html").read_text(encoding="utf-8")
    for name in SITE:
        page = (tmp_path / "site" / f"{name}.html").read_text(encoding="utf-8")
        fetched = re.findall(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(https?:)?//', page)
        assert fetched == [], name


def test_pictures_are_drawn_from_the_lines(tmp_path):
    """What is drawn anew has the same curves as the pages: coordinates, whatever the version of matplotlib writes."""
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("picture", ROOT / "scripts/picture.py")
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    picture.draw(tmp_path / "accuracy.svg")
    picture.draw_tables(tmp_path / "tables.svg")
    for name in ("accuracy.svg", "tables.svg"):
        drawn, kept = ((folder / name).read_text("utf-8") for folder in (tmp_path, ROOT / "docs"))
        curves = [re.findall(r"<path d=\"([^\"]+)\" clip-path", one) for one in (drawn, kept)]
        assert len(curves[0]) >= 3
        assert curves[0] == curves[1], f"{name} is old: run python scripts/picture.py"
