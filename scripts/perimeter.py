"""List what an auditor reads to believe a certificate, with line counts; `--write` puts the list into docs/design.md.

    python scripts/perimeter.py            print it
    python scripts/perimeter.py --write    between the two perimeter markers of docs/design.md

Everything is read off the source: the files of `core/`, and for every mechanism (a class with `fits`, `event` and
`sample`) its file, the events that the file can charge, and the other files of `mechanisms/` that it needs.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "labeldp"
PAGE = ROOT / "docs" / "design.md"
BEGIN, END = "<!-- perimeter:begin -->", "<!-- perimeter:end -->"

# What only some certificates rest on, and which: they say so themselves, as they name the events of their mechanisms.
SOME = {
    "keyed.py": "those of Spark jobs, which name it by their source of noise or in their assumptions",
    "pld.py": "those with queries that are neither all pure nor all Gaussian, or with so many pure ones at δ > 0 that "
    "their losses cannot be listed; the field `accountant` says how it was computed",
}
# In core because core uses them, but no certificate rests on them.
BESIDE = {
    "saddle.py": "chooses where to compute: a bad choice costs accuracy, never soundness",
    "inverse.py": "chooses noise, and δ for audits: what was chosen is accounted for as it is",
    "protocols.py": "the signatures of mechanisms, stores and counters, no code",
    "sealing.py": "checks labels one by one, reads row numbers, which the vault checks, names a column for a store: a "
    "mistake is a wrong label or row, no wrong claim",
    "limits.py": "refuses certificates that take too long to read or recompute: a mistake costs time",
    "display.py": "shows claims and budgets in notebooks",
}


def code_lines(path: Path) -> int:
    """Return the number of lines without docstrings, comments and blank lines.

    >>> code_lines(Path(__file__)) > 50
    True
    """
    source, documented = path.read_text(encoding="utf-8"), set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            text = node.body[0]
            documented |= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(
        number not in documented and not line.strip().startswith(("#",)) and bool(line.strip())
        for number, line in lines
    )


def summary(path: Path) -> str:
    """Return the first sentence of a file's docstring, without its full stop."""
    return (
        (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
        .split("\n\n")[0]
        .split(". ")[0]
        .rstrip(".")
        .replace("\n", " ")
    )


def events() -> list[str]:
    """Return the names of all events that a ledger can hold."""
    tree = ast.parse((PACKAGE / "core" / "events.py").read_text(encoding="utf-8"))
    union = next(
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "Event"
    )
    return [node.id for node in ast.walk(union) if isinstance(node, ast.Name)]


def mechanisms(path: Path) -> list[str]:
    """Return the public classes of a file that can be queried, whose methods are their own or inherited in the file."""
    classes = {
        node.name: node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)
    }

    def methods(name: str) -> set[str]:
        node = classes.get(name)
        if node is None:
            return set()
        own = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        return own.union(*(methods(ast.unparse(base).split("[")[0]) for base in node.bases))

    return [
        name
        for name in classes
        if not name.startswith("_") and methods(name) >= {"fits", "event", "sample"} and not _is_abstract(classes[name])
    ]


def charged(path: Path) -> list[str]:
    """Return the events that a file names in its code."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return [name for name in events() if name in named]


def needed(path: Path) -> Iterator[Path]:
    """Yield the other files of mechanisms/ that a file imports, directly or not."""
    found, waiting = {path}, [path]
    while waiting:
        for node in ast.walk(ast.parse(waiting.pop().read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("labeldp.mechanisms."):
                other = ROOT / ((node.module or "").replace(".", "/") + ".py")
                if other not in found:
                    found.add(other)
                    waiting.append(other)
                    yield other


def table() -> str:
    """Return the list in Markdown."""
    core = [path for path in sorted((PACKAGE / "core").glob("*.py")) if path.name != "__init__.py"]
    believed = [path for path in core if path.name not in {*BESIDE, *SOME}]
    lines = ["| core | lines of code | what it is |", "|---|--:|---|"]
    lines += [f"| `core/{path.name}` | {code_lines(path)} | {summary(path)} |" for path in believed]
    lines.append(f"| **every certificate rests on** | {sum(map(code_lines, believed))} | |")
    for name, which in SOME.items():
        path = PACKAGE / "core" / name
        lines.append(f"| `core/{name}` | {code_lines(path)} | {summary(path)}. Some certificates rest on it: {which} |")
        believed.append(path)
    lines.append(f"| **all of it** | {sum(map(code_lines, believed))} | |")
    lines += ["", "Also in `core/`, and no certificate rests on them: "]
    lines[-1] += (
        "; ".join(f"`{name}` ({code_lines(PACKAGE / 'core' / name)} lines) {why}" for name, why in BESIDE.items()) + "."
    )
    lines += ["", "| mechanism | charges | file | lines of code | with |", "|---|---|---|--:|---|"]
    for path in sorted((PACKAGE / "mechanisms").rglob("*.py")):
        if names := mechanisms(path):
            others = sorted(other.relative_to(PACKAGE / "mechanisms").as_posix() for other in needed(path))
            cells = (_quoted(names), ", ".join(charged(path)), _quoted([path.relative_to(PACKAGE).as_posix()]))
            lines.append(f"| {' | '.join(cells)} | {code_lines(path)} | {_quoted(others)} |")
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    """Return the page with the list between its markers; they are added at the end where they are missing."""
    if BEGIN not in page:
        page = page.rstrip() + f"\n\n## What an auditor reads\n\n{BEGIN}\n{END}\n"
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{rest.split(END)[1]}"


def _quoted(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _is_abstract(node: ast.ClassDef) -> bool:
    return any(
        "abstractmethod" in ast.unparse(each)
        for base in ast.walk(node)
        if isinstance(base, ast.FunctionDef)
        for each in base.decorator_list
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the list into docs/design.md")
    if parser.parse_args().write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(table())
