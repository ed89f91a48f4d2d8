"""Run the cells of docs/notebook.ipynb anew, and write them back with what they put out, and as a page for the site.

    python scripts/notebook.py

Edit the notebook wherever notebooks are edited, then run this: docs/notebook.md is the same as Markdown. No notebook
server is needed. A cell is run as Python runs it, what it prints is its text, and the value of its last line is shown
as a notebook shows it (`_repr_html_`, else `repr`).
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"


def read() -> list[dict[str, Any]]:
    """Return the cells of the notebook as they are in the file."""
    return json.loads((DOCS / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]


def run(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run the cells in the current folder; return them with what they put out."""
    names: dict[str, Any] = {"__name__": "__main__"}
    made: list[dict[str, Any]] = []
    for number, old in enumerate(cells):
        source = "".join(old["source"])
        lines = source.splitlines(keepends=True)
        cell = {"cell_type": old["cell_type"], "id": f"cell-{number}", "metadata": {}, "source": lines}
        made.append(cell)
        if old["cell_type"] == "markdown":
            continue
        tree = ast.parse(source)
        last = None
        # A semicolon at the end hides the value, as in a notebook.
        if isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)  # pyright: ignore[reportAttributeAccessIssue]
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(tree, f"cell {number}", "exec"), names)
            value = None if last is None else eval(compile(last, f"cell {number}", "eval"), names)
        outputs: list[dict[str, Any]] = []
        if said.getvalue():
            outputs.append(
                {"output_type": "stream", "name": "stdout", "text": said.getvalue().splitlines(keepends=True)}
            )
        if value is not None:
            shown = {"text/plain": [repr(value)]}
            if hasattr(value, "_repr_html_"):
                shown["text/html"] = [value._repr_html_()]
            outputs.append({"output_type": "execute_result", "execution_count": number, "data": shown, "metadata": {}})
        cell |= {"execution_count": number, "outputs": outputs}
    return made


def notebook(cells: list[dict[str, Any]]) -> str:
    """Return the notebook's file: format 4.5."""
    about = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    whole = {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def page(cells: list[dict[str, Any]]) -> str:
    """Return the same as a page of the docs."""
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        # The semicolon that hides a value is for notebooks.
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source.removesuffix(';')}\n```")
        for output in cell.get("outputs", ()):
            shown = output.get("data", {})
            printed = "".join(output.get("text", shown.get("text/plain", ())))
            parts.append("".join(shown["text/html"]) if "text/html" in shown else f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Run the cells in an empty folder and write both files."""
    cells = read()
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            cells = run(cells)
        finally:
            os.chdir(before)
    (DOCS / "notebook.ipynb").write_text(notebook(cells), encoding="utf-8")
    (DOCS / "notebook.md").write_text(page(cells), encoding="utf-8")


if __name__ == "__main__":
    main()
