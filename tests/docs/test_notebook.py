"""The notebook of the docs: executed, the same as its page (which test_docs.py runs), and with no script in it."""

import importlib.util
import json
import re

from tests.docs.pages import ROOT, text

SPEC = importlib.util.spec_from_file_location("notebook", ROOT / "scripts" / "notebook.py")
script = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(script)


def test_the_page_is_the_notebook():
    assert script.page(script.read()) == text("notebook")


def test_every_cell_was_run_and_its_file_is_of_the_format():
    whole = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))
    assert (whole["nbformat"], whole["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in whole["cells"]}) == len(whole["cells"])
    code = [cell for cell in whole["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
    shown = [data for cell in code for out in cell["outputs"] for data in out.get("data", {}).get("text/html", ())]
    # Budget, evaluation, certificate, store.
    assert len(shown) == 4
    assert not any(re.search(r"<(?!/?(table|caption|tr|th|td)>)", data) for data in shown)


def test_cells_are_run_as_a_notebook_runs_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = [
        {"cell_type": "markdown", "source": ["# one\n", "two"]},
        {"cell_type": "code", "source": ["x = 2\n", "print('said')\n", "x + 1"]},
        {"cell_type": "code", "source": ["x;"]},
    ]
    _, first, second = script.run(cells)
    assert first["outputs"][0]["text"] == ["said\n"]
    assert first["outputs"][1]["data"] == {"text/plain": ["3"]}
    assert second["outputs"] == []
    assert (
        script.page([first]) == "```python\nx = 2\nprint('said')\nx + 1\n```\n\n```text\nsaid\n```\n\n```text\n3\n```\n"
    )
