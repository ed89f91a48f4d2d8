"""The design page: every file of the package is in its tree (`python scripts/tree.py` writes it)."""

import re

from tests.docs.pages import ROOT, text


def test_every_file_is_in_the_tree():
    tree = re.search(r"tree:begin -->(.*?)<!-- tree:end", text("design"), re.S)
    assert tree
    listed, folder = set(), ""
    for name in re.findall(r"^\| (?:\*\*)?`([\w/.]+)`", tree[1], re.M):
        folder = name if name.endswith("/") else folder
        listed.add(name if name.endswith("/") else folder + name)
    package = ROOT / "labeldp"
    files = {path.relative_to(package).as_posix() for path in package.rglob("*.py")}
    kept = {name for name in files if not name.endswith(("__init__.py", "__main__.py"))}
    assert {name for name in listed if not name.endswith("/")} == kept
