"""One door for labels: outside of `data`, `core` and `mechanisms` no training label is ever open.

The syntax of every other file of the package is read, lazy imports included. Each rule is shown to reject a leak that
is planted in a file of every folder. What happens at run time is tested in tests/data/test_door.py.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import labeldp

PACKAGE = Path(labeldp.__file__).parent
PERIMETER = ("data", "core", "mechanisms")
# What the rest of the package may import of `labeldp.data`: nothing that returns labels which are still open.
FROM_DATA = {
    "benchmarks": None,
    "columns": {
        "MISSING", "Layout", "arrow_table", "columns_of_frame", "comes_in_parts", "conformed", "is_frame", "is_read",
        "names_of", "parts_of", "read_array", "read_frame", "read_like", "take_rows",
    },
    "csv": set(),
    "door": None,
    "files": None,
    "image_files": set(),
    "kinds": {"Column", "Reading"},
    "labels": {"class_values"},
    "open_rows": None,
    "own_images": {"ImageFormat", "images_like", "is_folder_of_classes", "read_images", "seal_folders"},
    "parquet": set(),
    "partitions": None,
    "released": None,
    "request": {
        "FORMAT", "LARGEST_WEIGHT", "Report", "Request", "TableError", "checked", "column_advice", "listed", "refusing",
    },
    "stored": {"StoredTable", "read_like", "some_of", "whole_of"},
    "table_files": set(),
    "tables": None,
}  # fmt: skip
SEALED = {"__labels", "_LabelVault__labels", "_chosen", "_sealed_labels", "sealed_labels", "_sealed_numbers"}
# They read whole tables, so labels too.
READERS = {"read_csv", "read_table", "read_parquet", "open_csv", "ParquetFile", "loadtxt", "genfromtxt", "DictReader"}
VAULTS = {"LabelVault", "ValueVault", "UserVault", "seal_values"}
SEALING = {"seal_classes", "seal_numbers", "seal_or_take", "_sealed"}

# (file, what it does): why it may.
EXCUSED = {
    ("audit/responses.py", "calls reveal"): "an owner compares a released table with its own labels",
    ("cli/demo.py", "calls reveal"): "Adult is published; the demonstration shows what privacy costs",
    ("audit/responses.py", "makes a LabelVault"): "of labels that the audit drew",
    ("audit/selftest.py", "makes a LabelVault"): "of labels that the audit drew",
    ("audit/selftest.py", "makes a UserVault"): "of labels that the audit drew",
    ("audit/selftest.py", "calls seal_values"): "of labels that the audit drew",
    ("estimator/spending.py", "calls fingerprint"): "repeated fits are found by a hash under a key that dies with us",
    ("budgets/tables.py", "calls fingerprint"): "a store knows a data set by a keyed hash of its labels",
    ("service/jobs.py", "calls fingerprint"): "a job's process has sealed the labels that the service serves",
    ("service/worker.py", "calls fingerprint"): "a job's process has sealed the labels that the service serves",
    ("service/worker.py", "makes a LabelVault"): "of made-up labels, to try a job before it is paid for",
    ("service/worker.py", "makes a UserVault"): "of made-up labels, to try a job before it is paid for",
    ("choosing/predict.py", "calls DictReader"): "of results that ship with the library",
}  # fmt: skip


def files():
    found = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py"))]
    return [name for name in found if name.split("/")[0] not in PERIMETER]


def leaks(name, source):
    """What a file does that only the perimeter may, in words."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    yield from imported(f"{module}.{alias.name}")
            case ast.Import(names=names):
                for alias in names:
                    yield from imported(alias.name)
            case ast.Attribute(attr=attr) if attr in SEALED:
                yield f"reaches for {attr}"
            case ast.Constant(value=str(text)) if text in SEALED or text.startswith("labeldp.data."):
                yield f"spells {text}"
            case ast.Call(func=func, args=args):
                yield from called(callee(node), isinstance(func, ast.Attribute) and args)
            case ast.FunctionDef() if takes_labels(node):
                yield from opened(node)


