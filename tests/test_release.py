"""What a release needs beside its code: one version, extras that hints name, a workflow, a changelog made of notes."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
if not (ROOT / "scripts").is_dir():
    pytest.skip("the checkout is not beside the tests", allow_module_level=True)


def test_the_version_is_written_in_one_place():
    """CITATION.cff repeats it, since it cannot read it; nothing else does."""
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)
    assert cited is not None
    assert cited[1] == PROJECT["version"]
    written = re.compile(r"""__version__\s*=\s*["']""")
    assert [str(path) for path in (ROOT / "labeldp").rglob("*.py") if written.search(path.read_text("utf-8"))] == []


def test_extras_that_hints_name_exist():
    extras, found = set(PROJECT["optional-dependencies"]), set()
    pages = [
        *(ROOT / "labeldp").rglob("*.py"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "README.md",
        ROOT / "SECURITY.md",
    ]
    for path in pages:
        for names in re.findall(r"pip install[^\n]*?(?:labeldp|\.)\[([\w,]+)\]", path.read_text(encoding="utf-8")):
            found |= set(names.split(","))
    assert {"sklearn", "torch", "store", "postgresql", "report", "images"} <= found
    assert found <= extras


def test_data_of_the_package_is_packed():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "package-data"
    ]
    package = ROOT / "labeldp"
    packed = {path for pattern in patterns["labeldp"] for path in package.glob(pattern)}
    tracked = subprocess.run(
        ["git", "ls-files", "labeldp"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    others = {ROOT / name for name in tracked.splitlines() if not name.endswith(".py")}
    assert others <= packed


def test_the_workflow_runs_what_contributors_run():
    text = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    for command in ("bash .ci/run", "make docs", "python scripts/try_wheel.py"):
        assert f"run: {command}" in text
    tested = re.findall(r'"(3\.\d+)"', re.search(r"python: \[(.+)\]", text)[1])
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert tested == named == ["3.11", "3.12", "3.13", "3.14"]
    assert PROJECT["requires-python"] == f">={tested[0]}"


def changelog(root, *options):
    command = [sys.executable, str(ROOT / "scripts/changelog.py"), "--root", str(root), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_changelog_is_made_of_notes(tmp_path):
    notes = tmp_path / "changelog.d"
    notes.mkdir()
    (notes / "README.md").write_text("One file per change.")
    (notes / "2-first-thing.md").write_text("Added: Something\nis new.\n")
    (notes / "10-later.md").write_text("More is new.\n\n| a | b |\n\nFixed: It ends.\n\nAdded: A thing.\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n')
    (tmp_path / "CITATION.cff").write_text("version: 0.1.0\n")
    assert changelog(tmp_path).returncode == 0
    text = (tmp_path / "CHANGELOG.md").read_text()
    added = "### Added\n\n- A thing. (#10)\n- Something is new. (#2)\n"
    rest = "### Changed\n\n- More is new. (#10)\n\n  | a | b |\n\n### Fixed\n\n- It ends. (#10)\n"
    assert f"## Unreleased\n\n{added}\n{rest}" in text
    assert changelog(tmp_path, "--check").returncode == 0
    (notes / "11-last.md").write_text("The end.")
    assert "lacks 11-last.md" in changelog(tmp_path, "--check").stdout
    assert "is no version" in changelog(tmp_path, "--release", "one").stderr
    # While a version is prepared, notes go on arriving.
    assert changelog(tmp_path, "--prepare", "1.0.0").returncode == 0
    (notes / "13-late.md").write_text("Late.")
    assert changelog(tmp_path).returncode == 0
    text = (tmp_path / "CHANGELOG.md").read_text()
    assert re.findall(r"^## .*", text, re.M) == ["## 1.0.0 (unreleased)"]
    assert re.findall(r"\(#(\d+)\)", text) == ["10", "2", "13", "11", "10", "10"]
    assert 'version = "1.0.0"' in (tmp_path / "pyproject.toml").read_text()
    (notes / "13-late.md").unlink()
    assert changelog(tmp_path, "--release", "1.0.0").returncode == 0
    text = (tmp_path / "CHANGELOG.md").read_text()
    assert re.search(r"^## 1\.0\.0 \(\d{4}-\d\d-\d\d\)$.*^- The end\. \(#11\)$", text, re.M | re.S)
    assert "Unreleased" not in text
    assert [path.name for path in notes.iterdir()] == ["README.md"]
    assert 'version = "1.0.0"' in (tmp_path / "pyproject.toml").read_text()
    assert "version: 1.0.0" in (tmp_path / "CITATION.cff").read_text()
    # What is released stays.
    (notes / "12-new.md").write_text("Again.")
    assert changelog(tmp_path).returncode == 0
    again = (tmp_path / "CHANGELOG.md").read_text()
    assert again.index("## Unreleased") < again.index("## 1.0.0")
    assert "The end." in again
    assert "released already" in changelog(tmp_path, "--release", "1.0.0").stderr
    assert (notes / "12-new.md").exists()


def test_files_that_strangers_look_for_are_there():
    for name in (
        "LICENSE",
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "CODE_OF_CONDUCT.md",
        "CITATION.cff",
    ):
        assert len((ROOT / name).read_text(encoding="utf-8")) > 300, name
