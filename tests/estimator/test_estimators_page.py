"""The page on estimators: its Python is run as it stands, and prints what it says."""

import re
from pathlib import Path

import pytest

from labeldp.estimator.methods import METHODS

PAGE = Path(__file__).parents[2] / "docs" / "estimators.md"
if not PAGE.exists():
    pytest.skip("the docs are not beside the tests", allow_module_level=True)
TEXT = PAGE.read_text()


@pytest.mark.filterwarnings("ignore::labeldp.estimator.RepeatedFitWarning")
def test_the_examples_run_and_print_what_they_say(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        exec(compile(example, "docs/estimators.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "one_shot\n" in printed
    assert "\n1.0\n" in printed
    assert "refused: the budget is epsilon=2, delta=1e-05" in printed
    assert "True" in printed
    assert "False" not in printed
    assert (tmp_path / "certificate.json").exists()


def test_every_method_is_named():
    assert all(f"`{method}`" in TEXT for method in METHODS)
