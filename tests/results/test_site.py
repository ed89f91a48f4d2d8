"""The pages of the site: commands run, figures are those of the results, and the site builds without a warning."""

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Pages whose commands need nothing but what the page itself has made.
PAGES = ("start", "choosing_epsilon", "results")
SITE = ("index", "start", "choosing_epsilon", "recipes", "extend", "threat_model", "pitfalls", "results")
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.S | re.M)


def commands(block):
    return [line[2:] for line in block.replace("\\\n", " ").splitlines() if line.startswith("$ ")]


def run(kind, block, folder):
    """A Python block, or every command of a console block, as a reader would."""
    calls = [["-c", block]] if kind == "python" else [["-m", *shlex.split(command)] for command in commands(block)]
    for call in calls:
        assert call[:2] == ["-m", "labeldp"] or kind == "python", f"only labeldp is run here, not {call}"
        done = subprocess.run([sys.executable, *call], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{call}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("name", PAGES)
def test_commands_run_as_they_stand(name, tmp_path):
    blocks = BLOCK.findall((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8"))
    assert any(kind == "console" for kind, _ in blocks)
    for kind, block in blocks:
        # Later Python of a page is run by tests/test_docs.py; here it only makes what commands need.
        if kind == "console" or "open(" in block:
            run(kind, block, tmp_path)
    if name == "start":
        assert {"model", "model.html", "predictions.csv", "private.csv", "again.csv"} <= set(os.listdir(tmp_path))


@pytest.mark.parametrize("name", SITE)
def test_every_block_is_of_a_kind_that_is_tested(name):
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    kinds = re.findall(r"^```(\w*)\n.*?^```", text, re.S | re.M)
    assert set(kinds) <= {"python", "console"}
    assert "console" not in kinds or name in PAGES


def test_comments_in_the_pages_say_what_is_printed(tmp_path, capsys, monkeypatch):
    """`print(…)  # this` prints this."""
    monkeypatch.chdir(tmp_path)
    checked = 0
    for name in ("choosing_epsilon", "recipes", "pitfalls"):
        names = {"__name__": "__main__"}
        for block in re.findall(r"^```python\n(.*?)^```", (ROOT / f"docs/{name}.md").read_text("utf-8"), re.S | re.M):
            exec(compile(block, name, "exec"), names)
            printed = capsys.readouterr().out
            said = re.findall(r"^print\(.*\)  # (.+)$", block, re.M)
            said += re.findall(r"^# (\d.*)$", block, re.M)
            for words in said:
                assert words in printed, (name, words, printed)
            checked += len(said)
    assert checked >= 7


def test_figures_are_those_of_the_results():
    source = (ROOT / "experiments/results/README.md").read_text(encoding="utf-8")
    known = set(re.findall(r"\d+\.\d+", source))
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|") and "ε =" not in line]
    figures = [figure for line in rows for figure in re.findall(r"\d+\.\d+", line)]
    assert len(figures) > 60
    assert [figure for figure in figures if figure not in known] == []


@pytest.mark.skipif(find_spec("material") is None, reason="mkdocs-material is not installed; make docs installs it")
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in SITE:
        page = (tmp_path / "site" / f"{name}.html").read_text(encoding="utf-8")
        fetched = re.findall(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(https?:)?//', page)
        assert fetched == [], name
