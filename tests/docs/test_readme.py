"""The README's Python is run as it stands, and its commands exist."""

import random
import re
import shlex
from pathlib import Path

import pytest

from tests.commands import labeldp

README = Path(__file__).parents[2] / "README.md"
if not README.exists():
    pytest.skip("the README is not beside the tests", allow_module_level=True)
TEXT = README.read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def test_the_example_runs_and_prints_what_it_says(capsys):
    example = blocks("python")[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "1.0"


def commands():
    lines = "\n".join(blocks("console")).replace("\\\n", " ")
    return [line[2:] for line in lines.splitlines() if line.startswith("$ ")]


# They need a table, and are run on one below.
ON_A_TABLE = ("pip", "labeldp train", "labeldp verify", "labeldp privatize")


def test_the_commands_run():
    for command in commands():
        if not command.startswith(ON_A_TABLE):
            labeldp(*shlex.split(command)[1:], cwd=README.parent, check=0)


def test_three_commands_lead_to_a_certified_model(tmp_path):
    pytest.importorskip("sklearn")
    chance = random.Random(0)
    lines = [(chance.randint(18, 90), chance.choice("FM")) for _ in range(3000)]
    rows = [f"{age},{sex},{('none', 'mild', 'severe')[(age + chance.randint(0, 15)) // 36]}" for age, sex in lines]
    (tmp_path / "patients.csv").write_text("\n".join(["age,sex,diagnosis", *rows, ""]))
    said = ""
    for command in commands():
        if command.startswith(ON_A_TABLE[1:]):
            said += labeldp(*shlex.split(command)[1:], cwd=tmp_path, check=0).stdout
    assert "model: the certificate holds" in said
    # What the page shows of `privatize` is what it prints.
    shown = blocks("console")[1].splitlines()
    assert "\n".join(shown[1:]) in said


def test_links_lead_somewhere():
    for link in re.findall(r"\]\((?!http)([^)#]+)", TEXT):
        assert (README.parent / link).exists(), link


def test_the_figures_are_those_of_the_results():
    root = README.parent
    known = re.findall(r"\d+\.\d+", (root / "experiments/results/README.md").read_text(encoding="utf-8"))
    rounded = {*known, *(f"{float(figure):.1f}" for figure in known)}
    rows = [line.split("|", 2)[2] for line in TEXT.splitlines() if re.match(r"\| (MNIST|Fashion-MNIST|CIFAR-10)", line)]
    figures = [figure for row in rows for figure in re.findall(r"\d+\.\d+", row)]
    assert len(figures) == 28
    assert [figure for figure in figures if figure not in rounded] == []