def imported(name):
    match name.split("."):
        case ["labeldp", "data", module]:
            if module in FROM_DATA and FROM_DATA[module] is not None:
                yield f"imports {module}"
        case ["labeldp", "data", module, what]:
            allowed = FROM_DATA[module]
            if what.startswith("_") or (allowed is not None and what not in allowed):
                yield f"imports {module}.{what}"
        case ["labeldp", "core", "vault" | "fingerprint", what] if what in SEALED | {"fingerprint"}:
            yield f"imports {what}"


def called(name, given):
    """A call by name; `given` are the arguments of a method."""
    # Features have fingerprints too; those of labels need a key.
    if name in {"reveal", "seal_values"} | READERS or (name == "fingerprint" and given):
        yield f"calls {name}"
    elif name in VAULTS:
        yield f"makes a {name}"


def takes_labels(function):
    names = {arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)}
    return "y" in names and (names & {"X", "inputs"} or function.name == "_sealed")


def opened(function):
    """Labels given as `y` are sealed before anything is done with them; or declared open, to measure with."""
    takes = SEALING | {"isinstance", "open_labels"}
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    inside = {id(arg) for call in calls if callee(call) in takes for arg in call.args}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == "y" and id(node) not in inside:
            yield f"{function.name} uses y unsealed"
    body = function.body[1:] if ast.get_docstring(function) else function.body
    if function.name in ("fit", "select") and not {callee(node) for node in ast.walk(body[0])} & SEALING:
        yield f"{function.name} does not seal in its first statement"


def callee(node):
    func = getattr(node, "func", None)
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", None)


@pytest.mark.parametrize("name", files())
def test_no_training_label_is_open_outside_the_perimeter(name):
    found = set(leaks(name, (PACKAGE / name).read_text()))
    assert found <= {what for place, what in EXCUSED if place == name}


def test_every_excuse_is_needed():
    for name, what in EXCUSED:
        assert what in set(leaks(name, (PACKAGE / name).read_text())), (name, what)


LEAKS = {
    "private attribute": "def leak(vault):\n    return vault._LabelVault__labels\n",
    "attribute by its name": 'def leak(vault):\n    return getattr(vault, "_LabelVault__labels")\n',
    "reveal": 'def leak(vault):\n    return vault.reveal("just this once")\n',
    "fingerprint": 'def leak(vault):\n    return vault.fingerprint(b"a key that all know")\n',
    "encoder": "from labeldp.data.labels import as_codes\n",
    "encoder, late": "def leak(y_given):\n    from labeldp.data.labels import column_codes\n    return column_codes\n",
    "module of encoders": "def leak():\n    from labeldp.data import csv\n    return csv\n",
    "module by its name": 'import importlib\nleak = importlib.import_module("labeldp.data.labels")\n',
    "private reader": "from labeldp.data.door import _class_column\n",
    "loader that has not sealed": "from labeldp.data.table_files import read_adult\n",
    "reader of columns": "from labeldp.data.columns import read_one\n",
    "own reader": "import pyarrow.csv\ndef leak(path):\n    return pyarrow.csv.read_csv(path)\n",
    "own vault": "def leak(labels):\n    return LabelVault(labels, 2)\n",
    "a fit that uses labels": "def fit(self, X, y):\n    vault = seal_classes(y)\n    return self.head(X, y)\n",
    "a fit that seals too late": "def fit(self, X, y):\n    self.check(X)\n    return seal_classes(y)\n",
    "a score that uses labels": "def score(self, X, y):\n    return (self.predict(X) == y).mean()\n",
}
FOLDERS = sorted({name.split("/")[0] for name in files() if "/" in name})


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("folder", [*FOLDERS, "testing.py"])
def test_a_leak_is_found_in_every_folder(folder, leak):
    """In the shortest file that is excused for nothing: a file that is excused for this very thing cannot notice it."""
    excused = {place for place, _ in EXCUSED}
    inside = [name for name in files() if name == folder or name.startswith(f"{folder}/")]
    sources = [(PACKAGE / name).read_text() for name in inside if name not in excused]
    assert set(leaks(folder, f"{min(sources, key=len)}\n\n{LEAKS[leak]}"))
