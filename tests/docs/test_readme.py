"""The README's Python is run as it stands, and its commands exist."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_the_learning_example_runs():
    torch = pytest.importorskip("torch")
    names = {"model": torch.nn.Linear(2, 3), "features": torch.randn(10_000, 2), "rows": [0, 1, 2, 3]}
    exec(compile(blocks("python")[0], "README.md", "exec"), names)
    exec(compile(blocks("python")[1], "README.md", "exec"), names)
    names["loss"].backward()
    exec(compile(blocks("python")[2], "README.md", "exec"), names)
    assert names["vault"].certificate().epsilon == 2.0
    for block in blocks("python")[3:]:
        exec(compile(block, "README.md", "exec"), names)
        assert 0.49 < names["vault"].certificate(delta=1e-5).epsilon <= 0.5


def commands():
    lines = "\n".join(blocks("console")).replace("\\\n", " ")
    return [line[2:] for line in lines.splitlines() if line.startswith("$ ")]


# They need a table, and are run on one below.
ON_A_TABLE = ("pip", "labeldp train", "labeldp verify", "labeldp privatize")


@pytest.mark.parametrize("command", [c for c in commands() if not c.startswith(ON_A_TABLE)])
def test_the_commands_run(command):
    arguments = command.split()[1:]
    subprocess.run([sys.executable, "-m", "labeldp", *arguments], check=True, capture_output=True)


def test_three_commands_lead_to_a_certified_model(tmp_path):
    pytest.importorskip("sklearn")
    chance = random.Random(0)
    lines = [(chance.randint(18, 90), chance.choice("FM")) for _ in range(3000)]
    rows = [f"{age},{sex},{('none', 'mild', 'severe')[(age + chance.randint(0, 15)) // 36]}" for age, sex in lines]
    (tmp_path / "patients.csv").write_text("\n".join(["age,sex,diagnosis", *rows, ""]))
    said = ""
    for command in commands():
        if command.startswith(ON_A_TABLE[1:]):
            ours = [sys.executable, "-m", "labeldp", *command.split()[1:]]
            env = {**os.environ, "OMP_NUM_THREADS": "1"}
            said += subprocess.run(ours, check=True, cwd=tmp_path, env=env, capture_output=True, text=True).stdout
    assert "model: the certificate holds" in said
    # What the page shows of `privatize` is what it prints.
    shown = blocks("console")[1].splitlines()
    assert "\n".join(shown[1:]) in said


def test_links_lead_somewhere():
    for link in re.findall(r"\]\((?!http)([^)#]+)", TEXT):
        assert (README.parent / link).exists(), link
