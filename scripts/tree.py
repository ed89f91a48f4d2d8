"""Write the tree of the package into docs/design.md, one line per file, from the first lines of the docstrings.

`python scripts/tree.py` replaces what is between the markers `tree:begin` and `tree:end`.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "design.md"
FOLDERS = [
    "core",
    "mechanisms",
    "budgets",
    "data",
    "features",
    "learning",
    "models",
    "recipes",
    "engines",
    "estimator",
    "results",
    "choosing",
    "audit",
    "service",
    "cli",
]


def first_line(path: Path) -> str:
    """Return the first sentence of a module's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return (
        re.split(r"(?<!et al)(?<=[\w)])[.?](?:\s|$)", " ".join(text.split("\n\n")[0].split()), maxsplit=1)[0]
        .strip()
        .rstrip(".")
    )


def lines(folder: Path) -> list[str]:
    """Return the lines of one folder's table, sub-folders included."""
    found = [path for path in sorted(folder.rglob("*.py")) if path.name not in ("__init__.py", "__main__.py")]
    return [
        f"| `{path.relative_to(folder).as_posix()}` | {first_line(path).replace('|', chr(92) + '|')} |"
        for path in found
    ]


def tree() -> str:
    """Return the whole section."""
    package = ROOT / "labeldp"
    parts = []
    for name in FOLDERS:
        parts += [f"| **`{name}/`** | {first_line(package / name / '__init__.py')} |", *lines(package / name)]
    names = sorted(path.name for path in package.glob("[a-z]*.py"))
    top = [f"| `{name}` | {first_line(package / name)} |" for name in names]
    return "\n".join(["| file | what it holds |", "|---|---|", *top, *parts])


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    begin, end = "<!-- tree:begin -->", "<!-- tree:end -->"
    before, after = text.split(begin)[0], text.split(end)[1]
    PAGE.write_text(f"{before}{begin}\n\n{tree()}\n\n{end}{after}", encoding="utf-8")
