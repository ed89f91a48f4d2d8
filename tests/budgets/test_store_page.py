"""The page on budgets: its Python is run as it stands, its commands exist, its promises are tested where it says."""

import re
from pathlib import Path

import pytest

from tests.cli.test_cli import labeldp

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "budgets.md"
if not PAGE.exists():
    pytest.skip("the docs are not beside the tests", allow_module_level=True)
TEXT = PAGE.read_text()


def test_the_example_runs_and_is_refused_where_it_says(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    exec(compile(example, "docs/budgets.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("refused: the budget is epsilon=2, delta=0")
    assert printed[1:] == ["1 first model PureDP(epsilon=1.5) 1.5"]


def test_the_commands_exist():
    for command, options in {
        ("budget", "create"): ["--name", "--label", "--classes", "--epsilon", "--store", "--key", "--users"],
        ("budget", "show"): ["--json"],
        ("budget", "history"): ["--json"],
        ("privatize",): ["--store", "--key"],
    }.items():
        help_text = labeldp(*command, "--help", check=0).stdout
        assert " ".join(command) in TEXT
        for option in options:
            assert option in help_text
            assert option in TEXT
    for name in re.findall(r"`(tests/[\w/.]+)`", TEXT):
        assert (ROOT / name).exists()
