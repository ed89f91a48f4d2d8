"""The design page: every file of the package is in its tree (`python scripts/tree.py` writes it)."""

import re
import sys

from tests import commands
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


def test_a_training_takes_the_steps_of_the_page(tmp_path):
    """The functions of the table are called, the first time each, in the order of the table."""
    page = re.search(r"^## One training(.*?)^## ", text("design"), re.S | re.M)
    assert page
    steps = re.findall(r"^\| `([\w/.]+\.py): ([\w.]+)`", page[1], re.M)
    assert len(steps) > 10
    rows = [f"{i % 17},{'abc'[i % 3]},{'yes' if (i * 7) % 17 > 8 else 'no'}" for i in range(2000)]
    (tmp_path / "toy.csv").write_text("\n".join(["size,kind,label", *rows]) + "\n")
    package, called = f"{ROOT / 'labeldp'}/", dict[tuple[str, str], None]()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            called.setdefault((code.co_filename.removeprefix(package), code.co_qualname))

    sys.setprofile(note)
    try:
        commands.labeldp(
            "train", "toy.csv", "--label", "label", "--classes", "no,yes", "--epsilon", 1, "--method", "rr+learner",
            "--out", "model", "--quiet", cwd=tmp_path, check=0,
        )  # fmt: skip
    finally:
        sys.setprofile(None)
    # The method is named, so none is chosen.
    assert [step for step in called if step in steps] == [step for step in steps if "choosing/" not in step[0]]
